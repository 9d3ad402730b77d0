#include "tessera/net/tokens.h"

#include <iterator>

#include "tessera/base/check.h"

namespace tessera::net {

namespace {

/// Nothing but the size of x, which is measured.
Tensor size_of(const Tensor& x) { return at::empty({1}, x.options()).expand(x.sizes()); }

/// A pass that is measured leaves nothing, unless it asks what all chunks will.
bool stores(const History& history, const Tensor& x) { return history.storing && (history.of_all || !x.is_meta()); }

}  // namespace

Tensor History::read(const std::string& site, const Tensor& own, int64_t samples) const {
  if (stores(*this, own)) storing->states[site] = own.is_meta() ? size_of(own) : own.detach();
  if (of_all) return read_of_all(site, own, samples);
  if (own.is_meta()) return own;  // measured, which asks for sizes alone
  Tensor sum = own;
  const size_t count = finished.size(), all = reach > 0 ? std::min(count, static_cast<size_t>(reach)) : count;
  for (size_t i = count - all; i < count; ++i) sum = sum + finished[i].states.at(site);
  return sum;
}

Tensor History::read_of_all(const std::string& site, const Tensor& own, int64_t samples) const {
  const int64_t chunks = own.size(0) / samples;
  check_internal(chunks * samples == own.size(0), "net.tokens", "samples of a micro-batch differ in their chunks");
  const Tensor before = at::zeros_like(own);
  for (int64_t chunk = 1; chunk < chunks && !own.is_meta(); ++chunk)
    for (int64_t from = reach > 0 ? std::max<int64_t>(0, chunk - reach) : 0; from < chunk; ++from)
      for (int64_t s = 0; s < samples; ++s)
        before[s * chunks + chunk].add_(finished.at(static_cast<size_t>(from)).states.at(site)[s]);
  return own + before;
}

void History::store_frames(const std::string& site, const Tensor& rows) const {
  if (stores(*this, rows)) storing->frames[site] = rows.is_meta() ? size_of(rows) : rows;
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

std::array<int64_t, 2> Space::chunk_of(size_t sample, int64_t frame) const {
  const int64_t frames = shapes[sample][0];
  if (chunks.empty()) return {0, frames};
  const auto next = std::ranges::upper_bound(chunks[sample], frame);
  return {*std::prev(next), next == chunks[sample].end() ? frames : *next};
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

Tensor Tokens::before_first_frames(const std::string& site, const Tensor& like, int64_t rows) const {
  const bool all = history->of_all;
  if (!all && (like.is_meta() || history->finished.empty())) return {};  // measured by sizes and messages alone
  const Tensor before = at::zeros({rows, like.size(1)}, like.options());
  if (like.is_meta()) return before;
  int64_t at = 0;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t frame = shapes[s][1] * shapes[s][2];
    const auto put = [&](const Tensor& last, int64_t first) {  // of the chunk that begins at this row
      const int64_t from = std::max(first, begin), to = std::min(first + frame, begin + rows);
      if (from < to) before.slice(0, from - begin, to - begin).copy_(last.slice(0, at + from - first, at + to - first));
    };
    if (!all) put(history->finished.back().frames.at(site), offsets[s]);
    for (size_t c = 1; all && c < chunks.at(s).size(); ++c)
      put(history->finished.at(c - 1).frames.at(site), offsets[s] + chunks[s][c] * frame);
    at += frame;
  }
  return before;
}

Tensor Tokens::read_states(const Tensor& states) const {
  if (chunks.empty() || (history && history->of_all)) return states;
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
