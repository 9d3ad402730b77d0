#pragma once
// A plan as a program reads it (JSON), as a terminal shows it (a table) and as a trace viewer opens it.
//
//   std::fputs(plan_text(planned).c_str(), stdout);
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/train/planning.h"

namespace tessera::train {

/// What `plan --json` prints (contract, section plan).
std::string plan_json(const Planned& planned);

/// What "step_seconds" holds: a step and what it is made of.
nlohmann::ordered_json seconds_json(const plan::StepSeconds& step);

/// What `plan` prints: where the bytes go, where the step's time goes, what else was considered and why not.
std::string plan_text(const Planned& planned);

/// Seconds of a step of a candidate; the planner leaves out those that do not fit, they are simulated here.
double candidate_seconds(const Planned& planned, const plan::Candidate& candidate);

/// A trace that Perfetto and chrome://tracing open: the predicted lanes of a rank of each group; beside them, when
/// `executed` has lines of schedule.jsonl with times, the lanes of one executed step. Throws UserError (input) naming a
/// line that cannot be read.
std::string plan_trace(const Planned& planned, const std::vector<std::string>& executed = {});

/// The instruction of an executed line or a compiled list in words: "backward blocks.3, micro 0".
std::string in_words(const plan::Instruction& in);

}  // namespace tessera::train
