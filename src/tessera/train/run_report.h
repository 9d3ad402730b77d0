#pragma once
// report.html of a run: one page that needs nothing else, readable on a phone and in the dark.
#include <filesystem>

#include "tessera/train/job.h"
#include "tessera/train/prepare.h"
#include "tessera/train/report.h"
#include "tessera/train/validation.h"

namespace tessera::train {

/// Reads the run folder (metrics.jsonl, schedule.jsonl, recipe, plan), adds frames of source, reconstruction and sample
/// of each prompt that is a clip's caption, and writes RUN/report.html. One rank calls it.
void write_run_report(const Recipe& recipe, const Job& job, const PreparedData& data, const Validation& validation,
                      const std::filesystem::path& out, const Planned& planned);

}  // namespace tessera::train
