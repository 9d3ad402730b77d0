#include "tessera/models/common/camera_rays.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "tessera/base/check.h"

namespace tessera::models {

using at::Tensor;

namespace {

constexpr int64_t kFrames = 4, kNumbers = 6;  // frames of a latent frame, numbers of a ray

/// The six numbers of the ray through a pixel's middle.
std::array<float, kNumbers> ray(const float* camera, int64_t pixel_x, int64_t pixel_y) {
  const float x = static_cast<float>(pixel_x) + 0.5f, y = static_cast<float>(pixel_y) + 0.5f;
  const float a = (x - camera[2]) / camera[0], b = (y - camera[3]) / camera[1];
  const float length = std::sqrt(a * a + b * b + 1);
  const std::array<float, 3> seen = {a / length, b / length, 1 / length};
  std::array<float, 3> d{}, o{};
  for (size_t i = 0; i < 3; ++i) {
    const float* row = camera + 4 + 4 * i;
    d[i] = row[0] * seen[0] + row[1] * seen[1] + row[2] * seen[2];
    o[i] = row[3];
  }
  return {o[1] * d[2] - o[2] * d[1], o[2] * d[0] - o[0] * d[2], o[0] * d[1] - o[1] * d[0], d[0], d[1], d[2]};
}

}  // namespace

Tensor camera_rays(const Tensor& camera, int64_t height, int64_t width) {
  const Tensor numbers = camera.to(at::kFloat).contiguous();
  Tensor rays = at::empty({camera.size(0), height, width, kNumbers}, at::kFloat);
  float* out = rays.mutable_data_ptr<float>();
  for (int64_t i = 0; i < camera.size(0) * height * width; ++i) {
    const float* own = numbers.const_data_ptr<float>() + i / (height * width) * kCameraNumbers;
    const auto six = ray(own, i % width, i / width % height);
    std::copy(six.begin(), six.end(), out + i * kNumbers);
  }
  return rays;
}

Tensor rays_by_latent_frame(const Tensor& rays) {
  const int64_t more = (kFrames - rays.size(0) % kFrames) % kFrames;
  const Tensor all = at::cat({rays.slice(0, 0, 1).expand({more, -1, -1, -1}), rays});
  return all.reshape({-1, kFrames, rays.size(1), rays.size(2), kNumbers})
      .permute({4, 1, 0, 2, 3})
      .reshape({kRayChannels, -1, rays.size(1), rays.size(2)});
}

Tensor fold_rays(const Tensor& rays, const Patch& p, int64_t s) {
  const int64_t h = rays.size(2) / (s * p[1]), w = rays.size(3) / (s * p[2]);
  return rays.reshape({rays.size(0), rays.size(1), h, p[1], s, w, p[2], s})
      .permute({1, 2, 5, 0, 4, 7, 3, 6})
      .flatten(3)
      .flatten(0, 2)
      .contiguous();
}

Tensor unfold_rays(const Tensor& rows, const Patch& p, const std::array<int64_t, 3>& latent, int64_t s) {
  const auto [f, h, w] = latent;
  return rows.reshape({f, h / p[1], w / p[2], -1, s, s, p[1], p[2]})
      .permute({3, 0, 1, 6, 4, 2, 7, 5})
      .reshape({-1, f, s * h, s * w});
}

void fill_rays(const Tensor& rows, const Tensor& camera, const Patch& p, const std::array<int64_t, 3>& latent,
               int64_t s) {
  const int64_t frames = camera_frames(latent[0]), most = kFrames * latent[0], h = latent[1] / p[1],
                w = latent[2] / p[2], cells = p[1] * p[2];
  check_input(camera.dim() == 2 && camera.size(1) == kCameraNumbers && camera.size(0) >= frames &&
                  camera.size(0) <= most && rows.size(1) == kRayChannels * s * s * cells,
              "models.camera",
              "camera " + c10::str(camera.sizes()) + ": expected [" + std::to_string(frames) + ", " +
                  std::to_string(kCameraNumbers) + "], and a model that takes " + std::to_string(kRayChannels) +
                  " channels of rays",
              "the data was encoded for another clip or model: run prepare again");
  const Tensor numbers = camera.to(at::kCPU, at::kFloat).contiguous();
  const float* cameras = numbers.const_data_ptr<float>();
  const int64_t repeats = most - camera.size(0);  // of the first frame
  float* out = rows.mutable_data_ptr<float>();
  at::parallel_for(0, latent[0] * h * w, 1, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t frame = token / (h * w), top = token / w % h * p[1] * s, left = token % w * p[2] * s;
      for (int64_t k = 0; k < kFrames; ++k) {
        const float* own = cameras + std::max<int64_t>(0, kFrames * frame + k - repeats) * kCameraNumbers;
        for (int64_t pixel = 0; pixel < cells * s * s; ++pixel) {
          const int64_t y = pixel / (p[2] * s), x = pixel % (p[2] * s);
          const auto six = ray(own, left + x, top + y);
          const int64_t cell = y / s * p[2] + x / s;
          for (int64_t n = 0; n < kNumbers; ++n)
            out[(((token * kRayChannels + kFrames * n + k) * s + y % s) * s + x % s) * cells + cell] =
                six[static_cast<size_t>(n)];
        }
      }
    }
  });
}

}  // namespace tessera::models
