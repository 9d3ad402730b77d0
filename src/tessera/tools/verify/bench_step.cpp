#include "tessera/tools/verify/bench_step.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/comm/world.h"
#include "tessera/diffusion/loss.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/job/device.h"
#include "tessera/models/registry.h"
#include "tessera/optim/adamw.h"
#include "tessera/planning/make_plan.h"
#include "tessera/planning/planning.h"

namespace tessera::tools {

namespace {

constexpr int64_t kHostBudget = int64_t{64} << 30;  // no limit to what is measured

at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed) {
  at::Tensor t = at::empty(shape, at::kFloat);
  RandomKey(seed, Purpose::test).normal(t.mutable_data_ptr<float>(), 0, static_cast<size_t>(t.numel()));
  return t;
}

/// The same batch in every step.
class OneBatch final : public net::Objective {
 public:
  OneBatch(const net::Batch& batch, const at::Tensor& target, int world)
      : batch_(batch), target_(target), world_(world) {}
  net::Batch batch(int) override { return batch_; }
  at::Tensor gradient(const at::Tensor& prediction, const net::Batch&, int) override {
    at::Tensor gradient = at::empty_like(prediction);
    diffusion::mean_squared_error(prediction, target_, 1.0 / world_, gradient);
    return gradient;
  }

 private:
  const net::Batch& batch_;
  const at::Tensor& target_;
  const int world_;
};

}  // namespace

int bench_step(const BenchOptions& options) {
  engine::Meter::install();
  at::set_num_threads(1);
  const comm::Rendezvous place = comm::rendezvous_from_env();
  Mesh mesh;
  mesh[Axis::dp_shard] = place.world;
  job::choose_device(options.device, place, options.budget);
  comm::Comm comm(place, mesh, 300);
  job::check_devices(comm);
  const auto model = models::make_denoiser({.config_text = options.config});

  const auto make_batch = [&] {
    net::Sample sample = model->blank(options.latent);
    sample.x = random_tensor(options.latent, 1 + static_cast<uint64_t>(place.rank));
    sample.context = random_tensor({model->context_length(), model->context_dim()}, 100);
    sample.t = 500;
    return model->pack({sample});
  };
  const net::Batch batch = make_batch();  // packed once: a step reads nothing else
  const at::Tensor target = model->pack_target(random_tensor(options.latent, 200));

  planning::PlanRequest request;
  request.resident = round_up(static_cast<int64_t>(target.nbytes()), 64);
  request.model = model.get();
  request.model_name = "bench";
  request.latent = options.latent;
  request.mesh = mesh;
  request.planner.global_batch = place.world;
  request.planner.recompute_units = options.recompute;
  request.machine.profile = plan::find_profile(options.profile);
  request.machine.profile.target = job::plan_target(request.machine.profile);
  request.planner.budget = options.budget;
  if (options.states_on_host) {
    request.planner.states_tier = plan::Tier::host;
    request.planner.host_budget = kHostBudget;
  }
  request.run.steps = options.warmup + options.steps;
  const planning::Planned planned = planning::make_plan(request);
  if (!planned.choice.fits) throw UserError(Exit::no_fit, "bench", planned.choice.advice);
  const auto program = std::make_shared<const plan::Program>(planned.plan(), planned.schedules(place.rank).train);

  engine::Engine engine(model->units(), planned.spec, planned.plan(), comm, place.rank);
  engine.use(*program);
  engine::fill_shards(engine.store(), [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    model->initialise(param, 0, first, count, out);
  });
  engine.optimise(std::make_unique<const optim::AdamW>(optim::AdamWOptions{}));

  OneBatch objective(batch, target, place.world);
  std::vector<double> seconds;
  for (int64_t step = 1; step <= options.warmup + options.steps; ++step) {
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    engine.finish(engine.run({.program = program, .step = step}, objective, {}), net::StepControl{step, 1e-4, 1.0});
    if (step > options.warmup)
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (step == 1) engine::Meter::reset_peak();
  }
  using engine::Meter;
  using engine::Part;
  std::vector<double> mine = {
      static_cast<double>(Meter::peak()),
      static_cast<double>(Meter::live(Part::parameters) + Meter::live(Part::gradients) + Meter::live(Part::states)),
      static_cast<double>(engine.host_bytes()), static_cast<double>(planned.memory(place.rank).peak)};
  const auto bytes = static_cast<std::ptrdiff_t>(mine.size());
  mine.insert(mine.end(), seconds.begin(), seconds.end());
  std::vector<double> worst(mine.size(), 0);
  for (const auto& row : comm.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles(mine))
    for (size_t i = 0; i < row.size(); ++i) worst[i] = std::max(worst[i], row[i]);
  if (place.rank == 0) {
    const nlohmann::ordered_json line = {{"seconds", std::vector<double>(worst.begin() + bytes, worst.end())},
                                         {"peak_bytes", static_cast<int64_t>(worst[0])},
                                         {"persistent_bytes", static_cast<int64_t>(worst[1])},
                                         {"host_bytes", static_cast<int64_t>(worst[2])},
                                         {"predicted_peak_bytes", static_cast<int64_t>(worst[3])},
                                         {"predicted_seconds", planned.choice.seconds},
                                         {"plan", planned.plan().summary()}};
    std::printf("%s\n", line.dump().c_str());
  }
  comm.barrier();
  return 0;
}

}  // namespace tessera::tools
