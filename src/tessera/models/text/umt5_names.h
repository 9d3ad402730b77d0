#pragma once
// Names of the UMT5 encoder's tensors in transformers' UMT5EncoderModel (the text_encoder folder of diffusers).
#include "tessera/models/common/names.h"

namespace tessera::models::umt5 {

const std::vector<NamePattern>& hf_names();

}  // namespace tessera::models::umt5
