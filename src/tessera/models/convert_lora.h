#pragma once
// A LoRA file under another program's names.
//
//   convert_lora({.in = "musubi.safetensors", .out = "pytorch_lora_weights.safetensors", .to = "diffusers"});
//
// A and B keep their bits in every naming but one: DiffSynth's files have no alpha, there B is multiplied by alpha /
// rank, which is exact where that is a power of two (the header says so, and the way back divides); other scales are
// written as .alpha, which its loader reads. rsLoRA becomes an alpha where the naming has no word for it.
//
// ComfyUI divides a row of W + s B A by the length of W's row and not, as peft and this program do, by that of the sum.
// Files for it have DoRA's magnitudes times |W| / |W + s B A|, which gives the trained weights there, and for which the
// base is read.
#include <functional>

#include "tessera/models/convert_source.h"
#include "tessera/models/lora_file.h"

namespace tessera::models {

/// A tensor of a LoRA file to be written: its bytes are those of `source` as stored, times `factor`; without source a
/// number.
struct LoraTensor {
  checkpoint::TensorInfo info;
  std::optional<checkpoint::TensorInfo> source;
  double factor = 1, number = 0;
  at::Tensor by_row = {};  ///< a factor of each element, of magnitudes; undefined: none
};

struct LoraPlan {
  std::vector<LoraTensor> tensors;
  checkpoint::Metadata metadata;
  std::string config_json;  ///< adapter_config.json, for peft
};

/// The model that adapters belong to, opened: one transformer under any naming.
class LoraBase {
 public:
  /// Throws UserError (input) for what is no transformer that is known, or two of them.
  explicit LoraBase(const std::filesystem::path& path);
  const models::WeightForm* form() const { return identity_.form; }
  at::Tensor weight(const std::string& module) const;  ///< fp32; throws UserError (input) when it has none

 private:
  Source source_;
  models::Identity identity_;
};
/// Opens the base at its first use.
using OpenBase = std::function<const LoraBase&()>;

/// What a file under `naming` holds; `dtype` empty: as stored. Throws UserError (input) naming the first tensor for
/// which the naming has no place, (usage) for a naming of programs that have no use for such adapters, and what
/// `open_base` throws where the base has to be read.
LoraPlan plan_lora(const LoraFile& lora, const std::string& naming, const std::string& dtype,
                   const OpenBase& open_base);
/// Throws UserError (usage) when no program loads adapters of the family under the naming.
void check_naming(const models::WeightForm* form, const std::string& naming, const char* place);

/// Writes what plan_lora says to `file`, and beside it adapter_config.json for peft.
void write_lora(const LoraFile& lora, const LoraPlan& plan, const std::filesystem::path& file);

/// OUT is a file, or a folder that gets the name the program looks for. Throws UserError like convert.
void convert_lora(const ConvertOptions& options);

}  // namespace tessera::models
