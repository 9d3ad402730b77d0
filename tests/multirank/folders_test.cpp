// A tiny Wan in the folders of every program: each command finds each part in each of them, and what convert writes of a
// pipeline has all that the pipeline had.
#include <fstream>

#include "need_goldens.h"
#include "program.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

constexpr const char* kModel = R"(family = "wan"
config = { dim = 64, ffn_dim = 128, num_heads = 4, num_layers = 2, in_dim = 16, out_dim = 16, freq_dim = 32, text_dim = 64, text_len = 16 })";

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

class Folders : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEED_GOLDENS();
    const fs::path goldens = TESSERA_GOLDENS;
    const Result made = run_.train(1, "source", {"--run.steps", "1", "--data.vae", "haar:16"});
    ASSERT_EQ(made.code, 0) << made.output;
    fs::rename(run_.out("source") + "/model", official_);
    done({"convert", (goldens / "wan21_vae/model.safetensors").string(), (official_ / "Wan2.1_VAE.pth").string()});
    done({"convert", (goldens / "umt5/model.safetensors").string(),
          (official_ / "models_t5_umt5-xxl-enc-bf16.pth").string()});
    fs::create_directories(official_ / "google/umt5-xxl");
    fs::copy(goldens / "umt5/spiece.model", official_ / "google/umt5-xxl/spiece.model");
    done({"convert", official_.string(), pipeline_.string(), "--to", "diffusers"});
  }
  Result done(const Flags& arguments) const {
    Result r = run_.tessera(arguments);
    EXPECT_EQ(r.code, 0) << arguments[0] << "\n" << r.output;
    return r;
  }
  /// The same folder for every key.
  Flags from(const fs::path& folder, const fs::path& tokenizer = {}) const {
    const std::string path = folder.string();
    return {"--model.path",
            path,
            "--data.vae",
            path,
            "--data.text_encoder_path",
            path,
            "--data.tokenizer",
            tokenizer.empty() ? path : tokenizer.string(),
            "--data.frames",
            "5",
            "--run.steps",
            "1"};
  }
  Result with(const std::string& command, Flags flags) const {
    flags.insert(flags.begin(), {command, run_.folder() / "small.toml"});
    return done(flags);
  }
  nlohmann::json inspected(const fs::path& folder) const {
    return nlohmann::json::parse(done({"inspect", "--json", folder.string()}).output, nullptr, false);
  }
  static std::map<std::string, std::string> namings(const nlohmann::json& inspected) {
    std::map<std::string, std::string> found;
    for (const auto& part : inspected.at("parts")) {
      EXPECT_FALSE(part.at("files").empty()) << part;
      EXPECT_TRUE(part.contains("dtype")) << part;
      found[part.at("part")] = part.at("naming");
    }
    return found;
  }

  const TinyRun run_{"folders", TESSERA_BINARY, kModel};
  const fs::path official_ = run_.folder() / "official", pipeline_ = run_.folder() / "pipeline";
};

