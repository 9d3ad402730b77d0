#include "tessera/engine/engine.h"

#include <algorithm>

#include "tessera/device/backend.h"
#include "tessera/engine/group_check.h"
#include "tessera/engine/memory/same_place.h"

namespace tessera::engine {

namespace {

std::vector<std::string> prefixes_of(const std::vector<std::unique_ptr<net::Unit>>& units) {
  std::vector<std::string> prefixes;
  for (const auto& unit : units) prefixes.push_back(unit->prefix());
  return prefixes;
}

}  // namespace

Engine::Engine(const std::vector<std::unique_ptr<net::Unit>>& units, const plan::ModelSpec& spec,
               const plan::Plan& plan, comm::Comm& comm, int rank, EngineOptions options)
    : comm_(comm),
      batch_bytes_(spec.inputs + spec.targets),
      store_(spec, prefixes_of(units), plan, rank, device::here(), options.trainable, options.nvme,
             std::make_unique<SharedWeights>(spec, plan, comm, rank)),
      executor_(
          units, spec, store_, comm, plan, rank,
          {options.input_grad, options.poison, options.nvme, options.trace, options.local_ranks, options.cut_tokens}) {}

void Engine::optimise(std::unique_ptr<const net::UnitUpdate> optimiser) {
  optimiser_ = std::move(optimiser);
  if (!std::exchange(has_states_, true)) store_.make_states(*optimiser_);
}

void Engine::use(const plan::Programs& programs, int64_t arena, int64_t host_arena) {
  const std::vector<plan::ProgramPtr> before = std::exchange(used_, {});
  std::vector<const plan::Schedule*> fresh;
  std::vector<plan::ProgramPtr> all = {programs.train, programs.sample, programs.checkpoint};
  for (const auto& [expert, own] : programs.of_expert) all.push_back(own.train);
  for (const plan::ProgramPtr& program : all) {
    if (!program) continue;
    used_.push_back(program);
    if (std::ranges::find(before, program) == before.end()) fresh.push_back(&program->schedule);
  }
  check_groups(comm_, fresh);
  executor_.reserve_host(std::max(programs.host_arena, host_arena), programs.train->schedule.micros * batch_bytes_);
  make_arena(std::max(programs.arena, arena));
  store_.place_gradients(programs.train->plan);
  executor_.lend_kept();
}

void Engine::use(const plan::Program& program) {
  executor_.reserve_host(program.schedule.host_arena, program.schedule.micros * batch_bytes_);
  const at::Tensor& arena = store_.arena();
  bool grows = !arena.defined() || static_cast<int64_t>(arena.nbytes()) < program.schedule.arena;
  if (comm_.by_device()) {  // ranks of other stages have other arenas, and all of them make theirs together
    const std::vector<Axis> everyone = {kAllAxes.begin(), kAllAxes.end()};
    const auto rows = comm_.group("control", everyone).all_gather_doubles({grows ? 1.0 : 0.0});
    grows = std::ranges::any_of(rows, [](const auto& row) { return row[0] != 0; });
  }
  if (grows) make_arena(std::max(program.schedule.arena, arena.defined() ? static_cast<int64_t>(arena.nbytes()) : 0));
}

/// The old one is freed before ranks look for room, and its windows are closed before that.
void Engine::make_arena(int64_t bytes) {
  executor_.close_windows();
  store_.change_arena(0);
  {
    const SamePlace place(comm_, bytes);
    store_.change_arena(bytes);
  }
  executor_.open_windows();
}

StepRun Engine::run(const Pass& pass, net::Objective& objective, const Report& report) {
  swap(pass.expert);
  return executor_.run(pass, objective, report, optimiser_.get());
}

}  // namespace tessera::engine
