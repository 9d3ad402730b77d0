// Every part of a model, in the folders that programs make: one question, one answer. Names decide, so files are empty.
#include "tessera/checkpoint/model_folder.h"

#include <map>

#include "checkpoint/files.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

class Parts : public FileTest {
 protected:
  void make(const std::vector<std::string>& files) const {
    for (const std::string& file : files) write(file, file.ends_with(".json") ? "{}" : "");
  }
  /// Role and place, relative to the test's folder.
  std::map<std::string, std::string> parts(const std::string& folder) const {
    std::map<std::string, std::string> found;
    for (const ModelPart& part : find_parts(path(folder)).parts)
      found[part.role] = part.weights.lexically_relative(folder_).generic_string();
    return found;
  }
  std::string part(const std::string& folder, const std::string& role) const {
    return find_part(path(folder), role).weights.lexically_relative(folder_).generic_string();
  }
  using Found = std::map<std::string, std::string>;
};

TEST_F(Parts, OfAnOfficialReleaseAreFoundByTheNamesOfItsFiles) {
  make({"w/config.json", "w/diffusion_pytorch_model.safetensors", "w/models_t5_umt5-xxl-enc-bf16.pth",
        "w/Wan2.1_VAE.pth", "w/models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth",
        "w/google/umt5-xxl/spiece.model"});
  EXPECT_EQ(find_parts(path("w")).layout, "official");
  EXPECT_EQ(parts("w"), (Found{{"transformer", "w"},
                               {"text_encoder", "w/models_t5_umt5-xxl-enc-bf16.pth"},
                               {"vae", "w/Wan2.1_VAE.pth"},
                               {"image_encoder", "w/models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"},
                               {"tokenizer", "w/google/umt5-xxl"}}));
  EXPECT_TRUE(find_part(path("w"), "vae").config.empty()) << "the config.json is the transformer's";
  make({"w/Wan2.1_VAE.config.json"});
  EXPECT_EQ(find_part(path("w"), "vae").config, path("w/Wan2.1_VAE.config.json"));
  EXPECT_EQ(find_part(path("w/Wan2.1_VAE.pth"), "vae").config, path("w/Wan2.1_VAE.config.json"));

  make({"e/high_noise_model/config.json", "e/low_noise_model/config.json", "e/Wan2.1_VAE.safetensors",
        "e/wav2vec2-large-xlsr-53-english/config.json"});
  EXPECT_EQ(parts("e"), (Found{{"transformer", "e/high_noise_model"},
                               {"transformer_2", "e/low_noise_model"},
                               {"vae", "e/Wan2.1_VAE.safetensors"},
                               {"audio_encoder", "e/wav2vec2-large-xlsr-53-english"}}));

  make({"o/Open_Sora_v2.safetensors", "o/hunyuan_vae.safetensors", "o/google/t5-v1_1-xxl/config.json",
        "o/openai/clip-vit-large-patch14/config.json"});
  EXPECT_EQ(part("o", "transformer"), "o/Open_Sora_v2.safetensors");
  EXPECT_EQ(part("o", "text_encoder"), "o/google/t5-v1_1-xxl");
  EXPECT_EQ(part("o", "tokenizer"), "o/google/t5-v1_1-xxl");
  EXPECT_EQ(part("o", "pooled_encoder"), "o/openai/clip-vit-large-patch14");
  EXPECT_EQ(part("o", "pooled_tokenizer"), "o/openai/clip-vit-large-patch14");

  make({"h/transformer/480p_t2v/config.json", "h/vae/config.json", "h/text_encoder/llm/config.json",
        "h/text_encoder/llm/tokenizer.json", "h/text_encoder/byt5-small/config.json",
        "h/text_encoder/Glyph-SDXL-v2/checkpoints/byt5_model.pt", "h/vision_encoder/siglip/image_encoder/config.json"});
  const Found all = {{"transformer", "h/transformer/480p_t2v"},
                     {"vae", "h/vae"},
                     {"text_encoder", "h/text_encoder/llm"},
                     {"text_encoder_2", "h/text_encoder/Glyph-SDXL-v2/checkpoints"},
                     {"image_encoder", "h/vision_encoder/siglip/image_encoder"},
                     {"tokenizer", "h/text_encoder/llm"}};
  EXPECT_EQ(parts("h"), all);
  EXPECT_EQ(find_parts(path("h")).layout, "official") << "with folders that a pipeline of diffusers has too";
  EXPECT_EQ(part("h", "pooled_encoder"), "h/text_encoder/Glyph-SDXL-v2/checkpoints");
  make({"h/transformer/720p_t2v/config.json"});
  Found others = all;
  others.erase("transformer");
  EXPECT_EQ(parts("h"), others) << "which of two denoisers is meant only the user knows";
  EXPECT_EQ(part("h/transformer/720p_t2v", "transformer"), "h/transformer/720p_t2v");
}

