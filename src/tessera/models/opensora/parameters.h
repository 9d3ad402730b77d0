#pragma once
// The parameters of an MMDiT's units in the order of their use, their initial values and their names elsewhere.
//
// Ours are the names of Open-Sora's released files, in which heads are rotated by halves, but that what these hold in
// one tensor and tensor parallelism shares apart is a tensor of its own (checkpoint/row_part.h):
//
// | ours                           | released                           | Flux                    |
// |--------------------------------|------------------------------------|-------------------------|
// | img_attn.{q,k,v}_proj          | the same                           | img_attn.qkv, by thirds |
// | single: q_proj, k_proj         | the same                           | linear1, by sevenths    |
// | single: v_proj, mlp            | v_mlp, by fifths                   | linear1                 |
// | single: linear2.attn, .mlp     | linear2, by fifths of its columns  | linear2                 |
// | final_layer.shift, .scale      | final_layer.adaLN_modulation.1     | the same                |
//
// Flux's files, and diffusers', rotate heads by neighbours: their rows of q, k and the norms of these have another order.
#include <compare>

#include "tessera/models/common/initial.h"
#include "tessera/models/common/names.h"
#include "tessera/models/opensora/config.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::models::opensora {

plan::UnitSpec stem_spec(const Config& config);
plan::UnitSpec double_block_spec(const Config& config, int64_t index);
plan::UnitSpec single_block_spec(const Config& config, int64_t index);
plan::UnitSpec head_spec(const Config& config);

/// PyTorch's of linears, of which biases are zero here; what takes given frames begins as zero.
Initial initial_values(const plan::ParamSpec& param, bool released);

/// How a program's files hold what is apart here.
struct FileForm {
  bool fused = false;     ///< q, k and v in one tensor
  int64_t pairs = 0;      ///< width of the heads where these are rotated by neighbours, else 0
  int64_t mlp_ratio = 4;  ///< of the feed-forward, which lies beside v
  auto operator<=>(const FileForm&) const = default;
};
/// Ours -> files of that form. Tables live as long as the program.
const std::vector<NamePattern>& program_names(const FileForm& form);
/// Ours -> diffusers', whose heads of that width are rotated by neighbours.
const std::vector<NamePattern>& diffusers_names(int64_t head_dim, int64_t mlp_ratio);

}  // namespace tessera::models::opensora
