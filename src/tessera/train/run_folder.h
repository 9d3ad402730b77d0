#pragma once
// The folder of a run, RUN: who holds it, the checkpoint that this start goes on from, and what lies there beside the
// checkpoints.
//
//   RunFolder folder(recipe.run, ranks);
//   folder.choose(recipe.run.resume, /*back=*/false);
//   if (folder.resumed()) ...                                    // until it is loaded
//   folder.claim(experts, ""), folder.open_log(recipe.run.on_event, changes);          // rank 0
//
// A run that goes back to an earlier checkpoint moves later checkpoints, exports and metrics lines to RUN/abandoned-N: a
// resume does not take them for the newest, and they are not lost.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/training.h"
#include "tessera/comm/run_lock.h"
#include "tessera/recipe/recipe.h"
#include "tessera/report/run_log.h"
#include "tessera/train/ranks.h"
#include "tessera/train/run_facts.h"

namespace tessera::train {

class RunFolder {
 public:
  /// Rank 0 takes the folder, unless its launcher has it. Throws UserError (usage) where another start holds it, or what
  /// is there is no run's. `ranks` outlives it.
  RunFolder(const recipe::Recipe::Run& run, Ranks& ranks);

  Ranks& ranks;  ///< which share it
  const std::filesystem::path out, checkpoints;

  /// Chooses the checkpoint to go on from: `asked` is run.resume, or what that was converted to; `back`: the start before
  /// diverged. All ranks together.
  void choose(const std::string& asked, bool back);
  const checkpoint::Resume& resume() const { return resume_; }
  /// The chosen one until loaded(); null: the run begins anew.
  checkpoint::TrainingCheckpoint* resumed() { return resumed_.get(); }
  void loaded() { resumed_.reset(); }
  int64_t step() const { return step_; }  ///< of the chosen one; 0: there is none
  bool own_checkpoint() const;            ///< whether it is one of this run

  // of rank 0
  /// Warns of checkpoints that are not whole, and makes the folders that are written first.
  void make() const;
  /// Takes over what earlier starts left: removes the remains of killed ones, and moves away checkpoints, exports and
  /// metrics lines after the chosen checkpoint. `experts`: the folders of their models; `because`: why the run goes back.
  void claim(const std::vector<std::string>& experts, const std::string& because) const;
  /// Continues metrics.jsonl, adds the events that a kill kept out of it, and says what has changed since the checkpoint.
  void open_log(const std::string& on_event, const std::vector<Change>& changes);
  /// Null before that, and on other ranks.
  report::RunLog* log() const { return log_.get(); }
  /// The resolved recipe. Texts that it replaces are kept, each as the next recipe-N.toml: the one by which the run last
  /// went, which who edits RUN/recipe.toml has overwritten, and one that stands there and never ran.
  void write_recipe(const std::string& recipe) const;
  /// The tokenizer that was made of the captions, in the run's folder: captions and cache may go.
  std::filesystem::path keep_tokenizer(const std::filesystem::path& made) const;

  /// Runs `act`, for which no other rank waits and without which training loses nothing: a failure is logged with what
  /// `then` becomes of it, and the run goes on. Returns the exit code of the failure.
  Exit attempt(int64_t step, const std::string& what, const std::string& then, const std::function<void()>& act) const;

 private:
  const std::string resume_key_;  // run.resume
  std::optional<comm::RunLock> lock_;
  checkpoint::Resume resume_;
  std::unique_ptr<checkpoint::TrainingCheckpoint> resumed_;
  int64_t step_ = 0;
  std::unique_ptr<report::RunLog> log_;
};

/// Moves the checkpoints `beyond`, the exports behind `step`, and a copy of the lines of metrics.jsonl behind it (which the
/// run then cuts off) to the next RUN/abandoned-N and says so. A kill at any instant is mended by the next call, also with
/// nothing beyond. Throws UserError (disk).
void leave_behind(const std::filesystem::path& run, int64_t step, const std::vector<std::filesystem::path>& beyond);

/// Joins FILE.rank-0, FILE.rank-1, ..., of which every rank wrote one, to FILE, when all have written theirs; the parts
/// go. Throws UserError (disk) when it cannot be written.
void join_rank_files(const std::string& file, int world);
/// Parts of FILE that a killed run left. Those of a run in hand must not be there.
void remove_rank_files(const std::filesystem::path& file);
std::vector<std::string> lines_of(const std::string& file);

}  // namespace tessera::train
