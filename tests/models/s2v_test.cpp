#include "tessera/models/wan/s2v.h"

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/registry.h"
#include "tessera/models/wan/s2v_network.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::wan {

namespace {

const S2vConfig& preset(const std::string& wanted) {
  for (const auto& [name, config] : s2v_presets())
    if (name == wanted) return config;
  throw std::out_of_range(wanted);
}

/// Random weights instead of the zeros that the model begins with.
net::WeightMap lively_weights(const S2v& model) {
  at::manual_seed(3);
  net::WeightMap weights;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) weights[param.name] = at::randn(param.shape) * 0.2;
  return weights;
}

net::Sample sample(const S2vConfig& c, int64_t frames, int64_t h, int64_t w, int64_t motion = 0) {
  net::Sample sample;
  sample.x = at::randn({c.base.in_dim, 1 + frames, h, w});
  sample.t = 321.5;
  sample.context = at::randn({3, c.base.text_dim});
  sample.extra["audio"] = at::randn({kAudioLayers, kAudioPerFrame * frames, c.audio_dim});
  sample.extra["pose"] = at::randn({c.cond_dim, 1 + frames, h, w});
  if (motion > 0) sample.extra["motion"] = at::randn({c.base.in_dim, motion, h, w});
  return sample;
}

at::Tensor run(const S2v& model, const net::WeightMap& weights, const std::vector<net::Sample>& samples, size_t s = 0) {
  const net::Batch batch = model.pack(samples);
  return model.unpack(net::run_plain(model.units(), weights, batch), batch).at(s);
}

net::Sample golden_sample(const TensorMap& t, int64_t i, bool motion) {
  const std::string n = "." + std::to_string(i);
  const auto after_picture = [](const at::Tensor& x) { return at::constant_pad_nd(x, {0, 0, 0, 0, 1, 0}); };
  net::Sample sample;
  sample.x = at::cat({t.at("in.ref_latents" + n), t.at("in.x" + n)}, 1);
  sample.t = t.at("in.t")[i].item<double>();
  sample.context = t.at("in.context" + n);
  sample.extra["audio"] = t.at("in.audio_input")[i].transpose(1, 2).contiguous();
  sample.extra["pose"] = after_picture(t.at("in.cond_states" + n));
  if (motion) sample.extra["motion"] = t.at("in.motion_latents" + n);
  return sample;
}

}  // namespace

TEST(S2v, OutputsMatchTheReferenceWithFewWithManyAndWithoutFramesBefore) {
  TESSERA_NEED_GOLDENS();
  const at::NoGradGuard no_grad;
  const Golden golden("wan22_s2v");
  const S2v model(parse_s2v_config(golden.text("config.json"), "config.json"));
  const TensorMap stored = golden.tensors("model.safetensors");
  const net::WeightMap weights(stored.begin(), stored.end());
  size_t parameters = 0;
  for (const auto& unit : model.units()) parameters += unit->spec().params.size();
  EXPECT_EQ(parameters, stored.size());
  for (const std::string file : {"case.safetensors", "case_short.safetensors", "case_drop_b2.safetensors"}) {
    const TensorMap tensors = golden.tensors(file);
    std::vector<net::Sample> samples;
    for (int64_t i = 0; i < tensors.at("in.t").size(0); ++i)
      samples.push_back(golden_sample(tensors, i, file.find("drop") == file.npos));
    for (size_t i = 0; i < samples.size(); ++i)
      expect_close(run(model, weights, samples, i).slice(1, 1), tensors.at("out." + std::to_string(i)),
                   golden.tolerance("out"), file + " out." + std::to_string(i));
  }
}

TEST(S2v, TheReleasedModelHasThePublishedNumberOfParameters) {
  const S2v model(preset("wan2.2-s2v-14b"));
  int64_t count = 0, tensors = 0, injector = 0;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) {
      count += param.numel(), ++tensors;
      if (param.name.starts_with("audio_injector.")) injector += param.numel();
    }
  EXPECT_EQ(count, 16295755609);
  EXPECT_EQ(injector, 1887928320);
  EXPECT_EQ(tensors, 1260);
}

TEST(S2v, ConfigsOfTheModelAreKnownAndComeBackAsTheyWere) {
  for (const auto& [name, config] : s2v_presets()) {
    EXPECT_TRUE(is_s2v_config(to_json(config)));
    EXPECT_EQ(parse_s2v_config(to_json(config), "config.json"), config) << name;
    EXPECT_NE(dynamic_cast<S2v*>(make_denoiser({.preset = name}).get()), nullptr);
    EXPECT_NE(dynamic_cast<S2v*>(make_denoiser({.config_text = to_json(config)}).get()), nullptr);
  }
  EXPECT_FALSE(is_s2v_config(R"({"model_type": "t2v"})"));
  const std::string other = R"({"model_type": "s2v", "dim": 48, "ffn_dim": 96, "num_heads": 3, "num_layers": 4,
                                "audio_inject_layers": [0, 4]})";
  EXPECT_THROW(parse_s2v_config(other, "config.json"), UserError);
}

