#include "tessera/tools/probe/synthetic_run.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "tessera/base/random.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/models/common/adapted.h"
#include "tessera/ops/kernels.h"
#include "tessera/optim/adamw.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::tools {

namespace {

at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed) {
  at::Tensor t = at::empty(shape, at::kFloat);
  RandomKey(seed, Purpose::test).normal(t.mutable_data_ptr<float>(), 0, static_cast<size_t>(t.numel()));
  return t;
}

/// Initial values of a parameter, of which a million are drawn and repeated: all of a large model would take minutes.
class InitialValues {
 public:
  explicit InitialValues(const net::Denoiser& model) : model_(model) {}

  void fill(const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    const std::vector<float>& values = of(param);
    const auto size = static_cast<int64_t>(values.size());
    for (int64_t done = 0; done < count;) {
      const int64_t from = (first + done) % size, now = std::min(count - done, size - from);
      std::copy_n(values.data() + from, now, out + done);
      done += now;
    }
  }

 private:
  static constexpr int64_t kDrawn = 1 << 20;

  /// Those of the same parameter in another block are as good.
  const std::vector<float>& of(const plan::ParamSpec& param) {
    std::string name = param.name;
    std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
    std::vector<float>& values = drawn_[name + std::to_string(param.numel())];
    if (values.empty()) {
      values.resize(static_cast<size_t>(std::min(param.numel(), kDrawn)));
      const auto count = static_cast<int64_t>(values.size());
      if (models::is_adapter_parameter(param.name))
        models::initialise_adapter(param, 0, 0, count, values.data());
      else
        model_.initialise(param, 0, 0, count, values.data());
    }
    return values;
  }

  const net::Denoiser& model_;
  std::map<std::string, std::vector<float>> drawn_;
};

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
    compared_.resize(targets_.size());
  }
  net::Batch batch(int micro) override { return batches_[static_cast<size_t>(micro)]; }
  /// Copies take their place for one step.
  std::vector<at::Tensor*> compared(int micro) override {
    at::Tensor& target = compared_[static_cast<size_t>(micro)];
    target = targets_[static_cast<size_t>(micro)];
    return {&target};
  }
  at::Tensor gradient(const at::Tensor& prediction, const net::Batch&, int micro) override {
    at::Tensor gradient = at::empty_like(prediction);
    // with ranks that share a sample the first rows stand for their own
    const at::Tensor rows = std::exchange(compared_[static_cast<size_t>(micro)], {}).narrow(0, 0, prediction.size(0));
    ops::SampleError unread;
    ops::kernels(prediction).add_error(unread, prediction, rows.view(prediction.sizes()), {}, {}, 1, scale_, gradient);
    return gradient;
  }

 private:
  const double scale_;
  std::vector<net::Batch> batches_;
  std::vector<at::Tensor> targets_, compared_;
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
  InitialValues values(model);
  engine::fill_shards(engine_.store(), [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    values.fill(param, first, count, out);
  });
  engine_.optimise(std::make_unique<const optim::AdamW>(optim::AdamWOptions{.format = plan.states}));
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