TEST_F(Folders, EveryCommandFindsEveryPartInTheFoldersOfEveryProgram) {
  std::string recipe = text_of(run_.recipe());
  recipe.erase(recipe.find("family ="), std::string(kModel).size());  // the folders tell the model
  write(run_.folder() / "small.toml", recipe);
  const fs::path comfyui = run_.folder() / "comfyui", variant = run_.folder() / "variant";
  done({"convert", official_.string(), comfyui.string(), "--to", "comfyui"});
  fs::create_directories(comfyui / "split_files");
  for (const char* part : {"diffusion_models", "text_encoders", "vae"})
    fs::rename(comfyui / part, comfyui / "split_files" / part);
  fs::copy(pipeline_, variant, fs::copy_options::recursive);
  for (const char* stem : {"transformer/diffusion_pytorch_model", "vae/diffusion_pytorch_model", "text_encoder/model"})
    fs::rename(variant / (std::string(stem) + ".safetensors"), variant / (std::string(stem) + ".fp16.safetensors"));
  const fs::path hub = run_.folder() / "hub/models--Org--Tiny/snapshots/aaaa";
  fs::create_directories(hub.parent_path());
  fs::copy(pipeline_, hub, fs::copy_options::recursive);
  write(run_.folder() / "hub/models--Org--Tiny/refs/main", "aaaa");

  const auto flags_of = [&](const fs::path& folder) {  // ComfyUI has no config.json
    Flags flags = from(folder);
    if (folder == comfyui)
      flags.insert(flags.end(), {"--model.config.num_heads", "4", "--model.config.text_len", "16"});
    return flags;
  };
  for (const auto& [folder, layout, naming] :
       {std::tuple(official_, "official folder", "official"),
        {pipeline_, "diffusers folder", "diffusers"},
        {comfyui, "comfyui folder", "comfyui"},
        {variant, "diffusers folder", "diffusers"},
        {run_.folder() / "hub/models--Org--Tiny", "diffusers folder", "diffusers"}}) {
    SCOPED_TRACE(folder);
    const nlohmann::json seen = inspected(folder);
    EXPECT_EQ(seen["layout"], layout);
    const auto parts = namings(seen);
    EXPECT_EQ(parts.size(), 4u) << seen;
    EXPECT_EQ(parts.at("transformer"), naming);
    EXPECT_EQ(parts.at("tokenizer"), "spiece.model");
    EXPECT_TRUE(seen["missing"].empty()) << seen;
    with("prepare", flags_of(folder));
  }
  with("plan", from(pipeline_));
  Flags sample = flags_of(comfyui);
  sample.insert(sample.begin(), {"--weights", comfyui.string(), "--prompt", "a square", "--out",
                                 (run_.folder() / "a.gif").string(), "--sample.steps", "1"});
  with("sample", sample);
  fs::remove_all(pipeline_ / "tokenizer");
  fs::remove(pipeline_ / "text_encoder/model.safetensors");
  const nlohmann::json seen = inspected(pipeline_);
  EXPECT_EQ(seen["missing"], (nlohmann::json{"text_encoder", "tokenizer"})) << seen;
  EXPECT_NE(run_.tessera({"inspect", pipeline_.string()}).output.find("text_encoder, tokenizer, to train"),
            std::string::npos);
  fs::remove_all(official_ / "google");
  fs::remove(official_ / "models_t5_umt5-xxl-enc-bf16.pth");
  Flags flags = from(official_);
  flags.insert(flags.begin(), {"prepare", (run_.folder() / "small.toml").string()});
  const Result refused = run_.tessera(flags);
  EXPECT_EQ(refused.code, 3) << refused.output;
  EXPECT_NE(refused.output.find("holds no text_encoder, but transformer and vae"), std::string::npos) << refused.output;
}

TEST_F(Folders, TheBoundaryOfTwoExpertsIsThatOfThePipeline) {
  fs::copy(pipeline_ / "transformer", pipeline_ / "transformer_2", fs::copy_options::recursive);
  nlohmann::json index = json_of(pipeline_ / "model_index.json");
  index["boundary_ratio"] = 0.8;
  write(pipeline_ / "model_index.json", index.dump());
  EXPECT_EQ(inspected(pipeline_)["boundary"], 0.8);
  const Result plan =
      run_.tessera({"plan", run_.recipe(), "--model.path", pipeline_.string(), "--data.vae", "haar:16"});
  EXPECT_EQ(plan.code, 0) << plan.output;
  EXPECT_NE(plan.output.find("high noise from timestep 0.8"), std::string::npos) << plan.output;
  const fs::path back = run_.folder() / "back";
  done({"convert", pipeline_.string(), back.string(), "--to", "official"});
  EXPECT_EQ(json_of(back / "experts.json")["boundary"], 0.8) << "the official form has no other place for it";
  done({"convert", back.string(), (run_.folder() / "there").string(), "--to", "diffusers"});
  EXPECT_EQ(json_of(run_.folder() / "there/model_index.json")["boundary_ratio"], 0.8);
}

