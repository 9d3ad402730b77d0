#include "tessera/plan/search/best_mix.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace tessera::plan {

namespace {

constexpr int kRows = 257, kColumns = 17;  // of a table: parts of what is kept, parts of what is sent

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

/// The best choices of the blocks so far, by lists. Bytes are doubles, which are exact far beyond any machine's.
struct Layer {
  std::vector<double> seconds, kept, sent;
  std::vector<int> before, option;  ///< index of the choice that it extends, and of the last block's option
  size_t size() const { return seconds.size(); }
  void add(double s, double k, double n, int b, int o) {
    seconds.push_back(s), kept.push_back(k), sent.push_back(n), before.push_back(b), option.push_back(o);
  }
};

/// The best choice by its sums, each in a cell of the table. One more cell takes what is beyond the limits.
class Table {
 public:
  Table(double kept, double sent)
      : kept_(kept),
        sent_(sent),
        rows_a_byte_((kRows - 1) / std::max(1.0, kept)),
        columns_a_byte_((kColumns - 1) / std::max(1.0, sent)) {}

  void clear() {
    seconds_.assign(kRows * kColumns + 1, INFINITY), before_.assign(seconds_.size(), -1);
    option_.resize(seconds_.size()), of_kept_.resize(seconds_.size()), of_sent_.resize(seconds_.size());
    seconds_.back() = -INFINITY;
  }

  /// All choices with this option of the next block.
  void extend(const Layer& choices, const MixOption& with, int option) {
    const size_t count = choices.size();
    cell_.resize(count);
    const auto more_kept = static_cast<double>(with.kept), more_sent = static_cast<double>(with.sent);
    for (size_t b = 0; b < count; ++b) {
      const double k = choices.kept[b] + more_kept, n = choices.sent[b] + more_sent;
      const int row = std::min(static_cast<int>(k * rows_a_byte_), kRows - 1),
                column = std::min(static_cast<int>(n * columns_a_byte_), kColumns - 1);
      cell_[b] = k > kept_ || n > sent_ ? kRows * kColumns : row * kColumns + column;
    }
    for (size_t b = 0; b < count; ++b) {
      const auto c = static_cast<size_t>(cell_[b]);
      const double s = choices.seconds[b] + with.seconds;
      if (s > seconds_[c]) continue;
      const double k = choices.kept[b] + more_kept, n = choices.sent[b] + more_sent;
      const int before = static_cast<int>(b);
      if (before_[c] >= 0 && s == seconds_[c] &&
          std::tie(of_kept_[c], of_sent_[c], before_[c]) <= std::tie(k, n, before))
        continue;
      seconds_[c] = s, of_kept_[c] = k, of_sent_[c] = n, before_[c] = before, option_[c] = option;
    }
  }

  /// All but what computes no less than another that keeps less and sends no more.
  Layer layer() const {
    Layer some;
    std::vector<double> least(kColumns, INFINITY);  // seconds, of rows so far
    for (size_t row = 0, c = 0; row < kRows; ++row) {
      double of_fewer = INFINITY;  // of the columns so far
      for (size_t column = 0; column < kColumns; ++column, ++c) {
        of_fewer = std::min(of_fewer, least[column]);
        if (before_[c] < 0 || seconds_[c] >= of_fewer) continue;
        of_fewer = least[column] = seconds_[c];
        some.add(seconds_[c], of_kept_[c], of_sent_[c], before_[c], option_[c]);
      }
    }
    return some;
  }

 private:
  const double kept_, sent_, rows_a_byte_, columns_a_byte_;
  std::vector<double> seconds_, of_kept_, of_sent_;
  std::vector<int> before_, option_, cell_;
};

}  // namespace

std::vector<int> best_mix(const std::vector<std::vector<MixOption>>& blocks, int64_t kept, int64_t sent) {
  Table table(static_cast<double>(kept), static_cast<double>(sent));
  std::vector<Layer> layers(1);
  layers.front().add(0, 0, 0, 0, 0);
  for (const std::vector<MixOption>& options : blocks) {
    table.clear();
    for (const int o : useful(options, kept, sent)) table.extend(layers.back(), options[static_cast<size_t>(o)], o);
    Layer layer = table.layer();
    if (layer.size() == 0) return {};
    layers.push_back(std::move(layer));
  }
  const std::vector<double>& last = layers.back().seconds;
  auto at = static_cast<size_t>(std::ranges::min_element(last) - last.begin());
  std::vector<int> choice(blocks.size());
  for (size_t b = blocks.size(); b-- > 0;) {
    const Layer& layer = layers[b + 1];
    choice[b] = layer.option[at], at = static_cast<size_t>(layer.before[at]);
  }
  return choice;
}

}  // namespace tessera::plan
