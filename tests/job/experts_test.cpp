// The boundary of two experts: by hand, of the folder that a run exported, of the model's release.
#include "tessera/job/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/models/registry.h"
#include "tessera/recipe/run_recipe.h"

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
  recipe::Recipe recipe_of(const fs::path& base, const recipe::Overrides& more = {}) const {
    recipe::Overrides all = {{"model.path", base.string()}};
    all.insert(all.end(), more.begin(), more.end());
    return recipe::load_recipe((folder_ / "recipe.toml").string(), all);
  }
  Experts placed(const fs::path& base, const recipe::Overrides& more = {}) const {
    const recipe::Recipe r = recipe_of(base, more);
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

TEST_F(ExpertsOfABase, TimestepsAreDrawnFromWhatTheRecipeLeavesOfTheirWindows) {
  const fs::path base = folder_ / "base";
  for (const auto& [low, high] : {std::pair(0.0, 1.0), {0.2, 0.95}, {0.5, 0.9}}) {
    const recipe::Overrides more = {{"experts.boundary", "0.875"},
                                    {"diffusion.min_t", std::to_string(low)},
                                    {"diffusion.max_t", std::to_string(high)},
                                    {"diffusion.weighting", low > 0 ? "diffsynth" : "none"}};
    const recipe::Recipe r = recipe_of(base, more);
    const Experts both = placed(base, more);
    const diffusion::Options first = timestep_options(r, both.list[0]), second = timestep_options(r, both.list[1]);
    EXPECT_EQ(first.window, (diffusion::Window{0.875, high}));
    EXPECT_EQ(second.window, (diffusion::Window{low, 0.875}));
    for (const diffusion::Options& options : {first, second})
      EXPECT_EQ(options.weighting, diffusion::parse_weighting(r.diffusion.weighting));
  }
}

TEST_F(ExpertsOfABase, TakeTurnsOfAsManyStepsAsTheRecipeSays) {
  for (const int64_t turn : {1, 3, 7}) {
    const recipe::Overrides more = {{"experts.turn", std::to_string(turn)}, {"run.steps", "84"}};
    const diffusion::ExpertOrder order =
        plan_expert_order(placed(folder_ / "base", more), recipe::run_parts(recipe_of(folder_ / "base", more)));
    int64_t changes = 0;
    for (int64_t step = 2; step <= 84; ++step) {
      if (order.expert(step) == order.expert(step - 1)) continue;
      ++changes;
      EXPECT_EQ((step - 1) % turn, 0) << "turns of " << turn << ", step " << step;
    }
    EXPECT_GT(changes, 84 / turn / 8);
  }
}

}  // namespace
}  // namespace tessera::job
