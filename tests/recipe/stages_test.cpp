// [[stage]] and train.lr_scale of a recipe: what is read, what is refused, and that the resolved recipe says the same.
#include "tessera/recipe/stages.h"

#include <gtest/gtest.h>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/recipe/lr_schedule.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::recipe {
namespace {

constexpr const char* kBase = R"([run]
steps = 20
[data]
frames = 8
size = [32, 32]
[train]
global_batch = 4
lr = 1e-3
)";

/// NCCL adds in an order that no two libraries or machines share.
TEST(Sums, ByTheLibraryAreRefusedInADeterministicRun) {
  EXPECT_NO_THROW(load_recipe("", {{"run.sums", "library"}}));
  EXPECT_NO_THROW(load_recipe("", {{"run.deterministic", "true"}}));
  try {
    load_recipe("", {{"run.sums", "library"}, {"run.deterministic", "true"}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("run.sums = \"in_order\""), std::string::npos) << error.what();
  }
}

TEST(Showing, KeysOfDataSayHowFilesAreShown) {
  const data::ClipRules plain = load_recipe("", {}).data.clips;
  EXPECT_TRUE(plain.showing.tone_map && plain.showing.deinterlace);
  EXPECT_EQ(plain.showing.background, (std::array<uint8_t, 3>{255, 255, 255}));
  EXPECT_FALSE(plain.looks_through());
  const data::ClipRules set = load_recipe("", {{"data.hdr", "refuse"},
                                               {"data.deinterlace", "off"},
                                               {"data.background", "#010203"},
                                               {"data.cuts", "split"},
                                               {"data.bars", "crop"}})
                                  .data.clips;
  EXPECT_FALSE(set.showing.tone_map || set.showing.deinterlace);
  EXPECT_EQ(set.showing.background, (std::array<uint8_t, 3>{1, 2, 3}));
  EXPECT_TRUE(set.crop_bars && set.looks_through());
  EXPECT_EQ(set.cuts, data::Cuts::split);
  EXPECT_EQ(load_recipe("", {{"data.cuts", "drop"}}).data.clips.cuts, data::Cuts::drop);
  const std::pair<std::string, std::string> wrong[] = {{"data.hdr", "clip"},
                                                       {"data.deinterlace", "on"},
                                                       {"data.background", "rosa"},
                                                       {"data.cuts", "yes"},
                                                       {"data.bars", "5"}};
  for (const auto& one : wrong) EXPECT_THROW(load_recipe("", {one}), UserError) << one.first;
}

TEST(Buckets, WhatIsSaidOfListedShapesIsRefusedWhereOthersAreMadeOfThem) {
  const std::string shares = "9x64x64=4:0.5,1x64x64=8", batches = "9x64x64=4,1x64x64=8";
  EXPECT_NO_THROW(load_recipe("", {{"data.buckets", shares}}));
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {shares, "data.clip_lengths", "every"}, {shares, "data.latents", "npy"}, {batches, "data.clip_mode", "full"}};
  for (const auto& [buckets, key, value] : cases) {
    try {
      load_recipe("", {{"data.buckets", buckets}, {key, value}});
      ADD_FAILURE() << key;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      EXPECT_NE(std::string(error.what()).find(key + " = \"" + value), std::string::npos) << error.what();
    }
  }
}

class Stages : public FolderTest {
 protected:
  Recipe load(const std::string& stages, const Overrides& overrides = {}) const {
    write("recipe.toml", kBase + stages);
    return load_recipe((folder_ / "recipe.toml").string(), overrides);
  }
  std::string refusal(const std::string& stages) const {
    try {
      load(stages);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "not refused:\n" << stages;
    return "";
  }
};

TEST_F(Stages, EachStageKeepsWhatTheOnesBeforeItChanged) {
  const Recipe recipe = load(R"(
[[stage]]
from = 5
train.global_batch = 8
[[stage]]
from = 11
[stage.data]
frames = 16
size = [64, 32]
)");
  const std::vector<RunPart> parts = run_parts(recipe);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].first, 1);
  EXPECT_EQ(parts[0].last, 4);
  EXPECT_EQ(parts[1].first, 5);
  EXPECT_EQ(parts[1].last, 10);
  EXPECT_EQ(parts[2].first, 11);
  EXPECT_EQ(parts[2].last, 20);
  EXPECT_EQ(parts[0].recipe.train.global_batch, 4);
  EXPECT_EQ(parts[1].recipe.train.global_batch, 8);
  EXPECT_EQ(parts[1].recipe.data.frames, 8);
  EXPECT_EQ(parts[2].recipe.train.global_batch, 8);
  EXPECT_EQ(parts[2].recipe.data.frames, 16);
  EXPECT_EQ(parts[2].recipe.data.height, 64);
  EXPECT_EQ(parts[1].name(), "stage 1 (from step 5)");
  EXPECT_EQ(parts[1].changes, "train.global_batch = 8");
}

