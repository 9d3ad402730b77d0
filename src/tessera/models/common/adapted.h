#pragma once
// LoRA over any model: its weights are frozen, and the linears that are named get a low-rank pair beside them.
//
//   auto modules = adapt(*model, {.rank = 16, .alpha = 16, .targets = {"q", "k", "v", "o"}});
//   model->units()[1]->spec().params.back().name;             // "blocks.0.cross_attn.o.lora_B.weight"
//
// Nothing else changes: a unit with adapters is a unit with more parameters, and its Context adds the pairs
// (net/adapters.h).
#include "tessera/net/model.h"

namespace tessera::models {

struct AdapterRule {
  int64_t rank = 32;
  double alpha = 32;  ///< the scale of B A is alpha / rank, with `rslora` alpha / sqrt(rank)
  bool rslora = false;
  bool dora = false;  ///< a magnitude for each row beside the pair
  double dropout = 0;
  uint64_t seed = 0;
  /// How the frozen weights of the blocks' linears rest and travel. What is small or wants its bits (biases, norms,
  /// modulation, stem, head) stays as the plan gathers parameters.
  DType base = DType::f32;
  /// Modules by official or diffusers name: the whole name or what stands behind a dot in it ("q", "ffn.0",
  /// "attn1.to_q"), a pattern with * over the whole name ("blocks.*.self_attn.*"), or a regular expression where it has
  /// one of
  /// ()[]|^$+\ ("blocks.*(to_q|to_k)"), which begins at the start of the name. "all": every linear of the blocks.
  std::vector<std::string> targets;
  double scale() const;
};

/// What is adapted where a recipe does not say: the attentions' and the feed-forward's linears (of DiffSynth).
const std::vector<std::string>& default_targets();

/// Freezes the model's parameters and adds those of the adapters; gives the adapted modules in their order. Throws
/// UserError (usage) for a target that names no linear, a rank beyond a matrix's, a model that takes none.
std::vector<std::string> adapt(net::Denoiser& model, const AdapterRule& rule);

bool is_adapter_parameter(const std::string& name);

/// Initial values of elements [first, first + count): A uniform in +-1/sqrt(in) (kaiming with a = sqrt 5), B zero, a
/// magnitude one (the rows' lengths take its place when the weights are there).
void initialise_adapter(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out);

}  // namespace tessera::models
