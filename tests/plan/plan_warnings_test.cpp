#include "tessera/plan/plan_file.h"

#include <gtest/gtest.h>

#include "plan/toy.h"

namespace tessera::plan {
namespace {

std::string noted(const std::string& text) {
  const std::vector<std::string> names = toy::names(toy::model(4));
  std::string all;
  for (const std::string& note : plan_warnings(text, plan_of_toml(text, "plan.toml", names), names)) all += note + "\n";
  return all;
}

TEST(PlanNotes, NothingIsSaidOfWhatThePlannerWritesAndOfPlansThatBeginWithAll) {
  const ModelSpec spec = toy::model(4);
  toy::Random random(3);
  for (int n = 0; n < 50; ++n) {
    Plan plan = toy::random_plan(random, spec);
    for (UnitPlan& unit : plan.units) unit.offload_to = Tier::host;
    EXPECT_EQ(noted(to_toml(plan, toy::names(spec))), "");
  }
  EXPECT_EQ(noted(""), "") << "all is as it is by default";
  EXPECT_EQ(noted("[[units]]\nname = \"*\"\n[[units]]\nname = \"blocks.1-2\"\nactivations = \"recompute\"\n"), "");
}

TEST(PlanNotes, UnitsThatNoTableNamesAndUnitsThatTwoDoAreNamed) {
  const std::string blocks = "[[units]]\nname = \"blocks.0-2\"\nactivations = \"recompute\"\n";
  EXPECT_EQ(
      noted(blocks),
      "no [[units]] table names stem, blocks.3 and 1 more: full_shard, keeping all on the device (name = \"*\" in "
      "the first table covers all units)\n");
  EXPECT_EQ(noted("[[units]]\nname = \"*\"\n" + blocks + "[[units]]\nname = \"blocks.2\"\nactivations = \"keep\"\n"),
            "two [[units]] tables name blocks.2: the later table applies\n");
}

TEST(PlanNotes, KeysWithoutEffectAreNamed) {
  EXPECT_NE(noted("idle = \"host\"\n").find("idle = \"host\" has no effect"), std::string::npos);
  EXPECT_NE(noted("update_threads = 3\n").find("update_threads = 3 has no effect"), std::string::npos);
  EXPECT_NE(noted("[pipeline]\nschedule = \"1f1b\"\n").find("[pipeline] has no effect"), std::string::npos);
  const std::string nvme = "[[units]]\nname = \"*\"\noffload_to = \"nvme\"\n";
  EXPECT_NE(noted(nvme).find("offload_to = \"nvme\" of stem, blocks.0 and 4 more has no effect"), std::string::npos);
  EXPECT_EQ(noted(nvme + "[[units]]\nname = \"blocks.1\"\nactivations = \"offload\"\n"), "");
}

TEST(PlanNotes, AMeshOfOneRankMayBeTypedAsItIsPrinted) { EXPECT_EQ(Mesh::parse(Mesh{}.to_string()), Mesh{}); }

}  // namespace
}  // namespace tessera::plan
