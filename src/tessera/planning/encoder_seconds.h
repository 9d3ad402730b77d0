#pragma once
// Time that the frozen encoders take beside a step which encodes its own samples (data.encoders, data.cache = "online").
//
//   EncoderSeconds seconds = encoder_seconds(recipe, job, mesh, profile);
//   machine.beside = seconds.beside();
//
// Counted as bytes are: for captions with the most tokens and the largest bucket, all in fp32, in which encoders
// compute. Text encoders are simulated like any list of units, with their gathers where they are sharded; of the
// autoencoder the convolutions and products count. Decoding of videos is not counted.
#include "tessera/base/mesh.h"
#include "tessera/job/job.h"
#include "tessera/plan/simulate/cost.h"

namespace tessera::planning {

struct EncoderSeconds {
  double caption = 0, clip = 0;     ///< of one
  int64_t captions = 0, clips = 0;  ///< a rank encodes in a step, at most
  recipe::Encoders place = recipe::Encoders::cached;

  /// Of a step.
  double total() const { return caption * static_cast<double>(captions) + clip * static_cast<double>(clips); }
  /// Captions of sharded encoders lie between two steps ([Note: encoders beside a step] in prepare/text_beside.h).
  plan::Beside beside() const;
};

/// All 0 where samples are cached.
EncoderSeconds encoder_seconds(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh,
                               const plan::Profile& profile);

}  // namespace tessera::planning
