// What a run is made of before its first step: all of it, of a model of one block and two clips, in this process; and the
// time that this took, phase by phase.
#include "tessera/train/set_up.h"

#include <thread>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/comm/world.h"
#include "tessera/data/video.h"
#include "tessera/recipe/load_recipe.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecipe = R"(
[run]
steps = 4
[model]
family = "wan"
init = "random"
config = { dim = 64, ffn_dim = 128, num_heads = 4, num_layers = 1, in_dim = 12, out_dim = 12, freq_dim = 32, text_dim = 64, text_len = 16 }
[data]
size = [32, 32]
frames = 4
fps = 8
[train]
global_batch = 2
[sample]
every = 0
[[stage]]
from = 3
data.size = [16, 32]
train.lr = 1e-5
)";

class SetUpRun : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!data::has_video()) GTEST_SKIP() << "needs a build with FFmpeg";
    engine::Meter::install();
    fs::create_directories(folder_ / "data");
    for (const char* name : {"a", "b"}) {
      data::Frames clip{.count = 4, .height = 32, .width = 32, .fps = 8, .rgb = {}};
      for (size_t i = 0; i < clip.frame_bytes() * 4; ++i) clip.rgb.push_back(static_cast<uint8_t>(i / 57 + name[0]));
      data::write_mp4(folder_ / "data" / (std::string(name) + ".mp4"), clip);
      write("data/" + std::string(name) + ".txt", "clip");
    }
    write("recipe.toml", kRecipe);
  }
  void TearDown() override {
    engine::Meter::set_budget(0);
    FolderTest::TearDown();
  }

  std::unique_ptr<train::Run> made(const recipe::Overrides& more = {}) const {
    recipe::Overrides all = {{"data.path", (folder_ / "data").string()},
                             {"data.cache", (folder_ / "cache").string()},
                             {"run.out", (folder_ / "run").string()}};
    all.insert(all.end(), more.begin(), more.end());
    return set_up(recipe::load_recipe((folder_ / "recipe.toml").string(), all), comm::rendezvous_from_env(), {}, "");
  }
};

TEST_F(SetUpRun, HasAllThatAStepTakesAndSaysInItsFolderHowItWasPlanned) {
  const std::unique_ptr<train::Run> run = made();
  EXPECT_EQ(run->parts->all().size(), 2u);
  EXPECT_EQ(run->parts->index(), 0u);
  const auto visit = run->parts->walk().next();
  ASSERT_TRUE(visit);
  EXPECT_EQ(visit->kind, plan::Visit::Kind::train);
  EXPECT_EQ(visit->step, 1);
  EXPECT_EQ(run->experts->wanted(1).size(), 2u);
  EXPECT_GT(run->parts->sample_flops(0), 0);
  EXPECT_EQ(run->folder->step(), 0);
  for (const char* file : {"recipe.toml", "plan.toml", "plan-stage-1.toml", "plan.txt", "plan.json", "metrics.jsonl"})
    EXPECT_TRUE(fs::exists(folder_ / "run" / file)) << file;
  EXPECT_NE(read(folder_ / "run" / "metrics.jsonl").find("from the start"), std::string::npos);
}

TEST_F(SetUpRun, AStageHasItsOwnShapesAndTheJobKeepsThoseOfTheRun) {
  const std::unique_ptr<train::Run> run = made();
  const auto latent = run->job.latent;
  begin_part(*run, 1);
  EXPECT_EQ(run->parts->now().part.first, 3);
  EXPECT_EQ(run->parts->now().shapes.latent[2], latent[2] / 2);
  EXPECT_EQ(run->job.latent, latent);
  EXPECT_DOUBLE_EQ(run->parts->recipe().train.lr, 1e-5);
  EXPECT_EQ(run->parts->walk().next()->step, 3);
  EXPECT_FALSE(run->parts->more());
}

TEST_F(SetUpRun, ASavedCheckpointIsWhereTheNextOneBegins) {
  {
    const std::unique_ptr<train::Run> run = made();
    run->experts->passes(*run->parts->walk().next(), {}, *run->engine);
    run->checkpoints->save(3);
    ASSERT_EQ(run->checkpoints->unsaved(), "");
  }
  const std::unique_ptr<train::Run> run = made();
  EXPECT_EQ(run->folder->step(), 3);
  EXPECT_EQ(run->parts->index(), 1u) << "its next step is in the stage";
  EXPECT_EQ(run->parts->walk().next()->step, 4);
  try {
    made();
    FAIL() << "the first has the folder";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
  }
}

TEST(StartTimes, APhaseThatComesAgainAddsToItsTime) {
  StartTimes times;
  for (int i = 0; i < 2; ++i) {
    times.begin(StartPhase::plan);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    times.begin(StartPhase::wait);
  }
  times.end();
  const StartSeconds& seconds = times.seconds();
  EXPECT_GE(seconds[static_cast<size_t>(StartPhase::plan)], 6e-3);
  EXPECT_EQ(seconds[static_cast<size_t>(StartPhase::weights)], 0);
  EXPECT_GE(total(seconds), seconds[static_cast<size_t>(StartPhase::plan)]);
}

TEST(StartTimes, OneLineNamesThePhasesThatTookAMillisecond) {
  StartSeconds seconds = {};
  seconds[static_cast<size_t>(StartPhase::connect)] = 0.3;
  seconds[static_cast<size_t>(StartPhase::plan)] = 3.8;
  seconds[static_cast<size_t>(StartPhase::wait)] = 1e-5;
  EXPECT_EQ(describe(seconds), "4.1 s from the start: connecting 300 ms, planning 3.8 s");
}

}  // namespace
}  // namespace tessera::train
