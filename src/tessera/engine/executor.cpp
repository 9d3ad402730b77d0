#include "tessera/engine/executor.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "tessera/base/check.h"
#include "tessera/engine/executor_run.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/session.h"
#include "tessera/plan/compile/traffic.h"
#include "tessera/plan/device_groups.h"
#include "tessera/plan/nvme.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/rules/issue.h"

namespace tessera::engine {

namespace {

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

const std::vector<Axis> kWorldAxes(kAllAxes.begin(), kAllAxes.end());

constexpr int64_t kAnyBytes = -1;
constexpr int64_t kUploadSlack = 64 << 10;  // a tensor may not fit behind the others at the end of the ring

/// Whether a collective's bytes follow from more than the number of tokens and samples: sums over the rows of captions
/// from their lengths, a halo from the width and height of each sample.
bool depends_on_more(const plan::Traffic& t) {
  return t.rows == plan::Rows::reach || t.rows == plan::Rows::reached ||
         (t.rows == plan::Rows::context && t.purpose == "norms");
}

}  // namespace

Executor::Executor(const std::vector<std::unique_ptr<net::Unit>>& units, const plan::ModelSpec& spec, Store& store,
                   comm::Comm& comm, const plan::Plan& plan, int rank, ExecutorOptions options)
    : units_(units),
      store_(store),
      reduce_dtype_(plan.reduce),
      rank_(rank),
      options_(std::move(options)),
      outer_(comm.group("reduce_outer", {Axis::dp_replicate})),
      world_(comm.group("control", kWorldAxes)),
      parallel_(options_.cut_tokens ? plan.mesh : Mesh{}, options_.cut_tokens ? rank : 0, &comm),
      within_units_(plan::unit_groups(spec, parallel_.mesh())),
      by_device_(ops::on_device(store.device()) && comm.by_device()),
      far_(ops::on_device(store.device())),
      gather_lane_(device::Priority::highest),  // a gather keeps computing waiting, a reduction the step's end alone
      reduce_lane_(device::Priority::high),
      messages_(comm, plan, rank) {
  if (messages_.active())
    for (const plan::Lane lane :
         {plan::Lane::send_next, plan::Lane::recv_prev, plan::Lane::send_prev, plan::Lane::recv_next})
      message_lanes_[lane] = std::make_unique<LaneThread>();
  // Communicators are made here, by all ranks in the same order.
  parallel_.connect(within_units_);
  if (options_.input_grad) parallel_.connect({{"sums", plan::kSequenceAxes}});
  const auto made = [&](std::string_view purpose, const std::vector<Axis>& axes) -> comm::Group* {
    comm::Group& group = comm.group(purpose, axes);
    return group.size() > 1 ? &group : nullptr;
  };
  for (int u = 0; u < store.units(); ++u) {
    auto &gather = gather_.emplace_back(), &reduce = reduce_.emplace_back(), &whole = whole_.emplace_back(),
         &spread = spread_.emplace_back(), &sums = sums_.emplace_back(), &host_sums = host_sums_.emplace_back();
    const bool summed = plan::row(plan.states.optimizer).rounds > 0;
    for (size_t b = 0; b < store.layout(u).buffers.size(); ++b) {
      const plan::Buffer& buffer = store.layout(u).buffers[b];
      std::map<std::string_view, comm::Group*> of;  // by purpose; null: a group of one
      const std::vector<plan::DeviceGroup> groups = plan::buffer_groups(plan, buffer);
      for (const auto& [purpose, axes] : groups)
        if ((of[purpose] = made(purpose, axes))) of[purpose]->connect();
      for (comm::Group* group : {of["gather"], of["reduce"]})
        if (group && std::ranges::find(of_slots_, group) == of_slots_.end()) of_slots_.push_back(group);
      gather.push_back(of["gather"]), reduce.push_back(of["reduce"]);
      whole.push_back(of["reduce_whole"]), spread.push_back(of["gather_outer"]);
      const std::vector<Axis> over = plan::sum_axes(plan, buffer);
      const bool adds = summed && buffer.trainable;
      sums.push_back(adds ? made(plan::kSums, over) : nullptr);
      host_sums.push_back(adds ? made(plan::kHostSums, over) : nullptr);
    }
  }
  if (far_) {
    progress_ = std::make_shared<DeviceProgress>();
    under_way_.emplace([progress = progress_] { return progress->text(); });
    if (auto swap = store.swap_on_device()) swap_under_way_.emplace(std::move(swap));
  }
  if (!options_.trace.empty()) {
    read_times();
    ::unlink(options_.trace.c_str());  // it may be a link to a file elsewhere
    trace_.emplace(options_.trace, checkpoint::GrowingFile::Begin::empty);
  }
}

void Executor::reserve_host(int64_t arena, int64_t uploads) {
  host_.reserve(arena);
  if (far_) uploads_.reserve(uploads + kUploadSlack);
}

StepRun Executor::run(const Pass& pass, net::Objective& objective, const Report& report,
                      const net::UnitUpdate* update) {
  check_internal(pass.program->norm >= 0 && !in_step_, "engine.run",
                 in_step_ ? "the step before is not finished" : "the program has no norm: it is no training step");
  const auto run = std::make_shared<Run>(Run{pass.program, pass.step, &objective, report, update});
  if (pass.ahead) control_ = pass.ahead;
  attention_ = {};
  input_grads_.assign(run->schedule().micros, {});
  in_step_ = true;
  make_numbers();
  begin(*run);
  interpret(run, 0, run->program->norm + 1);
  StepRun step;
  step.norm_ = run->norm;
  step.ranks_ = std::move(run->ranks);
  step.rest_ = run;
  return step;
}

void Executor::finish(StepRun step, std::optional<net::StepControl> control) {
  const std::shared_ptr<Run> run = std::move(step.rest_);
  in_step_ = false;
  if (run->plan().update != plan::Update::in_backward) control_ = control;
  interpret(run, run->program->norm + 1, static_cast<int>(run->schedule().list.size()));
  end(*run);
}

void Executor::update(const plan::ProgramPtr& program, int64_t step, const net::UnitUpdate& update) {
  const auto run = std::make_shared<Run>(Run{program, step});
  run->update = &update;
  run_whole(run);
}

std::vector<Tensor> Executor::forward(const plan::ProgramPtr& program, int64_t step,
                                      const std::vector<net::Batch>& batches) {
  check_internal(static_cast<int>(batches.size()) == program->schedule.micros, "engine.forward",
                 "batches do not match the schedule");
  const at::NoGradGuard no_grad;
  const auto run = std::make_shared<Run>(Run{program, step});
  run->batches = &batches;
  run->results.resize(batches.size());
  run_whole(run);
  return std::move(run->results);
}

void Executor::checkpoint(const plan::ProgramPtr& program, int64_t step, const std::function<void()>& write,
                          const std::function<void()>& commit) {
  const auto run = std::make_shared<Run>(Run{program, step});
  run->write = &write;
  run->commit = &commit;
  run_whole(run);
}

void Executor::run_whole(const std::shared_ptr<Run>& run) {
  begin(*run);
  interpret(run, 0, static_cast<int>(run->schedule().list.size()));
  end(*run);
}

void Executor::begin(Run& run) {
  store_.await_fill();
  const size_t count = run.schedule().list.size();
  host_.reserve(run.schedule().host_arena);
  reserve_disk(run.schedule().disk_arena);
  run.micros.resize(run.schedule().micros);
  run.messages.resize(count);
  for (auto& micro : run.micros) micro.runs.resize(units_.size());
  run.counted.assign(units_.size(), false);
  run.times.resize(count);
  run.comm.resize(count);
  run.tokens.resize(run.micros.size());
  run.samples.resize(run.micros.size());
  events_.reset(count);
  if (by_device_) {
    run.issued_before.assign(count, -1);
    int before = -1;
    for (const int i : plan::issue_order(run.schedule()))
      run.issued_before[static_cast<size_t>(i)] = std::exchange(before, i);
  }
  device::label("");
  store_.rest(nullptr);
  if (marks_.size() < count) marks_.resize(count), prepared_.resize(count);
  start_.record();
  if (far_ && times_read_) run.timed = std::make_unique<DeviceTimes>(run.program, run.step);
  run.start = now(), run.in_collectives = comm::seconds_in_collectives();
}

void Executor::interpret(const std::shared_ptr<Run>& shared, int begin, int end) {
  const auto& list = shared->schedule().list;
  const ops::AttentionScope scope(shared->plan().attention, keep_lines_ ? &attention_ : nullptr);
  const auto here = [this](const auto& act) {  // on the compute thread
    try {
      act();
    } catch (...) {
      events_.fail(std::current_exception());
      throw;
    }
  };
  for (int i = begin; i < end; ++i) {
    if (list[i].lane != plan::Lane::compute) {
      here([&] { issue(shared, i); });
      continue;
    }
    events_.await(list[i].wait);
    await_turn(*shared, i);
    here([&] { follow(*shared, list[i]), perform(shared, i); });
  }
}

/// Hands an instruction to its lane. It allocates here, in the order of the list, so that the memory curve is the
/// predicted one; the lane writes to that memory after the compute before this place ([Note: memory at a place]).
void Executor::issue(const std::shared_ptr<Run>& shared, int index) {
  Run& run = *shared;
  const plan::Instruction& in = run.schedule().list[index];
  if (in.op == plan::Op::fetch && in.part == plan::Part::activations && in.lane != plan::Lane::disk)
    for (auto& saved : run.micros[in.micro].runs[in.unit].offloaded) take_memory(saved);
  const bool message = in.op == plan::Op::send || in.op == plan::Op::recv;
  if (message) prepare_message(run, index);
  // What it gets may have been freed since the last instruction, by a thread that makes samples on this stream.
  const bool prepared = message || plan::takes_memory(in);
  if (prepared) prepared_[index].record();
  // Each lane shares ownership of the run: after a failure it may outlive the call.
  lane(in.lane).push([this, shared, index, prepared] {
    try {
      const plan::Instruction& own = shared->schedule().list[index];
      events_.await(own.wait);
      await_turn(*shared, index);
      follow(*shared, own);
      if (prepared) prepared_[index].order();
      perform(shared, index);
    } catch (...) {
      events_.fail(std::current_exception());
    }
  });
}

/// [Note: lanes are streams] On a device an instruction is done for the host when it has been given to its lane's stream. The
/// streams are ordered by marks: here, what the lane is given next comes after the instructions that this one waits for. A
/// lane that works on the host waits for them itself. What was before the schedule is on the compute lane's stream, or was
/// joined to it (join_lanes).
void Executor::follow(Run& run, const plan::Instruction& in) {
  device::label(std::string(name(in.op)) + (in.name.empty() ? "" : " " + in.name));
  const bool host = works_on_host(in.lane);
  const auto after = [&](const device::Mark& mark) { host ? mark.await() : mark.order(); };
  bool& begun = run.begun[static_cast<size_t>(in.lane)];
  if (!std::exchange(begun, true) && in.lane != plan::Lane::compute) after(start_);
  for (const int earlier : in.wait)
    if (run.schedule().list[earlier].lane != in.lane) after(marks_[earlier]);
}

/// An instruction that gives messages to streams does it after the one before it in the list has: [Note: one order of issue].
void Executor::await_turn(const Run& run, int index) {
  if (!by_device_) return;
  const int before = run.issued_before[static_cast<size_t>(index)];
  if (before >= 0) events_.await(std::span(&before, 1));
}

/// What comes after the schedule comes after all of its lanes.
void Executor::join_lanes(const Run& run) {
  device::label("");
  std::array<int, plan::kLaneCount> last;
  last.fill(-1);
  const auto& list = run.schedule().list;
  for (size_t i = 0; i < list.size(); ++i) last[static_cast<size_t>(list[i].lane)] = static_cast<int>(i);
  for (const int i : last)
    if (i >= 0 && list[static_cast<size_t>(i)].lane != plan::Lane::compute) marks_[static_cast<size_t>(i)].order();
  end_.record();
  store_.rest(&end_);
}

void Executor::perform(const std::shared_ptr<Run>& shared, int index) {
  Run& run = *shared;
  const plan::Instruction& in = run.schedule().list[index];
  const bool enqueues = far_ && !works_on_host(in.lane);
  const double t0 = now();  // an injected delay counts as the instruction's time
  if (enqueues) progress_->begins(in.lane, {run.program, run.step, index});
  if (enqueues && run.timed) run.timed->began(index);
  if (whereabouts_) whereabouts_(run.step, index, in, false);
  execute(run, index, run.comm[index]);
  run.times[index] = {t0 - run.start, now() - run.start};
  if (enqueues && run.timed) run.timed->ended(index);
  if (enqueues) progress_->given(in.lane);
  marks_[index].record();  // last: who waits for it waits for these too
  if (!device::has_streams()) marks_[index].await();
  if (whereabouts_) whereabouts_(run.step, index, in, true);
  const auto same = [](const plan::Comm& ran, const plan::Comm& expected) {
    if (expected.bytes != kAnyBytes) return ran.same_traffic(expected);
    return ran.axis == expected.axis && ran.kind == expected.kind;
  };
  const std::vector<plan::Comm> expected = declared(run, in);
  check_internal(std::equal(run.comm[index].begin(), run.comm[index].end(), expected.begin(), expected.end(), same),
                 "engine.executor",
                 "instruction " + std::to_string(index) + " (" + std::string(name(in.op)) + " " + in.name +
                     ") ran other collectives than it declares");
  events_.done(index);
}

void Executor::end(Run& run) {
  events_.await_all();
  if (far_) join_lanes(run);
  if (!run.timed) {
    if (!far_) note_times(*run.program, run.step, run.times, comm::seconds_in_collectives() - run.in_collectives);
    return;
  }
  run.timed->close(std::move(run.times));
  unsettled_.push_back(std::move(run.timed));
}

/// The file of offloaded activations grows only; it holds nothing between two schedules.
void Executor::reserve_disk(int64_t bytes) {
  if (bytes <= disk_bytes()) return;
  plan::require_nvme_folder(options_.nvme.folder, "the plan puts activations on nvme");
  disk_.reset();
  disk_ = std::make_unique<Disk>(options_.nvme, bytes);
}

/// The collectives that an instruction declares. The list has bytes for micro-batches of the largest shape; the result
/// has them for the actual tokens, or kAnyBytes where they do not follow from their number.
std::vector<plan::Comm> Executor::declared(const Run& run, const plan::Instruction& in) const {
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
  for (const plan::Traffic& t : plan::traffic_of(store_.spec(in.unit), run.plan().units[in.unit], in.op))
    if (next < comm.size() && t.several(run.plan().mesh))
      comm[next++].bytes = depends_on_more(t) ? kAnyBytes : bytes(t);
  return comm;
}

void Executor::execute(Run& run, int index, std::vector<plan::Comm>& done) {
  const plan::Instruction& in = run.schedule().list[index];
  std::optional<Parallel::Notes> notes;
  if (plan::carries_tokens(in.op)) notes.emplace(parallel_, done);
  switch (in.op) {
    case plan::Op::gather:
      if (in.slot >= 0) gather(in, done);
      break;
    case plan::Op::forward:
      store_.bind(in.unit, in.slot);
      forward_unit(run, in);
      break;
    case plan::Op::recompute:
      store_.bind(in.unit, in.slot);
      recompute_unit(run, in);
      break;
    case plan::Op::stash:
    case plan::Op::fetch: {
      if (in.part != plan::Part::activations) {
        store_.move(in, in.host < 0 ? nullptr : host_.at(in.host));
        break;
      }
      if (in.lane == plan::Lane::disk) {
        device::host_uses(host_.at(in.host), in.bytes, in.op == plan::Op::fetch);
        in.op == plan::Op::stash ? disk_->write(in.slot, host_.at(in.host), in.bytes)
                                 : disk_->read(in.slot, host_.at(in.host), in.bytes);
        break;
      }
      int64_t at = in.host;
      for (const auto& saved : run.micros[in.micro].runs[in.unit].offloaded) {
        void* here = saved.storage.mutable_data();
        const auto bytes = static_cast<int64_t>(saved.storage.nbytes());
        const bool far = !saved.storage.device().is_cpu();
        in.op == plan::Op::stash ? ops::enqueue_copy(host_.at(at), here, bytes, far)
                                 : ops::enqueue_copy(here, host_.at(at), bytes, far);
        at += saved.bytes();
      }
      // The schedule has the bytes of the largest micro-batch.
      check_internal(at - in.host <= in.bytes, "engine.executor",
                     std::string(name(in.op)) + " " + in.name + " moves " + std::to_string(at - in.host) +
                         " bytes, the schedule says " + std::to_string(in.bytes));
      break;
    }
    case plan::Op::compress:
      compress_unit(run.micros[in.micro].runs[in.unit]);
      break;
    case plan::Op::expand: {
      UnitRun& unit_run = run.micros[in.micro].runs[in.unit];
      unit_run.offloaded.clear();  // all of it is back: frees the buffer of quantised activations
      unit_run.kept.expand();
      unit_run.away.expand();
      break;
    }
    case plan::Op::send:
    case plan::Op::recv:
      messages_.exchange(in, run.messages[index], done);
      if (in.op == plan::Op::recv) run.messages[index] = {};  // the micro-batch holds the message
      break;
    case plan::Op::weight_grad:
      weight_gradients(run, in);
      break;
    case plan::Op::drop:
      if (in.part == plan::Part::message)
        for (int sent : in.wait) run.messages[sent] = {};
      else
        for (auto& saved : run.micros[in.micro].runs[in.unit].offloaded) free_memory(saved);
      break;
    case plan::Op::release:
      store_.unbind(in.unit);
      if (options_.poison && in.slot >= 0)
        store_.arena(in.slot, store_.layout(in.unit).total).fill_(std::numeric_limits<float>::quiet_NaN());
      break;
    case plan::Op::loss: {
      Micro& micro = run.micros[in.micro];
      micro.stream_grad = loss(run, micro, in.micro);
      micro.stream.clear();
      break;
    }
    case plan::Op::finish:
      finish(run, in, done);
      break;
    case plan::Op::backward:
      store_.bind(in.unit, in.slot);
      backward_unit(run, in);
      break;
    case plan::Op::idle:
      if (in.add) break;
      (in.grad >= 0 ? store_.arena(in.grad, store_.layout(in.unit).grad_total) : store_.grad(in.unit)).zero_();
      break;
    case plan::Op::reduce:
      reduce(in, done);
      break;
    case plan::Op::reduce_outer:
      reduce_outer(in, done);
      break;
    case plan::Op::gather_outer:
      gather_outer(in, done);
      break;
    case plan::Op::norm:
      if (in.unit < 0) {
        norm(run, done);
      } else {
        const Tensor shard = store_.grad_at(in.unit, in.target);
        store_.round_gradient(shard);
        note_share(run, in.unit, shard);
      }
      break;
    case plan::Op::update:
      if (control_ && run.update) update(run, in, done);
      break;
    case plan::Op::flush:
      (*run.write)();
      for (int round = 0; round < 2; ++round) {
        if (world_.size() > 1) {
          world_.barrier();
          done.push_back({world_.axis(), "barrier", 0});
        }
        if (round == 0) (*run.commit)();
      }
      break;
  }
}

void Executor::forward_unit(Run& run, const plan::Instruction& in) {
  Micro& micro = load(run, in.micro);
  const bool train = run.batches == nullptr;
  if (in.unit == 0) micro.stream = micro.batch.inputs;
  take_received(micro, in, train);
  UnitRun& unit_run = micro.runs[in.unit];
  const plan::UnitPlan& plan = run.plan().units[in.unit];
  const bool graph = train && !plan.recomputes();
  unit_run.in = leaves(micro.stream, train && (in.unit > store_.first_trained() || options_.input_grad));
  micro.stream.clear();
  if (train && plan.replays())
    for (const auto& [site, policy] : plan.sites)
      if (site != plan::kBlockInput && policy != plan::Policy::recompute) unit_run.results[site];
  ShardContext ctx(store_, in.unit, micro.batch.tokens, {.keep = &unit_run.results, .parallel = &parallel_});
  std::optional<SavedStorages> saved;
  const bool elsewhere = train && (plan.offloads() || plan.compresses());
  if (graph && (plan.selective() || elsewhere))
    saved.emplace(foreign_tensors(unit_run.in, micro.cond, micro.batch.tokens), plan.selective());
  net::Flow out = run_forward(*units_[in.unit], ctx, micro.cond, graph, unit_run);
  if (elsewhere)
    sort_saved(unit_run, plan, in.unit, saved ? saved->take(out.stream, out.cond) : std::vector<SavedStorage>{});
  saved.reset();
  micro.stream = std::move(out.stream);
  if (!out.cond.empty()) {
    micro.cond = leaves(out.cond, train && wants_conditioning());
    micro.cond_grad.assign(micro.cond.size(), Tensor());
  }
  if (!train) unit_run = UnitRun{};
}

/// Sorts a unit's storages into those that are offloaded and those that are quantised: its input, the tensors that its
/// graph saved, and its kept results.
void Executor::sort_saved(UnitRun& run, const plan::UnitPlan& plan, int unit, std::vector<SavedStorage> saved) const {
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

void Executor::compress_unit(UnitRun& run) {
  run.kept.compress(compression_error_);
  run.away.compress(compression_error_);
  if (!run.away.empty()) run.offloaded.push_back(run.away.buffer());
}

void Executor::recompute_unit(Run& run, const plan::Instruction& in) {
  Micro& micro = run.micros[in.micro];
  UnitRun& unit_run = micro.runs[in.unit];
  ShardContext ctx(store_, in.unit, micro.batch.tokens,
                   {.unneeded = units_[in.unit]->output_site(), .known = &unit_run.results, .parallel = &parallel_});
  unit_run.offloaded.clear();  // all of it is back; from here on the graph alone holds it
  const SavedStorages selective(foreign_tensors(unit_run.in, micro.cond, micro.batch.tokens), /*selective=*/true);
  run_forward(*units_[in.unit], ctx, micro.cond, true, unit_run);
  unit_run.results.clear();
}

LaneThread& Executor::lane(plan::Lane lane) {
  switch (lane) {
    case plan::Lane::gather:
      return gather_lane_;
    case plan::Lane::reduce:
      return reduce_lane_;
    case plan::Lane::h2d:
      return fetch_lane_;
    case plan::Lane::d2h:
      return stash_lane_;
    case plan::Lane::send_next:
    case plan::Lane::recv_prev:
    case plan::Lane::send_prev:
    case plan::Lane::recv_next:
      return *message_lanes_.at(lane);
    case plan::Lane::host:
      if (!host_lane_) host_lane_ = std::make_unique<LaneThread>();
      return *host_lane_;
    default:
      return disk_lane_;
  }
}

/// The threads of the host lane, which no other lane uses.
Workers& Executor::workers(int threads) {
  if (!workers_) {
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    workers_ = std::make_unique<Workers>(threads > 0 ? threads : std::max(1, cores / options_.local_ranks));
  }
  return *workers_;
}

}  // namespace tessera::engine
