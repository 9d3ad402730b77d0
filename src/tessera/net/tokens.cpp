#include "tessera/net/tokens.h"

#include "tessera/base/check.h"

namespace tessera::net {

std::vector<int64_t> Space::local_offsets(int64_t first, int64_t last) const {
  std::vector<int64_t> local;
  for (int64_t at : offsets) local.push_back(std::clamp<int64_t>(at - first, 0, last - first));
  return local;
}

TokenRange Space::within(TokenRange tokens) const {
  if (ranges.empty()) return tokens;
  const auto before = [&](int64_t token) {
    int64_t rows = 0;
    for (const auto& [from, to] : ranges) rows += std::clamp(token, from, to) - from;
    return rows;
  };
  return {before(tokens.begin), before(tokens.end)};
}

std::vector<std::array<int64_t, 2>> Tokens::row_ranges(int index, TokenRange of) const {
  std::vector<std::array<int64_t, 2>> result;
  for (const auto& [from, to] : space(index).ranges)
    if (const TokenRange rows{std::clamp(from, of.begin, of.end), std::clamp(to, of.begin, of.end)}; rows.count() > 0)
      result.push_back({rows.begin - of.begin, rows.end - of.begin});
  return result;
}

SegmentOffsets segment_offsets(const Tokens& tokens, const Segments& segments) {
  if (segments.ranges.empty()) return {tokens.space(segments.q).offsets, tokens.space(segments.k).offsets};
  SegmentOffsets at{{segments.ranges[0][0]}, {segments.ranges[0][2]}};
  for (const auto& [q_begin, q_end, k_begin, k_end] : segments.ranges) {
    check_internal(q_begin == at.q_offsets.back() && k_begin == at.k_offsets.back(), "net.tokens",
                   "segments do not follow one another");
    at.q_offsets.push_back(q_end), at.k_offsets.push_back(k_end);
  }
  check_internal(at.q_offsets.back() == tokens.space(segments.q).total() &&
                     at.k_offsets.back() == tokens.space(segments.k).total(),
                 "net.tokens", "segments leave rows out");
  return at;
}

double Tokens::pairs() const {
  const std::vector<int64_t> local = local_offsets();
  double sum = 0;
  for (size_t s = 0; s + 1 < offsets.size(); ++s)
    sum += static_cast<double>(local[s + 1] - local[s]) * static_cast<double>(offsets[s + 1] - offsets[s]);
  return sum;
}

std::vector<Tensor> Tokens::tables() const {
  std::vector<Tensor> all;
  Tokens copy = *this;
  copy.change_tables([&](const Tensor& t) { return all.emplace_back(t); });
  return all;
}

}  // namespace tessera::net
