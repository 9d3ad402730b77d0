// What `tessera probe` times calls of a device by: its events, not the host's clock, which only sees work given to it.
#include "tessera/tools/probe/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "simulated.h"
#include "tessera/device/streams.h"
#include "tessera/engine/store/meter.h"
#include "tessera/ops/ranges.h"
#include "tessera/tools/probe/sizes.h"
#include "timeline.h"

namespace tessera::testing {
namespace {

class OnDevice final : public ::testing::Environment {
  void SetUp() override {
    engine::Meter::install();
    device::use(simulated_device(), 0);
    engine::Meter::use_device(simulated_device());
    engine::Meter::reserve(int64_t{64} << 20);
  }
};
[[maybe_unused]] const auto* const on_device = ::testing::AddGlobalTestEnvironment(new OnDevice);

const tools::Ranks kAlone = {.mean = [](double mine) { return mine; }, .meet = [] {}};

std::unique_ptr<tools::Clock> device_clock(double seconds, int64_t ahead = 1 << 12) {
  return tools::clock_of(device::used(), kAlone, seconds, ahead);
}

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// On a stream whose work is done late; the device's first one works at once.
void on_a_late_stream(const std::function<void()>& act) {
  timeline().work_late(true);
  std::thread thread([&] {
    device::enter_thread();
    device::own_stream();
    act();
    device::label("");
    device::used()->wait();
  });
  thread.join();
  timeline().work_late(false);
}

/// A copy within the device that takes so long there, and the host no time.
class LateCopy {
 public:
  LateCopy(const std::string& name, double seconds) : name_(name) { timeline().slow_down(name, seconds); }
  ~LateCopy() { timeline().slow_down("", 0); }
  void operator()() const {
    device::label(name_);
    device::used()->enqueue_copy(ops::address(to_), ops::read_address(from_), static_cast<int64_t>(from_.nbytes()));
    device::label("");
  }

 private:
  const std::string name_;
  const at::Tensor from_ = tools::normal({64}), to_ = tools::normal({64});
};

TEST(DeviceClock, ACallThatTheHostOnlyGivesIsTimedAsTheDeviceDoesIt) {
  constexpr double kLate = 0.1;
  on_a_late_stream([&] {
    const LateCopy copy("late", kLate);
    const auto start = std::chrono::steady_clock::now();
    copy();
    EXPECT_LT(since(start), kLate / 2) << "the host only gives it";
    const double seconds = device_clock(/*seconds=*/0.01)->seconds([&] { copy(); });
    EXPECT_GE(seconds, kLate);
    EXPECT_LT(seconds, 4 * kLate) << "of one call, not of all";
  });
}

TEST(DeviceClock, WhatTheHostTakesToGiveACallIsNotWhatTheDeviceTakes) {
  constexpr double kLate = 0.005;
  on_a_late_stream([&] {
    const LateCopy copy("late", kLate);
    EXPECT_LT(device_clock(0.01)->dispatch([&] { copy(); }), kLate / 2);
  });
}

/// A device that waits for its host between two calls is not slow: it is given copies of 8 MiB first.
TEST(DeviceClock, ACallThatTheHostIsSlowToGiveIsTimedWithoutTheWait) {
  on_a_late_stream([&] {
    const at::Tensor from = tools::normal({64}), to = tools::normal({64});
    const auto slow_host = [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      device::used()->enqueue_copy(ops::address(to), ops::read_address(from), 256);
    };
    double least = 1;
    for (int again = 0; again < 5; ++again)  // others compute too
      least = std::min(least, device_clock(0.001, /*ahead=*/8 << 20)->seconds(slow_host));
    EXPECT_LT(least, 1e-3);
  });
}

/// Two copies on two streams: neither loses anything, since the device does both at once.
TEST(DeviceClock, ACallBesideComputeIsTimedByTheEventsOfBothStreams) {
  on_a_late_stream([&] {
    const LateCopy copy("late", 0.02);
    const tools::Beside beside = device_clock(0.01)->beside([&] { copy(); }, [&] { copy(); });
    EXPECT_GT(beside.rate, 0.65) << "one after the other it would be half";
    EXPECT_LT(beside.lost, 0.35);
  });
}

TEST(DeviceClock, AnErrorOfACallBesideComputeIsThrown) {
  const auto fails = [here = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != here) throw std::runtime_error("the link is down");
  };
  EXPECT_THROW(device_clock(0.001)->beside(fails, [] {}), std::runtime_error);
}

TEST(HostClock, TimesTheCallsThemselves) {
  const auto clock = tools::clock_of(nullptr, kAlone, 0.01, 0);
  const auto sleeps = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  EXPECT_GE(clock->seconds(sleeps), 0.02);
  EXPECT_LT(clock->beside(sleeps, sleeps).lost, 0.35) << "neither needs the processor";
}

/// Not zeros, of which products are faster.
TEST(Sizes, ValuesAreNormalAlsoBeyondThoseThatAreDrawn) {
  const at::Tensor x = tools::normal({3, 1 << 20}, at::kBFloat16).cpu().to(at::kFloat);
  for (int64_t part = 0; part < 3; ++part) {
    EXPECT_NEAR(x.select(0, part).mean().item<double>(), 0, 0.01);
    EXPECT_NEAR(x.select(0, part).std().item<double>(), 1, 0.01);
  }
}

}  // namespace
}  // namespace tessera::testing
