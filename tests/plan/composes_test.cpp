#include "tessera/plan/search/composes.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace tessera::plan {
namespace {

TEST(Composes, ThePageInTheDocsIsWhatTheCommandPrints) {
  std::ifstream in(std::string(TESSERA_SOURCE_DIR) + "/docs/what-composes.md");
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), composition_page()) << "make it anew: tessera plan --composes > docs/what-composes.md";
}

TEST(Composes, APairThatTheRulesRefuseIsToldWithTheReason) {
  const Feature many = {"axis", "pp of nine", [](Plan& plan) { plan.mesh[Axis::pp] = 9; }};
  const Feature& shards = features()[2];
  EXPECT_NE(clash(many, shards).find("8 units"), std::string::npos) << clash(many, shards);
  const Feature wrong = {"activations", "unknown site", [](Plan& plan) {
                           plan.units[1].activations = Policy::recompute;
                           plan.units[1].sites["self_atn"] = Policy::keep;
                         }};
  EXPECT_NE(clash(wrong, shards).find("self_attn"), std::string::npos);
}

}  // namespace
}  // namespace tessera::plan
