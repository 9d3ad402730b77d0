// Files that are something else than their key says, or not whole, and names that trip programs: each is told before
// anything is encoded or trained, with the key, what the file is and what to do.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "multirank/processes.h"
#include "need_goldens.h"
#include "program.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

void expect(const Result& r, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(r.code, code) << r.output;
  for (const auto& word : words)
    EXPECT_NE(r.output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << r.output;
}

const std::string kGoldens = TESSERA_GOLDENS;
const std::string kTransformer = kGoldens + "/wan21_t2v/model.safetensors",
                  kVae = kGoldens + "/wan21_vae/model.safetensors", kText = kGoldens + "/umt5/model.safetensors",
                  kLora = kGoldens + "/lora/lora_peft.safetensors";

class WrongFiles : public ::testing::Test {
 protected:
  void SetUp() override { TESSERA_NEED_GOLDENS(); }
  Result plan(std::vector<std::string> more) const { return command("plan", std::move(more)); }
  Result command(const std::string& name, std::vector<std::string> more) const {
    more.insert(more.begin(), {name, run_.recipe()});
    return run_.tessera(more);
  }
  const TinyRun run_{"wrong"};
};

TEST_F(WrongFiles, ALoraIsNoModel) {
  for (const char* name : {"plan", "train"})
    expect(command(name, {"--model.path", kLora}), 3,
           {"model.path", "lora_peft.safetensors is a LoRA", "weights of its base model"});
}
/// A model folder like that of a run, with its tensors changed.
class ChangedModel : public ::testing::Test {
 protected:
  struct Tensor {
    DType dtype = DType::f32;
    checkpoint::Shape shape;
    std::vector<char> bytes;
  };
  using Tensors = std::map<std::string, Tensor>;

  static std::vector<char> bytes_of(const void* data, size_t size) {
    return {static_cast<const char*>(data), static_cast<const char*>(data) + size};
  }
  static Tensor number(float value) { return {DType::f32, {}, bytes_of(&value, sizeof value)}; }

  void SetUp() override { ASSERT_EQ(run_.train(1, "base", {"--run.steps", "2"}).code, 0); }
  std::string model() const { return run_.out("base") + "/model"; }
  Tensors tensors() const {
    Tensors all;
    const auto weights = checkpoint::open_weights(model());
    for (const std::string& name : weights.names()) {
      const auto& info = weights.at(name);
      Tensor& tensor = all[name] = {info.dtype, info.shape, std::vector<char>(static_cast<size_t>(info.bytes()))};
      weights.read(name, 0, info.count(), tensor.bytes.data());
    }
    return all;
  }
  std::string write(const std::string& name, const Tensors& tensors) const {
    const fs::path folder = run_.folder() / name;
    fs::create_directories(folder);
    fs::copy_file(fs::path(model()) / "config.json", folder / "config.json");
    std::vector<checkpoint::TensorData> data;
    for (const auto& [tensor, value] : tensors) data.push_back({tensor, value.dtype, value.shape, value.bytes.data()});
    checkpoint::write_safetensors(folder / "diffusion_pytorch_model.safetensors", data, {{"format", "pt"}});
    return folder.string();
  }
  Result train(const std::string& name, const std::string& path, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--model.path", path, "--run.steps", "1"});
    return run_.train(1, name, more);
  }
  double loss(const std::string& name) const { return run_.metrics(name).at(0).at("loss"); }
  const TinyRun run_{"changed"};
};

TEST_F(ChangedModel, WithTensorsThatTheModelHasNoPlaceForIsRefused) {
  Tensors all = tensors();
  all["vace_blocks.0.after_proj.weight"] = number(1);
  const std::string path = write("more", all);
  expect(train("refused", path), 3, {"vace_blocks.0.after_proj.weight", "no parameter", "model.extra_tensors"});
  EXPECT_EQ(train("ignored", path, {"--model.extra_tensors", "ignore"}).code, 0);
  all.erase("vace_blocks.0.after_proj.weight");
  all["first_stage_model.encoder.weight"] = number(1);
  expect(train("whole", write("all-in-one", all)), 0, {});
}

TEST_F(ChangedModel, InScaledFp8IsReadWithItsScales) {
  Tensors all = tensors(), scaled = all, rounded = all;
  scaled["scaled_fp8"] = number(1);
  for (const auto& [name, tensor] : all) {
    if (!name.starts_with("blocks.") || !name.ends_with(".weight") || tensor.shape.size() != 2) continue;
    const auto* values = reinterpret_cast<const float*>(tensor.bytes.data());
    const size_t count = tensor.bytes.size() / sizeof(float);
    // 1 and -1 of e4m3 (0x38, 0xb8) by the sign: what is read is the scale
    constexpr float kScale = 0.0625;
    std::vector<char> codes(count);
    std::vector<float> read(count);
    for (size_t i = 0; i < count; ++i) {
      codes[i] = static_cast<char>(values[i] < 0 ? 0xb8 : 0x38);
      read[i] = values[i] < 0 ? -kScale : kScale;
    }
    scaled[name] = {DType::f8_e4m3, tensor.shape, codes};
    scaled[name.substr(0, name.size() - 6) + "scale_weight"] = number(kScale);
    rounded[name].bytes = bytes_of(read.data(), tensor.bytes.size());
  }
  const std::string in_fp8 = write("fp8", scaled), in_fp32 = write("fp32", rounded);
  expect(train("of-fp8", in_fp8), 0, {});
  expect(train("of-fp32", in_fp32), 0, {});
  EXPECT_EQ(loss("of-fp8"), loss("of-fp32"));
  const std::string converted = (run_.folder() / "converted").string();
  expect(run_.tessera({"convert", in_fp8, converted}), 0, {});
  expect(train("of-converted", converted), 0, {});
  EXPECT_EQ(loss("of-converted"), loss("of-fp32"));
}

TEST_F(ChangedModel, IsNotConvertedWithTensorsThatItHasNoPlaceFor) {
  Tensors all = tensors();
  const std::string extra = "vace_blocks.0.after_proj.weight", vae = "first_stage_model.encoder.weight";
  all[extra] = number(1);
  const std::string path = write("more", all), out = (run_.folder() / "out").string();
  const auto convert = [&](const std::string& in, const std::string& to, std::vector<std::string> more) {
    more.insert(more.begin(), {"convert", in, out + to});
    return run_.tessera(more);
  };
  const auto has = [&](const std::string& to, const std::string& name) {
    return checkpoint::open_weights(out + to).contains(name);
  };
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--to", "diffusers"}, {"--dtype", "bf16"}})
    expect(convert(path, "", more), 3, {extra, "no parameter", "wan-t2v with something more", "--extra-tensors drop"});
  EXPECT_FALSE(fs::exists(out));
  expect(convert(path, "-kept", {"--extra-tensors", "keep"}), 0, {});
  EXPECT_TRUE(has("-kept", extra));
  expect(convert(path, "-dropped", {"--extra-tensors", "drop"}), 0, {"1 tensors are left out", extra});
  EXPECT_FALSE(has("-dropped", extra));
  EXPECT_EQ(train("of-dropped", out + "-dropped").code, 0);

  all.erase(extra);
  all[vae] = number(1);
  const std::string whole = write("whole", all);
  expect(convert(whole, "-whole", {}), 0, {});
  EXPECT_TRUE(has("-whole", vae)) << "names stay, and so does what lies beside the model";
  expect(convert(whole, "-transformer", {"--to", "diffusers"}), 0, {vae, "left out", "autoencoder"});
  EXPECT_FALSE(has("-transformer", vae));
}

TEST_F(ChangedModel, IsWrittenInScaledFp8AsItIsRead) {
  const Tensors all = tensors();
  const std::string out = (run_.folder() / "fp8").string(), wide = (run_.folder() / "wide").string();
  expect(run_.tessera({"convert", model(), out, "--dtype", "fp8_scaled"}), 0, {});
  const auto written = checkpoint::open_weights(out);
  EXPECT_TRUE(written.contains("scaled_fp8"));
  size_t linears = 0;
  for (const auto& [name, tensor] : all) {
    const bool linear = name.starts_with("blocks.") && name.ends_with(".weight") && tensor.shape.size() == 2;
    EXPECT_EQ(written.at(name).dtype, linear ? DType::f8_e4m3 : DType::f32) << name;
    const auto* before = reinterpret_cast<const float*>(tensor.bytes.data());
    std::vector<float> now(tensor.bytes.size() / sizeof(float));
    written.read_f32(name, 0, static_cast<int64_t>(now.size()), now.data());
    float largest = 0, scale = 0;
    for (size_t i = 0; i < now.size(); ++i) largest = std::max(largest, std::abs(before[i]));
    if (linear) {
      ++linears;
      written.read_f32(name.substr(0, name.size() - 6) + "scale_weight", 0, 1, &scale);
      EXPECT_FLOAT_EQ(scale, largest / 448) << name;
    }
    for (size_t i = 0; i < now.size(); ++i)
      ASSERT_LE(std::abs(now[i] - before[i]), linear ? std::abs(before[i]) / 16 + scale / 512 : 0) << name << " " << i;
  }
  EXPECT_EQ(linears, 30u) << "ten of each block";
  expect(run_.tessera({"convert", out, wide, "--dtype", "fp32"}), 0, {});
  EXPECT_FALSE(checkpoint::open_weights(wide).contains("scaled_fp8"));
  expect(train("of-fp8", out), 0, {});
  expect(train("of-wide", wide), 0, {});
  EXPECT_EQ(loss("of-fp8"), loss("of-wide"));
  expect(run_.tessera({"convert", model(), wide + "2", "--dtype", "fp8_scaled", "--to", "diffusers"}), 2,
         {"no scales", "--to comfyui"});
  expect(run_.tessera({"convert", kLora, wide + ".safetensors", "--dtype", "fp8_scaled"}), 2, {"is a LoRA"});
  expect(run_.tessera({"convert", kLora, wide + ".safetensors", "--dtype", "bf16"}), 0,
         {"a LoRA, diffusers names, which stay"});
}

TEST_F(ChangedModel, WithValuesThatAreNoNumbersIsNamedAtLoad) {
  Tensors all = tensors();
  const float nan = std::nanf("");
  std::memcpy(all.at("blocks.1.ffn.0.weight").bytes.data() + 40, &nan, sizeof nan);
  expect(train("nan", write("nan", all)), 3, {"blocks.1.ffn.0.weight", "no numbers"});
}

TEST_F(WrongFiles, AnAutoencoderIsNoModel) {
  expect(plan({"--model.path", kVae}), 3, {"model.path", "is a video autoencoder", "it belongs to data.vae"});
}
TEST_F(WrongFiles, ATextEncoderIsNoAutoencoder) {
  expect(plan({"--data.vae", kText}), 3, {"data.vae", "is a text encoder", "it belongs to data.text_encoder_path"});
}
TEST_F(WrongFiles, AnAutoencoderIsNoTextEncoder) {
  expect(command("prepare", {"--data.text_encoder_path", kVae}), 3,
         {"data.text_encoder_path", "is a video autoencoder", "it belongs to data.vae"});
  EXPECT_FALSE(fs::exists(run_.folder() / "cache")) << "nothing is encoded before";
}
TEST_F(WrongFiles, AMissingFileIsNamedWithTheFolderItWasLookedForIn) {
  expect(plan({"--model.path", "nowhere"}), 3, {"nowhere", "no"});
  expect(plan({"--data.vae", "./nowhere.pth"}), 3, {"data.vae", "nowhere.pth"});
  for (const char* name : {"prepare", "train"}) {
    expect(command(name, {"--model.path", "nowhere"}), 3, {"model.path", "nowhere", "current folder"});
    expect(command(name, {"--data.text_encoder_path", "nowhere.pth"}), 3,
           {"data.text_encoder_path", "nowhere.pth", "current folder"});
    expect(command(name, {"--data.tokenizer", "spiece.model"}), 3, {"data.tokenizer", "spiece.model"});
  }
  expect(plan({"--data.text_encoder_path", "nowhere.pth", "--data.tokenizer", "spiece.model"}), 0,
         {"not here yet: data.text_encoder_path = nowhere.pth, data.tokenizer = spiece.model; plans need no weights"});
}
TEST_F(WrongFiles, ALoraToGoOnFromIsLookedForBeforeTheModelIsMade) {
  const std::vector<std::string> lora = {"--train.mode", "lora", "--lora.init"};
  const auto with = [&](const std::string& init) {
    std::vector<std::string> flags = lora;
    flags.push_back(init);
    return plan(flags);
  };
  expect(with("nowhere.safetensors"), 0, {"not here yet: lora.init = nowhere.safetensors; plans need no weights"});
  expect(command("train", {"--train.mode", "lora", "--lora.init", "nowhere.safetensors"}), 3,
         {"lora.init", "nowhere.safetensors", "no such file or folder"});
  expect(with(kVae), 3, {"lora.init", "is a video autoencoder", "expected a LoRA", "it belongs to data.vae"});
}
TEST_F(WrongFiles, InspectSaysWhatAFileIsThatHoldsNoWeights) {
  const auto inspect = [&](const fs::path& path) { return run_.tessera({"inspect", path.string()}); };
  expect(inspect(run_.recipe()), 3, {"recipe.toml is a text file (it begins with", "expected weights", ".safetensors"});
  expect(inspect(run_.folder() / "data/clip0.mp4"), 3, {"clip0.mp4 is an MP4 or QuickTime video"});
  expect(inspect(run_.folder() / "data"), 3, {"no weights in it, but 6 files (clip0.mp4, clip0.txt, clip1.mp4, ...)"});
}
TEST_F(WrongFiles, MissingShardsOfAnIndexAreListedBeforeAnythingIsEncoded) {
  const fs::path folder = run_.folder() / "sharded";
  fs::create_directories(folder);
  std::ofstream(folder / "diffusion_pytorch_model.safetensors.index.json")
      << R"({"weight_map":{"a":"part-1.safetensors","b":"part-2.safetensors","c":"part-2.safetensors","d":"part-3.safetensors"}})";
  fs::copy_file(kTransformer, folder / "part-1.safetensors");
  std::ofstream(folder / "diffusion_pytorch_model.safetensors.index.json")
      << R"({"weight_map":{"patch_embedding.weight":"part-1.safetensors","b":"part-2.safetensors","c":"part-2.safetensors","d":"part-3.safetensors"}})";
  expect(command("train", {"--model.path", folder.string()}), 3,
         {"names 3 files, of which 2 are not there: part-2.safetensors, part-3.safetensors"});
  EXPECT_FALSE(fs::exists(run_.folder() / "cache"));
}
TEST_F(WrongFiles, ACheckpointThatIsNotWholeIsNotResumed) {
  fs::create_directories(run_.folder() / "half");
  expect(command("train", {"--run.resume", (run_.folder() / "half").string()}), 3, {"run.resume", "manifest.json"});
  expect(command("train", {"--run.resume", "nowhere"}), 3, {"run.resume", "nowhere: no such folder"});
}
TEST_F(WrongFiles, LatentChannelsAndTextWidthMustFit) {
  expect(plan({"--data.vae", kVae, "--data.frames", "9"}), 2, {"12 channels", "makes", "data.vae"});
  expect(plan({"--model.config.text_dim", "32"}), 2, {"width 32", "umt5-demo", "makes 64", "tessera list presets"});
}
TEST_F(WrongFiles, SizesThatTheAutoencoderCannotTakeAreAnsweredWithOnesItCan) {
  expect(plan({"--data.frames", "7"}), 2, {"7 x 32 x 32 (frames x height x width)", "for instance to 4 x 32 x 32"});
  expect(plan({"--data.size", "36,32"}), 2, {"8 x 36 x 32", "for instance to 8 x 32 x 32"});
  expect(plan({"--data.vae", kVae, "--data.frames", "8"}), 2, {"1 + 4n frames", "for instance to 5 x 32 x 32"});
}
TEST_F(WrongFiles, FileNamesMayHoldSpacesUnderscoresQuotesAndUnicode) {
  const fs::path data = run_.folder() / "data";
  const std::vector<std::string> names = {"a clip, with_everything (1)", "\xE8\xA7\x86\xE9\xA2\x91_\xC3\xA9t\xC3\xA9",
                                          "it's #3 %20 \"x\""};
  for (size_t i = 0; i < names.size(); ++i)
    for (const char* ending : {".mp4", ".txt"})
      fs::rename(data / ("clip" + std::to_string(i) + ending), data / (names[i] + ending));
  expect(command("prepare", {}), 0, {"3 samples ready"});
  expect(run_.train(1, "run", {"--run.steps", "1"}), 0, {"step 1/1"});
}
TEST_F(WrongFiles, RunFoldersMayHoldSpacesAndUnicode) {
  expect(run_.train(1, "runs of \xC3\xA9t\xC3\xA9 1", {"--run.steps", "1"}), 0, {});
  EXPECT_TRUE(fs::exists(run_.out("runs of \xC3\xA9t\xC3\xA9 1") + "/report.html"));
}

TEST(WrongRecipes, ATableThatDoesNotExistNamesTheNearestKey) {
  const TinyRun run("wrong");
  std::ofstream(run.recipe(), std::ios::app) << "\n[trian]\nlr = 1e-3\n";
  expect(run.tessera({"plan", run.recipe()}), 2, {"trian.lr", "train.lr", "recipe.toml"});
}
TEST(WrongRecipes, AKeyOfAnotherTableIsFound) {
  const TinyRun run("wrong");
  std::ofstream(run.recipe(), std::ios::app) << "\n[optimizer]\nlr = 1e-3\n";
  expect(run.tessera({"plan", run.recipe()}), 2, {"optimizer.lr"});
}
TEST(WrongRecipes, ABrokenFileIsToldWithItsLine) {
  const TinyRun run("wrong");
  std::ofstream(run.recipe(), std::ios::trunc) << "[run]\nsteps = \n";
  expect(run.tessera({"plan", run.recipe()}), 2, {"recipe.toml, line 2"});
}
TEST(WrongRecipes, AValueOfTheWrongKindSaysWhatWasExpected) {
  const TinyRun run("wrong");
  expect(run.tessera({"plan", run.recipe(), "--run.steps", "many"}), 2, {"run.steps", "many", "number"});
  expect(run.tessera({"plan", run.recipe(), "--run.on_nan", "ignore"}), 2, {"run.on_nan", "stop", "skip"});
  expect(run.tessera({"plan", run.recipe(), "--plan.budget", "lots"}), 2, {"plan.budget", "24GiB"});
  expect(run.tessera({"plan", run.recipe(), "--mesh", "shards=2"}), 2, {"unknown axis 'shards'", "dp_shard"});
  expect(run.tessera({"plan", run.recipe(), "--train.lr", "-1"}), 2, {"train.lr = -1", "at least 0"});
}
TEST(WrongRecipes, AKeyThatChangesNothingIsToldOnce) {
  const TinyRun run("wrong");
  const Result r = run.train(2, "run", {"--run.steps", "1", "--data.clip_stride", "4"});
  expect(r, 0, {"data.clip_stride = 4 has no effect"});
  const size_t first = r.output.find("has no effect");
  EXPECT_EQ(r.output.find("has no effect", first + 1), std::string::npos) << r.output;
}
TEST(WrongRecipes, AFolderIsNoRecipe) {
  const TinyRun run("wrong");
  expect(run.tessera({"train", run.folder().string()}), 2, {"is a folder", "recipe.toml?"});
}
TEST(WrongRecipes, AFullDiskIsToldBeforeStepOne) {
  const TinyRun run("wrong");
  const Result r =
      run.train(1, "run", {"--run.steps", "100000000", "--checkpoint.every", "1", "--checkpoint.keep", "0"});
  expect(r, 7, {"checkpoint.keep", "free", "run.out"});
  EXPECT_EQ(r.output.find("step 1/"), std::string::npos) << r.output;
}

/// What ComfyUI's users have: one file, nothing beside it.
TEST(SingleFile, TrainsAsItIsWhereAPresetHasItsShapes) {
  const TinyRun run("single-file", TESSERA_BINARY, "preset = \"wan-demo\"");
  ASSERT_EQ(run.train(1, "first", {"--run.steps", "1"}).code, 0);
  std::string recipe = text_of(run.recipe());
  const size_t preset = recipe.find("preset = \"wan-demo\"");
  ASSERT_NE(preset, std::string::npos);
  const fs::path alone = run.folder() / "alone/comfy.safetensors";
  fs::create_directories(alone.parent_path());
  const Result converted = run.tessera({"convert", run.out("first") + "/model", alone.string(), "--to", "comfyui"});
  ASSERT_EQ(converted.code, 0) << converted.output;
  std::ofstream(run.recipe(), std::ios::trunc) << recipe.replace(preset, 19, "path = \"" + alone.string() + "\"");
  const Result trained = run.train(1, "second", {"--run.steps", "1"});
  EXPECT_EQ(trained.code, 0) << trained.output;
  for (const char* said : {"model: ", "report: ", "sample it: tessera sample "})
    EXPECT_NE(trained.output.find(said), std::string::npos) << said << "\n" << trained.output;
}

/// Sizes that no preset has: the shapes tell them, and heads and text tokens are asked for by their keys.
TEST(SingleFile, OfOtherSizesTrainsWithWhatItsShapesDoNotTell) {
  const TinyRun run("single-file");
  ASSERT_EQ(run.train(1, "first", {"--run.steps", "1"}).code, 0);
  const fs::path alone = run.folder() / "alone/comfy.safetensors";
  fs::create_directories(alone.parent_path());
  const Result converted = run.tessera({"convert", run.out("first") + "/model", alone.string(), "--to", "comfyui"});
  ASSERT_EQ(converted.code, 0) << converted.output;
  std::string recipe = text_of(run.recipe());
  const size_t config = recipe.find("config = {"), end = recipe.find('\n', config);
  ASSERT_NE(config, std::string::npos) << recipe;
  std::ofstream(run.recipe(), std::ios::trunc)
      << recipe.replace(config, end - config, "path = \"" + alone.string() + "\"");
  expect(run.train(1, "asked", {"--run.steps", "1"}), 2,
         {"no config.json beside the weights", "model.config.num_heads, model.config.text_len"});
  const Result told =
      run.train(1, "second", {"--run.steps", "1", "--model.config.num_heads", "4", "--model.config.text_len", "16"});
  EXPECT_EQ(told.code, 0) << told.output;
  EXPECT_EQ(text_of(run.out("second") + "/model/config.json"), text_of(run.out("first") + "/model/config.json"));
}

}  // namespace
}  // namespace tessera::testing
