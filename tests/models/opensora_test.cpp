#include "tessera/models/opensora/spec.h"

#include <numeric>

#include "models/denoiser_golden.h"
#include "tessera/base/check.h"
#include "tessera/models/common/names.h"
#include "tessera/models/common/patches.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"

namespace tessera::models::opensora {

namespace {

const Config& preset(const std::string& name) { return find_named(presets(), "model.preset", name); }

int64_t numbers(const Shapes& shapes) {
  int64_t sum = 0;
  for (const auto& [name, shape] : shapes)
    sum += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return sum;
}

/// Every tensor of the released model (hpcaitech/Open-Sora, opensora/models/mmdit, on the meta device), and of the one
/// whose q, k and v are fused.
Shapes published(bool fused) {
  Shapes all;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    all[name + ".weight"] = {out, in}, all[name + ".bias"] = {out};
  };
  const int64_t d = 3072;
  linear("img_in", d, 64), linear("cond_in", d, 68), linear("txt_in", d, 4096);
  linear("time_in.in_layer", d, 256), linear("time_in.out_layer", d, d);
  linear("vector_in.in_layer", d, 768), linear("vector_in.out_layer", d, d);
  const auto norms = [&](const std::string& at) {
    all[at + "query_norm.scale"] = {128}, all[at + "key_norm.scale"] = {128};
  };
  for (int i = 0; i < 19; ++i)
    for (const std::string stream : {"img", "txt"}) {
      const std::string at = "double_blocks." + std::to_string(i) + "." + stream;
      linear(at + "_mod.lin", 18432, d), linear(at + "_attn.proj", d, d);
      if (fused) linear(at + "_attn.qkv", 9216, d);
      for (const char* name : {"q_proj", "k_proj", "v_proj"})
        if (!fused) linear(at + "_attn." + name, d, d);
      norms(at + "_attn.norm.");
      linear(at + "_mlp.0", 12288, d), linear(at + "_mlp.2", d, 12288);
    }
  for (int i = 0; i < 38; ++i) {
    const std::string at = "single_blocks." + std::to_string(i) + ".";
    if (fused) linear(at + "linear1", 21504, d);
    if (!fused) linear(at + "q_proj", d, d), linear(at + "k_proj", d, d), linear(at + "v_mlp", 15360, d);
    linear(at + "linear2", d, 15360), linear(at + "modulation.lin", 9216, d);
    norms(at + "norm.");
  }
  linear("final_layer.linear", 64, d), linear("final_layer.adaLN_modulation.1", 6144, d);
  return all;
}

/// Our parameters from a file, by what its tensors' names and shapes tell alone.
std::vector<std::pair<std::string, at::Tensor>> read_ours(const std::filesystem::path& path) {
  const auto set = checkpoint::open_weights(path);
  const Identity what = identify(checkpoint::stored_shapes(set));
  std::vector<std::pair<std::string, at::Tensor>> ours;
  for (const std::string& stored : set.names()) {
    std::vector<std::string> names = what.parts(stored);
    if (names.empty()) names = {stored};
    for (const std::string& name : names) {
      const at::Tensor value = at::empty(set.at(name).shape, at::kFloat);
      set.read_f32(name, 0, value.numel(), value.mutable_data_ptr<float>());
      ours.emplace_back(*what.official(name), value);
    }
  }
  return ours;
}

net::Sample sample(const Config& c, int64_t frames, int64_t h, int64_t w, int64_t words) {
  return {.x = at::randn({c.latent_channels(), frames, h, w}),
          .t = 321.5,
          .context = at::randn({words, c.context_dim}),
          .extra = {{"pooled", at::randn({c.pooled_dim})}}};
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

TEST(OpenSora, EveryPublishedTensorHasItsNameAndShape) {
  const OpenSora model(preset("opensora2-11b"));
  EXPECT_EQ(stored_shapes(model, "official"), published(false));
  EXPECT_EQ(stored_shapes(model, "fused"), published(true));
  struct Known {
    const char *preset, *naming;
    size_t tensors;
    int64_t parameters;
  };
  for (const Known& known : {Known{"opensora2-11b", "official", 1082, 11'891'390'528},
                             {"opensora2-11b", "fused", 778, 11'891'390'528},
                             {"opensora2-11b-t2v", "official", 1080, 11'891'178'560},
                             {"opensora2-11b-dc-ae", "official", 1082, 11'891'971'200}}) {
    const OpenSora one(preset(known.preset));
    const Shapes stored = stored_shapes(one, known.naming);
    EXPECT_EQ(stored.size(), known.tensors) << known.preset;
    EXPECT_EQ(numbers(stored), known.parameters) << known.preset;
    const Identity what = identify(stored);
    EXPECT_EQ(what.model + "|" + what.naming, std::string(known.preset) + "|" + known.naming);
    const Shapes ours = official_shapes(what, stored);
    EXPECT_EQ(ours, stored_shapes(one, "tessera")) << known.preset;
    EXPECT_EQ(parse_config(config_for("official", what, ours, "", ""), "made"), one.config()) << known.preset;
  }
}

TEST(OpenSora, FilesOfEveryFormHoldTheSameWeightsBitForBit) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("opensora2_flux");
  const auto model = make_denoiser({.config_text = golden.text("config.json")});
  const std::pair<const char*, const char*> files[] = {
      {"model.safetensors", "diffusers"}, {"original.safetensors", "fused"}, {"released.safetensors", "official"}};
  for (const auto& [from, naming] : files) {
    const auto ours = read_ours(golden.path(from));
    for (const auto& [to, wanted] : files) {
      const TensorMap expected = golden.tensors(to);
      const auto made = stored_together(
          ours, [&, wanted = wanted](const std::string& name) { return model->foreign_name(name, wanted); });
      EXPECT_EQ(made.size(), expected.size());
      for (const auto& [name, value] : made) {
        ASSERT_TRUE(expected.count(name)) << name;
        EXPECT_TRUE(value.equal(expected.at(name))) << from << " as " << to << ": " << name;
      }
    }
  }
}

TEST(OpenSora, APartOfAParameterIsReadFromWhereItLies) {
  TESSERA_NEED_GOLDENS();
  const auto set = checkpoint::open_weights(Golden("opensora2_flux").path("original.safetensors"));
  for (const char* name : {"double_blocks.0.img_attn.qkv.1of3p12.weight", "single_blocks.1.linear1.0of7p12.bias",
                           "single_blocks.0.linear2.1-4of5c.weight"}) {
    const int64_t count = set.at(name).count();
    std::vector<float> whole(static_cast<size_t>(count));
    set.read_f32(name, 0, count, whole.data());
    for (int64_t first = 0; first < count; first += 5) {
      std::vector<float> some(static_cast<size_t>(std::min<int64_t>(7, count - first)));
      set.read_f32(name, first, static_cast<int64_t>(some.size()), some.data());
      EXPECT_TRUE(std::equal(some.begin(), some.end(), whole.begin() + first)) << name << " from " << first;
    }
  }
}

TEST(OpenSora, TheTrainersCheckpointFoldersAreRead) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("opensora_checkpoint");
  const auto model = make_denoiser({.config_text = golden.text("config.json")});
  const TensorMap expected = golden.tensors("case.safetensors");
  for (const auto& [folder, prefix] :
       {std::pair("checkpoint_sync", "expect_master."), {"checkpoint_async", "expect."}}) {
    const auto set = checkpoint::open_weights(golden.path(folder) / "epoch0-global_step12");
    EXPECT_EQ(set.names().size(), stored_shapes(*model, "official").size());
    EXPECT_EQ(official_shapes(identify(checkpoint::stored_shapes(set)), checkpoint::stored_shapes(set)),
              stored_shapes(*model, "tessera"));
    for (const char* name : {"img_in.weight", "double_blocks.0.txt_attn.q_proj.bias", "final_layer.linear.weight"}) {
      const at::Tensor value = at::empty(set.at(name).shape, at::kFloat);
      set.read_f32(name, 0, value.numel(), value.mutable_data_ptr<float>());
      EXPECT_TRUE(value.equal(expected.at(std::string(prefix) + name))) << folder << " " << name;
    }
  }
}

TEST(OpenSora, TheFamilyIsFoundByPresetAndClassAndItsConfigsComeBack) {
  for (const auto& [name, config] : presets()) {
    EXPECT_EQ(parse_config(to_json(config), name), config) << name;
    EXPECT_EQ(make_denoiser({.config_text = to_json(config)})->config_json(), to_json(config)) << name;
  }
  Config flux = preset("opensora2-flux-dev");
  EXPECT_EQ(parse_config(to_diffusers_json(flux), "flux"), flux);
  flux.fused = flux.neighbours = true;
  EXPECT_EQ(parse_config(to_json(flux), "flux"), flux);
  EXPECT_THROW(to_diffusers_json(preset("opensora2-11b")), UserError) << "diffusers has no cond_in";
  EXPECT_NE(refusal(R"({"axes_dim":[16,56,40]})").find("axes_dim has 112"), std::string::npos);
  EXPECT_NE(refusal(R"({"mlp_ratio":2.5})").find("mlp_ratio"), std::string::npos);
  EXPECT_NE(refusal(R"({"_class_name":"MMDiTOther"})").find("MMDiTModel"), std::string::npos);
  EXPECT_NE(refusal(R"({"theta":256})").find("theta"), std::string::npos);
}

TEST(OpenSora, LatentsArePackedAsItsProgramPacksThem) {
  TESSERA_NEED_GOLDENS();
  const TensorMap file = Golden("opensora2").tensors("case.safetensors");
  EXPECT_TRUE(to_rows(file.at("in.latent")[1], {1, 2, 2}).equal(file.at("in.img")[1]));
  const at::Tensor cond = at::cat({file.at("in.cond_mask")[1], file.at("in.cond_latent")[1]});
  EXPECT_TRUE(to_rows(cond, {1, 2, 2}).equal(file.at("in.cond")[1]));
}

TEST(OpenSora, PackedSamplesComeOutAsTheyDoAlone) {
  for (const char* name : {"opensora2-tiny", "opensora2-tiny-guided"}) {
    const OpenSora model(preset(name));
    const net::WeightMap weights = lively_weights(model);
    const std::vector<net::Sample> samples = {sample(model.config(), 3, 4, 6, 3), sample(model.config(), 1, 6, 2, 6)};
    const net::Batch both = model.pack(samples);
    const auto together = model.unpack(net::run_plain(model.units(), weights, both), both);
    for (size_t i = 0; i < samples.size(); ++i)
      expect_close(together[i], predict(model, weights, samples[i]), 1e-4, name);
  }
}

TEST(OpenSora, AFirstFrameIsGivenAsItsMaskAndItselfBesideTheNoisyOne) {
  const OpenSora model(preset("opensora2-tiny"));
  const Config& c = model.config();
  net::Sample clip = sample(c, 3, 4, 6, 3), given = clip;
  const at::Tensor first = at::randn({c.latent_channels(), 1, 4, 6}),
                   cond = at::zeros({c.latent_channels() + 1, 3, 4, 6});
  clip.extra["image_latent"] = first;
  cond.slice(1, 0, 1).copy_(at::cat({at::ones({1, 1, 4, 6}), first}));
  given.extra["cond"] = cond;
  const net::Batch packed = model.pack({clip});
  EXPECT_TRUE(packed.inputs[1].equal(model.pack({given}).inputs[1]));
  EXPECT_TRUE(packed.inputs[0].slice(0, 6).equal(to_rows(clip.x, c.patches()))) << "the noisy clip is whole";
  EXPECT_EQ(packed.predictions_of(0), (std::array<int64_t, 2>{6, 24})) << "and all of it is predicted";
  EXPECT_TRUE(model.conditions().clean_beside);
}

TEST(OpenSora, GuidanceChangesThePrediction) {
  const OpenSora model(preset("opensora2-tiny-guided"));
  const net::WeightMap weights = lively_weights(model);
  net::Sample one = sample(model.config(), 1, 4, 4, 3), other = one;
  other.extra["guidance"] = at::full({1}, 4.0);
  EXPECT_TRUE(predict(model, weights, one).equal(predict(model, weights, other))) << "what it is without one";
  other.extra["guidance"] = at::full({1}, 1.0);
  EXPECT_FALSE(predict(model, weights, one).equal(predict(model, weights, other)));
}

TEST(OpenSora, WhatDoesNotFitIsRefused) {
  const OpenSora model(preset("opensora2-tiny")), pictures(preset("opensora2-tiny-guided"));
  const Config& c = model.config();
  net::Sample wrong = sample(c, 1, 4, 4, 7);
  EXPECT_THROW(model.pack({wrong}), UserError) << "more words than it takes";
  wrong = sample(c, 1, 3, 4, 2);
  EXPECT_THROW(model.pack({wrong}), UserError) << "no whole patches";
  wrong = sample(c, 2, 4, 4, 2);
  wrong.extra["image_latent"] = at::zeros({c.latent_channels(), 1, 4, 4});
  EXPECT_NO_THROW(model.pack({wrong}));
  EXPECT_THROW(pictures.pack({wrong}), UserError) << "a model without cond_in";
}

}  // namespace tessera::models::opensora
