#pragma once
// The checkpoints of a run: saves them, calls them proved, and removes those that are too many.
//
//   Checkpoints checkpoints(folder, health, proofs, contents);
//   checkpoints.save(step);                                  // all ranks together; unsaved() says why there is none
//   if (checkpoints.unsaved().empty()) ...
//
// [Note: proved] What diverges may look whole for a step or two. A checkpoint is proved once each expert that was trained
// since the one before has made a step from it that was finite, and no spike.
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/checkpoint/training.h"
#include "tessera/recipe/recipe.h"
#include "tessera/train/divergence.h"
#include "tessera/train/run_folder.h"

namespace tessera::train {

/// Which checkpoints wait for their proof, and for whose steps. Equal on all ranks.
class Proofs {
 public:
  struct Waiting {
    std::filesystem::path checkpoint;
    std::set<size_t> experts;  ///< of which no step has begun from it
  };
  /// `expert_of`: the one that each of the run's `steps` steps trains; behind a gate any of them may be.
  Proofs(size_t experts, bool gated, int64_t steps, std::function<size_t(int64_t step)> expert_of);

  /// The expert has made an update: its first one behind a checkpoint began from there, since it is changed by its own
  /// steps alone.
  void trained(size_t expert, bool spike);
  /// A checkpoint of `step`: each expert that was trained since the one before has to make a step from it.
  Waiting next(const std::filesystem::path& checkpoint, int64_t step) const;
  void saved(Waiting checkpoint);
  /// Those that wait no more, which are forgotten.
  std::vector<Waiting> take_proved();
  /// Of those that wait the one that stays although newer ones are kept.
  std::optional<std::filesystem::path> kept() const;

  /// Of several experts a checkpoint says for which of them it and those before it wait: the next start is to know of a
  /// turn that ended untested.
  void save(const Waiting& next, checkpoint::Manifest& manifest) const;
  /// `own`: the checkpoint of this run, of step `step`, that it goes on from.
  void restore(const checkpoint::Manifest& manifest, const std::filesystem::path& own, int64_t step);

 private:
  const size_t experts_;
  const bool gated_;
  const int64_t steps_;
  const std::function<size_t(int64_t)> expert_of_;
  std::vector<Waiting> waiting_;
  std::set<size_t> changed_;  // experts with updates since the last save
};

class Checkpoints {
 public:
  /// What a checkpoint is of.
  struct Contents {
    /// Runs the program of a checkpoint: `write` when what it writes is in place, then `commit`.
    std::function<void(int64_t step, const std::function<void()>& write, const std::function<void()>& commit)> run;
    std::function<void()> settle;                            ///< numbers that ranks have yet to exchange, before it
    std::function<std::vector<checkpoint::Piece>()> pieces;  ///< of this rank
    std::function<void(int64_t step, checkpoint::Manifest&)> describe;
    std::function<void(int64_t step, const std::filesystem::path& partial)>
        beside;                                                                    ///< other programs' files within it
    std::function<void(int64_t step, const std::filesystem::path& saved)> behind;  ///< and those that follow it
    std::function<std::map<int64_t, double>()> losses;  ///< held-out losses by their steps, for checkpoint.keep_best
  };
  /// All but `contents` outlive it. Proofs' steps are those of which `health` says that they prove.
  Checkpoints(const RunFolder& folder, Health& health, Proofs& proofs, Contents contents);

  /// checkpoint.keep and the like of the part of the run that begins.
  void begin_part(const recipe::Recipe::Checkpoint& settings) { settings_ = settings; }
  void save(int64_t step);
  /// Whether checkpoint.every_minutes are over since the last save, or since the start.
  bool due() const;
  /// Why the last save wrote no checkpoint; empty: it did.
  const std::string& unsaved() const { return unsaved_; }
  /// Whether this rank and all others have finite weights and states, without saving them; else unsaved() says it.
  void look(int64_t step);
  /// Calls proved what the step proves.
  void after(int64_t step);
  /// Removes checkpoints and exports that are too many. Of rank 0.
  void prune() const;

 private:
  void commit(int64_t step, const Proofs::Waiting& next);
  std::set<int64_t> best_saves() const;
  bool agree_finite(prepare::Pace& pace, int64_t step, const std::string& broken);

  const RunFolder& folder_;
  Health& health_;
  Proofs& proofs_;
  const Contents contents_;
  recipe::Recipe::Checkpoint settings_;
  std::string unsaved_;
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
};

// Checkpoints of other trainers (foreign_checkpoint.cpp).

/// Whether run.resume names a file or a trainer's folder, not a checkpoint of ours or a word.
bool is_foreign_checkpoint(const std::string& asked);

/// Writes weights, moments and step of what run.resume names to run.out/adopted/step-000500, a checkpoint from which a run
/// of any layout resumes, and gives the folder; one that was made of the same file before is kept. All ranks together:
/// each converts a part. `facts`: of this run. Throws UserError: (input) for a file that is none, lacks a tensor, has
/// another shape, or pickles of sharded tensors; (usage) for runs whose state such a file cannot have: adapters,
/// experts, another optimiser than AdamW.
std::filesystem::path adopt(const recipe::Recipe& recipe, const job::Job& job, const Values& facts, Ranks& ranks);

}  // namespace tessera::train
