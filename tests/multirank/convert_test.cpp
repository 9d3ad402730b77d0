// The program's convert and inspect: round trips are bit-equal, other programs' files are known, mistakes are named.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "checkpoint/torch_bytes.h"
#include "need_goldens.h"
#include "program.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/torch_zip.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::open_weights;
using checkpoint::WeightSet;

class Convert : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEED_GOLDENS();
    std::string pattern = (fs::temp_directory_path() / "tessera-convert-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  Result run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), TESSERA_BINARY);
    return run_program(arguments, {{"OMP_NUM_THREADS", "1"}});
  }
  void convert(const fs::path& in, const fs::path& out, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"convert", in.string(), out.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result r = run(arguments);
    ASSERT_EQ(r.code, 0) << r.output;
  }
  nlohmann::json inspect(const fs::path& path) const {
    const Result r = run({"inspect", "--json", path.string()});
    EXPECT_EQ(r.code, 0) << r.output;
    return nlohmann::json::parse(r.output, nullptr, false);
  }
  static nlohmann::json part_of(const nlohmann::json& inspected, const std::string& name) {
    for (const auto& part : inspected.at("parts"))
      if (part.at("part") == name) return part;
    return {};
  }
  /// A folder with a model and its config, as one downloads it.
  fs::path model(const std::string& name, const std::string& weights = "model.safetensors") const {
    const fs::path folder = folder_ / ("in-" + name);
    fs::create_directories(folder);
    const bool official = weights == "model.safetensors";
    fs::copy(goldens_ / name / weights, folder / "diffusion_pytorch_model.safetensors");
    fs::copy(goldens_ / name / (official ? "config.json" : "diffusers_config.json"), folder / "config.json");
    return folder;
  }
  static void expect_equal(const fs::path& a, const fs::path& b) {
    const WeightSet one = open_weights(a), other = open_weights(b);
    ASSERT_EQ(one.names(), other.names());
    for (const std::string& name : one.names()) {
      ASSERT_EQ(one.at(name).dtype, other.at(name).dtype) << name;
      ASSERT_EQ(one.at(name).shape, other.at(name).shape) << name;
      std::vector<char> x(static_cast<size_t>(one.at(name).bytes())), y = x;
      one.read(name, 0, one.at(name).count(), x.data());
      other.read(name, 0, one.at(name).count(), y.data());
      ASSERT_EQ(x, y) << name;
    }
  }

  const fs::path goldens_ = TESSERA_GOLDENS;
  fs::path folder_;
};

TEST_F(Convert, ModelsGoToDiffusersAndBackBitForBit) {
  for (const char* name :
       {"wan21_t2v", "wan21_i2v", "wan22_ti2v", "wan_vace", "wan_animate", "wan21_vae", "wan22_vae", "umt5"}) {
    const fs::path in = model(name), there = folder_ / (std::string(name) + "-there"),
                   back = folder_ / (std::string(name) + "-back");
    convert(in, there, {"--to", "diffusers"});
    expect_equal(there, goldens_ / name / "diffusers.safetensors");
    const auto config = json_of(there / "config.json");
    const auto expected = json_of(goldens_ / name / "diffusers_config.json");
    for (const auto& [key, value] : expected.items())
      EXPECT_EQ(config.value(key, nlohmann::json("absent")), value) << name << " " << key;
    convert(there, back, {"--to", "official"});
    expect_equal(back, in);
    const auto again = json_of(back / "config.json");
    for (const char* key : {"dim", "num_heads", "text_len", "model_type", "ffn_dim", "z_dim", "num_layers"})
      EXPECT_EQ(again.value(key, nlohmann::json()), json_of(in / "config.json").value(key, nlohmann::json()))
          << name << key;
  }
}

