#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/common/camera_rays.h"
#include "tessera/models/registry.h"
#include "tessera/models/wan/network.h"
#include "tessera/models/wan/spec.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::wan {

namespace {

const std::vector<std::string> kTinyFun = {"wan-tiny-fun-control", "wan-tiny-fun-camera", "wan-tiny-fun-control-2.2",
                                           "wan-tiny-fun-control-5b"};

const Config& fun_size(const std::string& name) {
  for (const auto& [preset, config] : presets())
    if (preset == name) return config;
  throw std::out_of_range(name);
}

net::WeightMap weights_of(const Wan& model) {
  net::WeightMap weights;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) weights[param.name] = 0.2 * at::randn(param.shape);
  return weights;
}

/// A camera that turns and moves a little in each frame.
at::Tensor camera(int64_t frames) {
  at::Tensor all = at::zeros({frames, kCameraNumbers}, at::kFloat);
  for (int64_t f = 0; f < frames; ++f) {
    const double turn = 0.1 * static_cast<double>(f);
    const std::vector<double> numbers = {20, 21, 9, 8,    std::cos(turn),  0, std::sin(turn), turn,
                                         0,  1,  0, turn, -std::sin(turn), 0, std::cos(turn), -turn};
    all[f].copy_(at::tensor(numbers, at::kFloat));
  }
  return all;
}

net::Sample sample(const Config& c, int64_t f, int64_t h, int64_t w) {
  net::Sample sample = Wan(c).blank({c.out_dim, f, h, w});
  sample.x = at::randn({c.out_dim, f, h, w});
  sample.context = at::randn({3, c.text_dim});
  for (auto& [name, value] : sample.extra) value = name == "camera" ? camera(value.size(0)) : at::randn(value.sizes());
  return sample;
}

at::Tensor fun_predict(const Wan& model, const net::WeightMap& weights, const net::Sample& sample) {
  const net::Batch batch = model.pack({sample});
  return model.unpack(net::run_plain(model.units(), weights, batch), batch)[0];
}

