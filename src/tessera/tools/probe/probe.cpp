#include "tessera/tools/probe/probe.h"

#include <ATen/Parallel.h>

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/target.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/device/backend.h"
#include "tessera/engine/store/host_memory.h"
#include "tessera/engine/store/meter.h"
#include "tessera/job/device.h"
#include "tessera/models/registry.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/session.h"
#include "tessera/plan/schedule_json.h"
#include "tessera/plan/simulate/predict.h"
#include "tessera/plan/unit_spec.h"
#include "tessera/planning/measure.h"
#include "tessera/tools/probe/clock.h"
#include "tessera/tools/probe/signatures.h"
#include "tessera/tools/probe/sizes.h"
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

/// Of each collective inside units: the instruction's seconds without waits and its extra ones, both shared by its collectives.
struct Awaited {
  std::vector<double> predicted, extra;
};
using AwaitedByPurpose = std::map<std::string, std::array<Awaited, 2>>;  ///< forward and backward

AwaitedByPurpose awaited(const Times& times) {
  AwaitedByPurpose all;
  for (const Timed& timed : times)
    for (const plan::Comm& comm : timed.in.comm) {
      if (!plan::carries_tokens(timed.in.op)) continue;
      const std::string purpose = comm.group.text().substr(0, comm.group.text().find(':'));
      Awaited& own = all[purpose][timed.in.op == plan::Op::backward];
      const auto count = static_cast<double>(timed.in.comm.size());
      own.predicted.push_back(timed.predicted / count), own.extra.push_back(timed.extra() / count);
    }
  return all;
}

plan::WaitOf wait_of(const Awaited& few, const Awaited& many) {
  return plan::WaitOf::of(mean(few.predicted), mean(few.extra), mean(many.predicted), mean(many.extra));
}

void waits(plan::Profile& profile, const Times& few, const Times& many) {
  const AwaitedByPurpose less = awaited(few), more = awaited(many);
  for (const auto& [purpose, both] : less)
    if (const auto other = more.find(purpose); other != more.end())
      profile.waits[purpose] = {wait_of(both[0], other->second[0]), wait_of(both[1], other->second[1])};
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
    const int64_t heads = round_up(std::max<int64_t>(4, of.heads), world);
    Trial little = trial(heads, of.few), shared = trial(heads, of.many);
    for (const Axis axis : {Axis::tp, Axis::sp, Axis::cp}) {
      little.axis = shared.axis = axis;
      const Times many_tokens = engines.times(shared);
      waits(profile, of.few == of.many ? many_tokens : engines.times(little), many_tokens);
    }
    shared.axis = Axis::dp_shard, shared.strategy = plan::Strategy::full_shard;
    engines.times(shared);
  }
  profile.wake = engines.wake();
}