TEST_F(Convert, OfficialFilesOfAnimateHaveTheirConstantsWhateverTheyAreMadeOf) {
  const fs::path in = model("wan_animate", "diffusers.safetensors"), official = folder_ / "official",
                 comfyui = folder_ / "comfyui.safetensors", again = folder_ / "again.safetensors";
  convert(in, official, {"--to", "official"});
  expect_equal(official, goldens_ / "wan_animate/model.safetensors");
  EXPECT_EQ(json_of(official / "config.json")["_class_name"], "WanAnimateModel");
  EXPECT_EQ(part_of(inspect(in), "transformer")["naming"], "diffusers");
  convert(in, comfyui, {"--to", "comfyui"});
  const WeightSet there = open_weights(comfyui), expected = open_weights(goldens_ / "wan_animate/model.safetensors");
  ASSERT_EQ(there.names().size(), expected.names().size());
  for (const std::string& name : expected.names())
    EXPECT_EQ(there.at("model.diffusion_model." + name).shape, expected.at(name).shape) << name;
  convert(comfyui, again, {"--to", "diffusers"});
  expect_equal(again, in);

  const fs::path pipeline = folder_ / "pipeline", away = folder_ / "away", back = folder_ / "back";
  fs::create_directories(pipeline);
  fs::copy(in, pipeline / "transformer", fs::copy_options::recursive);
  fs::copy(model("wan21_vae", "diffusers.safetensors"), pipeline / "vae", fs::copy_options::recursive);
  convert(pipeline, away, {"--to", "official"});
  expect_equal(away / "diffusion_pytorch_model.safetensors", goldens_ / "wan_animate/model.safetensors");
  convert(away, back, {"--to", "diffusers"});
  expect_equal(back / "transformer/diffusion_pytorch_model.safetensors", in);
  EXPECT_EQ(json_of(back / "transformer/config.json")["_class_name"], "WanAnimateTransformer3DModel");
  const auto index = json_of(back / "model_index.json");
  EXPECT_EQ(index["_class_name"], "WanAnimatePipeline");
  EXPECT_EQ(index["transformer"], (nlohmann::json{"diffusers", "WanAnimateTransformer3DModel"}));
}

TEST_F(Convert, RowsThatFilesHoldTogetherComeApartAndTogetherBitForBit) {
  for (const char* name : {"sana", "sana_qknorm", "sana_sprint", "sana_video"}) {
    SCOPED_TRACE(name);
    const fs::path in = folder_ / (std::string(name) + "-in"), there = folder_ / (std::string(name) + "-there"),
                   back = folder_ / (std::string(name) + "-back");
    fs::create_directories(in);
    fs::copy(goldens_ / name / "original.safetensors", in / "diffusion_pytorch_model.safetensors");
    fs::copy(goldens_ / name / "config.json", in / "config.json");
    EXPECT_EQ(inspect(in)["naming"], "official");
    convert(in, there, {"--to", "diffusers"});
    expect_equal(there, goldens_ / name / "model.safetensors");
    EXPECT_EQ(open_weights(there / "official_only.safetensors").names(),
              std::vector<std::string>{"y_embedder.y_embedding"})
        << "diffusers has no place for it";
    for (const char* key : {"num_attention_heads", "mlp_ratio", "qk_norm", "patch_size", "interpolation_scale"})
      EXPECT_EQ(json_of(there / "config.json")[key], json_of(in / "config.json")[key]) << key;
    convert(there, back, {"--to", "official"});
    expect_equal(back, in);
  }
  // a checkpoint of the official trainer has more of its own: a table of positions, and a layer of its loss
  const fs::path more = folder_ / "more.safetensors", more_there = folder_ / "more-there.safetensors";
  {
    const auto in = checkpoint::SafetensorsFile::open(goldens_ / "sana/original.safetensors");
    std::vector<std::vector<std::byte>> bytes;
    std::vector<checkpoint::TensorData> tensors;
    for (const auto& entry : in.entries()) {
      bytes.push_back(in.bytes(entry.name));
      tensors.push_back({entry.name, entry.dtype, entry.shape, nullptr});
    }
    for (const auto& [name, shape] : {std::pair<std::string, checkpoint::Shape>("pos_embed", {1, 4, 6}),
                                      {"logvar_linear.weight", {1, 6}},
                                      {"logvar_linear.bias", {1}}}) {
      std::vector<float> values(static_cast<size_t>(*checkpoint::element_count(shape)));
      for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(i) - 3;
      const auto* first = reinterpret_cast<const std::byte*>(values.data());
      bytes.emplace_back(first, first + 4 * values.size());
      tensors.push_back({name, DType::f32, shape, nullptr});
    }
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = bytes[i].data();
    checkpoint::write_safetensors(more, tensors);
  }
  convert(more, more_there, {"--to", "diffusers"});
  expect_equal(more_there, goldens_ / "sana/model.safetensors");
  convert(more_there, folder_ / "more-back.safetensors", {"--to", "official"});
  expect_equal(folder_ / "more-back.safetensors", more);
  // the same from file to file, as the official program has them
  const fs::path there = folder_ / "sana.safetensors", back = folder_ / "sana.pth";
  convert(goldens_ / "sana/original.safetensors", there, {"--to", "diffusers"});
  expect_equal(there, goldens_ / "sana/model.safetensors");
  convert(there, back, {"--to", "official"});
  expect_equal(back, goldens_ / "sana/original.safetensors");
  convert(back, folder_ / "kept.safetensors");
  expect_equal(folder_ / "kept.safetensors", back);
}

