#include "tessera/prepare/pace.h"

#include <chrono>

#include "tessera/device/failure.h"

namespace tessera::prepare {

namespace {
constexpr std::chrono::milliseconds kBetween{20};
}

struct Pace::Word {
  double barriers = 0, done = 0, leaving = 0, code = 0;
  std::vector<double> pack() const { return {barriers, done, leaving, code}; }
};

Pace::Pace(comm::Comm& comm, const Mesh& mesh, std::function<void(int64_t)> show)
    : group_(comm.group("pace", {kAllAxes.begin(), kAllAxes.end()})), show_(std::move(show)) {
  if (mesh.world() > 1) thread_ = std::thread([this] { exchange(); });
}

Pace::~Pace() { stop(); }

void Pace::stop() {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    leaving_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

/// Rounds until all ranks leave or one fails: every rank sees the same words, so all end with the same round.
void Pace::exchange() {
  try {
    for (;;) {
      std::unique_lock<std::mutex> guard(lock_);
      const Word mine{static_cast<double>(barriers_), static_cast<double>(done_), leaving_ ? 1.0 : 0.0,
                      static_cast<double>(code_)};
      guard.unlock();
      const auto words = group_.all_gather_doubles(mine.pack());
      double least = words[0][0], done = 0, leaving = 0;
      int failed = -1;
      for (size_t rank = 0; rank < words.size(); ++rank) {
        least = std::min(least, words[rank][0]);
        done += words[rank][1];
        leaving += words[rank][2];
        if (failed < 0 && words[rank][3] != 0) failed = static_cast<int>(rank);
      }
      if (show_) show_(static_cast<int64_t>(done));
      guard.lock();
      least_barriers_ = static_cast<int64_t>(least);
      failed_rank_ = failed;
      if (failed >= 0) failed_code_ = static_cast<Exit>(words[static_cast<size_t>(failed)][3]);
      changed_.notify_all();
      if (failed >= 0 || leaving == static_cast<double>(words.size())) return;
      const auto sent = std::make_pair(mine.barriers, mine.leaving);
      changed_.wait_for(guard, kBetween, [&] {
        return std::make_pair(static_cast<double>(barriers_), leaving_ ? 1.0 : 0.0) != sent || code_ != Exit::done;
      });
    }
  } catch (...) {
    const std::lock_guard<std::mutex> guard(lock_);
    lost_ = std::current_exception();
    changed_.notify_all();
  }
}

void Pace::report(int64_t done) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    done_ = done;
  }
  if (!thread_.joinable() && show_) show_(done);
}

void Pace::barrier() {
  if (!thread_.joinable()) return;
  std::unique_lock<std::mutex> guard(lock_);
  const int64_t number = ++barriers_;
  changed_.notify_all();
  changed_.wait(guard, [&] { return least_barriers_ >= number || over(); });
  if (least_barriers_ >= number) return;
  if (lost_) std::rethrow_exception(lost_);
  throw UserError(failed_code_, "prepare", "rank " + std::to_string(failed_rank_) + " stopped, so this one stops too",
                  "see that rank's message");
}

void Pace::run(const std::function<void()>& work) {
  const auto fail = [this](Exit code) {
    const bool by_device = device::has_failed();
    {
      const std::lock_guard<std::mutex> guard(lock_);
      code_ = by_device ? Exit::rank_lost : code;
    }
    stop();
  };
  try {
    work();
  } catch (const Error& error) {
    fail(error.code());
    throw;
  } catch (...) {
    fail(Exit::internal);
    throw;
  }
}

}  // namespace tessera::prepare
