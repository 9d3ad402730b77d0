#include <set>

#include "golden.h"
#include "tessera/models/names.h"
#include "tessera/models/wan/spec.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::wan {

namespace {

/// Weights under official names from a file of whatever naming; leaves that want gradients.
net::WeightMap read_weights(const Wan& model, const std::filesystem::path& path) {
  const TensorMap stored = read_tensors(path);
  std::vector<std::string> official, names;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) official.push_back(param.name);
  for (const auto& [name, tensor] : stored) names.push_back(name);
  const ForeignName foreign = [&](const std::string& name, const std::string& naming) {
    return model.foreign_name(name, naming);
  };
  const Naming naming = detect_naming(official, foreign, kDenoiserNamings, names, path.string());
  net::WeightMap weights;
  for (const auto& unit : model.units()) {
    for (const auto& param : unit->spec().params) {
      const at::Tensor& value = stored.at(naming.prefix + foreign(param.name, naming.naming));
      EXPECT_EQ(value.sizes(), at::IntArrayRef(param.shape)) << param.name;
      weights[param.name] = value.requires_grad_();
    }
  }
  EXPECT_EQ(weights.size(), stored.size()) << "every stored tensor belongs to the model";
  return weights;
}

std::vector<net::Sample> read_samples(const TensorMap& tensors) {
  std::vector<net::Sample> samples;
  for (int64_t i = 0; tensors.count("in.x." + std::to_string(i)); ++i) {
    const std::string place = "." + std::to_string(i);
    samples.push_back({.x = tensors.at("in.x" + place),
                       .t = tensors.at("in.t")[i].item<double>(),
                       .context = tensors.at("in.context" + place),
                       .target = tensors.at("in.target" + place)});
  }
  return samples;
}

/// Predictions, loss and all gradients the case has, each within its tolerance.
void compare(const std::string& config_file, const std::string& weights_file, const std::string& case_file,
             size_t gradients) {
  const Golden golden("wan21_t2v");
  const Wan model(parse_config(golden.text(config_file), config_file));
  const net::WeightMap weights = read_weights(model, golden.path(weights_file));
  const TensorMap tensors = golden.tensors(case_file);
  const std::vector<net::Sample> samples = read_samples(tensors);

  net::Batch batch = model.pack(samples);
  for (at::Tensor& input : batch.inputs) input.requires_grad_();
  const at::Tensor out = net::run_plain(model.units(), weights, batch);
  const std::vector<at::Tensor> predictions = model.unpack(out.detach(), batch);
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i < samples.size(); ++i) {
    expect_close(predictions[i], tensors.at("out." + std::to_string(i)), golden.tolerance("out"),
                 "out." + std::to_string(i));
    const at::Tensor tokens = out.slice(0, batch.tokens.offsets[i], batch.tokens.offsets[i + 1]);
    loss = loss + (tokens - model.pack_target(samples[i].target)).square().mean() / static_cast<double>(samples.size());
  }
  expect_close(loss, tensors.at("out.loss"), golden.tolerance("loss"), "loss");

  loss.backward();
  size_t compared = 0;
  for (const auto& [name, weight] : weights) {
    const auto expected = tensors.find("grad." + name);
    if (expected == tensors.end()) continue;
    expect_gradient(weight.grad(), expected->second, golden.tolerance("grad"), name);
    ++compared;
  }
  EXPECT_EQ(compared, gradients);
  const auto inputs = model.unpack_input_grads({batch.inputs[0].grad(), batch.inputs[1].grad()}, batch, samples);
  for (size_t i = 0; i < samples.size(); ++i) {
    expect_gradient(inputs[i].first, tensors.at("grad_in.x." + std::to_string(i)), golden.tolerance("grad_in"), "x");
    expect_gradient(inputs[i].second, tensors.at("grad_in.context." + std::to_string(i)), golden.tolerance("grad_in"),
                    "context");
  }
}

}  // namespace

TEST(WanGolden, TwoSamplesOfDifferentSizeMatchInOutputLossAndGradients) {
  TESSERA_NEED_GOLDENS();
  compare("config.json", "model.safetensors", "case.safetensors", 96);
}

TEST(WanGolden, OneSampleMatches) {
  TESSERA_NEED_GOLDENS();
  compare("config.json", "model.safetensors", "case_b1.safetensors", 0);
}

TEST(WanGolden, DiffusersNamesMatchToo) {
  TESSERA_NEED_GOLDENS();
  compare("config.json", "diffusers.safetensors", "case.safetensors", 96);
}

TEST(WanGolden, BothConfigsMeanTheSameModel) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("wan21_t2v");
  const Config official = parse_config(golden.text("config.json"), "config.json");
  Config diffusers = parse_config(golden.text("diffusers_config.json"), "diffusers_config.json");
  diffusers.text_len = official.text_len;  // a matter of the pipeline there
  EXPECT_EQ(official, diffusers);
}

}  // namespace tessera::models::wan
