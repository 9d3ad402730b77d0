#pragma once
// The Wan 2.1 text-to-video transformer as units: stem, blocks, head.
//
//   for (const auto& unit : make_units(config)) flow = unit->forward(ctx, flow);
//
// Shapes: B samples with T tokens together, d channels, n text rows a sample.
//   stem   in: patches [T, c_in * 4], text [B * n, d_text], sinusoid [B, d_freq]
//   stream: x [T, d];  conditioning: e [B, d], e0 [B, 6, d], context [B * n, d]
//   head   out: [T, 4 * c_out], channel fastest
#include <memory>

#include "tessera/models/wan/config.h"
#include "tessera/net/unit.h"

namespace tessera::models::wan {

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config);

/// Rotary tables of one sample's tokens (frames, then rows, then columns): cos and sin [f * h * w, head_dim / 2].
std::pair<at::Tensor, at::Tensor> rotary_tables(int64_t f, int64_t h, int64_t w, int64_t head_dim);

/// [cos | sin] of t times the frequencies 10000^(-i / (dim / 2)): [B, dim] fp32, angles in fp64.
at::Tensor timestep_sinusoid(const std::vector<double>& t, int64_t dim);

}  // namespace tessera::models::wan
