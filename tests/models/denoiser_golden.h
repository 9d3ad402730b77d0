#pragma once
// A family's golden cases through the plain context: outputs, loss and all gradients, with a file of whatever naming; and
// what tests of a family ask of any denoiser.
//
//   compare_with_case(kind, "sana", "original.safetensors");
#include "golden.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/models/common/golden_case.h"
#include "tessera/models/common/names.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"

namespace tessera::models {

/// Shapes as files hold them under a naming: parts of one tensor together.
inline Shapes stored_shapes(const net::Denoiser& model, const std::string& naming) {
  Shapes shapes;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) {
      const std::string name = model.foreign_name(param.name, naming);
      const auto part = checkpoint::row_part(name);
      EXPECT_TRUE(part || !shapes.count(name)) << name;
      shapes[checkpoint::whole_name(name)] = part ? checkpoint::stored_shape(*part, param.shape) : param.shape;
    }
  return shapes;
}

/// No weight is zero.
inline net::WeightMap lively_weights(const net::Denoiser& model) {
  net::WeightMap weights;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) weights[param.name] = at::randn(param.shape) * 0.2;
  return weights;
}

inline at::Tensor predict(const net::Denoiser& model, const net::WeightMap& weights, const net::Sample& sample) {
  const net::Batch batch = model.pack({sample});
  return model.unpack(net::run_plain(model.units(), weights, batch), batch)[0];
}

/// The tensors of case.safetensors.
class CaseFileTensors final : public CaseTensors {
 public:
  explicit CaseFileTensors(TensorMap tensors) : tensors_(std::move(tensors)) {}
  std::string label() const override { return "case.safetensors"; }
  bool has(const std::string& name) const override { return tensors_.count(name) > 0; }
  std::vector<std::string> names(const std::string& prefix) const override {
    std::vector<std::string> found;
    for (const auto& [name, value] : tensors_)
      if (name.starts_with(prefix)) found.push_back(name);
    return found;
  }
  at::Tensor tensor(const std::string& name) const override { return tensors_.at(name); }

 private:
  const TensorMap tensors_;
};

/// Weights under our names from a file of whatever naming; leaves that want gradients.
inline net::WeightMap read_weights(const net::Denoiser& model, const std::filesystem::path& path) {
  const auto set = checkpoint::open_weights(path);
  std::vector<std::string> ours;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) ours.push_back(param.name);
  const ForeignName foreign = [&](const std::string& name, const std::string& naming) {
    return model.foreign_name(name, naming);
  };
  const Naming naming = detect_naming(ours, foreign, kDenoiserNamings, set.names(), path.string());
  net::WeightMap weights;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) {
      const at::Tensor value = at::empty(param.shape, at::kFloat);
      const std::string name = naming.prefix + foreign(param.name, naming.naming);
      EXPECT_EQ(set.at(name).shape, param.shape) << name;
      set.read_f32(name, 0, value.numel(), value.mutable_data_ptr<float>());
      weights[param.name] = value.requires_grad_();
    }
  return weights;
}

/// max|a - b| <= rtol_of_max * max|b| + atol; or of a number alone, as cases of the official programs have it: a bound of
/// outputs, a share of gradients.
struct LargestRule {
  double share, least, floor = 0;
  static LargestRule of(const nlohmann::json& rule, bool gradient) {
    if (rule.is_object()) return {rule.at("rtol_of_max"), rule.at("atol")};
    const double number = rule;
    return gradient ? LargestRule{number, 0, 1e-2} : LargestRule{0, number};
  }
  double bound(const at::Tensor& expected) const {
    return share * std::max(floor, expected.abs().max().item<double>()) + least;
  }
};

inline void compare_with_case(const DenoiserCase& kind, const std::string& folder, const std::string& weights_file) {
  SCOPED_TRACE(folder + " " + weights_file);
  const Golden golden(folder);
  const auto rule = [json = nlohmann::json::parse(golden.text("case.json")).at("tolerance")](const char* group) {
    return LargestRule::of(json.at(group), std::string_view(group) == "grad");
  };
  const CaseFileTensors file(golden.tensors("case.safetensors"));
  const std::string config = golden.text("config.json");
  const auto model = make_denoiser({.config_text = kind.config ? kind.config(config, file) : config});
  const net::WeightMap weights = read_weights(*model, golden.path(weights_file));
  const std::vector<net::Sample> samples = kind.samples(file, "");

  net::Batch batch = model->pack(samples);
  for (at::Tensor& input : batch.inputs) input.requires_grad_();
  const at::Tensor out = net::run_plain(model->units(), weights, batch);
  for (const auto& [name, value] : kind.outputs(model->unpack(out.detach(), batch)))
    expect_close(value, file.tensor(name), rule("out").bound(file.tensor(name)), name);
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto [begin, end] = batch.predictions_of(i);
    const int64_t first = batch.tokens.offsets[i];
    const at::Tensor target = model->pack_target(samples[i].target).slice(0, begin - first, end - first);
    loss = loss + (out.slice(0, begin, end) - target).square().mean() / static_cast<double>(samples.size());
  }
  expect_close(loss, file.tensor("out.loss"), rule("out").bound(file.tensor("out.loss")), "loss");

  loss.backward();
  NamedTensors ours;
  for (const auto& [name, weight] : weights) ours.emplace_back(name, weight.grad());
  size_t compared = 0;
  for (const auto& [name, value] :
       stored_together(ours, [&](const std::string& name) { return model->foreign_name(name, kind.grad_naming); })) {
    const at::Tensor& expected = file.tensor("grad." + name);
    expect_close(value, expected, rule("grad").bound(expected), name);
    ++compared;
  }
  EXPECT_EQ(compared, file.names("grad.").size());
  std::vector<at::Tensor> grads;
  for (const at::Tensor& input : batch.inputs) grads.push_back(input.grad());
  const NamedTensors inputs = kind.input_grads(model->unpack_input_grads(grads, batch, samples), file);
  for (const auto& [name, value] : inputs) {
    if (!file.has(name)) continue;
    expect_close(value, file.tensor(name), rule("grad").bound(file.tensor(name)), name);
  }
}

}  // namespace tessera::models
