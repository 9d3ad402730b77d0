// What users get wrong, each with its message and code, and nothing lost.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <fstream>
#include <iterator>

#include "program.h"
#include "tessera/checkpoint/torch_zip.h"
#include "tessera/checkpoint/training.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

void expect(const Result& r, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(r.code, code) << r.output;
  for (const auto& word : words)
    EXPECT_NE(r.output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << r.output;
  EXPECT_EQ(r.output.find("terminate called"), std::string::npos) << r.output;
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc | std::ios::binary) << text;
}

TEST(Mistakes, AnUnknownCommandNamesTheNearest) {
  const TinyRun run("m");
  expect(run.tessera({"trian", run.recipe()}), 2, {"trian", "train"});
}
TEST(Mistakes, AnUnknownFlagNamesTheNearest) {
  const TinyRun run("m");
  expect(run.tessera({"train", run.recipe(), "--train.lrr", "1"}), 2, {"train.lrr", "train.lr"});
}
TEST(Mistakes, AnUnknownKeyInTheRecipeNamesTheNearest) {
  const TinyRun run("m");
  std::ofstream(run.recipe(), std::ios::app) << "\n[lora]\ntragets = \"q\"\n";
  expect(run.tessera({"train", run.recipe()}), 2, {"tragets", "targets", "recipe.toml"});
}
TEST(Mistakes, AKeyWithoutItsTableOrUnderAnotherTrainersNameIsRecognised) {
  const TinyRun run("m");
  expect(run.tessera({"train", run.recipe(), "--lr", "1"}), 2, {"unknown flag --lr", "did you mean train.lr?"});
  expect(run.tessera({"plan", run.recipe(), "--steps=9"}), 2, {"run.steps or distill.steps or sample.steps"});
  std::ofstream(run.recipe(), std::ios::app) << "\n[lora]\nlearning_rate = 1e-5\n";
  expect(run.tessera({"train", run.recipe()}), 2, {"lora.learning_rate", "did you mean train.lr?"});
}
TEST(Mistakes, AJsonFileIsNoRecipe) {
  const TinyRun run("m");
  write(run.folder() / "ds.json", R"({"train_batch_size": 8})");
  expect(run.tessera({"train", (run.folder() / "ds.json").string()}), 2, {"this is JSON", "tessera import"});
}
TEST(Mistakes, AFileOfAnotherTrainerIsSentToImport) {
  const TinyRun run("m");
  for (const char* name : {"config.py", "train.yaml", "a.yml", "run.sh", "ds.json"}) {
    const std::string file = (run.folder() / name).string();
    write(file, "anything");
    for (const char* command : {"train", "plan", "prepare", "sample"})
      expect(run.tessera({command, file}), 2, {name, "a recipe is TOML", "tessera import " + file});
  }
  expect(run.tessera({"train", (run.folder() / "none.py").string()}), 3, {"none.py"});
}

/// A shell does not read ~ and $VAR in quotes, in `--key=~/a` and in a file.
TEST(Mistakes, HomeAndVariablesInPathsAreReadAsAShellWould) {
  const TinyRun run("paths");
  const std::map<std::string, std::string> variables = {{"HOME", run.folder().string()}, {"RUNS", "made"}};
  const auto train = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {TESSERA_BINARY, "train", run.recipe(), "--run.steps", "1", "--sample.every", "0"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words, variables);
  };
  expect(train({"--run.out", "~/$RUNS/a"}), 0, {});
  EXPECT_TRUE(fs::exists(run.folder() / "made/a/metrics.jsonl"));
  expect(train({"--run.out=~/${RUNS}b"}), 0, {});
  EXPECT_TRUE(fs::exists(run.folder() / "madeb/metrics.jsonl"));
  EXPECT_FALSE(fs::exists("~"));
  expect(train({"--run.out", "$NOBODY_SETS_THIS/a"}), 2, {"run.out", "NOBODY_SETS_THIS is not set"});
  expect(train({"--run.out", "~somebody/a"}), 2, {"run.out", "~somebody", "write the whole path"});
  // a list of paths in a file, of which each is read
  std::string recipe = text_of(run.recipe());
  const std::string data = (run.folder() / "data").string();
  for (size_t at = recipe.find(data); at != std::string::npos; at = recipe.find(data))
    recipe.replace(at, data.size(), "~/data");
  write(run.recipe(), recipe);
  expect(train({"--run.out", "$HOME/c", "--data.path", "~/data,$HOME/data"}), 0, {});
  // and what the program itself takes: a recipe, a file that it writes
  std::vector<std::string> words = {TESSERA_BINARY,   "sample", "~/c/recipe.toml",  "--prompt", "a",
                                    "--sample.steps", "1",      "--out=~/$RUNS.gif"};
  expect(run_program(words, variables), 0, {});
  EXPECT_TRUE(fs::exists(run.folder() / "made.gif"));
  EXPECT_FALSE(fs::exists("~"));
  // what is there under that very name is meant
  fs::create_directories(run.folder() / "$RUNS");
  fs::copy(run.folder() / "data", run.folder() / "$RUNS/data", fs::copy_options::recursive);
  expect(train({"--run.out", "~/d", "--data.path", (run.folder() / "$RUNS/data").string()}), 0, {});
}

