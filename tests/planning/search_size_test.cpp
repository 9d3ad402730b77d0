// How many plans are compiled to plan a shipped recipe on a machine: seconds follow from it (scripts/search-times measures
// these).
#include <gtest/gtest.h>

#include "matrix.h"
#include "planning/shipped.h"
#include "tessera/job/job.h"
#include "tessera/planning/plan_request.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::planning {
namespace {

constexpr const char* kRecipes[] = {"sana1.5-1.6b_full_h100", "wan2.1-t2v-14b_full_h200", "wan2.2-s2v-14b_full_a100",
                                    "wan2.2-t2v-a14b_full_h200", "wan-tiny_demo_cpu"};
constexpr const char* kProfiles[] = {"1xrtx4090", "1xa100-80", "h200-128gib", "1xh200", "a100-80", "h200"};
// Of all thirty the largest plan takes 4,759 (Sana on one RTX 4090 with five sizes of micro-batches: 1.9 seconds of 10) and
// the largest refusal, whose advice is planned too, 6,907 (both experts on one H200).
constexpr int kMostOfPlan = 6000, kMostOfRefusal = 9000;

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

Planned planned(const std::string& name, const recipe::Overrides& overrides) {
  const recipe::Recipe recipe = shipped(name, overrides);
  const job::Job job = job::make_job(recipe);
  return make_plan(
      plan_request(recipe, job, job::shapes_of(recipe, *job.model, *job.codec), recipe.mesh, /*prompts=*/0));
}

/// Sizes of micro-batches that do not fit, or are slower with all the memory there could be, are not searched.
TEST(SearchSize, OfManySizesOfMicroBatchesIsThatOfTheOnesThatMayBeBest) {
  const Planned one =
      planned("wan2.1-t2v-1.3b_full_anywhere", {{"plan.profile", "1xrtx4090"}, {"train.micro_batch", "1"}});
  const Planned any = planned("wan2.1-t2v-1.3b_full_anywhere", {{"plan.profile", "1xrtx4090"}});
  EXPECT_TRUE(any.choice.fits);
  EXPECT_LE(any.choice.seconds, one.choice.seconds * 1.001);
  const auto before = [](const std::string& why, const std::string& word) {  // the number in front of it
    const size_t at = why.find(word), begin = why.rfind(' ', at - 1);
    return at == why.npos ? 0 : std::stoi(why.substr(begin + 1));
  };
  const int of_one = before(one.choice.why, " candidates"), of_all = before(any.choice.why, " candidates in all");
  EXPECT_GT(of_one, 0);
  EXPECT_GT(of_all, of_one);
  EXPECT_LE(of_all, 7 * of_one);  // 13 times as many when each size was searched whole
  EXPECT_NE(any.choice.why.find("micro-batches of 64, 32, 16, 8, 4, 2, 1 samples"), std::string::npos)
      << any.choice.why;
}

/// Ranks with a token or two each are no mesh that advice names: measuring one takes as long as there are ranks.
TEST(SearchSize, OfARefusalOnAThousandRanksIsThatOfOne) {
  const Planned refused = planned("wan2.2-s2v_demo_cpu", {{"mesh", "dp_shard=1024"}, {"plan.budget", "21MiB"}});
  EXPECT_FALSE(refused.choice.fits);
  EXPECT_EQ(refused.choice.advice.find("cp=64"), std::string::npos) << refused.choice.advice;
  EXPECT_LE(refused.choice.evaluated, kMostOfRefusal);
}

}  // namespace
}  // namespace tessera::planning
