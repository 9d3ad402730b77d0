#include "tessera/net/context.h"

#include "tessera/base/check.h"

namespace tessera::net {

Tensor activated(const Tensor& x, const Linear& how) {
  switch (how.act) {
    case Act::none:
      return x;
    case Act::gelu_tanh:
      return at::gelu(x, "tanh");
    case Act::gelu:
      return at::gelu(x);
    case Act::silu:
      return at::silu(x);
    case Act::gelu_glu:
      return at::gelu(*how.gate) * x;
    case Act::silu_glu:
      return at::silu(*how.gate) * x;
  }
  return x;
}

Tensor Context::part(const Tensor& x, int space) const {
  const TokenRange here = tokens_of(x.size(0));
  std::vector<Tensor> pieces;
  for (const auto& [begin, end] : tokens().row_ranges(space, here)) pieces.push_back(x.slice(0, begin, end));
  if (pieces.empty()) return x.slice(0, 0, 0).contiguous();
  return pieces.size() == 1 ? pieces[0].contiguous() : at::cat(pieces);
}

Tensor Context::join(const std::vector<std::pair<int, Tensor>>& parts) const {
  int64_t rows = 0;
  for (const auto& [space, x] : parts) rows += x.size(0);
  const TokenRange here = tokens_of(rows);
  std::vector<std::pair<int64_t, Tensor>> pieces;  // with the token at which each begins
  for (const auto& [space, x] : parts) {
    int64_t at = 0;
    for (const auto& [begin, end] : tokens().row_ranges(space, here)) {
      pieces.emplace_back(begin, x.slice(0, at, at + end - begin));
      at += end - begin;
    }
    check_internal(at == x.size(0), "net.context", "a part of the tokens has other rows");
    // A part without rows here stays in the graph: its producer may exchange rows with other ranks in the backward,
    // too.
    if (at == 0) pieces.emplace_back(here.count(), x);
  }
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Tensor> all;
  for (const auto& [begin, x] : pieces) all.push_back(x);
  return at::cat(all);
}

}  // namespace tessera::net
