#include "tessera/engine/engine.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/engine/group_check.h"
#include "tessera/engine/store/meter.h"
#include "tessera/ops/ranges.h"
#include "tessera/plan/compile/memory.h"
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
      beside_(plan.together > 1 ? std::make_unique<Beside>(units, spec, store_, comm, plan, rank, options) : nullptr),
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
  const int64_t bytes = plan::arena_of_all(programs.train->plan, std::max(programs.arena, arena));
  const std::vector<plan::ProgramPtr> before = std::exchange(used_, {});
  std::vector<const plan::Schedule*> fresh;
  std::vector<plan::ProgramPtr> all = {programs.train,  programs.sample,   programs.checkpoint,
                                       programs.base,   programs.tangent,  programs.features,
                                       programs.judged, programs.exchange, programs.teacher};
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
  make_arena(bytes, schedules);
  store_.place_gradients(programs.train->plan);
  if (beside_) {
    beside_->store.borrow_arena(store_, bytes / 2);
    beside_->interpreter.reserve_host(0, batch_bytes_, programs.train->schedule.micros);
    beside_->interpreter.lend_kept();
  }
  interpreter_.lend_kept();
  if (!teacher_) return;
  teacher_->store.borrow_arena(store_, 0);
  const plan::Schedule& pass = programs.teacher->schedule;
  teacher_->interpreter.reserve_host(pass.host_arena, teacher_->batch_bytes, pass.micros);
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
  if (beside_) beside_->store.give_back_arena();
  if (teacher_) teacher_->store.give_back_arena();
  store_.change_arena(0);
  {
    const SamePlace place(comm_, bytes);
    store_.change_arena(bytes);
  }
  interpreter_.open_windows(used);
}

std::shared_ptr<ScheduleRun> Engine::training(const Side& side, bool beside) {
  const Pass& pass = side.pass;
  check_internal(pass.program->norm >= 0, "engine.run", "the program has no norm: it is no training step");
  auto run = std::make_shared<ScheduleRun>(
      ScheduleRun{pass.program, pass.step, &side.objective, side.report, optimiser_.get()});
  run->form = pass.form, run->by = beside ? &beside_->interpreter : &interpreter_;
  if (pass.ahead) run->by->decide(pass.ahead);
  return run;
}

StepRun Engine::run(const Pass& pass, net::Objective& objective, const Report& report) {
  return std::move(run({{pass, objective, report}}).front());
}

std::vector<StepRun> Engine::run(const std::vector<Side>& sides) {
  check_internal(in_step_.empty(), "engine.run", "the step before is not finished");
  check_internal(sides.size() == 1 || (sides.size() == 2 && beside_), "engine.run",
                 std::to_string(sides.size()) + " passes side by side, the plan has room for fewer");
  swap(sides[0].pass.expert);
  if (sides.size() > 1) beside_->store.borrow(store_, static_cast<int>(sides[1].pass.expert));
  for (const Side& side : sides) in_step_.push_back(training(side, !in_step_.empty()));
  unfinished_ = in_step_.size();
  const std::shared_ptr<ScheduleRun>& first = in_step_.front();
  std::optional<Store::FrozenScope> frozen;
  if (first->frozen()) frozen.emplace(store_);
  times_.forget_attention();
  for (const auto& run : in_step_) run->by->begin_step(*run);
  if (sides.size() > 1) {
    begin(in_step_);
    lanes_.run_to_norms(in_step_);
  } else {
    // The times of a graph's instructions are not known: who asks for them gets a step without one.
    const plan::Program& program = *first->program;
    const bool may = graphs_ && graphs_->takes(program.plan);
    const bool graph = may && !times_.of_instructions() && graphs_->takes_here(program);
    begin(in_step_, !graph);
    const bool given = may && graphs_->run(first, graph);
    lanes_.run(first, given ? program.norm : 0, program.norm + 1);
  }
  std::vector<StepRun> steps(in_step_.size());
  for (size_t s = 0; s < steps.size(); ++s) steps[s].rest_ = in_step_[s];
  return steps;
}

