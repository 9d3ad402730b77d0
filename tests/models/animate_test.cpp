#include "tessera/models/wan/animate.h"

#include "denoiser_golden.h"
#include "tessera/base/check.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::wan {

namespace {

const AnimateConfig& animate_preset(const std::string& wanted) {
  for (const auto& [name, config] : animate_presets())
    if (name == wanted) return config;
  throw std::out_of_range(wanted);
}

/// Random inputs, and weights instead of the zeros that the model begins with.
struct Lively {
  explicit Lively(const Animate& model) : model_(model) {
    at::manual_seed(3);
    for (const auto& unit : model.units())
      for (const auto& param : unit->spec().params) weights[param.name] = at::randn(param.shape) * 0.3;
  }
  net::Sample sample(int64_t frames, int64_t h, int64_t w) const {
    net::Sample sample = model_.blank({model_.config().base.out_dim, frames, h, w});
    sample.x = at::randn(sample.x.sizes());
    sample.context = at::randn({3, model_.context_dim()});
    for (auto& [name, value] : sample.extra) value = at::randn(value.sizes());
    return sample;
  }
  at::Tensor run(const std::vector<net::Sample>& samples, size_t s = 0) const {
    const net::Batch batch = model_.pack(samples);
    return model_.unpack(net::run_plain(model_.units(), weights, batch), batch).at(s);
  }
  const Animate& model_;
  net::WeightMap weights;
};

}  // namespace

TEST(Animate, ConfigsOfTheModelAreKnownAndComeBackAsTheyWere) {
  for (const auto& [name, config] : animate_presets()) {
    EXPECT_TRUE(is_animate_config(to_json(config)));
    EXPECT_EQ(parse_animate_config(to_json(config), "config.json"), config) << name;
    EXPECT_NE(dynamic_cast<Animate*>(make_denoiser({.preset = name}).get()), nullptr);
    EXPECT_NE(dynamic_cast<Animate*>(make_denoiser({.config_text = to_json(config)}).get()), nullptr);
  }
  EXPECT_FALSE(is_animate_config(R"({"model_type": "i2v"})"));
  const auto with = [](const char* key, const nlohmann::json& value) {
    auto json = nlohmann::json::parse(to_json(animate_preset("wan-animate-tiny")));
    json[key] = value;
    return json.dump();
  };
  for (const std::string& wrong : {with("num_layers", 6), with("motion_encoder_size", 12), with("use_img_emb", false),
                                   with("motion_dim", 11), with("inject_face_latents_blocks", 4)})
    EXPECT_THROW(parse_animate_config(wrong, "config.json"), UserError) << wrong;
  auto more = nlohmann::json::parse(with("motion_dim", 3));
  more["motion_encoder_channel_sizes"]["512"] = 7;  // of larger faces
  EXPECT_EQ(parse_animate_config(more.dump(), "config.json").channels, (std::vector<int64_t>{3, 4}));
}

TEST(Animate, OfficialFilesAreKnownWithTheirConstantsAndTheirFusedTensors) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("wan_animate");
  const auto model = make_denoiser({.config_text = golden.text("config.json")});
  ASSERT_NE(dynamic_cast<const Animate*>(model.get()), nullptr);
  Shapes shapes;
  for (const auto& [name, value] : golden.tensors("model.safetensors")) shapes[name] = value.sizes().vec();
  const Identity identity = identify(shapes);
  EXPECT_EQ(identity.variant, "animate");
  std::set<std::string> ours;
  for (const auto& [name, shape] : official_shapes(identity, shapes)) ours.insert(name);
  size_t constants = ours.size();
  for (const auto& unit : model->units())
    for (const auto& param : unit->spec().params) {
      EXPECT_TRUE(ours.contains(param.name)) << param.name;
      --constants;
    }
  EXPECT_EQ(constants, 4) << "kernels of two blocks";
}

TEST(Animate, ASamplesResultIsItsOwnWhateverIsBesideIt) {
  const at::NoGradGuard no_grad;
  const Animate model(animate_preset("wan-animate-tiny"));
  const Lively lively(model);
  const std::vector<net::Sample> samples = {lively.sample(2, 4, 4), lively.sample(4, 2, 6), lively.sample(3, 4, 2)};
  for (size_t s = 0; s < samples.size(); ++s)
    expect_close(lively.run(samples, s), lively.run({samples[s]}), 1e-4, std::to_string(s));
}

TEST(Animate, AFaceIsTheSameHoweverManyFramesAreEncodedAtOnce) {
  const at::NoGradGuard no_grad;
  AnimateConfig config = animate_preset("wan-animate-tiny");
  const Animate model(config);
  const Lively lively(model);
  const net::Tokens tokens;
  net::PlainContext ctx(lively.weights, "", tokens);
  for (const int64_t frames : {2, 3, 5, 7}) {
    const at::Tensor pixels = at::randn({face_frames(frames), 3, config.face_size, config.face_size});
    config.frames_at_once = pixels.size(0);
    const at::Tensor whole = encode_faces(ctx, config, pixels, {frames});
    for (const int64_t at_once : {1, 2, 3, 8, 100}) {
      config.frames_at_once = at_once;
      expect_close(encode_faces(ctx, config, pixels, {frames}), whole, 0,
                   std::to_string(frames) + " frames, at once " + std::to_string(at_once));
    }
  }
}

TEST(Animate, AFaceOfLaterFramesAndThePosesMatter) {
  const at::NoGradGuard no_grad;
  const Animate model(animate_preset("wan-animate-tiny"));
  const Lively lively(model);
  const net::Sample sample = lively.sample(3, 4, 4);
  const at::Tensor out = lively.run({sample});
  for (const char* name : {"face", "pose_latents", "y", "clip_fea"}) {
    net::Sample other = sample;
    other.extra[name] = at::randn(other.extra[name].sizes());  // a norm takes constants away
    EXPECT_GT((lively.run({other}) - out).abs().max().item<double>(), 1e-5) << name;
    other.extra.erase(name);
    EXPECT_THROW(model.pack({other}), UserError) << name;
  }
  net::Sample still = sample;
  still.x = still.x.slice(1, 0, 1);
  EXPECT_THROW(model.pack({still}), UserError) << "a picture of reference alone";
}

}  // namespace tessera::models::wan
