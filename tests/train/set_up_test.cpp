// What a run is made of before its first step: all of it, of a model of one block and two clips, in this process; and the
// time that this took, phase by phase.
#include "tessera/train/set_up.h"

#include <set>
#include <span>
#include <thread>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/data/video.h"
#include "tessera/recipe/run_recipe.h"

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
    for (const char* name : {"a", "b"}) add_clip(name);
    write("recipe.toml", kRecipe);
  }
  void add_clip(const std::string& name) const {
    data::Frames clip{.count = 4, .height = 32, .width = 32, .fps = 8, .rgb = {}};
    for (size_t i = 0; i < clip.frame_bytes() * 4; ++i) clip.rgb.push_back(static_cast<uint8_t>(i / 57 + name[0]));
    data::write_mp4(folder_ / "data" / (name + ".mp4"), clip);
    write("data/" + name + ".txt", "clip");
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

TEST_F(SetUpRun, AStageSavesByItsOwnRules) {
  write("recipe.toml", std::string(kRecipe) + "checkpoint.keep = 1\n");
  const std::unique_ptr<train::Run> run = made({{"checkpoint.keep", "3"}});
  run->experts->passes(*run->parts->walk().next(), {}, *run->engine);
  run->checkpoints->save(1), run->checkpoints->save(2);
  const auto there = [&](int64_t step) {
    return fs::exists(checkpoint::step_folder(folder_ / "run/checkpoints", step));
  };
  EXPECT_TRUE(there(1) && there(2));
  begin_part(*run, 1);
  run->checkpoints->save(3);
  EXPECT_TRUE(there(3));
  EXPECT_FALSE(there(1)) << "from the stage on one is kept, and the newest before it, since no step proves it yet";
}

/// This rank's part of a weight, or of another kind of the same tensor.
std::span<float> values(const std::vector<checkpoint::Piece>& pieces, const std::string& kind) {
  const std::string name = pieces.front().range.name;
  for (const checkpoint::Piece& piece : pieces)
    if (piece.range.kind == kind && piece.range.name == name)
      return {static_cast<float*>(const_cast<void*>(piece.data)),
              static_cast<size_t>(piece.range.end - piece.range.begin)};
  return {};
}

TEST_F(SetUpRun, AStageSamplesFromItsOwnWeights) {
  write("recipe.toml", std::string(kRecipe) + "sample.weights = \"ema\"\n");
  const std::unique_ptr<train::Run> run =
      made({{"train.ema", "0.9"}, {"sample.every", "1"}, {"sample.steps", "2"}, {"sample.weights", "trained"}});
  const std::vector<checkpoint::Piece> pieces = run->experts->pieces(run->engine->store());
  const std::span<float> trained = values(pieces, "param"), average = values(pieces, "ema");
  ASSERT_FALSE(trained.empty());
  ASSERT_EQ(average.size(), trained.size());
  const float before = trained[0];
  average[0] = before + 1;
  for (const size_t part : {0, 1}) {
    if (part == 1) begin_part(*run, 1);
    run->sampler->pass(run->parts->programs().sample, 3);
    EXPECT_EQ(trained[0], part == 0 ? before : before + 1) << part;
    run->sampler->put_back();
    EXPECT_EQ(trained[0], before) << part;
  }
}

/// Samples of a step's batch, by their places in the data set.
std::set<int64_t> samples_of(const train::Run& run, int64_t step) {
  std::set<int64_t> indices;
  for (const Wanted& wanted : run.experts->wanted(step)) indices.insert(wanted.make().index);
  return indices;
}

class ResumedWithAnotherBatch : public SetUpRun {
 protected:
  void SetUp() override {
    SetUpRun::SetUp();
    if (IsSkipped()) return;
    for (const char* name : {"c", "d", "e", "f", "g", "h"}) add_clip(name);
    write("recipe.toml", std::string(kRecipe).substr(0, std::string(kRecipe).find("[[stage]]")));
  }
};

TEST_F(ResumedWithAnotherBatch, NoSampleOfTheEpochComesTwiceOrIsLeftOut) {
  std::set<int64_t> seen;
  {
    const std::unique_ptr<train::Run> run = made();
    run->experts->passes(*run->parts->walk().next(), {}, *run->engine);
    seen = samples_of(*run, 1);
    run->checkpoints->save(1);
  }
  ASSERT_EQ(seen.size(), 2u);
  const std::unique_ptr<train::Run> run = made({{"train.global_batch", "3"}, {"run.resume_changes", "allow"}});
  for (const int64_t step : {2, 3})
    for (const int64_t index : samples_of(*run, step)) EXPECT_TRUE(seen.insert(index).second) << index << " twice";
  EXPECT_EQ(seen.size(), 8u);
}

TEST_F(ResumedWithAnotherBatch, NorDoesOneOfAnExpertsOwnOrder) {
  const recipe::Overrides two = {{"experts.train", "both"}, {"experts.shares", "[1, 1]"}, {"run.steps", "40"}};
  std::set<int64_t> seen;
  size_t expert = 0;
  int64_t done = 0;
  {
    const std::unique_ptr<train::Run> run = made(two);
    const size_t first = run->experts->expert_of(1);
    for (plan::Visit visit{.step = 1}; seen.empty(); ++visit.step) {
      run->experts->passes(visit, {}, *run->engine);
      expert = run->experts->expert_of(done = visit.step);
      if (expert != first) seen = samples_of(*run, done);
    }
    run->checkpoints->save(done);
  }
  ASSERT_EQ(seen.size(), 2u) << "the other expert's first batch";
  recipe::Overrides larger = two;
  larger.insert(larger.end(), {{"train.global_batch", "3"}, {"run.resume_changes", "allow"}});
  const std::unique_ptr<train::Run> run = made(larger);
  int batches = 0;
  for (int64_t step = done + 1; step <= 40 && batches < 2; ++step) {
    if (run->experts->expert_of(step) != expert) continue;
    for (const int64_t index : samples_of(*run, step)) EXPECT_TRUE(seen.insert(index).second) << index << " twice";
    ++batches;
  }
  EXPECT_EQ(seen.size(), 8u);
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
