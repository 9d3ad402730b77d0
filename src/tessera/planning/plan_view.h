#pragma once
// A plan as JSON, as a table for a terminal, and as a trace for a trace viewer.
//
//   std::fputs(plan_text(planned).c_str(), stdout);
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/planning/planning.h"

namespace tessera::planning {

/// The output of `plan --json` (docs/ list its fields).
std::string plan_json(const Planned& planned);

/// "step_seconds": the time of a step and its parts.
nlohmann::ordered_json seconds_json(const plan::StepSeconds& step);

/// The output of `plan`: memory and step time by part, and the alternatives with reasons.
std::string plan_text(const Planned& planned);

/// One paragraph for who starts a run: the time of a step and of the run, memory, what the plan does, and warnings.
std::string plan_words(const Planned& planned);

/// What people decide by.
struct RunSeconds {
  int64_t steps = 0;   ///< of this stage
  double step = 0;     ///< on average
  double sample = 0;   ///< a prompt's denoising while the run samples; 0: it does not
  double samples = 0;  ///< all prompts' of the stage
  bool probed = false;
  /// How far predictions are off at most, of the seconds that were measured: nine of ten after a probe; without one, half of
  /// those of other programs' published runs.
  double within = 0;
  double total() const { return static_cast<double>(steps) * step + samples; }
};
RunSeconds run_seconds(const Planned& planned);

/// Needs beside the device: host memory, offload to disk, checkpoints, cache. `memory`: of the rank with the highest
/// peak.
struct Fact {
  std::string name, value, note;  ///< "host, a rank", "5.36 MiB", "states 2.80 MiB, budget 8.00 MiB"
};
std::vector<Fact> elsewhere(const Planned& planned, const plan::MemoryCurve& memory);

/// A plan's device bytes at their peak by part, in the order of every table and chart of memory. Libraries' workspaces are a
/// part of their own where the profile has a target.
struct MemoryRow {
  std::string name;
  int64_t bytes;
  std::string what;
};
std::vector<MemoryRow> memory_rows(const Planned& planned, const plan::MemoryCurve& memory);

/// What lies beside the plan on the GPU, and last what its driver says that the rank uses. Empty without a target.
std::vector<Fact> beside_rows(const Planned& planned, const plan::MemoryCurve& memory);

/// The candidates to show, without duplicates: the fastest that fit, then those that nearly fit.
std::vector<const plan::Candidate*> notable(const plan::Choice& choice, size_t fitting, size_t others);

/// Seconds of a candidate's step. The planner does not simulate candidates that do not fit, so this does.
double candidate_seconds(const Planned& planned, const plan::Candidate& candidate);

/// A trace for Perfetto and chrome://tracing: the predicted lanes of one rank of each group and, if `executed` has
/// lines of schedule.jsonl with times, the lanes of one executed step. Throws UserError (input) naming a line that
/// cannot be parsed.
std::string plan_trace(const Planned& planned, const std::vector<std::string>& executed = {});

/// Names the instruction of an executed line or a compiled list: "backward blocks.3, micro 0".
std::string describe(const plan::Instruction& in);

}  // namespace tessera::planning
