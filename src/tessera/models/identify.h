#pragma once
// Identifies a file of tensors by their names and shapes: the model, the naming, the prefix.
//
//   Identity what = identify(shapes);
//   what.model, what.naming;                                   // "wan2.1-t2v-1.3b", "diffusers"
//   what.official("transformer_blocks...");                    // the official name of a stored tensor
#include "tessera/models/common/family.h"

namespace tessera::models {

Identity identify(const Shapes& tensors);

/// The family of a denoiser; for other models the standard family.
const Family& family_of(const Identity& identity);
/// The form of a model's files, by the names of its parameters; null: none has all of their marks.
const WeightForm* form_of(const net::Denoiser& model);

}  // namespace tessera::models
