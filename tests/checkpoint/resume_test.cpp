// Which checkpoint a run goes on from, and what it leaves behind by going back.
#include "tessera/checkpoint/training.h"

#include "checkpoint/files.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {
namespace {

const std::optional<double> kFirst, kLongAgo = 0;

class ResumeTest : public FileTest {
 protected:
  Path save(const Path& checkpoints, int64_t step, const std::string& line = "") const {
    Manifest manifest;
    manifest.step = step;
    if (!line.empty()) manifest.extra[kResumedFrom] = line;
    const Path folder = step_folder(checkpoints, step);
    make_folder(folder);
    write_text(folder / "manifest.json", dump_json(to_json(manifest)));
    return folder;
  }
  Path run() const { return path("run"); }
  Path own() const { return run() / "checkpoints"; }
};

TEST_F(ResumeTest, AutoTakesTheNewestAndStaysOnItsLine) {
  EXPECT_EQ(choose_resume("auto", run(), kFirst).from, std::nullopt);
  save(own(), 10);
  const Path newest = save(own(), 20, "checkpoints/step-000005");
  const Resume resume = choose_resume("auto", run(), kFirst);
  EXPECT_EQ(resume.from, newest);
  EXPECT_EQ(resume.line, "checkpoints/step-000005");
  EXPECT_TRUE(resume.beyond.empty());
}

TEST_F(ResumeTest, GoingBackLeavesWhatLiesBeyondAndTheNewLineIsGoneOnWith) {
  const Path back = save(own(), 10);
  const Path later = save(own(), 20), last = save(own(), 30);
  const Resume first = choose_resume(back.string(), run(), kFirst);
  EXPECT_EQ(first.from, back);
  EXPECT_EQ(first.beyond, (std::vector<Path>{later, last}));
  EXPECT_EQ(first.line, "checkpoints/step-000010");

  std::filesystem::remove_all(later), std::filesystem::remove_all(last);  // they were moved away
  EXPECT_EQ(choose_resume(back.string(), run(), kLongAgo).from, back) << "until there is a new checkpoint";

  const Path fresh = save(own(), 15, first.line);
  for (const auto& launched : {kFirst, kLongAgo}) {
    const Resume again = choose_resume((back / "").string(), run(), launched);
    EXPECT_EQ(again.from, fresh);
    EXPECT_TRUE(again.gone_on);
    EXPECT_TRUE(again.beyond.empty());
    EXPECT_EQ(again.line, first.line);
  }
  std::filesystem::remove_all(back);  // pruned by checkpoint.keep
  EXPECT_TRUE(has_gone_on(back.string(), run()));
  EXPECT_EQ(choose_resume(back.string(), run(), kFirst).from, fresh);
  // Another folder than that of the line is another going back.
  const Path middle = save(own(), 12, first.line);
  EXPECT_EQ(choose_resume(middle.string(), run(), kFirst).beyond, std::vector<Path>{fresh});
}

TEST_F(ResumeTest, AnotherRunsCheckpointIsWhereARestartBeginsToo) {
  const Path foreign = save(path("other/checkpoints"), 100);
  for (const auto& launched : {kFirst, kLongAgo}) {
    const Resume resume = choose_resume(foreign.string(), run(), launched);
    EXPECT_EQ(resume.from, foreign);
    EXPECT_EQ(resume.line, std::filesystem::weakly_canonical(foreign).string());
  }
  save(own(), 50);
  EXPECT_EQ(choose_resume(foreign.string(), run(), kLongAgo).from, foreign)
      << "an older line of this run is not the new one";
  const Path fresh = save(own(), 110, std::filesystem::weakly_canonical(foreign).string());
  EXPECT_EQ(choose_resume(foreign.string(), run(), kLongAgo).from, fresh);
}

TEST_F(ResumeTest, NoBeginsAnewAndARestartGoesOnWithWhatItSaved) {
  const Path saved = save(own(), 10);
  EXPECT_EQ(choose_resume("no", run(), kFirst).from, std::nullopt);
  EXPECT_EQ(choose_resume("no", run(), kFirst).beyond, std::vector<Path>{saved}) << "it is moved away";
  EXPECT_EQ(choose_resume("no", run(), kLongAgo).from, saved);
}

TEST_F(ResumeTest, ARestartBeforeANewRunHasBegunDoesNotGoOnWithTheOldOne) {
  const Path old = save(own(), 10);
  const double launched = static_cast<double>(std::time(nullptr)) + 60;
  const Resume resume = choose_resume("no", run(), launched);
  EXPECT_EQ(resume.from, std::nullopt);
  EXPECT_EQ(resume.beyond, std::vector<Path>{old});
  EXPECT_EQ(choose_resume("no", run(), launched - 120).from, old) << "this one was saved since";
}

TEST_F(ResumeTest, ADamagedNewestCheckpointDoesNotKeepFromGoingBackToOneBeforeIt) {
  const Path before = save(own(), 10), damaged = save(own(), 20);
  write("run/checkpoints/step-000020/manifest.json", "{");
  const Resume resume = choose_resume(before.string(), run(), kFirst);
  EXPECT_EQ(resume.from, before);
  EXPECT_EQ(resume.beyond, std::vector<Path>{damaged});
  save(own(), 15, resume.line);  // the line goes on, and its newest is the damaged one again
  const Resume again = choose_resume(before.string(), run(), kFirst);
  EXPECT_TRUE(again.gone_on);
  EXPECT_EQ(again.from, damaged) << "which loading refuses, naming the one before";
}

TEST_F(ResumeTest, ARunThatDivergedGoesBackToWhatIsProved) {
  const Path proved = save(own(), 10, "checkpoints/step-000005"), after = save(own(), 20, "checkpoints/step-000005");
  const Resume anew = choose_resume("auto", run(), kFirst, /*diverged=*/true);
  EXPECT_EQ(anew.from, std::nullopt) << "none is proved";
  EXPECT_TRUE(anew.back);
  EXPECT_EQ(anew.beyond, (std::vector<Path>{proved, after}));
  prove(proved);
  const Resume resume = choose_resume("auto", run(), kFirst, true);
  EXPECT_EQ(resume.from, proved);
  EXPECT_TRUE(resume.back);
  EXPECT_EQ(resume.beyond, std::vector<Path>{after});
  EXPECT_EQ(resume.line, "checkpoints/step-000005");
  EXPECT_EQ(choose_resume("auto", run(), kFirst).from, after) << "else the newest";
  EXPECT_EQ(choose_resume("no", run(), kFirst, true).from, std::nullopt);
  EXPECT_FALSE(choose_resume("no", run(), kFirst, true).back);
}

TEST_F(ResumeTest, ACheckpointOfTheRunThatIsNamedIsTakenAlsoWhereItsLineHasGoneOnAndDiverged) {
  const Path back = save(own(), 10);
  const Path fresh = save(own(), 20, "checkpoints/step-000010");
  prove(back);
  EXPECT_EQ(choose_resume(back.string(), run(), kFirst).from, fresh);
  const Resume again = choose_resume((back / "").string(), run(), kFirst, true);
  EXPECT_EQ(again.from, back / "");
  EXPECT_FALSE(again.back) << "it is asked for";
  EXPECT_FALSE(again.gone_on);
  EXPECT_EQ(again.beyond, std::vector<Path>{fresh});
  // One that is gone, or of another run, is where the line began: it goes back to what is proved.
  std::filesystem::rename(back, own() / "step-000015");
  const Resume pruned = choose_resume(back.string(), run(), kFirst, true);
  EXPECT_EQ(pruned.from, own() / "step-000015");
  EXPECT_TRUE(pruned.back);
}

TEST_F(ResumeTest, WhatBeganElsewhereAndDivergedBeforeItsFirstCheckpointBeginsThereAgain) {
  const Path foreign = save(path("other/checkpoints"), 100);
  const Resume resume = choose_resume(foreign.string(), run(), kFirst, true);
  EXPECT_EQ(resume.from, foreign);
  EXPECT_TRUE(resume.back) << "the same recipe would do the same";
  const Path own_one = save(own(), 110, std::filesystem::weakly_canonical(foreign).string());
  prove(own_one);
  EXPECT_EQ(choose_resume(foreign.string(), run(), kFirst, true).from, own_one);
}

TEST_F(ResumeTest, RanksTellTheCheckpointByItsPathAndItsManifest) {
  EXPECT_EQ(describe({}), "none");
  const Path folder = save(own(), 10);
  const std::string before = describe({folder, {}, "", false});
  EXPECT_NE(before.find("step-000010"), std::string::npos);
  save(own(), 10, "elsewhere");
  EXPECT_NE(describe({folder, {}, "", false}), before);
}

}  // namespace
}  // namespace tessera::checkpoint