TEST(Mistakes, AMissingRecipeIsNamed) {
  const TinyRun run("m");
  const Result r = run.tessera({"train", (run.folder() / "no.toml").string()});
  expect(r, r.code == 2 ? 2 : 3, {"no.toml"});
}
TEST(Mistakes, AWordThatIsNearlyAChoiceGetsTheNearest) {
  const TinyRun run("m");
  expect(run.tessera({"train", run.recipe(), "--train.mode", "lorra"}), 2, {"train.mode", "did you mean 'lora'"});
}
TEST(Mistakes, AMeshThatDoesNotMatchTheRanksSaysBothNumbers) {
  const TinyRun run("m");
  expect(run.train(2, "run", {"--mesh", "dp_shard=4"}), 2, {"4", "2"});
}
TEST(Mistakes, AMeshThatTheModelCannotHaveIsRefusedBeforeAnythingIsEncoded) {
  const TinyRun run("m");
  const Result r = run.train(3, "run", {"--mesh", "sp=3"});
  expect(r, 2, {"sp = 3 does not divide the model's 4 heads"});
  EXPECT_EQ(r.output.find("prepare: encoding"), std::string::npos) << r.output;
}
TEST(Mistakes, ASizeThatThePatchesDoNotDivideIsRefusedBeforeAnythingIsEncoded) {
  const TinyRun run("patches");  // the wavelet makes latents of an eighth, and the patches are 2 wide
  for (const char* command : {"prepare", "train"})
    expect(run.tessera({command, run.recipe(), "--data.size", "40,24"}), 2,
           {"data.size", "40 x 24", "the model's patches do not divide the latent", "choose data.size"});
  EXPECT_FALSE(std::filesystem::exists(run.folder() / "cache"));
}

