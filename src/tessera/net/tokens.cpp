#include "tessera/net/tokens.h"

#include "tessera/base/check.h"

namespace tessera::net {

Tensor History::read(const std::string& site, const Tensor& own) const {
  if (own.is_meta()) return own;  // measured, which asks for sizes alone
  if (storing) storing->states[site] = own.detach();
  Tensor sum = own;
  const size_t count = finished.size(), all = reach > 0 ? std::min(count, static_cast<size_t>(reach)) : count;
  for (size_t i = count - all; i < count; ++i) sum = sum + finished[i].states.at(site);
  return sum;
}

Tensor History::last(const std::string& site) const {
  return finished.empty() ? Tensor() : finished.back().frames.at(site);
}

void History::finish(Left left) {
  if (reach > 0) {
    finished.push_back(std::move(left));
    if (std::ssize(finished) > reach) finished.erase(finished.begin());
  } else {
    if (!finished.empty())
      for (auto& [site, state] : left.states) state = finished.back().states.at(site) + state;
    finished.assign(1, std::move(left));
  }
}

std::vector<int64_t> chunk_bounds(int64_t frames, int64_t base) {
  std::vector<int64_t> bounds = {0};
  for (int64_t at = base + frames % base; at < frames; at += base) bounds.push_back(at);
  bounds.push_back(frames);
  return bounds;
}

int64_t Space::chunk_end(size_t sample, int64_t frame) const {
  const int64_t frames = shapes[sample][0];
  if (chunks.empty()) return frames;
  const auto next = std::ranges::upper_bound(chunks[sample], frame);
  return next == chunks[sample].end() ? frames : *next;
}

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

std::vector<int64_t> Tokens::state_offsets() const {
  if (chunks.empty()) return offsets;
  std::vector<int64_t> at;
  for (size_t s = 0; s + 1 < offsets.size(); ++s)
    for (const int64_t frame : chunks[s]) at.push_back(offsets[s] + frame * shapes[s][1] * shapes[s][2]);
  at.push_back(total());
  return at;
}

Tensor Tokens::last_frames(const Tensor& x) const {
  std::vector<Tensor> rows;
  for (size_t s = 0; s + 1 < offsets.size(); ++s)
    rows.push_back(x.slice(0, offsets[s + 1] - shapes[s][1] * shapes[s][2], offsets[s + 1]));
  return at::cat(rows);
}

Tensor Tokens::before_first_frames(const Tensor& last, int64_t rows) const {
  const Tensor before = at::zeros({rows, last.size(1)}, last.options());
  int64_t at = 0;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t frame = shapes[s][1] * shapes[s][2];
    const int64_t from = std::max(offsets[s], begin), to = std::min(offsets[s] + frame, begin + rows);
    if (from < to)
      before.slice(0, from - begin, to - begin).copy_(last.slice(0, at + from - offsets[s], at + to - offsets[s]));
    at += frame;
  }
  return before;
}

Tensor Tokens::read_states(const Tensor& states) const {
  if (chunks.empty()) return states;
  const int64_t reach = history ? history->reach : 0;
  const Tensor read = at::zeros({states.size(0), states.size(0)}, states.options());  // 1: row i reads state j
  int64_t first = 0;
  for (const std::vector<int64_t>& of_sample : chunks) {
    const auto count = static_cast<int64_t>(of_sample.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = reach > 0 ? std::max<int64_t>(0, i - reach) : 0;
      read.select(0, first + i).slice(0, first + from, first + i + 1).fill_(1);
    }
    first += count;
  }
  return at::matmul(read, states.flatten(1)).view(states.sizes());
}

std::vector<Tensor> Tokens::tables() const {
  std::vector<Tensor> all;
  Tokens copy = *this;
  copy.change_tables([&](const Tensor& t) { return all.emplace_back(t); });
  return all;
}

}  // namespace tessera::net