void Engine::finish(StepRun step, std::optional<net::StepControl> control) {
  const std::shared_ptr<ScheduleRun> run = std::move(step.rest_);
  if (run->plan().update != plan::Update::in_backward) run->by->decide(control);
  lanes_.run(run, run->program->norm + 1, static_cast<int>(run->schedule().list.size()));
  if (--unfinished_ == 0) end(std::exchange(in_step_, {}));
}

void Engine::update(const plan::ProgramPtr& program, int64_t step) {
  const auto run = std::make_shared<ScheduleRun>(ScheduleRun{program, step});
  run->update = optimiser_.get(), run->by = &interpreter_;
  run_whole(run);
}

std::vector<Tensor> Engine::forward(const plan::ProgramPtr& program, const std::vector<net::Batch>& batches,
                                    int64_t step, bool without_adapters, const OtherForm* form) {
  const auto run = std::make_shared<ScheduleRun>(ScheduleRun{program, step});
  run->without_adapters = without_adapters, run->form = form;
  return forward(interpreter_, run, batches);
}

std::vector<Tensor> Engine::forward(Interpreter& by, const std::shared_ptr<ScheduleRun>& run,
                                    const std::vector<net::Batch>& batches) {
  check_internal(static_cast<int>(batches.size()) == run->schedule().micros, "engine.forward",
                 "batches do not match the schedule");
  const at::NoGradGuard no_grad;
  run->batches = &batches, run->by = &by;
  run->results.resize(batches.size());
  run_whole(run);
  return std::move(run->results);
}

Engine::Teacher::Teacher(const Interpreter::Units& units, const plan::ModelSpec& spec, comm::Comm& comm,
                         const plan::Plan& plan, int rank, at::Device device)
    : store(spec, prefixes_of(units), plan, rank, device, /*trainable=*/false, {},
            std::make_unique<SharedWeights>(spec, plan, comm, rank)),
      interpreter(units, spec, store, comm, plan, rank, {.trainable = false}),
      batch_bytes(spec.inputs) {}

void Engine::add_teacher(const Interpreter::Units& units, const plan::ModelSpec& spec, const plan::Plan& plan,
                         int rank) {
  teacher_ = std::make_unique<Teacher>(units, spec, comm_, plan, rank, store_.device());
}

std::vector<Tensor> Engine::forward_teacher(const plan::ProgramPtr& program, const std::vector<net::Batch>& batches,
                                            int64_t step) {
  return forward(teacher_->interpreter, std::make_shared<ScheduleRun>(ScheduleRun{program, step}), batches);
}

int64_t Engine::host_bytes() const {
  const int64_t own = store_.host_bytes() + interpreter_.host_bytes();
  return teacher_ ? own + teacher_->store.host_bytes() + teacher_->interpreter.host_bytes() : own;
}

void Engine::checkpoint(const plan::ProgramPtr& program, int64_t step, const std::function<void()>& write,
                        const std::function<void()>& commit) {
  const auto run = std::make_shared<ScheduleRun>(ScheduleRun{program, step});
  run->write = &write, run->commit = &commit, run->by = &interpreter_;
  run_whole(run);
}

void Engine::run_whole(const std::shared_ptr<ScheduleRun>& run) {
  begin({run});
  lanes_.run(run, 0, static_cast<int>(run->schedule().list.size()));
  end({run});
}

void Engine::begin(const Lanes::Runs& runs, bool timed) {
  store_.await_fill();
  if (teacher_) teacher_->store.await_fill();
  for (const auto& run : runs) run->by->begin(*run);
  lanes_.begin(runs);
  for (const auto& run : runs) run->times = times_.begin(run->program, run->step, timed);
}

void Engine::end(const Lanes::Runs& runs) {
  lanes_.end(runs);
  for (const auto& run : runs) times_.end(std::move(run->times));
}

}  // namespace tessera::engine
