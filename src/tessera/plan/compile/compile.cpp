#include "tessera/plan/compile/compile.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/compile/memory.h"

namespace tessera::plan {

Compiler::Compiler(const ModelSpec& model, const Plan& plan, int rank, std::string phase, CompiledFor compiled_for)
    : draft_(model, plan, rank, std::move(phase), compiled_for),
      model_(model),
      plan_(plan),
      sizes_(draft_.sizes),
      tiers_(draft_),
      activations_(draft_, tiers_),
      stages_(draft_),
      gradients_(draft_, tiers_),
      resident_(model.units.size()) {}

/// For each visit the next one that uses the same unit's parameters, or -1.
std::vector<int> Compiler::next_uses(const std::vector<UnitVisit>& visits) const {
  std::vector<int> next(visits.size(), -1), later(model_.units.size(), -1);
  for (size_t v = visits.size(); v-- > 0;) {
    int& unit = later[static_cast<size_t>(visits[v].unit)];
    next[v] = unit;
    if (!visits[v].weights) unit = static_cast<int>(v);
  }
  return next;
}

/// Whether the parameters of the unit that visit `v` uses stay gathered until its `next` one.
bool Compiler::stays_gathered(const UnitVisit& visit, int v, int next) const {
  if (next < 0) return false;
  // A slot that would be filled again at once is kept: releasing it would free nothing.
  return plan_.units[visit.unit].stays_gathered() || next - v <= plan_.prefetch + 1;
}

/// What a visit multiplies of weights that are gathered as codes.
Codes Compiler::codes_of(const UnitVisit& visit) const {
  if (!sizes_.layout(visit.unit).in_codes()) return Codes::none;
  if (visit.forward) return Codes::rows;
  return plan_.units[visit.unit].recomputes() ? Codes::both : Codes::columns;
}

void Compiler::walk(const std::vector<UnitVisit>& visits) {
  const int count = static_cast<int>(visits.size());
  const std::vector<int> next = next_uses(visits);
  std::vector<bool> needs_gather(count, true), stays(count, false);
  for (int v = 0; v < count; ++v) {
    if (visits[v].weights)
      needs_gather[v] = false;
    else if ((stays[v] = stays_gathered(visits[v], v, next[v])))
      needs_gather[next[v]] = false;
  }
  std::vector<Codes> codes(visits.size(), Codes::none);  // until the slot is released
  for (int v = count; v-- > 0;)
    if (!visits[v].weights) codes[v] = together(codes_of(visits[v]), stays[v] ? codes[next[v]] : Codes::none);
  int issued = 0, read = 0;
  for (int v = 0; v < count; ++v) {
    gradients_.apply_pending(visits, v);
    for (; read < count && read <= v + plan_.prefetch + 1; ++read)  // the disk read before the copy to the device
      if (!visits[read].forward) activations_.read_back(visits[read]);
    for (; issued < count && issued <= v + plan_.prefetch; ++issued) {
      if (needs_gather[issued]) gather(visits[issued].unit, visits[issued].micro, codes[issued]);
      if (!visits[issued].forward) activations_.fetch(visits[issued]);
    }
    if (!visits[v].forward) activations_.fetch(visits[v]);  // if its forward was too late to fetch ahead
    if (stages_.begins_act(visits, v)) stages_.receive_for(visits, v);
    const std::optional<int> backward = run(visits[v]);
    if (!visits[v].weights && !stays[v]) release(visits[v].unit, visits[v].micro);
    // after the release, so that the receive buffer may reuse the slot's bytes
    if (backward) gradients_.reduce(visits[v], *backward);
  }
  gradients_.run_due(0);
  draft_.retire(draft_.update_flights, 0);
  draft_.retire(draft_.flights, 0);
  for (const Lane lane : {Lane::send_next, Lane::send_prev}) stages_.drop_sent(lane);
  tiers_.release_bounce_buffers(0);
  check_internal(draft_.arena.empty() && draft_.host.empty() && draft_.disk.empty(), "plan.compile",
                 "a slot is still taken at the end of the schedule");
}

void Compiler::gather(int unit, int micro, Codes codes) {
  Instruction in = draft_.make(Op::gather, Lane::gather, unit, micro);
  if (const int updated = gradients_.updated(unit); updated >= 0) in.wait = {updated};
  const UnitLayout& layout = sizes_.layout(unit);
  in.codes = codes;
  in.bytes = layout.slot_size(codes);
  in.frozen = in.bytes - layout.trained_size(codes);
  const bool narrow = plan_.gathered() != DType::f32;
  const bool offloaded = tiers_.tier(unit, Part::parameters) != Tier::device;
  // else the shard is read in place
  if (layout.sharded || narrow || offloaded) in.slot = draft_.arena.take(in.bytes, in.wait);
  // A shard is copied directly to its place in the slot, unless it is widened or there are several buffers.
  const bool direct = !narrow && layout.buffers.size() == 1 && layout.buffers[0].stored == DType::f32;
  if (offloaded) {
    const int64_t shard = tiers_.bytes(unit, Part::parameters);
    Waits wait;
    if (direct) {
      in.scratch = in.slot + plan_.shard_rank(layout.buffers[0], draft_.rank) * shard;
      draft_.arena.last_users(in.scratch, shard, wait);
    } else {
      in.scratch = draft_.arena.take(shard, wait);
    }
    in.wait.push_back(tiers_.reload(Part::parameters, unit, micro, in.scratch, wait));
  }
  draft_.collect(in, "gather", kAllGather, Draft::Gathered::all, size_of(plan_.gathered()));
  const int64_t slot = in.slot, scratch = in.scratch;
  const int at = draft_.add(std::move(in));
  if (offloaded && !direct) draft_.arena.give(scratch, at);
  resident_[unit] = {at, slot, codes};
}

void Compiler::release(int unit, int micro) {
  Instruction in = draft_.make(Op::release, Lane::compute, unit, micro);
  in.slot = resident_[unit].slot, in.codes = resident_[unit].codes;
  in.wait = {resident_[unit].gather};
  const int64_t slot = in.slot;
  const int at = draft_.add(std::move(in));
  if (slot >= 0) draft_.arena.give(slot, at);
}

Instruction Compiler::use(Op op, const UnitVisit& visit) const {
  Instruction in = draft_.make(op, Lane::compute, visit.unit, visit.micro);
  in.slot = resident_[visit.unit].slot, in.codes = resident_[visit.unit].codes;
  in.wait = {resident_[visit.unit].gather};
  draft_.declare(in, traffic_of(model_.units[visit.unit], plan_.units[visit.unit], op));
  return in;
}

/// The instruction that uses a micro-batch's prediction: the loss, or the result joined from all ranks that share it.
Instruction Compiler::output(int micro) const {
  Instruction in = draft_.make(draft_.forward_only ? Op::finish : Op::loss, Lane::compute, -1, micro);
  if (draft_.forward_only && model_.sequence > 0)
    draft_.declare(in, {prediction_traffic(model_.prediction_row, plan_.mesh)});
  return in;
}

/// Emits the compute of a visit. Returns the instruction that filled the gradient slot if it has to be reduced.
std::optional<int> Compiler::run(const UnitVisit& visit) {
  if (!visit.forward) return backward(visit);
  if (draft_.is_dummy(visit.micro)) return std::nullopt;
  Instruction in = use(Op::forward, visit);
  stages_.await_message(in, visit);
  const int forward = draft_.add(std::move(in));
  if (!draft_.forward_only && visit.unit < draft_.backward_from)
    draft_.add(draft_.make(Op::drop, Lane::compute, visit.unit, visit.micro, Part::activations, 0, {forward}));
  else if (!draft_.forward_only)
    activations_.stash(visit, activations_.compress(visit, forward));
  stages_.send_result(visit, forward);
  const bool pipeline = plan_.mesh[Axis::pp] > 1;
  if (visit.unit + 1 == static_cast<int>(model_.units.size()) && !(draft_.forward_only && pipeline))
    draft_.add(output(visit.micro));
  return std::nullopt;
}

std::optional<int> Compiler::backward(const UnitVisit& visit) {
  const UnitPlan& unit = plan_.units[visit.unit];
  // A unit without trained parameters only passes gradients on.
  const bool trained = sizes_.layout(visit.unit).grad_total > 0, sharded = trained && sizes_.layout(visit.unit).sharded;
  const bool dummy = draft_.is_dummy(visit.micro), leaves_arena = trained && gradients_.leaves_arena(visit.unit);
  const bool last_micro = visit.micro + 1 == draft_.schedule.micros;
  const int saved = activations_.fetched(visit);
  const auto need = [&](Instruction in) {
    if (saved >= 0) in.wait.push_back(saved);
    return in;
  };
  const bool defers_weights = plan_.pipeline.schedule == PipelineSchedule::zero_bubble;
  if (!dummy && !visit.weights) activations_.expand(visit);
  if (!dummy && !visit.weights && unit.recomputes()) draft_.add(need(use(Op::recompute, visit)));
  if (defers_weights && !visit.weights) {
    if (dummy) return std::nullopt;
    Instruction in = need(use(Op::backward, visit));
    stages_.await_message(in, visit);
    stages_.send_result(visit, draft_.add(std::move(in)));
    return std::nullopt;
  }
  Instruction in = dummy           ? draft_.make(Op::idle, Lane::compute, visit.unit, visit.micro)
                   : visit.weights ? draft_.make(Op::weight_grad, Lane::compute, visit.unit, visit.micro)
                                   : need(use(Op::backward, visit));
  in.bytes = sizes_.layout(visit.unit).grad_total * kElement;
  in.add = trained && visit.micro > 0 && (!sharded || unit.reduces_once());
  if (sharded && unit.reduces_once() && visit.micro > 0) {
    in.grad = whole_gradients_.at(visit.unit);
  } else if (sharded || leaves_arena) {
    // The number of slots in flight is bounded so that a reduction overlaps only the next backward: a new slot frees
    // the oldest one and waits for it.
    draft_.retire(draft_.flights, 1);
    Waits wait;
    in.grad = draft_.arena.take(in.bytes, wait);
    if (in.add) wait = {tiers_.reload(Part::gradients, visit.unit, visit.micro, in.grad, wait)};
    in.wait.append(wait);
  }
  const int64_t grad = in.grad;
  if (!dummy && !visit.weights) stages_.await_message(in, visit);
  const int at = draft_.add(std::move(in));
  if (!dummy && !visit.weights) stages_.send_result(visit, at);
  if (!sharded) {
    draft_.last_backward = {at};  // an unsharded gradient is written in place
    if (trained) {
      Flight flight;
      if (const auto use = gradients_.route(visit, grad, at, flight)) flight.push_back(*use);
      if (!flight.empty()) draft_.flights.push_back(std::move(flight));
    }
    if (plan_.prefetch == 0) draft_.retire(draft_.flights, 0);
    return std::nullopt;
  }
  if (!unit.reduces_once()) return at;
  whole_gradients_[visit.unit] = grad;
  return last_micro ? std::optional(at) : std::nullopt;
}

Schedule Compiler::done() {
  tiers_.release_bounce_buffers(0);
  draft_.schedule.arena = draft_.arena.size();
  draft_.schedule.host_arena = draft_.host.size();
  draft_.schedule.disk_arena = draft_.disk.size();
  return std::move(draft_.schedule);
}

Schedule Compiler::train(bool pending) {
  // The list of a step's instructions: this many uses of units are 1 GiB of it, and 4 s of planning.
  constexpr int64_t kMostUses = 1 << 18;
  const auto units = static_cast<int64_t>(model_.units.size());
  if (plan_.accumulation() > kMostUses / units)
    throw UserError(Exit::usage, "train.global_batch",
                    std::to_string(plan_.global_batch) + " samples on " + std::to_string(plan_.mesh.dp_size()) +
                        " dp ranks in micro-batches of " + std::to_string(plan_.micro_batch) + " are " +
                        std::to_string(plan_.accumulation()) + " micro-batches a step, expected at most " +
                        std::to_string(kMostUses / units) + " of " + std::to_string(units) + " units",
                    "take more ranks, a larger train.micro_batch or a smaller train.global_batch");
  draft_.schedule.micros = static_cast<int>(plan_.accumulation());
  std::vector<UnitVisit> visits;
  for (const PipelineAct& act : pipeline_acts(plan_.pipeline.schedule, plan_.mesh[Axis::pp], draft_.pp_rank,
                                              plan_.pipeline.chunks, draft_.schedule.micros))
    for (const UnitVisit& visit : stages_.visits_of(act)) visits.push_back(visit);
  if (plan_.update == Update::just_in_time && pending) {
    std::set<int> seen;
    std::vector<int> deferred;
    for (const UnitVisit& visit : visits)
      if (sizes_.layout(visit.unit).grad_total > 0 && seen.insert(visit.unit).second) deferred.push_back(visit.unit);
    gradients_.defer(std::move(deferred));
  }
  draft_.schedule.list.reserve(visits.size() * 8);  // somewhat more than most plans have
  walk(visits);
  gradients_.norm();
  if (plan_.update == Update::end) gradients_.update_all();
  return done();
}

Schedule Compiler::exchange() {
  draft_.schedule.micros = 0;
  gradients_.norm();
  return done();
}

Schedule Compiler::updates() {
  draft_.schedule.micros = 0;
  gradients_.update_all();
  return done();
}

Schedule Compiler::forward_only(int micros) {
  draft_.schedule.micros = micros;
  std::vector<UnitVisit> visits;
  for (int chunk = 0; chunk < plan_.pipeline.chunks; ++chunk)
    for (int m = 0; m < micros; ++m)
      for (const UnitVisit& visit : stages_.visits_of({PipelineAct::Kind::forward, chunk, m})) visits.push_back(visit);
  draft_.forward_only = true;
  walk(visits);
  if (plan_.mesh[Axis::pp] > 1) stages_.broadcast_results();
  return done();
}

Schedule Compiler::checkpoint() {
  Instruction in = draft_.make(Op::flush, Lane::disk, -1, -1);
  for (const int u : draft_.own)
    in.bytes += shard_bytes(sizes_.layout(u), plan_.states.masters) + sizes_.state_bytes(u);
  in.group = draft_.world.name;
  if (!draft_.world.axis.empty()) in.comm.assign(2, {draft_.world.axis, "barrier", 0, draft_.world.name});
  draft_.add(in);
  return done();
}

Schedule compile_train(const ModelSpec& model, const Plan& plan, int rank, bool pending, CompiledFor compiled_for) {
  Schedule schedule = Compiler(model, plan, rank, "train", compiled_for).train(pending);
  if (compiled_for == CompiledFor::memory) return schedule;
  delay_drops(model, plan, rank, schedule);
  order_memory(schedule);
  return schedule;
}

Plan frozen_pass(Plan plan) {
  if (plan.pipeline.schedule == PipelineSchedule::zero_bubble)
    plan.pipeline.schedule = PipelineSchedule::one_f_one_b;  // of which it is the order
  return plan;
}

Schedule compile_frozen(const ModelSpec& model, const Plan& of, int rank, std::string phase) {
  const Plan plan = frozen_pass(of);
  Schedule schedule = Compiler(model, plan, rank, std::move(phase), CompiledFor::frozen).train(/*pending=*/false);
  delay_drops(model, plan, rank, schedule);
  order_memory(schedule);
  return schedule;
}

Schedule compile_exchange(const ModelSpec& model, const Plan& plan, int rank) {
  return Compiler(model, plan, rank, "exchange", CompiledFor::frozen).exchange();
}

Schedule compile_updates(const ModelSpec& model, const Plan& plan, int rank) {
  return Compiler(model, plan, rank, "update").updates();
}

ArenaBytes arenas_without_pending(const ModelSpec& model, const Plan& plan, int rank) {
  const Schedule updates = Compiler(model, plan, rank, "update", CompiledFor::memory).updates(),
                 first = Compiler(model, plan, rank, "train", CompiledFor::memory).train(/*pending=*/false);
  return ArenaBytes{updates.arena, updates.host_arena}.covering({first.arena, first.host_arena});
}

Schedule compile_forward(const ModelSpec& model, const Plan& plan, int rank, std::string phase, int micros) {
  Schedule schedule = Compiler(model, plan, rank, std::move(phase)).forward_only(micros);
  order_memory(schedule);
  return schedule;
}

Schedule compile_checkpoint(const ModelSpec& model, const Plan& plan, int rank) {
  return Compiler(model, plan, rank, "checkpoint").checkpoint();
}

RunSchedules compile_all(const ModelSpec& model, const Plan& plan, int rank, int passes) {
  RunSchedules all;
  all.train = compile_train(model, plan, rank);
  all.sample = compile_forward(model, plan, rank, "sample", passes);
  all.checkpoint = compile_checkpoint(model, plan, rank);
  const bool deferred = plan.update == Update::just_in_time;
  if (deferred) {
    all.first = compile_train(model, plan, rank, /*pending=*/false);
    all.updates = compile_updates(model, plan, rank);
  }
  for (const auto& [expert, units] : plan.of_expert) {
    const Plan own = plan.as_of(expert);
    RunSchedules::Own& schedules = all.of_expert[expert];
    schedules.train = compile_train(model, own, rank);
    if (!deferred) continue;
    schedules.first = compile_train(model, own, rank, /*pending=*/false);
    schedules.updates = compile_updates(model, own, rank);
  }
  return all;
}

int64_t RunSchedules::most(int64_t Schedule::*bytes, bool samples) const {
  int64_t all = std::max({train.*bytes, base.*bytes, tangent.*bytes, teacher.*bytes, features.*bytes, judged.*bytes,
                          first.*bytes, updates.*bytes, samples ? sample.*bytes : 0});
  for (const auto& [expert, own] : of_expert)
    all = std::max({all, own.train.*bytes, own.first.*bytes, own.updates.*bytes});
  return all;
}

Program::Program(Plan plan, Schedule schedule) : plan(std::move(plan)), schedule(std::move(schedule)) {
  const auto& list = this->schedule.list;
  const auto exchange = [](const Instruction& in) { return in.op == Op::norm && in.unit < 0; };
  if (const auto found = std::find_if(list.begin(), list.end(), exchange); found != list.end())
    norm = static_cast<int>(found - list.begin());
}

Programs::Programs(const Plan& plan, RunSchedules schedules, bool samples)
    : arena(schedules.arena(samples)),
      host_arena(std::max(schedules.host_arena(samples), schedules.checkpoint.host_arena)) {
  const auto program_of = [](const Plan& of, Schedule& schedule) -> ProgramPtr {
    return schedule.list.empty() ? nullptr : std::make_shared<const Program>(of, std::move(schedule));
  };
  const auto program = [&](Schedule& schedule) { return program_of(plan, schedule); };
  train = program(schedules.train);
  sample = program(schedules.sample);
  checkpoint = program(schedules.checkpoint);
  base = program(schedules.base);
  tangent = program(schedules.tangent);
  teacher = program_of(schedules.of_teacher, schedules.teacher);
  features = program(schedules.features);
  judged = program_of(frozen_pass(plan), schedules.judged);
  exchange = program(schedules.exchange);
  first = program(schedules.first);
  updates = program(schedules.updates);
  for (auto& [expert, own] : schedules.of_expert) {
    const Plan of = plan.as_of(expert);
    of_expert[expert] = {program_of(of, own.train), program_of(of, own.first), program_of(of, own.updates)};
  }
}

}  // namespace tessera::plan
