#include "tessera/engine/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/check.h"
#include "tessera/engine/slice.h"
#include "tessera/ops/ranges.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/simulate/libraries.h"

namespace tessera::engine {

namespace {

constexpr int64_t kAnyBytes = -1;
constexpr int64_t kUploadSlack = 64 << 10;  // a tensor may not fit behind the others at the end of the ring

/// Whether a collective's bytes follow from more than the number of tokens and samples: sums over the rows of captions
/// from their lengths, a halo from the width and height of each sample, a part whose place moves from its shape.
bool depends_on_more(const plan::Traffic& t) {
  return t.part[0] < 0 || t.part[1] < -1 || t.rows == plan::Rows::reach || t.rows == plan::Rows::reached ||
         (t.rows == plan::Rows::context && t.purpose == "norms");
}

/// This rank's share of a micro-batch, in host memory: what packing takes meanwhile depends on the family, and no plan counts it.
net::Batch packed(net::Objective& objective, int micro, const Parallel& parallel) {
  const Meter::Scope host(Part::host);
  return slice(objective.batch(micro), parallel);
}

/// The first unit whose backward runs (plan::backward_from).
int backward_from(const Store& store, const plan::Plan& plan) {
  const int first = store.first_trained();
  return plan::backward_from(first, store.spec(first), plan);
}

/// Whether no unit of the rank has a backward: its micro-batches end with their message to the next stage.
bool only_forward(const Store& store, const plan::Plan& plan, int rank) {
  return plan.first_unit(plan.mesh.coordinate(rank, Axis::pp) + 1) <= backward_from(store, plan);
}

bool defers_weights(const plan::Plan& plan) { return plan.pipeline.schedule == plan::PipelineSchedule::zero_bubble; }

}  // namespace

Interpreter::Interpreter(const Units& units, const plan::ModelSpec& spec, Store& store, comm::Comm& comm,
                         const plan::Plan& plan, int rank, EngineOptions options)
    : units_(units),
      store_(store),
      rank_(rank),
      options_(std::move(options)),
      far_(ops::on_device(store.device())),
      by_device_(far_ && comm.by_device()),
      world_(comm.group("control", {kAllAxes.begin(), kAllAxes.end()})),
      parallel_(options_.cut_tokens ? plan.mesh : Mesh{}, options_.cut_tokens ? rank : 0, &comm),
      within_units_(plan::unit_groups(spec, parallel_.mesh())),
      messages_(comm, plan, rank),
      groups_(comm, plan, store),
      numbers_(store) {
  // Communicators are made here, by all ranks in the same order.
  parallel_.connect(within_units_);
  if (options_.input_grad || options_.frozen_passes) parallel_.connect({{"sums", plan::kSequenceAxes}});
}

void Interpreter::reserve_host(int64_t arena, int64_t batch, int64_t micros) {
  host_.reserve(arena);
  if (!far_) return;
  uploads_.reserve(micros * batch + kUploadSlack);
  uploads_.reserve_beside(plan::bytes_on_their_way(batch, micros));
}

void Interpreter::open_windows(const std::vector<const plan::Schedule*>& used) {
  if (!by_device_) return;
  const device::Block room = Meter::room();
  parallel_.lend(within_units_, room);
  messages_.lend(room);
  groups_.open_windows(used);
}

void Interpreter::lend_kept() {
  if (by_device_) groups_.lend_kept();
}

/// The file of offloaded activations grows only; it holds nothing between two schedules.
void Interpreter::reserve_disk(int64_t bytes) {
  if (bytes <= disk_bytes()) return;
  plan::require_nvme_folder(options_.nvme.folder, "the plan puts activations on nvme");
  disk_.reset();
  disk_ = std::make_unique<Disk>(options_.nvme, bytes);
}

void Interpreter::begin(ScheduleRun& run) {
  const size_t count = run.schedule().list.size();
  host_.reserve(run.schedule().host_arena);
  reserve_disk(run.schedule().disk_arena);
  run.micros.resize(run.schedule().micros);
  for (MicroRun& micro : run.micros) micro.runs.resize(units_.size());
  run.tokens.resize(run.micros.size()), run.samples.resize(run.micros.size());
  run.messages.resize(count), run.comm.resize(count);
}

namespace {
bool counts_fp8(const ScheduleRun& run) { return run.plan().fp8 && run.step % kFp8CountEvery == 1; }
}  // namespace

void Interpreter::begin_step(const ScheduleRun& run) {
  input_grads_.assign(run.schedule().micros, {});
  most_made_ = std::max(most_made_, std::exchange(room_made_, 0));
  numbers_.begin(counts_fp8(run), !run.frozen());
}

/// The collectives that an instruction declares. The list has bytes for micro-batches of the largest shape; the result
/// has them for the actual tokens, or kAnyBytes where they do not follow from their number.
std::vector<plan::Comm> Interpreter::declared(const ScheduleRun& run, const plan::Instruction& in) const {
  if (in.op == plan::Op::update && !(control_ && run.update)) return {};  // the step is skipped
  std::vector<plan::Comm> comm = in.comm;
  if (!plan::carries_tokens(in.op) || comm.empty()) return comm;
  const int64_t tokens = run.tokens[in.micro];
  const auto bytes = [&](const plan::Traffic& t) {
    return t.bytes(tokens, run.plan().mesh, rank_, run.samples[in.micro]);
  };
  if (in.op == plan::Op::finish) {
    const Tensor& result = run.results[in.micro];
    const int64_t row = result.size(1) * static_cast<int64_t>(result.element_size());
    const Mesh& mesh = run.plan().mesh;
    for (plan::Comm& c : comm)
      if (c.kind == "all_gather")
        c.bytes = bytes(plan::prediction_traffic(row, mesh));
      else if (c.bytes > 0)  // sent by the stage that has the result
        c.bytes = bytes(plan::result_traffic(row)) * (mesh[Axis::pp] - 1);
    return comm;
  }
  size_t next = 0;
  for (const plan::Traffic& t : plan::traffic_of(spec_of(run, in.unit), run.plan().units[in.unit], in.op)) {
    if (next == comm.size() || !t.several(run.plan().mesh)) continue;
    if (run.without_adapters && t.rows == plan::Rows::adapter)
      comm.erase(comm.begin() + static_cast<std::ptrdiff_t>(next));
    else
      comm[next++].bytes = depends_on_more(t) ? kAnyBytes : bytes(t);
  }
  return comm;
}

void Interpreter::check(const ScheduleRun& run, int index) const {
  const plan::Instruction& in = run.schedule().list[index];
  const auto same = [](const plan::Comm& ran, const plan::Comm& expected) {
    if (expected.bytes != kAnyBytes) return ran.same_traffic(expected);
    return ran.axis == expected.axis && ran.kind == expected.kind;
  };
  const std::vector<plan::Comm>& ran = run.comm[index];
  if (ran.empty() && in.comm.empty()) return;
  check_internal(std::ranges::equal(ran, declared(run, in), same), "engine.executor",
                 "instruction " + std::to_string(index) + " (" + std::string(name(in.op)) + " " + in.name +
                     ") ran other collectives than it declares");
}

/// It allocates in the order of the list, so that the memory curve is the predicted one; the lane writes to that memory after
/// the compute before this place ([Note: memory at a place]).
bool Interpreter::prepare(ScheduleRun& run, int index) {
  const plan::Instruction& in = run.schedule().list[index];
  if (in.op == plan::Op::fetch && in.part == plan::Part::activations && in.lane != plan::Lane::disk)
    for (auto& saved : run.micros[in.micro].runs[in.unit].offloaded) take_memory(saved);
  if (in.op == plan::Op::send) {
    run.messages[index] = outgoing(load(run, in.micro), in, defers_weights(run.plan()));
  } else if (in.op == plan::Op::recv) {
    MicroRun& micro = load(run, in.micro);
    micro.received[{goes_forward(in), in.unit}] = run.messages[index] =
        messages_.make(in, micro.shapes, store_.device());
  } else {
    return plan::takes_memory(in);
  }
  return true;
}

void Interpreter::execute(ScheduleRun& run, int index) {
  const plan::Instruction& in = run.schedule().list[index];
  Done& done = run.comm[index];
  std::optional<Parallel::Notes> notes;
  if (plan::carries_tokens(in.op)) notes.emplace(parallel_, done);
  const bool computes = in.lane == plan::Lane::compute && in.unit >= 0;
  const ops::Fp8CountScope counting(computes ? numbers_.fp8_counts(in.unit) : nullptr);
  const auto unit_run = [&]() -> UnitRun& { return run.micros[in.micro].runs[in.unit]; };
  switch (in.op) {
    case plan::Op::gather:
      if (in.slot >= 0) groups_.gather(in, done);
      break;
    case plan::Op::forward:
      return forward(run, in);
    case plan::Op::recompute:
      return recompute(run, in);
    case plan::Op::stash:
    case plan::Op::fetch:
      if (in.part == plan::Part::activations)
        move_activations(unit_run(), in);
      else
        store_.move(in, in.host < 0 ? nullptr : host_.at(in.host));
      break;
    case plan::Op::compress: {
      UnitRun& unit = unit_run();
      unit.kept.compress(numbers_.compression_error());
      unit.away.compress(numbers_.compression_error());
      if (!unit.away.empty()) unit.offloaded.push_back(unit.away.buffer());
      break;
    }
    case plan::Op::expand: {
      UnitRun& unit = unit_run();
      unit.offloaded.clear();  // all of it is back: frees the buffer of quantised activations
      unit.kept.expand();
      unit.away.expand();
      break;
    }
    case plan::Op::send:
    case plan::Op::recv:
      messages_.exchange(in, run.messages[index], done);
      if (in.op == plan::Op::recv) run.messages[index] = {};  // the micro-batch holds the message
      break;
    case plan::Op::weight_grad:
      return weight_gradients(run, in);
    case plan::Op::drop:
      if (in.part == plan::Part::message) {
        for (int sent : in.wait) run.messages[sent] = {};
        if (!run.batches && only_forward(store_, run.plan(), rank_)) run.micros[in.micro] = MicroRun{};
      } else
        for (auto& saved : unit_run().offloaded) free_memory(saved);
      break;
    case plan::Op::release:
      store_.unbind(in.unit);
      if (options_.poison && in.slot >= 0)
        store_.arena(in.slot, store_.layout(in.unit).slot_size(in.codes) / 4)
            .fill_(std::numeric_limits<float>::quiet_NaN());
      break;
    case plan::Op::loss: {
      MicroRun& micro = run.micros[in.micro];
      micro.stream_grad = loss(run, micro, in.micro);
      micro.stream.clear();
      break;
    }
    case plan::Op::finish:
      return finish(run, in, done);
    case plan::Op::backward:
      return backward(run, in);
    case plan::Op::idle:
      if (in.add) break;
      (in.grad >= 0 ? store_.arena(in.grad, store_.layout(in.unit).grad_total) : store_.grad(in.unit)).zero_();
      break;
    case plan::Op::reduce:
      return groups_.reduce(in, done);
    case plan::Op::reduce_outer:
      return groups_.reduce_outer(in, done);
    case plan::Op::gather_outer:
      return groups_.gather_outer(in, done);
    case plan::Op::norm: {
      if (in.unit < 0) return norm(run, done);
      const Tensor shard = store_.grad_at(in.unit, in.target);
      store_.round_gradient(shard);
      numbers_.add(in.unit, shard);
      break;
    }
    case plan::Op::update: {
      Tensor work;
      if (in.work > 0 && in.host >= 0) work = at::from_blob(host_.at(in.host), {in.work}, at::kByte);
      if (in.work > 0 && in.target >= 0)
        work = store_.arena(in.target, div_up(in.work, int64_t{sizeof(float)})).view(at::kByte);
      if (control_ && run.update)
        update_unit(store_, in.unit, *run.update, *control_,
                    {in.slot, in.grad, in.scratch, in.grad < 0 || run.plan().update != plan::Update::in_backward},
                    in.lane == plan::Lane::host ? &workers(run.plan().update_threads) : nullptr,
                    groups_.sum_over(in, done), groups_.whole_of(in, std::move(work), done));
      break;
    }
    case plan::Op::flush:
      return flush(run, done);
  }
}

void Interpreter::move_activations(UnitRun& run, const plan::Instruction& in) {
  const bool fetch = in.op == plan::Op::fetch;
  if (in.lane == plan::Lane::disk) {
    device::host_uses(host_.at(in.host), in.bytes, fetch);
    fetch ? disk_->read(in.slot, host_.at(in.host), in.bytes) : disk_->write(in.slot, host_.at(in.host), in.bytes);
    return;
  }
  int64_t at = in.host;
  for (const SavedStorage& saved : run.offloaded) {
    void* here = saved.storage.mutable_data();
    const auto bytes = static_cast<int64_t>(saved.storage.nbytes());
    const bool far = !saved.storage.device().is_cpu();
    fetch ? ops::enqueue_copy(here, host_.at(at), bytes, far) : ops::enqueue_copy(host_.at(at), here, bytes, far);
    at += saved.bytes();
  }
  // The schedule has the bytes of the largest micro-batch.
  check_internal(at - in.host <= in.bytes, "engine.executor",
                 std::string(name(in.op)) + " " + in.name + " moves " + std::to_string(at - in.host) +
                     " bytes, the schedule says " + std::to_string(in.bytes));
}

void Interpreter::forward(ScheduleRun& run, const plan::Instruction& in) {
  store_.bind(in.unit, in.slot, in.codes);
  MicroRun& micro = load(run, in.micro);
  const bool train = run.batches == nullptr, returns = train && in.unit >= backward_from(store_, run.plan());
  if (in.unit == 0) micro.stream = micro.batch.inputs;
  take_received(micro, in, train);
  UnitRun& unit_run = micro.runs[in.unit];
  const plan::UnitPlan& plan = run.plan().units[in.unit];
  const bool graph = returns && !plan.recomputes();
  unit_run.in =
      leaves(micro.stream, train && (in.unit > store_.first_trained() || options_.input_grad || run.frozen()));
  micro.stream.clear();
  if (returns && plan.replays())
    for (const auto& [site, policy] : plan.sites)
      if (site != plan::kBlockInput && policy != plan::Policy::recompute) unit_run.results[site];
  ShardContext ctx(store_, in.unit, micro.batch.tokens,
                   {.keep = &unit_run.results,
                    .parallel = &parallel_,
                    .without_adapters = run.without_adapters,
                    .bring = [this](const Tensor& table) { return bring_made(table); }});
  std::optional<SavedStorages> saved;
  const bool elsewhere = returns && (plan.offloads() || plan.compresses());
  if (graph && (plan.selective() || elsewhere))
    saved.emplace(foreign_tensors(unit_run.in, micro.cond, micro.batch.tokens), plan.selective());
  net::Flow out = run_forward(*units_of(run)[in.unit], ctx, micro.cond, graph, unit_run);
  if (elsewhere)
    sort_saved(unit_run, plan, in.unit, saved ? saved->take(out.stream, out.cond) : std::vector<SavedStorage>{});
  saved.reset();
  micro.stream = std::move(out.stream);
  if (!out.cond.empty()) {
    micro.cond = leaves(out.cond, train && wants_conditioning());
    micro.cond_grad.assign(micro.cond.size(), Tensor());
  }
  if (!returns) unit_run = UnitRun{};
}

/// Sorts a unit's storages into those that are offloaded and those that are quantised: its input, the tensors that its
/// graph saved, and its kept results.
void Interpreter::sort_saved(UnitRun& run, const plan::UnitPlan& plan, int unit,
                             std::vector<SavedStorage> saved) const {
  if (unit > 0)  // the first unit's input is the batch, which others read
    for (const Tensor& t : run.in) saved.emplace_back(std::string(plan::kBlockInput), t);
  for (const auto& [site, result] : run.results) {
    saved.emplace_back(site, result.out);
    if (result.lse.defined())
      saved.emplace_back(site, result.lse.unsqueeze(-1));  // one value a row, as its node saves it
  }
  for (SavedStorage& s : saved) {
    const plan::Policy& policy = plan.policy(s.site);
    const bool leaves = leaves_device(policy);
    if (is_lossy(policy) && can_pack(s, *policy.form))
      (leaves ? run.away : run.kept).add(std::move(s), *policy.form);
    else if (leaves)
      run.offloaded.push_back(std::move(s));
  }
}

void Interpreter::recompute(ScheduleRun& run, const plan::Instruction& in) {
  store_.bind(in.unit, in.slot, in.codes);
  MicroRun& micro = run.micros[in.micro];
  UnitRun& unit_run = micro.runs[in.unit];
  ShardContext ctx(store_, in.unit, micro.batch.tokens,
                   {.unneeded = units_of(run)[in.unit]->output_site(),
                    .known = &unit_run.results,
                    .parallel = &parallel_,
                    .bring = [this](const Tensor& table) { return bring_made(table); }});
  unit_run.offloaded.clear();  // all of it is back; from here on the graph alone holds it
  const SavedStorages selective(foreign_tensors(unit_run.in, micro.cond, micro.batch.tokens), /*selective=*/true);
  run_forward(*units_of(run)[in.unit], ctx, micro.cond, true, unit_run);
  unit_run.results.clear();
}

/// Later stages need of a micro-batch only its tables of tokens.
net::Batch Interpreter::of_stage(const ScheduleRun& run, net::Batch batch) const {
  if (messages_.active() && !run.plan().owns(rank_, 0)) batch.inputs.clear();
  return batch;
}

/// The micro-batch, loaded at its first instruction on this rank.
MicroRun& Interpreter::load(ScheduleRun& run, int index) {
  MicroRun& micro = run.micros[index];
  if (std::exchange(micro.loaded, true)) return micro;
  const bool train = run.batches == nullptr;
  net::Batch batch = !train                ? slice((*run.batches)[index], parallel_)
                     : !run.packed.empty() ? std::move(run.packed[index])
                                           : packed(*run.objective, index, parallel_);
  count(run, index, batch);
  if (captures_) brought_.push_back({index, /*compared=*/false});
  if (messages_.active()) micro.shapes = boundary_shapes(units_of(run), batch);
  batch = of_stage(run, std::move(batch));
  // On a CPU the device's memory is the host's, and what was packed counted there.
  if (train && !far_) batch = copy_of(std::move(batch));
  if (train && (!far_ || parallel_.cuts_tokens()))  // else a share of them keeps all in memory
    for (Tensor* compared : run.objective->compared(index)) *compared = compared->clone();
  micro.batch = on_device(std::move(batch), store_.device(), uploads_);
  return micro;
}

void Interpreter::count(ScheduleRun& run, int index, const net::Batch& batch) const {
  run.tokens[index] = batch.tokens.total();
  run.samples[index] = static_cast<int64_t>(batch.tokens.offsets.size()) - 1;
}

std::optional<std::string> Interpreter::pack(ScheduleRun& run) {
  std::string text = counts_fp8(run) ? "counts 8 bits\n" : "";
  bool repeats = true;
  int64_t room = 0;
  for (int micro = 0; micro < run.schedule().micros; ++micro) {
    run.packed.push_back(packed(*run.objective, micro, parallel_));
    const std::optional<std::string> form = form_of(run.packed.back()), given = run.objective->given(micro);
    repeats = repeats && form && given;
    if (!repeats) continue;
    text += *form + "| " + *given + "\n";
    room += upload_room(run.packed.back());
    for (const Tensor* compared : run.objective->compared(micro)) room += Uploads::room(*compared);
  }
  if (!repeats) return std::nullopt;
  uploads_.reserve(room + most_made_);
  return text;
}

void Interpreter::bring_captured(bool captured) {
  captures_ = captured;
  uploads_.go(captured ? Uploads::Way::captured : Uploads::Way::ring);
}

void Interpreter::bring_again(ScheduleRun& run, const std::vector<Brought>& order) {
  uploads_.go(Uploads::Way::repeated);
  for (const auto& [micro, compared, made] : order)
    if (made.defined()) {
      uploads_.bring(made, store_.device());
    } else if (!compared) {
      count(run, micro, run.packed[micro]);
      on_device(of_stage(run, run.packed[micro]), store_.device(), uploads_);
    } else {
      bring_compared(run, micro);
      run.objective->repeat(run.packed[micro], micro);
    }
  uploads_.go(Uploads::Way::ring);
}

/// Hands a unit the message that its stage received: its input, or the gradient of its result. The rank's stages share
/// the conditioning, and so its gradients are summed.
void Interpreter::take_received(MicroRun& micro, const plan::Instruction& in, bool train) const {
  const bool forward = in.op == plan::Op::forward;
  auto found = micro.received.extract({forward, in.unit});
  if (!found) return;
  Message& message = found.mapped();
  (forward ? micro.stream : micro.stream_grad) = std::move(message.stream);
  if (message.cond.empty()) return;
  if (forward) {
    micro.cond = leaves(message.cond, train && wants_conditioning());
    micro.cond_grad.assign(micro.cond.size(), Tensor());
    return;
  }
  for (size_t c = 0; c < micro.cond_grad.size(); ++c)
    if (micro.cond_grad[c].defined())
      micro.cond_grad[c].add_(message.cond[c]);
    else
      micro.cond_grad[c] = message.cond[c];
}

void Interpreter::backward(ScheduleRun& run, const plan::Instruction& in) {
  store_.bind(in.unit, in.slot, in.codes);
  MicroRun& micro = run.micros[in.micro];
  const bool stem = in.unit == 0;
  take_received(micro, in, true);
  micro.runs[in.unit].offloaded.clear();  // from here on the graph alone holds these storages
  std::vector<Tensor> out_cond_grad, none;
  if (stem) out_cond_grad = std::move(micro.cond_grad);
  const auto run_unit = [&] {
    micro.stream_grad =
        run_backward(micro.runs[in.unit], std::move(micro.stream_grad), std::move(out_cond_grad),
                     stem ? std::vector<Tensor>{} : micro.cond, stem ? none : micro.cond_grad, store_.anchor(in.unit));
  };
  if (run.frozen()) {
    run_unit();
  } else if (defers_weights(run.plan())) {
    ops::DeferredGradients& deferred = micro.deferred.emplace(in.unit, store_.trained_sites(in.unit)).first->second;
    const ops::DeferredGradients::Scope scope(deferred);
    run_unit();
  } else {
    store_.bind_grad(in.unit, in.grad, !in.add);
    run_unit();
    store_.finish_grad(in.unit);
  }
  if (in.unit != backward_from(store_, run.plan())) return;
  if (options_.input_grad || run.frozen()) input_grads_[in.micro] = micro.stream_grad;
  micro.stream_grad.clear(), micro.cond_grad.clear();
  if (!defers_weights(run.plan())) micro = MicroRun{};
}

/// Runs the weight gradients that the unit's backward deferred. The micro-batch ends with the first unit of the rank's
/// first stage.
void Interpreter::weight_gradients(ScheduleRun& run, const plan::Instruction& in) {
  MicroRun& micro = run.micros[in.micro];
  store_.bind_grad(in.unit, in.grad, !in.add);
  micro.deferred.at(in.unit).run();
  micro.deferred.erase(in.unit);
  store_.finish_grad(in.unit);
  const int first = run.plan().first_unit(run.plan().mesh.coordinate(rank_, Axis::pp));
  if (in.unit == std::max(first, backward_from(store_, run.plan()))) micro = MicroRun{};
}

/// The stage's message to its neighbour. The micro-batch ends with the gradient of the rank's first stage.
Message Interpreter::outgoing(MicroRun& micro, const plan::Instruction& in, bool defers_weights) const {
  Message message;
  const bool conditioning = messages_.carries_conditioning(in);
  if (goes_forward(in)) {
    for (const Tensor& t : std::exchange(micro.stream, {})) message.stream.push_back(t.contiguous());
    if (conditioning)
      for (const Tensor& t : micro.cond) message.cond.push_back(t.detach().contiguous());
    return message;
  }
  // Gradients that no earlier stage needs are sent as zeros: the receiver expects a message of fixed size.
  const auto filled = [device = store_.device()](std::vector<Tensor> values, const std::vector<TensorShape>& shapes) {
    values.resize(shapes.size());
    for (size_t i = 0; i < shapes.size(); ++i)
      values[i] = values[i].defined() ? values[i].contiguous()
                                      : at::zeros(shapes[i].sizes, at::TensorOptions(shapes[i].type).device(device));
    return values;
  };
  message.stream = filled(std::exchange(micro.stream_grad, {}), micro.shapes.stream.at(in.unit + 1));
  if (conditioning) {
    message.cond = filled(std::exchange(micro.cond_grad, {}), micro.shapes.cond);
    if (!defers_weights) micro = MicroRun{};
  }
  return message;
}

void Interpreter::finish(ScheduleRun& run, const plan::Instruction& in, Done& done) {
  MicroRun& micro = load(run, in.micro);
  Tensor result = micro.stream.empty() ? Tensor() : micro.stream[0];
  if (messages_.active())
    result = messages_.share_result(result, micro.shapes.stream.back().at(0), store_.device(), done);
  run.results[in.micro] = whole_tokens(result, micro.batch.tokens, parallel_).cpu();
  micro = MicroRun{};
}

std::vector<Tensor> Interpreter::loss(ScheduleRun& run, MicroRun& micro, int index) {
  const at::NoGradGuard no_grad;
  const Tensor& prediction = micro.stream[0];
  if (captures_) brought_.push_back({index, /*compared=*/true});
  bring_compared(run, index);
  return {run.objective->gradient(prediction, micro.batch, index)};
}

Tensor Interpreter::bring_made(const Tensor& table) {
  room_made_ += Uploads::room(table);
  if (captures_) brought_.push_back({-1, /*compared=*/false, table});
  return uploads_.bring(table, store_.device());
}

void Interpreter::bring_compared(const ScheduleRun& run, int micro) {
  const std::vector<Tensor*> compared = run.objective->compared(micro);
  std::vector<Tensor> all;
  for (const Tensor* tensor : compared) all.push_back(*tensor);
  all = uploads_.bring(all, store_.device());
  for (size_t i = 0; i < all.size(); ++i) *compared[i] = all[i];
}

void Interpreter::norm(ScheduleRun& run, Done& done) {
  // One of the ranks with the same gradient counts it. The sum is in rank order, so that every rank has the same bits.
  if (!run.given) run.given = numbers_.give(*run.objective);
  std::vector<double> mine = {numbers_.read(*run.objective, *run.given)};
  if (run.report)
    for (double value : run.report()) mine.push_back(value);
  mine.resize(plan::kControlDoubles, 0.0);
  const std::vector<std::vector<double>> all = world_.all_gather_doubles(mine);
  if (world_.size() > 1) done.push_back({world_.axis(), "all_gather", plan::kControlBytes});
  double total = 0;
  for (const auto& row : all) {
    total += row[0];
    run.ranks.emplace_back(row.begin() + 1, row.end());
  }
  run.norm = std::sqrt(total);
}

void Interpreter::flush(const ScheduleRun& run, Done& done) {
  (*run.write)();
  for (int round = 0; round < 2; ++round) {
    if (world_.size() > 1) {
      world_.barrier();
      done.push_back({world_.axis(), "barrier", 0});
    }
    if (round == 0) (*run.commit)();
  }
}

Workers& Interpreter::workers(int threads) {
  if (!workers_) {
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    workers_ = std::make_unique<Workers>(threads > 0 ? threads : std::max(1, cores / options_.local_ranks));
  }
  return *workers_;
}

}  // namespace tessera::engine
