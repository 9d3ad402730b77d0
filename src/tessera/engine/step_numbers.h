#pragma once
// The numbers of a step: squared gradients, the errors of quantised activations and what the objective reads. They stay where
// they are computed until `norm`, the only place where the host waits for a device.
//
//   numbers.begin();
//   numbers.add(unit, gradient);                          // of a gradient that is gone before the norm
//   const double squares = numbers.read(objective, numbers.give(objective));       // at the norm, of all
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/engine/collectives.h"
#include "tessera/engine/saved.h"
#include "tessera/engine/step_times.h"
#include "tessera/engine/store/store.h"
#include "tessera/engine/unit_run.h"
#include "tessera/net/objective.h"
#include "tessera/net/unit_update.h"
#include "tessera/ops/session.h"

namespace tessera::engine {

/// Products in 8 bits count what they lose in the first of so many steps.
inline constexpr int64_t kFp8CountEvery = 50;

class StepNumbers {
 public:
  explicit StepNumbers(Store& store);
  ~StepNumbers();
  StepNumbers(const StepNumbers&) = delete;

  /// A step begins. The first one takes memory of the device, beside what the plan counts. `counts_fp8`: its units count what
  /// products in 8 bits lose. Without `trains` there are no gradients, and the norm is 0.
  void begin(bool counts_fp8, bool trains = true);
  /// The unit's share of the norm. Lanes may add those of different units at once.
  void add(int unit, const Tensor& gradient);
  /// How many numbers are on their way to the host: of the step, of the objective, and of what 8 bits lost.
  struct Given {
    int64_t own = 0, extra = 0, lost = 0;
  };
  /// The device's part: adds the squares of the gradients that were not added, and gives the numbers to the host. A graph
  /// repeats it.
  Given give(net::Objective& objective);
  /// The host waits for them: this rank's sum of squares; hands the objective its numbers.
  double read(net::Objective& objective, Given given);

  /// ops::kFp8Counts numbers of the unit, where it computes; null: the step counts none.
  double* fp8_counts(int unit) const;
  /// Of all units, of the step that was read last; empty: it counted none.
  std::vector<double> take_fp8() { return std::exchange(fp8_, {}); }

  CompressionError& compression_error() { return compression_error_; }
  /// The error of the activations that were quantised since the last call.
  CompressionError take_compression_error() { return std::exchange(compression_error_, {}); }

 private:
  void reserve();
  int64_t bytes() const;
  Tensor at(int64_t begin, int64_t end) const;

  Store& store_;
  const device::Backend& table_;
  std::vector<int64_t> first_;  // by unit: the place of its first buffer's squares
  int64_t count_ = 0;
  // squares by buffer, 0 of those that this rank does not count; then the errors; then what products in 8 bits lose by unit
  void* data_ = nullptr;
  bool counts_fp8_ = false;
  std::vector<double> fp8_;
  std::vector<double> of_offloaded_;  // squares of gradients that are the host's
  std::vector<char> added_;           // by unit
  HostMemory host_{HostMemory::Refused::drivers_own};
  device::Mark copied_;
  CompressionError compression_error_;
};

// A training step in two halves: up to the exchange of the gradient norm and of the ranks' reports, and, once every
// rank has taken the same decision from them, the updates.
//
//   StepRun step = engine.run(pass, objective, report);
//   engine.finish(std::move(step), decide(step.norm(), step.ranks()));

/// A pass of a step: the whole step, or the part that one of several experts trains.
struct Pass {
  plan::ProgramPtr program;
  int64_t step = 0;   ///< of the run
  size_t expert = 0;  ///< the active expert
  /// The control of updates in the backward (plan::Update::in_backward).
  std::optional<net::StepControl> ahead = {};
  const struct OtherForm* form = nullptr;  ///< of the units; null: their own
};

/// This rank's numbers for the exchange at `norm`, at most plan::kControlDoubles - 1. Called after Objective::read.
using Report = std::function<std::vector<double>()>;

/// One micro-batch in flight.
struct MicroRun {
  bool loaded = false;
  net::Batch batch;
  BoundaryShapes shapes;                             // where there are several stages
  std::map<std::pair<bool, int>, Message> received;  // by direction and receiving unit, until the unit takes it
  std::vector<UnitRun> runs;
  std::vector<Tensor> stream;  // boundary between the unit that ran last and the next
  std::vector<Tensor> cond;    // shared conditioning: leaves
  std::vector<Tensor> cond_grad;
  std::map<int, ops::DeferredGradients> deferred;  // by unit: weight gradients that its backward deferred
  std::vector<Tensor> stream_grad;                 // gradient of the boundary, going back
};

/// Units of another form over the same parameters, and what they were measured to take: forward mode (net/passes.h).
struct OtherForm {
  std::vector<std::unique_ptr<net::Unit>> units;
  plan::ModelSpec spec;
  bool frozen = false;  ///< nothing is trained: a backward gives the gradients of the inputs alone
};

class Interpreter;

/// One program being interpreted.
struct ScheduleRun {
  plan::ProgramPtr program;
  int64_t step;
  net::Objective* objective = nullptr;
  Report report = {};
  const net::UnitUpdate* update = nullptr;
  const std::vector<net::Batch>* batches = nullptr;
  bool without_adapters = false;
  const OtherForm* form = nullptr;  ///< of the units; null: their own
  bool frozen() const { return form && form->frozen; }
  std::vector<Tensor> results = {};
  const std::function<void()>* write = nullptr;
  const std::function<void()>* commit = nullptr;
  std::vector<MicroRun> micros = {};
  std::vector<Message> messages = {};  // by instruction: the message that it sends or receives
  std::vector<std::vector<plan::Comm>> comm = {};
  std::vector<int64_t> tokens = {};  // by micro-batch: all tokens, not only this rank's
  std::vector<int64_t> samples = {};
  double norm = 0;                              // from the exchange at `norm`
  std::vector<std::vector<double>> ranks = {};  // likewise: the report of each rank
  std::unique_ptr<ScheduleTimes> times = {};
  std::vector<net::Batch> packed = {};            // by micro-batch, where all were packed before the first instruction
  int captured = 0;                               // so many instructions of the list are a graph's
  bool capturing = false;                         // they are being given to it
  std::optional<StepNumbers::Given> given = {};   // by that graph
  std::vector<int> issued_before = {};            // by instruction: the one whose messages are issued first; -1: none
  int first = 0;                                  // place of its first instruction among those of runs side by side
  Interpreter* by = nullptr;                      // of runs side by side each has its own
  std::array<bool, plan::kLaneCount> begun = {};  // lanes that have waited for what was before the schedule

  const plan::Schedule& schedule() const { return program->schedule; }
  const plan::Plan& plan() const { return program->plan; }
};

class StepRun {
 public:
  double norm() const { return rest_->norm; }  ///< of all gradients, which still have the loss scale
  /// The report of each rank.
  const std::vector<std::vector<double>>& ranks() const { return rest_->ranks; }

 private:
  friend class Engine;
  std::shared_ptr<ScheduleRun> rest_;
};

}  // namespace tessera::engine
