#include "tessera/engine/executor.h"

#include <chrono>
#include <limits>

#include "tessera/base/check.h"
#include "tessera/ops/adamw.h"

namespace tessera::engine {

namespace {

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

const std::vector<Axis> kWorldAxes(kAllAxes.begin(), kAllAxes.end());

double sum_of_squares(const Tensor& t) { return ops::sum_of_squares(t.const_data_ptr<float>(), t.numel()); }

int64_t bytes_sent(const Tensor& shard, const comm::Group& group) {
  return static_cast<int64_t>(shard.nbytes()) * (group.size() - 1);
}

}  // namespace

/// One micro-batch in flight.
struct Executor::Micro {
  net::Batch batch;
  std::vector<UnitRun> runs;
  std::vector<Tensor> stream;  // boundary between the unit that ran last and the next
  std::vector<Tensor> cond;    // shared conditioning: leaves
  std::vector<Tensor> cond_grad;
  std::vector<Tensor> stream_grad;  // gradient of the boundary, going back
};

/// One schedule being interpreted.
struct Executor::Run {
  const plan::Schedule& schedule;
  int64_t step;
  const StepCalls* calls = nullptr;
  net::UnitUpdate* update = nullptr;
  const std::vector<net::Batch>* batches = nullptr;
  std::vector<Tensor> results = {};
  const std::function<void()>* write = nullptr;
  const std::function<void()>* commit = nullptr;
  std::vector<Micro> micros = {};
  std::optional<net::StepControl> control = {};
  std::vector<double> shares = {};  // of units whose gradient left before the norm: their sums of squares, else -1
  std::vector<std::array<double, 2>> times = {};
  std::vector<std::vector<plan::Comm>> comm = {};
};

Executor::Executor(const std::vector<std::unique_ptr<net::Unit>>& units, Store& store, comm::Comm& comm,
                   const plan::Plan& plan, int rank, ExecutorOptions options)
    : units_(units),
      store_(store),
      plan_(plan),
      rank_(rank),
      options_(std::move(options)),
      gather_(comm.group("gather", kShardAxes)),
      reduce_(comm.group("reduce", kShardAxes)),
      outer_(comm.group("reduce_outer", {Axis::dp_replicate})),
      whole_(comm.group("reduce_whole", plan::kWholeAxes)),
      world_(comm.group("control", kWorldAxes)) {
  if (!options_.trace.empty()) {
    trace_.open(options_.trace, std::ios::trunc);
    if (!trace_)
      throw UserError(Exit::disk, "engine.trace", options_.trace + ": cannot be written", "choose another file");
  }
}

Executor::~Executor() = default;

void Executor::train(const plan::Schedule& schedule, int64_t step, const StepCalls& calls, net::UnitUpdate* update) {
  const auto run = std::make_shared<Run>(Run{schedule, step, &calls, update});
  input_grads_.assign(schedule.micros, {});
  interpret(run);
}

std::vector<Tensor> Executor::forward(const plan::Schedule& schedule, int64_t step,
                                      const std::vector<net::Batch>& batches) {
  check_internal(static_cast<int>(batches.size()) == schedule.micros, "engine.forward",
                 "batches do not match the schedule");
  const at::NoGradGuard no_grad;
  const auto run = std::make_shared<Run>(Run{schedule, step});
  run->batches = &batches;
  run->results.resize(batches.size());
  interpret(run);
  return std::move(run->results);
}

void Executor::checkpoint(const plan::Schedule& schedule, int64_t step, const std::function<void()>& write,
                          const std::function<void()>& commit) {
  const auto run = std::make_shared<Run>(Run{schedule, step});
  run->write = &write;
  run->commit = &commit;
  interpret(run);
}

void Executor::interpret(const std::shared_ptr<Run>& shared) {
  Run& run = *shared;
  const auto& list = run.schedule.list;
  host_.reserve(run.schedule.host_arena);
  run.micros.resize(run.schedule.micros);
  for (auto& micro : run.micros) micro.runs.resize(units_.size());
  run.shares.assign(units_.size(), -1);
  run.times.resize(list.size());
  run.comm.resize(list.size());
  events_.reset(list.size());
  const double start = now();
  // Lanes own a part of the run: after a failure they may outlive this call.
  const auto perform = [this, shared, start](int i) {
    Run& run = *shared;
    const auto& list = run.schedule.list;
    const double t0 = now();
    execute(run, i, run.comm[i]);
    run.times[i] = {t0 - start, now() - start};
    // What was declared is what happened, or the plan was a story.
    check_internal(run.comm[i] == list[i].comm, "engine.executor",
                   "instruction " + std::to_string(i) + " (" + std::string(name(list[i].op)) + " " + list[i].name +
                       ") ran other collectives than it declares");
    events_.done(i);
  };
  for (int i = 0; i < static_cast<int>(list.size()); ++i) {
    if (list[i].lane == plan::Lane::compute) {
      events_.await(list[i].wait);
      if (whereabouts_)
        whereabouts_(run.step, i, std::string(name(list[i].op)) + (list[i].name.empty() ? "" : " " + list[i].name));
      try {
        perform(i);
      } catch (...) {
        events_.fail(std::current_exception());
        throw;
      }
      continue;
    }
    // Memory is taken in the order of the list, and so the curve is the predicted one.
    if (list[i].op == plan::Op::fetch && list[i].part == plan::Part::activations)
      for (auto& saved : run.micros[list[i].micro].runs[list[i].unit].offloaded) take_memory(saved);
    lane(list[i].lane).push([this, perform, shared, i] {
      try {
        events_.await(shared->schedule.list[i].wait);
        perform(i);
      } catch (...) {
        events_.fail(std::current_exception());
      }
    });
  }
  events_.await_all();

  if (run.step != traced_step_) traced_step_ = run.step, base_ = 0;
  if (keep_lines_) last_lines_.clear();
  for (size_t i = 0; i < list.size(); ++i) {
    busy_[std::string(name(list[i].lane))] += run.times[i][1] - run.times[i][0];
    if (!trace_.is_open() && !keep_lines_) continue;
    plan::Instruction done = list[i];
    done.comm = run.comm[i];
    const std::string line = plan::to_json(done, run.schedule.phase, rank_, run.step, static_cast<int>(i), base_,
                                           run.times[i][0], run.times[i][1]);
    if (trace_.is_open()) trace_ << line << '\n';
    if (keep_lines_) last_lines_.push_back(line);
  }
  if (trace_.is_open()) trace_.flush();
  base_ += static_cast<int>(list.size());
}

void Executor::execute(Run& run, int index, std::vector<plan::Comm>& done) {
  const plan::Instruction& in = run.schedule.list[index];
  const std::string shard_axis = gather_.axis();
  switch (in.op) {
    case plan::Op::gather:
      if (in.slot >= 0) {
        const bool sharded = store_.layout(in.unit).shards > 1;
        const int64_t sent = store_.gather(in.unit, in.slot, sharded ? &gather_ : nullptr, in.scratch);
        if (sharded) done.push_back({shard_axis, "all_gather", sent});
      }
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
      int64_t at = in.host;
      for (const auto& saved : run.micros[in.micro].runs[in.unit].offloaded) {
        void* device = saved.storage.mutable_data();
        in.op == plan::Op::stash ? std::memcpy(host_.at(at), device, saved.storage.nbytes())
                                 : std::memcpy(device, host_.at(at), saved.storage.nbytes());
        at += saved.bytes();
      }
      // The schedule has the bytes of the fullest micro-batch.
      check_internal(at - in.host <= in.bytes, "engine.executor",
                     std::string(name(in.op)) + " " + in.name + " moves " + std::to_string(at - in.host) +
                         " bytes, the schedule says " + std::to_string(in.bytes));
      break;
    }
    case plan::Op::drop:
      for (auto& saved : run.micros[in.micro].runs[in.unit].offloaded) free_memory(saved);
      break;
    case plan::Op::release:
      store_.unbind(in.unit);
      if (options_.poison && in.slot >= 0)
        store_.arena(in.slot, store_.layout(in.unit).total).fill_(std::numeric_limits<float>::quiet_NaN());
      break;
    case plan::Op::loss: {
      Micro& micro = run.micros[in.micro];
      const at::NoGradGuard no_grad;
      micro.stream_grad = {run.calls->loss(micro.stream[0], micro.batch, in.micro)};
      micro.stream.clear();
      break;
    }
    case plan::Op::finish: {
      Micro& micro = run.micros[in.micro];
      run.results[in.micro] = micro.stream[0];
      micro = Micro{};
      break;
    }
    case plan::Op::backward: {
      Micro& micro = run.micros[in.micro];
      store_.bind(in.unit, in.slot);
      store_.bind_grad(in.unit, in.grad, !in.add);
      const bool stem = in.unit == 0;
      micro.runs[in.unit].offloaded.clear();  // the graph is to be the only holder
      std::vector<Tensor> out_cond_grad;
      if (stem) out_cond_grad = std::move(micro.cond_grad);
      std::vector<Tensor> none;
      micro.stream_grad = run_backward(micro.runs[in.unit], std::move(micro.stream_grad), std::move(out_cond_grad),
                                       stem ? std::vector<Tensor>{} : micro.cond, stem ? none : micro.cond_grad,
                                       store_.anchor(in.unit));
      store_.finish_grad(in.unit);
      if (stem) {
        if (options_.input_grad) input_grads_[in.micro] = std::move(micro.stream_grad);
        micro = Micro{};
      }
      break;
    }
    case plan::Op::idle:
      if (in.add) break;
      (in.grad >= 0 ? store_.arena(in.grad, store_.layout(in.unit).total) : store_.grad(in.unit)).zero_();
      break;
    case plan::Op::reduce: {
      const int64_t total = store_.layout(in.unit).total;
      const Tensor shard = store_.grad_at(in.unit, in.target);
      reduce_.reduce_scatter(shard, store_.arena(in.grad, total), store_.arena(in.scratch, total), in.add);
      done.push_back({shard_axis, "reduce_scatter", bytes_sent(shard, reduce_)});
      break;
    }
    case plan::Op::reduce_outer: {
      comm::Group& group = store_.layout(in.unit).shards > 1 ? outer_ : whole_;
      const Tensor shard = store_.grad_at(in.unit, in.target);
      group.all_reduce(shard);
      done.push_back({group.axis(), "all_reduce", static_cast<int64_t>(shard.nbytes())});
      break;
    }
    case plan::Op::norm:
      if (in.unit < 0)
        norm(run, done);
      else
        run.shares[in.unit] = sum_of_squares(store_.grad_at(in.unit, in.target));
      break;
    case plan::Op::update:
      if (run.control && run.update) store_.update(in.unit, *run.update, *run.control, {in.slot, in.grad, in.scratch});
      break;
    case plan::Op::flush:
      (*run.write)();
      for (int round = 0; round < 2; ++round) {
        if (world_.size() > 1) {
          world_.barrier();
          done.push_back({world_.axis(), "barrier", 0});
        }
        if (round == 0 && rank_ == 0) (*run.commit)();
      }
      break;
  }
}

