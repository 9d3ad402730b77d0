#include "tessera/models/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/families/registry.h"
#include "tessera/models/vae/layer_runner.h"

namespace tessera::models {

namespace {

void expect_error(Exit code, const std::string& text, const std::function<void()>& act) {
  try {
    act();
    ADD_FAILURE() << "no error; expected one with '" << text << "'";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

}  // namespace

TEST(Registry, EveryPresetMakesAModel) {
  for (const auto& preset : denoiser_presets()) {
    const auto model = make_denoiser({.preset = preset});
    EXPECT_GE(model->units().size(), 3u) << preset;
    EXPECT_EQ(model->units().front()->spec().kind, "stem");
  }
}

/// Deviation of a parameter's initial values, of some thousands of them.
double initial_deviation(const net::Denoiser& model, const std::string& name, double* fan_in, double* fan_out) {
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params) {
      if (param.name != name) continue;
      *fan_out = static_cast<double>(param.shape.front());
      *fan_in = static_cast<double>(param.numel()) / *fan_out;
      const at::Tensor some = at::empty({std::min<int64_t>(param.numel(), 20000)}, at::kFloat);
      model.initialise(param, 7, param.numel() - some.numel(), some.numel(), some.mutable_data_ptr<float>());
      return some.std().item<double>();
    }
  ADD_FAILURE() << "no parameter " << name;
  return 0;
}

/// A release's begin as its own program draws them. A narrow model with such small ones would hardly hear its text.
TEST(Registry, EmbeddingsBeginAsWideAsTheModelUnlessItIsARelease) {
  constexpr double kNormal = 0.02, kOwnUniform = -1, kByWidth = 0;
  struct Row {
    const char *preset, *fields, *param;
    double expected;
  };
  const Row rows[] = {
      {"wan2.1-t2v-1.3b", "", "text_embedding.0.weight", kNormal},
      {"wan2.1-t2v-1.3b", "", "time_embedding.2.weight", kNormal},
      {"wan2.2-i2v-a14b", "", "text_embedding.2.weight", kNormal},
      {"wan2.2-s2v-14b", "", "text_embedding.0.weight", kNormal},
      {"sana-1.6b", "", "y_embedder.y_proj.fc1.weight", kNormal},
      {"sana1.5-4.8b", "", "t_block.1.weight", kNormal},
      {"opensora1.2", "", "fps_embedder.mlp.0.weight", kNormal},
      {"opensora2-11b", "", "txt_in.weight", kOwnUniform},
      {"opensora2-11b", "", "vector_in.out_layer.weight", kOwnUniform},
      {"wan2.1-t2v-1.3b", R"({"num_layers": 2})", "text_embedding.0.weight", kByWidth},
      {"wan-101b", "", "text_embedding.0.weight", kByWidth},
      {"wan-demo", "", "text_embedding.0.weight", kByWidth},
      {"wan-demo", R"({"text_dim": 4096})", "text_embedding.0.weight", kByWidth},
      {"wan-demo", "", "time_embedding.2.weight", kByWidth},
      {"wan-s2v-demo", "", "text_embedding.2.weight", kByWidth},
      {"sana-demo", "", "y_embedder.y_proj.fc1.weight", kByWidth},
      {"sana-demo", "", "t_embedder.mlp.0.weight", kByWidth},
      {"sana-demo", "", "t_block.1.weight", kByWidth},
      {"opensora-demo", "", "txt_in.weight", kByWidth},
      {"opensora-demo", "", "time_in.in_layer.weight", kByWidth},
      {"opensora-demo", "", "vector_in.out_layer.weight", kByWidth},
      {"hunyuan-demo", "", "txt_in.input_embedder.weight", kByWidth},
      {"hunyuan-demo", "", "time_in.mlp.2.weight", kByWidth},
      {"opensora1.2", R"({"depth": 2})", "fps_embedder.mlp.0.weight", kByWidth},
      {"opensora1.2", R"({"depth": 2})", "y_embedder.y_proj.fc1.weight", kByWidth},
  };
  for (const auto& [preset, fields, param, expected] : rows) {
    const auto model = make_denoiser({.preset = preset, .config_text = fields});
    double in = 0, out = 0;
    const double found = initial_deviation(*model, param, &in, &out);
    const double by_width = std::min(1.28 / std::sqrt(in), std::sqrt(2 / (in + out)));
    const double wanted = expected == kByWidth ? by_width : expected == kOwnUniform ? 1 / std::sqrt(3 * in) : expected;
    EXPECT_NEAR(found / wanted, 1, 0.03) << preset << " " << fields << " " << param;
  }
}

TEST(Registry, UnknownNamesAnswerWithTheNearest) {
  expect_error(Exit::usage, "did you mean wan2.1-t2v-1.3b?", [] { make_denoiser({.preset = "wan2.1-t2v-1.3"}); });
  expect_error(Exit::usage, "did you mean wan?", [] { make_denoiser({.family = "wam"}); });
  expect_error(Exit::usage, "did you mean umt5-xxl?", [] { make_text_encoder({.preset = "umt5-xl"}); });
  expect_error(Exit::usage, "did you mean haar?", [] { make_codec("harr"); });
  expect_error(Exit::usage, "number of channels", [] { make_codec("haar:many"); });
  expect_error(Exit::usage, "neither preset nor path", [] { make_denoiser({}); });
}

TEST(Registry, ReleasedAutoencodersAreKnownByNameWithTheirSizes) {
  std::vector<std::string> named;
  for (const families::Family& family : families::all())
    named.insert(named.end(), family.autoencoders.begin(), family.autoencoders.end());
  EXPECT_EQ(named, autoencoder_presets()) << "recipes' help lists what there is";
  // parameters of the released files, and the shape of a latent of as many frames as each takes
  struct Expected {
    int64_t parameters, frames;
    std::array<int64_t, 4> latent;
  };
  const std::map<std::string, Expected> expected = {
      {"wan2.1-vae", {126892531, 5, {16, 2, 16, 24}}},        {"wan2.2-vae", {704688668, 5, {48, 2, 8, 12}}},
      {"dc-ae-f32c32", {312250275, 5, {32, 5, 4, 6}}},        {"hunyuan-vae", {246478803, 5, {16, 2, 16, 24}}},
      {"dc-ae-f32t4c128", {459462147, 8, {128, 2, 4, 6}}},    {"opensora1.2-vae", {393341007, 17, {4, 5, 16, 24}}},
      {"opensora1.3-vae", {259163811, 33, {16, 10, 16, 24}}}, {"hunyuan15-vae", {1260634115, 5, {32, 2, 8, 12}}},
  };
  for (const std::string& name : named) {
    const auto vae = make_preset_vae(name, {});
    ASSERT_TRUE(vae) << name;
    ASSERT_TRUE(expected.contains(name)) << name;
    const auto& [parameters, frames, latent] = expected.at(name);
    EXPECT_EQ(vae->weight_bytes(), 4 * parameters) << name;
    EXPECT_EQ(vae->latent_shape(frames, 128, 192), latent) << name;
  }
  EXPECT_FALSE(make_preset_vae("haar", {}));
}

TEST(Registry, RandomTensorsKeepTheSizeOfWhatGoesThrough) {
  const at::Tensor weight = random_tensor("conv.weight", {64, 16, 3, 3});
  EXPECT_NEAR(weight.std().item<double>(), 1. / 12, 0.003);
  EXPECT_TRUE(at::equal(weight, random_tensor("conv.weight", {64, 16, 3, 3}))) << "the same in every process";
  EXPECT_FALSE(at::equal(weight, random_tensor("other.weight", {64, 16, 3, 3})));
  EXPECT_TRUE(at::equal(random_tensor("norm.gamma", {64, 1, 1}), at::ones({64, 1, 1})));
  EXPECT_TRUE(at::equal(random_tensor("conv.bias", {64}), at::zeros({64})));
}

TEST(Registry, SizesComeFromTheConfigBesideTheWeights) {
  const auto folder = std::filesystem::temp_directory_path() / ("tessera-registry-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / "transformer");
  expect_error(Exit::input, "no config.json", [&] { make_denoiser({.path = folder.string()}); });
  const auto tiny = make_denoiser({.preset = "wan-tiny"});
  std::ofstream(folder / "transformer" / "config.json") << tiny->config_json();
  const auto read = make_denoiser({.path = folder.string()});
  EXPECT_EQ(read->units().size(), tiny->units().size());
  EXPECT_EQ(read->context_dim(), tiny->context_dim());
  expect_error(Exit::input, "cannot be opened", [&] { make_denoiser({.config = (folder / "none.json").string()}); });
  std::filesystem::remove_all(folder);
}

namespace {

/// The tensors of a model, by their names in a file of its program.
Shapes file_of(const net::Denoiser& model, const std::string& prefix = {}) {
  Shapes shapes;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params) shapes[prefix + param.name] = param.shape;
  return shapes;
}

std::string field(const net::Denoiser& model, const char* key) {
  return nlohmann::json::parse(model.config_json()).at(key).dump();
}

}  // namespace

/// A file alone, of sizes that no preset has: what shapes tell is taken from them, the rest is asked for by its key.
TEST(Registry, SizesComeFromTheShapesOfAFileAlone) {
  const std::string beside = "/nowhere/model.safetensors";
  const auto pruned = make_denoiser({.config_text = R"({"dim": 1536, "ffn_dim": 8960, "num_heads": 12, "num_layers": 7,
                                                         "freq_dim": 256, "text_dim": 4096, "in_dim": 36, "out_dim": 16,
                                                         "model_type": "i2v"})"});
  const auto found =
      make_denoiser({.path = beside, .weights = file_of(*pruned, "model.diffusion_model.")});  // as ComfyUI has it
  EXPECT_EQ(found->config_json(), pruned->config_json());

  const std::string other = R"({"dim": 64, "ffn_dim": 96, "num_heads": 4, "num_layers": 3, "freq_dim": 32,
                                "text_dim": 24, "text_len": 9, "in_dim": 4, "out_dim": 4})";
  const auto small = make_denoiser({.config_text = other});
  const Shapes weights = file_of(*small);
  expect_error(Exit::usage, "model.config.num_heads, model.config.text_len",
               [&] { make_denoiser({.path = beside, .weights = weights}); });
  expect_error(Exit::usage, "model.config.text_len",
               [&] { make_denoiser({.path = beside, .config_text = R"({"num_heads": 4})", .weights = weights}); });
  const auto told =
      make_denoiser({.path = beside, .config_text = R"({"num_heads": 4, "text_len": 9})", .weights = weights});
  EXPECT_EQ(told->config_json(), small->config_json());

