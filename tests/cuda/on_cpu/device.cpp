#include "on_cpu/device.h"

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// __shared__ variables lie in a section of their own, and the linker gives its ends these names.
extern char __start_cuda_shared[] __attribute__((weak));
extern char __stop_cuda_shared[] __attribute__((weak));

namespace tessera::on_cpu {

namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kWarp = 32;

enum class State { ready, at_barrier, at_exchange, ended };

struct Fiber {
  ucontext_t context;
  std::vector<std::byte> stack;
  State state = State::ready;
  uint32_t priority = 0;
  uint32_t mask = 0, word = 0;  // of the exchange it waits for, or has got
  unsigned from = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

struct Device {
  std::vector<Fiber> fibers;
  std::vector<unsigned> ready;  // a heap: whose priority is highest runs, so the last one waits as long as it can
  unsigned threads = 0, at_barrier = 0, ended = 0, running = 0;
  const std::function<void()>* kernel = nullptr;
  ucontext_t home;
  const void* home_stack = nullptr;
  size_t home_bytes = 0;
  std::exception_ptr fault;  // thrown in a kernel
  std::mt19937 order{1};
  int64_t blocks = 0;
} device;

/// AddressSanitizer has to know which stack is in use: told before a switch and after it.
void leave([[maybe_unused]] void** save, [[maybe_unused]] const void* stack, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(save, stack, bytes);
#endif
}
void arrive([[maybe_unused]] void* saved, [[maybe_unused]] const void** stack, [[maybe_unused]] size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(saved, stack, bytes);
#endif
}

void start_fiber() {
  arrive(nullptr, &device.home_stack, &device.home_bytes);
  try {
    (*device.kernel)();
  } catch (...) {
    device.fault = std::current_exception();
  }
  Fiber& self = device.fibers[device.running];
  self.state = State::ended;
  leave(nullptr, device.home_stack, device.home_bytes);  // its fake stack goes with it
  swapcontext(&self.context, &device.home);
}

/// From a fiber to the scheduler, until its turn comes again.
void wait() {
  Fiber& self = device.fibers[device.running];
  leave(&self.fake_stack, device.home_stack, device.home_bytes);
  swapcontext(&self.context, &device.home);
  arrive(self.fake_stack, &device.home_stack, &device.home_bytes);
}

void resume(unsigned index) {
  Fiber& fiber = device.fibers[index];
  device.running = index;
  thread_index = {index, 0, 0};
  void* fake_stack = nullptr;
  leave(&fake_stack, fiber.stack.data(), fiber.stack.size());
  swapcontext(&device.home, &fiber.context);
  arrive(fake_stack, nullptr, nullptr);
  if (device.fault) std::rethrow_exception(std::exchange(device.fault, nullptr));
}

bool before(unsigned a, unsigned b) { return device.fibers[a].priority < device.fibers[b].priority; }

void make_ready(unsigned index) {
  device.fibers[index].state = State::ready;
  device.ready.push_back(index);
  std::push_heap(device.ready.begin(), device.ready.end(), before);
}

void release_barrier() {
  if (device.at_barrier < device.threads) return;
  device.at_barrier = 0;
  for (unsigned i = 0; i < device.threads; ++i) make_ready(i);
}

/// Gives the lanes of an exchange their words, if all of them have come with the same mask.
void release_exchange(unsigned index) {
  const unsigned first = index / kWarp * kWarp;
  const uint32_t mask = device.fibers[index].mask;
  const auto each_lane = [&](const auto& visit) {
    for (unsigned lane = 0; lane < kWarp; ++lane)
      if (mask >> lane & 1) visit(first + lane);
  };
  bool all = true;
  each_lane([&](unsigned i) {
    all = all && i < device.threads && device.fibers[i].state == State::at_exchange && device.fibers[i].mask == mask;
  });
  if (!all) return;
  uint32_t words[kWarp] = {};
  each_lane([&](unsigned i) { words[i - first] = device.fibers[i].word; });
  each_lane([&](unsigned i) {
    device.fibers[i].word = words[device.fibers[i].from];
    make_ready(i);
  });
}

std::string deadlock() {
  std::string text =
      "no thread of block " + std::to_string(block_index.x) + "," + std::to_string(block_index.y) + " can go on:";
  for (const auto& [state, words] :
       {std::pair(State::at_barrier, "wait at a barrier"),
        std::pair(State::at_exchange, "wait for lanes of their warp"), std::pair(State::ended, "have ended")}) {
    const auto end = device.fibers.begin() + device.threads;
    const auto number = std::count_if(device.fibers.begin(), end, [&](const Fiber& f) { return f.state == state; });
    if (number) text += " " + std::to_string(number) + " " + words + ",";
  }
  text.pop_back();
  return text;
}

void poison_shared_memory() {
  if (__start_cuda_shared) std::memset(__start_cuda_shared, 0xff, __stop_cuda_shared - __start_cuda_shared);
}

void prepare(Fiber& fiber) {
  fiber.stack.resize(kStackBytes);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, start_fiber, 0);
}

void run_block() {
  poison_shared_memory();
  device.at_barrier = device.ended = 0;
  device.ready.clear();
  for (unsigned i = 0; i < device.threads; ++i) {
    prepare(device.fibers[i]);
    device.fibers[i].priority = static_cast<uint32_t>(device.order());
    make_ready(i);
  }
  while (device.ended < device.threads) {
    if (device.ready.empty()) throw std::logic_error(deadlock());
    std::pop_heap(device.ready.begin(), device.ready.end(), before);
    const unsigned index = device.ready.back();
    device.ready.pop_back();
    resume(index);
    switch (device.fibers[index].state) {
      case State::at_barrier:
        ++device.at_barrier, release_barrier();
        break;
      case State::at_exchange:
        release_exchange(index);
        break;
      case State::ended:
        ++device.ended;
        break;
      case State::ready:
        break;
    }
  }
  ++device.blocks;
}

}  // namespace

