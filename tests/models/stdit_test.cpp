#include "tessera/models/stdit/spec.h"

#include <numeric>

#include "models/denoiser_golden.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"

namespace tessera::models::stdit {

namespace {

const Config& preset(const std::string& name) { return find_named(presets(), "model.preset", name); }

/// Every tensor of the released models (hpcaitech/Open-Sora, opensora/models/stdit, on the meta device).
Shapes published(bool first) {
  Shapes all;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    all[name + ".weight"] = {out, in}, all[name + ".bias"] = {out};
  };
  const int64_t d = 1152, channels = first ? 4 : 16;
  for (const char* name : {"x_embedder", "x_embedder_cond", "x_embedder_cond_mask"}) {
    if (first && std::string(name) != "x_embedder") continue;
    all[std::string(name) + ".proj.weight"] = {d, channels, 1, 2, 2};
    all[std::string(name) + ".proj.bias"] = {d};
  }
  for (const std::string name : {"t_embedder", "fps_embedder"})
    linear(name + ".mlp.0", d, 256), linear(name + ".mlp.2", d, d);
  linear("t_block.1", 6912, d);
  linear("y_embedder.y_proj.fc1", d, 4096), linear("y_embedder.y_proj.fc2", d, d);
  for (int i = 0; i < 28; ++i)
    for (const std::string list : {"spatial_blocks.", "temporal_blocks."}) {
      const std::string at = list + std::to_string(i) + ".";
      all[at + "scale_shift_table"] = {6, d};
      linear(at + "attn.qkv", 3456, d), linear(at + "attn.proj", d, d);
      for (const char* norm : {"attn.q_norm.weight", "attn.k_norm.weight"}) all[at + norm] = {72};
      linear(at + "cross_attn.q_linear", d, d), linear(at + "cross_attn.kv_linear", 2304, d);
      linear(at + "cross_attn.proj", d, d);
      linear(at + "mlp.fc1", 4608, d), linear(at + "mlp.fc2", d, 4608);
    }
  all["final_layer.scale_shift_table"] = {2, d};
  linear("final_layer.linear", 8 * channels, d);
  all["y_embedder.y_embedding"] = {300, 4096};  // this and the next are none of ours
  all["rope.freqs"] = {first ? 36 : 12};
  return all;
}

int64_t numbers(const Shapes& shapes) {
  int64_t sum = 0;
  for (const auto& [name, shape] : shapes)
    sum += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return sum;
}

net::Sample sample(const Config& c, int64_t frames, int64_t h, int64_t w, int64_t words) {
  return {.x = at::randn({c.in_channels, frames, h, w}), .t = 321.5, .context = at::randn({words, c.caption_dim})};
}

std::string refusal(const std::string& config) {
  try {
    parse_config(config, "config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST(Stdit, EveryPublishedTensorHasItsNameAndShape) {
  struct Known {
    const char* preset;
    size_t tensors;
    int64_t parameters;
  };
  for (const Known& known : {Known{"opensora1.2", 973, 1'207'643'972}, {"opensora1.3", 977, 1'207'959'692}}) {
    const Stdit model(preset(known.preset));
    const Shapes all = published(known.preset == std::string("opensora1.2"));
    EXPECT_EQ(all.size(), known.tensors);
    EXPECT_EQ(numbers(all) - 300 * 4096, known.parameters) << "the caption of no words is a buffer";
    Shapes ours = stored_shapes(model, "official");
    for (const auto& [name, shape] : all)
      if (name == "y_embedder.y_embedding" || name == "rope.freqs") ours[name] = shape;
    EXPECT_EQ(ours, all) << known.preset;
    const Identity what = identify(all);
    EXPECT_EQ(what.model + "|" + what.naming, std::string(known.preset) + "|official");
    const Shapes official = official_shapes(what, all);
    for (const auto& [name, shape] : stored_shapes(model, "tessera")) EXPECT_EQ(official.at(name), shape) << name;
    for (const char* name : {"y_embedder.y_embedding", "rope.freqs"}) EXPECT_TRUE(is_official_only(what, name)) << name;
    EXPECT_EQ(parse_config(config_for("official", what, official, "", ""), "made"), model.config()) << known.preset;
  }
}

TEST(Stdit, TheFamilyIsFoundByPresetAndClassAndItsConfigsComeBack) {
  for (const auto& [name, config] : presets()) {
    EXPECT_EQ(parse_config(to_json(config), name), config) << name;
    EXPECT_EQ(make_denoiser({.config_text = to_json(config)})->config_json(), to_json(config)) << name;
    EXPECT_EQ(make_denoiser({.preset = name})->config_json(), to_json(config)) << name;
  }
  EXPECT_NE(refusal(R"({"qk_norm":false})").find("qk_norm"), std::string::npos);
  EXPECT_NE(refusal(R"({"_class_name":"STDiT2"})").find("STDiT3"), std::string::npos);
  EXPECT_NE(refusal(R"({"skip_temporal":true})").find("skip_temporal"), std::string::npos);
  EXPECT_NE(refusal(R"({"patch_size":[2,2,2]})").find("patch_size"), std::string::npos);
  EXPECT_NE(refusal(R"({"kernel_size":[8,0,-1]})").find("kernel_size"), std::string::npos);
  EXPECT_NE(refusal(R"({"use_spatial_rope":true})").find("kernel_size"), std::string::npos);
  EXPECT_NE(refusal(R"({"kernel_size":[8,8,-1],"hidden_size":64,"num_heads":4})").find("3 axes"), std::string::npos);
}

TEST(Stdit, PositionsAreTheRecordedOnes) {
  TESSERA_NEED_GOLDENS();
  for (const char* folder : {"stdit3_v12", "stdit3_v13"}) {
    const Golden golden(folder);
    const TensorMap file = golden.tensors("case.safetensors");
    const Stdit model(parse_config(golden.text("config.json"), folder));
    net::Sample one = {.x = file.at("in.x")[0], .context = file.at("in.y")[0][0]};
    for (const char* side : {"height", "width"}) one.extra[side] = file.at(std::string("in.") + side)[0].reshape({1});
    const at::Tensor expected = file.at("out.pos_emb")[0], rows = model.pack({one}).inputs[kPositions];
    for (int64_t frame = 0; frame < one.x.size(1); ++frame)
      expect_close(rows.narrow(0, frame * expected.size(0), expected.size(0)), expected, 1e-6, folder);
  }
}

TEST(Stdit, PackedSamplesComeOutAsTheyDoAlone) {
  for (const char* name : {"opensora1.2-tiny", "opensora1.3-tiny"}) {
    const Stdit model(preset(name));
    const net::WeightMap weights = lively_weights(model);
    std::vector<net::Sample> samples = {sample(model.config(), 3, 5, 6, 3), sample(model.config(), 1, 6, 7, 6),
                                        sample(model.config(), 2, 4, 4, 2)};
    samples[2].extra["image_latent"] = at::randn({model.in_channels(), 1, 4, 4});
    const net::Batch both = model.pack(samples);
    const auto together = model.unpack(net::run_plain(model.units(), weights, both), both);
    for (size_t i = 0; i < samples.size(); ++i)
      expect_close(together[i], predict(model, weights, samples[i]), 1e-4, name);
  }
}

TEST(Stdit, TheMeanSquareOfPackedRowsIsThatOfTheLatentAlone) {
  for (const bool sigma : {false, true}) {
    Config config = preset("opensora1.2-tiny");
    config.pred_sigma = sigma;
    const Stdit model(config);
    for (const auto& [h, w] : {std::pair<int64_t, int64_t>{4, 6}, {5, 6}, {4, 7}, {5, 3}, {1, 1}}) {
      const net::Sample one = sample(config, 2, h, w, 3);
      const net::Batch batch = model.pack({one});
      const at::Tensor out = net::run_plain(model.units(), lively_weights(model), batch),
                       target = at::randn_like(one.x);
      const at::Tensor expected = (model.unpack(out, batch)[0] - target).square().mean();
      expect_close((out - model.pack_target(target)).square().mean(), expected, 1e-5 * expected.item<double>(),
                   "error");
      EXPECT_EQ(model.pack_target(target).size(0), model.token_count({4, 2, h, w}));
      const at::Tensor rows = at::zeros({model.token_count({4, 2, h, w}), 16});
      fill_input(rows, one.x, 2);
      EXPECT_TRUE(from_input(rows, one.x.sizes(), 2).equal(one.x));
    }
  }
}

TEST(Stdit, AFirstFrameIsGivenWithoutNoiseAndNotPredicted) {
  const Stdit model(preset("opensora1.2-tiny"));
  const net::WeightMap weights = lively_weights(model);
  net::Sample clip = sample(model.config(), 3, 4, 6, 3), masked = clip;
  const at::Tensor first = at::randn({model.in_channels(), 1, 4, 6});
  clip.extra["image_latent"] = first;
  masked.x.slice(1, 0, 1).copy_(first);
  masked.extra["x_mask"] = at::tensor({0.0, 1.0, 1.0});
  EXPECT_TRUE(model.conditions().clean_first);
  EXPECT_EQ(model.pack({clip}).predictions_of(0), (std::array<int64_t, 2>{6, 18}));
  EXPECT_TRUE(predict(model, weights, clip).equal(predict(model, weights, masked)));
}

TEST(Stdit, AttendsWithinFramesAndOverThemOrInWindowsThatTheEdgeCuts) {
  const Stdit places(preset("opensora1.2-tiny")), windows(preset("opensora1.3-tiny"));
  const net::Sample one = sample(places.config(), 3, 4, 6, 3);  // 2 x 3 places
  const net::Tokens by_place = places.pack({one}).tokens, by_window = windows.pack({one}).tokens;
  EXPECT_EQ(by_place.segments[kWithinFrames].ranges.size(), 3U);
  EXPECT_EQ(by_place.segments[kOverFrames].ranges.size(), 6U);
  EXPECT_TRUE(by_place.segments[kOverFrames].order.slice(0, 3, 6).equal(at::tensor({1, 7, 13}, at::kLong)));
  ASSERT_EQ(by_window.segments[kOverFrames].ranges.size(), 2U) << "windows of 2 x 2 places, the second is cut";
  EXPECT_EQ(by_window.segments[kOverFrames].ranges[1], (std::array<int64_t, 4>{12, 18, 12, 18}));
  EXPECT_TRUE(
      by_window.segments[kOverFrames].order.slice(0, 12, 18).equal(at::tensor({2, 5, 8, 11, 14, 17}, at::kLong)));
}

TEST(Stdit, TheFrameRateAndTheSizeInPixelsChangeThePrediction) {
  const Stdit model(preset("opensora1.3-tiny"));
  const net::WeightMap weights = lively_weights(model);
  const net::Sample one = sample(model.config(), 2, 4, 4, 3);
  for (const auto& [name, usual, other] :
       {std::tuple{"fps", 24.0, 12.0}, {"height", 32.0, 48.0}, {"width", 32.0, 48.0}}) {
    net::Sample given = one;
    given.extra[name] = at::full({1}, usual);
    EXPECT_TRUE(predict(model, weights, one).equal(predict(model, weights, given))) << name;
    given.extra[name] = at::full({1}, other);
    EXPECT_FALSE(predict(model, weights, one).equal(predict(model, weights, given))) << name;
  }
}

TEST(Stdit, WithoutARateAPictureHasThatOfPicturesAndAVideoTheUsualOne) {
  const Stdit model(preset("opensora1.2-tiny"));
  const auto sample = [&](int64_t frames, double rate) {
    net::Sample one = model.blank({4, frames, 8, 8});
    one.t = 500;
    one.extra.erase("fps");
    if (rate > 0) one.extra["fps"] = at::full({1}, rate, at::kFloat);
    return one;
  };
  const auto inputs = [&](double of_picture, double of_video) {
    return model.pack({sample(1, of_picture), sample(5, of_video)}).inputs;
  };
  const auto same = [](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    for (size_t i = 0; i < a.size(); ++i)
      if (a[i].defined() && !at::equal(a[i], b[i])) return false;
    return a.size() == b.size();
  };
  EXPECT_TRUE(same(inputs(0, 0), inputs(120, 24)));
  EXPECT_FALSE(same(inputs(0, 0), inputs(24, 24)));
  EXPECT_FALSE(same(inputs(0, 0), inputs(120, 120)));
}

TEST(Stdit, GivenFramesAreMarkedByTheirIndexAloneAndNoneIsAnAnswerToo) {
  const Stdit model(preset("opensora1.3-tiny"));
  const net::WeightMap weights = lively_weights(model);
  net::Sample plain = sample(model.config(), 3, 5, 6, 3);
  plain.extra["mask_index"] = at::tensor({0, 2}, at::kLong);
  plain.extra["y_null"] = at::randn({3, model.config().caption_dim});
  net::Sample marked = plain;
  marked.extra["cond"] = at::zeros_like(plain.x);
  marked.extra["cond_mask"] = at::zeros_like(plain.x);
  for (const int64_t frame : {0, 2}) marked.extra["cond_mask"].select(1, frame).fill_(1);
  EXPECT_TRUE(predict(model, weights, plain).equal(predict(model, weights, marked))) << "frames that are left out";
  for (const int64_t frame : {0, 2}) marked.extra["cond"].select(1, frame).normal_();
  plain.extra["cond"] = marked.extra["cond"];
  EXPECT_TRUE(predict(model, weights, plain).equal(predict(model, weights, marked)));
  net::Sample none = sample(model.config(), 3, 5, 6, 3), untold = none, zeros = none;
  none.extra["mask_index"] = at::empty({0}, at::kLong);
  zeros.extra["cond"] = zeros.extra["cond_mask"] = at::zeros_like(none.x);
  EXPECT_TRUE(predict(model, weights, none).equal(predict(model, weights, zeros))) << "both embedders' biases";
  EXPECT_FALSE(predict(model, weights, none).equal(predict(model, weights, untold)));
}

TEST(Stdit, WhatDoesNotFitIsRefused) {
  const Stdit model(preset("opensora1.2-tiny")), later(preset("opensora1.3-tiny"));
  const Config& c = model.config();
  EXPECT_THROW(model.pack({sample(c, 1, 4, 4, 7)}), UserError) << "more words than it takes";
  net::Sample wrong = sample(c, 2, 4, 4, 2);
  wrong.extra["x_mask"] = at::ones({3});
  EXPECT_THROW(model.pack({wrong}), UserError) << "a mask of other frames";
  wrong = sample(c, 2, 4, 4, 2);
  wrong.extra["cond"] = wrong.extra["cond_mask"] = at::zeros_like(wrong.x);
  EXPECT_THROW(model.pack({wrong}), UserError) << "1.2 has no place for them";
  EXPECT_NO_THROW(later.pack({wrong}));
  wrong.extra["mask_index"] = at::tensor({1}, at::kLong);
  EXPECT_THROW(later.pack({wrong}), UserError) << "no caption for these frames";
  wrong.extra["y_null"] = at::zeros({1, c.caption_dim});
  EXPECT_NO_THROW(later.pack({wrong}));
  wrong.extra["mask_index"] = at::tensor({2}, at::kLong);
  EXPECT_THROW(later.pack({wrong}), UserError) << "a frame that is not there";
}

}  // namespace tessera::models::stdit
