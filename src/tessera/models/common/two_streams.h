#pragma once
// Blocks of a joint sequence whose video and text have weights of their own and attend to each other (MMDiT: Esser et al.
// 2024), and the head behind such blocks. A family says what its sites are called.
//
//   units.push_back(std::make_unique<TwoStreamBlock>(kStreams, index));
//   units.push_back(std::make_unique<TwoStreamHead>(out_channels));
//
// Stream: x [T, d] of all tokens; conditioning: vec [B, d]. Tokens::rows maps tokens to rows of the modulations: 2 s of
// sample s's video, 2 s + 1 of its text.
#include "tessera/models/common/denoiser.h"

namespace tessera::models {

/// What a stream's sites are called, behind the block's name.
struct Stream {
  int space;  ///< its part of the tokens
  std::string modulation, q, k, v, q_norm, k_norm, out, up, down;
};

struct TwoStreams {
  int64_t heads, width, mlp_dim;
  net::RopeStyle rope;  ///< of all tokens: the tables of text turn nothing
  Stream video, text;
  std::vector<std::string_view> order = {};  ///< net::Unit::order()
};

/// [2 B, n, d] -> n of [2 B, d], of a video and a text row a sample. Norms and gates take them in the dtype of vec.
std::vector<at::Tensor> modulation_rows(const at::Tensor& video, const at::Tensor& text, const at::Tensor& vec);
/// A norm over the width that these rows modulate, of which they are borrowed.
net::Norm modulated(const at::Tensor& shift, const at::Tensor& scale);
/// Each head of q or k, normed.
net::Norm by_head(int64_t heads);
/// Attention of all tokens of a sample to each other, with their positions.
at::Tensor joint_attention(net::Context& ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           int64_t heads, net::RopeStyle rope);

class TwoStreamBlock final : public FamilyUnit<TwoStreams> {
 public:
  TwoStreamBlock(const TwoStreams& streams, int64_t index)
      : FamilyUnit(streams, "double_blocks", "double_block", index) {}

  net::Flow forward(net::Context& ctx, const net::Flow& in) const override;
  std::string_view output_site() const override { return "gate2"; }
  std::vector<std::string_view> order() const override { return c_.order; }

 private:
  at::Tensor attention(net::Context& ctx, const at::Tensor& y) const;
  at::Tensor feed_forward(net::Context& ctx, const at::Tensor& y) const;
};

/// A modulated norm and a linear to that many channels, "final_layer.{shift,scale,linear}".
class TwoStreamHead final : public FamilyUnit<int64_t> {
 public:
  explicit TwoStreamHead(int64_t channels) : FamilyUnit(channels, "head", "final_layer.") {}
  net::Flow forward(net::Context& ctx, const net::Flow& in) const override;
};

}  // namespace tessera::models
