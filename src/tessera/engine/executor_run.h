#pragma once
// The executor's state while it interprets a schedule. Internal to its source files.
#include <array>
#include <map>
#include <optional>

#include "tessera/engine/device_times.h"
#include "tessera/engine/stage_messages.h"
#include "tessera/engine/step_run.h"
#include "tessera/engine/unit_run.h"
#include "tessera/ops/session.h"

namespace tessera::engine {

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
  std::vector<Message> messages = {};  // by instruction: the message that it sends or receives
  std::vector<char> counted = {};      // by unit: whether the step's numbers have its gradient's sum of squares
  std::vector<std::array<double, 2>> times = {};
  std::vector<std::vector<plan::Comm>> comm = {};
  std::vector<int64_t> tokens = {};  // by micro-batch: all tokens, not only this rank's
  std::vector<int64_t> samples = {};
  double norm = 0;                                // from the exchange at `norm`
  std::vector<std::vector<double>> ranks = {};    // likewise: the report of each rank
  std::unique_ptr<DeviceTimes> timed = {};        // on a device, where times are read
  double start = 0, in_collectives = 0;           // when it began, and the seconds spent in collectives until then
  std::vector<int> issued_before = {};            // by instruction: the one whose messages are issued first; -1: none
  std::array<bool, plan::kLaneCount> begun = {};  // lanes that have waited for what was before the schedule

  const plan::Schedule& schedule() const { return program->schedule; }
  const plan::Plan& plan() const { return program->plan; }
};

}  // namespace tessera::engine
