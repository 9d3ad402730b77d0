#pragma once
// Tests that run once with each table of kernels (ops/kernels.h).
//
//   using AttentionParts = WithEachTable<>;
//   TEST_P(AttentionParts, AreEqual) { ... }
//   INSTANTIATE_TEST_SUITE_P(, AttentionParts, each_table(), table_name);
#include <gtest/gtest.h>

#include "tessera/ops/kernels.h"

namespace tessera::testing {

inline const ops::Kernels* table_of(const ops::Kernels* param) { return param; }
template <class... Cases>
const ops::Kernels* table_of(const std::tuple<const ops::Kernels*, Cases...>& param) {
  return std::get<0>(param);
}

/// `Param`: the table, or a tuple that begins with it.
template <class Param = const ops::Kernels*>
class WithEachTable : public ::testing::TestWithParam<Param> {
 protected:
  const ops::Kernels& table = *table_of(this->GetParam());
  const bool ours = &table == &ops::cpu_kernels();

 private:
  const ops::CpuKernelsScope scope_{table};
};

inline auto each_table() { return ::testing::Values(&ops::cpu_kernels(), &ops::aten_kernels(), &ops::fused_kernels()); }
inline std::string table_name(const ::testing::TestParamInfo<const ops::Kernels*>& info) { return info.param->name; }

}  // namespace tessera::testing
