#include "tessera/engine/engine.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/engine/group_check.h"
#include "tessera/engine/store/meter.h"
#include "tessera/ops/ranges.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::engine {

namespace {

std::vector<std::string> prefixes_of(const Interpreter::Units& units) {
  std::vector<std::string> prefixes;
  for (const auto& unit : units) prefixes.push_back(unit->prefix());
  return prefixes;
}

std::vector<bool> blocks_of(const Interpreter::Units& units) {
  std::vector<bool> blocks;
  for (const auto& unit : units) blocks.push_back(plan::is_block(unit->spec()));
  return blocks;
}

}  // namespace

Engine::Engine(const Interpreter::Units& units, const plan::ModelSpec& spec, const plan::Plan& plan, comm::Comm& comm,
               int rank, EngineOptions options)
    : comm_(comm),
      batch_bytes_(spec.inputs + spec.targets),
      store_(spec, prefixes_of(units), plan, rank, device::here(), options.trainable, options.nvme,
             std::make_unique<SharedWeights>(spec, plan, comm, rank)),
      times_(rank, ops::on_device(store_.device()), comm.by_device(), blocks_of(units), options.trace),
      interpreter_(units, spec, store_, comm, plan, rank, options),
      lanes_(interpreter_, times_, store_, comm.by_device()) {
  if (options.graphs && ops::on_device(store_.device())) graphs_.emplace(interpreter_, lanes_, comm_);
}

/// After a failure a lane may still be at an instruction, which uses what is destroyed here.
Engine::~Engine() {
  lanes_.drain();
  // After an error another rank may not send what the device waits for, and the process ends with its windows.
  if (std::uncaught_exceptions() == 0) try {
      interpreter_.close_windows();
    } catch (const std::exception&) {  // what was under way failed: who waits for it says so
    }
  try {
    lanes_.await_device();
    times_.settle(/*wait=*/true);  // traces are whole
  } catch (const c10::Error&) {    // the device has failed, and nothing of it is read any more
  }
  store_.rest(nullptr);
}

void Engine::optimise(std::unique_ptr<const net::UnitUpdate> optimiser) {
  optimiser_ = std::move(optimiser);
  if (!std::exchange(has_states_, true)) store_.make_states(*optimiser_);
}

void Engine::use(const plan::Programs& programs, int64_t arena, int64_t host_arena) {
  if (graphs_) graphs_->clear();
  const std::vector<plan::ProgramPtr> before = std::exchange(used_, {});
  std::vector<const plan::Schedule*> fresh;
  std::vector<plan::ProgramPtr> all = {programs.train,   programs.sample,   programs.checkpoint, programs.base,
                                       programs.tangent, programs.features, programs.judged,     programs.exchange};
  for (const auto& [expert, own] : programs.of_expert) all.push_back(own.train);
  for (const plan::ProgramPtr& program : all) {
    if (!program) continue;
    used_.push_back(program);
    if (std::ranges::find(before, program) == before.end()) fresh.push_back(&program->schedule);
  }
  check_groups(comm_, fresh);
  interpreter_.reserve_host(std::max(programs.host_arena, host_arena), batch_bytes_, programs.train->schedule.micros);
  std::vector<const plan::Schedule*> schedules;
  all.insert(all.end(), {programs.first, programs.updates});
  for (const auto& [expert, own] : programs.of_expert) all.insert(all.end(), {own.first, own.updates});
  for (const plan::ProgramPtr& program : all)
    if (program) schedules.push_back(&program->schedule);
  make_arena(std::max(programs.arena, arena), schedules);
  store_.place_gradients(programs.train->plan);
  interpreter_.lend_kept();
}

void Engine::use(const plan::Program& program) {
  if (graphs_) graphs_->clear();
  interpreter_.reserve_host(program.schedule.host_arena, batch_bytes_, program.schedule.micros);
  const at::Tensor& arena = store_.arena();
  const int64_t there = arena.defined() ? static_cast<int64_t>(arena.nbytes()) : 0;
  // Where the device sends, all ranks make theirs together, whether it grows or not: windows depend on the program.
  if (there < program.schedule.arena || comm_.by_device())
    make_arena(std::max(program.schedule.arena, there), {&program.schedule});
}