TEST_F(Stages, StepIsFromAndAKeyMayLeaveOutItsTable) {
  const Recipe recipe = load("[[stage]]\nstep = 5\nframes = 16\n\"train.lr\" = 1e-4\n");
  const Recipe stage = recipe.at_stage(1);
  EXPECT_EQ(recipe.stages[0].from, 5);
  EXPECT_EQ(stage.data.frames, 16);
  EXPECT_EQ(stage.train.lr, 1e-4);
}

TEST_F(Stages, TheResolvedRecipeHasTheSameStages) {
  const Recipe recipe = load(R"(
[sample]
prompts = ["a cat, asleep", "a dog"]
[[stage]]
from = 5
data.buckets = ["8x32x32", "1x64x64"]
train.lr = 2e-4
[[stage]]
from = 9
sample.prompts = []
diffusion.timesteps = "logit_normal"
)");
  write("resolved.toml", recipe.to_toml());
  const Recipe again = load_recipe((folder_ / "resolved.toml").string(), {});
  EXPECT_EQ(stages_toml(again.stages), stages_toml(recipe.stages));
  ASSERT_EQ(again.stages.size(), 2u);
  EXPECT_EQ(again.at_stage(1).data.clips.buckets.size(), 2u);
  EXPECT_EQ(again.at_stage(1).sample.prompts.size(), 2u);
  EXPECT_TRUE(again.at_stage(2).sample.prompts.empty());
  EXPECT_EQ(again.at_stage(2).diffusion.timesteps, "logit_normal");
  EXPECT_EQ(again.at_stage(2).train.lr, 2e-4);
}

TEST_F(Stages, AStageAfterTheLastStepHasNoPart) {
  EXPECT_EQ(run_parts(load("[[stage]]\nfrom = 21\ntrain.lr = 1e-4\n")).size(), 1u);
  EXPECT_EQ(run_parts(load("[[stage]]\nfrom = 20\ntrain.lr = 1e-4\n")).size(), 2u);
}

TEST_F(Stages, TheCommandLineSaysWhatTheRunBeginsWith) {
  const Recipe recipe = load("[[stage]]\nfrom = 5\ntrain.lr = 1e-4\n", {{"train.lr", "5e-3"}});
  EXPECT_EQ(recipe.train.lr, 5e-3);
  EXPECT_EQ(recipe.at_stage(1).train.lr, 1e-4);
}

TEST_F(Stages, WhatHoldsForAWholeRunIsRefusedByName) {
  for (const char* key :
       {"model.preset = \"x\"", "mesh.dp_shard = 2", "run.steps = 30", "run.seed = 1", "data.cache = \"b\"",
        "data.vae = \"v\"", "plan.masters = \"bf16\"", "plan.strategy = \"zero2\"", "fault.timeout = 3"}) {
    const std::string text = refusal("[[stage]]\nfrom = 5\n" + std::string(key) + "\n");
    const std::string name = std::string(key).substr(0, std::string(key).find(' '));
    EXPECT_NE(text.find("[[stage]] 1"), std::string::npos) << text;
    EXPECT_NE(text.find(name + " cannot change within a run"), std::string::npos) << text;
  }
}