void Executor::forward_unit(Run& run, const plan::Instruction& in) {
  Micro& micro = run.micros[in.micro];
  const bool train = run.batches == nullptr;
  if (in.unit == 0) {
    micro.batch = train ? run.calls->load(in.micro) : (*run.batches)[in.micro];
    micro.stream = micro.batch.inputs;
  }
  UnitRun& unit_run = micro.runs[in.unit];
  const plan::UnitPlan& plan = plan_.units[in.unit];
  const bool graph = train && plan.activations != plan::Policy::recompute;
  unit_run.in = leaves(micro.stream, train && (in.unit > 0 || options_.input_grad));
  micro.stream.clear();
  if (train && plan.replays())
    for (const auto& [site, policy] : plan.sites)
      if (site != plan::kBoundary && policy != plan::Policy::recompute) unit_run.attention[site];
  ShardContext ctx(store_, in.unit, micro.batch.tokens, {.keep = &unit_run.attention});
  std::optional<SavedStorages> saved;
  if (graph && plan.offloads()) saved.emplace(foreign_tensors(unit_run.in, micro.cond, micro.batch.tokens));
  net::Flow out = run_forward(*units_[in.unit], ctx, micro.cond, graph, unit_run);
  if (train && plan.offloads())
    list_offloaded(unit_run, in.unit, saved ? saved->take(out.stream, out.cond) : std::vector<SavedStorage>{});
  saved.reset();
  micro.stream = std::move(out.stream);
  if (!out.cond.empty()) {
    micro.cond = leaves(out.cond, train);
    micro.cond_grad.assign(micro.cond.size(), Tensor());
  }
  if (!train) unit_run = UnitRun{};
}