/// The old one is freed before ranks look for room, and its windows are closed before that.
void Engine::make_arena(int64_t bytes, const std::vector<const plan::Schedule*>& used) {
  interpreter_.close_windows();
  store_.change_arena(0);
  {
    const SamePlace place(comm_, bytes);
    store_.change_arena(bytes);
  }
  interpreter_.open_windows(used);
}

StepRun Engine::run(const Pass& pass, net::Objective& objective, const Report& report) {
  check_internal(pass.program->norm >= 0 && !in_step_, "engine.run",
                 in_step_ ? "the step before is not finished" : "the program has no norm: it is no training step");
  swap(pass.expert);
  StepRun step;
  step.rest_ =
      std::make_shared<ScheduleRun>(ScheduleRun{pass.program, pass.step, &objective, report, optimiser_.get()});
  step.rest_->form = pass.form;
  std::optional<Store::FrozenScope> frozen;
  if (step.rest_->frozen()) frozen.emplace(store_);
  if (pass.ahead) interpreter_.decide(pass.ahead);
  times_.forget_attention();
  interpreter_.begin_step(*step.rest_);
  in_step_ = true;
  // The times of a graph's instructions are not known: who asks for them gets a step without one.
  const bool may = graphs_ && graphs_->takes(pass.program->plan);
  const bool graph = may && !times_.of_instructions() && graphs_->takes_here(*pass.program);
  begin(*step.rest_, !graph);
  const bool given = may && graphs_->run(step.rest_, graph);
  lanes_.run(step.rest_, given ? pass.program->norm : 0, pass.program->norm + 1);
  return step;
}

void Engine::finish(StepRun step, std::optional<net::StepControl> control) {
  const std::shared_ptr<ScheduleRun> run = std::move(step.rest_);
  in_step_ = false;
  if (run->plan().update != plan::Update::in_backward) interpreter_.decide(control);
  lanes_.run(run, run->program->norm + 1, static_cast<int>(run->schedule().list.size()));
  end(*run);
}

void Engine::update(const plan::ProgramPtr& program, int64_t step) {
  const auto run = std::make_shared<ScheduleRun>(ScheduleRun{program, step});
  run->update = optimiser_.get();
  run_whole(run);
}

std::vector<Tensor> Engine::forward(const plan::ProgramPtr& program, const std::vector<net::Batch>& batches,
                                    int64_t step, bool without_adapters, const OtherForm* form) {
  check_internal(static_cast<int>(batches.size()) == program->schedule.micros, "engine.forward",
                 "batches do not match the schedule");
  const at::NoGradGuard no_grad;
  const auto run = std::make_shared<ScheduleRun>(ScheduleRun{program, step});
  run->batches = &batches, run->without_adapters = without_adapters, run->form = form;
  run->results.resize(batches.size());
  run_whole(run);
  return std::move(run->results);
}

void Engine::checkpoint(const plan::ProgramPtr& program, int64_t step, const std::function<void()>& write,
                        const std::function<void()>& commit) {
  const auto run = std::make_shared<ScheduleRun>(ScheduleRun{program, step});
  run->write = &write;
  run->commit = &commit;
  run_whole(run);
}

void Engine::run_whole(const std::shared_ptr<ScheduleRun>& run) {
  begin(*run);
  lanes_.run(run, 0, static_cast<int>(run->schedule().list.size()));
  end(*run);
}

void Engine::begin(ScheduleRun& run, bool timed) {
  store_.await_fill();
  interpreter_.begin(run);
  lanes_.begin(run);
  run.times = times_.begin(run.program, run.step, timed);
}

void Engine::end(ScheduleRun& run) {
  lanes_.end(run);
  times_.end(std::move(run.times));
}

}  // namespace tessera::engine
