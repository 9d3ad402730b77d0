#pragma once
// Tensor names in LoRA files of other programs: the naming of a file, the model whose modules it has, and the module that
// a tensor adapts. families/lora_namings.h says how each naming is written.
//
//   LoraNames names = *detect_lora_names(stored);                    // "kohya" of Wan, "diffusers" of Sana, ...
//   auto key = names.parse("lora_unet_blocks_0_ffn_0.lora_up.weight");
//   key->module, key->part;                                          // "blocks.0.ffn.0", LoraPart::up
//   lora_tensor_name("blocks.0.ffn.0", LoraPart::up, "diffusers", names.form);
//   // "transformer.blocks.0.ffn.net.0.proj.lora_B.weight"
//
// | naming    | module "blocks.0.self_attn.q" of Wan     | pair             | alpha                                   |
// | diffusers | transformer.blocks.0.attn1.to_q          | lora_A, lora_B   | in the header: lora_adapter_metadata    |
// | peft      | base_model.model.blocks.0.self_attn.q    | lora_A, lora_B   | adapter_config.json beside it           |
// | comfyui   | diffusion_model.blocks.0.self_attn.q     | lora_A, lora_B   | .alpha where it is not the rank         |
// | kohya     | lora_unet_blocks_0_self_attn_q           | lora_down, _up   | .alpha, always                          |
// | diffsynth | blocks.0.self_attn.q                     | lora_A.default   | none: the rank; another is folded into B
//
// Factors of LoHa and LoKr (hada_w1_a, lokr_w1) and their alpha are called alike under all of them.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/row_part.h"

namespace tessera::models {

struct WeightForm;  // models/common/weight_form.h

/// The role of a LoRA tensor in its module.
enum class LoraPart {
  down,       ///< A [r, in]
  up,         ///< B [out, r]
  up_bias,    ///< of B [out], added to the bias after scaling
  alpha,      ///< one number: the scale is alpha / r
  magnitude,  ///< of DoRA [out] (ComfyUI: [out, 1], of the input axis [1, in])
  diff,       ///< added to the weight, unscaled
  diff_bias,  ///< added to the bias, unscaled
  // factors of LoHa and LoKr, whose names all programs have alike (kFactorEndings)
  hada_w1_a,
  hada_w1_b,
  hada_t1,
  hada_w2_a,
  hada_w2_b,
  hada_t2,
  lokr_w1,
  lokr_w1_a,
  lokr_w1_b,
  lokr_w2,
  lokr_w2_a,
  lokr_w2_b,
  lokr_t2
};
inline constexpr LoraPart kFirstFactor = LoraPart::hada_w1_a;
/// In their order.
inline constexpr std::string_view kFactorEndings[] = {
    ".hada_w1_a", ".hada_w1_b", ".hada_t1", ".hada_w2_a", ".hada_w2_b", ".hada_t2", ".lokr_w1",
    ".lokr_w1_a", ".lokr_w1_b", ".lokr_w2", ".lokr_w2_a", ".lokr_w2_b", ".lokr_t2"};

struct LoraKey {
  std::string module;  ///< official, dotted: the weight it adapts is module + ".weight"
  LoraPart part;
};

struct LoraNames {
  std::string naming;  ///< one of families::kLoraNamings
  std::string prefix;  ///< in front of every module
  /// The model whose modules the file has, one for all of them; null: none that is known.
  const WeightForm* form = nullptr;
  /// Titles of models that have all of its modules alike, but mean other weights by them; empty: there is but one.
  std::string rivals = {};
  /// Nothing for a tensor that is no part of a low-rank adapter, or whose flat name belongs to no known module.
  std::optional<LoraKey> parse(std::string_view stored) const;
};

/// Detects naming and model by the tensors' names; nullopt when none of them is part of an adapter. `base`: the model
/// that the file is for, where that is known.
std::optional<LoraNames> detect_lora_names(const std::vector<std::string>& stored, const WeightForm* base = nullptr);

/// Whether a tensor belongs to a LoRA, LoHa or LoKr.
bool is_adapter_tensor(std::string_view stored);

/// The name of a tensor under a naming; nullopt if the naming has none for it (a magnitude in DiffSynth's).
std::optional<std::string> lora_tensor_name(const std::string& module, LoraPart part, const std::string& naming,
                                            const WeightForm* form);
/// That of a module's alpha, also under namings of which only LoHa and LoKr have one.
std::string alpha_name(const std::string& module, const std::string& naming, const WeightForm* form);
/// The module's name under a naming, without prefix, as in lists of target modules.
std::string lora_module_name(const std::string& module, const std::string& naming, const WeightForm* form);
/// A module of the file that is several of ours, which the other program stores as one ("ff.conv_inverted" of Sana): ours
/// by official name, and which of its rows each is. None for other modules.
struct LoraPiece {
  std::string module;
  checkpoint::RowPart rows;
};
std::vector<LoraPiece> lora_pieces(const WeightForm* form, const std::string& module);
/// The family that has the form; empty for none.
std::string family_with(const WeightForm* form);

}  // namespace tessera::models
