#pragma once
// The process of a rank: a fork of its launcher that begins as a program of its own would.
//
//   const RankForks forks({"train", "recipe.toml"}, run_rank);  // before the launcher opens anything of its own
//   const pid_t pid = forks.fork({{"RANK", "1"}}, /*threads=*/4, {4, 5, 6, 7});
//
// [Note: ranks are forked]
// The launcher does not execute its program again for a rank. Loading LibTorch takes 0.2 CPU-seconds and leaves 64 MiB of
// tables in each process; forks have them at once and share them with all ranks of the machine.
//
// A rank must not be able to tell. What a fork cannot take along are threads, locks that they hold, and a CUDA context:
// programs that fork after cuInit() fail, and hang where OpenMP or a driver had threads. So the launcher, until it forks,
// opens no GPU (device::count_in_child counts them), asks LibTorch nothing about GPUs (it would remember that there are none;
// device::open() would say so), runs no kernel, and keeps no thread: that of the store, which it hosts, pauses (Nodes::pause),
// so a fork is always that of a process with one thread. Each rank then opens its GPU, NCCL and the CUDA libraries as it would
// under srun, where nothing is forked.
//
// The rank is given what exec would have given it: its variables, the default action of signals that the launcher counts, no
// descriptor that the launcher opened and exec closes (what libraries opened when they were loaded stays). LibTorch reads the
// environment when it is loaded, so it has read the launcher's; of what it reads, OMP_NUM_THREADS alone may differ, and the
// program passes it on. Code that keeps something for the life of a process, as temporary_name() does, asks getpid().
#include <sys/types.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::comm {

/// What a rank executes, with a command and its words. `threads`: of LibTorch, where OMP_NUM_THREADS was not set when it was
/// loaded; 0: it was. It ends the process.
using RankProgram = std::function<void(const std::vector<std::string>& arguments, int threads)>;

/// Names and values of variables of the environment.
using RankVariables = std::vector<std::pair<std::string, std::string>>;

class RankForks {
 public:
  /// What is open now is open in the ranks too. Throws UserError (usage) where this process cannot see /proc.
  RankForks(std::vector<std::string> arguments, RankProgram program);

  /// A process that ends with this one; -1 and errno if there can be none. `variables`: of its environment, beside this
  /// process's. `threads`: what it is told by OMP_NUM_THREADS too, if not 0. `processors`: those that it is bound to; where
  /// there are none, or the machine refuses, it runs on this process's.
  pid_t fork(RankVariables variables, int threads, const std::vector<int>& processors) const;

 private:
  const std::vector<std::string> arguments_;
  const RankProgram program_;
  const std::set<int> open_before_;
  const int score_;  ///< of this process for the kernel's memory killer, before it was spared
};

}  // namespace tessera::comm
