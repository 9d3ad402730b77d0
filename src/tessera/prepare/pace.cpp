#include "tessera/prepare/pace.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/log.h"
#include "tessera/device/failure.h"

namespace tessera::prepare {

namespace {
constexpr std::chrono::milliseconds kBetween{20};
}

struct Pace::Word {
  double barriers = 0, done = 0, leaving = 0, code = 0;
  std::vector<double> pack() const { return {barriers, done, leaving, code}; }
};

Pace::Pace(comm::Comm& comm, const Mesh& mesh, std::function<void(int64_t)> show, Seconds told, Seconds longest)
    : group_(comm.group("pace", {kAllAxes.begin(), kAllAxes.end()})),
      show_(std::move(show)),
      told_(told),
      longest_(longest) {
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
      int failed = -1, behind = 0;
      for (size_t rank = 0; rank < words.size(); ++rank) {
        if (words[rank][0] < least) least = words[rank][0], behind = static_cast<int>(rank);
        done += words[rank][1];
        leaving += words[rank][2];
        if (failed < 0 && words[rank][3] != 0) failed = static_cast<int>(rank);
      }
      if (show_) show_(static_cast<int64_t>(done));
      guard.lock();
      least_barriers_ = static_cast<int64_t>(least);
      behind_ = behind;
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
  const auto begun = std::chrono::steady_clock::now();
  const auto come = [&] { return least_barriers_ >= number || over(); };
  for (Seconds told = std::min(told_, longest_);; told = std::min(2 * told, longest_)) {
    if (changed_.wait_until(guard, begun + std::chrono::duration_cast<std::chrono::milliseconds>(told), come)) break;
    const std::string who = "rank " + std::to_string(behind_), time = std::to_string(std::lround(told.count())) + " s";
    if (told >= longest_)
      throw UserError(Exit::rank_lost, "ranks", who + " has not finished what the others wait for within " + time,
                      "look at its machine and its disk; start again to resume from the newest checkpoint");
    if (group_.rank() == (behind_ == 0 ? 1 : 0))  // one of those that wait
      log::warn("waiting for " + who + " for " + time +
                ": it is alive, and slow or stuck in a read or a write of a file");
  }
  if (least_barriers_ >= number) return;
  if (lost_) std::rethrow_exception(lost_);
  throw UserError(failed_code_, "ranks", "rank " + std::to_string(failed_rank_) + " stopped, so this one stops too",
                  "see that rank's message");
}

bool Pace::failed_elsewhere() {
  const std::lock_guard<std::mutex> guard(lock_);
  return failed_rank_ >= 0 && failed_rank_ != group_.rank();
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

namespace {
constexpr size_t kText = 480, kTexts = 50;
}

void Failures::share(comm::Comm& comm, const Mesh& mesh, int rank) {
  if (mesh.world() == 1) return;
  comm::Group& group = comm.group("failures", {kAllAxes.begin(), kAllAxes.end()});
  // Numbers are what the group can gather; failures are few, so their indices are padded to the longest list.
  double most = 0;
  for (const auto& row : group.all_gather_doubles({static_cast<double>(why_.size())})) most = std::max(most, row[0]);
  if (most == 0) return;
  std::vector<double> mine;
  for (const auto& [piece, why] : why_) mine.push_back(static_cast<double>(piece));
  mine.resize(static_cast<size_t>(most), -1);
  const auto all = group.all_gather_doubles(mine);

  size_t told = 0;
  for (size_t owner = 0; owner < all.size(); ++owner)
    for (const double piece : all[owner]) {
      if (piece < 0) continue;
      const auto index = static_cast<size_t>(piece);
      std::string& why = why_[index];
      if (told++ >= kTexts) {
        if (owner != static_cast<size_t>(rank)) why = "rank " + std::to_string(owner) + " could not read it";
        continue;
      }
      std::vector<double> letters(why.begin(), why.begin() + static_cast<long>(std::min(why.size(), kText)));
      letters.resize(kText, 0);
      const auto texts = group.all_gather_doubles(letters);
      if (owner == static_cast<size_t>(rank)) continue;
      for (const double letter : texts[owner])
        if (letter != 0) why += static_cast<char>(letter);
    }
}

}  // namespace tessera::prepare
