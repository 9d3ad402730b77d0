#pragma once
// Fault injection, to test how a cluster responds: one rank dies, stops, hangs or is slow at an instruction of its
// schedule.
//
//   TESSERA_DRILL="rank=1,step=3,op=reduce,do=stop" tessera launch -n 2 train recipe.toml
//
// `do` is kill, stop (SIGSTOP), hang, or a number of seconds to lose. Without step: at every step; without op: at
// forward; without unit (unit=blocks.1) or lane (lane=disk): at any; `attempt` (default 0) counts restarts.
#include <optional>
#include <string>

#include "tessera/plan/schedule.h"

namespace tessera::train {

struct InjectedFault {
  int rank = 0, attempt = 0;
  std::optional<int64_t> step;
  std::string op = "forward", unit, lane, act;  ///< act: "kill", "stop", "hang", or empty: be slow
  double seconds = 0;

  /// Throws UserError (usage) naming what it cannot read.
  static InjectedFault parse(const std::string& text);
  /// Injects the fault if this is its instruction.
  void at(int64_t step, const plan::Instruction& instruction) const;
};

/// The fault that TESSERA_DRILL injects, if it is for this rank and attempt.
std::optional<InjectedFault> injected_fault(int rank, int attempt);

}  // namespace tessera::train
