#include "tessera/engine/store/meter.h"

#include <gtest/gtest.h>

#include <thread>

#include "tessera/base/check.h"
#include "tessera/torch_headers.h"

namespace tessera::engine {

TEST(Meter, CountsLivePeakAndParts) {
  Meter::install();
  const int64_t before = Meter::live();
  Meter::reset_peak();
  {
    const at::Tensor a = at::empty({1000}, at::kFloat);
    EXPECT_EQ(Meter::live() - before, 4032) << "rounded up to 64 bytes";
    const at::Tensor b = at::empty({1000}, at::kFloat);
  }
  EXPECT_EQ(Meter::live(), before);
  EXPECT_EQ(Meter::peak() - before, 8064);
  const Meter::Scope scope(Part::states);
  const at::Tensor c = at::empty({16}, at::kFloat);
  EXPECT_EQ(Meter::live(Part::states), 64);
}

TEST(Meter, MetaTensorsCountWithoutMemory) {
  Meter::install();
  const int64_t before = Meter::live();
  Meter::MetaCount count;
  {
    const at::Tensor a = at::empty({int64_t{1} << 34}, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
    EXPECT_EQ(count.live(), int64_t{1} << 36);
    EXPECT_EQ(Meter::live(), before);
  }
  EXPECT_EQ(count.live(), 0);
  EXPECT_EQ(count.peak(), int64_t{1} << 36);
}

TEST(Meter, MetaTensorsOfOtherThreadsAreNotCounted) {
  Meter::install();
  const Meter::MetaCount count;
  const at::Tensor own = at::empty({1024}, at::TensorOptions(at::kFloat).device(at::kMeta));
  std::thread([] {
    const Meter::MetaCount other;
    const at::Tensor more = at::empty({4096}, at::TensorOptions(at::kFloat).device(at::kMeta));
    EXPECT_EQ(other.peak(), 4 * 4096);
  }).join();
  EXPECT_EQ(count.live(), 4 * 1024);
  EXPECT_EQ(count.peak(), 4 * 1024);
}

TEST(Meter, AutogradOnMetaCountsWhatTheCpuWouldTake) {
  Meter::install();
  const auto run = [](at::Device device) {
    const at::Tensor x = at::ones({64, 32}, at::TensorOptions().dtype(at::kFloat).device(device)).requires_grad_();
    const at::Tensor w = at::ones({32, 32}, at::TensorOptions().dtype(at::kFloat).device(device)).requires_grad_();
    at::Tensor y = at::mm(at::tanh(at::mm(x, w)), w).mul(2).sum();
    return torch::autograd::grad({y}, {x, w});
  };
  const int64_t base = Meter::live();
  Meter::reset_peak();
  const auto cpu = run(at::kCPU);
  const int64_t cpu_peak = Meter::peak() - base, cpu_live = Meter::live() - base;
  Meter::MetaCount count;
  const auto meta = run(at::kMeta);
  EXPECT_EQ(count.peak(), cpu_peak) << "the scalar 2 is a CPU tensor on both";
  EXPECT_EQ(count.live(), cpu_live);
}

TEST(Meter, RefusesWhatTheBudgetDoesNotHoldAndTellsWhoHoldsIt) {
  Meter::install();
  Meter::set_budget(Meter::live() + 1000);
  try {
    const at::Tensor a = at::empty({1000}, at::kFloat);
    FAIL() << "4000 bytes fit into a budget of 1000";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::memory);
    EXPECT_NE(std::string(error.what()).find("plan.budget"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("parameters"), std::string::npos);
  }
  Meter::set_budget(0);
}

}  // namespace tessera::engine
