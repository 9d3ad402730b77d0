#include "tessera/engine/store/lane.h"

#include <algorithm>
#include <future>
#include <optional>

#include "tessera/device/streams.h"

namespace tessera::engine {

void Events::reset(size_t count) {
  const std::lock_guard lock(mutex_);
  done_.assign(count, 0);
  open_ = count;
  error_ = nullptr;
}

void Events::done(int instruction) {
  const std::lock_guard lock(mutex_);
  done_[instruction] = 1;
  --open_;
  for (Waiter* waiter : waiters_)
    if (is_over(*waiter)) waiter->woken.notify_one();  // with the lock, without which it might be gone
}

void Events::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  for (Waiter* waiter : waiters_) waiter->woken.notify_one();
}

bool Events::is_over(const Waiter& waiter) const {
  if (error_) return true;
  return waiter.all ? open_ == 0
                    : std::ranges::all_of(waiter.wait, [&](int w) { return done_[waiter.first + w] != 0; });
}

void Events::sleep(std::unique_lock<std::mutex>& lock, Waiter& waiter) {
  if (!is_over(waiter)) {
    waiters_.push_back(&waiter);
    waiter.woken.wait(lock, [&] { return is_over(waiter); });
    std::erase(waiters_, &waiter);
  }
  if (error_) std::rethrow_exception(error_);
}

void Events::await(std::span<const int> wait, int first) {
  std::unique_lock lock(mutex_);
  Waiter waiter{.wait = wait, .first = first};
  sleep(lock, waiter);
}

void Events::await_all() {
  std::unique_lock lock(mutex_);
  Waiter waiter{.all = true};
  sleep(lock, waiter);
}

LaneThread::LaneThread(device::Priority priority) {
  std::promise<void> begins;
  std::future<void> begun = begins.get_future();
  thread_ = std::thread([this, priority, on_host = device::OnHost::active(), begins = std::move(begins)]() mutable {
    std::optional<device::OnHost> host;
    if (on_host) host.emplace();
    try {
      device::enter_thread();
      device::own_stream(priority);
    } catch (...) {
      return begins.set_exception(std::current_exception());
    }
    begins.set_value();
    loop();
  });
  try {
    begun.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

LaneThread::~LaneThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LaneThread::push(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void LaneThread::loop() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace tessera::engine
