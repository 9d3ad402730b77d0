#include "tessera/models/encoders/qwen2.h"

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/encoders/prompts.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::qwen2 {

namespace {

net::WeightMap random_weights_of(const net::TextEncoder& encoder) {
  net::WeightMap weights;
  for (const auto& unit : encoder.units())
    for (const auto& param : unit->spec().params) {
      weights[param.name] = at::empty(param.shape, at::kFloat);
      encoder.initialise(param, 1, 0, param.numel(), weights[param.name].mutable_data_ptr<float>());
    }
  return weights;
}

std::pair<int64_t, size_t> size_of_all(const net::TextEncoder& encoder) {
  int64_t numel = 0;
  size_t tensors = 0;
  for (const auto& unit : encoder.units())
    for (const auto& param : unit->spec().params) numel += param.numel(), ++tensors;
  return {numel, tensors};
}

}  // namespace

TEST(Qwen2, EveryLayersHiddenStatesAreAsRecordedAndPromptsAreTheThirdFromTheEnd) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("qwen25_vl_text");
  const Config config = parse_config(golden.text("config.json"), "config.json");
  const Qwen2 whole(config, /*whole=*/true), encoder(config);
  net::WeightMap weights;
  for (auto& [name, value] : golden.tensors("model.safetensors")) weights[name] = value;
  const TensorMap recorded = golden.tensors("case.safetensors");
  const at::Tensor& ids = recorded.at("in.input_ids");
  const net::Batch batch = whole.pack(real_tokens(ids, recorded.at("in.attention_mask")));
  const auto expect = [&](const at::Tensor& rows, const std::string& name) {
    const at::Tensor& expected = recorded.at(name);
    expect_close(padded_rows(rows, batch.tokens.offsets, ids.size(1)), expected,
                 1e-4 * expected.abs().max().item<double>() + 1e-6, name);
  };
  net::Flow flow{batch.inputs, {}};
  for (size_t u = 0; u < whole.units().size(); ++u) {
    net::PlainContext ctx(weights, whole.units()[u]->prefix(), batch.tokens);
    flow.stream = whole.units()[u]->forward(ctx, flow).stream;
    // the last layer's own output is not recorded, only that after the norm
    if (u + 2 == whole.units().size()) continue;
    const bool last = u + 1 == whole.units().size();
    expect(flow.stream[0], last ? "out.last_hidden_state" : "out.hidden_states." + std::to_string(u));
  }
  expect(net::run_plain(encoder.units(), weights, batch), "out.hidden_states.3");
}

TEST(Qwen2, TheReleasedEncoderHasThePublishedSize) {
  const Config released;
  EXPECT_EQ(size_of_all(Qwen2(released, /*whole=*/true)), (std::pair<int64_t, size_t>{7070619136, 338}));
  const auto encoder = make_text_encoder({.preset = "qwen2.5-vl-7b"});
  EXPECT_EQ(size_of_all(*encoder).first, 6604499968) << "the embedding and the 26 layers that run";
  EXPECT_EQ(encoder->dim(), 3584);
}

TEST(Qwen2, ItsFilesAreKnownUnderEachPrefixWithItsConfig) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("qwen25_vl_text");
  Shapes shapes;
  for (const auto& [name, tensor] : golden.tensors("model.safetensors")) shapes[name] = tensor.sizes().vec();
  for (const std::string prefix : {"", "model.", "model.language_model."}) {
    Shapes stored = {{"lm_head.weight", {832, 32}}, {"visual.merger.ln_q.weight", {8}}};
    for (const auto& [name, shape] : shapes) stored[prefix + name] = shape;
    const Identity what = identify(stored);
    EXPECT_EQ(what.model, "qwen2.5-vl") << prefix;
    EXPECT_EQ(what.kind, ModelKind::text_encoder);
    const Shapes ours = official_shapes(what, stored);
    EXPECT_TRUE(std::ranges::all_of(shapes, [&](const auto& one) { return ours.contains(one.first); })) << prefix;
    const auto made = nlohmann::json::parse(config_for("diffusers", what, shapes, golden.text("config.json"), "c"));
    const auto wanted = nlohmann::json::parse(golden.text("config.json"));
    for (const auto& [key, value] : wanted.items()) EXPECT_EQ(made.value(key, nlohmann::json()), value) << key;
  }
  EXPECT_EQ(make_text_encoder({.config = golden.path("config.json").string()})->dim(), 32);
}

TEST(Qwen2, ConfigsOfEveryReleaseAreReadAndOtherKindsRefused) {
  const nlohmann::json sizes = {{"vocab_size", 100},      {"hidden_size", 32},        {"intermediate_size", 48},
                                {"num_hidden_layers", 3}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                                {"rms_norm_eps", 1e-5},   {"hidden_act", "silu"}};
  const auto with = [&](const nlohmann::json& more) {
    nlohmann::json config = sizes;
    if (more.is_object()) config.update(more);
    return parse_config(config.dump(), "config.json");
  };
  EXPECT_EQ(with({{"rope_theta", 5e5}, {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {1, 1, 2}}}}}).rope_theta,
            5e5);
  EXPECT_EQ(with({{"rope_parameters", {{"rope_theta", 2e5}, {"rope_type", "default"}}}}).rope_theta, 2e5);
  EXPECT_EQ(with({}).rope_theta, 1e6);
  const Config inside = parse_config(nlohmann::json{{"model_type", "qwen2_5_vl"}, {"text_config", sizes}}.dump(), "c");
  EXPECT_EQ(inside.dim, 32);
  EXPECT_EQ(inside.eps, 1e-5);
  for (const nlohmann::json& other : {nlohmann::json{{"model_type", "qwen3"}},
                                      {{"hidden_act", "gelu"}},
                                      {{"use_sliding_window", true}},
                                      {{"num_key_value_heads", 3}},
                                      {{"num_attention_heads", 5}},
                                      {{"num_hidden_layers", 2}},
                                      {{"head_dim", 16}},
                                      {{"rope_scaling", {{"type", "yarn"}}}},
                                      {{"layer_types", {"sliding_attention"}}}})
    EXPECT_THROW(with(other), UserError) << other;
}

TEST(Qwen2, LaterTokensChangeNothingAndPromptsNothingOfEachOther) {
  const Qwen2 encoder(presets().back().second);
  const net::WeightMap weights = random_weights_of(encoder);
  std::vector<int64_t> prompt;
  for (int64_t i = 0; i < 30; ++i) prompt.push_back(5 + 7 * i);
  const std::vector<int64_t> beginning(prompt.begin(), prompt.begin() + 12);
  const at::Tensor both = net::run_plain(encoder.units(), weights, encoder.pack({prompt, beginning}));
  const at::Tensor one = net::run_plain(encoder.units(), weights, encoder.pack({prompt}));
  expect_close(both.slice(0, 0, 30), one, 1e-5, "beside another prompt");
  expect_close(both.slice(0, 30, 42), one.slice(0, 0, 12), 1e-5, "without the tokens that follow");
  EXPECT_GT((one[0] - one[1]).abs().max().item<double>(), 0.1);
  EXPECT_THROW(encoder.pack({{2048}}), UserError) << "an id outside the vocabulary";
}

}  // namespace tessera::models::qwen2