TEST_F(Convert, HeadsRotatedByNeighboursBecomeHeadsRotatedByHalvesAndBackBitForBit) {
  const fs::path golden = goldens_ / "opensora2_flux";
  const std::vector<std::pair<std::string, std::string>> forms = {
      {"model.safetensors", "diffusers"}, {"original.safetensors", "fused"}, {"released.safetensors", "official"}};
  for (const auto& [from, naming] : forms) {
    EXPECT_EQ(inspect(golden / from)["naming"], naming);
    for (const auto& [to, wanted] : forms) {
      const fs::path made = folder_ / (naming + "-" + wanted + ".safetensors");
      convert(golden / from, made, {"--to", wanted});
      expect_equal(made, golden / to);
    }
  }
  // a folder that the trainer saved: fp32 masters, else its weights in bf16
  const fs::path saved = goldens_ / "opensora_checkpoint/checkpoint_sync/epoch0-global_step12",
                 weights = goldens_ / "opensora_checkpoint/checkpoint_async/epoch0-global_step12";
  convert(saved, folder_ / "masters.safetensors");
  expect_equal(folder_ / "masters.safetensors", saved / "master.safetensors");
  convert(weights, folder_ / "weights.safetensors");
  expect_equal(folder_ / "weights.safetensors", weights / "model");
  convert(weights, folder_ / "fused.safetensors", {"--to", "fused"});
  convert(folder_ / "fused.safetensors", folder_ / "back.safetensors", {"--to", "official"});
  expect_equal(folder_ / "back.safetensors", weights / "model");
}

TEST_F(Convert, FirstAndLastFrameModelsKeepTheirPositionsAndExpertsTheirFolders) {
  // no golden case has positions of two pictures: those of i2v with a tensor more
  const fs::path in = model("wan21_i2v"), weights = in / "diffusion_pytorch_model.safetensors";
  const auto stored = checkpoint::SafetensorsFile::open(goldens_ / "wan21_i2v/model.safetensors");
  std::vector<std::vector<std::byte>> bytes;
  std::vector<checkpoint::TensorData> tensors;
  for (const auto& entry : stored.entries()) {
    bytes.push_back(stored.bytes(entry.name));
    tensors.push_back({entry.name, entry.dtype, entry.shape, nullptr});
  }
  std::vector<float> positions(514 * 64);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<float>(i) / 1000;
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = bytes[i].data();
  tensors.push_back({"img_emb.emb_pos", DType::f32, {1, 514, 64}, positions.data()});
  checkpoint::write_safetensors(weights, tensors);
  auto config = json_of(in / "config.json");
  config["model_type"] = "flf2v";
  std::ofstream(in / "config.json") << config;
  EXPECT_EQ(inspect(in)["model"], "wan-flf2v");
  convert(in, folder_ / "there", {"--to", "diffusers"});
  EXPECT_TRUE(open_weights(folder_ / "there").contains("condition_embedder.image_embedder.pos_embed"));
  EXPECT_EQ(json_of(folder_ / "there/config.json")["pos_embed_seq_len"], 514);
  convert(folder_ / "there", folder_ / "back", {"--to", "official"});
  expect_equal(folder_ / "back", in);
  EXPECT_EQ(json_of(folder_ / "back/config.json")["model_type"], "flf2v");

  const fs::path experts = folder_ / "Wan2.2-T2V-Tiny";
  for (const char* expert : {"high_noise_model", "low_noise_model"}) {
    fs::create_directories(experts / expert);
    fs::copy(goldens_ / "wan22_moe" / expert / "model.safetensors",
             experts / expert / "diffusion_pytorch_model.safetensors");
    fs::copy(goldens_ / "wan22_moe" / expert / "config.json", experts / expert / "config.json");
  }
  convert(experts, folder_ / "pipeline", {"--to", "diffusers"});
  expect_equal(folder_ / "pipeline/transformer", goldens_ / "wan22_moe/high_noise_model/diffusers.safetensors");
  expect_equal(folder_ / "pipeline/transformer_2", goldens_ / "wan22_moe/low_noise_model/diffusers.safetensors");
  convert(folder_ / "pipeline", folder_ / "experts", {"--to", "official"});
  for (const char* expert : {"high_noise_model", "low_noise_model"})
    expect_equal(folder_ / "experts" / expert, experts / expert);
}

