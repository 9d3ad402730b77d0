#pragma once
// What of a run has random weights, or none, where trained ones may have been meant: said in the run's first line, and
// refused by training where nobody asked for it.
//
//   log::info("model: " + job.name + random_parts(recipe, looks));
//   check_random_parts(recipe, experts, looks);                           // before a fresh start, never by plan or import
#include <string>

#include "tessera/job/experts.h"

namespace tessera::job {

/// "; the model has random weights; haar is a wavelet without weights"; empty where all is given. `looks`: the model has
/// an image encoder.
std::string random_parts(const recipe::Recipe& recipe, bool looks);

/// Throws UserError (usage) for LoRA on a random base unless model.init = "random", and for trained weights with an
/// encoder that is random or has no weights unless its key names it: data.vae, data.text_encoder, data.image_encoder.
/// Weights that a run of ours exported may have been trained with such encoders, and pass.
void check_random_parts(const recipe::Recipe& recipe, const Experts& experts, bool looks);

}  // namespace tessera::job
