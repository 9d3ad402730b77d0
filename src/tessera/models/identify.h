#pragma once
// What a file of tensors is, by their names and shapes alone: the model, the naming, the prefix.
//
//   Identity what = identify(shapes);
//   what.model, what.naming;                                   // "wan2.1-t2v-1.3b", "diffusers"
//   what.official("transformer_blocks...");                    // the official name of a stored one
#include "tessera/models/common/family.h"

namespace tessera::models {

Identity identify(const Shapes& tensors);

/// Whose denoiser it is; of what is none, the standard family.
const Family& family_of(const Identity& identity);

}  // namespace tessera::models
