#pragma once
// Which checkpoint a run goes on from, and what it leaves behind when that is an earlier one.
//
//   const Resume resume = choose_resume(recipe.run.resume, "runs/a", /*launched=*/std::nullopt);
//   if (!resume.beyond.empty()) ...                      // going back: these belong to the line that is left
//
// [Note: lines] Checkpoints that follow from run.resume = DIR say so ("resumed_from" of their manifests). While none
// does, DIR is where the run begins, also after a restart; from the first one on the same command goes on from the
// newest.
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/folders.h"

namespace tessera::checkpoint {

inline constexpr const char* kResumedFrom = "resumed_from";  ///< a field of Manifest::extra

struct Resume {
  std::optional<Path> from;  ///< nothing: the run begins anew
  std::vector<Path> beyond;  ///< whole checkpoints of the run that lie behind `from` on the line it leaves
  std::string line;          ///< kResumedFrom of the checkpoints that follow; empty: none
  bool gone_on = false;      ///< run.resume names a folder, and the run has gone on from there already
  bool back = false;         ///< the run diverged: `from` is its newest proved checkpoint, if there is one
};

/// Whether run.resume = `asked` names a folder from which the newest checkpoint of the run follows, or the newest whose
/// manifest can be read; it may be pruned by now.
bool has_gone_on(const std::string& asked, const Path& run);

/// `asked`: run.resume. `launched`: this is a restart by a launcher that began then, in seconds since 1970: with run.resume
/// = "no" the run goes on from what it saved since, and begins anew while that is nothing. `diverged`: the start before this
/// one ended so, and what it saved last is not worth going on from; a checkpoint of the run that `asked` names is taken all
/// the same. Throws UserError (input) for a folder that is no checkpoint.
Resume choose_resume(const std::string& asked, const Path& run, std::optional<double> launched, bool diverged = false);

/// "checkpoints/step-000050, step 50, manifest 1a2b3c4d", by which ranks compare; "none".
std::string describe(const Resume& resume);

/// Whether it is a folder as ColossalAI's trainers save it, epoch*-global_step*: weights, states of an optimiser, and
/// running_states.json.
bool is_trainer_folder(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
