#include "tessera/models/encoders/prompts.h"

#include "tessera/base/check.h"

namespace tessera::models {

using at::Tensor;

net::Batch pack_prompts(const std::vector<std::vector<int64_t>>& prompts, int64_t vocabulary, const char* where) {
  net::Batch batch;
  std::vector<int64_t> all;
  batch.tokens.offsets = {0};
  for (const auto& ids : prompts) {
    check_input(!ids.empty(), where, "a prompt has no tokens", "even an empty text has its end or its beginning");
    for (const int64_t id : ids)
      check_input(id >= 0 && id < vocabulary, where,
                  "token " + std::to_string(id) + ": the encoder knows ids below " + std::to_string(vocabulary),
                  "tokenizer and text encoder do not belong together");
    all.insert(all.end(), ids.begin(), ids.end());
    batch.tokens.offsets.push_back(static_cast<int64_t>(all.size()));
  }
  batch.inputs = {at::tensor(all, at::kLong)};
  return batch;
}

std::vector<std::vector<int64_t>> real_tokens(const Tensor& ids, const Tensor& mask) {
  check_input(ids.dim() == 2 && ids.sizes() == mask.sizes() && ids.numel() > 0, "models.text",
              "ids and mask are not of one shape [B, L]", "give a mask for every token");
  const Tensor rows = ids.to(at::kLong).contiguous(), real = mask.to(at::kLong).contiguous();
  std::vector<std::vector<int64_t>> prompts(static_cast<size_t>(rows.size(0)));
  for (int64_t i = 0; i < rows.numel(); ++i)
    if (real.const_data_ptr<int64_t>()[i] != 0)
      prompts[static_cast<size_t>(i / rows.size(1))].push_back(rows.const_data_ptr<int64_t>()[i]);
  return prompts;
}

Tensor padded_rows(const Tensor& rows, const std::vector<int64_t>& offsets, int64_t length) {
  const auto count = static_cast<int64_t>(offsets.size()) - 1;
  Tensor padded = at::zeros({count, length, rows.size(1)}, rows.options());
  for (int64_t b = 0; b < count; ++b) {
    const int64_t n = offsets[b + 1] - offsets[b];
    padded[b].narrow(0, 0, n).copy_(rows.narrow(0, offsets[b], n));
  }
  return padded;
}

}  // namespace tessera::models
