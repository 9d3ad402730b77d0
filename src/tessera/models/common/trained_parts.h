#pragma once
// Which parameters of a model are trained, and which have a rate or a decay of their own: by patterns over their names.
//
//   choose_trained(*model, /*only=*/{"vace_blocks"}, /*freeze=*/{"bias"});
//   parameter_groups(*model, {"blocks.*.modulation", "norm_q"});     // {"blocks.0.modulation", 0}, ...
//
// [Note: patterns of parameters] A pattern is met by a parameter's official name, or by its diffusers name:
//   vace_blocks, self_attn.q, bias    whole components of the name, anywhere in it
//   blocks.*.ffn, *vace*              with * for any text: the whole name, or its beginning up to a dot
//   blocks\.[0-9]\.(norm1|ffn)        with one of the characters ()[]|^$+\: a regular expression from the name's start
//
// A frozen parameter is one of a unit as the base of a LoRA is: it has no gradient and no state, no message reduces it,
// and the backward ends at the first unit that has a trained one (plan::backward_from).
#include <map>
#include <string>
#include <vector>

#include "tessera/net/model.h"

namespace tessera::models {

struct TrainedCount {
  int64_t trained = 0, all = 0;  ///< elements
};

/// Freezes what `only` leaves out (empty: nothing) and what `freeze` names. Throws UserError (usage) for a pattern that no
/// parameter meets, with near names, and where nothing is left to train.
TrainedCount choose_trained(net::Denoiser& model, const std::vector<std::string>& only,
                            const std::vector<std::string>& freeze);

/// For each trained parameter that meets one of the patterns: the first of them.
std::map<std::string, int> parameter_groups(const net::Denoiser& model, const std::vector<std::string>& patterns);
/// Freezes those of the patterns for which `frozen` is true. Throws as above.
void check_groups(net::Denoiser& model, const std::vector<std::string>& patterns, const std::vector<bool>& frozen);

/// Marks the trained tensors that are updated as whole matrices (plan::ParamSpec::whole): of those with two dimensions or
/// more the ones that meet `matrices`, or, where that is empty, those of units between the first and the last whose
/// leading size is not 1; without those that meet `elementwise`. Throws as above. Counts what is marked of what is trained.
TrainedCount choose_matrices(net::Denoiser& model, const std::vector<std::string>& matrices,
                             const std::vector<std::string>& elementwise);

/// The kind of a unit that was of `kind` and differs from others of it in `form`, which is one of those in `known` or is
/// added to them: units of one kind have equal costs.
std::string kind_of(const std::string& kind, const std::string& form, std::vector<std::string>& known);

}  // namespace tessera::models
