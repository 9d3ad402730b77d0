// What the engine itself takes of the host: steps of a model whose blocks compute nothing, by the processor's time, which other
// programs do not count in, and by the memory that they ask for, which is the same on every machine.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "toy_engine.h"

namespace {
std::atomic<int64_t> allocations = 0;  // of this program and of LibTorch, by all threads
}

// NOLINTBEGIN: these take the place of the library's, in the whole program
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
// NOLINTEND

namespace tessera::engine {
namespace {

using namespace toy;

double seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The least of many steps: seconds of the thread that computes and of all threads, and allocations.
struct Cost {
  double computing = 1e9, all = 1e9, allocated = 1e9;
  void take(const Cost& step) {
    computing = std::min(computing, step.computing), all = std::min(all, step.all);
    allocated = std::min(allocated, step.allocated);
  }
  Cost operator-(const Cost& o) const { return {computing - o.computing, all - o.all, allocated - o.allocated}; }
  Cost operator/(double n) const { return {computing / n, all / n, allocated / n}; }
};

template <class Act>
Cost cost_of(const Act& act) {
  const int64_t allocated = allocations;
  const double computing = seconds(CLOCK_THREAD_CPUTIME_ID), all = seconds(CLOCK_PROCESS_CPUTIME_ID);
  act();
  return {seconds(CLOCK_THREAD_CPUTIME_ID) - computing, seconds(CLOCK_PROCESS_CPUTIME_ID) - all,
          static_cast<double>(allocations - allocated)};
}

/// What a block's operators take in a micro-batch by themselves: a view, which the engine copies since it lies in the block's
/// input, and the nodes of both.
Cost of_operators() {
  Cost least;
  for (int round = 0; round < 20; ++round) {
    constexpr int kTimes = 200;
    const Tensor input = at::zeros({2 * kTokens, kWidth}).requires_grad_(), gradient = at::ones_like(input.detach());
    least.take(cost_of([&] {
                 for (int i = 0; i < kTimes; ++i) {
                   const Tensor output = input.view_as(input).clone();
                   const at::AutoGradMode mode(false);
                   const auto copy = output.grad_fn(), view = copy->next_edge(0).function;
                   (*view)((*copy)({gradient}));
                 }
               }) /
               kTimes);
  }
  return least;
}

/// The difference of two models leaves out what a step takes however many blocks there are. The bound of seconds is many times
/// what is measured: an instruction that does something for each unit or each instruction of the schedule is beyond it. That
/// of allocations is a little above what there are, 12.3.
TEST(EngineCost, OfAnInstructionDoesNotGrowWithTheModel) {
  const Toy small(20, "idle"), large(120, "idle");
  ToyRank few(small, small.plan()), many(large, large.plan());
  Cost of_few, of_many;
  for (int64_t step = 1; step <= 40; ++step) {  // in turn, so that both have the machine at its best
    of_few.take(cost_of([&] { few.run(step); }));
    of_many.take(cost_of([&] { many.run(step); }));
  }
  constexpr int kBlocks = 100;
  const auto instructions = static_cast<double>(many.schedule().list.size() - few.schedule().list.size());
  const Cost each = (of_many - of_few) / instructions, block = (of_many - of_few) / kBlocks, within = of_operators();
  const double micros = many.schedule().micros;
  const double own = 1e6 * (block.computing - micros * within.computing) / (instructions / kBlocks);
  std::printf(
      "host time an instruction: %.2f us computing, %.2f us with lanes; %.1f instructions and %.1f us a block, of which its "
      "operators take %.1f: %.2f us an instruction are the engine's; %.1f allocations an instruction, %.1f of them its own\n",
      1e6 * each.computing, 1e6 * each.all, instructions / kBlocks, 1e6 * block.computing,
      1e6 * micros * within.computing, own, each.allocated,
      (block.allocated - micros * within.allocated) / (instructions / kBlocks));
  EXPECT_GT(each.computing, 0);
  EXPECT_LT(each.computing, 100e-6);
  EXPECT_GT(each.allocated, 0);
  EXPECT_LT(each.allocated, 14);
}

}  // namespace
}  // namespace tessera::engine
