// A model of one's own, trained by the library: flow matching of points on a ring. Layers are all that it takes;
// sharding, recomputing, memory and schedule come from the plan. One rank, or several under srun or mpirun.
#include <tessera/base/check.h>
#include <tessera/base/random.h>
#include <tessera/comm/world.h>
#include <tessera/engine/executor.h>
#include <tessera/engine/measure.h>
#include <tessera/engine/store/transfer.h>
#include <tessera/optim/adamw.h>
#include <tessera/plan/compile/compile.h>

#include <cstdio>

using namespace tessera;
using at::Tensor;
constexpr int64_t kPoints = 256, kWidth = 64;

/// A unit: a linear layer ("in", "out"), or a residual block of a norm and two of them ("block").
struct Layer final : net::Unit {
  plan::UnitSpec unit;
  Layer(const std::string& name, const std::string& kind, int64_t from, int64_t to) {
    unit = {name, kind, {{name + ".b.weight", {to, from}}, {name + ".b.bias", {to}}}, {}};
    if (kind != "block") return;
    for (const char* site : {".norm.weight", ".norm.bias"}) unit.params.push_back({name + site, {from}});
    unit.params.push_back({name + ".a.weight", {from, from}});
  }
  const plan::UnitSpec& spec() const override { return unit; }
  net::Flow forward(net::Context& ctx, const net::Flow& in) const override {
    const Tensor& x = in.stream[0];  // x [points, from]
    if (unit.kind != "block") return {{ctx.linear("b", x)}, {}};
    return {{x + ctx.linear("b", ctx.linear("a", ctx.norm("norm", x, {})), {.act = net::Act::gelu_tanh})}, {}};
  }
  double forward_flops(const net::Tokens& tokens) const override { return 4.0 * kWidth * kWidth * tokens.count(); }
};

/// Clouds of points on their way from noise to the ring, with their time [points, 3], and where they go [points, 2]:
/// the same on any number of ranks, because random numbers are keyed by (step, point).
std::pair<net::Batch, Tensor> clouds(int64_t step, plan::Plan::Slice slice) {
  const int64_t n = slice.count * kPoints;
  Tensor input = at::empty({n, 3}), target = at::empty({n, 2});
  auto in = input.accessor<float, 2>(), out = target.accessor<float, 2>();
  for (int64_t i = 0; i < n; ++i) {
    const RandomKey key(1, Purpose::sample, step, slice.first * kPoints + i);
    const double angle = 6.283185 * key.uniform(0), t = key.uniform(2);
    const double ring[] = {std::cos(angle), std::sin(angle)}, noise[] = {key.normal(4), key.normal(5)};
    for (int c = 0; c < 2; ++c) in[i][c] = (1 - t) * ring[c] + t * noise[c], out[i][c] = noise[c] - ring[c];
    in[i][2] = t;
  }
  net::Batch batch{{input}, {}, {}};
  for (int64_t at = 0; at <= n; at += kPoints) batch.tokens.offsets.push_back(at);
  return {batch, target};
}

int main() try {
  engine::Meter::install();
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(std::make_unique<Layer>("in", "in", 3, kWidth));
  for (const char* name : {"mid.0", "mid.1"}) units.push_back(std::make_unique<Layer>(name, "block", kWidth, kWidth));
  units.push_back(std::make_unique<Layer>("out", "out", kWidth, 2));

  const auto place = comm::rendezvous_from_env();
  plan::Plan plan{.mesh = Mesh::parse("dp_shard=" + std::to_string(place.world)), .global_batch = 4, .micro_batch = 2};
  plan.units.resize(units.size());
  plan.units[1].activations = plan::Policy::recompute;
  const auto spec = engine::measure(units, clouds(0, {0, plan.micro_batch}).first, "ring", {});
  const auto schedule = plan::compile_train(spec, plan, place.rank);
  comm::Comm comm(place, plan.mesh);
  engine::Store store(spec, {"in.", "mid.0.", "mid.1.", "out."}, plan, place.rank, at::kCPU);
  optim::AdamW adamw({.weight_decay = 0});
  store.set_arena(schedule.arena);
  store.make_states(adamw);
  engine::fill_shards(store, [](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    RandomKey(1, Purpose::init, hash_text(param.name)).normal(out, first, count);
    const bool matrix = param.shape.size() == 2, norm = param.name.ends_with("norm.weight");
    for (int64_t i = 0; i < count; ++i) out[i] = matrix ? out[i] / std::sqrt(float(param.shape[1])) : norm;
  });
  engine::Executor executor(units, store, comm, plan, place.rank, {});
  for (int64_t step = 1; step <= 300; ++step) {
    double loss = 0, values = 2 * kPoints * plan.global_batch;
    Tensor target;
    const auto load = [&](int micro) {
      auto [batch, wanted] = clouds(step, plan.slice(plan.mesh.dp_rank(place.rank), micro));
      target = wanted;
      return batch;
    };
    const auto gradient = [&](const Tensor& out, const net::Batch&, int) {  // of the mean square
      loss += (out - target).square().sum().item<double>() / values;
      return (out - target) * (2 / values);
    };
    const auto agree = [&](double norm, const std::vector<std::vector<double>>& ranks) {
      double mean = 0;
      for (const auto& of_rank : ranks) mean += of_rank[0];
      if (place.rank == 0 && step % 50 == 0) std::printf("step %d  loss %.4f\n", int(step), mean);
      return std::optional(net::StepControl{step, 3e-3, optim::clip_coefficient(norm, 1.0)});
    };
    executor.train(schedule, step, {load, gradient, [&] { return std::vector{loss}; }, agree}, &adamw);
  }
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