TEST_F(Parts, OfAPipelineAreItsFolders) {
  make({"p/model_index.json", "p/transformer/config.json", "p/transformer_2/config.json", "p/text_encoder/config.json",
        "p/vae/config.json", "p/image_encoder/config.json", "p/tokenizer/tokenizer.json",
        "p/scheduler/scheduler_config.json"});
  const Found all = {{"transformer", "p/transformer"},     {"transformer_2", "p/transformer_2"},
                     {"text_encoder", "p/text_encoder"},   {"vae", "p/vae"},
                     {"image_encoder", "p/image_encoder"}, {"tokenizer", "p/tokenizer"}};
  EXPECT_EQ(parts("p"), all);
  fs::remove(path("p/model_index.json"));
  EXPECT_EQ(parts("p"), all) << "a copy of some folders has no index";
  EXPECT_EQ(find_part(path("p"), "vae").config, path("p/vae/config.json"));
  EXPECT_EQ(part("p/vae", "vae"), "p/vae") << "the part itself";
  expect_error(Exit::input, {"holds no audio_encoder, but transformer", "tokenizer"},
               [&] { find_part(path("p"), "audio_encoder"); });

  make({"f/model_index.json", "f/transformer/config.json", "f/text_encoder_2/config.json", "f/tokenizer/vocab.json",
        "f/tokenizer_2/spiece.model"});
  write("f/text_encoder/config.json", R"({"model_type": "clip_text_model"})");
  EXPECT_EQ(part("f", "text_encoder"), "f/text_encoder_2") << "Flux's first encoder is CLIP";
  EXPECT_EQ(part("f", "tokenizer"), "f/tokenizer_2");
  EXPECT_EQ(part("f", "pooled_encoder"), "f/text_encoder");
  EXPECT_EQ(part("f", "pooled_tokenizer"), "f/tokenizer");
}

TEST_F(Parts, OfComfyUiAreTheFilesOfItsFolders) {
  for (const std::string root : {"c/", "s/split_files/", "m/models/"})
    make({root + "diffusion_models/wan2.2_t2v_high_noise_14B_fp16.safetensors",
          root + "diffusion_models/wan2.2_t2v_low_noise_14B_fp16.safetensors",
          root + "text_encoders/umt5_xxl_fp16.safetensors", root + "text_encoders/clip_l.safetensors",
          root + "vae/wan_2.1_vae.safetensors", root + "clip_vision/clip_vision_h.safetensors"});
  for (const auto& [folder, root] : Found{{"c", "c/"}, {"s", "s/split_files/"}, {"m", "m/models/"}}) {
    EXPECT_EQ(find_parts(path(folder)).layout, "comfyui");
    EXPECT_EQ(parts(folder),
              (Found{{"transformer", root + "diffusion_models/wan2.2_t2v_high_noise_14B_fp16.safetensors"},
                     {"transformer_2", root + "diffusion_models/wan2.2_t2v_low_noise_14B_fp16.safetensors"},
                     {"text_encoder", root + "text_encoders/umt5_xxl_fp16.safetensors"},
                     {"text_encoder_2", root + "text_encoders/clip_l.safetensors"},
                     {"vae", root + "vae/wan_2.1_vae.safetensors"},
                     {"image_encoder", root + "clip_vision/clip_vision_h.safetensors"}}));
  }
  make({"c/google/umt5-xxl/spiece.model"});
  EXPECT_EQ(find_parts(path("c")).parts.back().role, "tokenizer") << "where our convert puts it";
  EXPECT_EQ(find_parts(path("c")).parts.size(), 7u) << "once";
  make({"c/vae/another.safetensors"});
  EXPECT_EQ(part("c", "vae"), "c/vae") << "which of two is meant its opener asks";
  make({"u/unet/a.safetensors", "u/clip/t5.safetensors", "u/clip_vision/h.safetensors"});
  EXPECT_EQ(part("u", "transformer"), "u/unet/a.safetensors") << "the folders' older names";
  EXPECT_EQ(part("u", "text_encoder"), "u/clip/t5.safetensors");
  make({"h/text_encoders/qwen_2.5_vl_7b.safetensors", "h/text_encoders/byt5_small_glyphxl_fp16.safetensors",
        "h/clip_vision/sigclip_vision_patch14_384.safetensors", "h/vae/hunyuanvideo15_vae_fp16.safetensors"});
  EXPECT_EQ(part("h", "text_encoder"), "h/text_encoders/qwen_2.5_vl_7b.safetensors");
  EXPECT_EQ(part("h", "pooled_encoder"), "h/text_encoders/byt5_small_glyphxl_fp16.safetensors");
  EXPECT_EQ(part("h", "image_encoder"), "h/clip_vision/sigclip_vision_patch14_384.safetensors");
}

