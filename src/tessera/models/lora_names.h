#pragma once
// Tensor names in LoRA files of other programs: the naming of a file, and the module that a tensor adapts.
//
//   LoraNames names = detect_lora_names(stored);                     // "kohya", "diffusers", ...
//   auto key = names.parse("lora_unet_blocks_0_ffn_0.lora_up.weight");
//   key->module, key->part;                                          // "blocks.0.ffn.0", LoraPart::up
//   lora_tensor_name("blocks.0.ffn.0", LoraPart::up, "diffusers");
//   // "transformer.blocks.0.ffn.net.0.proj.lora_B.weight"
//
// | naming    | module "blocks.0.self_attn.q"            | pair             | alpha                                   |
// | diffusers | transformer.blocks.0.attn1.to_q          | lora_A, lora_B   | in the header: lora_adapter_metadata    |
// | peft      | base_model.model.blocks.0.self_attn.q    | lora_A, lora_B   | adapter_config.json beside it           |
// | comfyui   | diffusion_model.blocks.0.self_attn.q     | lora_A, lora_B   | .alpha where it is not the rank         |
// | kohya     | lora_unet_blocks_0_self_attn_q           | lora_down, _up   | .alpha, always                          |
// | diffsynth | blocks.0.self_attn.q                     | lora_A.default   | none: the rank; another is folded into B
// |
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::models {

/// The role of a LoRA tensor in its module.
enum class LoraPart {
  down,       ///< A [r, in]
  up,         ///< B [out, r]
  up_bias,    ///< of B [out], added to the bias after scaling
  alpha,      ///< one number: the scale is alpha / r
  magnitude,  ///< of DoRA [out] (ComfyUI: [out, 1])
  diff,       ///< added to the weight, unscaled
  diff_bias   ///< added to the bias, unscaled
};

struct LoraKey {
  std::string module;  ///< official, dotted: the weight it adapts is module + ".weight"
  LoraPart part;
};

struct LoraNames {
  std::string naming;  ///< one of families::kLoraNamings
  std::string prefix;  ///< in front of every module
  /// Nothing for a tensor that is no part of a low-rank adapter, or whose flat name belongs to no known module.
  std::optional<LoraKey> parse(std::string_view stored) const;
};

/// Detects the naming by the tensors' names; nullopt when none of them is part of an adapter.
std::optional<LoraNames> detect_lora_names(const std::vector<std::string>& stored);

/// Whether a tensor belongs to a LoRA or one of its relatives (LoKr, LoHa, which are known but not read).
bool is_adapter_tensor(std::string_view stored);
/// "LoKr" or "LoHa" for a tensor of these, otherwise empty.
std::string_view foreign_adapter_kind(std::string_view stored);

/// The name of a tensor under a naming; nullopt if the naming has none for it (a magnitude in DiffSynth's).
std::optional<std::string> lora_tensor_name(const std::string& module, LoraPart part, const std::string& naming);
/// Kohya's network module of the family that has these modules.
std::string lora_network(const std::string& module);
/// The module's name under a naming, without prefix, as in lists of target modules.
std::string lora_module_name(const std::string& module, const std::string& naming);

}  // namespace tessera::models
