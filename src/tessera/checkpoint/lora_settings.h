#pragma once
// What a LoRA file says beside its tensors: alpha, rsLoRA, DoRA, in a safetensors header (diffusers), in the
// adapter_config.json beside it (peft, diffusion-pipe), or in musubi's ss_ entries.
//
//   LoraSettings settings = read_lora_settings(metadata, folder_of_the_file, "lora.safetensors");
//   settings.alpha_of("blocks.0.attn1.to_q");            // nothing when the file does not say
//   lora_scale(alpha, rank, settings.rslora);
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/bounded_regex.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

struct LoraSettings {
  std::optional<double> alpha;                        ///< of all modules
  std::map<std::string, double, std::less<>> alphas;  ///< by module: peft's alpha_pattern, those that are mere names
  std::vector<std::pair<BoundedRegex, double>> alpha_patterns;  ///< those that are regular expressions
  bool of_factors = false;  ///< peft wrote a LoHa or LoKr, and these alphas are its own
  bool rslora = false;      ///< the scale is alpha / sqrt(rank)
  bool dora = false;
  std::optional<double> folded_alpha;  ///< ours: B holds alpha / rank as a factor already, and this is alpha
  bool base_lengths = false;  ///< ours: DoRA's magnitudes are those by which ComfyUI multiplies, see kBaseLengths
  /// Why B A on the released base is not what was trained: "PiSSA, ..."; empty: it is.
  std::string not_plain = {};
  std::string base_model = {};  ///< the path or name that peft noted

  /// The alpha of a module by its name in the file, without prefix.
  std::optional<double> alpha_of(const std::string& module) const;
};

/// `folder`: where an adapter_config.json may lie; empty: it is not looked for. Throws UserError (input) for what is
/// there and cannot be understood.
LoraSettings read_lora_settings(const Metadata& metadata, const Path& folder, const std::string& file);

double lora_scale(double alpha, int64_t rank, bool rslora);

/// "blocks.3.self_attn.q" -> "self_attn.q": a module without the layer's number.
std::string target_of(const std::string& module);

/// What a file is written with. Modules are named without prefix, as in the file.
struct LoraDescription {
  struct Module {
    std::string name;
    int64_t rank = 0;
    double alpha = 0;
  };
  std::vector<Module> modules;
  bool rslora = false, dora = false, bias = false;
  std::string kind = {};      ///< "LoHa", "LoKr"; empty: a LoRA
  bool base_lengths = false;  ///< as LoraSettings has it
  std::string network = {};   ///< kohya's network module, by the family of the modules
};

/// In the header of a file whose `dora_scale` times |W| / |W + s B A| already: ComfyUI divides by the length of W's row.
inline constexpr const char* kBaseLengths = "tessera_dora_of_base";

/// JSON as peft writes it: r and lora_alpha are those of most modules, others stand in the patterns. Keys start with
/// `prefix` ("transformer." in diffusers' header).
std::string lora_config_json(const LoraDescription& description, const std::string& prefix);

/// The header of a file under a naming (models/lora_names.h): diffusers' lora_adapter_metadata, and what ComfyUI, A1111 and
/// Civitai show, ss_network_*. `folded`: the alpha that is a factor of B already.
Metadata lora_metadata(const LoraDescription& description, const std::string& naming, std::optional<double> folded);

/// What a header says of where a LoRA comes from, ss_* and modelspec.*: it stays true in a file of other names. What
/// belongs to the file itself (ss_network_*, its hash) is left out.
Metadata lora_origin(const Metadata& header);

}  // namespace tessera::checkpoint
