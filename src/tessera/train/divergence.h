#pragma once
// What a run knows of its own health beside losses that are not finite: spikes, and that the start before it diverged.
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
#include <string>
#include <vector>

#include "tessera/base/options.h"

namespace tessera::checkpoint {
struct Manifest;
}

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

}  // namespace tessera::train
