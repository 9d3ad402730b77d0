#include "tessera/optim/schedule_free.h"

#include <algorithm>
#include <cmath>

#include "tessera/ops/adamw.h"
#include "tessera/ops/ranges.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

namespace {

/// Of RAdam's variance in step t: the length of its average; above kLeast it can be corrected.
constexpr double kLeast = 4;
double length(double beta, int64_t step) {
  const double decayed = std::pow(beta, static_cast<double>(step));
  return 2 / (1 - beta) - 1 - 2 * static_cast<double>(step) * decayed / (1 - decayed);
}

}  // namespace

ScheduleFree::ScheduleFree(ScheduleFreeOptions options, std::function<double(int64_t)> rate)
    : options_(options), rate_(std::move(rate)), states_(plan::states_of(options.format)) {}

bool ScheduleFree::divides(int64_t step) const {
  return !options_.rectified || length(options_.betas[1], step) > kLeast;
}

double ScheduleFree::rectification(int64_t step) const {
  if (!options_.rectified) return 1;
  if (!divides(step)) return options_.silent ? 0 : 1;
  const double most = 2 / (1 - options_.betas[1]) - 1, rho = length(options_.betas[1], step);
  return std::sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
}

double ScheduleFree::averaging(int64_t step) const {
  const std::lock_guard guard(lock_);
  if (step < sum_.step) sum_ = {};
  while (sum_.step < step) {
    ++sum_.step;
    sum_.largest = std::max(sum_.largest, rate_(sum_.step) * rectification(sum_.step));
    sum_.last = std::pow(static_cast<double>(sum_.step), options_.r) * std::pow(sum_.largest, options_.power);
    if (sum_.largest == 0) sum_.last = 0;
    sum_.all += sum_.last;
  }
  return sum_.all > 0 ? sum_.last / sum_.all : 0;
}

void ScheduleFree::update(const net::Slice& slice, const net::StepControl& control) const {
  const double beta = options_.betas[1], average = averaging(control.step);
  const auto rounded = [](double number) { return static_cast<float>(number); };
  const ops::ScheduleFreeFactors f = {
      .scale = rounded(control.scale),
      .keep = rounded(beta),
      .take = rounded(1 - beta),
      .correction = rounded(1 / (1 - std::pow(beta, static_cast<double>(control.step)))),
      .eps = rounded(options_.eps),
      .decay = rounded(options_.weight_decay),
      .rate = rounded(control.lr * rectification(control.step)),
      .average = rounded(average),
      .inwards = rounded(1 - options_.betas[0]),
      .divides = divides(control.step),
      .begins = average == 0 || average == 1};
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MasterRange masters = ranges.masters();
  auto *z = slice.state<float>("exp_avg"), *v = slice.state<float>("exp_avg_sq"),
       *x = slice.state<float>(plan::kAverage);
  ops::backend(slice.on_device).schedule_free(masters, z, v, x, ranges.gradient(), slice.count(), f);
}

}  // namespace tessera::optim
