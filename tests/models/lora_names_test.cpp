#include "tessera/models/lora_names.h"
#include "tessera/families/lora_namings.h"

#include <gtest/gtest.h>

#include "tessera/models/wan/parameters.h"

namespace tessera::models {
namespace {

/// The linears of Wan's blocks that adapters sit on, image branch and audio injection included.
std::vector<std::string> modules() {
  std::vector<std::string> all = {"blocks.12.ffn.0", "blocks.12.ffn.2", "head.head", "time_projection.1",
                                  "audio_injector.injector.3.q"};
  for (const char* attention : {"self_attn", "cross_attn"})
    for (const char* linear : {"q", "k", "v", "o"}) all.push_back(std::string("blocks.7.") + attention + "." + linear);
  for (const char* image : {"k_img", "v_img"}) all.push_back(std::string("blocks.0.cross_attn.") + image);
  return all;
}

TEST(LoraNames, EveryModuleComesBackFromEveryNaming) {
  for (const std::string& naming : families::kLoraNamings) {
    for (const std::string& module : modules()) {
      for (const LoraPart part : {LoraPart::down, LoraPart::up, LoraPart::alpha, LoraPart::magnitude}) {
        const auto stored = lora_tensor_name(module, part, naming);
        if (!stored) continue;  // some namings have no place for it
        const auto names = detect_lora_names({*lora_tensor_name(module, LoraPart::down, naming)});
        ASSERT_TRUE(names) << *stored;
        EXPECT_EQ(names->naming, naming) << *stored;
        const auto key = names->parse(*stored);
        ASSERT_TRUE(key) << *stored;
        EXPECT_EQ(key->module, module) << *stored;
        EXPECT_EQ(key->part, part) << *stored;
      }
    }
  }
}

TEST(LoraNames, AreThoseThatOtherProgramsWrite) {
  EXPECT_EQ(lora_tensor_name("blocks.0.self_attn.o", LoraPart::down, "diffusers"),
            "transformer.blocks.0.attn1.to_out.0.lora_A.weight");
  EXPECT_EQ(lora_tensor_name("blocks.0.cross_attn.k_img", LoraPart::up, "kohya"),
            "lora_unet_blocks_0_cross_attn_k_img.lora_up.weight");
  EXPECT_EQ(lora_tensor_name("blocks.0.ffn.0", LoraPart::up, "diffsynth"), "blocks.0.ffn.0.lora_B.default.weight");
  EXPECT_EQ(lora_tensor_name("blocks.0.ffn.0", LoraPart::magnitude, "comfyui"),
            "diffusion_model.blocks.0.ffn.0.dora_scale");
  EXPECT_EQ(lora_tensor_name("blocks.0.ffn.0", LoraPart::magnitude, "diffsynth"), std::nullopt);
}

struct Seen {
  const char *stored, *naming, *module;
};
constexpr Seen kSeen[] = {
    {"diffusion_model.blocks.1.self_attn.q.lora_down.weight", "comfyui", "blocks.1.self_attn.q"},
    {"pipe.dit.blocks.1.ffn.2.lora_A.default.weight", "diffsynth", "blocks.1.ffn.2"},
    {"base_model.model.blocks.1.ffn.2.lora_A.weight", "peft", "blocks.1.ffn.2"},
    {"blocks.1.ffn.2.lora_A.weight", "peft", "blocks.1.ffn.2"},
    {"transformer.blocks.1.attn2.add_k_proj.lora_A.weight", "diffusers", "blocks.1.cross_attn.k_img"},
    {"lora_unet_blocks_1_attn1_to_q.lora_down.weight", "kohya", "blocks.1.self_attn.q"},
    {"transformer.transformer_blocks.1.attn1.to_q.lora_A.weight", "diffusers", "blocks.1.attn.q"},
};

TEST(LoraNames, FilesSeenInTheWildAreRead) {
  for (const Seen& seen : kSeen) {
    const auto names = detect_lora_names({"other.weight", seen.stored});
    ASSERT_TRUE(names) << seen.stored;
    EXPECT_EQ(names->naming, seen.naming) << seen.stored;
    const auto key = names->parse(seen.stored);
    ASSERT_TRUE(key) << seen.stored;
    EXPECT_EQ(key->module, seen.module) << seen.stored;
  }
}

TEST(LoraNames, WhatIsNoneIsNotTakenForOne) {
  EXPECT_FALSE(detect_lora_names({"blocks.0.self_attn.q.weight", "head.head.bias"}));
  EXPECT_EQ(foreign_adapter_kind("lora_unet_blocks_0_ffn_0.lokr_w1"), "LoKr");
  EXPECT_EQ(foreign_adapter_kind("lora_unet_blocks_0_ffn_0.hada_w1_a"), "LoHa");
  const LoraNames kohya{"kohya", "lora_unet_"};
  EXPECT_FALSE(kohya.parse("lora_unet_some_module_of_another_model.lora_down.weight")) << "its dots are lost";
}

}  // namespace
}  // namespace tessera::models
