#include "tessera/tools/probe/clock.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "tessera/device/streams.h"
#include "tessera/ops/ranges.h"
#include "tessera/torch_headers.h"

namespace tessera::tools {

namespace {

using Steady = std::chrono::steady_clock;

double since(Steady::time_point start) { return std::chrono::duration<double>(Steady::now() - start).count(); }

/// Of the second half.
double settled_median(std::vector<double> seconds) {
  seconds.erase(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2));
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

/// A thread whose exception join() throws.
class Helper {
 public:
  explicit Helper(const Call& work)
      : thread_([this, work] {
          try {
            work();
          } catch (...) {
            failure_ = std::current_exception();
          }
          done_ = true;
        }) {}
  ~Helper() {
    if (thread_.joinable()) thread_.join();
  }
  bool done() const { return done_; }
  void join() {
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

class HostClock final : public Clock {
 public:
  using Clock::Clock;
  double dispatch(const Call& call) override { return seconds(call); }

 protected:
  std::vector<double> each(const Call& call, int count) override {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      const auto start = Steady::now();
      call();
      seconds.push_back(since(start));
    }
    return seconds;
  }

  Overlap overlap(const Call& call, int calls, const Call& compute, int) override {
    const auto start = Steady::now();
    Helper other([&] {
      for (int i = 0; i < calls; ++i) call();
    });
    int computed = 0;
    for (; !other.done(); ++computed) compute();
    const double took = since(start);
    other.join();
    return {took, static_cast<double>(computed)};
  }
};

class DeviceClock final : public Clock {
 public:
  DeviceClock(const device::Backend& device, Ranks ranks, double seconds, int64_t ahead)
      : Clock(std::move(ranks), seconds),
        device_(device),
        from_(at::zeros({ahead}, at::TensorOptions(at::kByte).device(device::here()))),
        to_(at::empty_like(from_)) {
    marked([&] { copy(); }, 1);  // the first loads what it needs
    of_copy_ = std::max(settled_median(marked([&] { copy(); }, kAhead)), 1e-6);
  }

  double dispatch(const Call& call) override {
    call();
    hold(kAhead * given(call, /*calls=*/4));
    return mean(given(call, kAhead));
  }

 protected:
  std::vector<double> each(const Call& call, int count) override {
    device_.wait();
    const double host = mean(given(call, /*calls=*/2));
    const int held = std::max(6, static_cast<int>(kMostHeld / (kMargin * host))),
              first = std::min({count, kAhead, held});
    hold(first * host);
    std::vector<double> seconds = marked(call, first);
    if (count <= first) return seconds;
    return mean(settled_median(seconds)) > host ? marked(call, count) : seconds;  // the host is faster, and stays ahead
  }

  void settle() override { device_.wait(); }

  Overlap overlap(const Call& call, int calls, const Call& compute, int computations) override {
    device::Mark start(/*timed=*/true), began(/*timed=*/true), ended(/*timed=*/true);
    std::vector<device::Mark> done = marks(computations);
    start.record();
    Helper other([&] {
      device::enter_thread();
      device::own_stream(device::Priority::high);
      start.order();
      began.record();
      for (int i = 0; i < calls; ++i) call();
      ended.record();
    });
    for (device::Mark& mark : done) {
      compute();
      mark.record();
    }
    other.join();
    ended.await(), done.back().await();
    const double from = began.seconds_since(start), until = ended.seconds_since(start);
    double before = 0, computed = 0;  // of each computation the part that lies within
    for (const device::Mark& mark : done) {
      const double after = mark.seconds_since(start), inside = std::min(after, until) - std::max(before, from);
      if (inside > 0) computed += inside / (after - before);
      before = after;
    }
    return {until - from, computed};
  }

 private:
  static std::vector<device::Mark> marks(int count) {
    std::vector<device::Mark> all;
    for (int i = 0; i < count; ++i) all.emplace_back(/*timed=*/true);
    return all;
  }

  /// Seconds of the device from the end of each call to that of the next.
  static std::vector<double> marked(const Call& call, int count) {
    std::vector<device::Mark> at = marks(count + 1);
    at.front().record();
    for (int i = 1; i <= count; ++i) {
      call();
      at[static_cast<size_t>(i)].record();
    }
    at.back().await();
    std::vector<double> seconds;
    for (size_t i = 1; i < at.size(); ++i) seconds.push_back(at[i].seconds_since(at[i - 1]));
    return seconds;
  }

  /// Seconds that the host takes for a call.
  static double given(const Call& call, int calls) {
    const auto start = Steady::now();
    for (int i = 0; i < calls; ++i) call();
    return since(start) / calls;
  }

  void copy() const {
    device_.enqueue_copy(ops::address(to_), ops::read_address(from_), static_cast<int64_t>(from_.nbytes()));
  }

  /// [Note: work ahead]
  void hold(double seconds) const {
    for (double held = 0; held < std::min(kMargin * seconds, kMostHeld); held += of_copy_) copy();
  }

  static constexpr double kMargin = 2;       // the host takes longer now and then
  static constexpr double kMostHeld = 0.05;  // a call that takes the host so long waits for the device itself
  static constexpr int kAhead = 64;          // calls: of what is given to a stream a driver holds about a thousand
  const device::Backend& device_;
  const at::Tensor from_, to_;
  double of_copy_ = 0;
};

}  // namespace

double Clock::seconds(const Call& call, double share) {
  call();
  meet();
  const double once = mean(each(call, 1).front());
  const int count = std::clamp(static_cast<int>(share * seconds_ / std::max(once, 1e-6)), 6, 4000);
  meet();
  return mean(settled_median(each(call, count)));
}

void Clock::warm_up(const Call& call, double seconds) {
  for (const auto start = Steady::now(); since(start) < seconds;) {
    call();
    settle();
  }
}

Beside Clock::beside(const Call& call, const Call& compute) {
  const double computing = seconds(compute), alone = seconds(call);
  const int calls = std::clamp(static_cast<int>(seconds_ / alone), 8, 400),  // each may wait for a processor
      computations = std::clamp(static_cast<int>(2 * calls * alone / computing) + 1, 8, 4000);
  meet();
  const Overlap overlap = this->overlap(call, calls, compute, computations);
  const double took = mean(overlap.took);
  return {calls * alone / took, std::clamp(1 - mean(overlap.computed) * computing / took, 0.0, 0.95)};
}

std::unique_ptr<Clock> clock_of(const device::Backend* device, Ranks ranks, double seconds, int64_t ahead) {
  if (!device) return std::make_unique<HostClock>(std::move(ranks), seconds);
  return std::make_unique<DeviceClock>(*device, std::move(ranks), seconds, ahead);
}

}  // namespace tessera::tools
