// Kind "dit": a diffusion transformer's outputs, loss and gradients through the engine, on any mesh.
#include "tessera/base/check.h"
#include "tessera/engine/executor.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/transfer.h"
#include "tessera/models/registry.h"
#include "tessera/train/objective.h"
#include "tessera/train/verify/case.h"

namespace tessera::train {

namespace {

std::vector<net::Sample> read_samples(const CaseFile& file) {
  const at::Tensor t = file.tensor("in.t");
  check_input(t.dim() == 1, "verify",
              file.case_name() + "/" + file.file_name() + ": in.t has " + std::to_string(t.dim()) +
                  " dimensions, expected one timestep a sample",
              "per-token timesteps come with a later version");
  std::vector<net::Sample> samples;
  for (int64_t i = 0; i < t.size(0); ++i) {
    const std::string n = std::to_string(i);
    net::Sample sample;
    sample.x = file.tensor("in.x." + n);
    sample.context = file.tensor("in.context." + n);
    sample.t = t.to(at::kDouble)[i].item<double>();
    if (file.has("in.target." + n)) sample.target = file.tensor("in.target." + n);
    samples.push_back(std::move(sample));
  }
  return samples;
}

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

void check_file(const CaseContext& context, const std::string& weights, CaseResults& results,
                const std::filesystem::path& path) {
  CaseFile file(context.name, path, weights);
  const auto model = models::make_denoiser({.config_text = context.config.dump()});
  const std::vector<net::Sample> samples = read_samples(file);
  const auto count = static_cast<int64_t>(samples.size());
  const bool train = samples.front().target.defined();
  check_input(train, "verify", path.string() + ": in.target.0 is missing", "a dit case needs the target of its loss");

  // Half of the blocks recompute, so that both policies are held against the reference.
  plan::Plan plan;
  plan.mesh = context.mesh;
  plan.global_batch = count;
  plan.micro_batch = count;
  const plan::ModelSpec spec =
      engine::measure(model->units(), model->pack(samples), context.name, {.train = true, .input_grad = true});
  for (size_t u = 0; u < spec.units.size(); ++u)
    plan.units.push_back({u % 2 == 0 ? plan::Policy::recompute : plan::Policy::keep, plan::Strategy::full_shard});
  const plan::Schedule schedule = plan::compile_train(spec, plan, context.rank);
  std::vector<std::string> prefixes;
  for (const auto& unit : model->units()) prefixes.push_back(unit->prefix());
  engine::Store store(spec, prefixes, plan, context.rank, at::kCPU);
  store.set_arena(schedule.arena);
  const auto naming = weights.starts_with("diffusers") ? "diffusers" : "official";
  engine::load_weights(store, checkpoint::open_weights(context.folder / weights),
                       [&](const std::string& name) { return model->foreign_name(name, naming); }, {});
  engine::Executor executor(model->units(), store, *context.comm, plan, context.rank,
                            {.input_grad = true, .poison = true});

  Shared shared;
  double loss = 0;
  std::vector<net::Sample> mine;
  net::Batch batch_mine;
  const auto slice = plan.slice(context.mesh.dp_rank(context.rank), 0);
  engine::StepCalls calls;
  calls.load = [&](int) {
    mine.assign(samples.begin() + slice.first, samples.begin() + slice.first + slice.count);
    return batch_mine = model->pack(mine);
  };
  calls.loss = [&](const at::Tensor& prediction, const net::Batch& batch, int) {
    at::Tensor gradient = at::empty_like(prediction);
    const auto outputs = model->unpack(prediction, batch);
    for (int64_t s = 0; s < slice.count; ++s) {
      shared.put("out." + std::to_string(slice.first + s), outputs[s]);
      const int64_t begin = batch.tokens.offsets[s], rows = batch.tokens.offsets[s + 1] - begin;
      const at::Tensor target = model->pack_target(mine[s].target);
      loss +=
          mean_squared_error(prediction.narrow(0, begin, rows), target, 1.0 / count, gradient.narrow(0, begin, rows)) /
          count;
    }
    return gradient;
  };
  calls.control = [&] { return std::vector<double>{loss}; };
  calls.agree = [&](double, const std::vector<std::vector<double>>& ranks) -> std::optional<net::StepControl> {
    loss = 0;
    for (int r = 0; r < context.mesh.world(); ++r) loss += ranks[r][0];
    return std::nullopt;
  };
  executor.train(schedule, 1, calls, nullptr);
  if (slice.count > 0) {
    const auto input_grads = model->unpack_input_grads(executor.input_grads()[0], batch_mine, mine);
    for (int64_t s = 0; s < slice.count; ++s) {
      shared.put("grad_in.x." + std::to_string(slice.first + s), input_grads[s].first);
      shared.put("grad_in.context." + std::to_string(slice.first + s), input_grads[s].second);
    }
  }

  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (int64_t i = 0; i < count; ++i) {
    const std::string n = std::to_string(i);
    shapes.emplace_back("out." + n, samples[i].target.sizes().vec());
    shapes.emplace_back("grad_in.x." + n, samples[i].x.sizes().vec());
    shapes.emplace_back("grad_in.context." + n, samples[i].context.sizes().vec());
  }
  const auto all = shared.gather(*context.comm, shapes);
  const auto by_rule = [](double tolerance) {
    return [tolerance](double largest) { return tolerance * std::max(1e-2, largest); };
  };
  for (int64_t i = 0; i < count; ++i)
    file.compare("out." + std::to_string(i), all.at("out." + std::to_string(i)), context.tolerance("out"));
  file.compare("out.loss", at::scalar_tensor(loss, at::kFloat), context.tolerance("loss"));
  // A case may leave gradients out as a whole, not one of them.
  if (!file.names("grad_in.").empty())
    for (const auto& [name, value] : all)
      if (name.starts_with("grad_in.")) file.compare(name, value, by_rule(context.tolerance("grad_in")));
  const bool with_grads = !file.names("grad.").empty();
  for (int u = 0; u < store.units(); ++u)
    engine::whole_unit(store, *context.comm, u, /*gradients=*/true,
                       [&](const plan::ParamSpec& param, const at::Tensor& value) {
                         if (with_grads) file.compare("grad." + param.name, value, by_rule(context.tolerance("grad")));
                       });
  results.push_back(std::move(file));
}

}  // namespace

CaseResults verify_dit(const CaseContext& context) {
  CaseResults results;
  for (const std::string weights : {"model.safetensors", "diffusers.safetensors"}) {
    if (weights.starts_with("diffusers") && !std::filesystem::exists(context.folder / weights)) continue;
    for (const auto& path : context.case_files()) check_file(context, weights, results, path);
  }
  return results;
}

}  // namespace tessera::train
