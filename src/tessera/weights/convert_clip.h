#pragma once
// CLIP's image tower between the official names and transformers': queries, keys and values are one tensor here, three
// there, so a source is regrouped before it is converted.
//
//   Source source = regroup_clip(open_source("models_clip.pth"), identity, "diffusers", left_out);
#include "tessera/weights/convert_source.h"

namespace tessera::weights {

/// The same values under the names of `to` ("official", else transformers'). `left_out` receives the tensors that have
/// no place there: the text tower, and of the official file the projection of the class token.
Source regroup_clip(const Source& source, const models::Identity& identity, const std::string& to,
                    std::vector<std::string>& left_out);

}  // namespace tessera::weights
