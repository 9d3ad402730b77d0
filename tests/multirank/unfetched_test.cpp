// The first hour without weights: plans in an empty folder, cards by the names that people use, what is missing and how it
// is fetched, as commands are typed.
#include <gtest/gtest.h>

#include "matrix.h"
#include "page.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

void expect(const Result& r, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(r.code, code) << r.output;
  for (const auto& word : words)
    EXPECT_NE(r.output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << r.output;
}

/// A folder without anything, and without a cache of the hub.
class EmptyFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tessera-unfetched-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    fs::create_directories(folder_ / "here");
    ::setenv("HF_HUB_CACHE", (folder_ / "hub").c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("HF_HUB_CACHE");
    fs::remove_all(folder_);
  }
  Result type(const std::string& command) const { return testing::type(folder_ / "here", command); }
  fs::path folder_;
};

const std::string kRecipes = TESSERA_SOURCE_DIR "/recipes/";

TEST_F(EmptyFolder, EachShippedRecipeIsPlannedForEachKindOfMachine) {
  struct Row {
    const char *recipe, *preset, *tokens;
  };
  constexpr Row kRows[] = {{"wan2.1-t2v-1.3b_lora", "wan2.1-t2v-1.3b", "14040"},
                           {"wan2.1-t2v-1.3b_full_anywhere", "wan2.1-t2v-1.3b", "32760"},
                           {"sana-1.6b_lora_24gb", "sana-1.6b", "1024"},
                           {"sana1.5-1.6b_full_h100", "sana1.5-1.6b", "1024"},
                           {"sana-sprint-0.6b_scm_h100", "sana-sprint-0.6b", "1024"},
                           {"wan2.1-t2v-1.3b_dmd_h100", "wan2.1-t2v-1.3b", "32760"},
                           {"wan2.1-t2v-14b_full_h200", "wan2.1-t2v-14b", "32760"},
                           {"wan2.2-t2v-a14b_full_h200", "wan2.2-t2v-a14b", "32760"},
                           {"wan2.2-s2v-14b_full_a100", "wan2.2-s2v-14b", "32760"},
                           {"wan2.1-vace-14b_part_h200", "wan2.1-vace-14b", "34320"},
                           {"wan2.2-fun-5b-control_full_h100", "wan2.2-fun-5b-control", "19360"},
                           {"wan2.2-animate-14b_lora_h100", "wan2.2-animate-14b", "32760"},
                           {"hunyuan1.5-480p-t2v_lora_24gb", "hunyuan1.5-480p-t2v", "27425"},
                           {"hunyuan1.5-480p-i2v_full_h200", "hunyuan1.5-480p-i2v", "51275"}};
  constexpr const char* kMachines[] = {"h200", "h100", "4090"};
  size_t recipes = 0;
  for (const auto& file : fs::directory_iterator(kRecipes)) recipes += !file.path().stem().string().ends_with("_cpu");
  EXPECT_EQ(recipes, std::size(kRows)) << "a recipe has no row";
  MatrixPart part("shipped recipes without weights", static_cast<int>(std::size(kRows) * std::size(kMachines)), 7);
  for (const int i : part) {
    const Row& row = kRows[static_cast<size_t>(i) / std::size(kMachines)];
    const std::string gpu = kMachines[static_cast<size_t>(i) % std::size(kMachines)];
    const std::string command =
        "tessera plan " + kRecipes + row.recipe + ".toml --gpu " + gpu + " --train.micro_batch 1";
    const Result r = testing::type(folder_ / "here", command);
    EXPECT_TRUE(r.code == 0 || r.code == 4) << command << "\n" << r.output;
    for (const std::string word : {"not here yet: model.path = ", "computes in bf16"})
      EXPECT_NE(r.output.find(word), std::string::npos) << command << "\n" << r.output;
    EXPECT_NE(r.output.find(std::string("model.preset = ") + row.preset), std::string::npos) << r.output;
    EXPECT_NE(r.output.find(std::string(row.tokens) + " tokens"), std::string::npos) << command << "\n" << r.output;
    EXPECT_TRUE(fs::is_empty(folder_ / "here")) << command;
  }
}

