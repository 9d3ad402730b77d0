#include "tessera/models/encoders/gemma2.h"

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/encoders/prompts.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::gemma2 {

namespace {

net::WeightMap weights_of(const std::string& name) {
  net::WeightMap weights;
  for (auto& [tensor, value] : Golden(name).tensors("model.safetensors")) weights[tensor] = value;
  return weights;
}

/// per tensor: max|a - ref| <= rtol_of_max * max|ref| + atol
void expect_recorded(const at::Tensor& actual, const at::Tensor& expected, const std::string& name) {
  expect_close(actual, expected, 1e-4 * expected.abs().max().item<double>() + 1e-6, name);
}

}  // namespace

TEST(Gemma2, EveryLayersHiddenStatesAreAsRecorded) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("gemma2");
  const Gemma2 encoder(parse_config(golden.text("config.json"), "config.json"));
  const net::WeightMap weights = weights_of("gemma2");
  const TensorMap recorded = golden.tensors("case.safetensors");
  const at::Tensor& ids = recorded.at("in.input_ids");
  const net::Batch batch = encoder.pack(real_tokens(ids, recorded.at("in.attention_mask")));
  net::Flow flow{batch.inputs, {}};
  for (size_t u = 0; u < encoder.units().size(); ++u) {
    net::PlainContext ctx(weights, encoder.units()[u]->prefix(), batch.tokens);
    flow.stream = encoder.units()[u]->forward(ctx, flow).stream;
    // the last layer's own output is not recorded, only that after the norm
    const bool last = u + 1 == encoder.units().size();
    if (u + 2 == encoder.units().size()) continue;
    const std::string name = last ? "out.last_hidden_state" : "out.hidden_states." + std::to_string(u);
    expect_recorded(padded_rows(flow.stream[0], batch.tokens.offsets, ids.size(1)), recorded.at(name), name);
  }
}

TEST(Gemma2, ItsFilesAreKnownByTheirTensorsAndConfig) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("gemma2");
  Shapes shapes, prefixed;
  for (const auto& [name, tensor] : golden.tensors("model.safetensors"))
    shapes[name] = prefixed["model." + name] = tensor.sizes().vec();  // published files have the prefix
  const Identity what = identify(prefixed);
  EXPECT_EQ(what.model, "gemma-2");
  EXPECT_EQ(what.kind, ModelKind::text_encoder);
  EXPECT_EQ(official_shapes(what, prefixed), shapes);
  const auto made = nlohmann::json::parse(config_for("diffusers", what, shapes, golden.text("config.json"), "c"));
  const auto wanted = nlohmann::json::parse(golden.text("config.json"));
  for (const auto& [key, value] : wanted.items()) EXPECT_EQ(made.value(key, nlohmann::json()), value) << key;
  const auto encoder = make_text_encoder({.config = golden.path("config.json").string()});
  EXPECT_EQ(encoder->dim(), 32);
  EXPECT_THROW(config_for("diffusers", what, shapes, "{}", "c"), UserError) << "no shape tells head_dim";
}

TEST(Gemma2, TheReleasedEncoderHasThePublishedSize) {
  const auto encoder = make_text_encoder({.preset = "gemma-2-2b"});
  int64_t numel = 0;
  size_t tensors = 0;
  for (const auto& unit : encoder->units())
    for (const auto& param : unit->spec().params) numel += param.numel(), ++tensors;
  EXPECT_EQ(numel, 2614341888);
  EXPECT_EQ(tensors, 288u);
  EXPECT_EQ(encoder->dim(), 2304);
}

TEST(Gemma2, LaterTokensChangeNothingAndPromptsNothingOfEachOther) {
  const Gemma2 encoder(presets().back().second);
  net::WeightMap weights;
  for (const auto& unit : encoder.units())
    for (const auto& param : unit->spec().params) {
      weights[param.name] = at::empty(param.shape, at::kFloat);
      encoder.initialise(param, 1, 0, param.numel(), weights[param.name].mutable_data_ptr<float>());
    }
  std::vector<int64_t> prompt = {2};
  for (int64_t i = 0; i < 40; ++i) prompt.push_back(5 + 7 * i);  // longer than the window
  std::vector<int64_t> beginning(prompt.begin(), prompt.begin() + 25);
  const at::Tensor both = net::run_plain(encoder.units(), weights, encoder.pack({prompt, beginning}));
  const at::Tensor one = net::run_plain(encoder.units(), weights, encoder.pack({prompt}));
  EXPECT_TRUE(both.isfinite().all().item<bool>());
  expect_close(both.slice(0, 0, 41), one, 1e-5, "beside another prompt");
  expect_close(both.slice(0, 41, 66), one.slice(0, 0, 25), 1e-5, "without the tokens that follow");
  EXPECT_GT((one[0] - one[1]).abs().max().item<double>(), 0.1);
}

TEST(Gemma2, ConfigsOfOtherKindsAreRefused) {
  TESSERA_NEED_GOLDENS();
  const auto with = [](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(Golden("gemma2").text("config.json"));
    config[key] = value;
    return parse_config(config.dump(), "config.json");
  };
  EXPECT_NO_THROW(with("layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}));
  EXPECT_THROW(with("layer_types", {"full_attention", "full_attention", "full_attention", "full_attention"}),
               UserError);
  EXPECT_THROW(with("model_type", "gemma3"), UserError);
  EXPECT_THROW(with("attention_bias", true), UserError);
  EXPECT_THROW(with("num_key_value_heads", 3), UserError);
}

}  // namespace tessera::models::gemma2
