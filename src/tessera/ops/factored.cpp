#include "tessera/ops/factored.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tessera/ops/adamw.h"
#include "tessera/ops/kernel.h"

namespace tessera::ops {

namespace {

int64_t all_rows(const FactoredPlace& place) { return place.matrices * place.rows; }

/// Calls each(first, run, row, column): elements [first, first + run) of the range are consecutive in the row, from the
/// column on; rows and columns are counted over all matrices.
template <class Each>
void each_run(const FactoredPlace& place, int64_t at, int64_t count, const Each& each) {
  for (int64_t first = 0; first < count;) {
    int64_t element = place.begin + at + first, run = count - first;
    if (place.width > 0) {
      const int64_t inside = element % place.width;
      run = std::min(run, place.width - inside);
      element = element / place.width * place.inner + place.first + inside;
    }
    const int64_t row = element / place.columns, column = element % place.columns;
    run = std::min(run, place.columns - column);
    each(first, run, row, row / place.rows * place.columns + column);
    first += run;
  }
}

/// Adds values of a slice to the sums of their rows and columns. Those of a column in a group of kRowGroup rows of a matrix have
/// a sum of their own.
class RowSums {
 public:
  RowSums(const FactoredPlace& place, double* sums)
      : place_(place), sums_(sums), group_(static_cast<size_t>(place.columns)) {}
  ~RowSums() { close(); }
  RowSums(const RowSums&) = delete;

  /// Of elements [at, at + count), which come in order.
  void add(int64_t at, int64_t count, const float* values) {
    each_run(place_, at, count, [&](int64_t first, int64_t run, int64_t row, int64_t column) {
      const int64_t matrix = row / place_.rows, group = row % place_.rows / kRowGroup;
      if (matrix != matrix_ || group != number_) close(), matrix_ = matrix, number_ = group;
      double* columns = group_.data() + (column - matrix * place_.columns);
      double sum = 0;
      for (int64_t i = 0; i < run; ++i) {
        const double value = values[first + i];
        sum += value;
        columns[i] += value;
      }
      sums_[row] += sum;
    });
  }

 private:
  void close() {
    double* columns = sums_ + all_rows(place_) + matrix_ * place_.columns;
    for (size_t i = 0; i < group_.size(); ++i) columns[i] += std::exchange(group_[i], 0);
  }

