// A model of one's own, trained by the library: flow matching of points on a ring. It has layers and an objective; sharding,
// recomputing, offload and schedule come from the plan. Ranks of torchrun's variables, srun or mpirun give the same curve.
#include <tessera/base/check.h>
#include <tessera/base/random.h>
#include <tessera/comm/rendezvous.h>
#include <tessera/engine/engine.h>
#include <tessera/engine/measure.h>
#include <tessera/engine/store/transfer.h>
#include <tessera/net/declare.h>
#include <tessera/optim/adamw.h>

using namespace tessera;
using at::Tensor;
constexpr int64_t kPoints = 256, kWidth = 64;

/// A unit: a linear layer ("in", "out"), or a residual block of a norm and two of them ("block"). Its parameters are those
/// that forward asks for.
struct Layer final : net::Unit {
  int64_t to;
  Layer(const std::string& name, const std::string& kind, int64_t to) : Unit({name, kind, {}, {}}), to(to) {}
  net::Flow forward(net::Context& ctx, const net::Flow& in) const override {
    const Tensor& x = in.stream[0];  // x [points, channels]
    if (spec().kind != "block") return {{ctx.linear("b", x, {.out = to})}, {}};
    return {{x + ctx.linear("b", ctx.linear("a", ctx.norm("norm", x, {})), {.act = net::Act::gelu_tanh})}, {}};
  }
};

/// Clouds of points on their way from noise to the ring, with their time [points, 3], and where they go [points, 2]: the
/// same on any number of ranks, because random numbers are keyed by (step, point). The loss is the mean square.
struct Ring final : net::Objective {
  const plan::Plan& plan;
  int64_t dp_rank, step = 0;
  double loss = 0;
  Tensor target;
  Ring(const plan::Plan& plan, int rank) : plan(plan), dp_rank(plan.mesh.dp_rank(rank)) {}
  net::Batch batch(int micro) override {
    const auto slice = plan.slice(dp_rank, micro);
    const int64_t n = slice.count * kPoints;
    Tensor input = at::empty({n, 3});
    target = at::empty({n, 2});
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
    return batch;
  }
  Tensor gradient(const Tensor& out, const net::Batch&, int) override {
    const double values = 2 * kPoints * plan.global_batch;
    loss += (out - target).square().sum().item<double>() / values;
    return (out - target) * (2 / values);
  }
};

int main() try {
  engine::Meter::install();
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(std::make_unique<Layer>("in", "in", kWidth));
  for (const char* name : {"mid.0", "mid.1"}) units.push_back(std::make_unique<Layer>(name, "block", kWidth));
  units.push_back(std::make_unique<Layer>("out", "out", 2));
  const auto place = comm::rendezvous_from_env();
  plan::Plan plan;
  plan.mesh = Mesh::parse("dp_shard=" + std::to_string(place.world));
  plan.global_batch = 4, plan.micro_batch = 2, plan.units.resize(units.size());
  plan.units[1].activations = plan::Policy::recompute, plan.units[2].activations = plan::Policy::offload;
  for (plan::UnitPlan& unit : plan.units) unit.states = plan::Tier::host;
  Ring ring(plan, place.rank);
  const net::Batch first = ring.batch(0);
  net::declare(units, {first.inputs, {}}, first.tokens);
  const auto spec = engine::measure(units, first, "ring", {});
  const auto program = std::make_shared<const plan::Program>(plan, plan::compile_train(spec, plan, place.rank));
  comm::Comm comm(place, plan.mesh);
  engine::Engine engine(units, spec, plan, comm, place.rank);
  engine.optimise(std::make_unique<const optim::AdamW>(optim::AdamWOptions{.weight_decay = 0}));
  engine.use(*program);
  engine::fill_shards(engine.store(), [](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    RandomKey(1, Purpose::init, hash_text(param.name)).normal(out, first, count);
    const bool matrix = param.shape.size() == 2, norm = param.name.ends_with("norm.weight");
    for (int64_t i = 0; i < count; ++i) out[i] = matrix ? out[i] / std::sqrt(float(param.shape[1])) : norm;
  });
  for (ring.step = 1; ring.step <= 300; ++ring.step, ring.loss = 0) {
    engine::StepRun run = engine.run({program, ring.step}, ring, [&] { return std::vector{ring.loss}; });
    double mean = 0;
    for (const auto& rank : run.ranks()) mean += rank[0];
    if (place.rank == 0 && ring.step % 50 == 0) std::printf("step %d  loss %.4f\n", int(ring.step), mean);
    const net::StepControl control{ring.step, 3e-3, optim::clip_coefficient(run.norm(), 1.0)};
    engine.finish(std::move(run), control);
  }
} catch (const Error& error) {
  return std::fprintf(stderr, "%s\n", error.what()), static_cast<int>(error.code());
}