namespace {

using at::Tensor;
using plan::Rate;

/// Work done and what it took.
struct Point {
  double work = 0, seconds = 0;
};

Rate through(const Point& few, const Point& many) { return line(few.work, few.seconds, many.work, many.seconds); }

/// Of one of the three products of a linear, X W^T, dY W, dY^T X, with the shapes of a block's and by the kernel that linears
/// use: on a CPU at::mm is a fifth slower, and so would every prediction be.
Rate rate_of_products(Clock& clock, const Sizes& sizes, at::ScalarType type) {
  const auto measure = [&](const ProductSize& size) {
    const Tensor x = normal({size.rows, size.in}, type), w = normal({size.out, size.in}, type),
                 dy = normal({size.rows, size.out}, type), dw = normal({size.out, size.in});
    const auto& kernels = ops::kernels(x);
    const double seconds = clock.seconds([&] {
      kernels.linear(x, w, Tensor(), false, type);
      kernels.linear_input_gradient(dy, w, x, false, false);
      kernels.linear_weight_gradient(dw, dy, x, false, false);
    });
    return Point{2.0 * static_cast<double>(size.rows * size.in * size.out), seconds / 3};
  };
  return through(measure(sizes.products[0]), measure(sizes.products[1]));
}

/// The same of codes of 8 bits that are there already: what quantises them is counted by the bytes that it streams.
Rate rate_of_fp8(Clock& clock, const Sizes& sizes) {
  const auto measure = [&](const ProductSize& size) {
    const auto& kernels = ops::kernels(normal({1}));
    const auto lines = [&](int64_t count, int64_t length, at::ScalarType format) {
      return kernels.fp8_lines(normal({count, length}, at::kBFloat16), format, /*turned=*/false, /*gelu=*/false);
    };
    constexpr at::ScalarType kForward = at::kFloat8_e4m3fn, kGradient = at::kFloat8_e5m2;
    const ops::Fp8Lines x = lines(size.rows, size.in, kForward), w = lines(size.out, size.in, kForward),
                        dy = lines(size.rows, size.out, kGradient), w_columns = lines(size.in, size.out, kForward),
                        dy_columns = lines(size.out, size.rows, kGradient),
                        x_columns = lines(size.in, size.rows, kForward);
    const Tensor dw = normal({size.out, size.in});
    const double seconds = clock.seconds([&] {
      kernels.fp8_product(x, w, Tensor(), at::kBFloat16);
      kernels.fp8_product(dy, w_columns, Tensor(), at::kBFloat16);
      kernels.fp8_product_into(dw, dy_columns, x_columns, /*add=*/false);
    });
    return Point{2.0 * static_cast<double>(size.rows * size.in * size.out), seconds / 3};
  };
  return through(measure(sizes.products[0]), measure(sizes.products[1]));
}

/// Whether the GPU of this process multiplies 8-bit floats.
bool has_fp8() {
  if (!device::used()) return false;
  const std::string chip = device::used()->properties(device::here().index()).chip;
  return chip.starts_with("sm_") && std::atoi(chip.c_str() + 3) >= 89;
}

void rates_of_attention(plan::DeviceProfile& device, Clock& clock, const Sizes& sizes, const Sizes::OfType& of,
                        plan::Attention kernel) {
  const ops::AttentionScope scope(kernel);
  std::array<Point, 2> forward, backward;
  for (size_t i = 0; i < 2; ++i) {
    // of the other dtypes their longest: they compute slower
    const int64_t tokens = std::min(sizes.spans[i], static_cast<int64_t>(of.spans[of.spans.size() - 2 + i]));
    const int64_t width = sizes.heads * sizes.head;
    const std::vector<int64_t> at = {0, tokens};
    const auto leaf = [&] { return normal({tokens, width}, of.type).requires_grad_(); };
    const Tensor q = leaf(), k = leaf(), v = leaf();
    const Both both = time_both(clock, 1, [&] { return ops::attention(q, k, v, sizes.heads, at, at); }, {q, k, v});
    const double work = 4.0 * static_cast<double>(tokens * tokens * width);
    forward[i] = {work, both.forward}, backward[i] = {2.5 * work, both.backward};
  }
  const std::string name = rates_of(of.type, kernel);
  device.attention[name] = through(forward[0], forward[1]);
  device.attention_backward[name] = through(backward[0], backward[1]);
}

/// The fused operators between products, forward and backward, by the bytes that engine/signatures.h counts for them: a
/// backward counts twice its forward.
Rate rate_of_operators(Clock& clock, const Sizes& sizes) {
  const at::ScalarType type = sizes.types.front().type;
  const auto measure = [&](int64_t tokens) {
    const ops::RowIndex rows = one_row_of(tokens);
    const Tensor x = normal({tokens, sizes.width}).requires_grad_(), table = normal({1, sizes.width}).requires_grad_();
    const Tensor grad = normal({tokens, sizes.width});
    const double seconds = clock.seconds([&] {
      const Tensor normed = ops::modulated_norm(x, table, table, rows, 1e-6, type);
      const Tensor out = ops::gated_residual(x, ops::gelu_tanh(normed), table, rows);
      torch::autograd::grad({out}, {x, table}, {grad});
    });
    constexpr double kWhole = 1 + 2;    // of modulated_norm, gated_residual
    constexpr double kOwn = 1 + 1 + 2;  // of both, and of gelu
    const double bytes = kWhole * sizeof(float) + kOwn * static_cast<double>(at::elementSize(type));
    return Point{bytes * static_cast<double>(tokens * sizes.width) / 3, seconds / 9};  // of one of three operators
  };
  return through(measure(sizes.rows[0]), measure(sizes.rows[1]));
}

/// A pass over ranges of flat buffers that are not in the cache when their turn comes, as the shards of a model are not.
Rate pass(Clock& clock, const Sizes& sizes, double bytes_of_element,
          const std::function<void(int64_t first, int64_t count)>& over) {
  const auto measure = [&](int64_t count) {
    int64_t first = 0;
    return Point{bytes_of_element * static_cast<double>(count), clock.seconds([&] {
                   over(first, count);
                   first = first + 2 * count > sizes.flat ? 0 : first + count;
                 })};
  };
  return through(measure(sizes.part[0]), measure(sizes.part[1]));
}

/// The optimiser's update, by the 28 bytes that the cost model counts for an fp32 element, and the squares of gradients.
void updates(plan::DeviceProfile& device, Clock& clock, const Sizes& sizes) {
  const Tensor p = normal({sizes.flat}), m = normal({sizes.flat}), v = normal({sizes.flat}).square_(),
               g = normal({sizes.flat});
  const auto at = [](const Tensor& t, int64_t first) { return static_cast<float*>(ops::address(t)) + first; };
  const ops::AdamWStep step{.step = 1, .lr = 1e-9};
  device.bandwidth = pass(clock, sizes, 28, [&](int64_t first, int64_t n) {
    if (const auto* gpu = device::used())
      gpu->adamw({.fp32 = at(p, first)}, {.fp32 = at(m, first)}, {.fp32 = at(v, first)}, {.fp32 = at(g, first)}, n,
                 step);
    else
      ops::adamw(at(p, first), at(m, first), at(v, first), at(g, first), n, step);
  });
  const std::array<Tensor, 4> all = {p, m, v, g};
  const Tensor sum = at::zeros({1}, p.options().dtype(at::kDouble));
  size_t turn = 0;  // through all of them: one alone may lie in a large cache
  device.norm = pass(clock, sizes, 4, [&](int64_t first, int64_t n) {
    ops::sum_of_squares(sum, all[(turn += first == 0) % all.size()].narrow(0, first, n));
  });
}

}  // namespace

