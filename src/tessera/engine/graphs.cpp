#include "tessera/engine/graphs.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/device/staging.h"
#include "tessera/plan/graphs.h"

namespace tessera::engine {

namespace {

constexpr size_t kMostGraphs = 16;  // each has memory of the driver
constexpr int kManyForms = 64;      // in a row, none of which came again: graphs gain nothing

}  // namespace

bool StepGraphs::takes(const plan::Program& program) {
  std::string absence = plan::graphs_absence(program.plan);
  if (absence.empty()) absence = plan::graphs_absence(program.schedule, program.norm);
  if (absence.empty() && device::staging_bytes() > 0)
    absence = "the system page-locks no memory, so the host takes part in copies";
  if (absence.empty() && !device::has_streams()) absence = "TESSERA_SERIAL=1 runs one instruction after the other";
  if (!absence.empty() && !std::exchange(told_absence_, true)) tell("steps are no graphs: " + absence);
  return absence.empty();
}

void StepGraphs::forget(Step& step) {
  if (step.graph) device::used()->free_graph(step.graph);
  step.graph = nullptr;
}

void StepGraphs::clear() {
  for (Step& step : steps_) forget(step);
  steps_.clear();
}

StepGraphs::Step& StepGraphs::find(const plan::ProgramPtr& program, std::string form, bool& fresh) {
  const auto found =
      std::ranges::find_if(steps_, [&](const Step& step) { return step.program == program && step.form == form; });
  fresh = found == steps_.end();
  Step step = fresh ? Step{program, std::move(form)} : std::move(*found);
  if (!fresh) steps_.erase(found);
  steps_.push_front(std::move(step));
  if (steps_.size() > kMostGraphs) forget(steps_.back()), steps_.pop_back();
  return steps_.front();
}

bool StepGraphs::run(const std::shared_ptr<ScheduleRun>& shared) {
  ScheduleRun& run = *shared;
  std::optional<std::string> form = interpreter_.pack(run);
  if (!form) return false;
  bool fresh = false;
  Step& step = find(run.program, std::move(*form), fresh);
  if (fresh) {
    if (++forms_ >= kManyForms && !std::exchange(told_forms_, true))
      tell(std::to_string(kManyForms) +
           " steps in a row had forms of their own, and none was a graph: set plan.graphs = \"off\"");
    return false;
  }
  forms_ = 0;
  if (step.graph && step.uploads != interpreter_.uploads_place()) forget(step);
  if (!step.graph) {
    capture(shared, step);
    return true;
  }
  const Meter::Claim claim(step.pool);
  if (!claim.holds()) {
    if (!std::exchange(told_taken_, true)) tell("steps run without their graph while others have its memory");
    return false;
  }
  interpreter_.bring_again(run, step.brought);
  launch(run, step);
  ++repeated_;
  return true;
}

void StepGraphs::launch(ScheduleRun& run, const Step& step) {
  device::label("");
  device::used()->launch(step.graph);
  run.given = step.given;
  lanes_.repeated(run, run.program->norm);
}

void StepGraphs::capture(const std::shared_ptr<ScheduleRun>& shared, Step& step) {
  const device::Backend& table = *device::used();
  ScheduleRun& run = *shared;
  interpreter_.bring_captured(true);
  Meter::begin_pool();
  table.begin_graph();
  run.capturing = true;
  try {
    lanes_.capture(shared, run.program->norm);
    device::label("norm");
    step.given = interpreter_.numbers().give(*run.objective);
    step.graph = table.end_graph();
  } catch (const std::exception& error) {
    lanes_.drain();
    try {
      table.free_graph(table.end_graph());
    } catch (const c10::Error&) {  // what was captured is gone
    }
    Meter::end_pool();
    if (!table.fault().empty()) throw;  // it has failed for good, and who asks for that says more
    throw UserError(Exit::usage, "plan.graphs",
                    "a step could not be captured as a graph of the device: " + std::string(error.what()),
                    "set plan.graphs = \"off\"");
  }
  step.brought = interpreter_.take_brought(), step.uploads = interpreter_.uploads_place();
  interpreter_.bring_captured(false);
  launch(run, step);
  step.pool = Meter::end_pool();
  ++captured_;
  int64_t tokens = 0;
  for (const int64_t of_micro : run.tokens) tokens += of_micro;
  tell("captured the steps of " + std::to_string(tokens) + " tokens in " + std::to_string(run.tokens.size()) +
       " micro-batches as a graph of " + std::to_string(table.graph_nodes(step.graph)) + " nodes (step " +
       std::to_string(run.step) + ")");
}

}  // namespace tessera::engine
