#include "tessera/job/codec_bytes.h"

#include <functional>

#include "tessera/engine/memory/meter.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::job {

namespace {

int64_t count_meta(const std::function<void()>& run) {
  engine::Meter::MetaCount count;
  run();
  return count.peak();
}

}  // namespace

CodecBytes codec_bytes(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width) {
  CodecBytes bytes;
  bytes.clip = 3 * frames * height * width;
  const int64_t pixels = bytes.clip * static_cast<int64_t>(sizeof(float));
  if (const auto* vae = dynamic_cast<const models::VideoVae*>(&codec)) {
    bytes.weights = vae->weight_bytes();
    bytes.encode = vae->encode_bytes(frames, height, width, count_meta);
    bytes.decode = vae->decode_bytes(frames, height, width, count_meta);
  } else {  // the wavelet: pixels as numbers, in blocks (a picture stands for four), and back
    bytes.encode = pixels * (frames == 1 ? 6 : 3);
    bytes.decode = 2 * pixels;
  }
  return bytes;
}

plan::UnitWork codec_work(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width) {
  if (const auto* vae = dynamic_cast<const models::VideoVae*>(&codec)) return vae->encode_work(frames, height, width);
  // the wavelet: a product of every block of 4 x 8 x 8 pixels, cut out of the clip as numbers
  constexpr double kBlock = 3 * 4 * 8 * 8;
  const auto [channels, f, h, w] = codec.latent_shape(frames, height, width);
  const auto blocks = static_cast<double>(f * h * w);
  return {.products = {2 * kBlock * blocks * static_cast<double>(channels)},
          .streamed = 2 * sizeof(float) * kBlock * blocks,
          .operators = 1};
}

}  // namespace tessera::job
