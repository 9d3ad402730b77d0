#pragma once
// The built-in autoencoder without weights: an orthonormal 3-D Haar wavelet over blocks of 4 frames x 8 x 8 pixels.
//
//   Haar codec(48);                               // keeps 48 of a block's 768 coefficients
//   Tensor latent = codec.encode(pixels);         // [3, 16, 64, 96] -> [48, 4, 8, 12], each of about unit variance
//   Tensor video = codec.decode(latent);          // the kept coefficients, exactly: encode(decode(z)) == z
//
// Colours are first transformed to brightness and two colour differences (orthonormal, too). The codec keeps the
// coefficients with the largest typical size in natural video and divides them by that size (the table in haar.cpp). It
// treats a single frame as four equal ones. Real clips of 16 frames at 64x96 are reconstructed at 25-28 dB PSNR with 48
// channels, 28-31 with 96, 32-36 with 192 (bikes and bigbuckbunny, 8 frames a second). It is not causal. The number of
// frames must be a multiple of 4 (or 1), height and width multiples of 8.
#include "tessera/net/model.h"

namespace tessera::models {

class Haar final : public net::VideoCodec {
 public:
  explicit Haar(int64_t channels);  ///< 1 .. 768; throws UserError (usage)

  std::string fingerprint() const override;
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override;
  at::Tensor encode(const at::Tensor& pixels) const override;
  at::Tensor decode(const at::Tensor& latent) const override;

 private:
  int64_t channels_;
  at::Tensor analysis_;   ///< [768, channels]: a block's pixels to scaled coefficients
  at::Tensor synthesis_;  ///< [channels, 768]: and back
};

inline std::unique_ptr<net::VideoCodec> make_haar(int64_t channels) { return std::make_unique<Haar>(channels); }

}  // namespace tessera::models
