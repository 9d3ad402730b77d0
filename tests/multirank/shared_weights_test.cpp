// Ranks of a machine that keep the same frozen weights on the host have one copy of them: the bits of ranks that keep their
// own, in the memory that the plan says.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

#include "curves.h"
#include "processes.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
constexpr int kSteps = 4;
const std::map<std::string, std::string> kShared = {{"OMP_NUM_THREADS", "1"}},
                                         kOwn = {{"OMP_NUM_THREADS", "1"}, {"TESSERA_SHARED_MEMORY", "0"}};

const TinyRun& shared() {
  static const TinyRun run("shared-weights");
  return run;
}

std::vector<std::string> words(int ranks, const std::string& name, std::vector<std::string> flags) {
  std::vector<std::string> all = {TESSERA_BINARY,
                                  "launch",
                                  "-n",
                                  std::to_string(ranks),
                                  "train",
                                  shared().recipe(),
                                  "--run.out",
                                  shared().out(name),
                                  "--run.steps",
                                  std::to_string(kSteps),
                                  "--plan.parameters",
                                  "host",
                                  "--lora.rank",
                                  "4",
                                  "--train.lr",
                                  "2e-2"};
  flags = on_base(shared(), std::move(flags));
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

nlohmann::json plan_of(const std::string& name) { return json_of(fs::path(shared().out(name)) / "plan.json"); }

/// Host bytes of a rank in the last step.
int64_t host_of(const std::string& name, size_t rank) {
  return shared().metrics(name).back()["ranks"][rank]["bytes"].value("host", int64_t{0});
}

std::string contents(const std::string& name, const char* folder) {
  std::set<fs::path> files;
  for (const auto& item : fs::recursive_directory_iterator(fs::path(shared().out(name)) / folder))
    if (item.is_regular_file()) files.insert(item.path());
  std::string all;
  for (const fs::path& file : files) all += file.lexically_relative(shared().out(name)).string() + "\n" + text_of(file);
  return all;
}

struct Case {
  const char* name;
  int ranks;
  std::vector<std::string> flags;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class SharedWeights : public ::testing::TestWithParam<Case> {};

TEST_P(SharedWeights, GiveTheBitsOfRanksThatKeepTheirOwnInThePlannedMemory) {
  const auto& [label, ranks, flags] = GetParam();
  // a file of adapters names its run's folder: the last part is the same
  const std::string one = std::string("one/") + label, each = std::string("each/") + label;
  const Result sharing = run_program(words(ranks, one, flags), kShared);
  ASSERT_EQ(sharing.code, 0) << sharing.output;
  EXPECT_NE(sharing.output.find("of frozen weights"), std::string::npos) << sharing.output;
  const std::string told = text_of(shared().out(one) + "/plan.txt");
  EXPECT_NE(told.find("frozen weights of the host tier are shared by the "), std::string::npos) << told;
  const Result own = run_program(words(ranks, each, flags), kOwn);
  ASSERT_EQ(own.code, 0) << own.output;
  const std::string refused = "not shared by ranks 0 to " + std::to_string(ranks - 1) +
                              ", which the plan counts on: TESSERA_SHARED_MEMORY is 0";
  EXPECT_NE(own.output.find(refused), std::string::npos) << own.output;
  EXPECT_EQ(own.output.find(refused), own.output.rfind(refused)) << "once";

  ASSERT_EQ(curve_of(shared(), one).size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(curve_of(shared(), one), curve_of(shared(), each));
  EXPECT_TRUE(contents(one, "model") == contents(each, "model")) << "the exported adapters differ";

  const auto plan = plan_of(one);
  const int64_t planned = plan["host"]["peak_bytes"], spared = plan["host"]["spared_bytes"];
  const size_t rank = plan["rank"];
  EXPECT_GT(spared, 0);
  EXPECT_EQ(host_of(one, rank), planned);
  EXPECT_EQ(host_of(each, rank), planned + spared);
  int64_t less = 0;
  for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) less += host_of(each, r) - host_of(one, r);
  EXPECT_GE(less, (ranks - 1) * spared) << "each rank but for bytes that no number of ranks divides";
}

const Case kCases[] = {
    {"replicas",
     2,
     {"--mesh", "dp_replicate=2", "--sample.every", "2", "--sample.steps", "2", "--sample.prompts", "a"}},
    {"whole_units", 2, {"--mesh", "dp_shard=2", "--plan.strategy", "no_shard"}},
    {"replicas_of_shards", 4, {"--mesh", "dp_replicate=2,dp_shard=2"}},
    {"sequence", 2, {"--mesh", "sp=2", "--plan.strategy", "no_shard", "--plan.update", "just_in_time"}},
    {"int8", 2, {"--mesh", "dp_replicate=2", "--lora.base_dtype", "int8"}},
    {"fp8", 2, {"--mesh", "dp_replicate=2", "--lora.base_dtype", "fp8"}},
    {"dora", 2, {"--mesh", "dp_replicate=2", "--lora.dora", "true", "--lora.base_dtype", "bf16"}},
    {"updates_on_the_host",
     2,
     {"--mesh", "dp_replicate=2", "--plan.gradients", "host", "--plan.states", "host", "--plan.update_on", "host"}},
    {"both_experts", 2, {"--mesh", "dp_replicate=2", "--experts.train", "both", "--experts.turn", "2"}}};
INSTANTIATE_TEST_SUITE_P(, SharedWeights, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SharedWeightsOfRuns, TellTheErrorOfAnInt8BaseOnce) {
  for (const auto& [name, environment] : {std::pair("error-one", kShared), {"error-each", kOwn}})
    ASSERT_EQ(run_program(words(2, name, {"--mesh", "dp_replicate=2", "--lora.base_dtype", "int8"}), environment).code,
              0);
  const auto one = shared().metrics("error-one", "base"), each = shared().metrics("error-each", "base");
  ASSERT_EQ(one.size(), 1u);
  EXPECT_NEAR(one[0]["error"].get<double>() / each[0]["error"].get<double>(), 1, 1e-12);
  EXPECT_EQ(one[0]["worst"], each[0]["worst"]);
}

/// What a process has mapped of shared weights.
struct Mapped {
  int64_t pss = 0, rss = 0;     ///< bytes
  int files = 0, writable = 0;  ///< mappings
};

Mapped mapped_by(pid_t pid) {
  Mapped found;
  std::ifstream in("/proc/" + std::to_string(pid) + "/smaps");
  bool ours = false;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first, second;
    words >> first >> second;
    if (!first.ends_with(":")) {
      ours = line.find("/memfd:tessera-weights-") != line.npos;
      found.files += ours, found.writable += ours && second.find('w') != second.npos;
    } else if (ours && (first == "Pss:" || first == "Rss:")) {
      (first == "Pss:" ? found.pss : found.rss) += 1024 * std::stoll(second);
    }
  }
  return found;
}

TEST(SharedWeightsOfRuns, TakeTheMachinesMemoryOnceAndAreNotWrittenWhileItTrains) {
  const std::vector<std::string> flags = {"--mesh", "dp_replicate=2"};
  auto environment = kShared;
  environment["TESSERA_DRILL"] = "rank=0,step=2,op=norm,do=3";  // seconds in which to look
  const std::string log = (shared().folder() / "looked-at.log").string();
  const pid_t launcher = start_program(words(2, "looked-at", flags), log, environment);
  std::vector<Mapped> ranks;
  int code = -1;
  for (int looks = 0; code < 0 && looks < 3000; ++looks) {
    std::vector<Mapped> now;
    for (const pid_t rank : children(launcher))
      if (const Mapped m = mapped_by(rank); m.files > 0 && m.writable == 0) now.push_back(m);
    if (now.size() == 2 && ranks.empty()) ranks = now;  // both train
    code = wait_program(launcher, 0.02);
  }
  ASSERT_EQ(code, 0) << text_of(log);
  ASSERT_EQ(ranks.size(), 2u) << text_of(log);
  ASSERT_EQ(run_program(words(2, "not-looked-at", flags), kOwn).code, 0);
  int64_t frozen = 0;  // of one copy
  for (size_t r = 0; r < 2; ++r) frozen += host_of("not-looked-at", r) - host_of("looked-at", r);
  const int64_t pages = 4096LL * ranks[0].files, rounding = 2 * 1024LL * ranks[0].files;
  EXPECT_EQ(ranks[0].files, ranks[1].files);
  for (const Mapped& rank : ranks) {
    EXPECT_GE(rank.rss, frozen) << "each rank has mapped all of it before the first step";
    EXPECT_LE(rank.rss, frozen + pages);
  }
  EXPECT_LE(ranks[0].pss + ranks[1].pss, frozen + pages);
  EXPECT_GE(ranks[0].pss + ranks[1].pss, frozen - rounding);
}

TEST(SharedWeightsOfRuns, AKilledRankLeavesNothingAndTheRunGoesOnWithTheSameBits) {
  const std::vector<std::string> flags = {"--mesh", "dp_replicate=2", "--checkpoint.every", "1"};
  ASSERT_EQ(run_program(words(2, "alone", flags), kShared).code, 0);
  auto environment = kShared;
  environment["TESSERA_DRILL"] = "rank=1,step=3,op=norm,do=kill";
  const Result killed = run_program(words(2, "killed", flags), environment);
  EXPECT_EQ(killed.code, 5) << killed.output;
  for (const auto& entry : fs::directory_iterator("/dev/shm"))
    EXPECT_EQ(entry.path().filename().string().find("tessera"), std::string::npos) << entry.path();
  const Result resumed = run_program(words(2, "killed", flags), kShared);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(curve_of(shared(), "killed"), curve_of(shared(), "alone"));
  // on one rank, which shares with nobody, and back
  std::vector<std::string> one = words(1, "killed", {"--checkpoint.every", "1"});
  one.insert(one.end(), {"--run.steps", std::to_string(kSteps + 1)});
  ASSERT_EQ(run_program(one, kShared).code, 0);
}

/// One that cannot share: its units and those that it would fill are kept by each rank, to the same bits.
TEST(SharedWeightsOfRuns, AreKeptByEachRankWhereOneOfThemCannotShare) {
  const std::vector<std::string> flags = {"--mesh", "dp_replicate=2"};
  ASSERT_EQ(run_program(words(2, "both-can", flags), kShared).code, 0);
  std::vector<std::string> argv = words(2, "one-cannot", flags);
  argv.erase(argv.begin() + 1, argv.begin() + 4);  // no launcher
  const auto start = [&](const std::string& rank, const std::map<std::string, std::string>& environment) {
    auto all = environment;
    all.insert({{"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", std::to_string(20000 + getpid() % 9000)}});
    return start_program(argv, (shared().folder() / ("rank-" + rank)).string(), all);
  };
  const pid_t first = start("0", kShared), second = start("1", kOwn);
  ASSERT_EQ(wait_program(first, 60), 0) << text_of((shared().folder() / "rank-0").string());
  ASSERT_EQ(wait_program(second, 60), 0) << text_of((shared().folder() / "rank-1").string());
  EXPECT_NE(text_of((shared().folder() / "rank-0").string()).find("are not shared by ranks 0 to 1"), std::string::npos);
  EXPECT_EQ(curve_of(shared(), "both-can"), curve_of(shared(), "one-cannot"));
  EXPECT_GT(host_of("one-cannot", 1), host_of("both-can", 1));
}

}  // namespace
}  // namespace tessera::testing
