#pragma once
// The log lines about a quantised frozen base (lora.base_dtype): its size, and its distance from the original weights.
//
//   const auto facts = base_facts(planned.spec);                     // of a plan, before anything is loaded
//   log::info(describe(*facts));
//   const BaseError error = base_error(spec, load_initial_weights(recipe, job, store), comm);   // all ranks take part
#include <optional>
#include <string>

#include "tessera/engine/store/transfer.h"

namespace tessera::job {

/// Sums over all ranks, of one model.
struct BaseFacts {
  DType form = DType::f32;
  int64_t linears = 0;
  int64_t bytes = 0, fp32_bytes = 0;  ///< as it is stored, and as it would be in fp32
};
/// nullopt where no parameter is quantised.
std::optional<BaseFacts> base_facts(const plan::ModelSpec& model);
/// "30 frozen linears in int8: 1.2 MiB, 4.7 MiB in fp32"
std::string describe(const BaseFacts& facts);

/// |stored - w| / |w|, norms over all elements.
struct BaseError {
  double all = 0, worst = 0;
  std::string worst_linear;
};
/// `mine`: of this rank's shards. Of several experts, all together.
BaseError base_error(const plan::ModelSpec& model, const engine::Roundings& mine, comm::Comm& comm);
/// "it is off by 0.66 % of its weights, at most by 0.71 %, in blocks.2.ffn.0"
std::string describe(const BaseError& error);

}  // namespace tessera::job
