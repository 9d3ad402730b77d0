#include "tessera/tools/verify/dit_run.h"

#include <set>

#include "tessera/base/check.h"
#include "tessera/diffusion/loss.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/slice.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/models/common/adapted.h"
#include "tessera/models/named_weights.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/planning/mesh_checks.h"

namespace tessera::tools {

namespace {

std::string numbered(const std::string& name, size_t i) { return name + "." + std::to_string(i); }

/// Inputs of a sample that have a gradient, with their shapes.
std::map<std::string, std::vector<int64_t>> inputs_of(const net::Sample& sample) {
  std::map<std::string, std::vector<int64_t>> shapes = {{"x", sample.x.sizes().vec()},
                                                        {"context", sample.context.sizes().vec()}};
  for (const auto& [name, value] : sample.extra)
    if (name != "t") shapes[name] = value.sizes().vec();
  return shapes;
}

/// This rank's samples, of which gradients are given as functions of what the network says.
class PartObjective final : public net::Objective {
 public:
  using Gradient = std::function<at::Tensor(const at::Tensor& rows, const StepPart& part)>;
  PartObjective(const net::Denoiser& model, std::vector<net::Sample> samples, int64_t first,
                const engine::Parallel& parallel, Gradient gradient, std::shared_ptr<net::History> history)
      : model_(model),
        samples_(std::move(samples)),
        first_(static_cast<size_t>(first)),
        parallel_(parallel),
        gradient_(std::move(gradient)),
        history_(std::move(history)) {}

  net::Batch batch(int) override {
    packed_ = model_.pack(samples_);
    packed_.tokens.history = history_;
    return packed_;
  }
  at::Tensor gradient(const at::Tensor& rows, const net::Batch& batch, int) override {
    return gradient_(rows, {batch, first_, samples_.size(), parallel_});
  }
  const net::Batch& packed() const { return packed_; }
  const std::vector<net::Sample>& samples() const { return samples_; }