TEST_F(Stages, MistakesAreSaidWithTheStage) {
  EXPECT_NE(refusal("[[stage]]\ntrain.lr = 1\n").find("from which step"), std::string::npos);
  EXPECT_NE(refusal("[[stage]]\nfrom = 3\nstep = 3\ntrain.lr = 1\n").find("same key"), std::string::npos);
  EXPECT_NE(refusal("[[stage]]\nfrom = 3\n").find("changes nothing"), std::string::npos);
  EXPECT_NE(refusal("[[stage]]\nfrom = 1\ntrain.lr = 1\n").find("step 1 has the recipe's own keys"), std::string::npos);
  EXPECT_NE(refusal("[[stage]]\nfrom = 9\ntrain.lr = 1\n[[stage]]\nfrom = 9\ntrain.lr = 2\n").find("[[stage]] 2"),
            std::string::npos);
  EXPECT_NE(refusal("[stage]\nfrom = 9\ntrain.lr = 1\n").find("[[stage]]"), std::string::npos);
  const std::string unknown = refusal("[[stage]]\nfrom = 9\ndata.frame = 1\n");
  EXPECT_NE(unknown.find("data.frame'"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("data.frames"), std::string::npos) << unknown;
  const std::string size = refusal("[[stage]]\nfrom = 9\ndata.size = [32]\n");
  EXPECT_NE(size.find("stage 1 (from step 9)"), std::string::npos) << size;
  EXPECT_NE(size.find("data.size"), std::string::npos) << size;
}

TEST_F(Stages, DataIsSharedUnlessAKeyOfItDiffers) {
  const Recipe recipe = load("[[stage]]\nfrom = 5\ntrain.global_batch = 8\n[[stage]]\nfrom = 9\ndata.frames = 16\n");
  EXPECT_TRUE(same_data(recipe.at_stage(0), recipe.at_stage(1)));
  EXPECT_FALSE(same_data(recipe.at_stage(1), recipe.at_stage(2)));
}

TEST_F(Stages, WhatSamplesAreGivenIsPreparedAnewWhereAStageChangesIt) {
  for (const char* key : {"sample.image = [\"a.png\"]", "sample.last_image = [\"a.png\"]", "sample.video = [\"a.mp4\"]",
                          "sample.condition = \"i2v_head\"", "sample.audio = [\"a.wav\"]", "sample.pose = [\"a.mp4\"]",
                          "sample.clips = 2", "sample.prompts = [\"a cat\"]", "sample.negative_prompt = \"blur\""}) {
    const Recipe recipe = load(std::string("[[stage]]\nfrom = 5\n") + key + "\n");
    EXPECT_FALSE(same_data(recipe.at_stage(0), recipe.at_stage(1))) << key;
  }
  const Recipe often = load("[[stage]]\nfrom = 5\nsample.every = 2\nsample.steps = 3\n");
  EXPECT_TRUE(same_data(often.at_stage(0), often.at_stage(1)));
}

TEST_F(Stages, AListedShapeWithoutABatchHasThatOfTheRun) {
  const Recipe recipe = load_recipe("", {{"data.buckets", "8x64x64=6,1x64x64,4x32x32=2"}, {"train.global_batch", "5"}});
  std::vector<int64_t> batches;
  for (const data::Bucket& bucket : recipe.data.clips.buckets) batches.push_back(bucket.batch);
  EXPECT_EQ(batches, (std::vector<int64_t>{6, 5, 2}));
  for (const data::Bucket& bucket :
       load_recipe("", {{"data.buckets", "8x64x64,1x64x64"}, {"train.global_batch", "5"}}).data.clips.buckets)
    EXPECT_EQ(bucket.batch, 0) << "where none says one, all are of the run";
}

TEST_F(Stages, TheLearningRateFollowsTheBatch) {
  const auto rate = [&](const char* rule, const char* batch) {
    return load("", {{"train.lr_scale", rule}, {"train.global_batch", batch}}).lr_schedule.lr;
  };
  EXPECT_EQ(rate("none", "64"), 1e-3);
  EXPECT_DOUBLE_EQ(rate("linear", "64"), 1e-3 * 64 / 256);
  EXPECT_DOUBLE_EQ(rate("sqrt", "64"), 1e-3 / 2);
  EXPECT_DOUBLE_EQ(rate("0.3", "64"), 3e-4);
  EXPECT_DOUBLE_EQ(load("", {{"train.lr_scale", "linear"}, {"train.lr_base_batch", "2"}}).train.lr, 2e-3);
}

TEST_F(Stages, TheLearningRateFollowsTheBatchOfTheStage) {
  const Recipe recipe = load("[[stage]]\nfrom = 5\ntrain.global_batch = 16\n",
                             {{"train.lr_scale", "sqrt"}, {"train.lr_base_batch", "4"}});
  EXPECT_EQ(recipe::learning_rate(recipe.lr_schedule, 3), 1e-3);
  EXPECT_EQ(recipe::learning_rate(recipe.at_stage(1).lr_schedule, 4), 2e-3);
}

TEST_F(Stages, TheResolvedRecipeShowsTheScaledRateAndScalesOnce) {
  const Recipe recipe = load("", {{"train.lr_scale", "sqrt"}, {"train.global_batch", "64"}});
  EXPECT_NE(recipe.to_toml().find("sqrt(64 / 256) = 0.0005"), std::string::npos) << recipe.to_toml();
  write("resolved.toml", recipe.to_toml());
  EXPECT_EQ(load_recipe((folder_ / "resolved.toml").string(), {}).train.lr, recipe.train.lr);
}

TEST_F(Stages, AnUnknownScalingIsRefusedWithTheNearest) {
  write("recipe.toml", kBase);
  for (const char* rule : {"liner", "0", "-1", "nan"}) try {
      load_recipe((folder_ / "recipe.toml").string(), {{"train.lr_scale", rule}});
      ADD_FAILURE() << rule;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      EXPECT_NE(std::string(error.what()).find("linear"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace tessera::recipe
