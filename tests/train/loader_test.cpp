#include "tessera/train/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "tessera/device/backend.h"
#include "tessera/engine/store/meter.h"

namespace tessera::train {
namespace {

using diffusion::TrainingSample;

TrainingSample sample_of(double value) {
  TrainingSample s;
  s.input.x = at::full({4}, value);
  s.input.context = at::full({2, 3}, value);
  s.input.extra["y"] = at::full({5}, value);
  s.velocity = at::full({4}, -value);
  s.index = static_cast<int64_t>(value);
  return s;
}

/// Places 0..count-1 of a step; each sample's number is 10 step + place.
std::vector<Wanted> wanted(int64_t step, int64_t count, std::atomic<int>* made = nullptr) {
  std::vector<Wanted> all;
  for (int64_t place = 0; place < count; ++place)
    all.push_back({{0, 0, step, place}, [=] {
                     if (made) ++*made;
                     return sample_of(static_cast<double>(10 * step + place));
                   }});
  return all;
}

TEST(Loader, GivesEachPlaceItsSampleWhoeverMadeItAndWhen) {
  for (int threads : {1, 3}) {
    Loader loader(threads);
    for (int64_t step = 1; step <= 4; ++step) {
      const auto samples = loader.take(wanted(step, 3));
      if (step % 2 == 0) loader.ahead(wanted(step + 1, 3));
      ASSERT_EQ(samples.size(), 3u);
      for (const auto& [place, sample] : samples) {
        const auto value = static_cast<float>(10 * step + place);
        EXPECT_EQ(sample->index, 10 * step + place);
        EXPECT_TRUE(at::equal(sample->input.x, at::full({4}, value)));
        EXPECT_TRUE(at::equal(sample->input.extra.at("y"), at::full({5}, value)));
        EXPECT_TRUE(at::equal(sample->velocity, at::full({4}, -value)));
      }
    }
  }
}

TEST(Loader, WhatWasMadeAheadIsNotMadeAgainAndWhatNobodyWantsIsDropped) {
  std::atomic<int> made{0};
  Loader loader(1);
  loader.ahead(wanted(1, 2, &made));
  EXPECT_EQ(loader.take(wanted(1, 2, &made)).size(), 2u);
  EXPECT_EQ(made, 2);
  // other ranks' samples after a rebalance: of places 0 to 3 two are there already
  loader.ahead(wanted(2, 2, &made));
  EXPECT_EQ(loader.take(wanted(2, 4, &made)).size(), 4u);
  EXPECT_EQ(made, 6);
}

TEST(Loader, AnErrorComesOutWhereTheSampleIsTakenNotBefore) {
  Loader loader(1);
  std::vector<Wanted> next = wanted(2, 2);
  next[1].make = []() -> TrainingSample { throw std::runtime_error("clip7.mp4: no such file"); };
  loader.ahead(next);
  EXPECT_EQ(loader.take(wanted(1, 2)).size(), 2u);
  try {
    loader.take(next);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "clip7.mp4: no such file");
  }
  EXPECT_EQ(loader.take(wanted(3, 1)).size(), 1u) << "the loader goes on";
}

/// CUDA gives an error that stays to every call, also to the one by which a thread chooses its device.
TEST(Loader, ADeviceThatTakesNoThreadAnyMoreIsAnErrorOfTheSample) {
  static const std::thread::id main = std::this_thread::get_id();
  static const device::Backend failed = {
      .place = [](int) { TORCH_CHECK(std::this_thread::get_id() == main, "an illegal memory access"); }};
  const auto take = [] {
    device::use(failed, 0);
    Loader loader(1);
    try {
      loader.take(wanted(1, 1));
    } catch (const c10::Error& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(7);
    }
  };
  EXPECT_EXIT(take(), ::testing::ExitedWithCode(7), "an illegal memory access");
}

TEST(Loader, WhatItHoldsIsHostMemoryAndNoneOfTheDevice) {
  engine::Meter::install();
  const int64_t device = engine::Meter::live(), host = engine::Meter::live(engine::Part::host);
  Loader loader(1);
  const auto samples = loader.take(wanted(1, 2));
  EXPECT_EQ(engine::Meter::live(), device);
  EXPECT_EQ(engine::Meter::live(engine::Part::host) - host, 2 * 4 * 64) << "four tensors of a cache line each";
}

TEST(Loader, WorkOfMakingASampleIsNoneOfTheDeviceUnlessItSaysSo) {
  engine::Meter::install();
  constexpr int64_t kWork = 1 << 20;
  const auto peak_of = [](const std::function<void()>& work) {
    Loader loader(1);
    std::vector<Wanted> next = wanted(1, 1);
    next[0].make = [make = next[0].make, work] { return work(), make(); };
    engine::Meter::reset_peak();
    const int64_t before = engine::Meter::live();
    loader.take(next);
    return engine::Meter::peak() - before;
  };
  EXPECT_EQ(peak_of([] { at::empty({kWork}, at::kByte); }), 0) << "noise, pixels, what a cache is read into";
  EXPECT_EQ(peak_of([] {
              const engine::Meter::Scope device(engine::Part::compute);
              at::empty({kWork}, at::kByte);
            }),
            kWork)
      << "an autoencoder";
}

TEST(Loader, NothingIsMadeWhileItIsPaused) {
  std::atomic<int> made{0};
  Loader loader(2);
  {
    const Loader::Pause pause(loader);
    loader.ahead(wanted(1, 4, &made));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(made, 0);
  }
  EXPECT_EQ(loader.take(wanted(1, 4, &made)).size(), 4u);
}

TEST(Loader, TellsHowLongItWasWaitedFor) {
  Loader loader(1);
  std::vector<Wanted> slow = wanted(1, 1);
  slow[0].make = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return sample_of(1);
  };
  loader.take(slow);
  EXPECT_GE(loader.take_waited(), 0.03);
  EXPECT_EQ(loader.take_waited(), 0);
}

TEST(Loader, EndsWithSamplesStillToBeMade) {
  Loader loader(1);
  loader.ahead(wanted(1, 100));
}

}  // namespace
}  // namespace tessera::train