TEST_F(Folders, ConvertingAPipelineLosesNothing) {
  write(pipeline_ / "image_processor/preprocessor_config.json", R"({"size": {"shortest_edge": 28}})");
  write(pipeline_ / "scheduler/scheduler_config.json", R"({"flow_shift": 3.0, "num_train_timesteps": 1000})");
  write(pipeline_ / "text_encoder/generation_config.json", "{}");
  write(pipeline_ / "README.md", "a model");
  write(pipeline_ / ".cache/huggingface/x.lock", "");
  write(pipeline_ / "own/diffusion_pytorch_model.safetensors", "weights of a component of its own");
  nlohmann::json index = json_of(pipeline_ / "model_index.json");
  index["own"] = {"diffusers", "OwnModel"}, index["further"] = 16;
  write(pipeline_ / "model_index.json", index.dump());
  auto config = nlohmann::ordered_json::parse(text_of(pipeline_ / "text_encoder/config.json"));
  config["query_pre_attn_scalar"] = 16, config["mine"] = {{"a", 1}, {"b", 1.0}}, config["torch_dtype"] = "float32";
  write(pipeline_ / "text_encoder/config.json", config.dump());
  const std::string vae = text_of(pipeline_ / "vae/config.json"),
                    transformer = text_of(pipeline_ / "transformer/config.json");

  const fs::path out = run_.folder() / "bf16";
  done({"convert", pipeline_.string(), out.string(), "--dtype", "bf16"});
  for (const char* file :
       {"image_processor/preprocessor_config.json", "scheduler/scheduler_config.json",
        "text_encoder/generation_config.json", "README.md", "tokenizer/spiece.model",
        "own/diffusion_pytorch_model.safetensors", "model_index.json", "vae/config.json", "transformer/config.json"})
    EXPECT_EQ(text_of(out / file), text_of(pipeline_ / file)) << file;
  EXPECT_FALSE(fs::exists(out / ".cache"));
  config["torch_dtype"] = "bfloat16";
  EXPECT_EQ(text_of(out / "text_encoder/config.json"), config.dump(2) + "\n") << "integers and further fields stay";
  EXPECT_EQ(checkpoint::open_weights(out / "text_encoder").at("encoder.block.0.layer.0.SelfAttention.q.weight").dtype,
            DType::bf16);

  const fs::path official = run_.folder() / "away", back = run_.folder() / "again";
  auto settings = nlohmann::ordered_json::parse(vae);
  settings["latents_mean"][0] = 0.5;
  write(pipeline_ / "vae/config.json", settings.dump());
  const Result told = done({"convert", pipeline_.string(), official.string(), "--to", "official"});
  EXPECT_NE(told.output.find("Wan2.1_VAE.config.json has them"), std::string::npos) << told.output;
  done({"convert", official.string(), back.string(), "--to", "diffusers"});
  EXPECT_EQ(json_of(back / "vae/config.json")["latents_mean"][0], 0.5) << "through a form that has no place for it";
  EXPECT_EQ(text_of(back / "scheduler/scheduler_config.json"), text_of(pipeline_ / "scheduler/scheduler_config.json"));
  EXPECT_EQ(text_of(back / "image_processor/preprocessor_config.json"),
            text_of(pipeline_ / "image_processor/preprocessor_config.json"));
  EXPECT_EQ(json_of(back / "transformer/config.json"), nlohmann::json::parse(transformer));
}

TEST_F(Folders, WhatAFolderHoldsIsSaidAsItIs) {
  const fs::path goldens = TESSERA_GOLDENS;
  // a model that is not trained, in the transformer's place
  fs::copy_file(goldens / "hunyuan15_meanflow/diffusers.safetensors",
                pipeline_ / "transformer/diffusion_pytorch_model.safetensors", fs::copy_options::overwrite_existing);
  fs::copy_file(goldens / "hunyuan15_meanflow/diffusers_config.json", pipeline_ / "transformer/config.json",
                fs::copy_options::overwrite_existing);
  const nlohmann::json seen = inspected(pipeline_);
  EXPECT_EQ(seen["missing"][0], "transformer") << "which is not trained: " << seen["missing"];
  EXPECT_NE(seen["parts"][0]["note"].get<std::string>().find("not trained here: "), std::string::npos) << seen;
  EXPECT_EQ(inspected(goldens / "wan_animate/model.safetensors")["model"], "wan-animate");
  for (const char* trained : {"wan_vace", "wan_animate", "wan_fun_control", "wan_fun_camera", "wan_fun22_5b_camera"})
    EXPECT_FALSE(inspected(goldens / trained / "model.safetensors").contains("note")) << trained;
  EXPECT_EQ(inspected(goldens / "gemma2/model.safetensors")["layers"], 4);
  EXPECT_EQ(inspected(goldens / "dc_ae")["naming"], "diffusers");
  EXPECT_EQ(inspected(pipeline_ / "vae")["parts"][0]["part"], "vae");
}

}  // namespace
}  // namespace tessera::testing
