#pragma once
// What an autoencoder takes for a clip: bytes, found by running its own code on meta tensors, and work.
//
//   codec_bytes(*job.codec, 81, 480, 832).decode;
//   codec_work(*job.codec, 81, 480, 832).products;      // FLOPs of each convolution of encode()
#include <cstdint>

#include "tessera/net/model.h"
#include "tessera/plan/simulate/work.h"

namespace tessera::job {

/// Bytes on one rank. An autoencoder without weights and for clips below a megabyte has small numbers, too.
struct CodecBytes {
  int64_t weights = 0;
  int64_t encode = 0;  ///< while the clip is encoded: chunk, features remembered, latent
  int64_t decode = 0;  ///< while it is decoded: chunk, features remembered, and its pixels
  int64_t clip = 0;    ///< pixels of the clip as bytes, in the host's memory and no tensor
};

/// For a clip of that size in pixels.
CodecBytes codec_bytes(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width);

/// Of encode() of such a clip.
plan::UnitWork codec_work(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width);

}  // namespace tessera::job
