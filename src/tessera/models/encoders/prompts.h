#pragma once
// Token ids of several prompts as one packed batch of a text encoder, what decoders do with such a batch, and padded rows of
// it as the reference implementations have them.
//
//   net::Batch batch = pack_prompts({{17, 402, 1}}, 256384, "umt5.pack");
//   add_rotations(batch, 128, 1e6);
//   Tensor mixed = causal_attention(batch.tokens.offsets, q, k, v, {.kv_heads = 4, .head_dim = 128});
#include "tessera/models/common/golden_case.h"
#include "tessera/net/encoders.h"

namespace tessera::models {

/// One after the other, unpadded. Throws UserError (input) for a prompt without tokens and ids outside the vocabulary.
net::Batch pack_prompts(const std::vector<std::vector<int64_t>>& prompts, int64_t vocabulary, const char* where);

/// The angles of a rotary embedding by each token's place in its prompt, in fp32 as the references multiply places and
/// frequencies.
void add_rotations(net::Batch& batch, int64_t head_dim, double theta);

struct CausalForm {
  int64_t kv_heads, head_dim;  ///< groups of heads share keys and values
  double divisor = 1;          ///< of scores
  double cap = 0;              ///< c in c * tanh(score / c); 0: none
  int64_t window = 0;          ///< keys that a query sees, itself among them; 0: all before it
};
/// Attention within each prompt, where a token sees itself and those before it: q [T, heads * d], k and v
/// [T, kv_heads * d] -> [T, heads * d].
at::Tensor causal_attention(const std::vector<int64_t>& offsets, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const CausalForm& form);

/// The ids with mask 1 of padded rows, ids and mask [B, L] int64.
std::vector<std::vector<int64_t>> real_tokens(const at::Tensor& ids, const at::Tensor& mask);

/// Rows of packed prompts [T, dim] as [B, length, dim], zeros behind the last one of each.
at::Tensor padded_rows(const at::Tensor& rows, const std::vector<int64_t>& offsets, int64_t length);

// Of golden cases with in.input_ids and in.attention_mask: the tokens with mask 1, and their rows with zeros for the others.
net::Batch pack_masked(const net::TextEncoder& encoder, const CaseTensors& file);
at::Tensor masked_rows(const net::TextEncoder& encoder, const CaseTensors& file, const at::Tensor& rows);

}  // namespace tessera::models
