#pragma once
// Time that text encoders take beside a step which encodes its own captions (data.encoders).
//
//   EncoderSeconds seconds = encoder_seconds(recipe, job, mesh, profile);
//   machine.beside = seconds.beside();
//
// For captions with the most tokens, in fp32, in which encoders compute: simulated like any list of units, with their
// gathers where they are sharded. The autoencoder and the decoding of videos are not counted.
#include "tessera/base/mesh.h"
#include "tessera/job/job.h"
#include "tessera/plan/simulate/cost.h"

namespace tessera::planning {

struct EncoderSeconds {
  double caption = 0;    ///< of one
  int64_t captions = 0;  ///< a rank encodes in a step, at most
  recipe::Encoders place = recipe::Encoders::cached;

  double total() const { return caption * static_cast<double>(captions); }  ///< of a step
  /// Captions of sharded encoders lie between two steps ([Note: encoders beside a step] in prepare/text_beside.h).
  plan::Beside beside() const;
};

/// All 0 where captions are encoded before the steps.
EncoderSeconds encoder_seconds(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh,
                               const plan::Profile& profile);

}  // namespace tessera::planning
