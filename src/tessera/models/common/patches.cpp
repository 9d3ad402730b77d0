#include "tessera/models/common/patches.h"

namespace tessera::models {

using at::Tensor;

namespace {

/// [C, f, pt, h, ph, w, pw]
Tensor cut(const Tensor& latent, const Patch& p) {
  return latent.reshape(
      {latent.size(0), latent.size(1) / p[0], p[0], latent.size(2) / p[1], p[1], latent.size(3) / p[2], p[2]});
}

}  // namespace

Tensor to_rows(const Tensor& latent, const Patch& p) {
  return cut(latent, p).permute({1, 3, 5, 0, 2, 4, 6}).flatten(3).flatten(0, 2).contiguous();
}

void fill_rows(const Tensor& rows, const Tensor& latent, const Patch& p) {
  const Tensor from = cut(latent, p).permute({1, 3, 5, 0, 2, 4, 6});
  rows.view(from.sizes()).copy_(from);
}

Tensor from_rows(const Tensor& rows, at::IntArrayRef s, const Patch& p) {
  return rows.reshape({s[1] / p[0], s[2] / p[1], s[3] / p[2], s[0], p[0], p[1], p[2]})
      .permute({3, 0, 4, 1, 5, 2, 6})
      .reshape(s);
}

Tensor to_output_rows(const Tensor& latent, const Patch& p) {
  return cut(latent, p).permute({1, 3, 5, 2, 4, 6, 0}).flatten(3).flatten(0, 2).contiguous();
}

Tensor from_output_rows(const Tensor& rows, at::IntArrayRef s, const Patch& p) {
  return rows.reshape({s[1] / p[0], s[2] / p[1], s[3] / p[2], p[0], p[1], p[2], s[0]})
      .permute({6, 0, 3, 1, 4, 2, 5})
      .reshape(s);
}

std::vector<Tensor> unpack_rows(const Tensor& out, const net::Batch& batch, const Patch& patch) {
  std::vector<Tensor> latents;
  for (size_t s = 0; s < batch.shapes.size(); ++s) {
    const Tensor rows = out.slice(0, batch.tokens.offsets[s], batch.tokens.offsets[s + 1]);
    latents.push_back(from_output_rows(rows, batch.shapes[s], patch).to(at::kFloat));
  }
  return latents;
}

int64_t count_patches(const std::array<int64_t, 4>& latent, const Patch& p) {
  return latent[1] * latent[2] * latent[3] / (p[0] * p[1] * p[2]);
}

}  // namespace tessera::models
