#include "tessera/comm/rank_process.h"

#include <fcntl.h>
#include <linux/oom.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tessera/base/limits.h"
#include "tessera/comm/stop_signals.h"

namespace tessera::comm {

namespace {

/// Descriptors of this process that exec would close.
std::set<int> closed_by_exec() {
  std::set<int> all;
  for (const auto& entry : std::filesystem::directory_iterator(this_program().parent_path() / "fd"))
    all.insert(std::stoi(entry.path().filename().string()));
  std::erase_if(all, [](int fd) {  // now that the folder's own is closed
    const int flags = fcntl(fd, F_GETFD);
    return flags < 0 || (flags & FD_CLOEXEC) == 0;
  });
  return all;
}

const char* const kOomScore = "/proc/self/oom_score_adj";

/// The kernel's memory killer takes ranks and not their launcher, which lives to name them: without this it may take both,
/// since it looks for another process while the first one's pages are still being freed. Returns the score until now. Only
/// who may lower its score (CAP_SYS_RESOURCE) is spared altogether; for all others ranks raise theirs.
int refuse_to_be_killed() {
  int score = 0;
  std::ifstream(kOomScore) >> score;
  std::ofstream(kOomScore) << OOM_SCORE_ADJ_MIN;
  return score;
}

void prefer_to_be_killed(int launchers_score) {
  constexpr int kMore = 100;  // thousandths of the memory, as if it held so much more
  std::ofstream(kOomScore) << std::min(OOM_SCORE_ADJ_MAX, launchers_score + kMore);
}

}  // namespace

RankForks::RankForks(std::vector<std::string> arguments, RankProgram program)
    : arguments_(std::move(arguments)),
      program_(std::move(program)),
      open_before_(closed_by_exec()),
      score_(refuse_to_be_killed()) {}

pid_t RankForks::fork(RankVariables variables, int threads, const std::vector<int>& processors) const {
  if (threads > 0) variables.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
  const std::set<int> open_now = closed_by_exec();
  std::fflush(nullptr);  // what is not written yet would be written twice
  const pid_t parent = getpid(), child = ::fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the launcher died meanwhile
  [&]() noexcept {                    // nothing of the launcher may go on here
    forget_stop_signals();
    prefer_to_be_killed(score_);
    for (const int fd : open_now)
      if (!open_before_.contains(fd)) close(fd);
    cpu_set_t bound;
    CPU_ZERO(&bound);
    for (const int processor : processors) CPU_SET(processor, &bound);
    if (CPU_COUNT(&bound) > 0) sched_setaffinity(0, sizeof bound, &bound);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    program_(arguments_, threads);
  }();
  std::abort();
}

}  // namespace tessera::comm