  const FactoredPlace& place_;
  double* const sums_;
  std::vector<double> group_;  // by column
  int64_t matrix_ = 0, number_ = 0;
};

/// values *= row's factor * column's factor
void divide(const FactoredPlace& place, int64_t at, int64_t count, float* values, const float* factors) {
  const float* columns = factors + all_rows(place);
  each_run(place, at, count, [&](int64_t first, int64_t run, int64_t row, int64_t column) {
    const float of_row = factors[row];
    for (int64_t i = 0; i < run; ++i) values[first + i] *= of_row * columns[column + i];
  });
}

/// The divided gradient of elements [at, at + count) of the slice. `second`: v of these elements after the step, where the
/// tensor is not factored; null: not needed.
void divided(const ClippedSlice& s, int64_t at, int64_t count, float* out, float* second) {
  float block[kUpdateBlock];
  const float* gradient = load(s.gradient, block, at, count);
  for (int64_t i = 0; i < count; ++i) out[i] = gradient[i] * s.scale;
  if (s.place.matrices > 0) return divide(s.place, at, count, out, s.factors);
  for (int64_t i = 0; i < count; ++i) {
    const float now = s.second[at + i] * s.keep + (out[i] * out[i] + s.eps) * s.take;
    out[i] /= std::sqrt(now);
    if (second) second[i] = now;
  }
}

/// What the divided gradient is multiplied by to be clipped.
float clip(const ClippedSlice& s) {
  const double rms = std::sqrt(*s.squares / s.numel);
  return static_cast<float>(1 / std::max(1.0, rms / s.clip_threshold));
}

/// The clipped update of a block, and CAME's first moment with it, unrounded.
void moments(const ClippedSlice& s, const CameStep& step, float clip, int64_t at, int64_t count, float* update,
             float* first, float* second) {
  divided(s, at, count, update, second);
  for (int64_t i = 0; i < count; ++i) {
    update[i] *= clip;
    first[i] = first[i] * step.keep + update[i] * step.take;
  }
}

/// values(at, count, to) writes those of elements [at, at + count), at most kUpdateBlock of them.
template <class Values>
void add_squares(int64_t n, double* sum, const Values& values) {
  static thread_local std::vector<float> kept;  // of one partial sum
  double total = 0;
  for (int64_t first = 0; first < n; first += kUpdateGrain) {
    const int64_t count = std::min(kUpdateGrain, n - first);
    kept.resize(static_cast<size_t>(count));
    for (int64_t at = 0; at < count; at += kUpdateBlock)
      values(first + at, std::min(kUpdateBlock, count - at), kept.data() + at);
    total += sum_of_squares(kept.data(), count);
  }
  *sum += total;
}

}  // namespace

void add_row_sums(const ClippedSlice& s, double* sums) {
  RowSums added(s.place, sums);
  for (int64_t at = 0; at < s.place.count; at += kUpdateBlock) {
    const int64_t count = std::min(kUpdateBlock, s.place.count - at);
    float block[kUpdateBlock], values[kUpdateBlock];
    const float* gradient = load(s.gradient, block, at, count);
    for (int64_t i = 0; i < count; ++i) {
      const float scaled = gradient[i] * s.scale;
      values[i] = scaled * scaled + s.eps;
    }
    added.add(at, count, values);
  }
}

void add_residual_sums(const ClippedSlice& s, const CameStep& step, double* sums) {
  RowSums added(s.place, sums);
  const float clip = ops::clip(s);
  for (int64_t at = 0; at < s.place.count; at += kUpdateBlock) {
    const int64_t count = std::min(kUpdateBlock, s.place.count - at);
    float update[kUpdateBlock], first[kUpdateBlock], block[kUpdateBlock];
    std::copy_n(load(step.first, DynamicMap::with_sign(), block, at, count), count, first);
    moments(s, step, clip, at, count, update, first, nullptr);
    for (int64_t i = 0; i < count; ++i) {
      const float off = update[i] - first[i];
      update[i] = off * off + step.eps;
    }
    added.add(at, count, update);
  }
}

void add_divided_squares(const ClippedSlice& s, double* sum) {
  add_squares(s.place.count, sum, [&](int64_t at, int64_t count, float* to) { divided(s, at, count, to, nullptr); });
}

void add_master_squares(const MasterRange& p, int64_t n, double* sum) {
  add_squares(n, sum, [&](int64_t at, int64_t count, float* to) {
    float block[kUpdateBlock];
    std::copy_n(load(p, block, at, count), count, to);
  });
}

void take_means(const FactoredMeans& m) {
  const FactoredPlace& place = m.place;
  const auto update = [beta = m.beta](float* state, float* sum, int64_t count, int64_t of) {
    for (int64_t i = 0; i < count; ++i)
      sum[i] = state[i] = static_cast<float>(state[i] * beta + sum[i] / static_cast<double>(of) * (1 - beta));
  };
  float* columns = m.sums + all_rows(place);
  const int64_t all_columns = place.matrices * place.columns;
  update(m.rows, m.sums, all_rows(place), place.columns);
  update(m.columns, columns, all_columns, place.rows);
  for (int64_t matrix = 0; matrix < place.matrices; ++matrix) {
    float* rows = m.sums + matrix * place.rows;
    double mean = 0;
    for (int64_t i = 0; i < place.rows; ++i) mean += rows[i];
    mean /= static_cast<double>(place.rows);
    for (int64_t i = 0; i < place.rows; ++i) rows[i] = static_cast<float>(1 / std::sqrt(rows[i] / mean));
  }
  for (int64_t i = 0; i < all_columns; ++i)
    columns[i] = static_cast<float>(1 / std::sqrt(static_cast<double>(columns[i])));
}

void adafactor(const ClippedSlice& s, const AdafactorStep& step) {
  const double rate = step.size ? step.lr * std::max(step.least, std::sqrt(*step.size / s.numel)) : step.lr;
  const auto moves = static_cast<float>(rate * clip(s)), decay = static_cast<float>(1 - rate * step.weight_decay);
  const DynamicMap& map = DynamicMap::with_sign();
  each_block(s.place.count, kUpdateBlock, kUpdateGrain, [&](int64_t at, int64_t count) {
    float blocks[2][kUpdateBlock], moved[kUpdateBlock];
    float* p = load(step.p, blocks[0], at, count);
    divided(s, at, count, moved, s.second ? s.second + at : nullptr);
    for (int64_t i = 0; i < count; ++i) moved[i] *= moves;
    if (step.has_first) {
      float* m = load(step.first, map, blocks[1], at, count);
      for (int64_t i = 0; i < count; ++i) moved[i] = m[i] = m[i] * step.keep + moved[i] * step.take;
      store(step.first, map, /*keep_sign=*/false, m, at, count);
    }
    for (int64_t i = 0; i < count; ++i) p[i] = p[i] * decay - moved[i];
    store(step.p, p, at, count);
  });
}

void came(const ClippedSlice& s, const CameStep& step) {
  const float clip = ops::clip(s);
  const DynamicMap& map = DynamicMap::with_sign();
  each_block(s.place.count, kUpdateBlock, kUpdateGrain, [&](int64_t at, int64_t count) {
    float blocks[2][kUpdateBlock], moved[kUpdateBlock];
    float *p = load(step.p, blocks[0], at, count), *first = load(step.first, map, blocks[1], at, count);
    moments(s, step, clip, at, count, moved, first, s.second ? s.second + at : nullptr);
    std::copy_n(first, count, moved);
    if (s.place.matrices > 0) divide(s.place, at, count, moved, step.factors);
    for (int64_t i = 0; i < count; ++i) p[i] = p[i] * step.decay - step.lr * moved[i];
    store(step.p, p, at, count);
    store(step.first, map, /*keep_sign=*/false, first, at, count);
  });
}

}  // namespace tessera::ops