TEST(Mistakes, AGpuThatCannotBeUsedIsRefusedWithTheReasonAndNeverReplacedByTheCpu) {
  const TinyRun run("m");
  for (const std::string command : {"train", "sample", "prepare"}) {
    const Result r = run.tessera({command, run.recipe(), "--run.device", "cuda"});
    // without a driver it says so; with one, what is missing in this version
    expect(r, 2, {"[run.device] \"cuda\": ", "set run.device = \"cpu\""});
    EXPECT_EQ(r.output.find("prepare: encoding"), std::string::npos) << r.output;
  }
  expect(run.tessera({"train", run.recipe(), "--run.device", "gpu"}), 2,
         {"run.device", "auto|cpu|cuda", "did you mean 'cpu'"});
}
TEST(Mistakes, AnAxisWithTwoSizesIsRefused) {
  const TinyRun run("m");
  expect(run.tessera({"plan", run.recipe(), "--mesh", "sp=2,sp=4"}), 2, {"sp = 2 and sp = 4"});
}
TEST(Mistakes, SizesOfARecipeThatDoNotGoTogetherAreOfUsage) {
  const TinyRun run("m");
  expect(run.tessera({"plan", run.recipe(), "--model.config.dim", "65"}), 2, {"dim 65", "num_heads 4", "the recipe"});
  expect(run.tessera({"plan", run.recipe(), "--model.config.num_layers", "0"}), 2, {"num_layers is 0"});
}
TEST(Mistakes, AFolderThatCannotBeMadeIsADiskErrorAndNamesTheKey) {
  const TinyRun run("m");
  const std::string below_a_file = run.recipe() + "/x";
  expect(run.train(1, "run", {"--run.out", below_a_file}), 7, {"recipe.toml/x", "run.out"});
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "1"}).code, 0);
  const Result sample =
      run.tessera({"sample", run.recipe(), "--sample.steps", "1", "--prompt", "a", "--out", below_a_file + "/a.mp4"});
  expect(sample, 7, {"recipe.toml/x", "--out"});
  EXPECT_EQ(sample.output.find("weights of"), std::string::npos) << "told behind the samples:\n" << sample.output;
  expect(run.tessera({"probe", "--out", below_a_file}), 7, {"recipe.toml/x", "cannot create"});
}
TEST(Mistakes, AScheduleThatDoesNotFitLeavesTheOneBefore) {
  const TinyRun run("m");
  const std::string file = (run.folder() / "schedule.jsonl").string();
  ASSERT_EQ(run.tessera({"plan", run.recipe(), "--schedule", file}).code, 0);
  const std::string before = text_of(file);
  expect(run_program({"/bin/bash", "-c",
                      std::string("ulimit -f 8; exec ") + TESSERA_BINARY + " plan " + run.recipe() +
                          " --run.steps 100 --schedule " + file}),
         7, {"schedule.jsonl", "cannot write"});
  EXPECT_TRUE(text_of(file) == before);
  expect(run.tessera({"plan", run.recipe(), "--schedule", "/dev/full"}), 7, {"/dev/full", "No space left"});
}
TEST(Mistakes, OutputThatAFullDiskCutsShortIsAnErrorAndAClosedPipeIsNone) {
  const TinyRun run("m");
  const auto shell = [&](const std::string& arguments) {
    return run_program({"/bin/bash", "-c", std::string("set -o pipefail; ") + TESSERA_BINARY + " " + arguments});
  };
  const std::string plan = "plan " + run.recipe();
  for (const std::string& command : std::vector<std::string>{"list schema", "man", "--version", "help", "plan --help",
                                                             plan, plan + " --json", "completion bash"}) {
    expect(shell(command + " >/dev/full"), 7, {"output could not be written whole"});
    expect(shell(command + " | head -c 10"), 0, {});
    expect(shell(command + " >&-"), 0, {});
  }
  expect(shell("plan " + run.recipe() + " --nonsense >/dev/full"), 2, {"--nonsense"});
}
TEST(Mistakes, WhatIsWrittenToADeviceLeavesTheDeviceThere) {
  const TinyRun run("m");
  const std::string link = (run.folder() / "nowhere").string();
  fs::create_symlink("/dev/null", link);
  expect(run.tessera({"plan", run.recipe(), "--write", link}), 0, {});
  expect(run.tessera({"plan", run.recipe(), "--html", link}), 0, {});
  EXPECT_TRUE(fs::is_character_file(link));
  expect(run.tessera({"plan", run.recipe(), "--write", "/dev/stdout"}), 0, {"micro_batch = "});
}
TEST(Mistakes, EncodersThatTheModelHasNoInputForAreWarnedAbout) {
  const TinyRun run("m");
  for (const std::string key :
       {"data.image_encoder", "data.pooled_encoder", "data.glyph_encoder", "data.audio_encoder"})
    expect(run.tessera({"plan", run.recipe(), "--" + key, "some-name"}), 0,
           {"warning: " + key + " = some-name has no effect: the model reads no "});
  expect(run.tessera({"plan", run.recipe(), "--sample.chunk", "7"}), 0, {"warning: sample.chunk = 7 has no effect"});
  const Result plain = run.tessera({"plan", run.recipe()});
  EXPECT_EQ(plain.output.find("has no effect"), std::string::npos) << plain.output;
}
TEST(Mistakes, TheRecipesOwnFolderIsNotTheRuns) {
  const TinyRun run("m");
  expect(run.train(1, "run", {"--run.out", run.folder().string()}), 2, {"run.out", "recipe.toml that no run wrote"});
  expect(run.tessera({"train", run.recipe(), "--run.out", ""}), 2, {"run.out is empty"});
}
TEST(Mistakes, BuffersOnADiskThatNobodyNamedAreRefusedBeforeTheRun) {
  const TinyRun run("m");
  for (const char* command : {"plan", "train"})
    expect(run.tessera({command, run.recipe(), "--plan.states", "nvme"}), 2, {"plan.nvme", "folder"});
}
TEST(Mistakes, FlagsOfPlanThatWouldDoNothingAreRefused) {
  const TinyRun run("m");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--largest", "frames", "--schedule", "s.jsonl"}, "--schedule cannot be combined with --largest"},
      {{"--layouts", "--html", "p.html"}, "--html cannot be combined with --layouts"},
      {{"--layouts", "--largest", "frames"}, "exclude each other"},
      {{"--frontier", "--html", "p.html"}, "--html cannot be combined with --frontier"},
      {{"--frontier=p.png"}, "a picture is an .svg or an .html file"},
      {{"--executed", "s.jsonl"}, "--executed without --trace"},
      {{"--gpu", "h200", "--plan.profile", "h100"}, "name two machines"},
  };
  for (const auto& [flags, words] : cases) {
    std::vector<std::string> typed = {"plan", run.recipe()};
    typed.insert(typed.end(), flags.begin(), flags.end());
    expect(run.tessera(typed), 2, {words});
  }
}
TEST(Mistakes, AMeshStaysWithAGpuGrowsOverNodesAndIsToldWhereThereIsNone) {
  const TinyRun run("m");
  const auto mesh_of = [&](const std::vector<std::string>& flags, const std::string& told) {
    std::vector<std::string> typed = {"plan", run.recipe(), "--train.global_batch", "64", "--json", "--gpu"};
    typed.insert(typed.end(), flags.begin(), flags.end());
    const Result r = run.tessera(typed);
    expect(r, 0, {told});
    const size_t at = r.output.find("\"mesh\"");
    return r.output.substr(at, r.output.find('}', at) - at);
  };
  const std::string none = mesh_of({"h200"}, "plan: dp_shard=8 on the 8 GPUs of h200");
  EXPECT_NE(none.find("\"dp_shard\": 8"), std::string::npos) << none;
  EXPECT_EQ(mesh_of({"1xh200", "--mesh", "dp_shard=1"}, "{").find("\"dp_shard\": 8"), std::string::npos);
  std::ofstream(run.recipe(), std::ios::app) << "\n[mesh]\ntp = 2\ndp_shard = 2\n";
  const std::string kept = mesh_of({"h200"}, "{"), grown = mesh_of({"h200", "--nodes", "2"}, "the mesh grows to");
  EXPECT_NE(kept.find("\"dp_shard\": 2"), std::string::npos) << kept;
  EXPECT_NE(grown.find("\"dp_shard\": 8"), std::string::npos) << grown;
  for (const std::string& json : {kept, grown}) EXPECT_NE(json.find("\"tp\": 2"), std::string::npos) << json;
  expect(run.tessera({"plan", run.recipe(), "--gpu", "h200", "--nodes", "2", "--mesh", "tp=2,dp_shard=3"}), 2,
         {"dp_shard=3,tp=2", "6 ranks, which do not divide the 16 GPUs of h200"});
}
TEST(Mistakes, AMissingVideoIsNamed) {
  const TinyRun run("m");
  write(run.folder() / "data/metadata.csv", "video,prompt\ngone.mp4,a clip\n");
  expect(run.train(1, "run", {"--data.metadata", (run.folder() / "data/metadata.csv").string()}), 3, {"gone.mp4"});
}
TEST(Mistakes, ATruncatedVideoIsNamed) {
  const TinyRun run("m");
  const fs::path clip = run.folder() / "data/clip1.mp4";
  fs::resize_file(clip, fs::file_size(clip) / 3);
  expect(run.train(1, "run"), 3, {"clip1.mp4"});
}
TEST(Mistakes, AMissingCaptionIsNamed) {
  const TinyRun run("m");
  fs::remove(run.folder() / "data/clip2.txt");
  expect(run.train(1, "run"), 3, {"clip2"});
}
TEST(Mistakes, AnEmptyDatasetIsNamed) {
  const TinyRun run("m");
  const fs::path frames = run.folder() / "frames/walk";
  fs::create_directories(frames);
  for (const char* name : {"0001.png", "0002.png"}) write(frames / name, "");
  expect(run.train(1, "run", {"--data.path", frames.parent_path().string()}), 3,
         {"not used without a caption", "walk.txt"});
  fs::create_directories(run.folder() / "empty");
  expect(run.train(1, "run", {"--data.path", (run.folder() / "empty").string()}), 3, {"empty"});
}
TEST(Mistakes, WeightsThatAreNotThereAreNamedWithTheFlag) {
  const TinyRun run("m");
  expect(run.tessera({"sample", run.recipe(), "--weights", "gone"}), 3, {"--weights gone", "newest checkpoint"});
  expect(run.tessera({"sample", "--task", "t2v-1.3B", "--ckpt_dir", "gone"}), 3,
         {"gone/Wan2.1_VAE.pth: no such file or folder"});
}
TEST(Mistakes, CorruptWeightsAreNamed) {
  const TinyRun run("m");
  fs::create_directories(run.folder() / "weights");
  write(run.folder() / "weights/model.safetensors", "this is no safetensors file at all");
  write(
      run.folder() / "weights/config.json",
      R"({"_class_name":"WanModel","model_type":"t2v","dim":64,"ffn_dim":128,"num_heads":2,"num_layers":3,"in_dim":12,"out_dim":12,"freq_dim":32,"text_dim":64,"text_len":16,"eps":1e-6})");
  expect(run.train(1, "run", {"--model.path", (run.folder() / "weights").string()}), 3, {"model.safetensors"});
}
TEST(Mistakes, WeightsOfAnotherSizeNameTensorAndBothShapes) {
  const TinyRun run("m");
  ASSERT_EQ(run.train(1, "small", {"--run.steps", "1"}).code, 0);
  expect(run.train(1, "run", {"--model.path", run.out("small") + "/model", "--model.config.ffn_dim", "256"}), 3,
         {"blocks.0.ffn.0", "[256, 64]", "[128, 64]"});
}
TEST(Mistakes, LoadingWithoutAPathIsRefused) {
  const TinyRun run("m");
  expect(run.train(1, "run", {"--model.init", "load"}), 2, {"model.init", "model.path"});
}
TEST(Mistakes, ABudgetThatNothingFitsIsRefusedWithAdvice) {
  const TinyRun run("m");
  expect(run.train(1, "run", {"--plan.budget", "100KiB"}), 4, {"plan.budget", "dp_shard"});
  expect(run.tessera({"plan", run.recipe(), "--plan.budget", "100KiB"}), 4, {"plan.budget"});
}
/// Two ranks that torchrun's variables start, each by a command of its own: code and output of both.
std::array<Result, 2> two_ranks(const TinyRun& run, const std::array<std::vector<std::string>, 2>& commands) {
  const std::string port = std::to_string(20000 + getpid() % 10000);
  std::array<pid_t, 2> ranks;
  const auto log = [&](size_t rank) { return (run.folder() / ("log" + std::to_string(rank))).string(); };
  for (size_t rank = 0; rank < 2; ++rank)
    ranks[rank] = start_program(commands[rank], log(rank),
                                {{"RANK", std::to_string(rank)},
                                 {"WORLD_SIZE", "2"},
                                 {"LOCAL_RANK", std::to_string(rank)},
                                 {"LOCAL_WORLD_SIZE", "2"},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", port},
                                 {"OMP_NUM_THREADS", "1"},
                                 {"TESSERA_TEST_EXEC", "1"}});  // one may be a shell's, and both have to be one program
  std::array<Result, 2> results;
  for (size_t rank = 0; rank < 2; ++rank) results[rank].code = wait_program(ranks[rank], 60);
  for (size_t rank = 0; rank < 2; ++rank) results[rank].output = text_of(log(rank));
  return results;
}

