#pragma once
// What a run knows of its own health: steps that were skipped, spikes, and that the start before it diverged; and what its
// user is told to go back to.
//
//   Health health(folder, recipe.run, recipe.stages, job.experts, note);
//   if (const auto spike = health.weigh(pass, decision)) ...                    // an update was made; did it spike?
//   if (const std::string why = health.doubt(); !why.empty()) ...               // what would be saved now is not worth it
//
//   Spikes spikes(recipe.run.spike, experts);
//   if (const std::string text = spikes.step(expert, loss, norm); !text.empty()) ...    // told, and nothing is proved by it
//
//   write_divergence(out, {...});                                   // the run ends with code 6
//   if (const auto before = read_divergence(out); before && other_course(*before, values, data).empty()) ...  // again
#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/options.h"
#include "tessera/job/experts.h"
#include "tessera/train/expert_schedule.h"
#include "tessera/train/run_folder.h"

namespace tessera::train {

/// Running medians of the losses and gradient norms of each expert. Equal on all ranks. A spike is no part of them: a run
/// that has diverged does not come to look like a healthy one by going on.
class Spikes {
 public:
  Spikes() = default;  ///< there are none
  /// `limit`: run.spike; 0: nothing is a spike.
  Spikes(double limit, size_t experts) : limit_(limit), of_(experts) {}

  /// Takes a step whose loss and norm are finite. What is told of it where one of them is a spike; else empty.
  std::string step(size_t expert, double loss, double norm);

  void save(checkpoint::Manifest& manifest) const;
  /// What a checkpoint has none of, or of another number of experts, begins anew.
  void restore(const checkpoint::Manifest& manifest);

 private:
  using Window = std::deque<double>;
  struct Of {
    Window losses, norms;
  };
  double limit_ = 0;
  std::vector<Of> of_;
};

/// RUN/diverged.json: why the last start of a run ended with code 6, or that it ended while it skipped steps; and what it
/// computed.
struct Divergence {
  int64_t step = 0;  ///< the first that was not finite
  std::string why;
  double lr = 0;          ///< of that step
  Values recipe, filled;  ///< every option, as it was given and with all that was chosen
  std::string data;       ///< a digest of the data set
  bool skipping = false;  ///< no step that was computed since was finite, and the run went on: the next may be
};

/// Throws UserError (disk).
void write_divergence(const std::filesystem::path& run, const Divergence& divergence);
/// Nothing where there is none, or none that can be read.
std::optional<Divergence> read_divergence(const std::filesystem::path& run);
void forget_divergence(const std::filesystem::path& run);

/// What makes a run of this recipe on these data another one: the first key, or "the data". Empty where it does the same up
/// to that step: what has changed, if anything, is of its ranks, memory, checkpoints or samples.
std::string other_course(const Divergence& divergence, const Values& recipe, const std::string& data);

/// "the newest proved checkpoint is ..."; or that there is none.
std::string newest_proved(const std::filesystem::path& checkpoints);
/// That, and the commands that go on from there with a lower rate or another seed. `step` and `lr`: of the step that was
/// not finite.
std::string way_back(const recipe::Recipe::Run& run, const std::vector<recipe::Stage>& stages,
                     const comm::Rendezvous& place, int64_t step, double lr);

/// Equal on all ranks: each has the same decisions.
class Health {
 public:
  /// What diverged.json is to say of this start; asked for by rank 0 when the plans are there.
  using Note = std::function<Divergence(int64_t step, const std::string& why, double lr)>;
  /// All outlive it.
  Health(const RunFolder& folder, const recipe::Recipe::Run& run, const std::vector<recipe::Stage>& stages,
         const job::Experts& experts, Note note);

  // at the start
  /// Whether the start before this one diverged. Steps that were skipped up to the end may have been of one bad sample:
  /// the same recipe on the same data goes on.
  bool goes_back(const Values& recipe) const;
  /// Refuses a start that would do what the one before it did. One that skipped steps to its end may go on, or goes back too
  /// where the data are others: then the folder is to choose again. `data`: their digest.
  bool require_other_course(const Values& recipe, const std::function<std::string()>& data);
  /// "step 12 was not finite, and train.lr has changed since"
  std::string why_back() const;
  /// The run begins its new course.
  void forget() const;

  // of a step
  void before();
  /// What a pass came to: nothing where it was skipped, else whether it was a spike.
  std::optional<bool> weigh(const ExpertPass& pass, const Decision& decision);
  /// Ends a run that only skips: its weights stay what they are, so nothing but another sample could mend it.
  void after(int64_t step);
  const std::string& skipped() const { return skipped_; }  ///< why the step was; empty: it was not
  bool proves() const { return skipped_.empty() && !spiked_; }

  /// Why what would be saved now is not worth going on from; empty: it is.
  std::string doubt() const;
  void save(checkpoint::Manifest& manifest) const { spikes_.save(manifest); }
  void restore(const checkpoint::Manifest& manifest) { spikes_.restore(manifest); }

  /// What there is to go back to, and how.
  std::string way_back(int64_t step, double lr) const;
  /// For the next start. All ranks together: a rank that ends takes the others along.
  void note(int64_t step, const UserError& error, double lr);
  /// Whether the run comes to its end at `step` with weights that are not worth exporting: not_finite, told; or done.
  /// `unsaved`: why the last save wrote no checkpoint.
  Exit end(int64_t step, const std::string& unsaved);

 private:
  bool look_for_spikes(const ExpertPass& pass, const Decision& decision);
  void note_skips(int64_t step, const std::string& why, double lr);
  void note(int64_t step, const std::string& why, double lr);

  const RunFolder& folder_;
  const recipe::Recipe::Run& run_;
  const std::vector<recipe::Stage>& stages_;
  const job::Experts& experts_;
  const Note note_;
  const std::optional<Divergence> before_;  // of the start before; resume().back: this one goes back because of it
  std::string other_course_;                // and what is different now
  Spikes spikes_;
  int64_t spikes_in_a_row_ = 0;
  int64_t steps_ = 0, skips_ = 0;  // of this process
  int64_t skips_in_a_row_ = 0;     // up to this step, but for overflows of the loss scale
  std::set<size_t> skipping_;      // experts whose last step was skipped, but for overflows of the loss scale
  bool skips_noted_ = false;       // in RUN/diverged.json, as long as no step is finite
  double rate_ = 0;                // of the last step
  // of the step that runs
  std::string skipped_;
  bool overflowed_ = false, spiked_ = false;
};

}  // namespace tessera::train
