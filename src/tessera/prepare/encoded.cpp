#include "tessera/prepare/encoded.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::prepare {

void Digest::add(const std::string& path, const std::string& said) {
  constexpr size_t kTogether = 64;
  if (in_line_ == 0) first_ = path;
  last_ = path;
  said_ += said;
  ++count_;
  if (++in_line_ == kTogether) end_line();
}

void Digest::end_line() {
  if (in_line_ == 0) return;
  lines_ += first_ + " to " + last_ + ": " + std::to_string(hash_text(said_)) + '\n';
  said_.clear(), in_line_ = 0;
}

std::string Digest::text(const char* things) {
  end_line();
  return std::to_string(count_) + " " + things + "\n" + lines_;
}

std::string digest_of_rows(const data::Items& items) {
  Digest digest;
  for (const data::Item& item : items) {
    const std::string path = item.path.string();
    std::string text = path + '\n';
    for (const std::string& caption : item.captions) text += caption + '\n';
    digest.add(path, text);
  }
  return digest.text("rows");
}

using at::Tensor;

namespace {

constexpr int64_t kFrames = 4;  // that a latent frame stands for

/// [1, F, H, W] -> [4, f, H, W]: frames of each latent frame, the first as often as it takes to fill them.
Tensor by_latent_frame(const Tensor& clip, int64_t latents) {
  const int64_t more = latents * kFrames - clip.size(1);
  check_internal(more >= 0, "prepare.given_pixels",
                 std::to_string(clip.size(1)) + " frames are more than four for each of " + std::to_string(latents) +
                     " latent frames");
  const Tensor all = at::cat({clip.slice(1, 0, 1).expand({1, more, -1, -1}), clip}, 1)[0];
  return all.reshape({-1, kFrames, clip.size(2), clip.size(3)}).transpose(0, 1);
}

Tensor shrunk(const Tensor& channels, at::IntArrayRef sizes, bool corners) {
  return at::upsample_trilinear3d(channels.unsqueeze(0).contiguous(), sizes, corners)[0];
}

}  // namespace

Tensor given_channels(const Tensor& mask, const std::array<int64_t, 4>& latent) {
  const auto [channels, f, h, w] = latent;
  const Tensor given = by_latent_frame(1 - mask.to(at::kFloat), f);
  Tensor all = shrunk(given.slice(1, 0, 1), {1, h, w}, /*corners=*/false);
  if (f > 1) all = at::cat({all, shrunk(given.slice(1, 1), {f - 1, h, w}, /*corners=*/false)}, 1);
  return all;
}

Tensor given_latent(const net::VideoCodec& codec, const Tensor& pixels, const Tensor& mask, bool nothing_is_zero) {
  const auto latent = codec.latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));
  const auto [channels, f, h, w] = latent;
  if (nothing_is_zero && mask.eq(1).all().item<bool>()) return at::zeros({kFrames + channels, f, h, w}, at::kFloat);
  const Tensor kept = pixels * mask.lt(0.5).to(at::kFloat);
  return at::cat({given_channels(mask, latent), codec.encode(kept)}).contiguous();
}

Tensor in_front(const Tensor& latent, int64_t frames) {
  return at::constant_pad_nd(latent, {0, 0, 0, 0, 0, frames - 1}).contiguous();
}

Tensor made_cells(const Tensor& mask, const std::array<int64_t, 4>& latent) {
  const auto [channels, f, h, w] = latent;
  // the first of the four frames speaks for a latent frame
  const Tensor cells = shrunk(by_latent_frame(mask.to(at::kFloat), f).slice(0, 0, 1), {f, h, w}, /*corners=*/true);
  cells.slice(1, 1).fill_(1);
  return cells;
}

bool gives_first(const Tensor& cells) { return !cells.select(1, 0).any().item<bool>(); }

Tensor with_first(const Tensor& latent, const Tensor& given, const Tensor& cells) {
  return gives_first(cells) ? (1 - cells) * given + cells * latent : latent;
}

}  // namespace tessera::prepare
