#pragma once
// Memory of the frozen encoders: autoencoder and text encoder are not part of a training step, and are in memory only
// in the phases that use them.
//
//   EncoderBytes bytes = encoder_bytes(recipe, job, mesh);
//   bytes.prepare();                     // peak of a rank while `prepare` encodes a clip or a caption
//   bytes.decoding();                    // peak while a sample is decoded, in addition to training
//
// [Note: frozen encoders] `prepare` encodes captions first: the text encoder is sharded over the mesh, one unit at a
// time gathered, and every rank encodes its own captions. It is freed before the clips: the autoencoder is replicated,
// and every rank encodes its own. Training on the cache has neither in memory. To decode a sample, rank 0 loads the
// autoencoder between two steps and frees it afterwards. With data.cache = "online" the autoencoder stays loaded,
// because each step encodes its clips; captions are still encoded once, before step 1. With data.encoders = "host",
// "device" or "sharded" text encoders stay loaded too: whole on every rank, or sharded as in `prepare`
// ([Note: encoders beside a step] in prepare/text_beside.h). All bytes are measured by running the same code on meta
// tensors (engine/measure.h).
#include <algorithm>
#include <memory>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/device/backend.h"
#include "tessera/job/codec.h"
#include "tessera/job/encoder_plan.h"
#include "tessera/job/job.h"
#include "tessera/net/model.h"
#include "tessera/ops/session.h"
#include "tessera/plan/simulate/cost.h"

namespace tessera::planning {

/// While it exists, meta tensors of this thread stand for tensors of the host, also in a plan for a GPU or on one: encoders
/// of data.encoders = "host" are measured so.
class OnHostMemory {
 public:
  OnHostMemory();

 private:
  const ops::TargetScope target_;
  const device::OnHost host_;
};

/// An encoder that is a list of units, run by the engine: sharded parameters with the slots of gathered units, and the
/// memory in use while it runs.
struct StackBytes {
  int64_t held = 0, work = 0;
  int64_t host = 0;  ///< weights that have no room on the device (job/encoder_plan.h)
};

/// Bytes of tensors on one rank; small numbers for an autoencoder without weights. With data.encoders = "host" texts and
/// `encode` are of host memory, also where the run has a GPU.
struct EncoderBytes {
  int64_t codec_weights = 0;
  int64_t encode = 0;       ///< while a clip of the largest bucket is encoded: chunk, cached features, latent
  int64_t decode = 0;       ///< while a sample is decoded: chunk, cached features, pixels
  int64_t workspace = 0;    ///< of either: what cuDNN takes for a convolution on a GPU, at most
  int64_t clip = 0;         ///< the clip's pixels as bytes in host memory, not tensors
  int64_t tile = 0;         ///< side of the autoencoder's tiles in pixels; 0: the whole frame
  int64_t tile_frames = 0;  ///< of its tiles in time; 0: the whole clip, or chunks that take no more for longer clips
  StackBytes text;          ///< for a caption with the most tokens
  StackBytes pooled;        ///< the second text encoder, for models that use one
  StackBytes image;         ///< CLIP's image tower, for models that use it
  recipe::Encoders place = recipe::Encoders::cached;  ///< where they are beside a step: data.encoders
  bool texts = true, clips = true;                    ///< whether the run encodes any before its steps

  int64_t prepare() const {
    if (place == recipe::Encoders::host) return image.held + image.work;  // the others take none of the device's
    if (place != recipe::Encoders::cached)                                // the text encoders stay
      return text.held + pooled.held + image.held + codec_weights +
             std::max({encode, text.work, pooled.work, image.work});
    return std::max(texts ? text.held + pooled.held + std::max(text.work, pooled.work) : 0,
                    clips ? image.held + codec_weights + std::max(encode, image.work) : 0);
  }
  int64_t decoding() const { return codec_weights + decode; }
  /// Beside a step that encodes its own samples (recipe::Recipe::Data::online): on the device, or with data.encoders =
  /// "host" in host memory. `pictures`: of a clip as numbers, for models that take pictures.
  int64_t online(int64_t pictures) const;
};

/// For all buckets of `recipe` (one stage of a run). On a GPU where meta tensors stand for one's (ops/session.h).
EncoderBytes encoder_bytes(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh);

/// The forward of an encoder on the first rank, for inputs of that size.
struct EncoderForward {
  plan::ModelSpec spec;
  plan::Plan plan;
  plan::Schedule schedule;
};
EncoderForward encoder_forward(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch,
                               const Mesh& mesh, const job::HeldWeights& held);

/// Of the longest prompt, for the text encoder and the second one.
net::Batch longest_caption(const recipe::Recipe::Data& data, const job::Job& job, const net::TextEncoder& encoder);

/// Likewise.
StackBytes stack_bytes(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch, const Mesh& mesh,
                       const job::HeldWeights& held = {});

// Time that frozen encoders take beside a step which encodes its own samples (data.encoders, data.cache = "online").
//
//   EncoderSeconds seconds = encoder_seconds(recipe, job, mesh, profile);
//   machine.beside = seconds.beside();
//
// Counted as bytes are: for captions with the most tokens and for the bucket that takes longest, in fp32, in which
// encoders compute. Text encoders are simulated like any list of units, with their gathers where they are sharded; the
// autoencoder's operators take the profile's rates one after the other. Decoding of videos is not counted, nor is what
// is encoded once (speech, CLIP's pictures).

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