Call product_call(const ProductSize& size, at::ScalarType type) {
  const Tensor x = normal({size.rows, size.in}, type), w = normal({size.out, size.in}, type);
  return [x, w, type, &kernels = ops::kernels(x)] { kernels.linear(x, w, Tensor(), false, type); };
}

void measure_rates(plan::DeviceProfile& device, Clock& clock, const Sizes& sizes) {
  for (const Sizes::OfType& of : sizes.types) {
    device.gemm[rates_of(of.type)] = rate_of_products(clock, sizes, of.type);
    for (const plan::Attention kernel : kernels_of(of.type)) rates_of_attention(device, clock, sizes, of, kernel);
  }
  if (has_fp8()) device.gemm["fp8"] = rate_of_fp8(clock, sizes);
  device.stream = rate_of_operators(clock, sizes);
  updates(device, clock, sizes);
}

namespace {

using at::Tensor;
using Steady = std::chrono::steady_clock;

double elapsed(Steady::time_point start) { return std::chrono::duration<double>(Steady::now() - start).count(); }

double share(double rate) { return std::clamp(rate, 0.05, 1.0); }

/// Copies within the memory of a CPU.
void host_copies(plan::Profile& p, Clock& clock, const Sizes& sizes, const Call& compute) {
  const auto copies = [&](int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    return [from = std::vector<char>(size, 1), to = std::make_shared<std::vector<char>>(size, 2)] {
      std::memcpy(to->data(), from.data(), from.size());
    };
  };
  p.host_link = static_cast<double>(sizes.copy) / clock.seconds(copies(sizes.copy));
  const Beside beside = clock.beside(copies(sizes.copy_beside), compute);
  p.copy_steal = beside.lost, p.copy_beside = share(beside.rate);
}

/// Bytes/s that threads of this rank's share of the processors read and write: what updates on the host get.
double host_bandwidth(Clock& clock, int ranks) {
  constexpr size_t kBytes = size_t{32} << 20;
  const unsigned threads = std::clamp(std::thread::hardware_concurrency() / static_cast<unsigned>(ranks), 1U, 16U);
  std::vector<std::vector<char>> from(threads, std::vector<char>(kBytes, 1)), to = from;
  constexpr int kTimes = 4;
  const auto all = [&] {
    std::vector<std::thread> helpers;
    for (size_t i = 0; i < threads; ++i)
      helpers.emplace_back([&, i] {
        for (int time = 0; time < kTimes; ++time) std::memcpy(to[i].data(), from[i].data(), kBytes);
      });
    for (std::thread& helper : helpers) helper.join();
  };
  all();
  clock.meet();
  const auto start = Steady::now();
  all();
  const double seconds = clock.mean(elapsed(start));
  return 2.0 * kBytes * kTimes * threads / seconds * ranks;
}

/// Copies between a device and page-locked memory of the host, each way on a thread of its own as the engine's lanes.
void device_copies(plan::Profile& p, Clock& clock, const Sizes& sizes, int ranks, const Call& compute) {
  engine::HostMemory up, down;
  up.reserve(sizes.copy), down.reserve(sizes.copy);
  const int64_t values = sizes.copy / static_cast<int64_t>(sizeof(float));
  const Tensor there = normal({values}), here = normal({values});
  const auto fetch = [&](int64_t bytes) -> Call {
    return [&, bytes] { ops::enqueue_copy(ops::address(there), up.at(0), bytes, /*device=*/true); };
  };
  const auto stash = [&](int64_t bytes) -> Call {
    return [&, bytes] { ops::enqueue_copy(down.at(0), ops::read_address(here), bytes, /*device=*/true); };
  };
  const auto bytes = static_cast<double>(sizes.copy);
  p.host_link = bytes / clock.seconds(fetch(sizes.copy));
  p.host_link_back = bytes / clock.seconds(stash(sizes.copy));
  p.both_ways = share(clock.beside(stash(sizes.copy_beside), fetch(sizes.copy_beside)).rate);
  const Beside fetched = clock.beside(fetch(sizes.copy_beside), compute),
               stashed = clock.beside(stash(sizes.copy_beside), compute);
  p.copy_steal = std::max(fetched.lost, stashed.lost);
  p.copy_beside = share(std::min(fetched.rate, stashed.rate));
  p.host_bandwidth = std::max(host_bandwidth(clock, ranks), (p.host_link + p.host_link_back) * p.both_ways * ranks);
}

}  // namespace