TEST_F(Convert, ClipsTowerIsRegroupedAndComesBackButForWhatNobodyReads) {
  const fs::path in = model("clip_vision");
  convert(in, folder_ / "there", {"--to", "diffusers"});
  expect_equal(folder_ / "there", goldens_ / "clip_vision/diffusers.safetensors");
  const auto config = json_of(folder_ / "there/config.json");
  const auto expected = json_of(goldens_ / "clip_vision/diffusers_config.json");
  for (const auto& [key, value] : expected.items())
    EXPECT_EQ(config.value(key, nlohmann::json("absent")), value) << key;
  convert(folder_ / "there", folder_ / "back", {"--to", "official"});
  const WeightSet back = open_weights(folder_ / "back"), before = open_weights(in);
  EXPECT_EQ(back.names().size() + 1, before.names().size()) << "visual.head has no place in CLIPVisionModel";
  for (const std::string& name : back.names()) {
    ASSERT_EQ(back.at(name).shape, before.at(name).shape) << name;
    std::vector<char> x(static_cast<size_t>(back.at(name).bytes())), y = x;
    back.read(name, 0, back.at(name).count(), x.data());
    before.read(name, 0, before.at(name).count(), y.data());
    EXPECT_EQ(x, y) << name;
  }
  EXPECT_EQ(json_of(folder_ / "back/config.json")["num_heads"], 4);
}

TEST_F(Convert, ThroughPthShardsAndAnotherProgramsPrefixNothingChanges) {
  const fs::path in = model("wan21_t2v");
  convert(in, folder_ / "a.pth");
  expect_equal(folder_ / "a.pth", in);
  convert(folder_ / "a.pth", folder_ / "comfy.safetensors", {"--to", "comfyui"});
  EXPECT_TRUE(
      open_weights(folder_ / "comfy.safetensors").contains("model.diffusion_model.blocks.0.self_attn.q.weight"));
  EXPECT_EQ(inspect(folder_ / "comfy.safetensors")["naming"], "comfyui");
  fs::copy(in / "config.json", folder_ / "config.json");  // 4 heads: not to be seen in the weights
  convert(folder_ / "comfy.safetensors", folder_ / "shards", {"--to", "official", "--shard-size", "1MiB"});
  EXPECT_GE(json_of(folder_ / "shards/diffusion_pytorch_model.safetensors.index.json")["weight_map"].size(), 80u);
  EXPECT_GE(open_weights(folder_ / "shards").files().size(), 3u);
  expect_equal(folder_ / "shards", in);
}

TEST_F(Convert, WholeReleasesChangeTheirLayoutAndBack) {
  const fs::path release = folder_ / "Wan2.1-Tiny";
  fs::create_directories(release / "google/umt5-xxl");
  fs::copy(goldens_ / "wan21_t2v/model.safetensors", release / "diffusion_pytorch_model.safetensors");
  fs::copy(goldens_ / "wan21_t2v/config.json", release / "config.json");
  fs::copy(goldens_ / "umt5/spiece.model", release / "google/umt5-xxl/spiece.model");
  convert(goldens_ / "umt5/model.safetensors", release / "models_t5_umt5-xxl-enc-bf16.pth");
  convert(goldens_ / "wan21_vae/model.safetensors", release / "Wan2.1_VAE.pth");

  const fs::path there = folder_ / "diffusers", back = folder_ / "official";
  convert(release, there, {"--to", "diffusers"});
  EXPECT_EQ(json_of(there / "model_index.json")["transformer"][1], "WanTransformer3DModel");
  EXPECT_TRUE(fs::exists(there / "tokenizer/spiece.model"));
  expect_equal(there / "vae", goldens_ / "wan21_vae/diffusers.safetensors");
  expect_equal(there / "text_encoder", goldens_ / "umt5/diffusers.safetensors");
  const auto what = inspect(there);
  EXPECT_EQ(what["layout"], "diffusers folder");
  EXPECT_EQ(part_of(what, "vae")["model"], "wan2.1-vae");

  convert(there, back, {"--to", "official"});
  expect_equal(back / "diffusion_pytorch_model.safetensors", goldens_ / "wan21_t2v/model.safetensors");
  expect_equal(back / "Wan2.1_VAE.pth", goldens_ / "wan21_vae/model.safetensors");
  expect_equal(back / "models_t5_umt5-xxl-enc-bf16.pth", goldens_ / "umt5/model.safetensors");
  EXPECT_TRUE(fs::exists(back / "google/umt5-xxl/spiece.model"));
}

