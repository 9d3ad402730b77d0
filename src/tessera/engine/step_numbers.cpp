#include "tessera/engine/step_numbers.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/ops/ranges.h"

namespace tessera::engine {

namespace {

constexpr int64_t kCompressed = 4096;  // storages in a step whose errors wait for its norm
constexpr int64_t kMore = 64 << 10;    // bytes of what an objective reads

}  // namespace

StepNumbers::StepNumbers(Store& store) : store_(store), table_(ops::backend(ops::on_device(store.device()))) {}

StepNumbers::~StepNumbers() {
  if (data_) table_.give(data_);
}

int64_t StepNumbers::bytes() const {
  return (count_ + 2 * kCompressed + store_.units() * ops::kFp8Counts) * static_cast<int64_t>(sizeof(double));
}

Tensor StepNumbers::at(int64_t begin, int64_t end) const {
  return at::from_blob(static_cast<double*>(data_) + begin, {end - begin},
                       at::TensorOptions(at::kDouble).device(store_.device()));
}

void StepNumbers::reserve() {
  for (int u = 0; u < store_.units(); ++u) {
    first_.push_back(count_);
    count_ += static_cast<int64_t>(store_.layout(u).buffers.size());
  }
  first_.push_back(count_);
  of_offloaded_.assign(static_cast<size_t>(count_), 0);
  data_ = table_.take(bytes());
  if (!data_)
    throw UserError(Exit::memory, "engine.norm", "the device has no " + format_bytes(bytes()) + " left for norms",
                    "leave more of the device free: lower plan.budget");
  at(0, count_).zero_();
  host_.reserve(bytes() + kMore);
}

void StepNumbers::begin(bool counts_fp8, bool trains) {
  if (!data_) reserve();
  counts_fp8_ = counts_fp8;
  if (counts_fp8) at(count_ + 2 * kCompressed, count_ + 2 * kCompressed + store_.units() * ops::kFp8Counts).zero_();
  added_.assign(first_.size(), !trains);
  if (!trains) at(0, count_).zero_(), std::ranges::fill(of_offloaded_, 0);
  compression_error_.squares = at(count_, count_ + 2 * kCompressed).view({kCompressed, 2});
}

void StepNumbers::add(int unit, const Tensor& gradient) {
  const int64_t begin = first_[unit], end = first_[unit + 1];
  const bool offloaded = gradient.defined() && gradient.device() != store_.device();
  store_.squares(unit, gradient,
                 offloaded ? at::from_blob(of_offloaded_.data() + begin, {end - begin}, at::kDouble) : at(begin, end));
  added_[static_cast<size_t>(unit)] = true;
}

double* StepNumbers::fp8_counts(int unit) const {
  return counts_fp8_ ? static_cast<double*>(data_) + count_ + 2 * kCompressed + unit * ops::kFp8Counts : nullptr;
}

StepNumbers::Given StepNumbers::give(net::Objective& objective) {
  for (int u = 0; u < store_.units(); ++u)
    if (!added_[static_cast<size_t>(u)]) add(u, store_.grad(u));
  const Tensor more = objective.numbers();
  const int64_t extra = more.defined() ? more.numel() : 0, each = sizeof(double),
                own = count_ + 2 * compression_error_.unread, lost = counts_fp8_ ? store_.units() * ops::kFp8Counts : 0;
  host_.reserve((own + extra + lost) * each);
  auto* found = reinterpret_cast<double*>(host_.at(0));
  ops::enqueue_copy(at::from_blob(found, {own}, at::kDouble), at(0, own));
  if (extra) ops::enqueue_copy(at::from_blob(found + own, {extra}, at::kDouble), more);
  if (lost)
    ops::enqueue_copy(at::from_blob(found + own + extra, {lost}, at::kDouble),
                      at(count_ + 2 * kCompressed, count_ + 2 * kCompressed + lost));
  return {own, extra, lost};
}

double StepNumbers::read(net::Objective& objective, Given given) {
  copied_.record();
  copied_.await();
  counts_fp8_ = false;
  const auto [own, extra, lost] = given;
  auto* found = reinterpret_cast<double*>(host_.at(0));
  device::host_uses(found, (own + extra + lost) * static_cast<int64_t>(sizeof(double)), /*writes=*/false);
  fp8_.assign(found + own + extra, found + own + extra + lost);
  compression_error_.settle({found + count_, found + own});
  objective.read({found + own, found + own + extra});
  double squares = 0;
  for (size_t u = 0; u + 1 < first_.size(); ++u) {
    double here = 0, offloaded = 0;
    for (int64_t i = first_[u]; i < first_[u + 1]; ++i)
      here += found[i], offloaded += of_offloaded_[static_cast<size_t>(i)];
    squares += offloaded + here;
  }
  return squares;
}

}  // namespace tessera::engine
