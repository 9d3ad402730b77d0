#include "tessera/tools/probe/engine_times.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/job/device.h"
#include "tessera/models/registry.h"
#include "tessera/plan/schedule_json.h"
#include "tessera/plan/simulate/predict.h"
#include "tessera/plan/unit_spec.h"
#include "tessera/planning/planning.h"
#include "tessera/tools/probe/synthetic_run.h"

namespace tessera::tools {

namespace {

constexpr int kBlocks = 4, kMicros = 3, kWarmup = 3, kSteps = 9;

/// A model and a plan for it. Widths and rows are those that products and attention were measured with.
struct Trial {
  Axis axis = Axis::dp_replicate;  ///< all ranks lie on it
  plan::Strategy strategy = plan::Strategy::no_shard;
  int64_t head = 0, heads = 0;
  DType compute = DType::f32;
  std::array<int64_t, 4> latent = {};
  int64_t samples = 1;  ///< of a micro-batch
};

/// An instruction of the compute lane.
struct Timed {
  plan::Instruction in;
  double seconds = 0, predicted = 0;
  double kept = 0;  ///< bytes of the unit's graph, of a block that is not recomputed
  double extra() const { return seconds - predicted; }
};

using Times = std::vector<Timed>;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

std::unique_ptr<net::Denoiser> model_of(const Trial& trial) {
  const int64_t dim = trial.head * trial.heads;
  const nlohmann::json config = {
      {"dim", dim},    {"num_heads", trial.heads}, {"num_layers", kBlocks}, {"ffn_dim", 4 * dim}, {"in_dim", 16},
      {"out_dim", 16}, {"freq_dim", 256},          {"text_dim", 128},       {"text_len", 64}};
  return models::make_denoiser({.config_text = config.dump()});
}

/// Half of the blocks are recomputed.
plan::Plan plan_of(const Trial& trial, const net::Denoiser& model, int world) {
  plan::Plan plan;
  plan.mesh[trial.axis] = world;
  plan.compute = plan.param_dtype = trial.compute;
  plan.micro_batch = trial.samples;
  plan.global_batch = trial.samples * kMicros * plan.mesh.dp_size();
  int blocks = 0;
  for (const auto& unit : model.units()) {
    plan::UnitPlan& own = plan.units.emplace_back();
    own.strategy = trial.strategy;
    if (plan::is_block(unit->spec()) && blocks++ % 2 == 1) own.activations = plan::Policy::recompute;
  }
  return plan;
}

/// When the instructions of a step begin and end: of a device by its events.
class Clocked {
 public:
  Clocked(SyntheticRun& run, size_t count) : run_(run), at_(count) {
    engine::Engine& engine = run_.engine();
    if (device::used()) {
      engine.times().read();
      engine.times().keep_lines(true);
      return;
    }
    engine.lanes().on_instruction([this](int64_t, int index, const plan::Instruction&, bool ends) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      at_[static_cast<size_t>(index)][ends] = std::chrono::duration<double>(now).count();
    });
  }
  ~Clocked() { run_.engine().lanes().on_instruction({}); }
  Clocked(const Clocked&) = delete;
  /// Behind each step.
  void read() {
    if (!device::used()) return;
    const std::vector<std::string>& lines = run_.engine().times().last_lines();
    check_internal(lines.size() == at_.size(), "probe", "a step ran another schedule");
    for (size_t i = 0; i < lines.size(); ++i) {
      const plan::Line line = plan::parse_line(lines[i]);
      at_[i] = {line.t0, line.t1};
    }
  }
  double begin(int index) const { return at_[static_cast<size_t>(index)][0]; }
  double end(int index) const { return at_[static_cast<size_t>(index)][1]; }

