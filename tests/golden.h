#pragma once
// What tests over the golden cases share: finding a case, its tensors, weights and tolerances.
//
//   TESSERA_NEED_GOLDENS();                                    // skips with a reason; fails where CI=true
//   const Golden golden("wan21_t2v");
//   TensorMap tensors = golden.tensors("case.safetensors");    // fp32, int64 as they are
//   expect_close(actual, tensors.at("out.0"), golden.tolerance("out"), "out.0");
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "need_goldens.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/torch_headers.h"

namespace tessera {

using TensorMap = std::map<std::string, at::Tensor, std::less<>>;

inline TensorMap read_tensors(const std::filesystem::path& path) {
  const auto file = checkpoint::SafetensorsFile::open(path);
  TensorMap result;
  for (const auto& entry : file.entries()) {
    const bool integer = entry.dtype == DType::i64;
    at::Tensor value = at::empty(entry.shape, integer ? at::kLong : at::kFloat);
    if (integer)
      file.read(entry.name, 0, entry.count(), value.mutable_data_ptr());
    else
      file.read_f32(entry.name, 0, entry.count(), value.mutable_data_ptr<float>());
    result[entry.name] = value;
  }
  return result;
}

class Golden {
 public:
  explicit Golden(const std::string& name) : folder_(std::filesystem::path(TESSERA_GOLDENS) / name) {
    std::ifstream(folder_ / "case.json") >> case_;
  }
  std::filesystem::path path(const std::string& file) const { return folder_ / file; }
  TensorMap tensors(const std::string& file) const { return read_tensors(path(file)); }
  double tolerance(const std::string& key) const { return case_.at("tolerance").at(key).get<double>(); }
  std::string text(const std::string& file) const {
    std::ifstream in(path(file));
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::filesystem::path folder_;
  nlohmann::json case_;
};

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double bound, const std::string& name) {
  ASSERT_TRUE(actual.defined()) << name << " is missing";
  ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
  const double worst =
      expected.numel() ? (actual.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>() : 0;
  EXPECT_LE(worst, bound) << name;  // false for NaN, too
}

/// The rule of grad and grad_in: tolerance * max(1e-2, largest expected value).
inline void expect_gradient(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                            const std::string& name) {
  expect_close(actual, expected, tolerance * std::max(1e-2, expected.abs().max().item<double>()), name);
}

}  // namespace tessera
