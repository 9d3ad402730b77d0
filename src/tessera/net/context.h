#pragma once
// The seam between models and engine: a unit asks for weights and collectives by site name and nothing else.
//
//   Tensor q = ctx.linear("self_attn.q", y);          // whose weight, split how, stored where: not the model's
//   business
//
// PlainContext (plain_context.h) is one rank without policies, the reference for every technique; the engine's
// contexts do the same at the same sites over slots, shards and layouts.
#include <string_view>

#include "tessera/net/adapters.h"
#include "tessera/net/tokens.h"
#include "tessera/ops/tensor.h"

namespace tessera::net {

using at::Tensor;

class Context {
 public:
  virtual ~Context() = default;

  virtual const Tokens& tokens() const = 0;

  /// Whether linears have low-rank pairs beside them, and how strong (adapters.h); null: none. Borrowed.
  void use_adapters(const AdapterSettings* settings) { adapters_ = settings; }

  /// x [.., in] -> [.., out]; parameters site.weight [out, in] and, when declared, site.bias [out].
  virtual Tensor linear(std::string_view site, const Tensor& x) = 0;
  /// linear(site, gelu_tanh(x)), remembering x only.
  virtual Tensor gelu_linear(std::string_view site, const Tensor& x) = 0;
  /// LayerNorm with site.weight and site.bias.
  virtual Tensor layer_norm(std::string_view site, const Tensor& x, double eps) = 0;
  /// RMSNorm over the full width with site.weight.
  virtual Tensor rms_norm(std::string_view site, const Tensor& x, double eps) = 0;
  /// RMSNorm over the full width, then the rotary embedding of tokens().
  virtual Tensor rms_norm_rope(std::string_view site, const Tensor& x, int64_t heads, double eps) = 0;
  /// LN(x) * (1 + scale[row]) + shift[row], rows of tokens(). No parameters; the site names what is saved.
  virtual Tensor modulated_norm(std::string_view site, const Tensor& x, const Tensor& shift, const Tensor& scale,
                                double eps) = 0;
  /// x + y * gate[row].
  virtual Tensor gated_residual(std::string_view site, const Tensor& x, const Tensor& y, const Tensor& gate) = 0;
  /// x + y, in the type of x: what is added up over blocks stays fp32.
  virtual Tensor sum(std::string_view site, const Tensor& x, const Tensor& y) = 0;
  /// Attention of each sample's tokens to themselves (self) or to its context rows (cross). q, k, v [T, heads * d].
  virtual Tensor self_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                int64_t heads) = 0;
  virtual Tensor cross_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                 int64_t heads) = 0;
  /// Attention of each sample's tokens to its image rows, a second context beside the text.
  virtual Tensor image_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                 int64_t heads) = 0;
  /// modulated_norm and cross_attention of the tokens of frames, each frame with its own shift, scale and context:
  /// x, q [tokens of frames, d]; shift, scale [N, d]; k, v [rows of the signal, heads * d].
  virtual Tensor frame_norm(std::string_view site, const Tensor& x, const Tensor& shift, const Tensor& scale,
                            double eps) = 0;
  virtual Tensor frame_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                 int64_t heads) = 0;
  /// Unscaled self-attention with an additive bias [heads, n, n], one sample (text encoders, forward only).
  virtual Tensor biased_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                  int64_t heads, const Tensor& bias) = 0;
  /// A parameter as a small tensor whose gradient flows back (modulation tables).
  virtual Tensor param(std::string_view site) = 0;
  /// Rows of a table by ids [T] int64.
  virtual Tensor embedding(std::string_view site, const Tensor& ids) = 0;

 protected:
  const AdapterSettings* adapters_ = nullptr;
};

}  // namespace tessera::net