TEST_F(EmptyFolder, ATutorialsRecipeAndImportsArePlannedToo) {
  const fs::path files = folder_ / "files";
  fs::create_directories(files);
  const auto planned = [&](const std::string& recipe, const std::vector<std::string>& words) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"not here yet: model.path = ", "bf16"});
    expect(type("tessera plan " + recipe + " --gpu 4090 --train.micro_batch 1 --data.frames 33"), 0, all);
  };
  std::ofstream(files / "my-lora.toml") << page("lora-in-an-hour.md").recipe;
  planned(files / "my-lora.toml", {"model.preset = wan2.1-t2v-1.3b", "plan.compute_dtype = bf16"});
  const std::string id = "Wan-AI/Wan2.1-T2V-1.3B:";
  const std::vector<std::string> commands = {
      "accelerate launch src/musubi_tuner/wan_train_network.py --task t2v-1.3B --dit wan2.1_t2v_1.3B_bf16.safetensors "
      "--vae Wan2.1_VAE.pth --t5 models_t5_umt5-xxl-enc-bf16.pth --max_train_steps 9 --network_module networks.lora_wan "
      "--output_dir out --output_name n",
      "accelerate launch train.py --dataset_base_path data --height 480 --width 832 --num_frames 33 --lora_base_model dit "
      "--model_id_with_origin_paths " +
          id + "diffusion_pytorch_model*.safetensors," + id + "models_t5_umt5-xxl-enc-bf16.pth," + id +
          "Wan2.1_VAE.pth"};
  for (const std::string& command : commands) {
    std::ofstream(files / "train.sh") << command << "\n";
    const std::string recipe = files / "imported.toml";
    expect(type("tessera import " + (files / "train.sh").string() + " -o " + recipe), 0, {});
    planned(recipe, {"model.preset = wan2.1-t2v-1.3b", "data.vae = wan2.1-vae"});
  }
}

TEST_F(EmptyFolder, PreparingAndTrainingEndWithTheCommandThatFetches) {
  for (const std::string command : {"train", "prepare"}) {
    expect(type("tessera " + command + " " + kRecipes + "wan2.1-t2v-1.3b_lora.toml"), 3,
           {"[model.path] Wan2.1-T2V-1.3B: no such file or folder",
            "hf download Wan-AI/Wan2.1-T2V-1.3B --local-dir Wan2.1-T2V-1.3B fetches it"});
    expect(type("tessera " + command + " " + kRecipes +
                "wan2.1-t2v-1.3b_lora.toml --model.path hf:Wan-AI/Wan2.1-T2V-1.3B"),
           3, {"hf download Wan-AI/Wan2.1-T2V-1.3B fetches it"});
    expect(type("tessera " + command + " " + kRecipes + "wan-tiny_demo_cpu.toml --data.vae gone/Wan2.1-T2V-14B"), 3,
           {"hf download Wan-AI/Wan2.1-T2V-14B --local-dir gone/Wan2.1-T2V-14B fetches it"});
  }
  EXPECT_TRUE(fs::is_empty(folder_ / "here"));
}

/// A small model, so that a plan takes a second.
std::string plan(const std::string& flags) {
  return "tessera plan " + kRecipes + "wan-tiny_demo_cpu.toml --train.micro_batch 1 " + flags;
}

TEST_F(EmptyFolder, SamplingEndsWithTheCommandThatFetchesToo) {
  const std::string sample = "tessera sample " + kRecipes + "wan2.1-t2v-1.3b_lora.toml --prompt 'a cat' --out a.mp4";
  expect(type(sample), 3, {"hf download Wan-AI/Wan2.1-T2V-1.3B --local-dir Wan2.1-T2V-1.3B fetches it"});
  for (const auto& [weights, line] :
       {std::pair("ckpts/Wan2.1-T2V-1.3B", "hf download Wan-AI/Wan2.1-T2V-1.3B --local-dir"),
        {"hf:Wan-AI/Wan2.1-T2V-1.3B", "hf download Wan-AI/Wan2.1-T2V-1.3B fetches it"}})
    expect(type("tessera sample " + kRecipes + "wan-tiny_demo_cpu.toml --prompt a --out a.mp4 --weights " + weights), 3,
           {"no such file or folder", line});
  EXPECT_TRUE(fs::is_empty(folder_ / "here"));
}