 private:
  SyntheticRun& run_;
  std::vector<std::array<double, 2>> at_;
};

/// Whether another lane of the rank runs shortly after that moment, so that a thread shares the processor with it.
bool runs_beside(const std::vector<plan::Instruction>& list, const Clocked& clock, plan::Lane lane, double moment) {
  constexpr double kShortly = 50e-6;  // by then a lane that goes on has begun its next instruction
  for (size_t i = 0; i < list.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (list[i].lane != lane && clock.begin(index) < moment + kShortly && clock.end(index) > moment + kShortly)
      return true;
  }
  return false;
}

/// Seconds from the end of what an instruction waited for on another lane to its begin, of those whose lane was free by then
/// and whose rank ran nothing else.
void add_wakes(const std::vector<plan::Instruction>& list, const Clocked& clock, std::vector<double>& wakes) {
  std::array<double, plan::kLaneCount> free = {};  // when each lane last ended
  for (size_t i = 0; i < list.size(); ++i) {
    const auto index = static_cast<int>(i);
    double& own = free[static_cast<size_t>(list[i].lane)];
    double ready = 0;
    for (const int w : list[i].wait)
      if (list[static_cast<size_t>(w)].lane != list[i].lane) ready = std::max(ready, clock.end(w));
    if (list[i].lane != plan::Lane::compute)  // [Note: handed over in turn]
      ready = std::max(ready, free[static_cast<size_t>(plan::Lane::compute)]);
    if (ready > own && own > 0 && !runs_beside(list, clock, list[i].lane, ready))
      wakes.push_back(clock.begin(index) - ready);
    own = clock.end(index);
  }
}

class Engines {
 public:
  Engines(const plan::Profile& profile, comm::Comm& comm, int rank, int world)
      : profile_(profile), comm_(comm), rank_(rank), world_(world) {}

  Times times(const Trial& trial) {
    const std::unique_ptr<net::Denoiser> model = model_of(trial);
    const plan::Plan plan = plan_of(trial, *model, world_);
    planning::PlanRequest request;
    request.model = model.get(), request.model_name = "probe", request.latent = trial.latent;
    request.mesh = plan.mesh;
    request.planner.global_batch = plan.global_batch, request.planner.micro_batch = plan.micro_batch;
    request.planner.compute = request.planner.param_dtype = plan.compute;
    request.machine.profile = profile_;
    request.machine.profile.target = job::plan_target(profile_);
    if (plan.compute != DType::f32) request.machine.dtype = "bf16";
    planning::MeasuredModels known;
    const plan::Measured measured = planning::measure_batch(request, plan, known);
    const plan::Prediction prediction = plan::predict(measured.model, plan, measured.machine);
    const std::vector<plan::Span>& spans = prediction.groups.front().spans;

    comm::Comm& comm = under(plan.mesh);
    SyntheticRun run(*model, trial.latent, measured.model, plan, comm, rank_, {.local_ranks = world_});
    const std::vector<plan::Instruction>& list = run.schedule().list;
    Clocked clock(run, list.size());
    std::vector<std::vector<double>> took(list.size());
    for (int step = 0; step < kWarmup + kSteps; ++step) {
      run.step();
      clock.read();
      if (step < kWarmup) continue;
      add_wakes(list, clock, wakes_);
      for (size_t i = 0; i < list.size(); ++i)
        took[i].push_back(clock.end(static_cast<int>(i)) - clock.begin(static_cast<int>(i)));
    }
    std::vector<double> mine;
    for (const std::vector<double>& seconds : took) mine.push_back(mean(seconds));
    const std::vector<double> agreed = means(comm, mine);
    Times times;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].lane != plan::Lane::compute) continue;
      Timed& timed = times.emplace_back(Timed{list[i], agreed[i], spans[i].end - spans[i].begin});
      if (list[i].unit < 0) continue;
      const auto unit = static_cast<size_t>(list[i].unit);
      const plan::UnitSpec& spec = measured.model.units[unit];
      if (plan::is_block(spec) && !plan.units[unit].recomputes())
        timed.kept = static_cast<double>(spec.cost.graph(plan.units[unit].selective()).saved);
    }
    comm.barrier();
    return times;
  }

  /// Of all trials.
  double wake() { return means(comm_, {mean(wakes_)})[0]; }

 private:
  comm::Comm& under(const Mesh& mesh) {
    Mesh shards;
    shards[Axis::dp_shard] = world_;
    if (mesh == shards) return comm_;
    auto& other = others_[mesh.to_string()];
    if (!other) other = std::make_unique<comm::Comm>(comm_, mesh);
    return *other;
  }

  std::vector<double> means(comm::Comm& comm, const std::vector<double>& mine) const {
    std::vector<double> sums(mine.size(), 0);
    comm::Group& all = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
    for (const auto& row : all.all_gather_doubles(mine))
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += row[i] / world_;
    return sums;
  }

  const plan::Profile& profile_;
  comm::Comm& comm_;
  const int rank_, world_;
  std::map<std::string, std::unique_ptr<comm::Comm>> others_;  // by mesh
  std::vector<double> wakes_;                                  // of this rank
};

