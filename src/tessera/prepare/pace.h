#pragma once
// Progress and a barrier without a timeout for ranks whose work takes unequal time, such as encoding.
//
//   Pace pace(comm, mesh, [&](int64_t done) { progress.at(done); });   // `done`: of all ranks together
//   pace.run([&] {
//     for (...) { encode(clip); pace.report(++done); }
//     pace.barrier();                                                  // waits for hours, if another rank needs them
//   });
//
// A collective waits fault.timeout for the others, and one clip, or the shards of a checkpoint, may take a rank longer
// than that. So a thread of each rank exchanges a few numbers many times a second: it shows that the rank is alive,
// however slow its work is, while a lost rank ends the exchange within fault.timeout. A rank that fails ends the others
// with its exit code. Whom the others wait for is logged after a minute, two, four, ...
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/comm/comm.h"

namespace tessera::prepare {

class Pace {
 public:
  using Seconds = std::chrono::duration<double>;
  static constexpr Seconds kTold{60};

  /// All ranks make and destroy it together. `show` is called from the thread (from report() on a single rank). A wait in
  /// barrier() is logged once it has taken `told`, and ends as that for a lost rank (rank_lost) after `longest`.
  Pace(comm::Comm& comm, const Mesh& mesh, std::function<void(int64_t done)> show = {}, Seconds told = kTold,
       Seconds longest = Seconds::max());
  ~Pace();  ///< waits for the other ranks, unless one of them failed
  Pace(const Pace&) = delete;
  Pace& operator=(const Pace&) = delete;

  void report(int64_t done);  ///< how much this rank has done
  /// Returns when every rank has called it as often as this one. Throws UserError: (rank_lost) when a rank is lost,
  /// with the code of a rank that failed.
  void barrier();
  /// Runs `work`; an exception in it ends the other ranks' barriers too.
  void run(const std::function<void()>& work);
  /// Whether another rank failed first, so that what this one throws only follows from it.
  bool failed_elsewhere();

 private:
  struct Word;  // the message of a rank
  void exchange();
  bool over() const { return lost_ || failed_rank_ >= 0; }
  void stop();

  comm::Group& group_;
  const std::function<void(int64_t)> show_;
  const Seconds told_, longest_;
  std::mutex lock_;
  std::condition_variable changed_;
  // of this rank
  int64_t barriers_ = 0, done_ = 0;
  bool leaving_ = false;
  Exit code_ = Exit::done;
  // of all ranks
  int64_t least_barriers_ = 0;
  int behind_ = 0;  // the first rank that has called barrier() so often alone
  int failed_rank_ = -1;
  Exit failed_code_ = Exit::done;
  std::exception_ptr lost_;
  std::thread thread_;
};

// Collects failures of work that is shared over ranks: each rank records its own, then all ranks know all of them.
//
//   Failures failures(pieces);
//   failures.add(piece, "cut short");                    // on the rank whose piece it was
//   failures.share(comm, mesh, rank);                    // together
//   failures.text(piece);                                // the same on every rank

class Failures {
 public:
  explicit Failures(size_t pieces) : pieces_(pieces) {}

  void add(size_t piece, std::string why) { why_[piece] = std::move(why); }
  /// Texts beyond the first 50 and beyond 480 bytes each stay with the rank that booked them.
  void share(comm::Comm& comm, const Mesh& mesh, int rank);

  bool failed(size_t piece) const { return why_.contains(piece); }
  const std::string& text(size_t piece) const { return why_.at(piece); }
  bool empty() const { return why_.empty(); }

 private:
  size_t pieces_;
  std::map<size_t, std::string> why_;
};

}  // namespace tessera::prepare
