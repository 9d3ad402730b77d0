#pragma once
// A model of a few units on one rank, with the store, the engine and AdamW around it, in milliseconds.
//
//   Toy toy;                                            // an input layer, a residual block, an output layer
//   ToyRank rank(toy, toy.plan());                      // weights by name: the same under every plan
//   ToyStep found = rank.step(1), plain = toy.plain_step(1);
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/random.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/net/plain_context.h"
#include "tessera/optim/adamw.h"

namespace tessera::engine::toy {

inline constexpr int64_t kWidth = 16, kTokens = 6;  ///< of the block; of each sample

/// Standard normals by name: element i of a tensor does not depend on who asks for it.
inline void fill(const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
  RandomKey(3, Purpose::test, hash_text(param.name))
      .normal(out, static_cast<uint64_t>(first), static_cast<size_t>(count));
}

inline Tensor filled(const plan::ParamSpec& param) {
  const Tensor values = at::empty(param.shape);
  fill(param, 0, values.numel(), values.mutable_data_ptr<float>());
  return values;
}

inline Tensor normals(std::vector<int64_t> shape, uint64_t index) {
  const Tensor values = at::empty(shape);
  RandomKey(4, Purpose::test, index).normal(values.mutable_data_ptr<float>(), 0, static_cast<size_t>(values.numel()));
  return values;
}

/// A linear layer "b"; or (kind "block") a residual of a norm and two of them; or (kind "idle") nothing, with a weight that it
/// does not read.
class Layer final : public net::Unit {
 public:
  Layer(const std::string& name, const std::string& kind, int64_t from, int64_t to)
      : Unit(describe(name, kind, from, to)) {}
  net::Flow forward(net::Context& ctx, const net::Flow& in) const override {
    const Tensor& x = in.stream[0];  // x [tokens, from]
    if (spec().kind == "idle") return {{x.view_as(x)}, {}};
    if (spec().kind != "block") return {{ctx.linear("b", x)}, {}};
    const Tensor y = ctx.linear("b", ctx.linear("a", ctx.norm("norm", x, {})), {.act = net::Act::gelu_tanh});
    return {{ctx.residual("sum", x, y)}, {}};
  }

 private:
  static plan::UnitSpec describe(const std::string& name, const std::string& kind, int64_t from, int64_t to) {
    plan::UnitSpec spec{.name = name, .kind = kind, .params = {}, .cost = {}};
    spec.params = {{name + ".b.weight", {to, from}}, {name + ".b.bias", {to}}};
    if (kind == "block")
      for (const plan::ParamSpec& param :
           {plan::ParamSpec{name + ".norm.weight", {from}}, plan::ParamSpec{name + ".norm.bias", {from}},
            plan::ParamSpec{name + ".a.weight", {from, from}}})
        spec.params.push_back(param);
    return spec;
  }
};

/// What a step gave: per micro-batch the output, and gradients and weights after it by parameter.
struct ToyStep {
  std::vector<Tensor> outputs;
  std::map<std::string, Tensor> gradients, weights;
  double norm = 0;
};

class Toy {
 public:
  explicit Toy(int blocks = 1, const std::string& kind = "block") {
    units_.push_back(std::make_unique<Layer>("in", "stem", 3, kWidth));
    for (int b = 0; b < blocks; ++b)
      units_.push_back(std::make_unique<Layer>("mid" + (b ? std::to_string(b) : ""), kind, kWidth, kWidth));
    units_.push_back(std::make_unique<Layer>("out", "head", kWidth, 2));
    spec_ = measure(units_, batch(0, 2), "toy", {});
  }
  const std::vector<std::unique_ptr<net::Unit>>& units() const { return units_; }
  const plan::ModelSpec& spec() const { return spec_; }
  std::vector<std::string> prefixes() const {
    std::vector<std::string> found;
    for (const auto& unit : units_) found.push_back(unit->prefix());
    return found;
  }
  /// Four samples a step in two micro-batches, all units alike.
  plan::Plan plan(const plan::UnitPlan& each = {}) const {
    plan::Plan plan;
    plan.global_batch = 4, plan.micro_batch = 2;
    plan.units.assign(units_.size(), each);
    return plan;
  }

  net::Batch batch(uint64_t key, int64_t samples) const {
    net::Batch batch;
    batch.inputs = {normals({samples * kTokens, 3}, key)};
    for (int64_t s = 0; s <= samples; ++s) batch.tokens.offsets.push_back(s * kTokens);
    return batch;
  }
  static uint64_t key(int64_t step, int micro) { return static_cast<uint64_t>(100 * step + micro); }
  /// Of half the mean square of a micro-batch's output.
  static Tensor loss_gradient(const Tensor& out) { return out / static_cast<double>(out.numel()); }