/// The median over blocks that keep their graph, and their bytes.
struct Kept {
  double bytes = 0, extra = 0;
};
Kept of_kept(const Times& times, plan::Op op) {
  Kept kept;
  std::vector<double> extra;
  for (const Timed& timed : times)
    if (timed.in.op == op && timed.kept > 0) extra.push_back(timed.extra()), kept.bytes = timed.kept;
  kept.extra = median(std::move(extra));
  return kept;
}

/// Start and rate of the line through both: extra = start + bytes / rate. No rate: more bytes do not take longer.
std::array<double, 2> line_of_kept(const Kept& few, const Kept& many) {
  const double slope = (many.extra - few.extra) / (many.bytes - few.bytes);
  if (!(slope > 0)) return {std::max(0.0, few.extra), 0};
  return {std::max(0.0, few.extra - slope * few.bytes), 1 / slope};
}

void starts(plan::Profile& profile, const Times& few, const Times& many) {
  std::map<plan::Op, std::vector<double>> extra;
  for (const Timed& timed : few) extra[timed.in.op].push_back(timed.extra());
  std::map<plan::Op, double> found;
  for (auto& [op, seconds] : extra) found[op] = std::max(0.0, median(std::move(seconds)));
  const auto kept = [&](plan::Op op, double& rate) {
    const auto [start, bytes_per_second] = line_of_kept(of_kept(few, op), of_kept(many, op));
    found[op] = start, rate = bytes_per_second;
  };
  if (profile.devices == 0) {  // the operators of a device were measured on memory that no cache holds
    kept(plan::Op::forward, profile.device.kept_write);
    kept(plan::Op::backward, profile.device.kept_read);
  }
  for (const auto& [op, seconds] : found) profile.starts[std::string(name(op))] = seconds;
}

void waits(plan::Profile& profile, const Times& times) {
  std::map<std::string, std::array<std::vector<double>, 2>> extra;  // forward and backward
  for (const Timed& timed : times)
    for (const plan::Comm& comm : timed.in.comm) {
      const std::string purpose = comm.group.text().substr(0, comm.group.text().find(':'));
      if (plan::carries_tokens(timed.in.op))
        extra[purpose][timed.in.op == plan::Op::backward].push_back(timed.extra() /
                                                                    static_cast<double>(timed.in.comm.size()));
    }
  for (const auto& [purpose, both] : extra)
    profile.waits[purpose] = {std::max(0.0, mean(both[0])), std::max(0.0, mean(both[1]))};
}

}  // namespace

void measure_engine(plan::Profile& profile, comm::Comm& comm, int rank, int world, const Sizes& sizes) {
  const Sizes::Engine& of = sizes.engine;
  Engines engines(profile, comm, rank, world);
  const DType compute = sizes.types.front().type == at::kBFloat16 ? DType::bf16 : DType::f32;
  const auto trial = [&](int64_t heads, const std::array<int64_t, 4>& latent) {
    return Trial{.head = of.head, .heads = heads, .compute = compute, .latent = latent};
  };
  Trial many = trial(of.heads, of.many);
  many.samples = of.samples;
  const Times few = engines.times(trial(of.heads, of.few));
  starts(profile, few, engines.times(many));
  if (world > 1) {
    Trial shared = trial(round_up(std::max<int64_t>(4, of.heads), world), of.many);
    for (const Axis axis : {Axis::tp, Axis::sp, Axis::cp}) {
      shared.axis = axis;
      waits(profile, engines.times(shared));
    }
    shared.axis = Axis::dp_shard, shared.strategy = plan::Strategy::full_shard;
    engines.times(shared);
  }
  profile.wake = engines.wake();
}

}  // namespace tessera::tools
