#include "tessera/tools/verify/dit_run.h"

#include <set>

#include "tessera/base/check.h"
#include "tessera/diffusion/loss.h"
#include "tessera/engine/executor.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/parallel/slice.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/models/common/adapted.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/planning/mesh_checks.h"

namespace tessera::tools {

namespace {

/// Values that live on whichever rank computed them, brought to all ranks: one flat list of doubles, exact for fp32.
class Shared {
 public:
  void put(const std::string& name, const at::Tensor& value) { mine_[name] = value.contiguous(); }
  /// `shapes`: every name that exists on some rank, the same list on all.
  std::map<std::string, at::Tensor> gather(
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

 private:
  std::map<std::string, at::Tensor> mine_;
};

std::string numbered(const std::string& name, size_t i) { return name + "." + std::to_string(i); }

/// Inputs of a sample that have a gradient, with their shapes.
std::map<std::string, std::vector<int64_t>> inputs_of(const net::Sample& sample) {
  std::map<std::string, std::vector<int64_t>> shapes = {{"x", sample.x.sizes().vec()},
                                                        {"context", sample.context.sizes().vec()}};
  for (const auto& [name, value] : sample.extra)
    if (name != "t") shapes[name] = value.sizes().vec();
  return shapes;
}

/// Units keep, recompute and rebuild in turn, so that all three are held against the reference.
plan::Plan plan_for(const plan::ModelSpec& spec, const Mesh& mesh, int64_t samples) {
  plan::Plan plan;
  plan.mesh = mesh;
  plan.global_batch = samples;
  plan.micro_batch = samples;
  constexpr plan::Policy kTurns[] = {plan::Policy::keep, plan::Policy::recompute, plan::Policy::rebuild};
  for (size_t u = 0; u < spec.units.size(); ++u) plan.units.push_back({kTurns[u % 3], plan::Strategy::full_shard});
  return plan;
}

}  // namespace

DitRun run_dit(const CaseContext& context, const net::Denoiser& model, const std::vector<net::Sample>& samples,
               const std::filesystem::path& weights, size_t of, const engine::Fill& adapters) {
  planning::check_mesh(context.mesh, model);
  const auto count = static_cast<int64_t>(samples.size());
  const plan::ModelSpec spec = engine::measure(model.units(), model.pack(samples), context.name,
                                               {.train = true, .input_grad = true, .mesh = context.mesh});
  const plan::Plan plan = plan_for(spec, context.mesh, count);
  const plan::Schedule schedule = plan::compile_train(spec, plan, context.rank);
  std::vector<std::string> prefixes;
  for (const auto& unit : model.units()) prefixes.push_back(unit->prefix());
  engine::Store store(spec, prefixes, plan, context.rank, at::kCPU);
  store.set_arena(schedule.arena);
  const auto naming = weights.filename().string().starts_with("diffusers") ? "diffusers" : "official";
  engine::load_weights(
      store, checkpoint::open_weights(weights),
      [&](const std::string& name) {
        return models::is_adapter_parameter(name) ? "" : model.foreign_name(name, naming);
      },
      {}, adapters);
  engine::Executor executor(model.units(), store, *context.comm, plan, context.rank,
                            {.input_grad = true, .poison = true});

  Shared shared;
  DitRun result;
  std::vector<net::Sample> mine;
  net::Batch batch_mine;
  const auto slice = plan.slice(context.mesh.dp_rank(context.rank), 0);
  engine::StepCalls calls;
  calls.load = [&](int) {
    mine.assign(samples.begin() + slice.first, samples.begin() + slice.first + slice.count);
    return batch_mine = model.pack(mine);
  };
  calls.loss = [&](const at::Tensor& prediction, const net::Batch& batch, int) {
    at::Tensor gradient = at::zeros_like(prediction);
    const auto outputs = model.unpack(engine::whole_tokens(prediction, batch.tokens, executor.parallel()), batch);
    const double share = 1.0 / static_cast<double>(of);
    for (int64_t s = 0; s < slice.count; ++s) {
      shared.put(numbered("out", slice.first + s), outputs[s]);
      const diffusion::Target target = {model.pack_target(mine[s].target)};
      result.loss += share * diffusion::sample_error(prediction, batch, s, target, share, gradient);
    }
    return gradient;
  };
  calls.control = [&] { return std::vector<double>{result.loss}; };
  calls.agree = [&](double, const std::vector<std::vector<double>>& ranks) -> std::optional<net::StepControl> {
    result.loss = 0;
    for (int r = 0; r < context.mesh.world(); ++r) result.loss += ranks[r][0];
    return std::nullopt;
  };
  executor.train(schedule, 1, calls, nullptr);
  if (slice.count > 0 && store.owns(0)) {
    const auto whole = engine::whole_input_grads(executor.input_grads()[0], batch_mine, executor.parallel());
    const auto grads = model.unpack_input_grads(whole, batch_mine, mine);
    for (int64_t s = 0; s < slice.count; ++s)
      for (const auto& [name, value] : grads[s]) shared.put(numbered(name, slice.first + s), value);
  }

  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (size_t i = 0; i < samples.size(); ++i) {
    shapes.emplace_back(numbered("out", i), samples[i].target.sizes().vec());
    for (const auto& [name, shape] : inputs_of(samples[i])) shapes.emplace_back(numbered(name, i), shape);
  }
  const auto all = shared.gather(*context.comm, shapes);
  for (size_t i = 0; i < samples.size(); ++i) {
    result.outputs.push_back(all.at(numbered("out", i)));
    auto& named = result.input_grads.emplace_back();
    for (const auto& [name, shape] : inputs_of(samples[i])) named[name] = all.at(numbered(name, i));
  }
  for (int u = 0; u < store.units(); ++u)
    engine::whole_unit(store, *context.comm, u, /*gradients=*/true,
                       [&](const plan::ParamSpec& param, const at::Tensor& value) {
                         result.grads.emplace_back(param.name, value.clone());
                       });
  return result;
}

std::function<double(double)> by_largest(double tolerance) {
  return [tolerance](double largest) { return tolerance * std::max(1e-2, largest); };
}

}  // namespace tessera::tools
