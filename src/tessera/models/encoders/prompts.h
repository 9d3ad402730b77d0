#pragma once
// Token ids of several prompts as one packed batch of a text encoder, and padded rows of them as the reference
// implementations have them.
//
//   net::Batch batch = pack_prompts({{17, 402, 1}}, 256384, "umt5.pack");
#include "tessera/net/text_encoder.h"

namespace tessera::models {

/// One after the other, unpadded. Throws UserError (input) for a prompt without tokens and ids outside the vocabulary.
net::Batch pack_prompts(const std::vector<std::vector<int64_t>>& prompts, int64_t vocabulary, const char* where);

/// The ids with mask 1 of padded rows, ids and mask [B, L] int64.
std::vector<std::vector<int64_t>> real_tokens(const at::Tensor& ids, const at::Tensor& mask);

/// Rows of packed prompts [T, dim] as [B, length, dim], zeros behind the last one of each.
at::Tensor padded_rows(const at::Tensor& rows, const std::vector<int64_t>& offsets, int64_t length);

}  // namespace tessera::models
