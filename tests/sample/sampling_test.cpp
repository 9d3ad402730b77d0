#include "tessera/sample/sampling.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera::sample {
namespace {

using Files = std::vector<std::string>;

SampleOptions to(const std::string& out, std::vector<int64_t> seeds = {},
                 std::optional<data::ClipFormat> format = std::nullopt) {
  SampleOptions options;
  options.out = out, options.seeds = std::move(seeds), options.format = format;
  return options;
}

TEST(SampleFiles, OneClipGoesWhereItIsTold) {
  EXPECT_EQ(sample_files(to("a/cat.gif"), "run", 1), Files{"a/cat.gif"});
  EXPECT_EQ(sample_files(to("cat.png"), "run", 1), Files{"cat.png"}) << "a picture";
  EXPECT_EQ(sample_files(to("no-such/cat", {}, data::ClipFormat::frames), "run", 1), Files{"no-such/cat"});
  EXPECT_EQ(sample_files(to("no-such/clips"), "run", 1), Files{"no-such/clips/sample-0.mp4"});
  EXPECT_EQ(sample_files(to(""), "run", 1), Files{"run/samples/sample-0.mp4"});
}

TEST(SampleFiles, SeveralPromptsAndSeedsAreNumbered) {
  EXPECT_EQ(sample_files(to("out", {}, data::ClipFormat::gif), "run", 2),
            (Files{"out/sample-0.gif", "out/sample-1.gif"}));
  EXPECT_EQ(sample_files(to("out", {7, 9}), "run", 2), (Files{"out/sample-0-seed-7.mp4", "out/sample-0-seed-9.mp4",
                                                              "out/sample-1-seed-7.mp4", "out/sample-1-seed-9.mp4"}));
  EXPECT_EQ(sample_files(to("out", {5}), "run", 1), Files{"out/sample-0.mp4"}) << "a single seed needs no mention";
}

TEST(SampleFiles, AFolderMayHaveADotInItsName) {
  EXPECT_EQ(sample_files(to("run-1.5"), "run", 1), Files{"run-1.5/sample-0.mp4"});
  EXPECT_EQ(sample_files(to("q.xyz/"), "run", 1), Files{"q.xyz/sample-0.mp4"});
  EXPECT_EQ(sample_files(to("."), "run", 1), Files{"./sample-0.mp4"});
  EXPECT_EQ(sample_files(to(".."), "run", 1), Files{"../sample-0.mp4"});
  const auto there = std::filesystem::temp_directory_path() / "tessera-sample.files";
  std::filesystem::create_directories(there);
  EXPECT_EQ(sample_files(to(there.string()), "run", 1), Files{(there / "sample-0.mp4").string()});
  std::filesystem::remove(there);
}

TEST(SampleFiles, ContradictionsAreRefused) {
  const auto refused = [](const SampleOptions& options, size_t prompts) {
    try {
      sample_files(options, "run", prompts);
      ADD_FAILURE() << options.out;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage) << error.what();
      EXPECT_NE(std::string(error.what()).find(options.out), std::string::npos) << error.what();
    }
  };
  refused(to("a.mp4", {}, data::ClipFormat::gif), 1);
  refused(to("a.mp4"), 2);
  refused(to("a.gif", {1, 2}), 1);
  refused(to("a.webm"), 1);
  refused(to("a.jpg"), 1);
  refused(to("q.xyz"), 1);
  refused(to("q.xyz"), 3);
  refused(to("some/q.mp5"), 1);
  refused(to("q.xyz", {}, data::ClipFormat::frames), 1);
  refused(to("a.png", {}, data::ClipFormat::frames), 1);
}

}  // namespace
}  // namespace tessera::sample
