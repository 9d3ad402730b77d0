#pragma once
// The seam between models and engine: a unit asks for weights and collectives by site name and nothing else.
//
//   Tensor q = ctx.linear("self_attn.q", y);   // the model does not know how the weight is sharded or where it is
//   q = ctx.norm("self_attn.norm_q", q, {.kind = Norm::rms, .eps = 1e-6, .rope = heads});
//   Tensor out = ctx.attention("self_attn", q, k, v, heads);
//
// Operators are general: which tokens a family attends to, and in which order, is a table of its tokens (Segments), not
// a method here. PlainContext (plain_context.h) is one rank without policies, the reference for every technique; the
// engine's contexts do the same at the same sites over slots, shards and layouts:
//
// | operator         | exchange over tp                              | exchange over sp, cp                               |
// |------------------|-----------------------------------------------|----------------------------------------------------|
// | linear           | gather or reduce-scatter of its space's rows  | nothing                                            |
// | norm             | sums of squares of a sharded width            | nothing                                            |
// | rope, residual   | nothing                                       | nothing                                            |
// | attention, ahead | nothing: each rank has some heads             | sp: heads; cp: ring by sample, else gather k and v |
// | linear_attention | nothing: each rank has some heads             | sum of [B, heads, d + 1, d]                        |
// | conv             | nothing: each rank has some channels          | rows that neighbours reach (a halo)                |
// | unfold           | a halo                                        | a halo                                             |
#include <optional>
#include <string_view>

#include "tessera/net/adapters.h"
#include "tessera/net/tokens.h"
#include "tessera/ops/tensor.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::net {

using at::Tensor;

/// Activation of a linear's input. gelu is the exact one; *_glu multiplies the input by the activated gate.
enum class Act { none, gelu_tanh, gelu, silu, gelu_glu, silu_glu };

/// [Note: declared by use] What a unit asks for is declared where it asks: shapes, and how tensor parallelism splits
/// them. declare.h runs the forward once to collect these; contexts that compute do not read them.
struct Linear {
  Act act = Act::none;
  int space = 0;                 ///< row space of x
  const Tensor* gate = nullptr;  ///< of *_glu, the shape of x
  // Declared:
  int64_t out = 0;  ///< channels of the result; 0: as many as x has
  plan::Split split = plan::Split::none;
  bool bias = true;
  std::vector<int64_t> kernel = {};  ///< its weight is that of a convolution: [out, in / (their product), kernel...]
};

struct Norm {
  enum Kind { layer, rms } kind = layer;
  double eps = 1e-6;
  /// layer: (1 + scale[row]) and shift[row] of the space's modulation rows in place of site.weight and site.bias.
  const Tensor *shift = nullptr, *scale = nullptr;
  int64_t heads = 0;  ///< rms: number of heads that are normalised each, with site.weight [d_h]; 0: the full width, [D]
  int64_t rope = 0;   ///< rms: number of heads that rope() (interleaved) then rotates; 0: no rotation
  plan::Split split = plan::Split::none;  ///< declared; of the weight of an rms norm of a full width
};

/// Which two channels of a head are rotated as a pair: neighbours 2i and 2i + 1, or i and i + d/2.
enum class RopeStyle { interleaved, half_split };

/// `bias`: additive, [heads, queries, keys] of one sample, forward only; scores are then not scaled. Without a bias
/// they are scaled by 1 / sqrt(d).
struct Softmax {
  const Tensor* bias = nullptr;
};

/// Rotated q and k of linear_attention: they enter its numerator, the plain ones its denominator.
struct Rotated {
  const Tensor *q = nullptr, *k = nullptr;
};

/// A convolution over the frames, rows and columns of a space (Space::shapes), zeros around, stride 1: odd kernel.
struct Conv {
  std::array<int64_t, 3> kernel = {1, 3, 3};
  plan::Split split = plan::Split::none;  ///< declared
  bool silu = false;                      ///< of silu(x), of which x alone is saved
  const Tensor* value = nullptr;  ///< what the result gates: value * silu(result), of which the result is not saved
};

class Context {
 public:
  virtual ~Context() = default;

  virtual const Tokens& tokens() const = 0;

  /// Settings of the LoRA pairs beside this unit's linears (adapters.h), borrowed; null: no pairs.
  void use_adapters(const AdapterSettings* settings) { adapters_ = settings; }