/// The release of Sana's trainer is the denoiser alone: the other parts have the same name of a file as it.
TEST_F(Convert, APipelineOfSanaGoesThereAndBackWithEveryPart) {
  const fs::path copy = folder_ / "copy", there = folder_ / "there", back = folder_ / "back";
  for (const char* part : {"transformer", "vae", "tokenizer"}) fs::create_directories(copy / part);
  for (const auto& [part, golden] : {std::pair("transformer", "sana"), std::pair("vae", "dc_ae")}) {
    fs::copy(goldens_ / golden / "model.safetensors", copy / part / "diffusion_pytorch_model.safetensors");
    fs::copy(goldens_ / golden / "config.json", copy / part / "config.json");
  }
  std::ofstream(copy / "tokenizer/tokenizer.json") << "{}";
  const auto same = [&](const fs::path& folder) {
    expect_equal(folder / "transformer", goldens_ / "sana/model.safetensors");
    expect_equal(folder / "vae", goldens_ / "dc_ae/model.safetensors");
    EXPECT_EQ(json_of(folder / "transformer/config.json")["num_attention_heads"], 4);
    EXPECT_EQ(json_of(folder / "vae/config.json")["latent_channels"], 4);
    EXPECT_TRUE(fs::exists(folder / "tokenizer/tokenizer.json"));
  };
  convert(copy, folder_ / "whole", {"--to", "diffusers"});  // without model_index.json, which it gets
  same(folder_ / "whole");
  EXPECT_EQ(json_of(folder_ / "whole/model_index.json")["transformer"][1], "SanaTransformer2DModel");

  convert(folder_ / "whole", there, {"--to", "official"});
  EXPECT_GT(open_weights(there / "diffusion_pytorch_model.safetensors").names().size(), 0u);
  EXPECT_EQ(part_of(inspect(there), "vae")["model"], "dc-ae-f32c32");
  convert(there, back, {"--to", "diffusers"});
  same(back);

  convert(folder_ / "whole", folder_ / "comfy", {"--to", "comfyui"});
  for (const char* folder : {"diffusion_models", "vae"})
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "comfy" / folder), {}), 1) << folder;
}

TEST_F(Convert, DtypesAreRoundedAndWholeNumbersStay) {
  convert(goldens_ / "wan21_t2v/model.safetensors", folder_ / "half.safetensors", {"--dtype", "bf16"});
  const WeightSet half = open_weights(folder_ / "half.safetensors"),
                  full = open_weights(goldens_ / "wan21_t2v/model.safetensors");
  const std::string name = "blocks.1.ffn.0.weight";
  EXPECT_EQ(half.at(name).dtype, DType::bf16);
  std::vector<float> a(static_cast<size_t>(full.at(name).count())), b = a;
  full.read_f32(name, 0, full.at(name).count(), a.data());
  half.read_f32(name, 0, half.at(name).count(), b.data());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], std::abs(a[i]) / 256) << i;
  EXPECT_NE(a, b);
}

