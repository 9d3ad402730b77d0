// From pixels of a face to the tokens that the adapters attend to: a motion encoder for each frame, whose result is a sum of
// learned directions that are orthogonal, and a causal encoder over the frames.
#include <cmath>

#include "tessera/models/wan/animate.h"
#include "tessera/models/wan/s2v_network.h"
#include "tessera/ops/rebuild.h"

namespace tessera::models::wan {

using at::Tensor;
using net::Context;

namespace {

constexpr double kSlope = 0.2;             // of the leaky ReLU
constexpr double kDirectionOffset = 1e-8;  // added before the directions are made orthogonal

/// The windows that a convolution of x [N, C, H, W] multiplies, [N * h * w, C * side * side]: many times what they are of,
/// so a graph that may rebuild values keeps x instead.
Tensor windows_of(const Tensor& x, int64_t side, int64_t stride) {
  const auto make = [side, stride](const std::vector<Tensor>& from) {
    const int64_t h = (from[0].size(2) - side) / stride + 1, w = (from[0].size(3) - side) / stride + 1;
    const auto part = [&](int64_t axis, int64_t begin, int64_t count, const Tensor& of) {
      return of.slice(axis, begin, begin + (count - 1) * stride + 1, stride);
    };
    std::vector<Tensor> taps;  // [N, h, w, C] each
    for (int64_t i = 0; i < side; ++i)
      for (int64_t j = 0; j < side; ++j) taps.push_back(part(3, j, w, part(2, i, h, from[0])).permute({0, 2, 3, 1}));
    return at::stack(taps, 4).flatten(3).flatten(0, 2);
  };
  const Tensor windows = make({x});
  if (ops::Rebuilds* rebuilds = ops::session().rebuilds) rebuilds->register_value(windows, {x}, make);
  return windows;
}

/// A convolution of x [N, C, H, W] whose weight is scaled when it runs, by one over the root of what a result is summed over.
Tensor scaled_convolution(Context& ctx, const std::string& site, const Tensor& x, int64_t out, int64_t side,
                          int64_t stride) {
  const int64_t h = (x.size(2) - side) / stride + 1, w = (x.size(3) - side) / stride + 1;
  const double scale = 1 / std::sqrt(static_cast<double>(x.size(1) * side * side));
  return ctx.linear(site, windows_of(x * scale, side, stride), {.out = out, .bias = false, .kernel = {side, side}})
      .view({x.size(0), h, w, out})
      .permute({0, 3, 1, 2});
}

Tensor padded(const Tensor& x, int64_t by) { return at::constant_pad_nd(x, {by, by, by, by}); }

/// Smooths with [1, 3, 3, 1] / 8 in both directions.
Tensor blurred(const Tensor& x, int64_t padding) {
  constexpr std::array<double, 4> kTaps = {0.125, 0.375, 0.375, 0.125};
  Tensor y = padded(x, padding);
  for (const int64_t axis : {2, 3}) {
    const int64_t left = y.size(axis) - 3;
    Tensor sum = y.slice(axis, 0, left) * kTaps[0];
    for (int64_t tap = 1; tap < 4; ++tap) sum = sum + y.slice(axis, tap, tap + left) * kTaps[static_cast<size_t>(tap)];
    y = sum;
  }
  return y;
}

Tensor activated_with_bias(Context& ctx, const std::string& site, const Tensor& x) {
  const Tensor y = x + ctx.param(site, {1, x.size(1), 1, 1}).view({1, -1, 1, 1});
  return at::leaky_relu(y, kSlope) * std::sqrt(2.0);
}

/// The orthonormal factor of [rows, columns] by reflections, with the signs that LAPACK gives.
Tensor orthogonal(const Tensor& matrix) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  Tensor left = matrix.to(at::kDouble);
  std::vector<Tensor> reflections;  // v [rows - j, 1] of column j, scaled so that I - v v^T reflects
  const int64_t count = std::min(columns, rows - 1);
  for (int64_t j = 0; j < count; ++j) {
    const Tensor column = left.slice(0, j).slice(1, j, j + 1), first = column.slice(0, 0, 1);
    const Tensor size = column.square().sum().sqrt();
    const Tensor turned = first + size * (2 * first.detach().ge(0).to(at::kDouble) - 1);
    const Tensor v = at::cat({turned, column.slice(0, 1)});
    reflections.push_back(v * (2 / v.square().sum()).sqrt());
    if (j + 1 == count) break;  // a part of the graph that leads nowhere would be kept where saved tensors are listed
    const Tensor rest = left.slice(0, j);
    left = at::cat({left.slice(0, 0, j), rest - at::mm(reflections.back(), at::mm(reflections.back().t(), rest))});
  }
  // not at::eye, which resizes its result: on meta tensors that takes no memory, and plans are counted on them
  Tensor q = at::zeros({rows, columns}, left.options());
  q.diagonal().fill_(1);
  for (int64_t j = count - 1; j >= 0; --j) {
    const Tensor &v = reflections[static_cast<size_t>(j)], rest = q.slice(0, j);
    q = at::cat({q.slice(0, 0, j), rest - at::mm(v, at::mm(v.t(), rest))});
  }
  return q.to(at::kFloat);
}

/// The convolutions of the motion encoder but the last, each frame by itself: [n, 3, S, S] -> [n, channels, 4, 4]
Tensor encode_frames(Context& ctx, const AnimateConfig& c, const Tensor& pixels) {
  const std::string net = "motion_encoder.enc.net_app.convs.";
  Tensor x = activated_with_bias(ctx, net + "0.1.bias",
                                 scaled_convolution(ctx, net + "0.0", pixels, c.channels.front(), 1, 1));
  for (size_t i = 1; i < c.channels.size(); ++i) {
    const std::string block = net + std::to_string(i) + ".";
    Tensor y = scaled_convolution(ctx, block + "conv1.0", padded(x, 1), x.size(1), 3, 1);
    y = activated_with_bias(ctx, block + "conv1.1.bias", y);
    y = scaled_convolution(ctx, block + "conv2.1", blurred(y, 2), c.channels[i], 3, 2);
    y = activated_with_bias(ctx, block + "conv2.2.bias", y);
    const Tensor beside = scaled_convolution(ctx, block + "skip.1", blurred(x, 1), c.channels[i], 1, 2);
    x = (y + beside) / std::sqrt(2.0);
  }
  return x;
}

/// [N, 3, S, S] -> [N, motion_dim]. Frames are large and what is made of them is small: few are encoded at once.
Tensor encode_motion(Context& ctx, const AnimateConfig& c, const Tensor& pixels) {
  std::vector<Tensor> parts;
  for (int64_t at = 0; at < pixels.size(0); at += c.frames_at_once)
    parts.push_back(encode_frames(ctx, c, pixels.slice(0, at, std::min(at + c.frames_at_once, pixels.size(0)))));
  const std::string last = "motion_encoder.enc.net_app.convs." + std::to_string(c.channels.size());
  Tensor motion = scaled_convolution(ctx, last, at::cat(parts), c.style_dim, 4, 1).flatten(1);  // [N, style]
  constexpr int kLinears = 5;
  for (int i = 0; i < kLinears; ++i) {
    const std::string site = "motion_encoder.enc.fc." + std::to_string(i);
    const double scale = 1 / std::sqrt(static_cast<double>(motion.size(1)));
    motion = ctx.linear(site, motion * scale, {.out = i + 1 < kLinears ? c.style_dim : c.directions});
  }
  const Tensor directions =
      ctx.param("motion_encoder.dec.direction.weight", {c.motion_dim, c.directions}).view({c.motion_dim, c.directions});
  return at::mm(motion.to(at::kFloat), orthogonal(directions + kDirectionOffset).t());
}

}  // namespace

