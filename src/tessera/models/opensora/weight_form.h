#pragma once
// The files of MMDiT denoisers: released, Flux's and diffusers' names, and config.json.
//
//   Family{.weights = {weight_form()}};
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

#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models::opensora {

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

WeightForm weight_form();

}  // namespace tessera::models::opensora
