#include "tessera/models/hunyuan/spec.h"

#include "models/denoiser_golden.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/models/common/family.h"
#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/hunyuan/files.h"
#include "tessera/models/registry.h"

namespace tessera::models::hunyuan {

namespace {

const Config& preset(const std::string& name) { return find_named(presets(), "model.preset", name); }

net::Sample sample(const Config& c, int64_t frames, int64_t h, int64_t w, int64_t words) {
  return {.x = at::randn({c.channels, frames, h, w}), .t = 321.5, .context = at::randn({words, c.text_dim})};
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

TEST(HunyuanGolden, OutputsLossAndGradientsMatchInEveryFormOfItsFiles) {
  TESSERA_NEED_GOLDENS();
  const DenoiserCase kind = hunyuan::family().cases[0];
  for (const char* folder : {"hunyuan_video15", "hunyuan15_meanflow"})
    for (const std::string& weights : kind.weights) compare_with_case(kind, folder, weights);
}

TEST(Hunyuan, FilesOfEveryFormHoldTheSameTensors) {
  TESSERA_NEED_GOLDENS();
  for (const char* folder : {"hunyuan_video15", "hunyuan15_meanflow"}) {
    const Golden golden(folder);
    const auto model = make_denoiser({.config_text = golden.text("config.json")});
    const auto other = make_denoiser({.config_text = golden.text("diffusers_config.json")});
    EXPECT_EQ(stored_shapes(*other, "diffusers")["x_embedder.proj.weight"].size(), 5U);
    for (const auto& [file, naming] :
         {std::pair("model.safetensors", "official"), {"diffusers.safetensors", "diffusers"}}) {
      Shapes expected;
      for (const auto& [name, value] : golden.tensors(file)) expected[name] = value.sizes().vec();
      EXPECT_EQ(stored_shapes(*model, naming), expected) << folder;
      const Identity what = identify(expected);
      EXPECT_EQ(what.naming, naming);
      EXPECT_EQ(what.kind, ModelKind::denoiser);
      EXPECT_EQ(official_shapes(what, expected), stored_shapes(*model, "tessera"));
    }
  }
}

TEST(Hunyuan, TheReleasedSizesAreThoseThatArePublished) {
  const Hunyuan model(preset("hunyuan1.5-480p-t2v")), distilled(preset("hunyuan1.5-480p-i2v-step-distilled"));
  int64_t numbers = 0, more = 0;
  for (const auto& [name, shape] : stored_shapes(model, "official")) numbers += c10::multiply_integers(shape);
  for (const auto& [name, shape] : stored_shapes(distilled, "official")) more += c10::multiply_integers(shape);
  // of a stream: modulation, attention and feed-forward have 6, 4 and 8 squares of the width, and as many biases less 3
  constexpr int64_t d = 2048, square = d * d, block = 2 * (18 * square + 15 * d + 2 * 128);
  constexpr int64_t refiner = 14 * square + 15 * d;
  constexpr int64_t stem = 65 * d + d + 256 * d + square + 2 * d + 3 * d                          // video, time, kinds
                           + 3584 * d + d + 256 * d + square + 2 * d + 3584 * d + square + 2 * d  // caption
                           + 2 * 1472 + 1472 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * d + d    // quoted text
                           + 2 * 1152 + 1152 * 1152 + 1152 + 1152 * d + d + 2 * d;                // picture
  constexpr int64_t head = 2 * square + 2 * d + 32 * d + 32;
  EXPECT_EQ(numbers, 54 * block + 2 * refiner + stem + head);
  EXPECT_NEAR(static_cast<double>(numbers), 8.3e9, 0.05e9);
  EXPECT_EQ(more - numbers, 256 * d + square + 2 * d) << "the next timestep";
  for (const char* naming : {"official", "diffusers", "fused", "tessera"}) {
    const Shapes stored = stored_shapes(distilled, naming);
    const Identity what = identify(stored);
    EXPECT_EQ(what.model + "|" + what.naming, std::string("hunyuan1.5-480p-i2v-step-distilled|") + naming);
    const Shapes ours = official_shapes(what, stored);
    EXPECT_EQ(ours, stored_shapes(distilled, "tessera")) << naming;
    for (const char* form : {"official", "diffusers"})
      EXPECT_EQ(parse_config(config_for(form, what, ours, "", ""), "made", ours), distilled.config()) << form;
  }
}

TEST(Hunyuan, ComfyuisFilesHoldTheQueriesKeysAndValuesOfAStreamTogether) {
  const Hunyuan model(preset("hunyuan-tiny"));
  const Shapes stored = stored_shapes(model, "fused");
  EXPECT_EQ(stored.at("double_blocks.1.txt_attn.qkv.weight"), (std::vector<int64_t>{96, 32}));
  EXPECT_EQ(stored.at("txt_in.individual_token_refiner.blocks.0.self_attn.qkv.bias"), (std::vector<int64_t>{96}));
  EXPECT_TRUE(stored.count("double_blocks.0.img_attn.norm.query_norm.scale"));
  EXPECT_TRUE(stored.count("time_in.in_layer.weight"));
  Shapes prefixed;
  for (const auto& [name, shape] : stored) prefixed["model.diffusion_model." + name] = shape;
  const Identity what = identify(prefixed);
  EXPECT_EQ(official_shapes(what, prefixed), stored_shapes(model, "tessera"));
  EXPECT_EQ(what.foreign("double_blocks.1.txt_attn_k.weight", "comfyui"), "double_blocks.1.txt_attn.qkv.1of3.weight");
}

TEST(Hunyuan, ConfigsComeBackAndWhatIsNotSupportedIsRefused) {
  for (const auto& [name, config] : presets()) {
    EXPECT_EQ(parse_config(to_json(config), name), config) << name;
    EXPECT_EQ(make_denoiser({.config_text = to_json(config)})->config_json(), to_json(config)) << name;
    EXPECT_EQ(parse_config(to_diffusers_json(config), name), config) << name;
  }
  const std::pair<const char*, const char*> refused[] = {{R"({"rope_dim_list":[16,56,40]})", "112 channels"},
                                                         {R"({"rope_dim_list":[16,112]})", "three numbers"},
                                                         {R"({"rope_dim_list":[17,55,56]})", "in pairs"},
                                                         {R"({"mlp_width_ratio":2.5})", "mlp_width_ratio"},
                                                         {R"({"mm_single_blocks_depth":4})", "mm_single_blocks_depth"},
                                                         {R"({"guidance_embed":true})", "guidance_embed"},
                                                         {R"({"patch_size":[1,2,2]})", "patch_size"},
                                                         {R"({"text_pool_type":"x"})", "pooled"},
                                                         {R"({"image_len":-1})", "image_len"},
                                                         {R"({"_class_name":"HunyuanVideoOther"})", "supported are"}};
  for (const auto& [config, why] : refused) EXPECT_NE(refusal(config).find(why), std::string::npos) << config;
}

TEST(Hunyuan, PackedSamplesComeOutAsTheyDoAloneWhateverTheyAreGiven) {
  const Hunyuan model(preset("hunyuan-tiny"));
  const Config& c = model.config();
  const net::WeightMap weights = lively_weights(model);
  std::vector<net::Sample> samples = {sample(c, 3, 4, 5, 3), sample(c, 1, 3, 2, 6), sample(c, 2, 2, 2, 1)};
  samples[0].extra = {{"image_latent", at::randn({c.channels, 1, 4, 5})}, {"image", at::randn({4, c.image_dim})}};
  samples[1].extra = {{"glyphs", at::randn({5, c.glyph_dim})}};
  const net::Batch all = model.pack(samples);
  const auto together = model.unpack(net::run_plain(model.units(), weights, all), all);
  for (size_t i = 0; i < samples.size(); ++i)
    expect_close(together[i], predict(model, weights, samples[i]), 1e-4, std::to_string(i));
  EXPECT_EQ(all.predictions_of(0), (std::array<int64_t, 2>{0, 60})) << "all of the video, none of its words";
  EXPECT_EQ(all.tokens.offsets, (std::vector<int64_t>{0, 67, 84, 93}));
}

TEST(Hunyuan, APictureIsLookedAtBesideAGivenFrameAlone) {
  const Hunyuan model(preset("hunyuan-tiny"));
  const Config& c = model.config();
  net::Sample text = sample(c, 3, 2, 4, 3), with_features = text, given = text, by_mask;
  with_features.extra["image"] = given.extra["image"] = at::randn({4, c.image_dim});
  EXPECT_EQ(model.pack({text}).tokens.total(), model.pack({with_features}).tokens.total()) << "text to video has none";
  const at::Tensor first = at::randn({c.channels, 1, 2, 4}), cond = at::zeros({c.channels + 1, 3, 2, 4});
  cond.slice(1, 0, 1).copy_(at::cat({at::ones({1, 1, 2, 4}), first}));
  by_mask = given;
  given.extra["image_latent"] = first, by_mask.extra["cond"] = cond;
  const net::Batch packed = model.pack({given});
  EXPECT_EQ(packed.tokens.total(), model.pack({text}).tokens.total() + 4);
  EXPECT_TRUE(packed.inputs[kLatents].equal(model.pack({by_mask}).inputs[kLatents]));
  const at::Tensor rows = packed.inputs[kLatents].slice(0, 0, 24);
  EXPECT_TRUE(rows.narrow(1, 0, c.channels).equal(to_rows(given.x, {1, 1, 1}))) << "the noisy clip is whole";
  EXPECT_EQ(rows.narrow(1, 2 * c.channels, 1).sum().item<float>(), 8) << "the mask is of the first frame";
}

TEST(Hunyuan, WhatDoesNotFitIsRefused) {
  const Hunyuan model(preset("hunyuan-tiny")), distilled(preset("hunyuan-tiny-step-distilled"));
  const Config& c = model.config();
  const auto with = [&](const char* name, const at::Tensor& value) {
    net::Sample wrong = sample(c, 2, 4, 4, 3);
    wrong.extra[name] = value;
    return wrong;
  };
  EXPECT_THROW(model.pack({sample(c, 1, 4, 4, 7)}), UserError) << "more words than it takes";
  EXPECT_THROW(model.pack({sample(c, 1, 4, 4, 0)}), UserError) << "no caption";
  EXPECT_THROW(model.pack({with("glyphs", at::zeros({6, c.glyph_dim}))}), UserError);
  EXPECT_THROW(model.pack({with("glyphs", at::zeros({1, c.text_dim}))}), UserError);
  EXPECT_THROW(model.pack({with("image_latent", at::zeros({c.channels, 1, 4, 2}))}), UserError);
  EXPECT_THROW(model.pack({with("cond", at::zeros({c.channels, 2, 4, 4}))}), UserError);
  EXPECT_THROW(distilled.pack({sample(c, 1, 4, 4, 3)}), UserError) << "without the next timestep";
  EXPECT_NO_THROW(distilled.pack({with("t_r", at::full({1}, 250.0))}));
  EXPECT_NE(distilled.why_not_trained(), "");
  EXPECT_EQ(model.why_not_trained(), "");
}

}  // namespace tessera::models::hunyuan
