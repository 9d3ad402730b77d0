#pragma once
// A plan as a program reads it (JSON), as a terminal shows it (a table) and as a trace viewer opens it.
//
//   std::fputs(plan_text(planned).c_str(), stdout);
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/planning/planning.h"

namespace tessera::planning {

/// What `plan --json` prints (contract, section plan).
std::string plan_json(const Planned& planned);

/// What "step_seconds" holds: a step and what it is made of.
nlohmann::ordered_json seconds_json(const plan::StepSeconds& step);

/// What `plan` prints: where the bytes go, where the step's time goes, what else was considered and why not.
std::string plan_text(const Planned& planned);

/// What a plan takes beside the device: host memory, the disk's tier, checkpoints, the cache. `memory`: of its rank
/// with the highest peak.
struct Fact {
  std::string name, value, note;  ///< "host, a rank", "5.36 MiB", "states 2.80 MiB, budget 8.00 MiB"
};
std::vector<Fact> elsewhere(const Planned& planned, const plan::MemoryCurve& memory);

/// The candidates a reader wants, each line once: the fastest that fit, then those that nearly do.
std::vector<const plan::Candidate*> notable(const plan::Choice& choice, size_t fitting, size_t others);

/// Seconds of a step of a candidate; the planner leaves out those that do not fit, they are simulated here.
double candidate_seconds(const Planned& planned, const plan::Candidate& candidate);

/// A trace that Perfetto and chrome://tracing open: the predicted lanes of a rank of each group; beside them, when
/// `executed` has lines of schedule.jsonl with times, the lanes of one executed step. Throws UserError (input) naming a
/// line that cannot be read.
std::string plan_trace(const Planned& planned, const std::vector<std::string>& executed = {});

/// The instruction of an executed line or a compiled list in words: "backward blocks.3, micro 0".
std::string in_words(const plan::Instruction& in);

}  // namespace tessera::planning
