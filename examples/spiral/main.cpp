// A classifier of one's own that is trained with ZeRO-3, stops, and goes on on another number of ranks:
//
//   tessera launch -n 4 ./spiral runs/spiral 100      # steps 1 to 100, and a checkpoint
//   tessera launch -n 2 ./spiral runs/spiral 200      # steps 101 to 200, from it
//
// Each rank holds a part of the weights, gradients and moments of every unit; a unit is whole while it computes.
#include <tessera/base/check.h>
#include <tessera/base/random.h>
#include <tessera/checkpoint/training.h>
#include <tessera/comm/rendezvous.h>
#include <tessera/engine/engine.h>
#include <tessera/engine/measure.h>
#include <tessera/engine/store/transfer.h>
#include <tessera/net/declare.h>
#include <tessera/optim/adamw.h>

#include <cmath>

using namespace tessera;
using at::Tensor;
constexpr int64_t kPoints = 64, kWidth = 96, kBatch = 8;  // points of a sample, samples of a step

/// A linear layer behind a nonlinearity, or the first one, which has none. Its parameters are those that forward asks for.
struct Layer final : net::Unit {
  int64_t to;
  bool first;
  Layer(const std::string& name, int64_t to, bool first)
      : Unit({name, first ? "in" : "layer", {}, {}}), to(to), first(first) {}
  net::Flow forward(net::Context& ctx, const net::Flow& in) const override {
    const auto act = first ? net::Act::none : net::Act::silu;
    return {{ctx.linear("linear", in.stream[0], {.act = act, .out = to})}, {}};
  }
};

/// Points on one of two arms of a spiral, as Fourier features [points, 8], and which arm it is. Random numbers are keyed by
/// (step, point), so that all layouts, and a run that was stopped, see the same. The loss is the logistic one.
struct Spiral final : net::Objective {
  const plan::Plan& plan;
  int64_t dp_rank, step = 0;
  double loss = 0;
  Tensor arm;
  Spiral(const plan::Plan& plan, int rank) : plan(plan), dp_rank(plan.mesh.dp_rank(rank)) {}
  net::Batch batch(int micro) override {
    const auto slice = plan.slice(dp_rank, micro);
    const int64_t n = slice.count * kPoints;
    Tensor input = at::empty({n, 8});
    arm = at::empty({n, 1});
    auto in = input.accessor<float, 2>(), out = arm.accessor<float, 2>();
    for (int64_t i = 0; i < n; ++i) {
      const RandomKey key(1, Purpose::sample, step, slice.first * kPoints + i);
      const double sign = key.uniform(0) < 0.5 ? -1 : 1, turn = 6 * key.uniform(2);
      const double x = sign * turn / 6 * std::cos(turn), y = sign * turn / 6 * std::sin(turn);
      for (int k = 0; k < 2; ++k) {
        const double f = 2 << k;
        const double features[] = {std::sin(f * x), std::cos(f * x), std::sin(f * y), std::cos(f * y)};
        for (int c = 0; c < 4; ++c) in[i][4 * k + c] = static_cast<float>(features[c]);
      }
      out[i][0] = static_cast<float>(sign);
    }
    net::Batch batch{{input}, {}, {}};
    for (int64_t at = 0; at <= n; at += kPoints) batch.tokens.offsets.push_back(at);
    return batch;
  }
  Tensor gradient(const Tensor& out, const net::Batch&, int) override {
    constexpr double kAll = kPoints * kBatch;
    const Tensor margin = out * arm;
    loss += at::softplus(-margin).sum().item<double>() / kAll;
    return -arm * at::sigmoid(-margin) / kAll;
  }
};

int main(int argc, char** argv) try {
  check_input(argc == 3, "spiral", "expected FOLDER STEPS", "tessera launch -n 4 ./spiral runs/spiral 100");
  const std::filesystem::path folder = argv[1];
  const int64_t last = std::stoll(argv[2]);
  engine::Meter::install();
  std::vector<std::unique_ptr<net::Unit>> units;
  for (const char* name : {"in", "mid.0", "mid.1", "out"})
    units.push_back(std::make_unique<Layer>(name, std::string(name) == "out" ? 1 : kWidth, units.empty()));
  const auto place = comm::rendezvous_from_env();
  plan::Plan plan;
  plan.mesh = Mesh::parse("dp_shard=" + std::to_string(place.world));
  plan.global_batch = kBatch, plan.units.resize(units.size());
  for (plan::UnitPlan& unit : plan.units) unit.strategy = plan::Strategy::full_shard;  // ZeRO-3
  Spiral spiral(plan, place.rank);
  const net::Batch first = spiral.batch(0);
  net::declare(units, {first.inputs, {}}, first.tokens);
  const auto spec = engine::measure(units, first, "spiral", {});
  const auto program = std::make_shared<const plan::Program>(plan, plan::compile_train(spec, plan, place.rank));
  comm::Comm comm(place, plan.mesh);
  engine::Engine engine(units, spec, plan, comm, place.rank);
  engine.optimise(std::make_unique<const optim::AdamW>(optim::AdamWOptions{.weight_decay = 0}));
  engine.use(*program);
  engine::fill_shards(engine.store(), [](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    RandomKey(1, Purpose::init, hash_text(param.name)).normal(out, first, count);
    for (int64_t i = 0; i < count; ++i)
      out[i] = param.shape.size() == 2 ? out[i] / std::sqrt(static_cast<float>(param.shape[1])) : 0;
  });

  if (const auto newest = checkpoint::latest(folder)) {  // of any number of ranks
    checkpoint::TrainingCheckpoint saved(*newest);
    engine::restore(engine.store(), saved);
    spiral.step = saved.manifest().step;
    if (place.rank == 0)
      std::printf("resumed from step %d of %s\n", int(spiral.step), saved.manifest().mesh.to_string().c_str());
  }
  while (++spiral.step <= last) {
    spiral.loss = 0;
    engine::StepRun run = engine.run({program, spiral.step}, spiral, [&] { return std::vector{spiral.loss}; });
    double mean = 0;
    for (const auto& rank : run.ranks()) mean += rank[0];
    if (place.rank == 0 && spiral.step % 20 == 0) std::printf("step %d  loss %.6f\n", int(spiral.step), mean);
    const net::StepControl control{spiral.step, 3e-3, optim::clip_coefficient(run.norm(), 1.0)};
    engine.finish(std::move(run), control);
  }

  const auto partial = checkpoint::partial_folder(folder, last), whole = checkpoint::step_folder(folder, last);
  checkpoint::save_rank(partial, place.rank, engine::checkpoint_pieces(engine.store()));
  comm.barrier();
  checkpoint::Manifest manifest;
  manifest.step = last, manifest.mesh = plan.mesh;
  if (place.rank == 0) checkpoint::commit(partial, whole, place.world, manifest);
  comm.barrier();
} catch (const Error& error) {
  return std::fprintf(stderr, "%s\n", error.what()), static_cast<int>(error.code());
}
