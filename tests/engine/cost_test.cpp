// What the engine itself takes of the host: steps of a model whose blocks compute nothing, by the processor's time, which other
// programs do not count in.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstdio>

#include "toy_engine.h"

namespace tessera::engine {
namespace {

using namespace toy;

double seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Of the thread that computes, and of all threads: the least of many steps.
struct Cost {
  double computing = 1e9, all = 1e9;
  size_t instructions = 0;
};
Cost of(int blocks) {
  const Toy toy(blocks, "idle");
  ToyRank rank(toy, toy.plan());
  Cost least;
  least.instructions = rank.schedule().list.size();
  for (int64_t step = 1; step <= 12; ++step) {
    const double computing = seconds(CLOCK_THREAD_CPUTIME_ID), all = seconds(CLOCK_PROCESS_CPUTIME_ID);
    rank.run(step);
    least.computing = std::min(least.computing, seconds(CLOCK_THREAD_CPUTIME_ID) - computing);
    least.all = std::min(least.all, seconds(CLOCK_PROCESS_CPUTIME_ID) - all);
  }
  return least;
}

/// The difference of two models leaves out what a step takes however many blocks there are. The bound is many times what is
/// measured: an instruction that does something for each unit or each instruction of the schedule is beyond it.
TEST(EngineCost, OfAnInstructionDoesNotGrowWithTheModel) {
  const Cost few = of(20), many = of(120);
  const auto instructions = static_cast<double>(many.instructions - few.instructions);
  const double computing = (many.computing - few.computing) / instructions, all = (many.all - few.all) / instructions;
  std::printf(
      "host time an instruction: %.2f us computing, %.2f us with lanes; %.1f instructions and %.1f us a block\n",
      1e6 * computing, 1e6 * all, instructions / 100, 1e4 * (many.computing - few.computing));
  EXPECT_GT(computing, 0);
  EXPECT_LT(computing, 100e-6);
}

}  // namespace
}  // namespace tessera::engine
