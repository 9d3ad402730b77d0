#pragma once
// Bytes of an autoencoder's passes, measured beside what it says of them.
//
//   class DcAeMemory : public OneThread {};
//   expect_bytes(vae, {1, 128, 192}, "tiles of 96");
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <string>

#include "ops/byte_count.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models {

/// Counting is of one thread.
class OneThread : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  void TearDown() override { at::set_num_threads(threads_); }
  const int threads_ = at::get_num_threads();
};

inline int64_t count_meta(const std::function<void()>& run) {
  const testing::ByteCount count(at::kMeta);
  run();
  return count.peak();
}

/// A clip of this size is encoded and decoded in what was said, or down to `least` of it, and never in more.
inline void expect_bytes(const VideoVae& vae, const ClipSize& size, const std::string& what, double least = 0.9) {
  const auto expect = [&](const std::string& pass, int64_t said, const std::function<void()>& run) {
    const testing::ByteCount count(at::kCPU);
    run();
    const int64_t measured = count.peak();
    std::cout << pass << what << ": " << measured << " of " << said << " bytes\n";
    EXPECT_LE(measured, said) << pass << what;
    EXPECT_GE(static_cast<double>(measured), least * static_cast<double>(said)) << pass << what;
  };
  const auto& [frames, height, width] = size;
  const at::Tensor clip = at::randint(0, 256, {3, frames, height, width}, at::kByte);
  const int64_t encode = vae.encode_bytes(frames, height, width, count_meta),
                decode = vae.decode_bytes(frames, height, width, count_meta);
  vae.encode(clip.narrow(1, 0, 1));  // loads the weights, which are not counted
  at::Tensor latent;
  expect("encode, ", encode, [&] { latent = vae.encode(clip); });
  expect("decode, ", decode, [&] { vae.decode(latent); });
}

}  // namespace tessera::models
