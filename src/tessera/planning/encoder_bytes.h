#pragma once
// What the frozen encoders take and when: the autoencoder and the text encoder are no part of a training step, and are
// in memory only in the phases that use them.
//
//   EncoderBytes bytes = encoder_bytes(recipe, job, mesh);
//   bytes.prepare();                     // most of a rank while `prepare` encodes a clip or a caption
//   bytes.decoding();                    // most while a sample is decoded, beside what training keeps
//
// [Note: frozen encoders] `prepare` holds the text encoder as shards of the mesh, one unit at a time gathered, and the
// autoencoder, which every rank runs on clips of its own; when it is done both are gone. Training on the cache holds
// neither. To show a sample, rank 0 reads the autoencoder again, decodes between two steps, and lets go of it. With
// data.cache = "online" the autoencoder stays, because each step encodes its clips; captions are still encoded once,
// before step one. All of it is found by running the same code on meta tensors (engine/measure.h).
#include <algorithm>
#include <memory>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/job/codec_bytes.h"
#include "tessera/job/job.h"
#include "tessera/net/model.h"

namespace tessera::planning {

/// An encoder that is a list of units, run by the engine: its parameters in shards with the slots of gathered units,
/// and what is there beside them while it runs.
struct StackBytes {
  int64_t held = 0, work = 0;
};

/// Bytes of tensors on one rank. An autoencoder without weights and for clips below a megabyte has small numbers, too.
struct EncoderBytes {
  int64_t codec_weights = 0;
  int64_t encode = 0;  ///< while a clip of the largest bucket is encoded: chunk, features remembered, latent
  int64_t decode = 0;  ///< while a sample is decoded: chunk, features remembered, and its pixels
  int64_t clip = 0;    ///< pixels of that clip as bytes, in the host's memory and no tensor
  int64_t tile = 0;    ///< side of the autoencoder's tiles in pixels; 0: the whole picture
  StackBytes text;     ///< of a caption of the most tokens
  StackBytes image;    ///< CLIP's tower, of models that see a picture through it

  int64_t prepare() const { return text.held + image.held + codec_weights + std::max({encode, text.work, image.work}); }
  int64_t decoding() const { return codec_weights + decode; }
};

/// Over the buckets of `recipe` (one part of a run).
EncoderBytes encoder_bytes(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh);

/// Of the first rank, for inputs of that size.
StackBytes stack_bytes(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch, const Mesh& mesh);

}  // namespace tessera::planning