TEST_F(EmptyFolder, APlanWithoutWeightsSaysOfNothingThatItsWeightsAreRandom) {
  const std::string recipe = "tessera plan " + kRecipes + "wan2.1-t2v-1.3b_lora.toml --gpu 4090 --train.micro_batch 1 ";
  const Result r = type(recipe + "--lora.init gone/style.safetensors");
  expect(r, 0,
         {"not here yet: model.path = Wan2.1-T2V-1.3B", "lora.init = gone/style.safetensors",
          "planned by its release's sizes"});
  EXPECT_EQ(r.output.find("random weights"), r.output.npos) << r.output;
  expect(type(plan("--data.vae wan2.1-vae --data.frames 1 --model.config.in_dim 16 --model.config.out_dim 16")), 0,
         {"autoencoder wan2.1-vae has random weights"});
}

TEST_F(EmptyFolder, TheFirstLineSaysWhichMachineANameMeans) {
  expect(type(plan("--gpu 4090")), 0,
         {"plan: rtx4090 is one GPU of", "8xrtx4090: eight in a machine", "read from data sheets until probed"});
  expect(type(plan("--gpu 'RTX 4090'")), 0, {"plan: rtx4090 is one GPU of"});
  expect(type(plan("--gpu 8x4090")), 0, {"plan: 8xrtx4090 is a machine of 8 GPUs", "dp_shard=8"});
  expect(type(plan("--gpu 4090 --mesh dp_shard=2")), 0, {"plan: 2xrtx4090 is a machine of 2 GPUs"});
  expect(type(plan("--gpu a100")), 0, {"plan: a100-80 is a machine of 8 GPUs", "1xa100-80: one of them", "dp_shard=8"});
  expect(type(plan("--gpu 1xh200")), 0, {"plan: 1xh200 is one GPU of 139.80 GiB"});
  expect(type(plan("--gpu '16GiB,90TFLOPs,600GB/s'")), 0, {"is one GPU of 16.00 GiB; its rates are as described"});
  expect(type(plan("--gpu mi300x")), 2, {"AMD's GPUs are not supported"});
  expect(type(plan("--gpu t4")), 2, {"no code for GPUs older than sm_80"});
  expect(type(plan("--gpu 4091")), 2, {"did you mean rtx4090?"});
  expect(type(plan("--gpu 4090 --plan.profile h200")), 2, {"name two machines"});
  expect(type(plan("--gpu 4090 --plan.profile 'RTX 4090'")), 0, {"plan: rtx4090 is one GPU of"});
}

TEST_F(EmptyFolder, TheFirstLinesSayInWhichDtypeIsComputedAndWhy) {
  const std::string open = "--plan.compute_dtype auto ";
  expect(type(plan(open)), 0, {"plan.compute_dtype = fp32: a CPU computes"});
  expect(type(plan(open + "--gpu 4090")), 0, {"plan.compute_dtype = bf16: plan.profile rtx4090 is of sm_89"});
  const Result named = type(plan("--gpu 4090"));
  expect(named, 0, {"fp32"});
  EXPECT_EQ(named.output.find("plan.compute_dtype = "), std::string::npos) << "the demo's recipe names it";
}

TEST_F(EmptyFolder, NoAutoencoderNamedIsTheDefault) { expect(type(plan("--data.vae ''")), 0, {"haar is a wavelet"}); }

