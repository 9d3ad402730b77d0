#pragma once
// Weights from one program's form to another's: names, config.json, file format, dtype, shards.
//
//   convert({.in = "Wan2.1-T2V-1.3B", .out = "wan-diffusers", .to = "diffusers"});
//   convert({.in = "Wan2.1-T2V-1.3B", .out = "merged", .merge = {"style.safetensors"}});
//   convert({.in = "models_t5_umt5-xxl-enc-bf16.pth", .out = "t5.safetensors"});
//
// Tensor after tensor: memory holds one of them. The output appears when it is whole.
#include "tessera/models/convert_source.h"

namespace tessera::models {

/// Throws UserError: usage for options that contradict each other, input for what cannot be read or is not known, disk.
void convert(const ConvertOptions& options);

}  // namespace tessera::models
