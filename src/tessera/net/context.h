#pragma once
// The seam between models and engine: a unit asks for weights and collectives by site name and nothing else.
//
//   Tensor q = ctx.linear("self_attn.q", y);   // whose weight, split how, stored where: not the model's business
//   q = ctx.norm("self_attn.norm_q", q, {.kind = Norm::rms, .eps = 1e-6, .rope = heads});
//   Tensor out = ctx.attention("self_attn", q, k, v, heads);
//
// Operators are general: what a family attends to, and in which order, is a table of its tokens (Segments), not a method
// here. PlainContext (plain_context.h) is one rank without policies, the reference for every technique; the engine's
// contexts do the same at the same sites over slots, shards and layouts:
//
// | operator         | ranks of tp                                   | ranks of sp, cp                                    |
// |------------------|-----------------------------------------------|----------------------------------------------------|
// | linear           | gather or reduce-scatter of its space's rows  | nothing                                            |
// | norm             | of a cut width the sum of squares; by head: 0 | nothing                                            |
// | rope, residual   | nothing                                       | nothing                                            |
// | attention        | heads                                         | sp: heads; cp: ring by sample, else gather k and v |
// | linear_attention | heads                                         | sum of [B, heads, d + 1, d]                        |
// | conv             | channels                                      | rows that neighbours reach                         |
#include <optional>
#include <string_view>

#include "tessera/net/adapters.h"
#include "tessera/net/tokens.h"
#include "tessera/ops/tensor.h"

namespace tessera::net {

using at::Tensor;

/// What a linear does with its input first. gelu is the exact one; *_glu multiplies the input by the activated gate.
enum class Act { none, gelu_tanh, gelu, silu, gelu_glu, silu_glu };

struct Linear {
  Act act = Act::none;
  int space = 0;                 ///< whose rows x has
  const Tensor* gate = nullptr;  ///< of *_glu, as x
};

struct Norm {
  enum Kind { layer, rms } kind = layer;
  double eps = 1e-6;
  /// layer: (1 + scale[row]) and shift[row] of the space's modulation rows in place of site.weight and site.bias.
  const Tensor *shift = nullptr, *scale = nullptr;
  int64_t heads = 0;  ///< rms: by head, of so many, with site.weight [d_h]; 0: over the full width, [D]
  int64_t rope = 0;   ///< rms: then turned as rope() does (interleaved), heads of so many; 0: not
};

/// Which two channels of a head turn together: neighbours 2i and 2i + 1, or i and i + d/2.
enum class RopeStyle { interleaved, half_split };

/// Additive bias [heads, queries, keys] of one sample, forward only; the scores are then not scaled. Else the scale is
/// 1 / sqrt(d).
struct Softmax {
  const Tensor* bias = nullptr;
};

/// q and k of linear_attention where they are turned: in its sums over keys, not in what these are divided by.
struct Rotated {
  const Tensor *q = nullptr, *k = nullptr;
};

/// A convolution over the frames, rows and columns of a space (Space::shapes), zeros around, stride 1: odd kernel.
struct Conv {
  std::array<int64_t, 3> kernel = {1, 3, 3};
};

class Context {
 public:
  virtual ~Context() = default;

  virtual const Tokens& tokens() const = 0;

  /// Whether linears have low-rank pairs beside them, and how strong (adapters.h); null: none. Borrowed.
  void use_adapters(const AdapterSettings* settings) { adapters_ = settings; }

  /// x [.., in] -> [.., out]; parameters site.weight [out, in] and, when declared, site.bias [out]. An activation
  /// remembers what it is given only.
  virtual Tensor linear(std::string_view site, const Tensor& x, const Linear& how = {}) = 0;
  /// LayerNorm or RMSNorm of x [rows, D].
  virtual Tensor norm(std::string_view site, const Tensor& x, const Norm& how, int space = 0) = 0;
  /// Turns each head's pairs of channels by the space's rotary tables. x [rows, heads * d]
  virtual Tensor rope(std::string_view site, const Tensor& x, int64_t heads, RopeStyle style, int space = 0) = 0;
  /// x + y, or x + y * gate[row] of the space's modulation rows, in the type of x: what is added up over blocks stays
  /// fp32.
  virtual Tensor residual(std::string_view site, const Tensor& x, const Tensor& y, const Tensor* gate = nullptr,
                          int space = 0) = 0;
  /// Softmax attention of the rows that meet. q [queries, heads * d], k, v [keys, heads * d].
  virtual Tensor attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                           const Segments& segments = {}, const Softmax& softmax = {}) = 0;
  /// Attention without a softmax, of each sample's tokens to themselves: (sum_j k_j v_j) q_i / (sum_j k_j . q_i + eps),
  /// for q and k that are not negative. q, k, v [rows, heads * d].
  virtual Tensor linear_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                  int64_t heads, double eps, const Rotated& rotated = {}) = 0;
  /// Each channel by itself (depthwise): site.weight [D, 1, kernel...], when declared site.bias [D]. x [rows, D].
  virtual Tensor conv(std::string_view site, const Tensor& x, const Conv& how, int space = 0) = 0;
  /// The rows of a space that is part of the tokens, of x [tokens, D]; and the tokens again, of the spaces that make
  /// them up. x is of the tokens here or, where ranks share heads or channels, of all tokens that these ranks have.
  Tensor part(const Tensor& x, int space) const;
  Tensor join(const std::vector<std::pair<int, Tensor>>& parts) const;

  /// A parameter as a small tensor whose gradient flows back (modulation tables).
  virtual Tensor param(std::string_view site) = 0;
  /// Rows of a table by ids [T] int64.
  virtual Tensor embedding(std::string_view site, const Tensor& ids) = 0;

 protected:
  /// The tokens that `rows` rows are of.
  virtual TokenRange tokens_of(int64_t rows) const { return {tokens().begin, tokens().begin + rows}; }
  const AdapterSettings* adapters_ = nullptr;
};

/// The input of a linear after its activation.
Tensor activated(const Tensor& x, const Linear& how);

}  // namespace tessera::net
