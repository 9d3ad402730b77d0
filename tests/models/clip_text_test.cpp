#include "tessera/models/encoders/clip_text.h"

#include <map>

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::clip_text {

namespace {

net::WeightMap random_weights(const ClipText& encoder) {
  net::WeightMap weights;
  for (const auto& unit : encoder.units())
    for (const auto& param : unit->spec().params) {
      weights[param.name] = at::empty(param.shape, at::kFloat);
      encoder.initialise(param, 1, 0, param.numel(), weights[param.name].mutable_data_ptr<float>());
    }
  return weights;
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::input);
    return error.what();
  }
  return "";
}

}  // namespace

TEST(ClipText, HiddenStatesAndThePooledRowAreAsRecorded) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("clip_text");
  const ClipText encoder(parse_config(golden.text("config.json"), "config.json"));
  net::WeightMap weights;
  for (auto& [name, value] : golden.tensors("model.safetensors")) weights[name] = value;
  const TensorMap recorded = golden.tensors("case.safetensors");
  const at::Tensor ids = recorded.at("in.input_ids");
  for (int64_t b = 0; b < ids.size(0); ++b) {
    const std::vector<int64_t> padded(ids[b].const_data_ptr<int64_t>(), ids[b].const_data_ptr<int64_t>() + ids.size(1));
    const int64_t last = encoder.pooled_row(padded);
    const std::vector<int64_t> prompt(padded.begin(), padded.begin() + last + 1);  // as runs encode it, unpadded
    const at::Tensor hidden = net::run_plain(encoder.units(), weights, encoder.pack({prompt}));
    const at::Tensor rows = recorded.at("out.last_hidden_state")[b].slice(0, 0, last + 1);
    const double bound = 1e-4 * rows.abs().max().item<double>() + 1e-6;
    expect_close(hidden, rows, bound, "last_hidden_state");
    expect_close(hidden[encoder.pooled_row(prompt)], recorded.at("out.pooler_output")[b], bound, "pooler_output");
  }
}

TEST(ClipText, TheReleasedEncoderHasThePublishedSize) {
  const auto encoder = make_text_encoder({.preset = "clip-l"});
  int64_t numel = 0;
  size_t tensors = 0;
  for (const auto& unit : encoder->units())
    for (const auto& param : unit->spec().params) numel += param.numel(), ++tensors;
  EXPECT_EQ(numel, 123060480);
  EXPECT_EQ(tensors, 196u);
  EXPECT_EQ(encoder->dim(), 768);
  EXPECT_EQ(encoder->most_tokens(), 77);
  std::map<std::string, int64_t> pooled;  // encoders without a pooled row are not among them
  for (const auto& [preset, width] : pooled_presets()) pooled[preset] = width;
  EXPECT_EQ(pooled, (std::map<std::string, int64_t>{{"clip-l", 768}, {"clip-text-demo", 32}}));
}

TEST(ClipText, ItsFilesAreKnownByTheirTensorsAndConfig) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("clip_text");
  Shapes shapes;
  for (const auto& [name, tensor] : golden.tensors("model.safetensors")) shapes[name] = tensor.sizes().vec();
  const Identity what = identify(shapes);
  EXPECT_EQ(what.model, "clip-text");
  EXPECT_EQ(what.kind, ModelKind::text_encoder);
  const auto made = nlohmann::json::parse(config_for("diffusers", what, shapes, golden.text("config.json"), "c"));
  const auto wanted = nlohmann::json::parse(golden.text("config.json"));
  for (const auto& [key, value] : wanted.items()) EXPECT_EQ(made.value(key, nlohmann::json()), value) << key;
  EXPECT_EQ(make_text_encoder({.config = golden.path("config.json").string()})->dim(), 32);
  const std::string words = refusal([] { parse_config(R"({"hidden_act": "gelu", "hidden_size": 8})", "config.json"); });
  EXPECT_NE(words.find("quick_gelu"), std::string::npos) << words;
}

TEST(ClipText, LaterTokensChangeNothingAndLongPromptsAreRefused) {
  const ClipText encoder(presets().back().second);
  const net::WeightMap weights = random_weights(encoder);
  const std::vector<int64_t> prompt = {5, 17, 1, 900, 30}, beginning(prompt.begin(), prompt.begin() + 3);
  const at::Tensor both = net::run_plain(encoder.units(), weights, encoder.pack({prompt, beginning}));
  expect_close(both.slice(0, 5, 8), both.slice(0, 0, 3), 1e-5, "without the tokens that follow");
  EXPECT_EQ(encoder.pooled_row(prompt), 2) << "its end token is 1";
  EXPECT_EQ(ClipText(presets().front().second).pooled_row({49406, 320, 49407, 49407}), 2) << "the first of the largest";
  EXPECT_GT((both[2] - both[1]).abs().max().item<double>(), 0.1);
  const std::string words = refusal([&] { encoder.pack({std::vector<int64_t>(78, 4)}); });
  EXPECT_NE(words.find("78 tokens, the encoder takes 77"), std::string::npos) << words;
  EXPECT_NE(refusal([&] { encoder.pack({{2048}}); }).find("ids below"), std::string::npos);
}

}  // namespace tessera::models::clip_text
