#pragma once
// Which kernel computes softmax attention on a GPU: one rule, by which plans are measured and priced and runs compute.
//
//   attention_kernel(Attention::cudnn, {.half = true, .head = 128, .keys = 512}).why;      // "fewer than 1024 keys"
//
// [Note: kernels of attention] plan.attention asks for cuDNN's kernel or the flash kernel, both LibTorch's, and this rule says
// where another one is taken. cuDNN compiles a plan for every shape, which takes tenths of a second, and so does its form for
// samples of different lengths at every call. So it computes attention to many keys, self-attention, whose lengths are those
// of the training shapes; texts, which have few keys and many lengths, and packed batches of short samples stay with flash.
// What was taken is noted where it is computed, on tensors and on those without values, so a plan's line and a run's are made
// of the same notes.
#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace tessera::plan {

/// plan.attention, decided.
enum class Attention { flash, cudnn };
std::string_view name(Attention attention);
/// Throws UserError (usage) naming `where` and the nearest name.
Attention attention_of(std::string_view text, std::string_view where);

/// products: matrix products and a softmax of some queries at a time.
enum class AttentionKernel { cudnn, flash, products };

struct AttentionCall {
  bool half = true;  ///< bf16 or fp16
  int64_t head = 0;  ///< values of a head
  int64_t keys = 0;  ///< of a sample, of several the longest
};

struct AttentionTaken {
  AttentionKernel kernel = AttentionKernel::products;
  std::string why = {};  ///< why it is not the one that was asked for
  auto operator<=>(const AttentionTaken&) const = default;
};

inline constexpr int64_t kCudnnKeys = 1024;  ///< fewer are not worth a plan of cuDNN's
/// Whether cuDNN has a kernel for heads of so many values, forward and backward (cuDNN 9.16 and newer).
constexpr bool has_cudnn_heads(int64_t head) { return head % 8 == 0 && head <= 128; }

AttentionTaken attention_kernel(Attention asked, const AttentionCall& call);

/// The kernels that attention took, and where.
struct AttentionUse {
  std::map<AttentionTaken, std::set<std::string>> sites = {};
  /// What cuDNN compiles for: samples, heads, queries and keys of a sample, values of a head.
  std::set<std::array<int64_t, 5>> shapes = {};

  void add(const AttentionUse& other);
  bool takes(std::string_view site, AttentionKernel kernel) const;
  /// "cuDNN at self_attn; flash at cross_attn (fewer than 1024 keys)"; empty where there is none.
  std::string text() const;
};

}  // namespace tessera::plan
