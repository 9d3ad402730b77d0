// The same loss curve on every layout; the same bits on the same layout; resume on any other.
// Many more layouts, in fewer steps, are in layout_matrix_test.cpp.
#include <fstream>
#include <map>

#include "layout_table.h"
#include "matrix_cases.h"

namespace tessera::testing {
namespace {

const TinyRun& shared() {
  static const TinyRun run("layouts");
  return run;
}

constexpr int kSteps = 100;

const std::vector<nlohmann::json>& curve(const std::string& name, int ranks,
                                         const std::vector<std::string>& more = {}) {
  static std::map<std::string, std::vector<nlohmann::json>> known;
  if (!known.count(name)) {
    std::vector<std::string> flags = {"--run.steps", std::to_string(kSteps)};
    flags.insert(flags.end(), more.begin(), more.end());
    const Result r = shared().train(ranks, name, flags, 300);
    EXPECT_EQ(r.code, 0) << r.output;
    known[name] = shared().metrics(name);
  }
  return known[name];
}

void expect_curve(const std::vector<nlohmann::json>& a, const std::vector<nlohmann::json>& b) {
  expect_same_curve(a, b, kSteps);
}
void expect_weights(const std::string& a, const std::string& b) { expect_same_weights(shared(), a, b, "start"); }

void make_start() {
  static const bool once = [] {
    const Result r = shared().train(1, "start", {"--run.steps", "1", "--train.lr", "0"});
    EXPECT_EQ(r.code, 0) << r.output;
    return true;
  }();
  (void)once;
}

std::vector<std::string> exact(const std::vector<nlohmann::json>& steps, size_t from = 0) {
  std::vector<std::string> lines;
  for (size_t i = from; i < steps.size(); ++i)
    lines.push_back(steps[i]["step"].dump() + " " + steps[i]["loss"].dump() + " " + steps[i]["grad_norm"].dump() + " " +
                    steps[i]["lr"].dump());
  return lines;
}

TEST(Layouts, TwoRanksEqualOneRank) {
  make_start();
  expect_curve(curve("one", 1), curve("two", 2));
  expect_weights("one", "two");
}

TEST(Layouts, FourRanksEqualOneRank) {
  make_start();
  expect_curve(curve("one", 1), curve("four", 4));
  expect_weights("one", "four");
}

TEST(Layouts, ReplicasOfShardsEqualOneRank) {
  make_start();
  expect_curve(curve("one", 1), curve("hybrid", 4, {"--mesh", "dp_replicate=2,dp_shard=2"}));
  expect_weights("one", "hybrid");
}

TEST(Layouts, MicroBatchesRecomputeAndPrefetchChangeNothing) {
  expect_curve(curve("one", 1),
               curve("micro", 2, {"--train.micro_batch", "1", "--plan.recompute", "all", "--plan.prefetch", "0"}));
}

TEST(Layouts, AGlobalBatchThatRanksCannotShareEvenlyEqualsOneRank) {
  const std::vector<std::string> three = {"--train.global_batch", "3"};
  expect_curve(curve("three-on-one", 1, three), curve("three-on-four", 4, three));
}

/// A layout by hand: for a pipeline its mesh, how stages take turns, and what else is different.
struct ByHand {
  const char* name;
  int ranks;
  std::vector<std::string> flags;
};

class Pipelines : public ::testing::TestWithParam<ByHand> {};

TEST_P(Pipelines, EqualOneRank) {
  make_start();
  const std::string name = std::string("pipeline-") + GetParam().name;
  std::vector<std::string> flags = {"--train.micro_batch", "1"};
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  expect_curve(curve("one", 1), curve(name, GetParam().ranks, flags));
  expect_weights("one", name);
}

const ByHand kPipelines[] = {
    {"gpipe", 2, {"--mesh", "pp=2", "--plan.pipeline", "gpipe"}},
    {"1f1b", 2, {"--mesh", "pp=2", "--plan.pipeline", "1f1b", "--plan.recompute", "1"}},
    {"interleaved", 2, {"--mesh", "pp=2", "--plan.pipeline", "interleaved", "--plan.chunks", "2"}},
    {"zero_bubble", 2, {"--mesh", "pp=2", "--plan.pipeline", "zero_bubble"}},
    {"shards", 4, {"--mesh", "pp=2,dp_shard=2", "--plan.pipeline", "zero_bubble", "--plan.strategy", "full_shard"}},
    {"replicas", 4, {"--mesh", "pp=2,dp_replicate=2", "--plan.prefetch", "0"}}};
INSTANTIATE_TEST_SUITE_P(ByTurns, Pipelines, ::testing::ValuesIn(in_turn("pipelines that equal one rank", kPipelines)),
                         [](const auto& info) { return std::string(info.param.name); });

/// A clip that acts: a norm that counts a parameter twice, or not at all, makes another update.
TEST(Layouts, ThatClipEveryStepEqualOneRank) {
  const std::vector<std::string> clips = {"--train.clip_norm", "0.01", "--run.steps", "12"};
  const auto run = [&](const std::string& name, int ranks, const std::vector<std::string>& more) {
    std::vector<std::string> flags = clips;
    flags.insert(flags.end(), more.begin(), more.end());
    const Result r = shared().train(ranks, name, flags);
    EXPECT_EQ(r.code, 0) << r.output;
    return shared().metrics(name);
  };
  const auto one = run("clips", 1, {});
  for (const auto& step : one) EXPECT_GT(step["grad_norm"].get<double>(), 0.01) << "it acts";
  const std::tuple<const char*, int, std::vector<std::string>> layouts[] = {
      {"clips-tp", 2, {"--mesh", "tp=2"}},
      {"clips-replicas", 4, {"--mesh", "dp_replicate=2,dp_shard=2"}},
      {"clips-levels", 2, {"--mesh", "dp_replicate=2", "--plan.strategy", "two_level"}},
      {"clips-whole", 2, {"--plan.strategy", "no_shard"}}};
  for (const auto& [name, ranks, flags] : layouts) {
    const auto other = run(name, ranks, flags);
    expect_same_curve(one, other, 12);
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(other[i]["grad_norm"].get<double>() / one[i]["grad_norm"].get<double>(), 1, 1e-5) << name << " " << i;
  }
}

TEST(Layouts, TheSameLayoutTwiceIsBitIdentical) {
  const Result r = shared().train(2, "two-again", {"--run.steps", std::to_string(kSteps)}, 300);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(exact(curve("two", 2)), exact(shared().metrics("two-again")));
  EXPECT_EQ(shared().model("two"), shared().model("two-again"));
}

TEST(Layouts, SixtyStepsEqualThirtyAndThirtyAfterAResume) {
  ASSERT_EQ(shared().train(2, "sixty", {"--run.steps", "60", "--train.warmup_steps", "5"}, 300).code, 0);
  // The schedule spans the whole run, so the first half is told where the end is by stopping at a checkpoint.
  ASSERT_EQ(shared()
                .train(2, "halves", {"--run.steps", "60", "--train.warmup_steps", "5", "--checkpoint.every", "30"}, 300)
                .code,
            0);
  std::filesystem::remove_all(shared().out("halves") + "/checkpoints/step-000060");
  const Result resumed =
      shared().train(2, "halves", {"--run.steps", "60", "--train.warmup_steps", "5", "--checkpoint.every", "30"}, 300);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed from"), std::string::npos) << resumed.output;
  EXPECT_EQ(exact(shared().metrics("sixty")), exact(shared().metrics("halves")));
  EXPECT_EQ(shared().model("sixty"), shared().model("halves"));
}

TEST(Layouts, ResumeOnAnotherLayoutKeepsTheCurve) {
  make_start();
  ASSERT_EQ(shared().train(2, "moved", {"--run.steps", "100", "--checkpoint.every", "50"}, 300).code, 0);
  std::filesystem::remove_all(shared().out("moved") + "/checkpoints/step-000100");
  const Result resumed = shared().train(4, "moved", {"--run.steps", "100", "--checkpoint.every", "50"}, 300);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  expect_curve(curve("one", 1), shared().metrics("moved"));
  expect_weights("one", "moved");
}

/// Ranks that share tokens or features, alone and together.
const ByHand kShared[] = {
    {"ulysses_in_ring", 4, {"--mesh", "cp=2,sp=2"}},
    {"ring_of_three", 3, {"--mesh", "cp=3"}},  // tokens that three do not divide
    {"tensor_sharded", 4, {"--mesh", "dp_shard=2,tp=2", "--plan.recompute", "1"}},
};
const ByHand kAllShared = {"all", 8, {"--mesh", "dp_shard=2,cp=2,sp=2", "--plan.recompute", "1"}};

class SharedTokens : public ::testing::TestWithParam<ByHand> {};

TEST_P(SharedTokens, EqualOneRankInMemoryThatWasPredicted) {
  const auto run = [](const std::string& name, int ranks, std::vector<std::string> flags) {
    if (shared().metrics(name).empty()) {
      flags.insert(flags.end(), {"--run.steps", "20", "--train.global_batch", "3"});
      const Result r = shared().train(ranks, name, flags, 300);
      EXPECT_EQ(r.code, 0) << r.output;
    }
    return shared().metrics(name);
  };
  make_start();
  const auto one = run("one-of-twenty", 1, {}), here = run(GetParam().name, GetParam().ranks, GetParam().flags);
  expect_same_curve(one, here, 20);
  expect_weights("one-of-twenty", GetParam().name);
  ASSERT_FALSE(here.empty());
  expect_as_planned(here.back(), GetParam().flags[1]);
  for (const auto& [axis, bytes] : here.back()["ranks"][0]["sent_bytes"].items()) EXPECT_GT(bytes, 0) << axis;
}

INSTANTIATE_TEST_SUITE_P(, SharedTokens, ::testing::Values(kAllShared),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(ByTurns, SharedTokens, ::testing::ValuesIn(in_turn("ranks that share tokens", kShared)),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SequenceParallel, HeadsThatSpDoesNotDivideAreRefusedWithTheNearestValues) {
  const Result r = shared().train(3, "three-heads", {"--mesh", "sp=3", "--run.steps", "1"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("sp = 3 does not divide the model's 4 heads"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("sp = 2"), std::string::npos) << r.output;
}

/// Bytes of the formulas in docs/layouts.md, "Bytes a rank sends", for the tiny model and one sample a micro-batch.
struct Formula {
  static constexpr int64_t kDim = 64, kHeads = 4, kBlocks = 3, kText = 16, kRanks = 2;
  int64_t tokens, parameters;
  int64_t element = 4;  ///< bytes of what blocks compute in; sums are fp32

  int64_t rows(int64_t count) const { return count * kDim * element; }
  int64_t rows_of_sums(int64_t count) const { return count * kDim * 4; }
  int64_t half() const { return tokens / kRanks; }
  int64_t ulysses() const {
    const int64_t forward = 3 * rows(half()) / 2 + rows(half()) / 2;
    const int64_t backward = (rows(half()) + half() * kHeads * 4) / 2 + 3 * rows(half()) / 2;
    return kBlocks * (forward + backward);
  }
  int64_t ring() const { return kBlocks * (2 * (1 + 1) * rows(half()) + 2 * rows_of_sums(half())); }
  /// Three gathers and three sums a block and pass, q and k of both attentions normed over the full width.
  int64_t tensor() const {
    const int64_t norms = 4 * (3 * half() * kRanks + kText);
    return kBlocks * 2 * (6 * rows(half()) + norms);
  }
  int64_t pipeline(int64_t micros) const { return micros * (rows_of_sums(tokens) + rows_of_sums(1 + 6 + kText)); }
  /// A gather and a reduction of everything.
  int64_t shards() const { return parameters * (element + 4) * (kRanks - 1) / kRanks; }
  int64_t replicas() const { return parameters * 4; }
};

TEST(Layouts, ARecomputeUnderTensorParallelismThatKeepsAFeedForwardsSumSendsLessAndHasTheSameBits) {
  const std::vector<std::string> flags = {"--run.steps", "3", "--mesh", "tp=2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    return more;
  };
  const Result all = shared().train(2, "tp-again", with({"--plan.recompute", "all"}));
  ASSERT_EQ(all.code, 0) << all.output;
  const std::string line = "activations = \"recompute\"\n", file = shared().out("tp-kept.toml");
  std::string plan = text_of(shared().out("tp-again") + "/plan.toml");
  ASSERT_NE(plan.find(line), std::string::npos) << plan;
  const auto sites = [&plan](size_t at) { return plan.substr(at, plan.find("[[units]]", at) - at).find("sites"); };
  for (size_t at = plan.find(line); at != std::string::npos; at = plan.find(line, at + 1)) {
    ASSERT_EQ(sites(at), std::string::npos) << plan;
    plan.insert(at + line.size(), "sites = { \"ffn.2\" = \"keep\" }\n");
  }
  std::ofstream(file) << plan;
  const Result kept = shared().train(2, "tp-kept", with({"--plan.file", file}));
  ASSERT_EQ(kept.code, 0) << kept.output;
  const auto a = shared().metrics("tp-again"), b = shared().metrics("tp-kept");
  EXPECT_EQ(exact(a), exact(b));
  for (size_t rank = 0; rank < 2; ++rank)
    EXPECT_LT(b.back()["ranks"][rank]["sent_bytes"]["tp"].get<int64_t>(),
              a.back()["ranks"][rank]["sent_bytes"]["tp"].get<int64_t>());
}

struct AxisTraffic {
  const char* axis;
  std::vector<std::string> flags;
  std::vector<std::string> ops;  ///< whose bytes the formula gives
  int64_t (*formula)(const Formula&);
  bool padded;  ///< parameters are rounded up to whole blocks of 256
  const char* type = "fp32";
  const char* way = "";
};

class Traffic : public ::testing::TestWithParam<AxisTraffic> {};

TEST_P(Traffic, IsWhatTheFormulaTheScheduleAndTheExecutorSay) {
  const AxisTraffic& here = GetParam();
  const std::string run = std::string("traffic-") + here.axis + here.type + here.way;
  std::vector<std::string> flags = {"--run.steps",
                                    "3",
                                    "--train.micro_batch",
                                    "1",
                                    "--mesh",
                                    here.axis + std::string("=2"),
                                    "--plan.recompute",
                                    "none",
                                    "--plan.activations",
                                    "keep",
                                    "--plan.compute_dtype",
                                    here.type};
  flags.insert(flags.end(), here.flags.begin(), here.flags.end());
  const Result r = shared().train(2, run, flags);
  ASSERT_EQ(r.code, 0) << r.output;
  const auto step = shared().metrics(run).back();
  const auto plan = json_of(shared().out(run) + "/plan.json");
  const Formula formula{plan["model"]["tokens"], plan["model"]["parameters"], here.type == std::string("fp32") ? 4 : 2};
  ASSERT_EQ(formula.tokens % 2, 0);
  for (int rank = 0; rank < 2; ++rank) {
    int64_t declared = 0, of_formula = 0;
    std::ifstream lines(shared().out(run) + "/schedule.jsonl");
    for (std::string text; std::getline(lines, text);) {
      const auto line = nlohmann::json::parse(text);
      if (line["rank"] != rank || line["step"] != 2 || line["phase"] != "train" || line["op"] == "norm") continue;
      const bool counted = std::count(here.ops.begin(), here.ops.end(), line["op"].get<std::string>()) > 0;
      for (const auto& comm : line["comm"]) {
        EXPECT_EQ(comm["axis"], here.axis);
        declared += comm["bytes"].get<int64_t>();
        if (counted) of_formula += comm["bytes"].get<int64_t>();
      }
    }
    const auto& sent = step["ranks"][static_cast<size_t>(rank)]["sent_bytes"];
    EXPECT_EQ(sent.size(), 1u) << "axes of one send nothing: " << sent;
    EXPECT_EQ(sent[here.axis], declared) << "what ran is what the schedule declares";
    const int64_t theory = here.formula(formula);
    EXPECT_GE(of_formula, theory);
    EXPECT_LE(of_formula, theory + (here.padded ? theory / 10 : 0));
  }
}

INSTANTIATE_TEST_SUITE_P(, Traffic,
                         ::testing::Values(AxisTraffic{"dp_shard",
                                                       {"--train.global_batch", "2", "--plan.strategy",
                                                        "shard_grad_op"},
                                                       {"gather", "reduce"},
                                                       [](const Formula& f) { return f.shards(); },
                                                       true},
                                           AxisTraffic{"dp_replicate",
                                                       {"--train.global_batch", "2", "--plan.strategy", "full_shard"},
                                                       {"reduce", "reduce_outer"},
                                                       [](const Formula& f) { return f.replicas(); },
                                                       true},
                                           AxisTraffic{"dp_replicate",
                                                       {"--train.global_batch", "4", "--plan.strategy", "two_level"},
                                                       {"reduce_outer", "gather_outer"},
                                                       [](const Formula& f) { return f.shards(); },
                                                       true,
                                                       "fp32",
                                                       "_two_level"},
                                           AxisTraffic{"sp",
                                                       {"--train.global_batch", "1"},
                                                       {"forward", "backward"},
                                                       [](const Formula& f) { return f.ulysses(); },
                                                       false},
                                           AxisTraffic{"cp",
                                                       {"--train.global_batch", "1"},
                                                       {"forward", "backward"},
                                                       [](const Formula& f) { return f.ring(); },
                                                       false},
                                           AxisTraffic{"tp",
                                                       {"--train.global_batch", "1"},
                                                       {"forward", "backward"},
                                                       [](const Formula& f) { return f.tensor(); },
                                                       false},
                                           AxisTraffic{"pp",
                                                       {"--train.global_batch", "2", "--plan.pipeline", "1f1b"},
                                                       {"send"},
                                                       [](const Formula& f) { return f.pipeline(2); },
                                                       false}),
                         [](const auto& info) { return std::string(info.param.axis) + info.param.way; });

INSTANTIATE_TEST_SUITE_P(In16Bits, Traffic,
                         ::testing::Values(AxisTraffic{"dp_shard",
                                                       {"--train.global_batch", "2", "--plan.strategy",
                                                        "shard_grad_op"},
                                                       {"gather", "reduce"},
                                                       [](const Formula& f) { return f.shards(); },
                                                       true,
                                                       "bf16"},
                                           AxisTraffic{"sp",
                                                       {"--train.global_batch", "1"},
                                                       {"forward", "backward"},
                                                       [](const Formula& f) { return f.ulysses(); },
                                                       false,
                                                       "bf16"},
                                           AxisTraffic{"cp",
                                                       {"--train.global_batch", "1"},
                                                       {"forward", "backward"},
                                                       [](const Formula& f) { return f.ring(); },
                                                       false,
                                                       "bf16"},
                                           AxisTraffic{"tp",
                                                       {"--train.global_batch", "1"},
                                                       {"forward", "backward"},
                                                       [](const Formula& f) { return f.tensor(); },
                                                       false,
                                                       "fp16"}),
                         [](const auto& info) { return std::string(info.param.axis); });

TEST(Layouts, ARunLeavesATraceWithPredictedAndMeasuredLanes) {
  const Result r = shared().train(2, "trace", {"--run.steps", "2"});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto trace = json_of(shared().out("trace") + "/trace.json");
  std::map<std::string, int> processes;
  std::map<int, int> events;  // of each process
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") processes[event["args"]["name"]] = event["pid"];
    if (event["ph"] == "X") ++events[event["pid"]];
  }
  ASSERT_TRUE(processes.contains("predicted: rank 0 and 1 alike"));
  for (const char* measured : {"measured: rank 0, step 2", "measured: rank 1, step 2"}) {
    ASSERT_TRUE(processes.contains(measured));
    EXPECT_EQ(events[processes[measured]], events[processes["predicted: rank 0 and 1 alike"]]);
  }
}

TEST(Layouts, EveryRankTellsWhatItsComputingWaitedFor) {
  const Result r = shared().train(
      2, "waits",
      {"--run.steps", "4", "--plan.prefetch", "0", "--plan.strategy", "full_shard", "--plan.states", "host"});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto steps = shared().metrics("waits");
  std::vector<double> waited(2);
  for (size_t s = 1; s < steps.size(); ++s)  // a line tells of the step before it
    for (size_t rank = 0; rank < waited.size(); ++rank) {
      const auto& exposed = steps[s]["ranks"][rank]["exposed"];
      const double comm = exposed["comm"], copy = exposed["copy"];
      EXPECT_GT(comm, 0) << "without prefetch every gather is waited for";
      EXPECT_GT(copy, 0) << "and so are states";
      EXPECT_EQ(exposed["stages"].get<double>(), 0);
      // A line's seconds are those of rank 0. Rank 1 may begin its step earlier and wait for rank 0 in it.
      if (rank == 0) EXPECT_LT(comm + copy, steps[s - 1]["seconds"].get<double>());
      waited[rank] += comm + copy;
    }
  for (double seconds : waited) EXPECT_LT(seconds, r.seconds);
}

TEST(Layouts, PipelinesResumeOnLayoutsWithoutOneAndBack) {
  make_start();
  const std::vector<std::string> flags = {"--run.steps", "100", "--checkpoint.every", "50"};
  const auto half = [&](const std::string& name, int ranks, std::vector<std::string> mesh) {
    mesh.insert(mesh.end(), flags.begin(), flags.end());
    const Result r = shared().train(ranks, name, mesh, 300);
    ASSERT_EQ(r.code, 0) << r.output;
  };
  const std::vector<std::string> pipeline = {"--mesh", "pp=2", "--train.micro_batch", "1"};
  for (const bool back : {false, true}) {
    const std::string name = back ? "into-pipeline" : "out-of-pipeline";
    half(name, 2, back ? std::vector<std::string>{} : pipeline);
    std::filesystem::remove_all(shared().out(name) + "/checkpoints/step-000100");
    half(name, 2, back ? pipeline : std::vector<std::string>{});
    expect_curve(curve("one", 1), shared().metrics(name));
    expect_weights("one", name);
  }
}

}  // namespace
}  // namespace tessera::testing
