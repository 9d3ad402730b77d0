#include "tessera/train/loader.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>

#include "tessera/device/backend.h"
#include "tessera/engine/store/meter.h"

namespace tessera::train {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Loader::Loader(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { loop(); });
}

Loader::~Loader() {
  {
    const std::lock_guard hold(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Loader::EntryPtr Loader::next_open() const {
  const auto found = std::ranges::find_if(entries_, [](const EntryPtr& e) { return e->state == State::open; });
  return found == entries_.end() ? nullptr : *found;
}

void Loader::loop() {
  at::init_num_threads();  // kernels use as many threads here as on the main thread: the same bits
  std::unique_lock lock(mutex_);
  while (true) {
    EntryPtr entry;
    changed_.wait(lock, [&] { return stop_ || (pauses_ == 0 && (entry = next_open())); });
    if (stop_) return;
    entry->state = State::making;
    ++making_;
    lock.unlock();
    make(*entry);
    lock.lock();
    --making_;
    entry->state = entry->error ? State::failed : State::made;
    changed_.notify_all();
  }
}

void Loader::make(Entry& entry) {
  try {
    device::enter_thread();  // an autoencoder computes on the device's first stream, as the compute lane does
    const at::NoGradGuard no_grad;
    // Reading and noising happen at any time beside a step: none of it may count against the device's plan.
    const engine::Meter::Scope host(engine::Part::host);
    entry.sample = std::make_shared<const diffusion::TrainingSample>(entry.wanted.make());
  } catch (...) {
    entry.error = std::current_exception();
  }
}

void Loader::ahead(std::vector<Wanted> wanted) {
  const std::lock_guard hold(mutex_);
  std::deque<EntryPtr> entries;
  for (Wanted& w : wanted) {
    const auto known = std::ranges::find_if(entries_, [&](const EntryPtr& e) { return e->wanted.key == w.key; });
    entries.push_back(known == entries_.end() ? std::make_shared<Entry>(Entry{std::move(w)}) : *known);
  }
  entries_ = std::move(entries);
  changed_.notify_all();
}

diffusion::TrainingSamples Loader::take(const std::vector<Wanted>& wanted) {
  const auto start = std::chrono::steady_clock::now();
  ahead(wanted);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::ranges::all_of(entries_,
                               [](const EntryPtr& e) { return e->state == State::made || e->state == State::failed; });
  });
  waited_ += seconds_since(start);
  diffusion::TrainingSamples samples;
  for (const EntryPtr& entry : std::exchange(entries_, {})) {
    if (entry->error) std::rethrow_exception(entry->error);
    samples[entry->wanted.place()] = entry->sample;
  }
  return samples;
}

Loader::Pause::Pause(Loader& loader) : loader_(loader) {
  std::unique_lock lock(loader_.mutex_);
  ++loader_.pauses_;
  loader_.changed_.wait(lock, [&] { return loader_.making_ == 0; });
}

Loader::Pause::~Pause() {
  const std::lock_guard hold(loader_.mutex_);
  --loader_.pauses_;
  loader_.changed_.notify_all();
}

}  // namespace tessera::train
