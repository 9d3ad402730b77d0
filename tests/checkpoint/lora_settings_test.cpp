// What a LoRA file says beside its tensors, as it is read and as it is written: with modules of several ranks and alphas, plain,
// rsLoRA and DoRA, under every naming.
#include "tessera/checkpoint/lora_settings.h"

#include <cmath>

#include "checkpoint/files.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {
namespace {

class LoraSettingsFiles : public FileTest {
 protected:
  LoraSettings config(const std::string& json) const {
    write("adapter_config.json", json);
    return read_lora_settings({}, folder_, "a.safetensors");
  }
};

/// Two of rank 8 and alpha 4, and one of either that has another.
LoraDescription uneven() {
  return {.modules = {{"blocks.0.attn1.to_q", 8, 4}, {"blocks.0.attn1.to_k", 8, 2}, {"blocks.1.attn1.to_q", 16, 4}}};
}

TEST_F(LoraSettingsFiles, AConfigSaysTheKindAndTheAlphaOfEachModule) {
  const LoraSettings plain = config(R"({"lora_alpha": 8})");
  EXPECT_FALSE(plain.rslora || plain.dora);
  EXPECT_EQ(plain.alpha_of("blocks.0.q"), 8);
  const LoraSettings all = config(
      R"({"lora_alpha": 8, "use_rslora": true, "use_dora": true, "alpha_pattern": {"blocks.1.q": 2, "k": 4, "^.*ffn\\.[02]$": 1}})");
  EXPECT_TRUE(all.rslora);
  EXPECT_TRUE(all.dora);
  EXPECT_EQ(all.alpha_of("blocks.0.q"), 8);
  EXPECT_EQ(all.alpha_of("blocks.1.q"), 2);
  EXPECT_EQ(all.alpha_of("blocks.7.k"), 4) << "a name is the end of a path";
  EXPECT_EQ(all.alpha_of("blocks.7.ffn.2"), 1);
  EXPECT_TRUE(config(R"({"lora_alpha": 8, "use_rslora": true})").rslora);
  EXPECT_FALSE(config(R"({"lora_alpha": 8, "use_dora": true})").rslora);
}

TEST_F(LoraSettingsFiles, AScaleIsAlphaByTheRankOrByItsRoot) {
  EXPECT_EQ(lora_scale(8, 16, false), 0.5);
  EXPECT_EQ(lora_scale(8, 16, true), 2);
}

TEST_F(LoraSettingsFiles, WhatIsWrittenForPeftIsReadAsItWas) {
  for (const bool rslora : {false, true})
    for (const bool dora : {false, true}) {
      LoraDescription description = uneven();
      description.rslora = rslora, description.dora = dora;
      const std::string text = lora_config_json(description, "");
      const LoraSettings read = config(text);
      EXPECT_EQ(read.rslora, rslora);
      EXPECT_EQ(read.dora, dora);
      const Json json = parse_json(text, "config");
      EXPECT_EQ(json["r"], 8);
      EXPECT_EQ(json["lora_alpha"], 4.0);
      for (const auto& module : description.modules) {
        EXPECT_EQ(read.alpha_of(module.name), module.alpha) << module.name;
        EXPECT_EQ(json["rank_pattern"].value(module.name, int64_t{8}), module.rank) << module.name;
      }
      EXPECT_EQ(json["rank_pattern"].size(), 1u);
      EXPECT_EQ(json["alpha_pattern"].size(), 1u);
    }
}

TEST_F(LoraSettingsFiles, HeadersHaveWhatTheirProgramsRead) {
  for (const char* naming : {"diffusers", "peft"}) {
    LoraDescription description = uneven();
    description.rslora = true;
    const LoraSettings read = read_lora_settings(lora_metadata(description, naming, {}), {}, "a.safetensors");
    EXPECT_TRUE(read.rslora) << naming;
    for (const auto& module : description.modules)
      EXPECT_EQ(read.alpha_of(module.name), module.alpha) << naming << ": " << module.name;
  }
  // where modules differ, a file of these names may leave out an alpha that is the rank: none is of all
  const Metadata comfyui = lora_metadata(uneven(), "comfyui", {});
  EXPECT_EQ(comfyui.at("ss_network_dim"), "Dynamic");
  EXPECT_EQ(comfyui.at("ss_network_alpha"), "Dynamic");
  EXPECT_FALSE(read_lora_settings(comfyui, {}, "a.safetensors").alpha);
  LoraDescription even = uneven();
  for (auto& module : even.modules) module.rank = 16, module.alpha = 0.5;
  EXPECT_EQ(lora_metadata(even, "comfyui", {}).at("ss_network_dim"), "16");
  EXPECT_EQ(lora_metadata(even, "comfyui", {}).at("ss_network_alpha"), "0.5");
  even.modules[1].alpha = 2;
  EXPECT_EQ(lora_metadata(even, "comfyui", {}).at("ss_network_dim"), "16");
  EXPECT_EQ(lora_metadata(even, "comfyui", {}).at("ss_network_alpha"), "Dynamic");
  // kohya's programs take the commonest, and every module has an alpha of its own there
  const Metadata kohya = lora_metadata(uneven(), "kohya", {});
  EXPECT_EQ(kohya.at("ss_network_dim"), "8");
  EXPECT_EQ(kohya.at("ss_network_alpha"), "4");
  EXPECT_EQ(read_lora_settings(lora_metadata(even, "diffsynth", 0.25), {}, "a.safetensors").folded_alpha, 0.25);
}

}  // namespace
}  // namespace tessera::checkpoint