TEST_F(Convert, InspectSaysWhatThingsAre) {
  auto what = inspect(goldens_ / "wan21_t2v/model.safetensors");
  EXPECT_EQ(what["model"], "wan-t2v");
  EXPECT_EQ(what["naming"], "official");
  EXPECT_EQ(what["dtype"], "F32");
  EXPECT_EQ(what["tensors"], open_weights(goldens_ / "wan21_t2v/model.safetensors").names().size());
  EXPECT_GT(what["parameters"].get<int64_t>(), 700000);
  EXPECT_EQ(what["layout"], "safetensors file");
  what = inspect(goldens_ / "lora/lora_kohya.safetensors");
  EXPECT_EQ(what["kind"], "LoRA");
  EXPECT_EQ(what["naming"], "kohya");
  EXPECT_TRUE(what.contains("rank") && what.contains("alpha")) << what;
  const Result lora = run({"inspect", (goldens_ / "lora/lora_kohya.safetensors").string()});
  EXPECT_NE(lora.output.find("lora_unet_blocks_#_ffn_0.lora_up.weight"), std::string::npos) << lora.output;
  const Result table = run({"inspect", (goldens_ / "umt5/model.safetensors").string()});
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.output.find("blocks.#.attn.q.weight"), std::string::npos) << table.output;
  EXPECT_NE(table.output.find("x3"), std::string::npos) << table.output;
}

TEST_F(Convert, TheFilesOfARunAreKnownAndItsCheckpointsBecomeModels) {
  TinyRun run("inspect");
  ASSERT_EQ(run.train(2, "run", {"--run.steps", "1", "--checkpoint.every", "1"}).code, 0);
  auto what = inspect(fs::path(run.out()) / "checkpoints/step-000001");
  EXPECT_EQ(what["kind"], "training checkpoint");
  EXPECT_EQ(what["step"], 1);
  EXPECT_EQ(what["mesh"], "dp_shard=2");
  EXPECT_EQ(what["model"], "wan-t2v");
  convert(fs::path(run.out()) / "checkpoints/step-000001", folder_ / "of-checkpoint");
  expect_equal(folder_ / "of-checkpoint", fs::path(run.out()) / "model");
  EXPECT_EQ(json_of(folder_ / "of-checkpoint/config.json")["num_heads"], 4);
  const auto model = inspect(fs::path(run.out()) / "model");
  EXPECT_EQ(model["parameters"], what["parameters"]);
  EXPECT_EQ(model["layout"], "safetensors file");
  for (const auto& item : fs::recursive_directory_iterator(run.folder() / "cache"))
    if (item.path().extension() == ".safetensors") {
      what = inspect(item.path());
      EXPECT_EQ(what["kind"], "cache entry") << what;
    }
  EXPECT_EQ(what["model"], "cache entry");
}

TEST_F(Convert, MistakesAreNamedAndLeaveNothingBehind) {
  const auto refused = [&](std::vector<std::string> arguments, int code, const std::vector<std::string>& texts) {
    const Result r = run(std::move(arguments));
    EXPECT_EQ(r.code, code) << r.output;
    for (const auto& text : texts) EXPECT_NE(r.output.find(text), std::string::npos) << text << "\n" << r.output;
  };
  const std::string in = (goldens_ / "wan21_t2v/model.safetensors").string(), out = (folder_ / "out").string();
  refused({"convert", in}, 2, {"expected two: IN and OUT"});
  refused({"convert", in, out, "--to", "difusers"}, 2, {"did you mean diffusers?"});
  refused({"convert", in, out + ".pth", "--format", "safetensors"}, 2, {"leave one of them out"});
  refused({"convert", (goldens_ / "dc_ae/original.safetensors").string(), out, "--to", "diffusers"}, 3,
          {"dc-ae-f32c32 as efficientvit has it", "convert the release of dc-ae-f32c32 that diffusers reads"});
  refused({"convert", (folder_ / "absent").string(), out}, 3, {"no such file or folder"});
  refused({"convert", (goldens_ / "adamw/case.safetensors").string(), out, "--to", "official"}, 3,
          {"none of the models"});
  refused({"inspect", (goldens_ / "umt5/spiece.model").string()}, 3, {"spiece.model"});

  std::ofstream(folder_ / "there.safetensors") << "mine";
  refused({"convert", in, (folder_ / "there.safetensors").string()}, 2, {"is there already", "--force"});
  convert(in, folder_ / "there.safetensors", {"--force"});

  // a pickle that would call os.system
  checkpoint::ZipWriter zip(folder_ / "evil.pth", 0);
  const std::string pickle(
      "\x80\x02"
      "cos\nsystem\n(X\x04\0\0\0truetR.",
      26);
  zip.add("archive/data.pkl", pickle.data(), static_cast<int64_t>(pickle.size()));
  zip.commit();
  refused({"convert", (folder_ / "evil.pth").string(), out}, 3, {"evil.pth", "'os.system'", "nothing was run"});
  refused({"inspect", (folder_ / "evil.pth").string()}, 3, {"'os.system'"});

  for (const auto& item : fs::directory_iterator(folder_))
    EXPECT_EQ(item.path().string().find("partial"), std::string::npos) << item.path();
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Convert, TorchOpensWhatWasWritten) {
  std::string python;
  for (const char* venv : {".venv", ".bench-venv"}) {
    const std::string candidate = std::string(TESSERA_SOURCE_DIR) + "/" + venv + "/bin/python";
    if (python.empty() && fs::exists(candidate) && run_program({candidate, "-c", "import torch"}).code == 0)
      python = candidate;
  }
  if (python.empty()) GTEST_SKIP() << "no Python with torch in .venv or .bench-venv (make bench-setup)";
  convert(goldens_ / "wan21_vae/model.safetensors", folder_ / "vae.pth", {"--dtype", "bf16"});
  const Result r = run_program({python, "-c",
                                "import sys, torch\n"
                                "d = torch.load(sys.argv[1], weights_only=True)\n"
                                "m = torch.load(sys.argv[1], weights_only=True, mmap=True)\n"
                                "assert all(torch.equal(d[k], m[k]) and d[k].dtype == torch.bfloat16 for k in d)\n"
                                "print(len(d), float(d['conv2.weight'].float().sum()))",
                                (folder_ / "vae.pth").string()});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(r.output.starts_with("194 ")) << r.output;
}

