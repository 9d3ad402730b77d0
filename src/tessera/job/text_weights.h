#pragma once
// The weights of a text encoder under any program's names.
//
//   const NamedWeights weights = open_text_weights(*job.text, recipe.data.text_encoder_path);
#include "tessera/net/text_encoder.h"
#include "tessera/weights/named_weights.h"

namespace tessera::job {

/// The weights of an encoder, and what another shape in them suggests.
weights::NamedWeights open_text_weights(const net::TextEncoder& encoder, const std::string& path);
std::string likely_text_cause(const std::string& name, const std::vector<int64_t>& shape);

}  // namespace tessera::job