void measure_copies(plan::Profile& p, Clock& clock, const Sizes& sizes, int ranks) {
  const Call compute = product_call(sizes.beside, sizes.types.front().type);
  if (device::used()) return device_copies(p, clock, sizes, ranks, compute);
  host_copies(p, clock, sizes, compute);
  p.host_bandwidth = p.host_link * ranks;
}

void measure_disk(plan::Profile& p, Clock& clock, const std::string& folder, int rank, int ranks) {
  constexpr size_t kPiece = size_t{8} << 20, kPieces = 8;
  const std::string path = (std::filesystem::path(folder) / ("tessera-probe-" + std::to_string(rank))).string();
  std::vector<char> piece(kPiece, 'x');
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  if (file < 0) throw UserError(Exit::disk, "probe", path + ": cannot be written", "choose a folder with --folder");
  clock.meet();
  auto start = Steady::now();
  bool whole = true;
  for (size_t i = 0; i < kPieces; ++i) whole &= write(file, piece.data(), kPiece) == static_cast<ssize_t>(kPiece);
  whole &= fdatasync(file) == 0;
  const double writing = elapsed(start);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  lseek(file, 0, SEEK_SET);
  start = Steady::now();
  for (size_t i = 0; i < kPieces; ++i) whole &= read(file, piece.data(), kPiece) == static_cast<ssize_t>(kPiece);
  const double reading = elapsed(start);
  close(file);
  unlink(path.c_str());
  if (!whole) throw UserError(Exit::disk, "probe", path + ": the disk took less than 64 MiB", "free space");
  const double bytes = static_cast<double>(kPiece * kPieces) * ranks;
  p.disk_write = bytes / clock.mean(writing), p.disk_read = bytes / clock.mean(reading);
  p.disk = static_cast<int64_t>(std::filesystem::space(folder).available);
}

