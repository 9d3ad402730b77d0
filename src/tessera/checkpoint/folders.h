#pragma once
// The checkpoints folder of a run: which checkpoints are whole, which are remains of a crash, which are too many. And its
// exports folder, which has a model for other programs of every save.
//
//   clean_partials(run / "checkpoints");             // at start, by one rank
//   std::optional<Path> newest = latest(run / "checkpoints");
//   prune(run / "checkpoints", 3);
//   prune_exports(run / kExports, 10, newest_proved(run / "checkpoints"));
//
// [Note: whole or absent] A checkpoint is written as step-000100.partial and renamed when manifest.json, written last,
// and everything else is flushed; one that goes is renamed to .partial first, and its manifest is what goes first. So at
// any instant a folder with a manifest is whole. Of what else lies there only names that are made here are touched.
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"

namespace tessera::checkpoint {

Path step_folder(const Path& checkpoints, int64_t step);     ///< checkpoints/step-000100
int64_t step_of(const std::string& name);                    ///< of a folder's name that step_folder() made; else -1
Path partial_folder(const Path& checkpoints, int64_t step);  ///< checkpoints/step-000100.partial

/// Whole checkpoints, oldest first; empty when the folder does not exist.
std::vector<Path> whole_checkpoints(const Path& checkpoints);
std::optional<Path> latest(const Path& checkpoints);

/// An empty file beside the manifest of a checkpoint from which a step began that was finite, and no spike. What diverges
/// may look whole for a step or two: a run that goes back goes back to one of these.
inline constexpr const char* kProved = "proved";
bool is_proved(const Path& checkpoint);
void prove(const Path& checkpoint);  ///< throws UserError (disk)
std::optional<Path> newest_proved(const Path& checkpoints);

/// Removes what killed runs left of saving and pruning; returns the names. What cannot be removed is a warning. No rank
/// may be saving meanwhile. Of exports too.
std::vector<std::string> clean_partials(const Path& checkpoints);

/// What stays beside the newest.
struct Retention {
  int64_t steps = 0;            ///< those of the last so many steps before the newest; 0: none
  std::set<int64_t> best = {};  ///< and those of these steps
};

/// Removes all whole checkpoints but the newest `keep` (0 and less: keeps all), the newest proved one, and `besides`;
/// returns their names. What cannot be removed is a warning: it is tried again at the next checkpoint.
std::vector<std::string> prune(const Path& checkpoints, int64_t keep, const std::optional<Path>& besides = {},
                               const Retention& more = {});

/// In a run's folder: a folder for each save, named as its checkpoint.
inline constexpr const char* kExports = "exports";
/// Folders named as saves are, oldest first: of a folder of checkpoints or of exports.
std::vector<Path> saves_in(const Path& folder);
/// Those of steps behind `step`, oldest first.
std::vector<Path> exports_behind(const Path& run, int64_t step);
/// Removes all exports but the newest `keep` (0 and less: keeps all) and that of the checkpoint `besides`.
void prune_exports(const Path& exports, int64_t keep, const std::optional<Path>& besides, const Retention& more = {});

/// Gives a flushed folder its final name in one step; what had that name before is swapped out, then removed.
void publish(const Path& partial, const Path& final);

/// Folders of steps that have no manifest and are newer than the newest whole one: copies that were cut short.
std::vector<Path> without_manifest(const Path& checkpoints);

/// The flag that goes on from the whole checkpoint before this one.
std::string earlier_than(const Path& checkpoint);

/// The error of reading a file of the checkpoint in `folder`, with that advice.
UserError damaged(const UserError& error, const Path& folder);

}  // namespace tessera::checkpoint
