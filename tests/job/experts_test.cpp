// The boundary of two experts: by hand, of the folder that a run exported, of the model's release.
#include "tessera/job/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/models/registry.h"
#include "tessera/recipe/load_recipe.h"

namespace tessera::job {
namespace {

namespace fs = std::filesystem;

class ExpertsOfABase : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    for (const char* expert : {"high_noise_model", "low_noise_model"})
      fs::create_directories(folder_ / "base" / expert);
    std::ofstream(folder_ / "recipe.toml") << "[model]\nfamily = \"wan\"\n";
  }
  Experts placed(const fs::path& base, const recipe::Overrides& more = {}) const {
    recipe::Overrides all = {{"model.path", base.string()}};
    all.insert(all.end(), more.begin(), more.end());
    const recipe::Recipe r = recipe::load_recipe((folder_ / "recipe.toml").string(), all);
    Experts experts = find_experts(r);
    place_boundary(experts, r, *models::make_denoiser({.preset = "wan-tiny"}));
    return experts;
  }
  void exported(const std::string& text) const { std::ofstream(folder_ / "base/experts.json") << text; }
};

TEST_F(ExpertsOfABase, MeetWhereTheRunThatExportedThemHadThem) {
  EXPECT_EQ(placed(folder_ / "base").boundary, 0.875) << "no file: the release's";
  exported(R"({"boundary": 0.7, "flow_shift": 5})");
  const Experts both = placed(folder_ / "base");
  EXPECT_EQ(both.boundary, 0.7);
  EXPECT_EQ(both.list.at(1).window.high, 0.7);
  EXPECT_EQ(placed(folder_ / "base", {{"experts.boundary", "0.6"}}).boundary, 0.6) << "by hand";
  const Experts one = placed(folder_ / "base/low_noise_model", {{"experts.train", "low_noise"}});
  EXPECT_EQ(one.boundary, 0.7) << "one of them alone";
}

TEST_F(ExpertsOfABase, TheBoundaryItselfBelongsToHighNoise) {
  const Experts both = placed(folder_ / "base", {{"experts.boundary", "0.875"}});
  EXPECT_EQ(both.serving(875), 0u);
  EXPECT_EQ(both.serving(std::nextafter(875.0, 0.0)), 1u);
  EXPECT_EQ(both.serving(1000), 0u);
  EXPECT_EQ(both.serving(0), 1u);
  EXPECT_EQ(placed(folder_ / "base/low_noise_model").serving(1), 0u) << "one alone denoises everywhere";
}

TEST_F(ExpertsOfABase, AnotherShiftIsTold) {
  exported(R"({"boundary": 0.7, "flow_shift": 12})");
  ::testing::internal::CaptureStderr();
  placed(folder_ / "base");
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("trained with diffusion.shift = 12, this recipe has 5"), std::string::npos) << told;
}

TEST_F(ExpertsOfABase, AFileWithoutABoundaryIsRefused) {
  for (const char* text : {"{}", R"({"boundary": 1.5})", "no json"}) {
    exported(text);
    try {
      placed(folder_ / "base");
      ADD_FAILURE() << text;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::input);
      EXPECT_NE(std::string(error.what()).find("experts.json"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tessera::job
