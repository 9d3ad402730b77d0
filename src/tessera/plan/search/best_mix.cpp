#include "tessera/plan/search/best_mix.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace tessera::plan {

namespace {

constexpr size_t kRows = 257, kColumns = 17;  // of a table: parts of what is kept, parts of what is sent

/// The options within the limits but those that compute no less than another one that keeps and sends no more.
std::vector<int> useful(const std::vector<MixOption>& options, int64_t kept, int64_t sent) {
  std::vector<int> indices;
  for (size_t i = 0; i < options.size(); ++i) {
    const MixOption& own = options[i];
    const auto replaces = [&](size_t j) {
      const MixOption& other = options[j];
      if (j == i || other.seconds > own.seconds || other.kept > own.kept || other.sent > own.sent) return false;
      return other != own || j < i;
    };
    bool needless = own.kept > kept || own.sent > sent;
    for (size_t j = 0; j < options.size() && !needless; ++j) needless = replaces(j);
    if (!needless) indices.push_back(static_cast<int>(i));
  }
  return indices;
}

bool ahead(const MixOption& a, const MixOption& b) {
  return a.seconds != b.seconds ? a.seconds < b.seconds : std::tie(a.kept, a.sent) < std::tie(b.kept, b.sent);
}

/// The best choice of the blocks so far whose sums lie in one cell of the table.
struct State {
  MixOption sum;
  int before = 0;  ///< index of the state that it extends
  int option = 0;
};

}  // namespace

std::vector<int> best_mix(const std::vector<std::vector<MixOption>>& blocks, int64_t kept, int64_t sent) {
  const double rows_a_byte = (kRows - 1) / static_cast<double>(std::max<int64_t>(1, kept)),
               columns_a_byte = (kColumns - 1) / static_cast<double>(std::max<int64_t>(1, sent));
  const auto cell_of = [&](const MixOption& sum) {
    const auto row = static_cast<size_t>(static_cast<double>(sum.kept) * rows_a_byte),
               column = static_cast<size_t>(static_cast<double>(sum.sent) * columns_a_byte);
    return std::min(row, kRows - 1) * kColumns + std::min(column, kColumns - 1);
  };
  std::vector<std::vector<State>> tables = {{State{}}};
  for (const std::vector<MixOption>& options : blocks) {
    const std::vector<State>& before = tables.back();
    const std::vector<int> some = useful(options, kept, sent);
    std::vector<State> cells(kRows * kColumns, State{{INFINITY, 0, 0}, -1, 0});
    for (size_t b = 0; b < before.size(); ++b)
      for (const int o : some) {
        const MixOption& option = options[static_cast<size_t>(o)];
        const MixOption sum{before[b].sum.seconds + option.seconds, before[b].sum.kept + option.kept,
                            before[b].sum.sent + option.sent};
        if (sum.kept > kept || sum.sent > sent) continue;
        State& cell = cells[cell_of(sum)];
        if (cell.before < 0 || ahead(sum, cell.sum)) cell = {sum, static_cast<int>(b), o};
      }
    // Drops what computes no less than another that keeps less and sends no more.
    std::vector<State> states;
    std::vector<double> least(kColumns, INFINITY);
    for (size_t c = 0; c < cells.size(); ++c) {
      const State& state = cells[c];
      if (state.before < 0) continue;
      const auto column = static_cast<std::ptrdiff_t>(c % kColumns);
      if (state.sum.seconds >= *std::min_element(least.begin(), least.begin() + column + 1)) continue;
      least[static_cast<size_t>(column)] = state.sum.seconds;
      states.push_back(state);
    }
    if (states.empty()) return {};
    tables.push_back(std::move(states));
  }
  const std::vector<State>& last = tables.back();
  int at = 0;
  for (size_t i = 1; i < last.size(); ++i)
    if (last[i].sum.seconds < last[static_cast<size_t>(at)].sum.seconds) at = static_cast<int>(i);
  std::vector<int> choice(blocks.size());
  for (size_t b = blocks.size(); b-- > 0;) {
    const State& state = tables[b + 1][static_cast<size_t>(at)];
    choice[b] = state.option, at = state.before;
  }
  return choice;
}

}  // namespace tessera::plan
