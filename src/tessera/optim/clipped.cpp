#include "tessera/optim/clipped.h"

#include <algorithm>
#include <cmath>

#include "tessera/ops/update_block.h"

namespace tessera::optim {

/// Calls each(first, run, row, column): elements [first, first + run) of the range are consecutive in the row, from the
/// column on; rows and columns are counted over all matrices.
template <class Each>
void FactoredMoment::each_run(int64_t at, int64_t count, const Each& each) const {
  const net::Cut& cut = slice_.cut;
  for (int64_t first = 0; first < count;) {
    int64_t element = slice_.begin + at + first, run = count - first;
    if (cut.width > 0) {
      const int64_t inside = element % cut.width;
      run = std::min(run, cut.width - inside);
      element = element / cut.width * cut.inner + cut.first + inside;
    }
    const int64_t row = element / factors_.columns, column = element % factors_.columns;
    run = std::min(run, factors_.columns - column);
    each(first, run, row, row / factors_.rows * factors_.columns + column);
    first += run;
  }
}

void FactoredMoment::add(int64_t at, int64_t count, const float* values, double* sums) const {
  double* columns = sums + factors_.all_rows();
  each_run(at, count, [&](int64_t first, int64_t run, int64_t row, int64_t column) {
    double sum = 0;
    for (int64_t i = 0; i < run; ++i) {
      const double value = values[first + i];
      sum += value;
      columns[column + i] += value;
    }
    sums[row] += sum;
  });
}

void FactoredMoment::take(float* sums, double beta) const {
  const auto update = [beta](float* state, float* sum, int64_t count, int64_t of) {
    for (int64_t i = 0; i < count; ++i)
      sum[i] = state[i] = static_cast<float>(state[i] * beta + sum[i] / static_cast<double>(of) * (1 - beta));
  };
  float* columns = sums + factors_.all_rows();
  update(rows_, sums, factors_.all_rows(), factors_.columns);
  update(columns_, columns, factors_.all_columns(), factors_.rows);
  for (int64_t matrix = 0; matrix < factors_.matrices; ++matrix) {
    float* rows = sums + matrix * factors_.rows;
    double mean = 0;
    for (int64_t i = 0; i < factors_.rows; ++i) mean += rows[i];
    mean /= static_cast<double>(factors_.rows);
    for (int64_t i = 0; i < factors_.rows; ++i) rows[i] = static_cast<float>(1 / std::sqrt(rows[i] / mean));
  }
  for (int64_t i = 0; i < factors_.all_columns(); ++i)
    columns[i] = static_cast<float>(1 / std::sqrt(static_cast<double>(columns[i])));
}

void FactoredMoment::divide(int64_t at, int64_t count, float* values, const float* factors) const {
  const float* columns = factors + factors_.all_rows();
  each_run(at, count, [&](int64_t first, int64_t run, int64_t row, int64_t column) {
    const float of_row = factors[row];
    for (int64_t i = 0; i < run; ++i) values[first + i] *= of_row * columns[column + i];
  });
}

void Clipped::divided(const net::Slice& slice, const net::StepControl& control, int64_t at, int64_t count, float* out,
                      float* moment) const {
  const auto scale = static_cast<float>(control.scale);
  for (int64_t i = 0; i < count; ++i) out[i] = slice.grad[at + i] * scale;
  if (const plan::Factors factors = this->factors(slice); factors.any())
    return FactoredMoment(slice, factors, "exp_avg_sq").divide(at, count, out, slice.sums[0]);
  const Second second = this->second(control);
  const auto keep = static_cast<float>(second.beta), take = static_cast<float>(1 - second.beta),
             eps = static_cast<float>(second.eps);
  const float* old = slice.state<float>("exp_avg_sq") + at;
  for (int64_t i = 0; i < count; ++i) {
    const float now = old[i] * keep + (out[i] * out[i] + eps) * take;
    out[i] /= std::sqrt(now);
    if (moment) moment[i] = now;
  }
}

float Clipped::clip(const net::Slice& slice, const net::StepControl& control) const {
  const double rms = std::sqrt(slice.sums[1][0] / static_cast<double>(slice.numel));
  return static_cast<float>(1 / std::max(1.0, rms / second(control).clip_threshold));
}

void Clipped::add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const {
  const plan::Factors factors = this->factors(slice);
  const FactoredMoment moment(slice, factors, "exp_avg_sq");
  const auto scale = static_cast<float>(control.scale), eps = static_cast<float>(second(control).eps);
  float values[ops::kUpdateBlock];
  for (int64_t at = 0; at < slice.count(); at += ops::kUpdateBlock) {
    const int64_t count = std::min(ops::kUpdateBlock, slice.count() - at);
    if (round == 0 && factors.any()) {
      for (int64_t i = 0; i < count; ++i) {
        const float gradient = slice.grad[at + i] * scale;
        values[i] = gradient * gradient + eps;
      }
      moment.add(at, count, values, sums);
    } else if (round == 1) {
      divided(slice, control, at, count, values, nullptr);
      for (int64_t i = 0; i < count; ++i) sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  }
}

void Clipped::take_sums(const net::Slice& slice, const net::StepControl& control, int round) const {
  const plan::Factors factors = this->factors(slice);
  if (round == 0 && factors.any())
    FactoredMoment(slice, factors, "exp_avg_sq").take(slice.sums[0], second(control).beta);
}

}  // namespace tessera::optim