/// What a trainer saves that keeps an average: the weights, and beside them the average, here twice as large.
TEST_F(Convert, TheAverageBesideTheWeightsIsTakenWhereItIsAskedFor) {
  using checkpoint::PickleMaker;
  const WeightSet golden = open_weights(goldens_ / "sana/model.safetensors");
  const fs::path pth = folder_ / "epoch_1_step_2.pth";
  checkpoint::ZipWriter zip(pth, 0);
  PickleMaker::Items weights, averages;
  int stored = 0;
  const auto add = [&](PickleMaker::Items& items, const std::string& name, const std::vector<float>& values) {
    const auto shape = golden.at(name).shape;
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
    const std::string key = std::to_string(stored++);
    zip.add("archive/data/" + key, values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
    items.emplace_back(name, PickleMaker::tensor(key, static_cast<int64_t>(values.size()), 0, shape, strides));
  };
  for (const std::string& name : golden.names()) {
    std::vector<float> values(static_cast<size_t>(golden.at(name).count()));
    golden.read_f32(name, 0, static_cast<int64_t>(values.size()), values.data());
    add(weights, name, values);
    for (float& value : values) value *= 2;
    add(averages, name, values);
  }
  PickleMaker pickle;
  pickle.dict({{"state_dict", PickleMaker::inner(weights)}, {"state_dict_ema", PickleMaker::inner(averages)}});
  zip.add("archive/data.pkl", pickle.bytes().data(), static_cast<int64_t>(pickle.bytes().size()));
  zip.commit();

  convert(pth, folder_ / "weights.safetensors");
  expect_equal(folder_ / "weights.safetensors", goldens_ / "sana/model.safetensors");
  convert(pth, folder_ / "average.safetensors", {"--ema"});
  const WeightSet average = open_weights(folder_ / "average.safetensors");
  ASSERT_EQ(average.names(), golden.names());
  for (const std::string& name : golden.names()) {
    std::vector<float> one(static_cast<size_t>(golden.at(name).count())), twice(one.size());
    golden.read_f32(name, 0, golden.at(name).count(), one.data());
    average.read_f32(name, 0, golden.at(name).count(), twice.data());
    for (size_t i = 0; i < one.size(); ++i) ASSERT_EQ(twice[i], 2 * one[i]) << name;
  }
  EXPECT_EQ(run({"convert", (folder_ / "weights.safetensors").string(), (folder_ / "x").string(), "--ema"}).code, 3);
}

}  // namespace
}  // namespace tessera::testing
