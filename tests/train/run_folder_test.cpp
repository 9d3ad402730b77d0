// The folder of a run: what a start finds there, keeps, moves away and tells.
#include "tessera/train/run_folder.h"

#include "run_test.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class RunFolders : public RunTest {
 protected:
  /// A whole checkpoint without tensors.
  fs::path save(int64_t step) const {
    const fs::path partial = checkpoint::partial_folder(out() / "checkpoints", step),
                   final = checkpoint::step_folder(out() / "checkpoints", step);
    checkpoint::save_rank(partial, 0, {});
    checkpoint::Manifest manifest;
    manifest.step = step;
    checkpoint::commit(partial, final, 1, manifest);
    return final;
  }
};

TEST_F(RunFolders, GoesOnFromTheNewestCheckpointOfTheRun) {
  EXPECT_EQ(start().resumed(), nullptr);
  EXPECT_EQ(run_->step(), 0);
  EXPECT_FALSE(run_->own_checkpoint());
  save(10), save(20);
  ASSERT_NE(start().resumed(), nullptr);
  EXPECT_EQ(run_->step(), 20);
  EXPECT_TRUE(run_->own_checkpoint());
  run_->loaded();
  EXPECT_EQ(run_->resumed(), nullptr);
  EXPECT_EQ(run_->step(), 20) << "it stays the step that the run goes on from";
}

TEST_F(RunFolders, ASecondStartIsRefusedWhileOneHasTheFolder) {
  start();
  try {
    RunFolder second(settings_, ranks_);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
  }
}

TEST_F(RunFolders, GoingBackMovesWhatLiesBehindAndSaysWhy) {
  start();
  save(10), save(20);
  settings_.resume = checkpoint::step_folder(out() / "checkpoints", 10).string();
  start();
  fs::create_directories(out() / "model" / "low" / ".kept");
  run_->claim({"low"}, "");
  EXPECT_TRUE(fs::exists(out() / "checkpoints" / "step-000010"));
  EXPECT_FALSE(fs::exists(out() / "checkpoints" / "step-000020"));
  EXPECT_TRUE(fs::exists(out() / "abandoned-1" / "checkpoints" / "step-000020"));
}

TEST_F(RunFolders, TheHistoryGetsTheEventsThatAKillKeptOutOfIt) {
  start();
  save(10);
  start({{"train.lr", "1e-3", "1e-5", 10}});
  EXPECT_TRUE(told("\"type\":\"checkpoint\"")) << lines();
  EXPECT_TRUE(told("step-000010")) << lines();
  EXPECT_TRUE(told("the steps up to it are missing from the history")) << lines();
  EXPECT_TRUE(told("train.lr 1e-3 -> 1e-5")) << lines();
  start();
  size_t count = 0;
  const std::string all = lines();
  for (size_t at = all.find("\"type\":\"checkpoint\""); at != std::string::npos;
       at = all.find("\"type\":\"checkpoint\"", at + 1))
    ++count;
  EXPECT_EQ(count, 1u) << "a later start finds it there";
}

TEST_F(RunFolders, KeepsTheRecipesThatItReplaces) {
  start().write_recipe("a = 1\n");
  run_->write_recipe("a = 1\n");
  EXPECT_FALSE(fs::exists(out() / "recipe-1.toml")) << "the same text is no other recipe";
  run_->write_recipe("a = 2\n");
  EXPECT_EQ(read(out() / "recipe-1.toml"), "a = 1\n");
  write("run/recipe.toml", "a = 3  # edited, and never run\n");
  run_->write_recipe("a = 4\n");
  EXPECT_EQ(read(out() / "recipe-2.toml"), "a = 2\n");
  EXPECT_EQ(read(out() / "recipe-3.toml"), "a = 3  # edited, and never run\n");
  EXPECT_EQ(read(out() / "recipe.toml"), "a = 4\n");
}

TEST_F(RunFolders, KeepsTheTokenizerThatWasMadeOfTheCaptions) {
  const fs::path made = write("cache/tokenizer-1.model", "one");
  EXPECT_EQ(start().keep_tokenizer(made), out() / "tokenizer.model");
  write("cache/tokenizer-1.model", "two");
  run_->keep_tokenizer(made);
  EXPECT_EQ(read(out() / "tokenizer.model"), "two");
}

TEST_F(RunFolders, WhatNobodyWaitsForMayFailAndIsTold) {
  start();
  EXPECT_EQ(run_->attempt(7, "sample", "the run continues", [] {}), Exit::done);
  EXPECT_EQ(
      run_->attempt(7, "sample", "the run continues", [] { throw UserError(Exit::disk, "video", "no room left"); }),
      Exit::disk);
  EXPECT_TRUE(told("no room left")) << lines();
  EXPECT_EQ(run_->attempt(8, "report", "the run continues", [] { throw std::runtime_error("odd"); }), Exit::internal);
  for (const Exit fatal : {Exit::rank_lost, Exit::memory})
    EXPECT_THROW(run_->attempt(9, "export", "", [&] { throw UserError(fatal, "ranks", "gone"); }), UserError);
}

TEST_F(RunFolders, ThePartsOfRanksAreJoinedInTheirOrder) {
  write("run/schedule.jsonl.rank-1", "b\n");
  write("run/schedule.jsonl.rank-0", "a\n");
  const std::string file = (out() / "schedule.jsonl").string();
  join_rank_files(file, 3);  // the third has written none
  EXPECT_EQ(lines_of(file), (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(fs::exists(file + ".rank-0"));
  write("run/schedule.jsonl.rank-5", "of a killed run");
  remove_rank_files(file);
  EXPECT_FALSE(fs::exists(file + ".rank-5"));
  EXPECT_TRUE(fs::exists(file));
}

}  // namespace
}  // namespace tessera::train
