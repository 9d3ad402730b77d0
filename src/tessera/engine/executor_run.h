#pragma once
// What the executor keeps while it interprets a schedule. Internal to its source files.
#include <array>
#include <map>
#include <optional>

#include "tessera/engine/stage_messages.h"
#include "tessera/engine/step_run.h"
#include "tessera/engine/unit_run.h"
#include "tessera/ops/deferred_gradients.h"

namespace tessera::engine {

/// One micro-batch in flight.
struct MicroRun {
  bool loaded = false;
  net::Batch batch;
  BoundaryShapes shapes;                             // where there are several stages
  std::map<std::pair<bool, int>, Message> received;  // by direction and the unit that takes it, until it does
  std::vector<UnitRun> runs;
  std::vector<Tensor> stream;  // boundary between the unit that ran last and the next
  std::vector<Tensor> cond;    // shared conditioning: leaves
  std::vector<Tensor> cond_grad;
  std::map<int, ops::DeferredGradients> deferred;  // by unit: gradients of weights that its backward left
  std::vector<Tensor> stream_grad;                 // gradient of the boundary, going back
};

/// One program being interpreted.
struct ScheduleRun {
  plan::ProgramPtr program;
  int64_t step;
  net::Objective* objective = nullptr;
  Report report = {};
  const net::UnitUpdate* update = nullptr;
  const std::vector<net::Batch>* batches = nullptr;
  std::vector<Tensor> results = {};
  const std::function<void()>* write = nullptr;
  const std::function<void()>* commit = nullptr;
  std::vector<MicroRun> micros = {};
  std::vector<Message> messages = {};  // by instruction: what it sends or receives
  std::vector<double> shares = {};     // of units whose gradient left before the norm: their sums of squares, else -1
  std::vector<std::array<double, 2>> times = {};
  std::vector<std::vector<plan::Comm>> comm = {};
  std::vector<int64_t> tokens = {};  // by micro-batch: of all ranks that share them
  std::vector<int64_t> samples = {};
  double norm = 0;                              // as the exchange gave it
  std::vector<std::vector<double>> ranks = {};  // likewise
  double start = 0, in_collectives = 0;         // when it began, and what had been spent in collectives by then

  const plan::Schedule& schedule() const { return program->schedule; }
  const plan::Plan& plan() const { return program->plan; }
};

}  // namespace tessera::engine
