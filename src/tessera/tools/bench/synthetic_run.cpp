#include "tessera/tools/bench/synthetic_run.h"

#include <chrono>

#include "tessera/base/random.h"
#include "tessera/diffusion/loss.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/optim/adamw.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::tools {

namespace {

at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed) {
  at::Tensor t = at::empty(shape, at::kFloat);
  RandomKey(seed, Purpose::test).normal(t.mutable_data_ptr<float>(), 0, static_cast<size_t>(t.numel()));
  return t;
}

/// The same batches in every step, packed once: a step reads nothing else.
class SameBatches final : public net::Objective {
 public:
  SameBatches(const net::Denoiser& model, const std::array<int64_t, 4>& latent, const plan::Plan& plan, int rank)
      : scale_(1.0 / static_cast<double>(plan.global_batch)) {
    const int dp_rank = plan.mesh.dp_rank(rank);
    for (int64_t m = 0; m < plan.accumulation(); ++m) {
      const auto slice = plan.slice(dp_rank, m);
      std::vector<net::Sample> samples;
      std::vector<at::Tensor> targets;
      for (int64_t s = slice.first; s < slice.first + slice.count; ++s) {
        net::Sample& sample = samples.emplace_back(model.blank(latent));
        sample.x = random_tensor(latent, 1 + static_cast<uint64_t>(s));
        sample.context = random_tensor({model.context_length(), model.context_dim()}, 100);
        sample.t = 500;
        targets.push_back(model.pack_target(random_tensor(latent, 200)));
      }
      const bool dummy = samples.empty();
      batches_.push_back(dummy ? net::Batch() : model.pack(samples));
      targets_.push_back(dummy ? at::Tensor() : at::cat(targets));
    }
  }
  net::Batch batch(int micro) override { return batches_[static_cast<size_t>(micro)]; }
  at::Tensor gradient(const at::Tensor& prediction, const net::Batch&, int micro) override {
    at::Tensor gradient = at::empty_like(prediction);
    diffusion::mean_squared_error(prediction, targets_[static_cast<size_t>(micro)], scale_, gradient);
    return gradient;
  }

 private:
  const double scale_;
  std::vector<net::Batch> batches_;
  std::vector<at::Tensor> targets_;
};

}  // namespace

SyntheticRun::SyntheticRun(const net::Denoiser& model, const std::array<int64_t, 4>& latent,
                           const plan::ModelSpec& spec, const plan::Plan& plan, comm::Comm& comm, int rank,
                           engine::EngineOptions options)
    : comm_(comm),
      program_(std::make_shared<const plan::Program>(plan, plan::compile_train(spec, plan, rank))),
      engine_(model.units(), spec, plan, comm, rank, std::move(options)),
      objective_(std::make_unique<SameBatches>(model, latent, plan, rank)) {
  engine_.use(*program_);
  engine::fill_shards(engine_.store(), [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    model.initialise(param, 0, first, count, out);
  });
  engine_.optimise(std::make_unique<const optim::AdamW>(optim::AdamWOptions{}));
}

double SyntheticRun::step() {
  ++steps_;
  comm_.barrier();
  const auto start = std::chrono::steady_clock::now();
  engine_.finish(engine_.run({.program = program_, .step = steps_}, *objective_, {}),
                 net::StepControl{steps_, 1e-4, 1.0});
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace tessera::tools