  /// The plain loop over the same micro-batches, by autograd. `first`: the micro-batch that it begins with.
  ToyStep plain_step(int64_t step, int micros = 2, int first = 0) const {
    net::WeightMap weights;
    for (const auto& unit : spec_.units)
      for (const auto& param : unit.params) weights[param.name] = filled(param).requires_grad_();
    ToyStep found;
    for (int micro = first; micro < first + micros; ++micro) {
      const Tensor out = net::run_plain(units_, weights, batch(key(step, micro), 2));
      out.backward(loss_gradient(out.detach()));
      found.outputs.push_back(out.detach());
    }
    double squares = 0;
    for (const auto& [name, weight] : weights) {
      found.gradients[name] = weight.grad();
      squares += weight.grad().square().sum().item<double>();
    }
    found.norm = std::sqrt(squares);
    return found;
  }

 private:
  std::vector<std::unique_ptr<net::Unit>> units_;
  plan::ModelSpec spec_;
};

/// One rank that trains the toy under a plan. What the engine's interface is stands here alone.
class ToyRank {
 public:
  ToyRank(const Toy& toy, const plan::Plan& plan, bool poison = false)
      : ToyRank(toy, plan, plan::compile_train(toy.spec(), plan, 0), poison) {}
  /// Runs a schedule of the plan that was changed.
  ToyRank(const Toy& toy, const plan::Plan& plan, plan::Schedule schedule, bool poison = false)
      : ToyRank(toy, plan, std::move(schedule), {}, poison) {}
  /// One of several ranks, which are threads (ranks.h). Each takes the micro-batches behind those of the rank before.
  ToyRank(const Toy& toy, const plan::Plan& plan, const comm::Rendezvous& place)
      : ToyRank(toy, plan, plan::compile_train(toy.spec(), plan, place.rank), place, false) {}
  ToyRank(const Toy& toy, const plan::Plan& plan, plan::Schedule schedule, const comm::Rendezvous& place, bool poison,
          bool graphs = false)
      : toy_(toy),
        rank_(place.rank),
        program_(std::make_shared<const plan::Program>(plan, std::move(schedule))),
        comm_(place, plan.mesh),
        engine_(toy.units(), toy.spec(), plan, comm_, place.rank,
                {.nvme = {"/tmp", /*checksum=*/true}, .poison = poison, .graphs = graphs}) {
    engine_.use(*program_);
    engine_.optimise(std::make_unique<const optim::AdamW>(optim::AdamWOptions{.weight_decay = 0}));
    fill_shards(store(), fill);
  }
  Store& store() { return engine_.store(); }
  Engine& engine() { return engine_; }
  const plan::Schedule& schedule() const { return program_->schedule; }

  comm::Comm& comm() { return comm_; }
  double lr = 1e-2;
  int64_t samples = 2;  ///< of each micro-batch of the steps to come
  bool skips = false;   ///< the steps to come have no update

  /// One optimiser step; gradients are there where the plan leaves them on the device.
  ToyStep step(int64_t step) {
    ToyStep found = run(step);
    for (Tensor& output : found.outputs) output = output.cpu();
    for (int u = 0; u < store().units(); ++u) {
      whole_unit(store(), comm_, u, false,
                 [&](const plan::ParamSpec& param, const Tensor& value) { found.weights[param.name] = value.clone(); });
      if (!store().grad(u).defined() || program_->plan.units[u].gradients != plan::Tier::device) continue;
      whole_unit(store(), comm_, u, true, [&](const plan::ParamSpec& param, const Tensor& value) {
        found.gradients[param.name] = value.clone();
      });
    }
    return found;
  }
  /// The step alone: its outputs, where they were computed, and its norm.
  ToyStep run(int64_t step) {
    ToyStep found;
    const net::StepControl control{step, lr, 1.0};
    const int first = rank_ * program_->schedule.micros;
    ToyObjective objective(toy_, step, first, samples, found.outputs);
    Pass pass{.program = program_, .step = step};
    if (program_->plan.update == plan::Update::in_backward) pass.ahead = control;
    StepRun half = engine_.run(pass, objective, {});
    found.norm = half.norm();
    engine_.finish(std::move(half), skips ? std::nullopt : std::optional(control));
    return found;
  }

 private:
  class ToyObjective final : public net::Objective {
   public:
    ToyObjective(const Toy& toy, int64_t step, int first, int64_t samples, std::vector<Tensor>& outputs)
        : toy_(toy), step_(step), first_(first), samples_(samples), outputs_(outputs) {}
    net::Batch batch(int micro) override { return toy_.batch(Toy::key(step_, first_ + micro), samples_); }
    Tensor gradient(const Tensor& out, const net::Batch&, int) override {
      outputs_.push_back(out.clone());
      return Toy::loss_gradient(out);
    }
    std::optional<std::string> given(int) override { return ""; }

   private:
    const Toy& toy_;
    const int64_t step_;
    const int first_;
    const int64_t samples_;
    std::vector<Tensor>& outputs_;
  };

  const Toy& toy_;
  const int rank_;
  const plan::ProgramPtr program_;
  comm::Comm comm_;
  Engine engine_;
};

}  // namespace tessera::engine::toy
