#pragma once
// What a conversion of weights is asked for.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::weights {

struct ConvertOptions {
  std::filesystem::path in;   ///< a file, an index.json, a model folder, or a folder of several parts
  std::filesystem::path out;  ///< a file where the name ends as one (.safetensors, .pth, .pt), otherwise a folder
  /// official, diffusers, comfyui; of a LoRA: diffusers, comfyui, kohya, diffsynth, peft; empty: names stay
  std::string to = {};
  std::string format = {};  ///< safetensors, pth; empty: what OUT's name or the layout says
  /// fp32, bf16, fp16 for floating tensors; fp8_scaled: linears of blocks in fp8, each with its scale; empty: as stored
  std::string dtype = {};
  /// Of tensors that the model has no parameter for: refuse, drop, keep (under their names).
  std::string extra_tensors = "refuse";
  int64_t shard_size = int64_t{5} << 30;          ///< bytes of a file in a folder, safetensors only
  bool averaged = false;                          ///< the moving average that a .pth holds beside the weights
  bool force = false;                             ///< replace a file at OUT
  std::vector<std::filesystem::path> merge = {};  ///< LoRAs that are added to the transformer
  std::vector<double> merge_scales = {};          ///< of each, or of all; empty: 1
  std::filesystem::path base = {};                ///< of a LoRA that gets other names: its model; empty: not needed
};

}  // namespace tessera::weights
