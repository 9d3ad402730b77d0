// What a new user meets: parts of a run that are random without having been meant so, a run's recipe from elsewhere,
// checkpoints that are damaged, data that is not what it looks like, and the words of other trainers.
#include <gtest/gtest.h>

#include <fstream>

#include "program.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

void expect(const Result& r, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(r.code, code) << r.output;
  for (const auto& word : words)
    EXPECT_NE(r.output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << r.output;
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// The recipe without some of its lines.
void drop_lines(const TinyRun& run, const Flags& keys) {
  std::istringstream lines(text_of(run.recipe()));
  std::string text;
  for (std::string line; std::getline(lines, line);)
    if (std::none_of(keys.begin(), keys.end(), [&](const std::string& key) { return line.starts_with(key + " = "); }))
      text += line + "\n";
  std::ofstream(run.recipe()) << text;
}

/// The command from another folder.
Result from(const fs::path& folder, const std::string& command) {
  return run_program({"/bin/sh", "-c", "cd " + folder.string() + " && exec " + TESSERA_BINARY + " " + command});
}

TEST(RandomParts, AreToldInTheFirstLineAndAdaptersOfARandomModelAreRefused) {
  const TinyRun run("random");
  const Flags lora = {"--train.mode", "lora", "--lora.rank", "2", "--run.steps", "1"};
  Flags plan = {"plan", run.recipe()};
  plan.insert(plan.end(), lora.begin(), lora.end());
  const Result planned = run.tessera(plan);
  expect(planned, 0,
         {"the model has random weights", "haar is a wavelet without weights",
          "text encoder umt5-demo has random weights"});
  EXPECT_TRUE(planned.output.starts_with("model: ")) << planned.output;
  expect(run.train(1, "run", lora), 2, {"model.path", "adapters of a model with random weights", "model.init"});
  EXPECT_FALSE(fs::exists(run.folder() / "cache")) << "nothing is encoded before";
  Flags meant = lora;
  meant.insert(meant.end(), {"--model.init", "random"});
  expect(run.train(1, "run", meant), 0, {});
}

TEST(RandomParts, BesideTrainedWeightsHaveToBeTyped) {
  const TinyRun run("trained");
  ASSERT_EQ(run.train(1, "source", {"--run.steps", "2"}).code, 0);
  const fs::path own = run.out("source") + "/model", theirs = run.folder() / "theirs";
  // the same as another program would write it
  fs::create_directories(theirs);
  fs::copy_file(own / "config.json", theirs / "config.json");
  const auto weights = checkpoint::open_weights(own);
  std::vector<std::vector<char>> bytes;
  std::vector<checkpoint::TensorData> tensors;
  for (const std::string& name : weights.names()) {
    const auto info = weights.at(name);
    weights.read(name, 0, info.count(), bytes.emplace_back(static_cast<size_t>(info.bytes())).data());
    tensors.push_back({name, info.dtype, info.shape, bytes.back().data()});
  }
  checkpoint::write_safetensors(theirs / "diffusion_pytorch_model.safetensors", tensors, {{"format", "pt"}});

  drop_lines(run, {"vae", "text_encoder"});
  const auto train = [&](const std::string& name, const fs::path& model, Flags more) {
    more.insert(more.end(), {"--run.steps", "1", "--model.path", model.string()});
    return run.train(1, name, more);
  };
  expect(train("run", theirs, {}), 2,
         {"[data.vae] haar is a wavelet without weights", "destroy what it learned", "data.vae = \"haar\""});
  expect(train("run", theirs, {"--data.vae", "haar"}), 2,
         {"[data.text_encoder] text encoder umt5-demo has random weights", "data.text_encoder_path"});
  EXPECT_FALSE(fs::exists(run.out("run") + "/metrics.jsonl"));
  expect(train("run", theirs, {"--data.vae", "haar", "--data.text_encoder", "umt5-demo"}), 0, {});
  expect(train("own", own, {}), 0, {});
  expect(run.tessera({"plan", run.recipe(), "--model.path", theirs.string()}), 0, {});
  expect(run.tessera({"train", run.out("run") + "/recipe.toml"}), 0, {"nothing to train"});
}

TEST(RunRecipe, WorksFromAnyFolderOfAMovedRunAndWithoutData) {
  const TinyRun run("elsewhere");
  std::string text = text_of(run.recipe());
  replace(text, run.folder().string() + "/", "");
  std::ofstream(run.recipe()) << text;
  expect(from(run.folder(), "train recipe.toml --checkpoint.every 3"), 0, {});
  EXPECT_NE(text_of(run.out() + "/recipe.toml").find("started_in = \"" + run.folder().string() + "\""),
            std::string::npos);

  const Result again = from(run.folder(), "train run/recipe.toml");
  expect(again, 0, {"nothing to train"});
  EXPECT_EQ(again.output.find("encoding"), std::string::npos) << "from the same folder every value is the same\n"
                                                              << again.output;
  expect(from("/", "train " + run.out() + "/recipe.toml --run.steps 8"), 0, {"step 8/8"});

  const fs::path moved = run.folder() / "elsewhere/later";
  fs::create_directories(moved.parent_path());
  fs::rename(run.out(), moved);
  fs::remove_all(run.folder() / "cache");
  fs::remove_all(run.folder() / "data");
  const std::string out = (run.folder() / "x.mp4").string();
  const Result sampled =
      from("/", "sample " + moved.string() + "/recipe.toml --sample.steps 2 --prompt 'a square' --out " + out);
  expect(sampled, 0,
         {"weights of " + (moved / "checkpoints/step-000008").string(), "text encoder umt5-demo has random weights"});
  EXPECT_EQ(sampled.output.find("the model has random weights"), std::string::npos) << sampled.output;
  EXPECT_TRUE(fs::exists(out));
  EXPECT_FALSE(fs::exists(run.out())) << "the folder of before is not made again";
}

TEST(Checkpoints, ThatAreDamagedAreToldWithTheCommandThatGoesOnBeforeThem) {
  const TinyRun run("damaged");
  const Flags flags = {"--run.steps", "3", "--checkpoint.every", "1"};
  ASSERT_EQ(run.train(1, "run", flags).code, 0);
  const fs::path newest = run.out() + "/checkpoints/step-000003", before = run.out() + "/checkpoints/step-000002";
  const Flags more = {"--run.steps", "4", "--checkpoint.every", "1"};
  const auto damaged = [&](const char* file, const std::string& content) {
    const std::string whole = text_of(newest / file);
    std::ofstream(newest / file) << content;
    const Result r = run.train(1, "run", more);
    expect(r, 3, {newest.string(), "go on from the one before it: --run.resume " + before.string()});
    std::ofstream(newest / file) << whole;
  };
  damaged("manifest.json", "{\"format\": \"tess");
  damaged("rank-00000.safetensors", "short");
  std::string bytes = text_of(newest / "rank-00000.safetensors");
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  damaged("rank-00000.safetensors", bytes);

  fs::remove(newest / "manifest.json");
  expect(run.train(1, "run", more), 0,
         {newest.string() + " has no manifest.json", "the run goes on from " + before.string(), "step 4/4"});
}

TEST(Data, FoldersInFoldersBlankCaptionsAndTextThatIsCutAreTold) {
  const TinyRun run("told");
  const fs::path data = run.folder() / "data";
  fs::create_directories(data / "more");
  fs::copy_file(data / "clip0.mp4", data / "more/clip.mp4");
  std::ofstream(data / "._clip0.mp4") << "no clip";
  std::ofstream(data / "._clip0.txt") << "no caption";
  std::ofstream(data / "clip1.txt") << " \n";
  std::string words;
  for (int i = 0; i < 60; ++i) words += "a square that moves ";
  std::ofstream(data / "clip2.txt") << words;
  const Result r = run.tessera({"prepare", run.recipe()});
  expect(
      r, 0,
      {"more: a folder with 1 clip, not read", "1 caption is empty or blank", (data / "clip1.mp4").string(),
       "2 of 3 captions have more than the 16 tokens that the model reads", "a square that moves", "3 samples ready"});
  EXPECT_EQ(r.output.find("._"), std::string::npos) << r.output;
  expect(run.tessera({"prepare", run.recipe(), "--data.path", ""}), 3, {"[data.path] is empty"});
}

TEST(Data, APictureTooLargeToDecodeIsSaidToBe) {
  const TinyRun run("large-picture");
  const fs::path data = run.folder() / "pictures";
  fs::create_directories(data);
  // the header of 30,000 x 30,000 pixels; no picture follows, as nothing of it is read
  const std::string header("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x75\x30\0\0\x75\x30\x08\x02\0\0\0\x26\x3a\x22\x8e", 33);
  std::ofstream(data / "a.png", std::ios::binary) << header;
  std::ofstream(data / "a.txt") << "a very large picture";
  expect(run.tessera({"prepare", run.recipe(), "--data.path", data.string(), "--data.frames", "4"}), 3,
         {"a.png", "the picture has no size that can be read", "268 million pixels", "scale it down"});
}

TEST(Words, OfOtherTrainersLeadToTheKeysOfRecipes) {
  const TinyRun run("words");
  const std::vector<std::pair<std::string, std::string>> words = {{"epochs", "run.steps"},
                                                                  {"max_train_epochs", "run.steps"},
                                                                  {"save_every_n_steps", "checkpoint.every"},
                                                                  {"network_module", "train.mode"},
                                                                  {"optimizer_type", "train.optimizer"},
                                                                  {"resolution", "data.size"},
                                                                  {"lora_rank", "lora.rank"},
                                                                  {"output", "run.out"},
                                                                  {"timestep_sampling", "diffusion.timesteps"},
                                                                  {"adam_epsilon", "train.eps"},
                                                                  {"warmup", "train.warmup_steps"},
                                                                  {"caption_dropout_rate", "diffusion.caption_dropout"},
                                                                  {"lora_target_modules", "lora.targets"},
                                                                  {"grad_clip", "train.clip_norm"},
                                                                  {"accumulate_grad_batches", "train.micro_batch"},
                                                                  {"ema_decay", "train.ema"},
                                                                  {"target_frames", "data.frames"},
                                                                  {"text_encoder1", "data.text_encoder_path"}};
  for (const auto& [word, key] : words) {
    expect(run.tessera({"plan", run.recipe(), "--" + word, "1"}), 2, {"unknown flag --" + word, "did you mean " + key});
    expect(run.tessera({"plan", run.recipe(), "--train." + word, "1"}), 2, {"did you mean " + key});
  }
  std::ofstream(run.recipe(), std::ios::app) << "\n[training]\nlearning_rate = 1e-3\n";
  expect(run.tessera({"plan", run.recipe()}), 2, {"training.learning_rate", "did you mean train.lr?"});
}

TEST(Advice, FitsWhatHappened) {
  const TinyRun run("advice");
  const Flags wild = {"--train.lr", "1e30", "--run.steps", "3", "--train.clip_norm", "0"};
  const Result nan = run.train(1, "run", wild);
  expect(nan, 6, {"no checkpoint was written yet"});
  Flags saved = wild;
  saved.insert(saved.end(), {"--checkpoint.every", "1", "--run.out", run.out("saved")});
  const Result kept = run.train(1, "saved", saved);
  EXPECT_EQ(kept.code, 6) << kept.output;

  const std::string goldens = TESSERA_GOLDENS, lora = goldens + "/lora/lora_peft.safetensors";
  if (!fs::exists(lora)) GTEST_SKIP() << "no golden cases at " << goldens;
  const Result other = run.train(1, "lora", {"--train.mode", "lora", "--model.init", "random", "--lora.init", lora});
  expect(other, 3, {"[lora.init]", "lora_peft.safetensors: is of another model", "tessera inspect"});
  EXPECT_EQ(other.output.find("lora.targets"), std::string::npos) << other.output;
  expect(run.tessera({"train", "--task", "t2v-1.3B", "--ckpt_dir", "no-such-folder", "--max_steps", "1", "--data.path",
                      (run.folder() / "data").string()}),
         3, {"[model.path] no-such-folder: no such file or folder"});
  std::ofstream(run.folder() / "ds.json")
      << R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}})";
  expect(run.tessera({"import", (run.folder() / "ds.json").string()}), 0, {"optimizer = \"lion\""});
}

