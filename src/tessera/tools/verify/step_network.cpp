#include "tessera/tools/verify/step_network.h"

#include "tessera/base/check.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/measure.h"
#include "tessera/models/named_weights.h"
#include "tessera/models/registry.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/planning/mesh_checks.h"

namespace tessera::tools {

using at::Tensor;

StepNetwork::StepNetwork(const CaseContext& context, std::unique_ptr<net::Denoiser> model, const std::string& file)
    : context_(context), model_(std::move(model)) {
  planning::check_mesh(context.mesh, *model_);
  const models::NamedWeights named(
      (context.folder / file).string(), model_->units(),
      [&](const std::string& name, const std::string& naming) { return model_->foreign_name(name, naming); },
      models::kDenoiserNamings);
  named.check(model_->units(), [](const std::string&, const std::vector<int64_t>&) { return std::string(); });
  for (const auto& unit : model_->units())
    for (const plan::ParamSpec& param : unit->spec().params) {
      const Tensor value = at::empty(param.shape, at::kFloat);
      named.set().read_f32(named.names()(param.name), 0, value.numel(), value.mutable_data_ptr<float>());
      weights_[param.name] = value;
    }
}

std::unique_ptr<net::Denoiser> StepNetwork::described(const CaseContext& context) {
  context.config.read("model_max_length");  // of captions as they are stored, padded
  return models::make_denoiser({.config = (context.folder / "config.json").string()});
}

void StepNetwork::fill(engine::Store& store) const {
  engine::fill_shards(store, [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    std::copy_n(weights_.at(param.name).const_data_ptr<float>() + first, count, out);
  });
}

StepNetwork::Rows StepNetwork::rows_of(const UnitList& units, const Samples& samples, const Pack& pack) const {
  const auto count = static_cast<int64_t>(samples.size());
  net::Batch all = pack(samples, 0);
  all.tokens.history = history_;
  const plan::ModelSpec spec = engine::measure(units, all, context_.name, {.train = false, .mesh = context_.mesh});
  const plan::Plan plan = plan_of_case(spec, context_.mesh, count);
  const auto program = std::make_shared<const plan::Program>(
      plan, plan::compile_forward(spec, plan, context_.rank, "verify", /*micros=*/1));
  engine::Engine engine(units, spec, plan, *context_.comm, context_.rank, {.trainable = false, .poison = true});
  engine.use(*program);
  fill(engine.store());
  // A rank without samples of its own takes part with the first.
  const auto slice = plan.slice(context_.mesh.dp_rank(context_.rank), 0);
  const int64_t first = slice.count > 0 ? slice.first : 0, here = std::max<int64_t>(slice.count, 1);
  net::Batch batch = pack({samples.begin() + first, samples.begin() + first + here}, first);
  batch.tokens.history = history_;
  const Tensor rows = engine.forward(program, {batch})[0].to(at::kFloat);
  Shared shared;
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (int64_t s = 0; s < count; ++s) {
    const int64_t tokens = all.tokens.offsets[s + 1] - all.tokens.offsets[s];
    shapes.emplace_back(std::to_string(s), std::vector<int64_t>{tokens, rows.size(1)});
    if (s < slice.first || s >= slice.first + slice.count) continue;
    const int64_t begin = batch.tokens.offsets[s - first];
    shared.put(std::to_string(s), rows.slice(0, begin, begin + tokens));
  }
  const auto gathered = shared.gather(*context_.comm, shapes);
  Rows result;
  for (int64_t s = 0; s < count; ++s) result.push_back(gathered.at(std::to_string(s)));
  return result;
}

std::vector<Tensor> StepNetwork::predictions(const Samples& samples, const Rows& rows) const {
  return model_->unpack(at::cat(rows), model_->pack(samples));
}

std::vector<StepNetwork::Outputs> StepNetwork::forward(const Samples& samples) const {
  const Rows rows = rows_of(model_->units(), samples, [&](const Samples& part, int64_t) { return model_->pack(part); });
  const std::vector<Tensor> predicted = predictions(samples, rows);
  std::vector<Outputs> outputs;
  for (size_t s = 0; s < samples.size(); ++s) {
    Outputs& out = outputs.emplace_back(Outputs{predicted[s]});
    const int64_t width = rows[s].size(1);
    for (int64_t i = width - model_->numbers_beside(); i < width; ++i)
      out.beside.push_back(rows[s][0][i].item<double>());
  }
  return outputs;
}

std::vector<StepNetwork::Outputs> StepNetwork::forward_mode(const Samples& samples,
                                                            const std::vector<net::Direction>& directions) const {
  const Rows rows = rows_of(net::forward_mode(*model_), samples, [&](const Samples& part, int64_t first) {
    const auto from = directions.begin() + first;
    return net::pack_moving(*model_, part, {from, from + static_cast<int64_t>(part.size())});
  });
  Rows values, tangents;
  for (const Tensor& both : rows) {
    const auto halves = both.chunk(2, 1);
    values.push_back(halves[0]), tangents.push_back(halves[1]);
  }
  const std::vector<Tensor> value = predictions(samples, values), tangent = predictions(samples, tangents);
  std::vector<Outputs> outputs;
  for (size_t s = 0; s < samples.size(); ++s) outputs.push_back({value[s], {}, tangent[s]});
  return outputs;
}

StepNetwork::Gradients StepNetwork::gradients_of(const UnitList& units, const Samples& samples,
                                                 const Rows& at_rows) const {
  const StepGradients step = run_gradients(
      context_, *model_, units, samples, [&](engine::Store& store) { fill(store); },
      [&](const Tensor& rows, const StepPart& part) {
        const auto from = at_rows.begin() + static_cast<int64_t>(part.first);
        const Tensor all = at::cat(Rows(from, from + static_cast<int64_t>(part.count)));
        const int64_t begin = part.batch.tokens.begin;
        return all.slice(0, begin, begin + rows.size(0)).to(rows.options()).contiguous();
      },
      nullptr, history_);
  Gradients gradients{{step.parameters.begin(), step.parameters.end()}, {}};
  for (const auto& of_sample : step.inputs) gradients.x.push_back(of_sample.at("x"));
  return gradients;
}

StepNetwork::Gradients StepNetwork::backward(const Samples& samples, const std::vector<Outputs>& at_outputs) const {
  Rows at_rows;
  for (const Outputs& at : at_outputs) {
    const Tensor rows = model_->pack_target(at.prediction).to(at::kFloat).clone();
    // A number is read from a sample's first row, and has its gradient there.
    for (size_t i = 0; i < at.beside.size(); ++i)
      rows[0][rows.size(1) - model_->numbers_beside() + static_cast<int64_t>(i)] = at.beside[i];
    at_rows.push_back(rows);
  }
  return gradients_of(model_->units(), samples, at_rows);
}

StepNetwork::Rows StepNetwork::features(const Samples& samples, const std::set<int64_t>& blocks) const {
  return rows_of(net::up_to_blocks(*model_, blocks), samples,
                 [&](const Samples& part, int64_t) { return model_->pack(part); });
}

StepNetwork::Rows StepNetwork::backward_from_features(const Samples& samples, const std::set<int64_t>& blocks,
                                                      const Rows& at_features) const {
  return gradients_of(net::up_to_blocks(*model_, blocks), samples, at_features).x;
}

}  // namespace tessera::tools
