#include "tessera/plan/token_shares.h"

#include <algorithm>

namespace tessera::plan {

TokenRange token_share(int64_t tokens, int64_t index, int64_t of) {
  return {tokens * index / of, tokens * (index + 1) / of};
}

int sequence_size(const Mesh& mesh) { return mesh[Axis::cp] * mesh[Axis::sp] * mesh[Axis::tp]; }

int sequence_rank(const Mesh& mesh, int rank) {
  return (mesh.coordinate(rank, Axis::cp) * mesh[Axis::sp] + mesh.coordinate(rank, Axis::sp)) * mesh[Axis::tp] +
         mesh.coordinate(rank, Axis::tp);
}

TokenRange token_share(int64_t tokens, const Mesh& mesh, int rank) {
  return token_share(tokens, sequence_rank(mesh, rank), sequence_size(mesh));
}

bool Traffic::several(const Mesh& mesh) const {
  return std::any_of(axes.begin(), axes.end(), [&](Axis axis) { return mesh[axis] > 1; });
}

namespace {

/// The number of rows of `part` whose tokens are in `range`.
int64_t rows_in(TokenRange range, const std::array<int64_t, 2>& part, int64_t tokens, int64_t samples) {
  if (part[0] == 0 && part[1] == -1) return range.count();
  const int64_t from = part[0] < 0 ? moving_first(part[0]) : part[0];
  const int64_t to = part[1] < -1 ? moving_last(part[1]) : part[1];
  int64_t rows = 0;
  for (int64_t s = 0; s < samples; ++s) {
    const int64_t begin = tokens * s / samples, end = tokens * (s + 1) / samples;
    const int64_t first = std::min(begin + from, end), last = to < 0 ? end : std::min(begin + to, end);
    rows += std::clamp(range.end, first, last) - std::clamp(range.begin, first, last);
  }
  return rows;
}

}  // namespace

int64_t Traffic::bytes(int64_t tokens, const Mesh& mesh, int rank, int64_t samples) const {
  const int64_t cp = mesh[Axis::cp], sp = mesh[Axis::sp], block = mesh.coordinate(rank, Axis::cp);
  const auto in = [&](TokenRange range) { return rows_in(range, part, tokens, samples); };
  const auto of_block = [&](int64_t index) { return in(token_share(tokens, index % cp, cp)); };
  const int64_t place = block * sp + mesh.coordinate(rank, Axis::sp);
  const int64_t own = in(token_share(tokens, place, cp * sp)), all = in({0, tokens});
  const auto count = [&] {
    switch (rows) {
      case Rows::own:
        return own;
      case Rows::others:
        return of_block(block) - own;
      case Rows::keys:
        return all - of_block(block + 1);
      case Rows::gradients:
        return all - of_block(block);
      case Rows::rest:
        return own - in(token_share(tokens, mesh, rank));
      case Rows::context:
        return samples;
      case Rows::adapter:
        return int64_t{1};
      case Rows::block:
        return of_block(block) * (cp - 1);
      case Rows::reach:
      case Rows::reached:
        return rows_within_reach(tokens, mesh, rank, samples);
      case Rows::share:
        break;
    }
    return in(token_share(tokens, mesh, rank));
  };
  return count() * row_bytes;
}

int64_t Traffic::rows_within_reach(int64_t tokens, const Mesh& mesh, int rank, int64_t samples) const {
  // sent among all ranks of cp x sp x tp, not only of cp x sp
  const bool shares = axes.size() == kSequenceAxes.size();
  const int64_t ranks = shares ? sequence_size(mesh) : mesh[Axis::cp] * mesh[Axis::sp];
  const int64_t self = shares ? sequence_rank(mesh, rank) : sequence_rank(mesh, rank) / mesh[Axis::tp];
  const auto rows_of = [&](int64_t index) {  // counted within the part
    const TokenRange range = token_share(tokens, index, ranks);
    return TokenRange{rows_in({0, range.begin}, part, tokens, samples), rows_in({0, range.end}, part, tokens, samples)};
  };
  int64_t sum = 0;
  for (int64_t i = 0; i < ranks; ++i) {
    if (i == self) continue;
    const TokenRange from = rows_of(rows == Rows::reach ? self : i), to = rows_of(rows == Rows::reach ? i : self);
    sum += overlap(from, widened(to, reach)).count();
  }
  return sum;
}

TokenRange widened(TokenRange rows, int64_t reach) {
  return rows.count() > 0 ? TokenRange{rows.begin - reach, rows.end + reach} : rows;
}

TokenRange overlap(TokenRange a, TokenRange b) {
  const TokenRange both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.end > both.begin ? both : TokenRange{both.begin, both.begin};
}

}  // namespace tessera::plan