 private:
  const net::Denoiser& model_;
  const std::vector<net::Sample> samples_;
  const size_t first_;
  const engine::Parallel& parallel_;
  const Gradient gradient_;
  const std::shared_ptr<net::History> history_;
  net::Batch packed_;
};

}  // namespace

std::map<std::string, at::Tensor> Shared::gather(
    comm::Comm& comm, const std::vector<std::pair<std::string, std::vector<int64_t>>>& shapes) const {
  std::vector<double> flat;
  for (const auto& [name, shape] : shapes) {
    const auto it = mine_.find(name);
    const int64_t count = c10::multiply_integers(shape);
    flat.push_back(it != mine_.end());
    for (int64_t i = 0; i < count; ++i) flat.push_back(it == mine_.end() ? 0 : it->second.const_data_ptr<float>()[i]);
  }
  const auto rows = comm.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles(flat);
  std::map<std::string, at::Tensor> all;
  size_t at = 0;
  for (const auto& [name, shape] : shapes) {
    at::Tensor value = at::zeros(shape, at::kFloat);
    const int64_t count = value.numel();
    for (const auto& row : rows)
      if (row[at] != 0)
        for (int64_t i = 0; i < count; ++i) value.mutable_data_ptr<float>()[i] = static_cast<float>(row[at + 1 + i]);
    all[name] = value;
    at += 1 + count;
  }
  return all;
}

plan::Plan plan_of_case(const plan::ModelSpec& spec, const Mesh& mesh, int64_t samples) {
  plan::Plan plan;
  plan.mesh = mesh;
  plan.global_batch = samples;
  plan.micro_batch = samples;
  constexpr plan::Policy kTurns[] = {plan::Policy::keep, plan::Policy::recompute, plan::Policy::rebuild};
  for (size_t u = 0; u < spec.units.size(); ++u) plan.units.push_back({kTurns[u % 3], plan::Strategy::full_shard});
  return plan;
}

StepGradients run_gradients(const CaseContext& context, const net::Denoiser& model, const UnitList& units,
                            const std::vector<net::Sample>& samples, const FillStore& fill,
                            const std::function<at::Tensor(const at::Tensor& rows, const StepPart& part)>& gradient,
                            const std::function<double()>& loss, const std::shared_ptr<net::History>& history) {
  planning::check_mesh(context.mesh, model);
  const auto count = static_cast<int64_t>(samples.size());
  const plan::ModelSpec spec = engine::measure(units, model.pack(samples), context.name,
                                               {.train = true, .input_grad = true, .mesh = context.mesh});
  const plan::Plan plan = plan_of_case(spec, context.mesh, count);
  const auto program = std::make_shared<const plan::Program>(plan, plan::compile_train(spec, plan, context.rank));
  engine::Engine engine(units, spec, plan, *context.comm, context.rank, {.input_grad = true, .poison = true});
  engine.use(*program);
  engine::Store& store = engine.store();
  fill(store);

  Shared shared;
  StepGradients result;
  const auto slice = plan.slice(context.mesh.dp_rank(context.rank), 0);
  PartObjective objective(model, {samples.begin() + slice.first, samples.begin() + slice.first + slice.count},
                          slice.first, engine.interpreter().parallel(), gradient, history);
  const engine::StepRun step =
      engine.run({.program = program, .step = 1}, objective, [&] { return std::vector{loss ? loss() : 0.0}; });
  for (const std::vector<double>& rank : step.ranks()) result.loss += rank[0];
  engine.finish(step, std::nullopt);
  if (slice.count > 0 && store.owns(0)) {
    const auto whole = engine::whole_input_grads(engine.interpreter().input_grads()[0], objective.packed(),
                                                 engine.interpreter().parallel());
    const auto grads = model.unpack_input_grads(whole, objective.packed(), objective.samples());
    for (int64_t s = 0; s < slice.count; ++s)
      for (const auto& [name, value] : grads[s]) shared.put(numbered(name, slice.first + s), value);
  }
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (size_t i = 0; i < samples.size(); ++i)
    for (const auto& [name, shape] : inputs_of(samples[i])) shapes.emplace_back(numbered(name, i), shape);
  const auto all = shared.gather(*context.comm, shapes);
  for (size_t i = 0; i < samples.size(); ++i) {
    auto& named = result.inputs.emplace_back();
    for (const auto& [name, shape] : inputs_of(samples[i])) named[name] = all.at(numbered(name, i));
  }
  for (int u = 0; u < store.units(); ++u)
    engine::whole_unit(store, *context.comm, u, /*gradients=*/true,
                       [&](const plan::ParamSpec& param, const at::Tensor& value) {
                         result.parameters.emplace_back(param.name, value.clone());
                       });
  return result;
}

DitRun run_dit(const CaseContext& context, const net::Denoiser& model, const std::vector<net::Sample>& samples,
               const std::filesystem::path& weights, size_t of, const engine::Fill& adapters) {
  const models::NamedWeights named(
      weights.string(), model.units(),
      [&](const std::string& name, const std::string& naming) { return model.foreign_name(name, naming); },
      models::kDenoiserNamings);
  const double share = 1 / static_cast<double>(of);
  Shared shared;
  double loss = 0;
  const auto compared = [&](const at::Tensor& rows, const StepPart& part) {  // in host memory, as the case is
    const at::Tensor prediction = rows.cpu();
    at::Tensor gradient = at::zeros_like(prediction);
    const auto outputs = model.unpack(engine::whole_tokens(prediction, part.batch.tokens, part.parallel), part.batch);
    for (size_t s = 0; s < part.count; ++s) {
      shared.put(numbered("out", part.first + s), outputs[s]);
      const diffusion::Target target = {model.pack_target(samples[part.first + s].target)};
      loss += share * diffusion::sample_error(prediction, part.batch, s, target, share, gradient).value();
    }
    return gradient.to(rows.device());
  };
  StepGradients step = run_gradients(
      context, model, model.units(), samples,
      [&](engine::Store& store) { engine::load_weights(store, named.set(), named.names(), {}, adapters); }, compared,
      [&] { return loss; });
  DitRun result{
      .outputs = {}, .loss = step.loss, .input_grads = std::move(step.inputs), .grads = std::move(step.parameters)};
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (size_t i = 0; i < samples.size(); ++i) shapes.emplace_back(numbered("out", i), samples[i].target.sizes().vec());
  const auto all = shared.gather(*context.comm, shapes);
  for (size_t i = 0; i < samples.size(); ++i) result.outputs.push_back(all.at(numbered("out", i)));
  return result;
}

std::function<double(double)> by_largest(double tolerance) {
  return [tolerance](double largest) { return tolerance * std::max(1e-2, largest); };
}

}  // namespace tessera::tools
