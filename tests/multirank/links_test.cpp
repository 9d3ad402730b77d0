// A run folder that came out of a stranger's archive, or lies where others write: under a name that a run writes there is a
// link to a file elsewhere. No run cuts, lengthens or makes a file outside.
#include <gtest/gtest.h>

#include <fstream>

#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

/// Every name that a run or a report writes in its folder, but for those with a random or a timely part.
constexpr const char* kNames[] = {".lock",
                                  ".recipe.toml",
                                  "recipe.toml",
                                  "recipe-1.toml",
                                  "plan.toml",
                                  "plan.json",
                                  "plan.txt",
                                  "metrics.jsonl",
                                  "schedule.jsonl",
                                  "schedule.jsonl.rank-0",
                                  "schedule.jsonl.rank-1",
                                  "traced.jsonl",
                                  "traced.jsonl.rank-1",
                                  "trace.json",
                                  "report.html",
                                  "tokenizer.model",
                                  "model/config.json",
                                  "model/diffusion_pytorch_model.safetensors",
                                  "samples/step-000004-0.mp4",
                                  "checkpoints/step-000004/manifest.json",
                                  "checkpoints/step-000004.partial/manifest.json",
                                  "checkpoints/step-000004.partial/rank-00000.safetensors",
                                  "checkpoints/step-000002/proved",
                                  "exports/step-000004/config.json",
                                  "exports/step-000004.partial",
                                  "diverged.json",
                                  ".faults"};

class Links : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    run_ = new TinyRun("links");
    const Result r = run_->train(1, "first", {"--run.steps", "2", "--sample.every", "2"});
    ASSERT_EQ(r.code, 0) << r.output;
  }
  static void TearDownTestSuite() {
    delete run_;
    run_ = nullptr;
  }
  static TinyRun* run_;
};
TinyRun* Links::run_ = nullptr;

std::string name_of(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Names, Links, ::testing::ValuesIn(kNames), name_of);

TEST_P(Links, AreNotWrittenThrough) {
  for (const bool there : {true, false}) {
    SCOPED_TRACE(there ? "to a file" : "to nothing");
    const std::string out = run_->out("again");
    fs::remove_all(out);
    fs::copy(run_->out("first"), out, fs::copy_options::recursive);
    const fs::path name = fs::path(out) / GetParam(), outside = run_->folder() / "outside";
    fs::remove(outside);
    const std::string before = fs::is_regular_file(name) ? text_of(name) : std::string(100'000, 'x');
    if (there) std::ofstream(outside, std::ios::binary) << before;
    fs::create_directories(name.parent_path());
    fs::remove(name);
    fs::create_symlink(outside, name);
    const std::string of = GetParam();
    std::vector<std::string> more = {"--run.steps", "4", "--train.lr", "1e-4"};
    if (of.starts_with("exports/")) more.insert(more.end(), {"--checkpoint.export", "model"});
    if (of.starts_with("samples/")) more.insert(more.end(), {"--sample.every", "2"});
    if (of.starts_with("traced")) more.insert(more.end(), {"--trace-schedule", out + "/traced.jsonl"});
    const Result r = run_->train(of.find("rank-1") != of.npos ? 2 : 1, "again", more);
    run_->tessera({"report", out});
    if (there)
      EXPECT_EQ(text_of(outside), before) << r.output;
    else
      EXPECT_FALSE(fs::exists(outside)) << r.output;
    // It went on, with a file of its own under that name; or said what is in its way.
    if (r.code == 0) {
      EXPECT_EQ(run_->losses("again").size(), 4u);
    } else {
      EXPECT_TRUE(r.code == 7 || r.code == 2 || r.code == 3) << r.code << "\n" << r.output;
      EXPECT_NE(r.output.find("/again"), std::string::npos) << "what is in its way\n" << r.output;
    }
  }
}

TEST_F(Links, OfALockAndAHistoryAreNamed) {
  for (const char* name : {".lock", "metrics.jsonl"}) {
    const std::string out = run_->out("named");
    fs::remove_all(out);
    fs::copy(run_->out("first"), out, fs::copy_options::recursive);
    fs::rename(fs::path(out) / name, run_->folder() / "elsewhere");
    fs::create_symlink(run_->folder() / "elsewhere", fs::path(out) / name);
    const Result r = run_->train(2, "named", {"--run.steps", "4"});
    EXPECT_EQ(r.code, 7) << r.output;
    EXPECT_NE(r.output.find(std::string(name) + ": cannot be opened for writing"), std::string::npos) << r.output;
    EXPECT_NE(r.output.find("it is a symbolic link, and nothing is written through links; remove the link"),
              std::string::npos)
        << r.output;
  }
}

/// A run folder, its checkpoints and its samples may be links to folders: people put them on larger disks.
TEST_F(Links, ToFoldersOfALargerDiskStay) {
  const fs::path out = run_->out("linked"), large = run_->folder() / "large";
  for (const char* folder : {"run", "checkpoints", "samples"}) fs::create_directories(large / folder);
  fs::create_directory_symlink(large / "run", out);
  for (const char* folder : {"checkpoints", "samples"}) fs::create_directory_symlink(large / folder, out / folder);
  for (const char* steps : {"2", "4"}) {
    const Result r = run_->train(2, "linked", {"--run.steps", steps, "--sample.every", "2"});
    ASSERT_EQ(r.code, 0) << r.output;
  }
  EXPECT_TRUE(fs::exists(large / "checkpoints/step-000004/manifest.json"));
  EXPECT_TRUE(fs::exists(large / "samples/step-000004-0.mp4"));
}

}  // namespace
}  // namespace tessera::testing
