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

void add_rotations(net::Batch& batch, int64_t head_dim, double theta) {
  const auto& offsets = batch.tokens.offsets;
  std::vector<double> places;
  for (size_t s = 0; s + 1 < offsets.size(); ++s)
    for (int64_t i = 0; i < offsets[s + 1] - offsets[s]; ++i) places.push_back(static_cast<double>(i));
  const int64_t half = head_dim / 2;
  const Tensor exponents = at::arange(half, at::kDouble) / static_cast<double>(half);
  const Tensor frequencies = at::pow(theta, exponents).reciprocal().to(at::kFloat);
  const Tensor angles = at::outer(at::tensor(places, at::kDouble).to(at::kFloat), frequencies);
  batch.tokens.cos = angles.cos();
  batch.tokens.sin = angles.sin();
}

namespace {

/// [n, n], added to scores: nothing is left of the keys that a query does not see.
Tensor mask_of(int64_t n, int64_t window, const Tensor& like) {
  constexpr double kNothing = -1e9;
  const Tensor place = at::arange(n, like.options().dtype(at::kLong));
  const Tensor ahead = place.unsqueeze(0) - place.unsqueeze(1);  // [query, key]
  const Tensor later = ahead > 0, hidden = window > 0 ? later.bitwise_or(ahead <= -window) : later;
  return hidden.to(like.options()).mul_(kNothing);
}

/// One prompt: q [n, heads * d], k and v [n, kv_heads * d].
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const CausalForm& form) {
  const int64_t n = q.size(0), shared = form.kv_heads, d = form.head_dim;
  const auto keys = [&](const Tensor& x) { return x.view({n, shared, d}).transpose(0, 1); };  // [shared, n, d]
  const Tensor queries = q.view({n, shared, -1, d}).permute({1, 2, 0, 3});                    // [shared, group, n, d]
  const int64_t group = queries.size(1);
  Tensor scores = at::matmul(queries.reshape({shared, group * n, d}), keys(k).transpose(1, 2));
  if (form.cap > 0)
    scores = at::tanh(scores * (1 / (form.divisor * form.cap))) * form.cap;
  else if (form.divisor != 1)
    scores = scores * (1 / form.divisor);
  scores = scores.view({shared, group, n, n}) + mask_of(n, form.window, q);
  const Tensor mixed = at::matmul(at::softmax(scores, -1).view({shared, group * n, n}), keys(v));
  return mixed.view({shared, group, n, d}).permute({2, 0, 1, 3}).reshape({n, -1});
}

}  // namespace

Tensor causal_attention(const std::vector<int64_t>& offsets, const Tensor& q, const Tensor& k, const Tensor& v,
                        const CausalForm& form) {
  std::vector<Tensor> prompts;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const auto cut = [&](const Tensor& x) { return x.slice(0, offsets[s], offsets[s + 1]); };
    prompts.push_back(attend(cut(q), cut(k), cut(v), form));
  }
  return prompts.size() == 1 ? prompts[0] : at::cat(prompts);
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

net::Batch pack_masked(const net::TextEncoder& encoder, const CaseTensors& file) {
  return encoder.pack(real_tokens(file.tensor("in.input_ids"), file.tensor("in.attention_mask")));
}

Tensor masked_rows(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& rows) {
  return padded_rows(rows, pack_masked(encoder, file).tokens.offsets, file.tensor("in.input_ids").size(1));
}

}  // namespace tessera::models
