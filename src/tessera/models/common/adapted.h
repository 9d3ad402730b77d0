#pragma once
// Adapters for any model: freezes its weights and adds low-rank pairs (LoRA), or the factors of LoHa and LoKr, to the
// linears that `targets` name.
//
//   auto modules = adapt(*model, {.rank = 16, .alpha = 16, .targets = {"q", "k", "v", "o"}});
//   model->units()[1]->spec().params.back().name;             // "blocks.0.cross_attn.o.lora_B.weight"
//
// A unit with adapters is a unit with more parameters; its Context adds the pairs to the linears' results
// (net/adapters.h).
#include <array>

#include "tessera/net/adapters.h"
#include "tessera/net/model.h"

namespace tessera::models {

struct AdapterRule {
  int64_t rank = 32;
  double alpha =
      32;  ///< the scale is alpha / rank, with `rslora` alpha / sqrt(rank); of LoKr with two whole matrices 1
  bool rslora = false;
  bool dora = false;  ///< a magnitude for each row beside the pair
  double dropout = 0;
  double rank_dropout = 0, module_dropout = 0;  ///< net::AdapterSettings
  uint64_t seed = 0;
  /// The dtype in which frozen weights of the blocks' linears are stored and gathered. Small or sensitive parameters
  /// (biases, norms, modulation, stem, head) keep the plan's dtype.
  DType base = DType::f32;
  /// Modules by official or diffusers name: the whole name or its end after a dot ("q", "ffn.0", "attn1.to_q"), a
  /// pattern with * for the whole name ("blocks.*.self_attn.*"), or, if it has one of the characters ()[]|^$+\, a
  /// regular expression from the start of the name ("blocks.*(to_q|to_k)"). "all": every linear of the blocks.
  std::vector<std::string> targets = {};
  /// lora, loha or lokr.
  std::string kind = "lora";
  /// Of LoKr: into what dimensions are split (kronecker_split); whether the first matrix is a product too where the rank
  /// is below half of its longer side; whether the second is whole in any case; whether the larger part of the outputs is
  /// the first's.
  int64_t factor = -1;
  bool decompose_both = false, full_matrix = false, unbalanced = false;
  /// PATTERN and its rank or alpha, of modules by official name, written as targets are; the first that matches counts.
  std::vector<std::pair<std::string, double>> ranks = {}, alphas = {};
  bool alpha_is_rank = false;  ///< alpha is each module's own rank where no pattern gives another

  int64_t rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
  double scale(const std::string& module = {}) const;  ///< but of LoKr with two whole matrices, whose scale is 1
};

/// The parameters that the rule adds beside a weight [out, in].
std::vector<plan::ParamSpec> adapter_params(const AdapterRule& rule, const plan::ParamSpec& weight);

/// The two parts of a dimension, the smaller first, as LyCORIS chooses them: of a factor that divides it, the factor and
/// the rest; else the most square ones whose smaller part is at most `factor` (-1: any).
std::array<int64_t, 2> kronecker_split(int64_t dimension, int64_t factor);

/// The default targets, those of DiffSynth: the linears of the attentions and of the feed-forward.
const std::vector<std::string>& default_targets();

/// Freezes the model's parameters and adds those of the adapters; returns the adapted modules in the model's order.
/// Throws UserError (usage) for a target that names no linear, a rank above a matrix's.
std::vector<std::string> adapt(net::Denoiser& model, const AdapterRule& rule);

using net::is_adapter_parameter;

/// Initial values of elements [first, first + count): A uniform in +-1/sqrt(in) (kaiming with a = sqrt 5), B zero, a
/// magnitude one (replaced by the norms of the weight's rows once the weights are loaded); the factors of LoHa and LoKr
/// as in LyCORIS.
void initialise_adapter(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out);

}  // namespace tessera::models
