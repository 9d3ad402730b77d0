#pragma once
// The training run of one rank: plan, load or resume, step, sample, save, report.
//
//   int code = train(recipe, {.trace = "trace.jsonl"});
#include <string>

#include "tessera/recipe/recipe.h"

namespace tessera::train {

struct TrainFlags {
  std::string trace;  ///< --trace-schedule FILE: every executed instruction; empty: none
};

/// Runs to the end, to a signal or to a fault. Returns the exit code; does not return after a fault, because threads
/// may be inside collectives that will never end: it prints the error and leaves the process.
int train(recipe::Recipe recipe, const TrainFlags& flags);

}  // namespace tessera::train