TEST_F(Parts, ThatDiffSynthKeepsForAllModelsAreThoseOfTheRelease) {
  const std::string shared = "models/DiffSynth-Studio/Wan-Series-Converted-Safetensors/";
  make({"models/Wan-AI/Wan2.1-T2V-1.3B/diffusion_pytorch_model.safetensors",
        "models/Wan-AI/Wan2.1-T2V-1.3B/google/umt5-xxl/spiece.model",
        "models/Wan-AI/Wan2.2-TI2V-5B/diffusion_pytorch_model-00001-of-00003.safetensors",
        shared + "models_t5_umt5-xxl-enc-bf16.safetensors", shared + "Wan2.1_VAE.safetensors",
        shared + "Wan2.2_VAE.safetensors", shared + "models_clip_open-clip-xlm-roberta-large-vit-huge-14.safetensors"});
  EXPECT_EQ(find_parts(path("models/Wan-AI/Wan2.1-T2V-1.3B")).layout, "diffsynth");
  EXPECT_EQ(parts("models/Wan-AI/Wan2.1-T2V-1.3B"),
            (Found{{"transformer", "models/Wan-AI/Wan2.1-T2V-1.3B"},
                   {"text_encoder", shared + "models_t5_umt5-xxl-enc-bf16.safetensors"},
                   {"vae", shared + "Wan2.1_VAE.safetensors"},
                   {"tokenizer", "models/Wan-AI/Wan2.1-T2V-1.3B/google/umt5-xxl"}}));
  EXPECT_EQ(part("models/Wan-AI/Wan2.2-TI2V-5B", "vae"), shared + "Wan2.2_VAE.safetensors");
  EXPECT_EQ(part("models/Wan-AI/Wan2.2-TI2V-5B/", "tokenizer"), "models/Wan-AI/Wan2.1-T2V-1.3B/google/umt5-xxl");
}

TEST_F(Parts, OfTheHubsCacheAreThoseOfTheSnapshot) {
  make({"models--Org--Name/snapshots/aaaa/model_index.json", "models--Org--Name/snapshots/aaaa/transformer/config.json",
        "models--Org--Name/snapshots/aaaa/vae/config.json", "models--Org--Name/snapshots/bbbb/model_index.json"});
  write("models--Org--Name/refs/main", "aaaa\n");
  EXPECT_EQ(part("models--Org--Name", "vae"), "models--Org--Name/snapshots/aaaa/vae");
  EXPECT_EQ(find_parts(path("models--Org--Name")).path, path("models--Org--Name/snapshots/aaaa"));
}

TEST_F(Parts, AModelByItselfIsOnePart) {
  make({"one/config.json", "one/model.safetensors", "two/my.safetensors", "bare/Wan2.1_VAE.pth"});
  EXPECT_EQ(parts("one"), (Found{{"model", "one"}}));
  EXPECT_EQ(part("one", "text_encoder"), "one") << "whatever it is asked for";
  EXPECT_EQ(parts("two"), (Found{{"model", "two"}}));
  EXPECT_EQ(part("bare", "vae"), "bare/Wan2.1_VAE.pth");
  expect_error(Exit::input, {"holds no text_encoder, but vae"}, [&] { find_part(path("bare"), "text_encoder"); });
  expect_error(Exit::input, {"no such file or folder"}, [&] { find_parts(path("nowhere")); });
}

TEST_F(Parts, FactsAreThoseOfThePipelineOrOfTheRunThatMadeTheExperts) {
  write("p/model_index.json", R"({"boundary_ratio": 0.8})");
  write("p/scheduler/scheduler_config.json", R"({"flow_shift": 3.0, "other": [1]})");
  make({"p/transformer/config.json", "p/transformer_2/config.json"});
  for (const char* place : {"p", "p/", "p/transformer", "p/transformer_2"}) {
    EXPECT_EQ(find_facts(path(place)).boundary, 0.8) << place;
    EXPECT_EQ(find_facts(path(place)).flow_shift, 3.0) << place;
    EXPECT_EQ(find_facts(path(place)).file, path("p/model_index.json")) << place;
  }
  EXPECT_FALSE(find_facts(path("p/vae")).boundary) << "another part's folder";
  for (const char* text : {R"({"boundary_ratio": null})", R"({"boundary_ratio": "0.8"})", "[]", "{", ""}) {
    write("p/model_index.json", text);
    EXPECT_FALSE(find_facts(path("p")).boundary) << text;
    EXPECT_EQ(find_facts(path("p")).flow_shift, 3.0) << text;
  }
  write("e/experts.json", experts_text({.boundary = 0.9, .flow_shift = 12}));
  make({"e/high_noise_model/config.json"});
  for (const char* place : {"e", "e/high_noise_model", "e/high_noise_model/"}) {
    EXPECT_EQ(find_facts(path(place)).boundary, 0.9) << place;
    EXPECT_EQ(find_facts(path(place)).flow_shift, 12) << place;
  }
  EXPECT_FALSE(find_facts({}).boundary);
}

}  // namespace tessera::checkpoint
