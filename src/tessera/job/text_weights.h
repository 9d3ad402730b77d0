#pragma once
// What a text encoder is opened with: weights under any program's names, the instruction in front of prompts.
//
//   const NamedWeights weights = open_text_weights(*job.text, recipe.data.text_encoder_path);
#include "tessera/net/encoders.h"
#include "tessera/recipe/recipe.h"
#include "tessera/weights/named_weights.h"

namespace tessera::job {

/// The weights of an encoder, and what another shape in them suggests.
weights::NamedWeights open_text_weights(const net::TextEncoder& encoder, const std::string& path);
std::string likely_text_cause(const std::string& name, const std::vector<int64_t>& shape);

/// data.instruction, or data.instruction_image for pictures where there is one: the text itself, or that of the file it
/// names, without a line break at its end. Throws UserError (input) for a .txt that is not there.
std::string instruction_text(const recipe::Recipe::Data& data, bool of_picture = false);

/// Most tokens that the text encoder gets for embeddings of `length` rows: more with an instruction.
int64_t longest_prompt(const recipe::Recipe::Data& data, int64_t length);

}  // namespace tessera::job
