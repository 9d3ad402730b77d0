#include "tessera/models/vae/feature_map.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/ops/convolution.h"

namespace tessera::models {

int64_t MapInput::frames() const {
  const int64_t t = map.size(0);
  return time == Time::kept ? t : time == Time::doubled ? 2 * t : 2 * t - 1;
}

void MapInput::copy_frame(int64_t i, const Tensor& to) const {
  const int64_t at = time == Time::kept ? i : time == Time::doubled ? i / 2 : (i + 1) / 2;
  const Tensor frame = map.select(0, at);
  if (norm.scale.defined()) {
    Tensor y = at::addcmul(norm.shift, frame, norm.scale);
    to.copy_(at::silu_(y));
  } else if (doubled) {
    const int64_t h = frame.size(0), w = frame.size(1), c = frame.size(2);
    to.unflatten(1, {w, 2}).unflatten(0, {h, 2}).copy_(frame.view({h, 1, w, 1, c}));
  } else {
    to.copy_(frame);
  }
}

namespace {

/// The border of [H, W, C] becomes its neighbours, or zeros.
void fill_border(const Tensor& frame, const Border& border) {
  for (const int64_t dim : {0, 1}) {
    const int64_t size = frame.size(dim);
    if (!border.repeats) {
      frame.narrow(dim, 0, border.before).zero_();
      frame.narrow(dim, size - border.after, border.after).zero_();
      continue;
    }
    if (border.before > 0) frame.select(dim, 0).copy_(frame.select(dim, 1));
    if (border.after > 0) frame.select(dim, size - 1).copy_(frame.select(dim, size - 2));
  }
}

/// Of a side of so many cells.
int64_t result_side(int64_t cells, int64_t kernel, int64_t border, int64_t stride) {
  return (cells + border - kernel) / stride + 1;
}

/// Allocates as the convolution does: a reordered kernel and one packed in blocks of 16 channels, oneDNN's bookkeeping,
/// and the result.
Tensor conv_on_meta(const Tensor& padded, const Tensor& kernel, int64_t count, const ConvForm& form) {
  constexpr int64_t kNotes = 64 << 10;
  const int64_t out = kernel.size(0), in = kernel.size(1), taps = kernel[0][0].numel();
  const int64_t blocks = form.groups > 1 ? in * out : round_up(in, 16) * round_up(out, 16);
  const Tensor scratch = at::empty({(in * out + blocks) * taps * 4 + kNotes}, padded.options().dtype(at::kByte));
  return at::empty({count, result_side(padded.size(1), kernel.size(3), 0, form.stride),
                    result_side(padded.size(2), kernel.size(4), 0, form.stride), out},
                   padded.options());
}

}  // namespace

const Tensor& MapLayers::weight(const std::string& name) const {
  const auto it = weights_.find(name);
  check_internal(it != weights_.end(), "models.vae", "no weight " + name);
  return it->second;
}

Tensor MapLayers::linear(const std::string& site, const Tensor& x) const {
  const auto bias = weights_.find(site + ".bias");
  return at::linear(x, weight(site + ".weight").flatten(1), bias == weights_.end() ? Tensor() : bias->second);
}

Affine MapLayers::norm(const std::string& site, const Tensor& x) const { return norm(site, x, eps_); }

Affine MapLayers::norm(const std::string& site, const Tensor& x, double eps) const {
  const int64_t c = x.size(3);
  const Tensor grouped = x.view({-1, groups_, c / groups_});
  const Tensor none = at::empty({groups_}, x.options());
  const auto [variance, mean] = x.is_meta()  // which lacks this operator
                                    ? std::tuple(none, none)
                                    : at::var_mean(grouped, at::IntArrayRef{0, 2}, /*correction=*/0, /*keepdim=*/false);
  const auto each = [&](const Tensor& of_group) {
    return of_group.view({groups_, 1}).expand({groups_, c / groups_}).reshape(c);
  };
  const Tensor scale = each((variance + eps).rsqrt_()) * weight(site + ".weight");
  return {scale, weight(site + ".bias") - each(mean) * scale};
}

/// Frames of the result from `begin` on, `count` of them, with stride and border done here.
Tensor MapLayers::chunk(const Tensor& kernel, const Tensor& bias, const MapInput& in, const ConvForm& form,
                        int64_t begin, int64_t count) const {
  const Border& border = form.border;
  const int64_t frames = (count - 1) * form.time_stride + kernel.size(2), h = in.height(), w = in.width();
  const int64_t around = border.before + border.after;
  Tensor padded = at::empty({frames, h + around, w + around, in.map.size(3)}, in.map.options());
  for (int64_t i = 0; i < (padded.is_meta() ? 1 : frames); ++i) {
    const Tensor frame = padded.select(0, i);
    const int64_t at = begin * form.time_stride + i - border.front, last = in.frames() - 1;
    if (!border.repeats && !padded.is_meta() && (at < 0 || at > last)) {
      frame.zero_();
      continue;
    }
    in.copy_frame(std::clamp<int64_t>(at, 0, last), frame.narrow(0, border.before, h).narrow(1, border.before, w));
    fill_border(frame, border);
  }
  const Tensor x = padded.unsqueeze(0).permute({0, 4, 1, 2, 3});  // [1, C, T, H, W], channels last
  const std::vector<int64_t> strides = {form.time_stride, form.stride, form.stride};
  if (x.is_meta()) return conv_on_meta(padded, kernel, count, form);
  // LibTorch picks an im2col with a copy of its input for each tap for small single samples; oneDNN has no need of one
  const Tensor out = x.is_cpu() && at::globalContext().hasMKLDNN()
                         ? at::mkldnn_convolution(x, kernel, bias, {0, 0, 0}, strides, {1, 1, 1}, form.groups)
                         : ops::convolution(x, kernel, bias, strides, {0, 0, 0}, form.groups);
  return out.squeeze(0).permute({1, 2, 3, 0}).contiguous();
}

Tensor MapLayers::conv(const std::string& site, const MapInput& in, const ConvForm& form, const Tensor& over) const {
  check_internal(!over.defined() || form.border.behind == 0, "models.vae", site + " would read what it has written");
  const Tensor& given = weight(site + ".weight");
  const Tensor kernel = given.dim() == 4 ? given.unsqueeze(2) : given;  // of pictures: one frame
  const auto found = weights_.find(site + ".bias");
  const Tensor bias = found == weights_.end() ? Tensor() : found->second;
  const Border& border = form.border;
  const int64_t around = border.before + border.after, channels = kernel.size(0);
  const int64_t frames = result_side(in.frames(), kernel.size(2), border.front + border.behind, form.time_stride);
  const int64_t h = result_side(in.height(), kernel.size(3), around, form.stride);
  const int64_t w = result_side(in.width(), kernel.size(4), around, form.stride);
  const int64_t frame = std::max(in.height() * in.width() * in.map.size(3), h * w * channels);
  const int64_t most = std::max<int64_t>(1, chunk_ / frame);
  if (most >= frames) return chunk(kernel, bias, in, form, 0, frames);
  Tensor out = over.defined() ? over : at::empty({frames, h, w, channels}, in.map.options());
  for (int64_t end = frames; end > 0; end -= std::min(most, end)) {
    const int64_t count = std::min(most, end);
    out.narrow(0, end - count, count).copy_(chunk(kernel, bias, in, form, end - count, count));
    if (out.is_meta()) break;  // the others are no larger
  }
  return out;
}

Tensor MapLayers::residual(const ResidualNames& names, const Tensor& x, const ConvForm& form) const {
  Tensor y = conv(names.conv1, {x, norm(names.norm1, x)}, form);
  y = conv(names.conv2, {y, norm(names.norm2, y)}, form, y);
  if (names.shortcut.empty()) return y.add_(x);
  for (int64_t i = 0; i < (x.is_meta() ? 1 : x.size(0)); ++i)
    y.select(0, i).add_(linear(names.shortcut, x.select(0, i)));
  return y;
}

Tensor MapLayers::attention(const AttentionNames& names, const Tensor& x, const Mix& mix) const {
  const int64_t c = x.size(3);
  const Affine affine = norm(names.norm, x);
  Tensor in = at::addcmul(affine.shift, x, affine.scale);
  const auto project = [&](const std::string& site) { return linear(site, in).view({1, 1, -1, c}); };
  Tensor q = project(names.q), k = project(names.k), v = project(names.v);
  in.reset();
  Tensor mixed = at::empty_like(q);
  mix(q, k, v, mixed);
  for (Tensor* used : {&q, &k, &v}) used->reset();
  return linear(names.out, mixed.view(x.sizes())).add_(x);
}

Tensor to_map(const Tensor& clip) { return clip.permute({1, 2, 3, 0}).contiguous(); }
Tensor from_map(const Tensor& map) { return map.permute({3, 0, 1, 2}); }

}  // namespace tessera::models