/// The storages of a unit that go to the host: its input, what its graph saved, what its attention made.
void Executor::list_offloaded(UnitRun& run, int unit, std::vector<SavedStorage> saved) const {
  const plan::UnitPlan& plan = plan_.units[unit];
  if (unit > 0)  // the first unit's input is the batch, which others read
    for (const Tensor& t : run.in) saved.push_back({std::string(plan::kBoundary), t.storage()});
  for (const auto& [site, result] : run.attention)
    for (const Tensor& t : {result.out, result.lse}) saved.push_back({site, t.storage()});
  std::erase_if(saved, [&](const SavedStorage& s) { return plan.policy(s.site) != plan::Policy::offload; });
  run.offloaded = std::move(saved);
}

void Executor::recompute_unit(Run& run, const plan::Instruction& in) {
  Micro& micro = run.micros[in.micro];
  UnitRun& unit_run = micro.runs[in.unit];
  ShardContext ctx(store_, in.unit, micro.batch.tokens,
                   {.unneeded = units_[in.unit]->output_site(), .known = &unit_run.attention});
  unit_run.offloaded.clear();  // it is back, and the graph is to be its only holder
  run_forward(*units_[in.unit], ctx, micro.cond, true, unit_run);
  unit_run.attention.clear();
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
    default:
      return disk_lane_;
  }
}

void Executor::norm(Run& run, std::vector<plan::Comm>& done) {
  // Of ranks that hold the same gradient only one counts it. Summed in rank order, so every rank has the same bits.
  double squares = 0;
  for (int u = 0; u < store_.units(); ++u)
    if (store_.speaks_for(u)) squares += run.shares[u] >= 0 ? run.shares[u] : sum_of_squares(store_.grad(u));
  std::vector<double> mine = {squares};
  if (run.calls->control)
    for (double value : run.calls->control()) mine.push_back(value);
  mine.resize(plan::kControlDoubles, 0.0);
  const std::vector<std::vector<double>> all = world_.all_gather_doubles(mine);
  if (world_.size() > 1) done.push_back({world_.axis(), "all_gather", plan::kControlBytes});
  double total = 0;
  std::vector<std::vector<double>> values;
  for (const auto& row : all) {
    total += row[0];
    values.emplace_back(row.begin() + 1, row.end());
  }
  if (run.calls->agree) run.control = run.calls->agree(std::sqrt(total), values);
}

std::map<std::string, double> Executor::take_busy() { return std::exchange(busy_, {}); }

}  // namespace tessera::engine
