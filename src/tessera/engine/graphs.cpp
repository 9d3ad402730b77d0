#include "tessera/engine/graphs.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/device/staging.h"
#include "tessera/plan/graphs.h"

namespace tessera::engine {

namespace {

constexpr int kManyForms = 64;  // in a row, none of which came again: graphs gain nothing

}  // namespace

/// Tells the first time what is against them.
bool StepGraphs::none_against(const std::string& absence) {
  if (!absence.empty() && !std::exchange(told_absence_, true)) tell("steps are no graphs: " + absence, /*warns=*/true);
  return absence.empty();
}

bool StepGraphs::takes(const plan::Plan& plan) {
  std::string absence = plan::graphs_absence(plan);
  if (absence.empty() && !comm_.by_device()) absence = comm_.against_capture();
  return none_against(absence);
}

bool StepGraphs::takes_here(const plan::Program& program) {
  std::string absence = plan::graphs_absence(program.schedule, program.norm);
  if (absence.empty()) absence = comm_.against_capture();
  if (absence.empty() && device::staging_bytes() > 0)
    absence = "the system page-locks no memory, so the host takes part in copies";
  if (absence.empty() && !device::has_streams()) absence = "TESSERA_SERIAL=1 runs one instruction after the other";
  return none_against(absence);
}

void StepGraphs::forget(Step& step) {
  if (step.graph) device::used()->free_graph(step.graph);
  step.graph = nullptr, step.nodes = 0;
}

/// As many graphs as the plan has memory of the driver for.
void StepGraphs::keep_few() {
  int64_t nodes = 0;
  for (const Step& step : steps_) nodes += step.nodes;
  while (nodes * plan::kNodeBytes > plan::kGraphsBytes && steps_.size() > 1) {
    nodes -= steps_.back().nodes;
    forget(steps_.back()), steps_.pop_back();
  }
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
  if (steps_.size() > plan::kMostGraphs) forget(steps_.back()), steps_.pop_back();
  return steps_.front();
}

/// This rank's form with a hash of all ranks' forms; nullopt where one of them has none.
std::optional<std::string> StepGraphs::of_all(const std::optional<std::string>& form) {
  if (world().size() == 1) return form;
  const uint64_t hash = hash_text(form.value_or(""));
  const auto rows = world().all_gather_doubles(
      {form.has_value() ? 1.0 : 0.0, static_cast<double>(hash >> 32), static_cast<double>(hash & 0xFFFFFFFFu)});
  std::string all = form.value_or("") + "of all:";
  for (const auto& row : rows) {
    if (row[0] == 0) return std::nullopt;
    all += " " + std::to_string(static_cast<uint64_t>(row[1])) + "." + std::to_string(static_cast<uint64_t>(row[2]));
  }
  return all;
}

/// What no rank has anything against.
StepGraphs::Way StepGraphs::least(Way here) {
  double least = static_cast<double>(here);
  for (const auto& row : world().all_gather_doubles({least})) least = std::min(least, row[0]);
  return static_cast<Way>(static_cast<int>(least));
}

bool StepGraphs::run(const std::shared_ptr<ScheduleRun>& shared, bool wanted) {
  ScheduleRun& run = *shared;
  std::optional<std::string> form = of_all(wanted ? interpreter_.pack(run) : std::nullopt);
  if (!form) return false;
  bool fresh = false;
  Step& step = find(run.program, std::move(*form), fresh);  // all ranks find the same
  if (fresh) {
    if (++forms_ >= kManyForms && !std::exchange(told_forms_, true))
      tell(std::to_string(kManyForms) +
           " steps in a row had forms of their own, and none was a graph: set plan.graphs = \"off\"");
    return false;
  }
  forms_ = 0;
  Way way = Way::capture;
  std::optional<Meter::Claim> claim;
  if (step.graph) {
    way = Way::repeat;
    if (step.uploads != interpreter_.uploads_place())
      way = Way::capture;
    else if (!claim.emplace(step.pool).holds())
      way = Way::plain;
    if (way == Way::plain && !std::exchange(told_taken_, true))
      tell("steps run without their graph while others have its memory");
    way = least(way);
  }
  if (way == Way::plain) return false;
  if (way == Way::capture) {
    claim.reset();
    forget(step);
    capture(shared, step);
    return true;
  }
  interpreter_.bring_again(run, step.brought);
  launch(run, step);
  ++repeated_;
  return true;
}

void StepGraphs::launch(ScheduleRun& run, const Step& step) {
  device::label("");
  comm_.launches(step.messages);
  device::used()->launch(step.graph);
  run.given = step.given;
  lanes_.repeated(run, run.program->norm);
}

void StepGraphs::capture(const std::shared_ptr<ScheduleRun>& shared, Step& step) {
  const device::Backend& table = *device::used();
  ScheduleRun& run = *shared;
  interpreter_.bring_captured(true);
  Meter::begin_pool();
  comm_.begin_capture();
  table.begin_graph();
  run.capturing = true;
  try {
    lanes_.capture(shared, run.program->norm);
    device::label("norm");
    step.given = interpreter_.numbers().give(*run.objective);
    step.graph = table.end_graph();
    step.messages = comm_.end_capture();
  } catch (const std::exception& error) {
    lanes_.drain();
    static_cast<void>(comm_.end_capture());
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
  const int64_t nodes = table.graph_nodes(step.graph);
  for (const auto& row : world().all_gather_doubles({static_cast<double>(nodes)}))
    step.nodes = std::max(step.nodes, static_cast<int64_t>(row[0]));
  int64_t tokens = 0;
  for (const int64_t of_micro : run.tokens) tokens += of_micro;
  tell("captured the steps of " + std::to_string(tokens) + " tokens in " + std::to_string(run.tokens.size()) +
       " micro-batches as a graph of " + std::to_string(nodes) + " nodes (step " + std::to_string(run.step) + ")");
  keep_few();
}

}  // namespace tessera::engine