TEST_F(EmptyFolder, PresetsSayWhereTheirFilesComeFrom) {
  const Result r = type("tessera list presets --files");
  expect(r, 0,
         {"wan2.1-t2v-1.3b", "Wan-AI/Wan2.1-T2V-1.3B", "models_t5_umt5-xxl-enc-bf16.pth 11.4 GB",
          "hf download Wan-AI/Wan2.2-T2V-A14B --local-dir Wan2.2-T2V-A14B",
          "hf download hpcai-tech/OpenSora-VAE-v1.2 --local-dir OpenSora-VAE-v1.2"});
  const auto rows = nlohmann::json::parse(type("tessera list presets --files --json").output);
  const std::string page = text_of(TESSERA_SOURCE_DIR "/docs/weights.md");
  for (const auto& row : rows) {
    const auto text = [&row](const char* field) { return row.at(field).get<std::string>(); };
    const std::string commands = text("fetched by"), first = commands.substr(0, commands.find("; "));
    EXPECT_NE(page.find("| `" + text("name") + "` | `" + first + "`"), std::string::npos) << row;
    EXPECT_NE(page.find("| " + text("together") + " |"), std::string::npos) << row;
  }
  expect(type("tessera list profiles --files"), 2, {"--files is of presets"});
  expect(type("tessera list profiles"), 0, {"rtx4060ti-16", "gb200", "rtxpro6000"});
}

TEST(FirstRun, TakesItsDtypeFromTheDeviceOnceAndKeepsItOnResuming) {
  const TinyRun run("dtype");
  std::string text = text_of(run.recipe());
  text.erase(text.find("compute_dtype = \"fp32\"\n"), std::string("compute_dtype = \"fp32\"\n").size());
  std::ofstream(run.recipe()) << text;
  const std::vector<std::string> saving = {"--checkpoint.every", "1", "--run.device", "cpu"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), saving.begin(), saving.end());
    return more;
  };
  expect(run.train(2, "cpu", with({"--run.steps", "2"})), 0, {"plan.compute_dtype = fp32: a CPU computes"});
  const std::string resolved = text_of(run.out("cpu") + "/recipe.toml");
  EXPECT_NE(resolved.find("compute_dtype = \"fp32\""), std::string::npos) << resolved;
  EXPECT_NE(resolved.find("param_dtype = \"fp32\""), std::string::npos) << resolved;
  // as if it went on where there are GPUs
  expect(run.train(2, "cpu", with({"--run.steps", "3", "--plan.profile", "h200"})), 0,
         {"plan.compute_dtype = fp32: the run computed so up to"});
  // and a run that began on one goes on on a CPU
  expect(run.train(1, "gpu", with({"--run.steps", "2", "--plan.compute_dtype", "bf16"})), 0, {});
  expect(run.train(2, "gpu", with({"--run.steps", "3"})), 0, {"plan.compute_dtype = bf16: the run computed so up to"});
  EXPECT_NE(text_of(run.out("gpu") + "/recipe.toml").find("compute_dtype = \"bf16\""), std::string::npos);
  EXPECT_EQ(run.losses("gpu").size(), 3u);
}

/// As a client of the hub leaves it: a snapshot of links to blobs.
TEST(HubsCache, HoldsModelsThatAreTrainedByTheirNames) {
  const TinyRun run("hub");
  const Result made = run.train(1, "source", {"--run.steps", "2"});
  ASSERT_EQ(made.code, 0) << made.output;
  const fs::path model = run.out("source") + "/model", cache = run.folder() / "hub/models--Org--tiny";
  fs::create_directories(cache / "snapshots/abc");
  fs::create_directories(cache / "refs");
  for (const auto& file : fs::directory_iterator(model))
    fs::create_symlink(file.path(), cache / "snapshots/abc" / file.path().filename());
  const std::vector<std::string> flags = {"--model.path", "hf:Org/tiny", "--run.steps", "1"};
  ::setenv("HF_HUB_CACHE", (run.folder() / "hub").c_str(), 1);
  expect(run.train(1, "unfinished", flags), 3,
         {"[model.path] hf:Org/tiny: no such", "hf download Org/tiny fetches it"});
  std::ofstream(cache / "refs/main") << "abc";
  expect(run.train(1, "named", flags), 0, {"model: " + (cache / "snapshots/abc").string()});
  EXPECT_NE(text_of(run.out("named") + "/recipe.toml").find("path = \"hf:Org/tiny\""), std::string::npos);
  expect(run.train(1, "plain", {"--model.path", "Org/tiny", "--run.steps", "1"}), 0, {});
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_EQ(run.losses("named"), run.losses("plain"));
  EXPECT_EQ(run.losses("named").size(), 1u);
}

}  // namespace
}  // namespace tessera::testing