  const auto sana = make_denoiser({.preset = "sana-tiny", .config_text = R"({"num_layers": 3})"});
  const std::string heads = R"({"num_attention_heads": )" + field(*sana, "num_attention_heads") +
                            R"(, "num_cross_attention_heads": )" + field(*sana, "num_cross_attention_heads") +
                            R"(, "caption_length": )" + field(*sana, "caption_length") + R"(, "sample_size": )" +
                            field(*sana, "sample_size") + "}";
  expect_error(Exit::usage, "model.config.num_attention_heads",
               [&] { make_denoiser({.path = beside, .weights = file_of(*sana)}); });
  EXPECT_EQ(make_denoiser({.path = beside, .config_text = heads, .weights = file_of(*sana)})->units().size(),
            sana->units().size());
}

TEST(Registry, FieldsOfTheRecipeReplaceThoseOfThePreset) {
  const auto wider = make_denoiser({.preset = "wan-tiny", .config_text = R"({"in_dim": 8, "out_dim": 8})"});
  EXPECT_EQ(wider->in_channels(), 8);
  EXPECT_EQ(wider->context_dim(), make_denoiser({.preset = "wan-tiny"})->context_dim());
  const auto alone = make_denoiser({.config_text = R"({"dim": 16, "ffn_dim": 32, "num_heads": 2, "num_layers": 1})"});
  EXPECT_EQ(alone->units().size(), 3u);
  expect_error(Exit::usage, "dim is missing", [] { make_denoiser({.config_text = R"({"num_heads": 2})"}); });
}

