#include "tessera/optim/clipped.h"

#include "tessera/ops/ranges.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

ops::FactoredPlace Clipped::place(const net::Slice& slice) const {
  const plan::Factors factors = this->factors(slice);
  const net::Cut& cut = slice.cut;
  return {slice.begin, slice.count(), cut.inner, cut.width, cut.first, factors.matrices, factors.rows, factors.columns};
}

ops::ClippedSlice Clipped::clipped(const net::Slice& slice, const net::StepControl& control) const {
  const Second second = this->second(control);
  const auto rounded = [](double x) { return static_cast<float>(x); };
  ops::ClippedSlice clipped = {.place = place(slice),
                               .gradient = gradient_of(slice),
                               .scale = rounded(control.scale),
                               .eps = rounded(second.eps),
                               .keep = rounded(second.beta),
                               .take = rounded(1 - second.beta),
                               .numel = static_cast<double>(slice.numel),
                               .clip_threshold = second.clip_threshold};
  if (clipped.place.matrices == 0) clipped.second = slice.state<float>("exp_avg_sq");
  if (clipped.place.matrices > 0 && !slice.sums.empty()) clipped.factors = slice.sums[0];
  if (slice.sums.size() > 1) clipped.squares = slice.sums[1];
  return clipped;
}

void Clipped::take_means(const net::Slice& slice, const std::string& kind, float* sums, double beta) const {
  const ops::FactoredMeans means = {place(slice), slice.state<float>(kind + "_row"), slice.state<float>(kind + "_col"),
                                    sums, beta};
  if (means.place.matrices > 0) ops::backend(slice.on_device).take_means(means);
}

void Clipped::add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const {
  const device::Backend& table = ops::backend(slice.on_device);
  const ops::ClippedSlice clipped = this->clipped(slice, control);
  if (round == 0 && clipped.place.matrices > 0) table.add_row_sums(clipped, sums);
  if (round == 1) table.add_divided_squares(clipped, sums);
}

void Clipped::take_sums(const net::Slice& slice, const net::StepControl& control, int round) const {
  if (round == 0) take_means(slice, "exp_avg_sq", slice.sums[0], second(control).beta);
}

}  // namespace tessera::optim