std::string refused(const std::string& json) {
  try {
    parse_config(json, "case/config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(WanFun, SamplesOfSeveralSizesComeOutAsTheyDoAlone) {
  for (const std::string& preset : kTinyFun) {
    const Wan model(fun_size(preset));
    const net::WeightMap weights = weights_of(model);
    std::vector<net::Sample> samples = {sample(model.config(), 3, 4, 6), sample(model.config(), 1, 6, 2),
                                        sample(model.config(), 2, 2, 2)};
    samples[1].extra.erase("reference");  // a batch in which some samples have one
    samples[2].extra.erase("camera");
    const net::Batch batch = model.pack(samples);
    const auto together = model.unpack(net::run_plain(model.units(), weights, batch), batch);
    for (size_t i = 0; i < samples.size(); ++i)
      expect_close(together[i], fun_predict(model, weights, samples[i]), 1e-4, preset);
  }
}

TEST(WanFun, EveryConditionChangesThePrediction) {
  for (const std::string& preset : kTinyFun) {
    const Wan model(fun_size(preset));
    const net::WeightMap weights = weights_of(model);
    const net::Sample all = sample(model.config(), 2, 4, 4);
    const at::Tensor out = fun_predict(model, weights, all);
    for (const auto& [name, value] : all.extra) {
      net::Sample changed = all;
      changed.extra[name] = name == "camera" ? camera(9).slice(0, 4) : at::randn(value.sizes());
      EXPECT_GT((fun_predict(model, weights, changed) - out).abs().max().item<double>(), 1e-4) << preset << " " << name;
    }
  }
}

TEST(WanFun, NoReferenceIsAnotherThingThanALatentOfZeros) {
  const Wan model(fun_size("wan-tiny-fun-control"));
  const net::WeightMap weights = weights_of(model);
  net::Sample zeros = sample(model.config(), 2, 4, 4), none = zeros;
  zeros.extra["reference"].zero_();
  none.extra.erase("reference");
  EXPECT_EQ(model.pack({zeros}).tokens.total(), 12);
  EXPECT_EQ(model.pack({none}).tokens.total(), 8);
  EXPECT_GT((fun_predict(model, weights, zeros) - fun_predict(model, weights, none)).abs().max().item<double>(), 1e-4);
}

TEST(WanFun, AnAbsentControlOrStartIsALatentOfZeros) {
  for (const char* preset : {"wan-tiny-fun-control", "wan-tiny-fun-control-2.2"}) {
    const Wan model(fun_size(preset));
    const Config& c = model.config();
    const net::WeightMap weights = weights_of(model);
    const net::Sample whole = sample(c, 2, 4, 4);
    const int64_t control = c.control_channels();
    net::Sample parts = whole;
    parts.extra["control"] = whole.extra.at("y").slice(0, 0, control);
    parts.extra["y"] = whole.extra.at("y").slice(0, control);
    expect_close(fun_predict(model, weights, parts), fun_predict(model, weights, whole), 1e-6, "in two parts");
    for (const bool of_control : {false, true}) {
      net::Sample absent = parts, zeros = whole;
      absent.extra.erase(of_control ? "control" : "y");
      zeros.extra["y"] = whole.extra.at("y").clone();
      zeros.extra["y"].slice(0, of_control ? 0 : control, of_control ? control : c.y_dim()).zero_();
      expect_close(fun_predict(model, weights, absent), fun_predict(model, weights, zeros), 1e-6, "absent");
    }
  }
}

TEST(WanFun, AReferencesTokensHaveTheTimestepOfTheClipsLastToken) {
  const Wan model(fun_size("wan-tiny-fun-control-5b"));
  net::Sample clean = sample(model.config(), 2, 2, 2);
  clean.extra["image_latent"] = at::randn({model.config().out_dim, 1, 2, 2});
  const net::Batch batch = model.pack({clean});  // tokens: first frame, second frame, reference
  const at::Tensor rows = batch.tokens.rows.of_token;
  EXPECT_NE(rows[0].item<int64_t>(), rows[1].item<int64_t>());
  EXPECT_EQ(rows[1].item<int64_t>(), rows[2].item<int64_t>());
  ASSERT_EQ(batch.predicted.size(), 1U);
  EXPECT_EQ(batch.predicted[0], (std::array<int64_t, 2>{1, 2})) << "neither the given frame nor the reference";
}

TEST(WanFun, RaysAreFoldedAsPixelUnshuffleAndAStridedConvolutionRead) {
  for (const int64_t scale : {1, 2, 8})
    for (const auto& [f, h, w] : std::vector<std::array<int64_t, 3>>{{1, 2, 2}, {2, 4, 6}, {3, 2, 10}}) {
      const at::Tensor rays = at::randn({5, f, scale * h, scale * w});
      const at::Tensor rows = fold_rays(rays, {1, 2, 2}, scale);
      EXPECT_TRUE(at::equal(unfold_rays(rows, {1, 2, 2}, {f, h, w}, scale), rays));
      const at::Tensor weight = at::randn({3, 5 * scale * scale, 2, 2});
      const at::Tensor convolved =
          at::conv2d(at::pixel_unshuffle(rays.transpose(0, 1), scale), weight, {}, /*stride=*/2);  // [f, 3, h/2, w/2]
      expect_close(rows.matmul(weight.flatten(1).t()), convolved.permute({0, 2, 3, 1}).reshape({-1, 3}), 1e-3, "rows");
    }
}

TEST(WanFun, ACamerasRaysAreWrittenStraightIntoTheRows) {
  for (const int64_t scale : {2, 8, 16}) {
    const int64_t f = 3, h = 2, w = 4;
    const at::Tensor own = camera(camera_frames(f));
    const at::Tensor expected =
        fold_rays(rays_by_latent_frame(camera_rays(own, scale * h, scale * w)), {1, 2, 2}, scale);
    const at::Tensor rows = at::empty_like(expected);
    fill_rays(rows, own, {1, 2, 2}, {f, h, w}, scale);
    EXPECT_TRUE(at::equal(rows, expected)) << scale;
    EXPECT_THROW(fill_rays(rows, own.slice(0, 1), {1, 2, 2}, {f, h, w}, scale), UserError);
  }
  const at::Tensor rays = camera_rays(camera(2), 3, 5);
  expect_close(rays.slice(3, 3).norm(2, {3}), at::ones({2, 3, 5}), 1e-6, "unit directions");
  EXPECT_EQ(rays.slice(0, 0, 1).slice(3, 0, 3).abs().max().item<double>(), 0)
      << "the first camera stands at the origin";
}

TEST(WanFun, LayoutsThatNoReleaseHasAreRefused) {
  const std::string sizes = R"("dim":24,"num_heads":2,"num_layers":1,"ffn_dim":8,"out_dim":16,)";
  const auto of = [&](const std::string& rest) { return refused("{" + sizes + rest + "}"); };
  EXPECT_EQ(of(R"("model_type":"i2v","in_dim":48)"), "");
  EXPECT_EQ(of(R"("model_type":"i2v","in_dim":52,"add_ref_conv":true,"in_dim_ref_conv":16)"), "");
  EXPECT_EQ(of(R"("model_type":"i2v","in_dim":32,"add_control_adapter":true)"), "");
  EXPECT_NE(of(R"("model_type":"i2v","in_dim":32)").find("in_dim 32"), std::string::npos);
  EXPECT_NE(of(R"("model_type":"i2v","in_dim":47)").find("in_dim 47"), std::string::npos);
  EXPECT_NE(of(R"("model_type":"flf2v","in_dim":52,"image_dim":8)").find("in_dim 52"), std::string::npos);
  EXPECT_NE(of(R"("model_type":"t2v","in_dim":48)").find("in_dim 48"), std::string::npos);
  EXPECT_NE(of(R"("model_type":"ti2v","in_dim":16,"add_ref_conv":true)").find("add_ref_conv"), std::string::npos);
}

TEST(WanFun, WeightsTellWhichReleaseTheyAre) {
  for (const auto& [name, config] : presets()) {
    if (name.find("-fun-") == name.npos || name.starts_with("wan-tiny")) continue;
    Shapes shapes;
    const Wan of_release(config);
    for (const auto& unit : of_release.units())
      for (const auto& param : unit->spec().params) shapes[param.name] = param.shape;
    const std::string model = identify(shapes).model;
    // two of them have the shapes of Wan's own image-to-video models
    const std::string expected = name == "wan2.1-fun-14b-inp"    ? "wan2.1-i2v-14b"
                                 : name == "wan2.2-fun-a14b-inp" ? "wan2.2-i2v-a14b"
                                                                 : name;
    EXPECT_EQ(model, expected) << name;
  }
}

}  // namespace tessera::models::wan