namespace {

/// Collectives of the ranks, each from and to memory of its own turn: a unit's slot and shard are not in the cache.
class Collectives {
 public:
  Collectives(comm::Comm& comm, const Sizes& sizes, int ranks)
      : sizes_(sizes),
        ranks_(ranks),
        gather_(made(comm, "gather")),
        reduce_(made(comm, "reduce")),
        flat_(normal({sizes.flat})),
        scratch_(at::empty_like(flat_)) {}

  Call gathers(int64_t shard) const {
    return turns(shard, [this, shard](int64_t first) {
      gather_.all_gather(scratch_.narrow(0, first, shard * ranks_), flat_.narrow(0, first, shard));
    });
  }
  Call reductions(int64_t shard) const {
    return turns(shard, [this, shard, own = at::zeros({shard}, flat_.options())](int64_t first) {
      const int64_t all = shard * ranks_;
      reduce_.reduce_scatter(own, flat_.narrow(0, first, all), scratch_.narrow(0, first, all), false);
    });
  }
  /// All to all, `shard` elements to each other rank.
  Call exchanges(comm::Group& group, int64_t shard) const {
    return turns(shard, [this, &group, shard](int64_t first) {
      std::vector<Tensor> out, in;
      for (int64_t r = 0; r < ranks_; ++r) {
        out.push_back(flat_.narrow(0, first + r * shard, shard));
        in.push_back(scratch_.narrow(0, first + r * shard, shard));
      }
      group.all_to_all(out, in);
    });
  }
  /// Each sends to the next and receives from the one before.
  Call messages(comm::Group& group, int64_t shard) const {
    return turns(shard, [this, &group, shard](int64_t first) {
      group.shift(flat_.narrow(0, first, shard), scratch_.narrow(0, first, shard));
    });
  }

  static comm::Group& made(comm::Comm& comm, const char* purpose) {
    comm::Group& group = comm.group(purpose, kShardAxes);
    group.connect();
    const device::Block room = engine::Meter::room();  // where the tensors that it sends will lie
    group.lend(room.data, room.bytes);
    return group;
  }

 private:
  Call turns(int64_t shard, const std::function<void(int64_t first)>& act) const {
    return [=, this, all = shard * ranks_, first = int64_t{0}]() mutable {
      act(first);
      first = first + 2 * all > sizes_.flat ? 0 : first + all;
    };
  }

  const Sizes& sizes_;
  const int64_t ranks_;
  comm::Group &gather_, &reduce_;
  const Tensor flat_, scratch_;
};

}  // namespace

void measure_collectives(plan::Profile& p, comm::Comm& comm, Clock& clock, const Sizes& sizes) {
  const int n = comm.group("gather", kShardAxes).size();
  const Collectives collectives(comm, sizes, n);
  const int64_t small = sizes.shard[0], large = std::min(sizes.shard[1], sizes.flat / (4 * n));
  const auto through = [&](int to, const std::function<Call(int64_t shard)>& calls) {
    const auto sent = [&](int64_t shard) { return 4.0 * static_cast<double>(shard * to); };
    return line(sent(small), clock.seconds(calls(small)), sent(large), clock.seconds(calls(large)));
  };
  const plan::Rate gathered = through(n - 1, [&](int64_t shard) { return collectives.gathers(shard); }),
                   reduced = through(n - 1, [&](int64_t shard) { return collectives.reductions(shard); });
  p.link = {gathered.top, reduced.top, gathered.half / gathered.top / (n - 1)};
  if (device::used()) {
    comm::Group &exchange = Collectives::made(comm, "sequence"), &ring = Collectives::made(comm, "ring");
    p.link.exchange = through(n - 1, [&](int64_t shard) { return collectives.exchanges(exchange, shard); }).top;
    p.link.send = through(1, [&](int64_t shard) { return collectives.messages(ring, shard); }).top;
  }
  const Beside beside = clock.beside(collectives.gathers(large), product_call(sizes.beside, sizes.types.front().type));
  p.steal = beside.lost, p.beside = share(beside.rate);
}

