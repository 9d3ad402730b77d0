#include "tessera/job/pixels.h"

#include <algorithm>

namespace tessera::job {

data::Frames to_frames(const at::Tensor& pixels, double fps) {
  data::Frames frames;
  frames.count = static_cast<int>(pixels.size(1));
  frames.height = static_cast<int>(pixels.size(2));
  frames.width = static_cast<int>(pixels.size(3));
  frames.fps = fps;
  frames.rgb.resize(frames.frame_bytes() * static_cast<size_t>(frames.count));
  for (int f = 0; f < frames.count; ++f) {  // one by one: a long clip is gigabytes
    const at::Tensor numbers = pixels.select(1, f).clamp(-1, 1).add_(1).mul_(127.5).round_();
    const at::Tensor bytes = numbers.to(at::kByte).permute({1, 2, 0}).contiguous();
    std::copy_n(bytes.const_data_ptr<uint8_t>(), frames.frame_bytes(), frames.frame(f));
  }
  return frames;
}

at::Tensor to_pixels(const data::Frames& frames) {
  at::Tensor bytes = at::empty({frames.count, frames.height, frames.width, 3}, at::kByte);
  std::copy(frames.rgb.begin(), frames.rgb.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes.to(at::kFloat).div_(127.5).sub_(1).permute({3, 0, 1, 2}).contiguous();
}

}  // namespace tessera::job