TEST(Mistakes, RanksWithDifferentRecipesAreRefused) {
  const TinyRun run("m");
  const auto with = [&](const std::string& lr) {
    return std::vector<std::string>{TESSERA_BINARY, "train", run.recipe(), "--train.lr", lr};
  };
  for (const Result& r : two_ranks(run, {with("1e-3"), with("2e-3")})) expect(r, 2, {"recipe"});
}
TEST(Mistakes, RanksWithDifferentProgramsAreRefused) {
  const TinyRun run("m");
  const fs::path other = run.folder() / "tessera";  // the same program but for a byte that is never read
  fs::copy_file(TESSERA_BINARY, other);
  std::ofstream(other, std::ios::app) << '\n';
  for (const Result& r : two_ranks(run, {std::vector<std::string>{TESSERA_BINARY, "train", run.recipe()},
                                         {other.string(), "train", run.recipe()}}))
    expect(r, 2, {"program", "tessera of ", "checksum"});
}
TEST(Mistakes, RanksWhoseDataSetsDifferAreRefused) {
  // A folder of this name on the second rank's machine holds one clip less.
  const TinyRun run("m");
  const fs::path data = run.folder() / "data", other = run.folder() / "other";
  fs::copy(data, other, fs::copy_options::recursive);
  for (const auto& file : fs::directory_iterator(other))
    if (file.path().extension() == ".mp4" || file.path().extension() == ".txt") {
      fs::remove(other / (file.path().stem().string() + ".mp4"));
      fs::remove(other / (file.path().stem().string() + ".txt"));
      break;
    }
  const std::string mount = "mount --bind " + other.string() + " " + data.string();
  if (const Result may = run_program({"/usr/bin/env", "unshare", "-rm", "/bin/sh", "-c", mount}); may.code != 0)
    GTEST_SKIP() << "a folder cannot be mounted here: " << may.output;
  const std::string second = mount + " && exec " TESSERA_BINARY " train " + run.recipe();
  for (const Result& r : two_ranks(run, {std::vector<std::string>{TESSERA_BINARY, "train", run.recipe()},
                                         {"/usr/bin/env", "unshare", "-rm", "/bin/sh", "-c", second}}))
    expect(r, 2, {"data set"});
}
TEST(Mistakes, RanksThatWouldGoOnFromDifferentCheckpointsAreRefused) {
  // On the second rank's machine the folder of checkpoints lacks the newest.
  const TinyRun run("m");
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "2", "--checkpoint.every", "1"}).code, 0);
  const fs::path checkpoints = fs::path(run.out()) / "checkpoints", other = run.folder() / "other";
  fs::copy(checkpoints, other, fs::copy_options::recursive);
  fs::remove_all(other / "step-000002");
  const std::string mount = "mount --bind " + other.string() + " " + checkpoints.string();
  if (const Result may = run_program({"/usr/bin/env", "unshare", "-rm", "/bin/sh", "-c", mount}); may.code != 0)
    GTEST_SKIP() << "a folder cannot be mounted here: " << may.output;
  const std::string train = "exec " TESSERA_BINARY " train " + run.recipe() + " --run.steps 4";
  for (const Result& r : two_ranks(run, {std::vector<std::string>{"/bin/sh", "-c", train},
                                         {"/usr/bin/env", "unshare", "-rm", "/bin/sh", "-c", mount + " && " + train}}))
    expect(r, 2, {"rank 1 has another checkpoint to go on from than rank 0", "step-000001", "step-000002"});
  EXPECT_EQ(run.metrics("run").size(), 2u) << "no step ran";
  EXPECT_TRUE(fs::exists(checkpoints / "step-000002/manifest.json"));
}
TEST(Mistakes, ValuesThatAreNotUtf8AreNamedWithTheByte) {
  const TinyRun run("m");
  expect(run.tessera({"train", run.recipe(), "--run.out", run.out("caf\xe9")}), 2, {"run.out is not UTF-8 at byte"});
  EXPECT_FALSE(fs::exists(run.out("caf\xe9")));
  expect(run.tessera({"plan", run.recipe(), "--sample.prompts", "a caf\xe9"}), 2, {"sample.prompts is not UTF-8"});
}
TEST(Mistakes, TorchrunsVariablesStartRanksToo) {
  const TinyRun run("m");
  const std::vector<std::string> train = {TESSERA_BINARY, "train", run.recipe()};
  for (const Result& r : two_ranks(run, {train, train})) expect(r, 0, {});
  EXPECT_EQ(run.metrics("run").size(), 6u);
}
TEST(Mistakes, ANaNLossStopsAndNamesTheSample) {
  const TinyRun run("m");
  // A learning rate far too large makes the loss overflow within a few steps.
  expect(run.train(2, "run", {"--train.lr", "1e30", "--train.clip_norm", "0"}), 6, {"sample", "clip"});
}
TEST(Mistakes, ANaNLossCanBeSkipped) {
  const TinyRun run("m");
  const Result r = run.train(2, "run", {"--train.lr", "1e30", "--train.clip_norm", "0", "--run.on_nan", "skip"});
  expect(r, 6, {"step 2 skipped", "step 6 skipped", "the last 5 steps were skipped"});
  EXPECT_EQ(run.metrics("run", "skip").size(), 5u);
}
TEST(Mistakes, ARunThatSkippedEveryStepDoesNotEndWell) {
  const TinyRun run("m");
  const std::vector<std::string> skip = {"--train.lr", "1e30", "--train.clip_norm", "0", "--run.on_nan", "skip"};
  std::vector<std::string> one = skip, more = skip;
  one.insert(one.end(), {"--run.steps", "1"});
  ASSERT_EQ(run.train(1, "run", one).code, 0);  // nobody has seen yet what its update did
  more.insert(more.end(), {"--run.steps", "9"});
  expect(run.train(2, "run", more), 6, {"every step was skipped", "no checkpoint is proved"});
}
TEST(Mistakes, AHundredSkippedStepsInARowEndTheRun) {
  const TinyRun run("m");
  expect(run.train(2, "run",
                   {"--train.lr", "1e30", "--train.clip_norm", "0", "--run.on_nan", "skip", "--run.steps", "300"}),
         6, {"100 steps in a row were skipped, the last at step ", ": loss nan, gradient norm nan", "train.lr"});
  EXPECT_EQ(run.metrics("run", "skip").size(), 100u);
}
TEST(Mistakes, AFullDiskWhileSavingKeepsTheLastCheckpoint) {
  const TinyRun run("m");
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "2", "--checkpoint.every", "1"}).code, 0);
  const Result r = run_program({"/bin/bash", "-c",
                                "ulimit -f 64; exec " TESSERA_BINARY " launch -n 1 train " + run.recipe() +
                                    " --run.steps 4 --checkpoint.every 1"},
                               {{"OMP_NUM_THREADS", "1"}});
  expect(r, 7, {"step-000003"});
  const auto latest = checkpoint::latest(fs::path(run.out()) / "checkpoints");
  ASSERT_TRUE(latest.has_value());
  EXPECT_EQ(checkpoint::TrainingCheckpoint(*latest).manifest().step, 2);
  EXPECT_EQ(run.train(1, "run", {"--run.steps", "4"}).code, 0);
}
TEST(Mistakes, TooFewAddressesAreNamedAsTheLimitTheyAre) {
  const TinyRun run("m");
  const auto limited = [](int mebibytes, const std::string& arguments) {
    return run_program(
        {"/bin/bash", "-c",
         "ulimit -v $((" + std::to_string(mebibytes) + " * 1024)); exec " TESSERA_BINARY " " + arguments},
        {{"OMP_NUM_THREADS", "1"}});
  };
  int least = 256;  // with which the libraries are loaded at all
  while (least < 65536 && limited(least, "--version").code != 0) least += 256;
  for (const char* start : {"train ", "launch -n 2 train "})
    expect(limited(least + 256, start + run.recipe()), 8, {"the limit of addresses is", "(ulimit -v)"});
}
TEST(Mistakes, LimitsOfFilesAreNamedWhereNothingCanStart) {
  const TinyRun run("m");
  const auto limited = [&](const std::string& limit, const std::string& start) {
    // What it says goes through a pipe: a file would have the limit too.
    const std::string limited = "(ulimit " + limit + "; exec " TESSERA_BINARY " " + start + run.recipe() + ")";
    return run_program({"/bin/bash", "-c", limited + " 2>&1 | cat; exit ${PIPESTATUS[0]}"}, {{"OMP_NUM_THREADS", "1"}});
  };
  for (const char* start : {"train ", "launch -n 2 train "}) {
    SCOPED_TRACE(start);
    expect(limited("-f 0", start), 7, {"the limit of a file's size is 0 B (ulimit -f)"});
    expect(limited("-n 16", start), 2, {"the limit of open files is 16 (ulimit -n)"});
  }
  EXPECT_TRUE(run.metrics("run").empty()) << "no step ran";
}
TEST(Mistakes, AProcessThatCannotSeeProcSaysSo) {
  const TinyRun run("m");
  const auto hidden = [](const std::string& command) {
    const std::string inside = "mount -t tmpfs none /proc && " + command;
    return run_program({"/bin/sh", "-c", "exec unshare -m /bin/sh -c '" + inside + "'"}, {{"OMP_NUM_THREADS", "1"}});
  };
  if (const Result r = hidden("true"); r.code != 0)
    GTEST_SKIP() << "mount namespaces are not permitted here: " << r.output;
  for (const char* start : {"train ", "launch -n 2 train "})
    expect(hidden(std::string("exec " TESSERA_BINARY " ") + start + run.recipe()), 2,
           {"this process cannot see /proc", "mount -t proc proc /proc"});
}
/// Strangers' files and numbers that nobody means, as the program is started with them: each is an error with its place,
/// within 20 s of a processor and 2 GiB of addresses. Which readers refuse them is tested in their rooms.
TEST(Mistakes, HostileInputsAreRefusedInLittleTimeAndMemory) {
  const TinyRun run("hostile");
  const auto in_run = [&](const std::string& name) { return (run.folder() / name).string(); };
  const auto data = [&](const std::string& folder, const std::string& row) {
    fs::create_directories(in_run(folder));
    write(in_run(folder + "/metadata.csv"), "video,prompt,audio\n" + row + "\n");
    return in_run(folder);
  };
  const auto pth = [&](const std::string& name, const std::string& pickle) {
    checkpoint::ZipWriter zip(in_run(name), 1 << 20);
    zip.add("archive/data.pkl", pickle.data(), static_cast<int64_t>(pickle.size()));
    zip.commit();
    return in_run(name);
  };
  std::string key = "\x80\x02}X" + std::string("\0\0\x40\0", 4) + std::string(4 << 20, 'k') + std::string("q\0000(", 4);
  for (int i = 0; i < 2'000'000; ++i) key += std::string("h\0N", 3);
  std::string sound(44 + 2000, '\0');  // a WAV of one channel of 16 bits that claims 167 MHz
  const auto put = [&](size_t at, const std::string& bytes) { sound.replace(at, bytes.size(), bytes); };
  put(0, "RIFF"), put(4, "\xf4\x07"), put(8, "WAVEfmt \x10"), put(20, "\x01"), put(22, "\x01"), put(32, "\x02");
  put(24, std::string("\xc0\x2f\xf4\x09", 4)), put(34, "\x10"), put(36, "data"), put(40, "\xd0\x07");
  const std::string many(260, 'n'), talk = data("sound", "clip.mp4,x,loud.wav");
  for (const auto& entry : fs::recursive_directory_iterator(run.folder()))
    if (entry.path().extension() == ".mp4" && !fs::exists(talk + "/clip.mp4"))
      fs::copy(entry.path(), talk + "/clip.mp4");
  write(talk + "/loud.wav", sound);
  fs::create_symlink("loop.mp4", data("loop", "loop.mp4,x,") + "/loop.mp4");
  ASSERT_EQ(::mkfifo(in_run("pipe").c_str(), 0600), 0);
  fs::create_directories(in_run("deep_model"));
  write(in_run("deep_model/config.json"),
        R"({"model_type": "t2v", "dim": 32, "ffn_dim": 64, "num_heads": 2, "in_dim": 16,
    "out_dim": 16, "freq_dim": 16, "text_dim": 16, "text_len": 8, "num_layers": 1000000000})");
  const std::string recipe = run.recipe(), pipe = in_run("pipe"), zero = "/dev/zero";
  const struct {
    std::vector<std::string> arguments;
    int code;
    const char* word;
  } rows[] = {
      {{"inspect", pth("tuples.pth", "\x80\x02" + std::string(60 << 20, ')') + ".")}, 3, "tuples.pth"},
      {{"inspect", pth("key.pth", key + "u.")}, 3, "key.pth"},
      {{"prepare", recipe, "--data.path", data("caption", "a.mp4," + std::string(10 << 20, 'c') + ",")}, 3, "caption"},
      {{"prepare", recipe, "--data.path", in_run("loop")}, 3, "loop.mp4"},
      {{"prepare", recipe, "--data.path", data("names", many + ".mp4,x,")}, 3, "metadata.csv"},
      {{"prepare", TESSERA_SOURCE_DIR "/recipes/wan2.2-s2v_demo_cpu.toml", "--data.path", talk, "--data.frames", "8"},
       3,
       "loud.wav"},
      {{"plan", recipe, "--model.path", in_run("deep_model")}, 3, "num_layers is 1000000000"},
      {{"plan", pipe}, 3, "is no regular file"},
      {{"plan", zero}, 3, "is no regular file"},
      {{"plan", recipe, "--plan.profile", pipe}, 3, "is no regular file"},
      {{"plan", recipe, "--plan.file", zero}, 3, "/dev/zero"},
      {{"top", pipe, "--once"}, 3, "pipe"},
      {{"report", zero}, 3, "/dev/zero"},
      {{"plan", recipe, "--mesh", "dp_shard=1000000"}, 2, "more than 131072 ranks"},
      {{"plan", recipe, "--train.global_batch", "16777216", "--train.micro_batch", "1"}, 2, "micro-batches a step"},
      {{"plan", recipe, "--train.global_batch", "16777216", "--train.micro_batch", "16777216"},
       2,
       "samples a micro-batch"},
      {{"plan", recipe, "--mesh", "dp_shard=131072", "--train.global_batch", "1048576"}, 4, "plan.budget"},
      {{"plan", recipe, "--data.repeats", "9223372036854775807"}, 2, "data.repeats"},
      {{"plan", recipe, "--fault.timeout", "1e300"}, 2, "fault.timeout"},
  };
  for (const auto& [arguments, code, word] : rows) {
    std::vector<std::string> argv = {"/bin/bash", "-c", "ulimit -t 20 -v 2097152; exec \"$@\"", "hostile",
                                     TESSERA_BINARY};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    if (arguments[0] == "prepare")
      argv.insert(argv.end(), {"--run.out", run.out("hostile"), "--data.cache", in_run("hostile-cache")});
    SCOPED_TRACE(arguments[0] + " " + arguments.back().substr(0, 80));
    expect(run_program(argv), code, {word});
  }
}

TEST(Mistakes, VerifyTellsWhatItCannotRead) {
  const TinyRun run("m");
  expect(run.tessera({"verify", (run.folder() / "nothing").string()}), 3, {"case.json"});
  fs::create_directories(run.folder() / "odd");
  write(run.folder() / "odd/case.json", R"({"kind":"horoscope"})");
  write(run.folder() / "odd/config.json", "{}");
  expect(run.tessera({"verify", (run.folder() / "odd").string()}), 3, {"horoscope", "dit"});
}

}  // namespace
}  // namespace tessera::testing
