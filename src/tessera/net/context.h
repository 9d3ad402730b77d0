#pragma once
// The seam between models and engine: a unit asks for weights and collectives by site name and nothing else.
//
//   Tensor q = ctx.linear("self_attn.q", y);          // whose weight, split how, stored where: not the model's
//   business
//
// PlainContext (plain_context.h) is one rank without policies, the reference for every technique; the engine's
// contexts do the same at the same sites over slots, shards and layouts.
#include <algorithm>
#include <string_view>

#include "tessera/net/adapters.h"
#include "tessera/ops/tensor.h"

namespace tessera::net {

using at::Tensor;

/// Tokens that go with a signal in time, frame by frame: sound. They lie together in each sample, and others may
/// follow.
struct FrameTokens {
  std::vector<int64_t> clips;                  ///< frames of each sample's signal
  std::vector<std::array<int64_t, 2>> ranges;  ///< [begin, end) of those tokens in each sample
  std::vector<int64_t> offsets;                ///< [N+1] where each of N frames starts, counted over the ranges
  std::vector<int64_t> context_offsets;        ///< [N+1] where each frame's rows of the signal start
  Tensor rows;                                 ///< int32: the frame of each of those tokens
};

/// Facts that travel with the tokens of a packed micro-batch: T tokens of B samples, one after the other. Ranks may
/// share a sequence: then only the tokens [begin, end) are here, in x and in every table, while offsets stay those of
/// the whole micro-batch (engine/parallel/slice.h cuts).
struct Tokens {
  std::vector<int64_t> offsets;          ///< [B+1] where each sample's tokens start
  std::vector<int64_t> context_offsets;  ///< [B+1] where each sample's context rows start
  std::vector<int64_t> image_offsets;    ///< [B+1] where each sample's image rows start; empty: there are none
  Tensor rows;                           ///< [T] int32: modulation row of each token
  Tensor cos, sin;                       ///< [T, d_h/2] fp32: rotary table at each token's position; where ranks of tp
                                         ///< share heads, of all tokens that these ranks have together
  FrameTokens frames;                    ///< of models that hear
  int64_t begin = 0, end = -1;           ///< the tokens that are here; -1: to the last
  std::vector<uint64_t> samples = {};  ///< [B] what the random numbers of each sample are keyed by; empty: not training
  uint64_t step = 0;                   ///< the training step, of the same keys

  int64_t total() const { return offsets.empty() ? 0 : offsets.back(); }
  int64_t count() const { return (end < 0 ? total() : end) - begin; }  ///< tokens here
  bool cut() const { return end >= 0; }
  /// [B+1] where each sample's tokens start among those that are here; a sample may have none of them.
  std::vector<int64_t> local_offsets() const { return local_offsets(begin, begin + count()); }
  /// The same among the tokens [first, last).
  std::vector<int64_t> local_offsets(int64_t first, int64_t last) const {
    std::vector<int64_t> local;
    for (int64_t at : offsets) local.push_back(std::clamp<int64_t>(at - first, 0, last - first));
    return local;
  }
  /// Tokens here times all tokens of their sample, summed: what self-attention grows with.
  double pairs() const {
    const std::vector<int64_t> local = local_offsets();
    double sum = 0;
    for (size_t s = 0; s + 1 < offsets.size(); ++s)
      sum += static_cast<double>(local[s + 1] - local[s]) * static_cast<double>(offsets[s + 1] - offsets[s]);
    return sum;
  }
};

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
