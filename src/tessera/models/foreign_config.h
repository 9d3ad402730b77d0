#pragma once
// Writes a model's config.json in the form of another program, from the shapes of its tensors and the config.json that
// came with it.
//
//   std::string text = config_for("diffusers", identity, official_shapes(identity, shapes), given);
//
// Shapes decide what they can; what they cannot tell (number of heads, text length, statistics of the latents) comes
// from the given config.json of either form, or is what the released models have.
#include <string>

#include "tessera/models/common/identity.h"

namespace tessera::models {

/// `to`: official or diffusers; `given`: text of a config.json, may be empty or that of another model (then it is not
/// looked at); `file` names it in messages. Empty where the model is not known. Throws UserError (input).
std::string config_for(const std::string& to, const Identity& identity, const Shapes& official,
                       const std::string& given, const std::string& file);

}  // namespace tessera::models
