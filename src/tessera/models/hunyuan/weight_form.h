#pragma once
// The files of HunyuanVideo-1.5's denoisers: official, diffusers' and ComfyUI's names, and config.json.
//
//   Family{.weights = {weight_form()}};
//
// Ours are the official names, but that what these hold in one tensor is apart here (checkpoint/row_part.h):
//
// | ours                                | official                          | ComfyUI                      |
// |-------------------------------------|-----------------------------------|------------------------------|
// | refiner: self_attn_{q,k,v}          | self_attn_qkv, by thirds          | self_attn.qkv, by thirds     |
// | double_blocks.#.img_attn_{q,k,v}    | the same                          | img_attn.qkv, by thirds      |
// | final_layer.shift, .scale           | final_layer.adaLN_modulation.1    | the same                     |
#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models::hunyuan {

/// Ours -> a naming: official, diffusers, fused (ComfyUI's), tessera.
std::string foreign_tensor(const std::string& name, const std::string& naming);

WeightForm weight_form();

}  // namespace tessera::models::hunyuan
