#include "tessera/models/lora_names.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/families/lora_namings.h"
#include "tessera/models/known.h"

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

const WeightForm* form_with(const std::string& model, const std::string& variant = "") {
  for (const WeightForm* form : weight_forms())
    if (form->model == model && form->variant == variant) return form;
  return nullptr;
}

/// Linears that an adapter may sit on, of each family, by official names.
std::vector<std::pair<const WeightForm*, std::vector<std::string>>> all_modules() {
  std::vector<std::string> sana = {"blocks.3.mlp.t_conv", "y_embedder.y_proj.fc1", "t_block.1",
                                   "final_layer.linear",  "x_embedder.proj",       "t_embedder.mlp.0"};
  for (const char* linear : {"attn.q", "attn.k", "attn.v", "attn.proj", "cross_attn.q_linear", "cross_attn.k_linear",
                             "cross_attn.v_linear", "cross_attn.proj"})
    sana.push_back(std::string("blocks.11.") + linear);
  std::vector<std::string> wan = modules();
  wan.insert(wan.end(),
             {"patch_embedding", "text_embedding.0", "img_emb.proj.1", "blocks.2.norm3", "blocks.2.self_attn.norm_q"});
  return {{form_with("wan"), wan},
          {form_with("sana", "image"), sana},
          {form_with("sana", "sprint"), sana},
          {form_with("sana", "video"), sana},
          {form_with("opensora2", "mmdit"), {"double_blocks.1.img_attn.v_proj", "single_blocks.0.mlp", "img_in"}},
          {form_with("hunyuan1.5", "t2v"),
           {"double_blocks.1.img_attn_v", "double_blocks.9.txt_mlp.fc2", "double_blocks.0.img_mod.linear",
            "txt_in.individual_token_refiner.blocks.1.mlp.fc1", "byt5_in.fc2"}},
          {form_with("stdit3", "1.2"), {"spatial_blocks.0.attn.q", "temporal_blocks.3.mlp.fc1"}}};
}

TEST(LoraNames, EveryModuleComesBackFromEveryNamingThatItsFamilyHas) {
  int found = 0;
  for (const auto& [form, modules] : all_modules()) {
    ASSERT_TRUE(form);
    for (const std::string& naming : families::kLoraNamings) {
      if (families::lora_route(family_with(form), naming).modules == families::LoraModules::none) continue;
      for (const std::string& module : modules)
        for (const LoraPart part : {LoraPart::down, LoraPart::up, LoraPart::alpha, LoraPart::magnitude}) {
          const auto stored = lora_tensor_name(module, part, naming, form);
          if (!stored) continue;  // some namings have no place for it
          const auto names = detect_lora_names({*lora_tensor_name(module, LoraPart::down, naming, form)}, form);
          ASSERT_TRUE(names) << *stored;
          EXPECT_EQ(names->naming, naming) << *stored;
          const auto key = names->parse(*stored);
          ASSERT_TRUE(key) << *stored;
          EXPECT_EQ(key->module, module) << *stored;
          EXPECT_EQ(key->part, part) << *stored;
          ++found;
        }
    }
  }
  EXPECT_GT(found, 300);
}

TEST(LoraNames, AreThoseThatOtherProgramsWrite) {
  const WeightForm *wan = form_with("wan"), *sana = form_with("sana", "image");
  EXPECT_EQ(lora_tensor_name("blocks.0.self_attn.o", LoraPart::down, "diffusers", wan),
            "transformer.blocks.0.attn1.to_out.0.lora_A.weight");
  EXPECT_EQ(lora_tensor_name("blocks.0.cross_attn.k_img", LoraPart::up, "kohya", wan),
            "lora_unet_blocks_0_cross_attn_k_img.lora_up.weight");
  EXPECT_EQ(lora_tensor_name("blocks.0.ffn.0", LoraPart::up, "diffsynth", wan), "blocks.0.ffn.0.lora_B.default.weight");
  EXPECT_EQ(lora_tensor_name("blocks.0.ffn.0", LoraPart::magnitude, "comfyui", wan),
            "diffusion_model.blocks.0.ffn.0.dora_scale");
  EXPECT_EQ(lora_tensor_name("blocks.0.ffn.0", LoraPart::magnitude, "diffsynth", wan), std::nullopt);
  EXPECT_EQ(lora_tensor_name("patch_embedding", LoraPart::down, "comfyui", wan),
            "diffusion_model.patch_embedding.lora_A.weight");
  EXPECT_EQ(lora_tensor_name("blocks.4.attn.q", LoraPart::down, "peft", sana),
            "base_model.model.transformer_blocks.4.attn1.to_q.lora_A.weight")
      << "diffusers' model is the one that has queries alone";
  EXPECT_EQ(lora_module_name("final_layer.linear", "diffusers", sana), "proj_out");
}

TEST(LoraNames, AModelIsFoundOnceForTheFileAndByMostOfItsModules) {
  const auto form = [](std::vector<std::string> modules, const char* prefix) {
    for (std::string& module : modules) module = prefix + module + ".lora_A.weight";
    return detect_lora_names(modules)->form;
  };
  for (const char* prefix : {"base_model.model.", "transformer.", ""}) {
    EXPECT_EQ(form({"patch_embedding", "proj_out", "blocks.0.attn1.to_q"}, prefix), form_with("wan"));
    EXPECT_EQ(family_with(form({"patch_embed.proj", "proj_out", "transformer_blocks.0.attn1.to_q"}, prefix)), "sana");
    EXPECT_EQ(form({"patch_embedding", "transformer_blocks.0.ff.conv_temp"}, prefix), form_with("sana", "video"));
    EXPECT_EQ(form({"time_embed.guidance_embedder.linear_1", "proj_out"}, prefix), form_with("sana", "sprint"));
  }
  const auto sana = detect_lora_names(
      {"transformer.proj_out.lora_A.weight", "transformer.transformer_blocks.0.attn1.to_q.lora_A.weight"});
  EXPECT_EQ(sana->parse("transformer.proj_out.lora_A.weight")->module, "final_layer.linear");
  const auto wan =
      detect_lora_names({"transformer.proj_out.lora_A.weight", "transformer.blocks.0.attn1.to_q.lora_A.weight"});
  EXPECT_EQ(wan->parse("transformer.proj_out.lora_A.weight")->module, "head.head");
}

