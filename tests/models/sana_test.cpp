#include "tessera/models/sana/spec.h"

#include <set>

#include "golden.h"
#include "ops/byte_count.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::sana {

namespace {

/// As files hold them under a naming: parts of one tensor together.
Shapes stored_shapes(const Sana& model, const std::string& naming) {
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

Shapes shapes_in(const nlohmann::json& tensors) {
  Shapes shapes;
  for (const auto& [name, shape] : tensors.items()) shapes[name] = shape.get<std::vector<int64_t>>();
  return shapes;
}

std::string refusal(const std::string& config) {
  try {
    parse_config(config, "config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

const std::vector<std::string> kTiny = {"sana-tiny", "sana-tiny-norms", "sana-tiny-sprint", "sana-tiny-video"};

net::WeightMap lively_weights(const Sana& model) {
  net::WeightMap weights;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) {
      const at::Tensor value = at::empty(param.shape, at::kFloat);
      model.initialise(param, 5, 0, param.numel(), value.mutable_data_ptr<float>());
      const bool silent = param.name.ends_with("t_conv.weight") || param.name == "cfg_embedder.mlp.2.weight";
      weights[param.name] = silent ? at::randn(param.shape) * 0.05 : value;
    }
  return weights;
}

net::Sample sample(const Config& c, int64_t h, int64_t w, int64_t words) {
  const int64_t frames = c.is_video() ? 3 : 1;
  return {.x = at::randn({c.in_channels, frames, h, w}), .t = 321.5, .context = at::randn({words, c.caption_dim})};
}

at::Tensor predict(const Sana& model, const net::WeightMap& weights, const net::Sample& sample) {
  const net::Batch batch = model.pack({sample});
  return model.unpack(net::run_plain(model.units(), weights, batch), batch)[0];
}

}  // namespace

TEST(Sana, EveryPublishedTensorHasItsNameAndShapeUnderBothNamings) {
  TESSERA_NEED_GOLDENS();
  for (const auto& [file, preset] : {std::pair{"sana_600m_1024", "sana-0.6b"},
                                     {"sana_1600m_1024", "sana-1.6b"},
                                     {"sana15_1600m_1024", "sana1.5-1.6b"},
                                     {"sana15_4800m_1024", "sana1.5-4.8b"},
                                     {"sana_sprint_600m_1024", "sana-sprint-0.6b"},
                                     {"sana_sprint_1600m_1024", "sana-sprint-1.6b"},
                                     {"sana_video_2b_480p", "sana-video-2b-480p"}}) {
    SCOPED_TRACE(file);
    auto published = nlohmann::json::parse(Golden("published_shapes").text(std::string(file) + ".json"));
    auto config = published.at("config");
    config["_class_name"] = published.at("_class_name");
    const Sana model(parse_config(config.dump(), file));
    EXPECT_EQ(model.config(), find_named(presets(), "model.preset", std::string(preset)));
    const Shapes diffusers = shapes_in(published.at("tensors"));
    Shapes official = shapes_in(published.at("original"));
    EXPECT_EQ(official.erase("y_embedder.y_embedding"), 1u) << "the caption of no words: no parameter";
    EXPECT_EQ(stored_shapes(model, "diffusers"), diffusers);
    EXPECT_EQ(stored_shapes(model, "official"), official);
    int64_t parameters = 0;
    for (const auto& unit : model.units())
      for (const auto& param : unit->spec().params) parameters += param.numel();
    EXPECT_EQ(parameters, published.at("parameters").get<int64_t>());
    for (const auto& [naming, shapes] : {std::pair{"official", official}, {"diffusers", diffusers}}) {
      const Identity what = identify(shapes);
      EXPECT_EQ(what.model + "|" + what.naming, std::string(preset) + "|" + naming);
      EXPECT_EQ(official_shapes(what, shapes), stored_shapes(model, "tessera")) << naming;
      const auto made = config_for("diffusers", what, official_shapes(what, shapes), config.dump(), "config.json");
      EXPECT_EQ(parse_config(made, "made").num_heads, model.config().num_heads);
      EXPECT_EQ(parse_config(made, "made").mlp_ratio, model.config().mlp_ratio);
    }
  }
}

TEST(Sana, MembersThatAreNotSupportedAreRefusedByName) {
  TESSERA_NEED_GOLDENS();
  const auto published = nlohmann::json::parse(Golden("published_shapes").text("sana_video_2b_720p_ltx2.json"));
  auto config = published.at("config");
  config["_class_name"] = published.at("_class_name");
  EXPECT_NE(refusal(config.dump()).find("720p"), std::string::npos) << refusal(config.dump());
  for (const char* type : {"SanaControlNetModel", "SanaVideoCausalTransformer3DModel", "SanaWMTransformer"}) {
    const std::string text = std::string(R"({"_class_name":")") + type + "\"}";
    EXPECT_NE(refusal(text).find("LongSANA"), std::string::npos) << refusal(text);
  }
  EXPECT_NE(
      refusal(
          R"({"num_attention_heads":1,"attention_head_dim":6,"num_cross_attention_heads":1,"interpolation_scale":1.0})")
          .find("not a multiple of 4"),
      std::string::npos);
  EXPECT_NE(refusal(R"({"num_attention_heads":3,"attention_head_dim":8,"num_cross_attention_heads":5})")
                .find("num_cross_attention_heads"),
            std::string::npos);
}

TEST(Sana, TheFamilyIsFoundByPresetAndClass) {
  EXPECT_EQ(make_denoiser({.preset = "sana-tiny"})->context_dim(), 20);
  const std::string config = to_json(find_named(presets(), "model.preset", "sana-tiny-video"));
  EXPECT_EQ(make_denoiser({.config_text = config})->config_json(), config);
  const auto changed = make_denoiser({.preset = "sana-tiny", .config_text = R"({"num_cross_attention_heads":4})"});
  EXPECT_EQ(changed->heads(), 4) << "of both attentions";
}

TEST(Sana, ConfigsComeBackAsTheyWereWritten) {
  for (const auto& [preset, config] : presets()) EXPECT_EQ(parse_config(to_json(config), preset), config) << preset;
  Config other = presets().front().second;
  other.attention_eps = 1e-8, other.cross_norm_eps = 1e-6, other.caption_len = 77;
  EXPECT_EQ(parse_config(to_json(other), "other"), other);
}

TEST(Sana, PackedSamplesComeOutAsTheyDoAlone) {
  for (const std::string& preset : kTiny) {
    const Sana model(find_named(presets(), "model.preset", preset));
    const net::WeightMap weights = lively_weights(model);
    const std::vector<net::Sample> samples = {sample(model.config(), 4, 6, 3), sample(model.config(), 6, 2, 6)};
    const net::Batch both = model.pack(samples);
    const auto together = model.unpack(net::run_plain(model.units(), weights, both), both);
    for (size_t i = 0; i < samples.size(); ++i)
      expect_close(together[i], predict(model, weights, samples[i]), 1e-5, preset);
  }
}

// A batch is packed while others are in flight, and the plan counts what a batch holds.
TEST(Sana, PackingTakesNoMemoryBesideWhatItReturns) {
  for (const std::string& name : {"sana-tiny-norms", "sana-tiny-sprint", "sana-tiny-video", "sana-1.6b-2k"}) {
    const Config config = find_named(presets(), "preset", name);
    Config shallow = config;
    shallow.num_layers = 1;
    const Sana model(shallow);
    const int64_t frames = shallow.is_video() ? 3 : 1;
    const std::vector<net::Sample> samples(2, model.blank({shallow.in_channels, frames, 6, 10}));
    const testing::ByteCount count(at::kCPU);
    const net::Batch batch = model.pack(samples);
    EXPECT_EQ(count.peak(), count.live()) << name;
    EXPECT_GE(count.live(), static_cast<int64_t>(batch.inputs[0].nbytes())) << name;
  }
}

TEST(Sana, GuidanceAndACleanFirstFrameChangeThePrediction) {
  const Sana sprint(find_named(presets(), "model.preset", "sana-tiny-sprint"));
  const net::WeightMap weights = lively_weights(sprint);
  net::Sample one = sample(sprint.config(), 4, 4, 3), other = one;
  other.extra["guidance"] = at::full({1}, 4.5);
  EXPECT_TRUE(predict(sprint, weights, one).equal(predict(sprint, weights, other))) << "what it is without one";
  other.extra["guidance"] = at::full({1}, 1.0);
  EXPECT_FALSE(predict(sprint, weights, one).equal(predict(sprint, weights, other)));

  const Sana video(find_named(presets(), "model.preset", "sana-tiny-video"));
  net::Sample clip = sample(video.config(), 4, 4, 3);
  clip.extra["image_latent"] = at::randn({4, 1, 4, 4});
  const net::Batch batch = video.pack({clip});
  EXPECT_EQ(batch.predictions_of(0), (std::array<int64_t, 2>{4, 12})) << "the first frame is given";
  EXPECT_TRUE(batch.inputs[0].slice(0, 0, 1).view({4, 2, 2})[0].equal(
      clip.extra["image_latent"][0][0].slice(0, 0, 2).slice(1, 0, 2)));
  const auto time = batch.tokens.rows.of_token;
  EXPECT_EQ(time[0].item<int>(), 1);
  EXPECT_EQ(time[4].item<int>(), 0);
}

}  // namespace tessera::models::sana
