// The golden cases hold the same weights under two namings: names, configs and what is recognised are compared with
// them.
#include "tessera/models/registry.h"

#include "golden.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/known.h"
#include "tessera/models/lora_names.h"
#include "tessera/models/vae/wan.h"
#include "tessera/models/vae/wan_config.h"

namespace tessera::models {

namespace {

Shapes shapes_of(const std::filesystem::path& path) {
  Shapes shapes;
  const auto file = checkpoint::SafetensorsFile::open(path);
  for (const auto& entry : file.entries()) shapes[entry.name] = entry.shape;
  return shapes;
}

struct Case {
  const char *folder, *model, *variant;
};
constexpr Case kCases[] = {{"wan21_t2v", "wan-t2v", "t2v"},    {"wan21_i2v", "wan-i2v", "i2v"},
                           {"wan21_vae", "wan2.1-vae", "2.1"}, {"wan22_vae", "wan2.2-vae", "2.2"},
                           {"wan22_ti2v", "wan-ti2v", "ti2v"}, {"umt5", "umt5-demo", ""}};

}  // namespace

TEST(Identify, BothNamingsOfTheGoldenModelsAreKnownAndMapOntoEachOther) {
  TESSERA_NEED_GOLDENS();
  for (const Case& c : kCases) {
    const Golden golden(c.folder);
    const Shapes official = shapes_of(golden.path("model.safetensors"));
    const Shapes diffusers = shapes_of(golden.path("diffusers.safetensors"));
    const Identity one = identify(official), other = identify(diffusers);
    EXPECT_EQ(one.model + "|" + one.variant + "|" + one.naming, std::string(c.model) + "|" + c.variant + "|official");
    EXPECT_EQ(other.model + "|" + other.variant + "|" + other.naming,
              std::string(c.model) + "|" + c.variant + "|diffusers");
    Shapes there;
    for (const auto& [name, shape] : official) there[one.foreign(name, "diffusers")] = shape;
    EXPECT_EQ(there, diffusers) << c.folder;
    EXPECT_EQ(official_shapes(other, diffusers), official) << c.folder;
  }
}

TEST(Identify, AutoencodersOfWanWithAnyNumberOfResidualBlocksHaveTheirNames) {
  for (const bool two : {false, true})
    for (const int64_t blocks : {1, 2, 3, 5}) {
      SCOPED_TRACE((two ? "2.2, " : "2.1, ") + std::to_string(blocks));
      wan_vae::Config config = two ? wan_vae::wan22_config() : wan_vae::Config{};
      config.num_res_blocks = blocks;
      Shapes official, diffusers;
      for (const auto& parameter : wan_vae::parameters(config)) official[parameter.name] = parameter.shape;
      const Identity one = identify(official);
      ASSERT_EQ(one.variant, two ? "2.2" : "2.1");
      for (const auto& [name, shape] : official) diffusers[one.foreign(name, "diffusers")] = shape;
      EXPECT_EQ(diffusers.size(), official.size());
      const std::string last = "decoder.up_blocks.3.resnets." + std::to_string(blocks) + ".conv2.weight";
      EXPECT_TRUE(diffusers.contains(last)) << last << ": the decoder has one more";
      const Identity other = identify(diffusers);
      EXPECT_EQ(other.naming, "diffusers");
      EXPECT_EQ(official_shapes(other, diffusers), official);
      const auto made = nlohmann::json::parse(config_for("diffusers", other, official, "", ""));
      EXPECT_EQ(made["num_res_blocks"], blocks);
    }
}

TEST(Identify, ConfigsOfBothFormsFollowFromWeightsAndTheOther) {
  TESSERA_NEED_GOLDENS();
  for (const Case& c : kCases) {
    const Golden golden(c.folder);
    const Shapes official = shapes_of(golden.path("model.safetensors"));
    const Identity what = identify(official);
    for (const auto& [to, from, expected] : {std::tuple{"diffusers", "config.json", "diffusers_config.json"},
                                             {"official", "diffusers_config.json", "config.json"}}) {
      const auto made = nlohmann::json::parse(config_for(to, what, official, golden.text(from), from));
      const auto wanted = nlohmann::json::parse(golden.text(expected));
      for (const auto& [key, value] : wanted.items()) {
        // what the official file leaves to its defaults, and what the other form does not have
        if (std::string("patch_size window_size qk_norm cross_attn_norm _diffusers_version").find(key) !=
                std::string::npos &&
            std::string(to) == "official")
          continue;
        if (key == "text_len" && std::string(from) == "diffusers_config.json") continue;
        EXPECT_EQ(made.value(key, nlohmann::json("absent")), value) << c.folder << " " << to << " " << key;
      }
    }
  }
}

TEST(Identify, PrefixesOfOtherProgramsAreSeenThrough) {
  TESSERA_NEED_GOLDENS();
  const Shapes official = shapes_of(Golden("wan21_t2v").path("model.safetensors"));
  for (const auto& [prefix, naming] : {std::pair{"model.diffusion_model.", "comfyui"},
                                       {"diffusion_model.", "comfyui"},
                                       {"pipe.dit.", "diffsynth"},
                                       {"model.", "official"}}) {
    Shapes prefixed = {{"first_stage_model.x", {1}}};
    for (const auto& [name, shape] : official) prefixed[prefix + name] = shape;
    const Identity what = identify(prefixed);
    EXPECT_EQ(what.naming, naming) << prefix;
    EXPECT_EQ(what.prefix, prefix);
    EXPECT_EQ(official_shapes(what, prefixed), official) << "and the tensor of another model is no part of it";
  }
}

TEST(Identify, ReleasedSizesHaveNames) {
  const auto wan = [](int64_t dim, int64_t ffn, int64_t layers, int64_t channels) {
    Shapes shapes = {{"patch_embedding.weight", {dim, channels, 1, 2, 2}},
                     {"text_embedding.0.weight", {dim, 4096}},
                     {"head.head.weight", {4 * (channels == 48 ? 48 : 16), dim}}};
    for (int64_t i = 0; i < layers; ++i) {
      shapes["blocks." + std::to_string(i) + ".self_attn.q.weight"] = {dim, dim};
      shapes["blocks." + std::to_string(i) + ".ffn.0.weight"] = {ffn, dim};
    }
    return shapes;
  };
  EXPECT_EQ(identify(wan(1536, 8960, 30, 16)).model, "wan2.1-t2v-1.3b");
  EXPECT_EQ(identify(wan(5120, 13824, 40, 16)).model, "wan2.1-t2v-14b");
  EXPECT_EQ(identify(wan(5120, 13824, 40, 36)).model, "wan2.2-i2v-a14b");
  EXPECT_EQ(identify(wan(3072, 14336, 30, 48)).model, "wan2.2-ti2v-5b");
  EXPECT_EQ(identify(wan(512, 1000, 3, 16)).model, "wan-t2v");
  EXPECT_EQ(identify({{"conv_in.weight", {3, 3}}}).kind, ModelKind::unknown);
}

TEST(Identify, AFurtherFamilyIsKnownByItsRowAlone) {
  const WeightForm form = {.kind = ModelKind::denoiser,
                           .title = "Others",
                           .model = "other",
                           .variant = "t2v",
                           .marks = {"other_in.weight", "blocks.0.mix.weight"},
                           .names = {.diffusers = {{{"blocks.#.mix.*", "layers.#.mixer.*"}}}}};
  add_family({.name = "other",
              .presets = [] { return std::vector<std::string>(); },
              .from_preset = nullptr,
              .from_json = nullptr,
              .weights = {form}});
  const Shapes official = {{"other_in.weight", {4, 4}}, {"blocks.0.mix.weight", {8, 4}}};
  const Shapes diffusers = {{"other_in.weight", {4, 4}}, {"layers.0.mixer.weight", {8, 4}}};
  for (const auto& [shapes, naming] : {std::pair{official, "official"}, {diffusers, "diffusers"}}) {
    const Identity what = identify(shapes);
    EXPECT_EQ(what.model + "|" + what.variant + "|" + what.naming, std::string("other|t2v|") + naming);
    EXPECT_EQ(family_of(what).name, "other");
    EXPECT_EQ(official_shapes(what, shapes), official);
  }
  const auto lora = detect_lora_names({"layers.3.mixer.lora_A.weight"});
  ASSERT_TRUE(lora);
  EXPECT_EQ(family_with(lora->form), "other");
  EXPECT_EQ(lora->parse("layers.3.mixer.lora_A.weight")->module, "blocks.3.mix");
  EXPECT_EQ(lora_module_name("blocks.3.mix", "diffusers", lora->form), "layers.3.mixer");
}

TEST(Identify, ClipIsKnownUnderBothNamings) {
  TESSERA_NEED_GOLDENS();
  for (const auto& [file, naming] :
       {std::pair{"model.safetensors", "official"}, {"diffusers.safetensors", "diffusers"}}) {
    const Identity what = identify(shapes_of(Golden("clip_vision").path(file)));
    EXPECT_EQ(what.kind, ModelKind::image_encoder) << file;
    EXPECT_EQ(what.naming, naming) << file;
  }
}

TEST(Identify, LoraFilesOfEveryProgramAreKnown) {
  TESSERA_NEED_GOLDENS();
  for (const auto& [file, naming] : {std::pair{"lora_kohya", "kohya"}, {"lora_diffsynth", "diffsynth"}}) {
    const Identity what = identify(shapes_of(Golden("lora").path(std::string(file) + ".safetensors")));
    EXPECT_EQ(what.kind, ModelKind::lora) << file;
    EXPECT_EQ(what.naming, naming) << file;
  }
}

}  // namespace tessera::models
