#pragma once
// The Wan transformer as units: stem, blocks, head.
//
//   for (const auto& unit : make_units(config)) flow = unit->forward(ctx, flow);
//
// Shapes: B samples with T tokens together, d channels, n text rows a sample.
//   stem   in: patches [T, c_in * 4], text [B * n, d_text], sinusoid [R, d_freq]; CLIP features [B * m, d_image]
//   stream: x [T, d];  conditioning: e [R, d], e0 [R, 6, d], context [B * n, d]; image [B * m, d]
//   head   out: [T, 4 * c_out], channel fastest
// R rows of time: one a sample, or several if its tokens have different timesteps; Tokens::rows maps tokens to rows.
// Only models with an image branch have the tensors after the last semicolon of a line. Those of VideoX-Fun have
// more inputs after these, with a row for each token: a reference's patches [T, c_ref * 4] and 1 where a token is one of
// them [T, 1]; the camera's rays [T, c_rays * scale^2 * 4].
#include <memory>

#include "tessera/models/common/initial.h"
#include "tessera/models/wan/config.h"
#include "tessera/net/model.h"

namespace tessera::models::wan {

/// Row spaces: the tokens, each sample's text, and the image features of models with an image branch.
enum Space { kTokens, kText, kImage };
/// Inputs of the stem that every model has; where those of some models begin.
enum StemInputs { kLatentRows, kTextRows, kTimeRows, kMoreRows };

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config);
/// One of these units, for other models that use it and declare it. Further streams pass a block by.
std::unique_ptr<net::Unit> make_stem(const Config& config);
std::unique_ptr<net::Unit> make_block(const Config& config, int64_t index, const std::string& kind = "block");
std::unique_ptr<net::Unit> make_head(const Config& config);

inline net::DenoiserSizes denoiser_sizes(const Config& c) {
  return {.channels = c.out_dim, .context_dim = c.text_dim, .context_length = c.text_len, .heads = c.num_heads};
}

/// Xavier for linears, zero head, N(0, 0.02) for the text and time embeddings: what the official code does. The last only
/// where the sizes are those of a release; else Initial::embedding.
Initial initial_values(const plan::ParamSpec& param, bool released);

/// Rotary tables of one sample's tokens (frames, then rows, then columns): cos and sin [f * h * w, head_dim / 2].
std::pair<at::Tensor, at::Tensor> rotary_tables(int64_t f, int64_t h, int64_t w, int64_t head_dim);

}  // namespace tessera::models::wan
