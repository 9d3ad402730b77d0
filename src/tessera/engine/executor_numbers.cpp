// The executor's numbers of a step: loss, squared gradients and what the ranks report. They stay where they are computed until
// `norm`, the only place where the host waits for a device.
#include <algorithm>
#include <cmath>
#include <latch>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/engine/executor.h"
#include "tessera/engine/executor_run.h"
#include "tessera/ops/ranges.h"

namespace tessera::engine {

/// Squared gradients by unit and buffer, and those of quantised activations, in memory of the device beside what the plan
/// counts; what no rank counts is 0.
class StepNumbers {
 public:
  explicit StepNumbers(const Store& store) : device_(store.device()), table_(ops::backend(ops::on_device(device_))) {
    for (int u = 0; u < store.units(); ++u) {
      first_.push_back(count_);
      count_ += static_cast<int64_t>(store.layout(u).buffers.size());
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
  ~StepNumbers() { table_.give(data_); }
  StepNumbers(const StepNumbers&) = delete;

  /// For the squares of a unit's gradient, where that lies: an offloaded one is the host's.
  Tensor of(int unit, const Tensor& gradient) {
    const int64_t begin = first_[unit], end = first_[unit + 1];
    if (!gradient.defined() || gradient.device() == device_) return at(begin, end);
    return at::from_blob(of_offloaded_.data() + begin, {end - begin}, at::kDouble);
  }
  Tensor compression() const { return at(count_, count_ + 2 * kCompressed).view({kCompressed, 2}); }

  struct Numbers {
    double squares = 0;
    std::vector<double> compression, more;
  };
  /// The sum of the squares, the squares of so many compressed storages, and `more`, in one wait.
  Numbers read(int64_t compressed, const Tensor& more) {
    const int64_t extra = more.defined() ? more.numel() : 0, each = sizeof(double), own = count_ + 2 * compressed;
    host_.reserve((own + extra) * each);
    auto* found = reinterpret_cast<double*>(host_.at(0));
    ops::enqueue_copy(at::from_blob(found, {own}, at::kDouble), at(0, own));
    if (extra) ops::enqueue_copy(at::from_blob(found + own, {extra}, at::kDouble), more);
    copied_.record();
    copied_.await();
    device::host_uses(found, (own + extra) * each, /*writes=*/false);
    Numbers numbers{0, {found + count_, found + own}, {found + own, found + own + extra}};
    for (size_t u = 0; u + 1 < first_.size(); ++u) {
      double here = 0, offloaded = 0;
      for (int64_t i = first_[u]; i < first_[u + 1]; ++i)
        here += found[i], offloaded += of_offloaded_[static_cast<size_t>(i)];
      numbers.squares += offloaded + here;
    }
    return numbers;
  }

 private:
  static constexpr int64_t kCompressed = 4096;  ///< storages in a step whose errors wait for its norm
  static constexpr int64_t kMore = 64 << 10;    ///< bytes of what an objective reads
  int64_t bytes() const { return (count_ + 2 * kCompressed) * static_cast<int64_t>(sizeof(double)); }
  Tensor at(int64_t begin, int64_t end) const {
    return at::from_blob(static_cast<double*>(data_) + begin, {end - begin},
                         at::TensorOptions(at::kDouble).device(device_));
  }

  const at::Device device_;
  const device::Backend& table_;
  std::vector<int64_t> first_;
  int64_t count_ = 0;
  void* data_ = nullptr;
  std::vector<double> of_offloaded_;
  HostMemory host_{HostMemory::Refused::drivers_own};
  device::Mark copied_;
};

/// After a failure a lane may still be at an instruction, which uses members that are destroyed before the lanes.
Executor::~Executor() {
  std::vector<LaneThread*> lanes = {&gather_lane_, &reduce_lane_, &disk_lane_, &fetch_lane_, &stash_lane_};
  for (const auto& [name, lane] : message_lanes_) lanes.push_back(lane.get());
  if (host_lane_) lanes.push_back(host_lane_.get());
  std::latch idle(static_cast<std::ptrdiff_t>(lanes.size()));
  for (LaneThread* lane : lanes) lane->push([&] { idle.count_down(); });
  idle.wait();
  // After an error another rank may not send what the device waits for, and the process ends with its windows.
  if (std::uncaught_exceptions() == 0) try {
      close_windows();
    } catch (const std::exception&) {  // what was under way failed: who waits for it says so
    }
  try {
    end_.await();
    settle_times(/*wait=*/true);  // traces are whole
  } catch (const c10::Error&) {   // the device has failed, and nothing of it is read any more
  }
  store_.rest(nullptr);
}

void Executor::make_numbers() {
  if (!numbers_) numbers_ = std::make_unique<StepNumbers>(store_);
  compression_error_.squares = numbers_->compression();
}

std::vector<Tensor> Executor::loss(Run& run, Micro& micro, int index) {
  const at::NoGradGuard no_grad;
  const Tensor& prediction = micro.stream[0];
  for (Tensor* compared : run.objective->compared(index)) *compared = uploads_.bring(*compared, prediction.device());
  return {run.objective->gradient(prediction, micro.batch, index)};
}

/// The unit's share of the norm: at `norm`, or of a gradient that is gone before it.
void Executor::note_share(Run& run, int unit, const Tensor& gradient) {
  store_.squares(unit, gradient, numbers_->of(unit, gradient));
  run.counted[static_cast<size_t>(unit)] = true;
}

/// This rank's sum of squares; hands the objective its numbers.
double Executor::read_numbers(Run& run) {
  for (int u = 0; u < store_.units(); ++u)
    if (!run.counted[static_cast<size_t>(u)]) note_share(run, u, store_.grad(u));
  const StepNumbers::Numbers read = numbers_->read(compression_error_.unread, run.objective->numbers());
  compression_error_.settle(read.compression);
  run.objective->read(read.more);
  return read.squares;
}

void Executor::norm(Run& run, std::vector<plan::Comm>& done) {
  // One of the ranks with the same gradient counts it. The sum is in rank order, so that every rank has the same bits.
  std::vector<double> mine = {read_numbers(run)};
  if (run.report)
    for (double value : run.report()) mine.push_back(value);
  mine.resize(plan::kControlDoubles, 0.0);
  const std::vector<std::vector<double>> all = world_.all_gather_doubles(mine);
  if (world_.size() > 1) done.push_back({world_.axis(), "all_gather", plan::kControlBytes});
  double total = 0;
  for (const auto& row : all) {
    total += row[0];
    run.ranks.emplace_back(row.begin() + 1, row.end());
  }
  run.norm = std::sqrt(total);
}

}  // namespace tessera::engine