namespace {

/// Its target, where plans can be made for it.
std::string known_target(const device::Properties& gpu) {
  if (std::ranges::any_of(targets(), [&](const Target& known) { return known.name == gpu.chip; })) return gpu.chip;
  log::warn("probe: plans are made for no chip like this (" + (gpu.chip.empty() ? gpu.name : gpu.chip) +
            "): the profile has no target, and plans by it are measured as on a CPU");
  return "";
}

/// What the profile is of: this machine, or the GPUs that its ranks compute on.
plan::Profile described(const ProbeOptions& options, const comm::Rendezvous& place) {
  plan::Profile p;
  p.name = options.name;
  p.machine = job::computing_machine();
  p.source = "measured by tessera probe: " + std::to_string(place.world) + " ranks at once, ";
  p.host_memory = options.host_memory;
  if (p.host_memory == 0) p.host_memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const device::Backend* gpu = device::used();
  if (gpu) {
    const device::Properties properties = gpu->properties(device::here().index());
    p.devices = place.local_world;
    p.device.memory = properties.bytes;
    p.target = known_target(properties);
    p.source += p.machine + " at " + plan::this_machine();
  } else {
    p.source += std::to_string(at::get_num_threads()) + " threads each";
  }
  if (options.small) p.source += "; with small sizes, which say nothing of training";
  return p;
}

}  // namespace

plan::Profile probe(const ProbeOptions& options) {
  constexpr double kWarmUp = 2.5;  // seconds
  const comm::Rendezvous place = comm::rendezvous_from_env();
  engine::Meter::install();  // what operators return lies where it does in a step
  job::choose_device(options.device, place);
  if (device::used() && place.local_world > device::used()->count())
    throw UserError(Exit::usage, "probe",
                    std::to_string(place.local_world) + " ranks share a GPU: each measures the others",
                    "start one for each GPU: tessera launch probe");
  job::reserve_device(place, /*budget=*/0);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);  // as the engine's backward
  Mesh mesh;
  mesh[Axis::dp_shard] = place.world;
  comm::Comm comm(place, mesh, 300);
  job::check_devices(comm);
  const Ranks ranks = {.mean =
                           [&](double mine) {
                             double sum = 0;
                             comm::Group& all = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
                             for (const auto& row : all.all_gather_doubles({mine})) sum += row[0];
                             return sum / place.world;
                           },
                       .meet = [&] { comm.barrier(); }};
  const Sizes& sizes = sizes_of(device::used(), options.small);
  const std::unique_ptr<Clock> clock = clock_of(device::used(), ranks, options.seconds, sizes.ahead);

  plan::Profile p = described(options, place);
  const auto products = options.products ? options.products() : std::vector<ops::ProductShape>();
  clock->warm_up(product_call(sizes.beside, sizes.types.front().type), options.small ? 0 : kWarmUp);
  measure_rates(p.device, *clock, sizes);
  measure_signatures(p.device, *clock, sizes);
  p.algorithms = measure_algorithms(*clock, products);
  measure_copies(p, *clock, sizes, place.world);
  measure_disk(p, *clock, options.folder, place.rank, place.world);
  if (place.world > 1) measure_collectives(p, comm, *clock, sizes);
  measure_engine(p, comm, place.rank, place.world, sizes);
  return p;
}

}  // namespace tessera::tools
