// How many plans are compiled to plan a shipped recipe on a machine: seconds follow from it (scripts/search-times measures
// these).
#include <gtest/gtest.h>

#include "matrix.h"
#include "planning/shipped.h"
#include "tessera/job/job.h"
#include "tessera/planning/make_plan.h"
#include "tessera/planning/plan_request.h"
#include "tessera/recipe/load_recipe.h"

namespace tessera::planning {
namespace {

constexpr const char* kRecipes[] = {"sana1.5-1.6b_full_h100", "wan2.1-t2v-14b_full_h200", "wan2.2-s2v-14b_full_a100",
                                    "wan2.2-t2v-a14b_full_h200", "wan-tiny_demo_cpu"};
constexpr const char* kProfiles[] = {"1xrtx4090", "1xa100-80", "h200-128gib", "1xh200", "a100-80", "h200"};
// Of all thirty the largest plan takes 3,697 (Sana on one RTX 4090 with five sizes of micro-batches) and the largest refusal,
// whose advice is planned too, 8,322 (both experts on one H200).
constexpr int kMostOfPlan = 4000, kMostOfRefusal = 9000;

TEST(SearchSize, OfShippedRecipesIsBoundedAndOfRefusalsToo) {
  testing::MatrixPart part("shipped recipes on machines", static_cast<int>(std::size(kRecipes) * std::size(kProfiles)));
  for (const int i : part) {
    const std::string name = kRecipes[i / std::size(kProfiles)], profile = kProfiles[i % std::size(kProfiles)];
    recipe::Overrides overrides = {{"plan.profile", profile}};
    if (!profile.starts_with("1x") && profile != "h200-128gib") overrides.push_back({"mesh", "dp_shard=8"});
    const recipe::Recipe recipe = shipped(name, overrides);
    const job::Job job = job::make_job(recipe);
    const Planned planned = make_plan(
        plan_request(recipe, job, job::shapes_of(recipe, *job.model, *job.codec), recipe.mesh, /*prompts=*/0));
    std::printf("%s on %s: %d plans, %s\n", name.c_str(), profile.c_str(), planned.choice.evaluated,
                planned.choice.fits ? "fits" : "refused");
    EXPECT_GT(planned.choice.evaluated, 0);
    EXPECT_LE(planned.choice.evaluated, planned.choice.fits ? kMostOfPlan : kMostOfRefusal)
        << name << " on " << profile;
  }
}

}  // namespace
}  // namespace tessera::planning