TEST(LoraNames, OfSeveralModelsAreToldUnlessTheBaseIsKnown) {
  const std::string name = "transformer.proj_out.lora_A.weight";
  const auto alone = detect_lora_names({name});
  EXPECT_NE(alone->rivals.find("Wan"), std::string::npos) << alone->rivals;
  EXPECT_NE(alone->rivals.find("Sana"), std::string::npos) << alone->rivals;
  for (const auto& [base, module] :
       {std::pair{form_with("wan"), "head.head"}, {form_with("sana", "sprint"), "final_layer.linear"}}) {
    const auto names = detect_lora_names({name}, base);
    EXPECT_EQ(names->rivals, "");
    EXPECT_EQ(names->form, base);
    EXPECT_EQ(names->parse(name)->module, module);
  }
  EXPECT_EQ(detect_lora_names({"transformer.transformer_blocks.0.attn1.to_q.lora_A.weight"})->rivals, "")
      << "all of Sana's models mean the same by it";
}

TEST(LoraNames, AModuleThatIsSeveralOfOursIsDividedByRows) {
  const auto names = detect_lora_names({"transformer.transformer_blocks.1.ff.conv_inverted.lora_A.weight"});
  ASSERT_EQ(family_with(names->form), "sana");
  const auto key = names->parse("transformer.transformer_blocks.1.ff.conv_inverted.lora_A.weight");
  const auto halves = lora_pieces(names->form, key->module);
  ASSERT_EQ(halves.size(), 2u);
  EXPECT_EQ(halves[0].module, "blocks.1.mlp.inverted_conv.value");
  EXPECT_EQ(halves[1].module, "blocks.1.mlp.inverted_conv.gate");
  EXPECT_EQ(halves[1].rows.first, 1);
  EXPECT_EQ(lora_pieces(names->form, "blocks.1.attn.qkv").size(), 3u) << "as NVlabs' code has it";
  EXPECT_TRUE(lora_pieces(names->form, "blocks.1.attn.q").empty());
  EXPECT_TRUE(lora_pieces(form_with("wan"), "blocks.1.self_attn.q").empty());
}

TEST(LoraNames, OneTableSaysWhatOfAFamilyIsWrittenAndWhyNot) {
  for (const auto& [form, modules] : all_modules())
    for (const std::string& naming : families::kLoraNamings) {
      const auto rows = std::ranges::count_if(families::lora_routes(), [&](const families::LoraRoute& route) {
        return route.family == family_with(form) && route.naming == naming;
      });
      EXPECT_EQ(rows, 1) << family_with(form) << " " << naming;
    }
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
    {"transformer.base_model.model.blocks.1.attn1.to_q.lora_A.weight", "diffusers", "blocks.1.self_attn.q"},
    {"lycoris_blocks_1_self_attn_q.lora_down.weight", "kohya", "blocks.1.self_attn.q"},
    {"lycoris_blocks_1_attn1_to_q.lora_down.weight", "kohya", "blocks.1.self_attn.q"},
    {"lycoris_transformer_blocks_1_attn2_to_k.lora_down.weight", "kohya", "blocks.1.cross_attn.k_linear"},
    {"lora_unet__blocks_1_cross_attn_k.lora_down.weight", "kohya", "blocks.1.cross_attn.k"},
    {"lycoris_blocks_1_norm3.diff", "kohya", "blocks.1.norm3"},
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

TEST(LoraNames, FactorsOfLoHaAndLoKrAreCalledAlikeInAllNamings) {
  const LoraNames kohya{.naming = "kohya", .prefix = "lora_unet_", .form = form_with("wan")};
  const auto key = kohya.parse("lora_unet_blocks_0_ffn_0.lokr_w2_b");
  ASSERT_TRUE(key);
  EXPECT_EQ(key->module, "blocks.0.ffn.0");
  EXPECT_EQ(key->part, LoraPart::lokr_w2_b);
  EXPECT_TRUE(is_adapter_tensor("lycoris_blocks_0_ffn_0.hada_w1_a"));
  EXPECT_EQ(lora_tensor_name("blocks.0.ffn.0", LoraPart::hada_t2, "comfyui", form_with("wan")),
            "diffusion_model.blocks.0.ffn.0.hada_t2");
  EXPECT_EQ(alpha_name("blocks.0.ffn.0", "diffusers", form_with("wan")), "transformer.blocks.0.ffn.net.0.proj.alpha");
}

TEST(LoraNames, WhatIsNoneIsNotTakenForOne) {
  EXPECT_FALSE(detect_lora_names({"blocks.0.self_attn.q.weight", "head.head.bias"}));
  EXPECT_FALSE(is_adapter_tensor("blocks.0.ffn.0.lokr_w3"));
  EXPECT_FALSE(detect_lora_names({"blocks.0.self_attn.q.diff"}));
  const LoraNames kohya{.naming = "kohya", .prefix = "lora_unet_", .form = form_with("wan")};
  EXPECT_FALSE(kohya.parse("lora_unet_some_module_of_another_model.lora_down.weight")) << "its dots are lost";
}

}  // namespace
}  // namespace tessera::models