void run(Index blocks, Index threads, const std::function<void()>& kernel) {
  if (blocks.x * blocks.y * blocks.z == 0 || threads.x == 0 || threads.x > 1024 || threads.y * threads.z != 1)
    throw std::logic_error("a launch of no blocks, or of threads in more than one dimension or over 1,024");
  device.threads = threads.x;
  device.kernel = &kernel;
  if (device.fibers.size() < threads.x) device.fibers.resize(threads.x);
  grid_size = blocks, block_size = threads;
  std::vector<unsigned> order(blocks.x * blocks.y * blocks.z);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), device.order);
  for (const unsigned block : order) {
    block_index = {block % blocks.x, block / blocks.x % blocks.y, block / blocks.x / blocks.y};
    run_block();
  }
}

void choose_order(uint32_t seed) { device.order.seed(seed); }

void block_barrier() {
  device.fibers[device.running].state = State::at_barrier;
  wait();
}

uint32_t exchange(uint32_t mask, uint32_t word, unsigned from) {
  Fiber& self = device.fibers[device.running];
  if (!(mask >> (device.running % kWarp) & 1) || !(mask >> from & 1))
    throw std::logic_error("an exchange with or from a lane outside its mask");
  self.mask = mask, self.word = word, self.from = from;
  self.state = State::at_exchange;
  wait();
  return device.fibers[device.running].word;
}

namespace {

struct Counter {
  bool on = false;
  Touched found;
  std::unordered_set<const void*> read, written;  // where lanes begin, which are the same whoever touches them
} counter;

}  // namespace

void count_touches(bool on) { counter = {.on = on}; }

void touch(const void* at, size_t bytes, bool writes) {
  if (!counter.on || bytes == 0) return;
  const auto n = static_cast<int64_t>(bytes);
  const bool first = (writes ? counter.written : counter.read).insert(at).second;
  (writes ? counter.found.written : counter.found.read) += n;
  if (first) (writes ? counter.found.written_once : counter.found.read_once) += n;
}

Touched touched() {
  const Touched found = counter.found;
  count_touches(counter.on);
  return found;
}

int64_t blocks_run() { return device.blocks; }

}  // namespace tessera::on_cpu
