#pragma once
// Weights from one program's form to another's: names, config.json, file format, dtype, shards.
//
//   convert({.in = "Wan2.1-T2V-1.3B", .out = "wan-diffusers", .to = "diffusers"});
//   convert({.in = "Wan2.1-T2V-1.3B", .out = "merged", .merge = {"style.safetensors"}});
//   convert({.in = "models_t5_umt5-xxl-enc-bf16.pth", .out = "t5.safetensors"});
//
// Tensor after tensor: memory holds one of them. The output appears when it is whole.
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::train {

struct ConvertOptions {
  std::filesystem::path in;   ///< a file, an index.json, a model folder, or a folder of several parts
  std::filesystem::path out;  ///< a file where the name ends as one (.safetensors, .pth, .pt), otherwise a folder
  /// official, diffusers, comfyui; of a LoRA: diffusers, comfyui, kohya, diffsynth, peft; empty: names stay
  std::string to = {};
  std::string format = {};                        ///< safetensors, pth; empty: what OUT's name or the layout says
  std::string dtype = {};                         ///< fp32, bf16, fp16 for floating tensors; empty: as stored
  int64_t shard_size = int64_t{5} << 30;          ///< bytes of a file in a folder, safetensors only
  bool force = false;                             ///< replace a file at OUT
  std::vector<std::filesystem::path> merge = {};  ///< LoRAs that are added to the transformer
  std::vector<double> merge_scales = {};          ///< of each, or of all; empty: 1
};

/// Throws UserError: usage for options that contradict each other, input for what cannot be read or is not known, disk.
void convert(const ConvertOptions& options);

}  // namespace tessera::train