TEST(Registry, EpsilonsAreAboveZero) {
  const std::string sizes = R"("dim": 16, "ffn_dim": 32, "num_heads": 2, "num_layers": 1)";
  for (const char* eps : {"0", "-1e-6"})
    expect_error(Exit::usage, "eps is ",
                 [&] { make_denoiser({.config_text = "{" + sizes + ", \"eps\": " + eps + "}"}); });
  for (const char* eps : {"norm_eps", "cross_attention_norm_eps"})
    expect_error(Exit::usage, std::string(eps) + " is 0",
                 [&] { make_denoiser({.preset = "sana-0.6b", .config_text = std::string("{\"") + eps + "\": 0}"}); });
}

TEST(Registry, WhatAFamilysDataNamesCanBeMade) {
  const std::vector<std::string> presets = denoiser_presets();
  for (const families::Family& family : families::all()) {
    EXPECT_NE(std::ranges::find(families(), family.name, &Family::name), families().end()) << family.name;
    EXPECT_NE(std::ranges::find(presets, family.preset), presets.end()) << family.preset;
    EXPECT_GT(make_text_encoder({.preset = family.text_encoder})->dim(), 0);
    EXPECT_TRUE(is_built_in_codec(family.codec)) << family.codec;
    bool hears = family.audio_encoder.empty();
    for (const AudioEncoderMake& make : audio_encoders())
      for (const auto& [name, sizes] : make.presets()) hears = hears || name == family.audio_encoder;
    EXPECT_TRUE(hears) << family.audio_encoder;
  }
}

TEST(Registry, AForeignShapeNamesTheLikelyPreset) {
  EXPECT_EQ(likely_preset("blocks.0.ffn.0.weight", {8960, 1536}), "wan2.1-t2v-1.3b");
  EXPECT_EQ(likely_preset("blocks.0.ffn.0.weight", {13824, 5120}), "wan2.1-t2v-14b");
  EXPECT_EQ(likely_preset("blocks.0.ffn.0.weight", {1, 2}), "");
}

TEST(Registry, CodecsTakeTheirChannelsAfterAColon) {
  EXPECT_EQ(make_codec("haar")->latent_shape(4, 8, 8)[0], 48);
  EXPECT_EQ(make_codec("haar:96")->latent_shape(4, 8, 8)[0], 96);
}

}  // namespace tessera::models
