// Plans, profiles, scenarios and schedules of strangers.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "bounded.h"
#include "tessera/plan/compile/rules.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/plan_file.h"
#include "tessera/plan/search/scenario.h"
#include "tessera/plan/simulate/profile.h"

namespace tessera::plan {
namespace {

const std::string kRun = "[[run]]\nname = \"a\"\nprofile = \"h200\"\n";
const std::string kSizes = "dim = 1024\nffn_dim = 4096\nlayers = 4\ntokens = 100\n";

TEST(PlanAttacks, DepthIsRefusedByEveryReader) {
  for (const std::string& text : {"a = " + repeated("[", 200'000), repeated("a.", 200'000) + "a = 1"}) {
    expect_refused_cheaply([&] { plan_of_toml(text, "plan.toml", {"a"}); }, {"plan.toml:1", "nested deeper"});
    expect_refused_cheaply([&] { parse_profile(text, "p.toml"); }, {"p.toml", "line 1", "nested deeper"});
    expect_refused_cheaply([&] { parse_scenarios(text, "s.toml"); }, {"s.toml:1", "nested deeper"});
  }
  expect_refused_cheaply([&] { parse_line(repeated("[", 200'000)); }, {"nested deeper"});
}

TEST(PlanAttacks, NumbersThatNobodyMeansAreRefusedWithTheirKey) {
  for (const std::string line : {"micro_batch = 0", "global_batch = 1099511627776", "gpus = 2147483647",
                                 "layers = 2147483647", "recompute = 4294967296", "kv_dim = -1", "wire = 0.0"}) {
    const std::string key = line.substr(0, line.find(' '));
    const std::string sizes = key == "layers" ? "dim = 1024\nffn_dim = 4096\ntokens = 100\n" : kSizes;
    expect_refused_cheaply([&] { parse_scenarios(kRun + sizes + line + "\n", "s.toml"); }, {"s.toml", key});
  }
  EXPECT_EQ(parse_scenarios(kRun + kSizes, "s.toml").size(), 1u);
}

TEST(PlanAttacks, AScheduleThatIsNoFileOfLinesIsRefused) {
  expect_refused_cheaply([] { check_file("/dev/zero"); }, {"/dev/zero: is no regular file"});
  const std::filesystem::path file = testing::TempDir() + "attack-" + std::to_string(::getpid()) + ".jsonl";
  std::ofstream(file) << "{";
  std::filesystem::resize_file(file, int64_t{1} << 40);
  expect_refused_cheaply([&] { check_file(file.string()); }, {"line 1: longer than"});
  std::ofstream(file, std::ios::trunc) << repeated("[]\n", 4'000'000);
  EXPECT_EQ(check_file(file.string()).size(), 100u) << "no more is kept of them than is shown";
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace tessera::plan