  /// x [.., in] -> [.., out]; parameters site.weight [out, in] and, unless it has none, site.bias [out]. An activation
  /// saves its input alone for the backward.
  virtual Tensor linear(std::string_view site, const Tensor& x, const Linear& how = {}) = 0;
  /// LayerNorm or RMSNorm of x [rows, D].
  virtual Tensor norm(std::string_view site, const Tensor& x, const Norm& how, int space = 0) = 0;
  /// Rotates each head's pairs of channels by the space's rotary tables. x [rows, heads * d]
  virtual Tensor rope(std::string_view site, const Tensor& x, int64_t heads, RopeStyle style, int space = 0) = 0;
  /// x + y, or x + y * gate[row] of the space's modulation rows, in the dtype of x: the residual stream stays fp32.
  /// `multiplied`: linears read the result itself, with no norm between.
  virtual Tensor residual(std::string_view site, const Tensor& x, const Tensor& y, const Tensor* gate = nullptr,
                          int space = 0, bool multiplied = false) = 0;
  /// An operand of the self-attention that follows at `site`, as soon as it is there: ranks of sp exchange it while the
  /// unit computes the next one. The result is for attention() alone, in the operand's place. x [rows, heads * d]
  virtual Tensor ahead(std::string_view /*site*/, const Tensor& x) { return x; }
  /// Softmax attention of the queries to the keys of their segment. q [queries, heads * d], k, v [keys, heads * d].
  virtual Tensor attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                           const Segments& segments = {}, const Softmax& softmax = {}) = 0;
  /// Self-attention without a softmax within each sample: (sum_j v_j k_j^T) q_i / (sum_j k_j . q_i + eps), where q and k
  /// are taken as max(0, x), and `rotated` as they are. q, k, v [rows, heads * d].
  virtual Tensor linear_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                  int64_t heads, double eps, const Rotated& rotated = {}) = 0;
  /// Depthwise convolution: site.weight [D, 1, kernel...], of one frame [D, 1, h, w], and site.bias [D]. x [rows, D].
  virtual Tensor conv(std::string_view site, const Tensor& x, const Conv& how, int space = 0) = 0;
  /// Each row with its neighbours: x [rows, D] -> [rows, D * taps], the tap fastest, zeros outside the grid. A linear
  /// of the result is a convolution over all channels, whose weight is [out, D, kernel...].
  virtual Tensor unfold(std::string_view site, const Tensor& x, const Conv& how, int space = 0) = 0;
  /// part() takes the rows of a space that is part of the tokens out of x [tokens, D]; join() puts the tokens together
  /// from the spaces that make them up. x has this rank's tokens or, where tp ranks share heads or channels, the tokens
  /// of all of them.
  Tensor part(const Tensor& x, int space) const;
  Tensor join(const std::vector<std::pair<int, Tensor>>& parts) const;

  /// A parameter as a small tensor with a gradient (modulation tables).
  virtual Tensor param(std::string_view site) = 0;
  Tensor param(std::string_view site, at::IntArrayRef shape) {
    declare(site, "", shape);
    return param(site);
  }
  /// A parameter + x, which has rows of it: a modulation table and what a sample's time adds.
  Tensor param_plus(std::string_view site, at::IntArrayRef shape, const Tensor& x) {
    declare(site, "", shape);
    return param_plus(site, x);
  }
  /// Rows of a table by ids [T] int64.
  virtual Tensor embedding(std::string_view site, const Tensor& ids) = 0;
  Tensor embedding(std::string_view site, const Tensor& ids, at::IntArrayRef shape) {
    declare(site, ".weight", shape);
    return embedding(site, ids);
  }

 protected:
  virtual Tensor param_plus(std::string_view site, const Tensor& x) { return param(site) + x; }
  virtual void declare(std::string_view /*site*/, std::string_view /*suffix*/, at::IntArrayRef /*shape*/) {}
  /// The range of tokens that a tensor with `rows` rows has.
  virtual TokenRange tokens_of(int64_t rows) const { return {tokens().begin, tokens().begin + rows}; }
  const AdapterSettings* adapters_ = nullptr;
};

/// The input of a linear after its activation.
Tensor activated(const Tensor& x, const Linear& how);

}  // namespace tessera::net
