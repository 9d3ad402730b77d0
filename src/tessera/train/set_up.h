#pragma once
// What a run is made of, set up before its first step: all that may refuse it, its data, plans, engine and weights. And
// the time from a rank's start to its first step, phase by phase.
//
//   StartTimes times;                                         // the program starts
//   std::unique_ptr<Run> run = set_up(recipe, place, times, trace);
//   begin_part(*run, run->parts->index() + 1);                // a stage follows
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/train/checkpoints.h"
#include "tessera/train/export.h"
#include "tessera/train/observers.h"
#include "tessera/train/sampler.h"
#include "tessera/train/updates.h"

namespace tessera::train {

enum class StartPhase {
  program,  ///< arguments, recipe, the device
  connect,  ///< to the other ranks
  model,    ///< the model without weights, and the checks of recipe, weights and folder
  data,     ///< clips and captions that are not in the cache yet
  measure,  ///< the model's memory and work
  plan,     ///< the search, by rank 0
  wait,     ///< of the other ranks, for rank 0's plan
  compile,  ///< the plan to instructions, and their communicators
  buffers,  ///< the engine's memory
  weights,  ///< of a checkpoint or of published files
  samples,  ///< that a run owes when it goes on
};
inline constexpr int kStartPhases = static_cast<int>(StartPhase::samples) + 1;

/// As in logs, heartbeats and metrics.jsonl: "loading the weights".
const char* name(StartPhase phase);

using StartSeconds = std::array<double, kStartPhases>;

class StartTimes {
 public:
  /// A phase that comes again adds to its time.
  void begin(StartPhase phase);
  void end();
  const StartSeconds& seconds() const { return seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  StartSeconds seconds_ = {};
  StartPhase phase_ = StartPhase::program;
  Clock::time_point began_ = Clock::now();
};

double total(const StartSeconds& seconds);
/// One line with all phases that took a millisecond.
std::string describe(const StartSeconds& seconds);

/// Ends a rank because of what rank 0 found and has told.
struct ToldByRankZero {
  Exit code;
};

/// The parts of a run, each made of those above it.
struct Run {
  recipe::Recipe recipe;  ///< with what was filled in, of the whole run
  StartTimes started;
  Ranks ranks;
  job::Job job = {};
  std::optional<RunFolder> folder = {};
  Values facts = {};  ///< run_facts.h
  std::optional<Health> health = {};
  std::vector<prepare::StageData> data = {};  ///< of each part
  std::optional<Parts> parts = {};
  std::unique_ptr<engine::Engine> engine = nullptr;
  std::unique_ptr<ExpertSchedule> experts = nullptr;
  std::vector<diffusion::FlowMatching> objectives = {};  ///< of passes side by side
  std::optional<Proofs> proofs = {};
  std::optional<Updates> updates = {};
  std::unique_ptr<Exports> exports = nullptr;
  std::optional<Checkpoints> checkpoints = {};
  std::set<std::string> told_links = {};  ///< communicators that were logged
  std::optional<Loader> loader = {};      ///< ends first, but for what pauses it: it uses the data
  std::optional<Sampler> sampler = {};
  std::optional<HeldOut> held_out = {};
  std::optional<StepMeter> meter = {};
};

/// All ranks together. `started`: of this process, in StartPhase::connect. `trace`: file of every executed instruction;
/// empty: none. Throws UserError for what the recipe, the data, the weights or the plan do not allow; where rank 0 has told
/// it, ToldByRankZero.
std::unique_ptr<Run> set_up(recipe::Recipe recipe, const comm::Rendezvous& place, StartTimes started,
                            const std::string& trace);

/// Begins a part of the run, with its own settings, shapes, data, plan and programs. Parameters and states stay.
void begin_part(Run& run, size_t part);

/// From the next step on the dp ranks have so many samples; stays with those there are where the others would not fit the
/// budget. All ranks together.
void give_shares(Run& run, int64_t step, const std::vector<int64_t>& shares);

}  // namespace tessera::train