TEST(Grid, HasAColumnForEachStrengthOfALora) {
  const TinyRun run("grid");
  ASSERT_EQ(run.train(1, "base", {"--run.steps", "2", "--train.lr", "1e-2"}).code, 0);
  const std::string base = run.out("base") + "/model";
  ASSERT_EQ(
      run.train(1, "lora", {"--train.mode", "lora", "--model.path", base, "--run.steps", "8", "--train.lr", "0.1"})
          .code,
      0);
  const std::string lora = run.out("lora") + "/model/pytorch_lora_weights.safetensors";
  const auto sample = [&](const std::string& out, Flags more) {
    more.insert(more.begin(), {"sample", run.recipe(), "--weights", base, "--prompt", "a square", "--sample.steps", "3",
                               "--sample.seed", "5", "--format", "frames", "--out", (run.folder() / out).string()});
    const Result r = run.tessera(more);
    EXPECT_EQ(r.code, 0) << r.output;
    return data::decode_clip(run.folder() / out, {.frames = 8, .height = 0, .width = 0});
  };
  const data::Frames grid = sample("grid", {"--lora", lora, "--strengths", "0,1"}), without = sample("without", {}),
                     with = sample("with", {"--lora", lora});
  ASSERT_EQ(grid.width, 64);
  ASSERT_EQ(grid.height, 32);
  ASSERT_NE(without.rgb, with.rgb);
  for (int f = 0; f < 8; ++f)
    for (int y = 0; y < 32; ++y)
      for (int x = 0; x < 64 * 3; ++x) {
        const data::Frames& one = x < 96 ? without : with;
        ASSERT_EQ(grid.rgb[(f * 32 + y) * 192 + x], one.rgb[(f * 32 + y) * 96 + x % 96]) << f << " " << y << " " << x;
      }
  const Result alone = run.tessera({"sample", run.recipe(), "--weights", base, "--strengths", "1"});
  expect(alone, 2, {"--strengths", "--lora"});
}