Tensor encode_faces(Context& ctx, const AnimateConfig& c, const Tensor& pixels, const std::vector<int64_t>& frames) {
  const Tensor motion = encode_motion(ctx, c, pixels);
  Series faces;
  int64_t at = 0;
  for (const int64_t count : frames) {
    faces.push_back(motion.slice(0, at, at + face_frames(count)));
    at += face_frames(count);
  }
  const std::string encoder = "face_encoder.";
  Series heads;  // each head is a sequence
  for (const Tensor& clip :
       causal_convolution(ctx, encoder + "conv1_local.conv", faces, c.face_heads * c.face_hidden, 1))
    for (const Tensor& head : clip.chunk(c.face_heads, 1)) heads.push_back(head);
  heads = norm_silu(heads);
  heads = norm_silu(causal_convolution(ctx, encoder + "conv2.conv", heads, c.face_hidden, 2));
  heads = norm_silu(causal_convolution(ctx, encoder + "conv3.conv", heads, c.face_hidden, 2));
  const int64_t d = c.base.dim;
  const Tensor rows = ctx.linear(encoder + "out_proj", at::cat(heads), {.out = d});
  const Tensor learned = ctx.param(encoder + "padding_tokens", {1, 1, 1, d}).view({1, d});
  std::vector<Tensor> tokens;
  at = 0;
  for (const int64_t count : frames) {
    std::vector<Tensor> of_frame;  // [F - 1, d] of each head, and the learned one
    for (int64_t head = 0; head < c.face_heads; ++head, at += count - 1)
      of_frame.push_back(rows.slice(0, at, at + count - 1));
    of_frame.push_back(learned.expand({count - 1, d}));
    tokens.push_back(at::zeros({c.face_tokens(), d}, rows.options()));  // the reference picture's
    tokens.push_back(at::stack(of_frame, 1).flatten(0, 1));
  }
  return at::cat(tokens);
}

}  // namespace tessera::models::wan
