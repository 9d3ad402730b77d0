#include "tessera/models/vae/video_vae.h"

#include "tessera/base/check.h"

namespace tessera::models {

namespace {
std::string text(const ClipSize& clip) {
  return std::to_string(clip.frames) + " x " + std::to_string(clip.height) + " x " + std::to_string(clip.width);
}
}  // namespace

void refuse_size(const char* where, const ClipSize& clip, const std::string& rule, const ClipSize& nearest) {
  throw UserError(Exit::usage, where, text(clip) + " (frames x height x width): " + rule,
                  "change data.frames, data.size or data.buckets, for instance to " + text(nearest));
}

void check_pixels(const at::Tensor& pixels) {
  check_input(pixels.dim() == 4 && pixels.size(0) == 3, "models.vae", "pixels of another shape than [3, F, H, W]",
              "give a clip of three colours in [-1, 1]");
}

void check_latent(const at::Tensor& latent, int64_t channels) {
  check_input(latent.dim() == 4 && latent.size(0) == channels && latent.numel() > 0, "models.vae",
              "a latent of another shape than [" + std::to_string(channels) + ", f, h, w]", "run prepare again");
}

Tensor in_range(const Tensor& pixels) {
  if (pixels.scalar_type() != at::kByte) return pixels.to(at::kFloat);
  return pixels.to(at::kFloat).div_(127.5).sub_(1);
}

}  // namespace tessera::models