TEST(Inspect, TellsTheTypeThatTheConfigTells) {
  const TinyRun run("type");
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "1"}).code, 0);
  const fs::path model = run.out() + "/model";
  expect(run.tessera({"inspect", model.string()}), 0, {"wan-t2v"});
  std::string config = text_of(model / "config.json");
  replace(config, "\"t2v\"", "\"ti2v\"");
  std::ofstream(model / "config.json") << config;
  expect(run.tessera({"inspect", model.string()}), 0, {"wan-ti2v"});
}

TEST(TwoExperts, OfARunKeepTheirBoundaryAndShiftInOtherProgramsFolders) {
  const fs::path golden = fs::path(TESSERA_GOLDENS) / "wan22_moe";
  if (!fs::exists(golden)) GTEST_SKIP() << "no golden cases at " << golden;
  const TinyRun run("boundary");
  const fs::path model = run.folder() / "experts";
  for (const char* expert : {"high_noise_model", "low_noise_model"}) {
    fs::create_directories(model / expert);
    fs::copy(golden / expert / "model.safetensors", model / expert / "diffusion_pytorch_model.safetensors");
    fs::copy(golden / expert / "config.json", model / expert / "config.json");
  }
  const auto made = [&](const std::string& name) {
    const fs::path out = run.folder() / name;
    const Result r = run.tessera({"convert", model.string(), out.string(), "--to", "diffusers"});
    EXPECT_EQ(r.code, 0) << r.output;
    return std::pair(json_of(out / "model_index.json"), json_of(out / "scheduler/scheduler_config.json"));
  };
  EXPECT_EQ(made("released").first["boundary_ratio"], 0.875);
  std::ofstream(model / "experts.json") << R"({"boundary": 0.7, "flow_shift": 3.5})";
  const auto [index, scheduler] = made("trained");
  EXPECT_EQ(index["boundary_ratio"], 0.7);
  EXPECT_EQ(scheduler["flow_shift"], 3.5);
  const Result r =
      run.tessera({"convert", model.string(), (run.folder() / "bf16").string(), "--to", "official", "--dtype", "bf16"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(fs::exists(run.folder() / "bf16/experts.json"));
}

}  // namespace
}  // namespace tessera::testing
