#pragma once
// Time that frozen encoders take beside a step which encodes its own samples (data.encoders, data.cache = "online").
//
//   EncoderSeconds seconds = encoder_seconds(recipe, job, mesh, profile);
//   machine.beside = seconds.beside();
//
// Counted as bytes are: for captions with the most tokens and for the bucket that takes longest, in fp32, in which
// encoders compute. Text encoders are simulated like any list of units, with their gathers where they are sharded; the
// autoencoder's operators take the profile's rates one after the other. Decoding of videos is not counted, nor is what
// is encoded once (speech, CLIP's pictures).
#include "tessera/base/mesh.h"
#include "tessera/job/job.h"
#include "tessera/plan/simulate/cost.h"

namespace tessera::planning {

struct EncoderSeconds {
  double caption = 0, clip = 0;  ///< of one
  /// A rank encodes in a step, at most. A clip with a picture before it is encoded twice: itself, and the picture with
  /// nothing after it (prepare/pictures.h).
  int64_t captions = 0, clips = 0;
  recipe::Encoders place = recipe::Encoders::cached;
  /// The profile whose rates were taken where that is not the plan's: of a GPU's host no profile knows the processors, and the
  /// shipped "cpu" stands for them. Empty: the plan's own.
  std::string profile = {};

  double of_captions() const { return caption * static_cast<double>(captions); }  ///< of a step
  double of_clips() const { return clip * static_cast<double>(clips); }           ///< of a step
  double total() const { return of_captions() + of_clips(); }
  /// Captions of sharded encoders lie between two steps ([Note: encoders beside a step] in prepare/text_beside.h).
  plan::Beside beside() const;
};

/// All 0 where samples are encoded before the steps.
EncoderSeconds encoder_seconds(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh,
                               const plan::Profile& profile);

}  // namespace tessera::planning
