#pragma once
// A LoRA file under another program's names.
//
//   convert_lora({.in = "musubi.safetensors", .out = "pytorch_lora_weights.safetensors", .to = "diffusers"});
//
// A and B keep their bits in every naming but one: DiffSynth's files have no alpha, there B is multiplied by alpha /
// rank, which is exact where that is a power of two (the header says so, and the way back divides); other scales are
// written as .alpha, which its loader reads. rsLoRA becomes an alpha where the naming has no word for it.
#include "tessera/weights/convert_options.h"
#include "tessera/weights/lora_file.h"

namespace tessera::weights {

/// A tensor of a LoRA file to be written: its bytes are those of `source` as stored, times `factor`; without source a
/// number.
struct LoraTensor {
  checkpoint::TensorInfo info;
  std::optional<checkpoint::TensorInfo> source;
  double factor = 1, number = 0;
};

struct LoraPlan {
  std::vector<LoraTensor> tensors;
  checkpoint::Metadata metadata;
  std::string config_json;  ///< adapter_config.json, for peft
};

/// What a file under `naming` holds; `dtype` empty: as stored. Throws UserError (input) naming the first tensor for
/// which the naming has no place.
LoraPlan plan_lora(const LoraFile& lora, const std::string& naming, const std::string& dtype);

/// Writes what plan_lora says to `file`, and beside it adapter_config.json for peft.
void write_lora(const LoraFile& lora, const LoraPlan& plan, const std::filesystem::path& file);

/// OUT is a file, or a folder that gets the name the program looks for. Throws UserError like convert.
void convert_lora(const ConvertOptions& options);

}  // namespace tessera::weights