TEST(S2v, AtFirstSoundChangesNothingAndItsOutputsLearn) {
  const at::NoGradGuard no_grad;
  const S2vConfig& c = preset("wan-s2v-tiny");
  const S2v model(c);
  net::WeightMap weights;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) {
      const at::Tensor value = at::empty(param.shape, at::kFloat);
      model.initialise(param, 5, 0, param.numel(), value.mutable_data_ptr<float>());
      weights[param.name] = value;
    }
  weights["head.head.weight"] = at::randn(weights["head.head.weight"].sizes());
  net::Sample heard = sample(c, 2, 4, 4), silent = heard;
  silent.extra.erase("audio");
  silent.extra.erase("pose");
  EXPECT_TRUE(run(model, weights, {heard}).equal(run(model, weights, {silent})));
  weights["audio_injector.injector.0.o.weight"].normal_();
  EXPECT_FALSE(run(model, weights, {heard}).allclose(run(model, weights, {silent})));
}

TEST(S2v, SamplesOfABatchDoNotSeeEachOther) {
  const at::NoGradGuard no_grad;
  const S2vConfig& c = preset("wan-s2v-tiny");
  const S2v model(c);
  const net::WeightMap weights = lively_weights(model);
  for (const int64_t motion : {0, 19, 3}) {
    const net::Sample one = sample(c, 2, 8, 8, motion), other = sample(c, 3, 8, 16, motion);
    expect_close(run(model, weights, {one, other}, 0), run(model, weights, {one}), 2e-5, "first");
    expect_close(run(model, weights, {one, other}, 1), run(model, weights, {other}), 2e-5, "second");
  }
}

TEST(S2v, ThePictureIsCleanWhateverTheNoiseAndPredictsNothing) {
  const at::NoGradGuard no_grad;
  const S2vConfig& c = preset("wan-s2v-tiny");
  const S2v model(c);
  const net::WeightMap weights = lively_weights(model);
  net::Sample given = sample(c, 2, 4, 4);
  const at::Tensor out = run(model, weights, {given});
  EXPECT_TRUE(out.select(1, 0).eq(0).all().item<bool>());
  given.extra["image_latent"] = given.x.slice(1, 0, 1).clone();
  given.x.select(1, 0).fill_(1e3);
  EXPECT_TRUE(run(model, weights, {given}).equal(out));
}

TEST(S2v, SoundIsHeardByTheFramesFromItsTimeOn) {
  const at::NoGradGuard no_grad;
  const S2vConfig& c = preset("wan-s2v-tiny");
  const S2v model(c);
  const net::WeightMap weights = lively_weights(model);
  const net::Batch batch = model.pack({sample(c, 4, 4, 4)});
  net::PlainContext ctx(weights, "", batch.tokens);
  const at::Tensor states = batch.inputs[5];
  const auto [local, global] = encode_audio(ctx, c, states, {4});
  EXPECT_EQ(local.sizes(), at::IntArrayRef({4 * c.audio_tokens(), c.base.dim}));
  for (int64_t row = 0; row < states.size(1); ++row) {
    at::Tensor changed = states.clone();
    changed.select(1, row).add_(1);
    const auto [other, other_global] = encode_audio(ctx, c, changed, {4});
    // a frame's tokens end with the row that is its last; the first row also stands for all before it
    const int64_t first = row / kAudioPerFrame;
    EXPECT_TRUE(other_global.slice(0, 0, first).equal(global.slice(0, 0, first))) << row;
    EXPECT_FALSE(other_global[first].allclose(global[first])) << row;
  }
}

TEST(S2v, FramesBeforeTheClipAreFewerAndCoarserTheOlderTheyAre) {
  const std::vector<Grid> grids = motion_grids(4, 8);  // a latent of 8 x 16
  EXPECT_EQ(grids[0].times, std::vector<int64_t>{-1});
  EXPECT_EQ(grids[1].times, std::vector<int64_t>{-3});
  EXPECT_EQ(grids[2].times, (std::vector<int64_t>{-19, -14, -9, -4}));
  EXPECT_EQ(grids[0].columns, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(grids[1].columns, (std::vector<int64_t>{0, 2, 4, 7}));  // 7 / 3 apart, truncated
  EXPECT_EQ(grids[2].rows, std::vector<int64_t>{0});
  // 1024 x 704 pixels: 4224 tokens of motion, as published
  int64_t count = 0;
  for (const Grid& grid : motion_grids(64, 44)) count += grid.count();
  EXPECT_EQ(count, 4224);
}

TEST(S2v, ShapesThatDoNotFitAreRefusedByName) {
  const S2vConfig& c = preset("wan-s2v-tiny");
  const S2v model(c);
  net::Sample wrong = sample(c, 2, 4, 4);
  wrong.extra["audio"] = at::zeros({kAudioLayers, 7, c.audio_dim});
  try {
    model.pack({wrong});
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("audio [25, 7, 32]: expected [25, 8, 32]"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(model.pack({sample(c, 2, 4, 4, 19)}), UserError) << "motion is packed in cells of 8 x 8";
  EXPECT_THROW(model.pack({sample(c, 0, 4, 4)}), UserError) << "no frame but the picture";
}

TEST(S2v, IsKnownByItsTensors) {
  Shapes shapes;
  const S2v model(preset("wan2.2-s2v-14b"));
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) shapes[param.name] = param.shape;
  const Identity what = identify(shapes);
  EXPECT_EQ(what.variant, "s2v");
  EXPECT_EQ(what.model, "wan2.2-s2v-14b");
}

}  // namespace tessera::models::wan
