#include "tessera/engine/store/expert_swap.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tessera/engine/store/meter.h"
#include "tessera/ops/ranges.h"
#include "tessera/plan/compile/memory.h"

namespace tessera::engine {

namespace {

double swap_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

ExpertSwap::ExpertSwap(at::Device device) {
  if (device.is_cpu() || device.is_meta()) return;
  const Meter::Scope scope(engine::Part::slots);
  between_ = at::empty({plan::kSwapPiece}, at::TensorOptions(at::kByte).device(device));
  word_.reserve(sizeof(uint32_t));
}

ExpertSwap::~ExpertSwap() {
  if (thread_.joinable()) thread_.join();
}

void ExpertSwap::start(const std::string& swap, std::vector<Pair> pairs, std::vector<int> param_at,
                       std::vector<int> states_at) {
  settle();
  for (Pair& pair : pairs) pair.what = swap + ": " + pair.what;
  {
    const std::lock_guard lock(mutex_);  // the thread has ended, on_device() may ask
    pairs_ = std::move(pairs), before_ = word_at();
  }
  param_at_ = std::move(param_at), states_at_ = std::move(states_at);
  done_ = 0;
  begin_.record();
  swapped_.resize(std::max(swapped_.size(), pairs_.size()));
  thread_ = std::thread([this] {
    try {
      swap_all();
    } catch (...) {  // a device that has failed, for one: who waits for a pair throws it
      error_ = std::current_exception();
      done_.store(kFailed, std::memory_order_release);
      done_.notify_all();
    }
  });
}

void ExpertSwap::settle() {
  if (!thread_.joinable()) return;
  thread_.join();
  throw_if_failed(done_);
  if (!pairs_.empty()) swapped_[pairs_.size() - 1].order();
}

ExpertSwap::Moved ExpertSwap::take_moved() {
  settle();
  moved_.waited = static_cast<double>(waited_.exchange(0)) * 1e-9;
  return std::exchange(moved_, {});
}

std::string ExpertSwap::on_device() const {
  const std::lock_guard lock(mutex_);
  if (!word_.size() || !counts_) return "";
  const uint32_t swapped = word_at() - before_;
  return swapped < pairs_.size() ? pairs_[swapped].what : "";
}

void ExpertSwap::swap_all() {
  device::enter_thread();
  device::own_stream();
  device::label("swap of experts");
  begin_.order();
  const double start = swap_clock();
  uint32_t swapped = before_;
  for (const Pair& pair : pairs_) {
    device::label(pair.what);
    ops::swap_bytes(pair.active, pair.inactive, between_);
    if (counts_ && between_.defined()) counts_ = device::used()->write_word(word(), ++swapped);
    swapped_[static_cast<size_t>(done_)].record();
    moved_.bytes += 2 * static_cast<int64_t>(pair.active.nbytes());
    done_.fetch_add(1, std::memory_order_release);
    done_.notify_all();
  }
  if (!pairs_.empty()) swapped_[pairs_.size() - 1].await();  // who joins the thread may read host memory
  moved_.seconds += swap_clock() - start;
}

void ExpertSwap::await(const std::vector<int>& pair_of, int unit) {
  const int pair = pair_of.empty() ? -1 : pair_of[static_cast<size_t>(unit)];
  if (pair < 0) return;
  int done = done_.load(std::memory_order_acquire);
  if (done <= pair) {
    const double start = swap_clock();
    for (; done <= pair; done = done_.load(std::memory_order_acquire)) done_.wait(done);
    waited_ += static_cast<int64_t>((swap_clock() - start) * 1e9);
  }
  throw_if_failed(done);
  swapped_[static_cast<size_t>(pair)].order();
}

void ExpertSwap::throw_if_failed(int done) const {
  if (done == kFailed) std::rethrow_exception(error_);
}

}  // namespace tessera::engine
