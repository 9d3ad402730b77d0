// Runs whose steps the simulated device (tests/device/simulated.h) repeats as graphs: they change no bit on any axis of the
// mesh, ranks capture and repeat together, and a message that hangs within a graph is named.
#include <gtest/gtest.h>

#include "curves.h"
#include "matrix_cases.h"

namespace tessera::testing {
namespace {

const TinyRun& shared() {
  static const TinyRun run("graphs");
  return run;
}

using Variables = std::map<std::string, std::string>;
const Variables kOnDevice = {{"OMP_NUM_THREADS", "1"},
                             {"TESSERA_KERNELS", "fused"},
                             {"TESSERA_SIMULATED_BYTES", "1073741824"},
                             {"TESSERA_SIMULATED_POISON", "1"},
                             {"TESSERA_SIMULATED_RECORD", "1"}};

/// Of steps whose plan.graphs is `graphs`; `changed`: of kOnDevice.
Result train(int ranks, const std::string& name, const std::string& graphs, const std::vector<std::string>& more,
             const Variables& changed = {}, const TinyRun& run = shared()) {
  std::vector<std::string> words = {ON_DEVICE,    "launch",    "-n",          std::to_string(ranks), "train",
                                    run.recipe(), "--run.out", run.out(name), "--plan.graphs",       graphs};
  words.insert(words.end(), more.begin(), more.end());
  Variables environment = changed;
  environment.insert(kOnDevice.begin(), kOnDevice.end());
  return run_program(words, environment, 300);
}

/// Steps that the device repeats as graphs, with samples and a checkpoint between them; a resumed run captures anew.
TEST(GraphRuns, ChangeNoBit) {
  struct Graphs {
    const char* name;
    std::vector<std::string> flags;
    bool lora = false;
  };
  const Graphs cases[] = {
      {"kept", {"--sample.every", "4", "--sample.steps", "2", "--checkpoint.every", "5"}},
      {"offloaded",
       {"--plan.activations", "offload", "--plan.parameters", "host", "--plan.states", "host", "--plan.update", "end"}},
      {"adapters", {"--plan.recompute", "all"}, true},
      {"bf16", {"--plan.compute_dtype", "bf16"}}};
  for (const Graphs& c : cases) {
    for (const std::string graphs : {"off", "on"}) {
      std::vector<std::string> flags = {"--run.steps", "7"};
      flags.insert(flags.end(), c.flags.begin(), c.flags.end());
      if (c.lora) flags = on_base(shared(), flags);
      const std::string run = "graphs-" + graphs + "-" + c.name;
      const Result r = train(1, run, graphs, flags);
      ASSERT_EQ(r.code, 0) << r.output;
      EXPECT_EQ(r.output.find("captured the steps of ") != std::string::npos, graphs == "on") << r.output;
    }
    const std::string off = std::string("graphs-off-") + c.name, on = std::string("graphs-on-") + c.name;
    ASSERT_EQ(curve_of(shared(), on).size(), 7);
    EXPECT_EQ(curve_of(shared(), on), curve_of(shared(), off)) << c.name;
    if (!c.lora) EXPECT_TRUE(shared().model(on) == shared().model(off)) << c.name;
  }
  const std::vector<std::string> more = {"--checkpoint.every", "4"};
  for (const char* last : {"4", "12"}) {  // a form is captured when it comes again
    std::vector<std::string> flags = more;
    flags.insert(flags.end(), {"--run.steps", last});
    const Result r = train(1, "graphs-resumed", "on", flags);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("captured the steps of "), std::string::npos) << r.output;
  }
  auto resumed = curve_of(shared(), "graphs-resumed");
  ASSERT_EQ(resumed.size(), 12);
  resumed.resize(7);
  EXPECT_EQ(resumed, curve_of(shared(), "graphs-off-kept"));
}

struct Layout {
  const char* name;
  int ranks;
  std::vector<std::string> flags;
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

class GraphLayouts : public ::testing::TestWithParam<Layout> {};

/// Messages are nodes of the graphs of all ranks, which they repeat together. Those of one rank come in one order there,
/// whatever order a launch takes: the stand-in of NCCL compares it, and that all ranks of one are in graphs.
TEST_P(GraphLayouts, ChangeNoBit) {
  const auto& [name, ranks, more] = GetParam();
  for (const std::string graphs : {"off", "on"}) {
    std::vector<std::string> flags = {"--run.steps", "8"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Result r = train(ranks, graphs + "-" + name, graphs, flags);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(r.output.find("captured the steps of ") != std::string::npos, graphs == "on") << r.output;
    EXPECT_EQ(r.output.find("plan.graphs has no effect"), std::string::npos) << r.output;
  }
  const std::string off = std::string("off-") + name, on = std::string("on-") + name;
  ASSERT_EQ(curve_of(shared(), on).size(), 8);
  EXPECT_EQ(curve_of(shared(), on), curve_of(shared(), off));
  EXPECT_TRUE(shared().model(on) == shared().model(off));
}

const Layout kGraphLayouts[] = {{"two", 2, {"--mesh", "dp_shard=2", "--checkpoint.every", "5"}},
                                {"tensor", 2, {"--mesh", "tp=2"}},
                                {"ulysses", 2, {"--mesh", "sp=2"}},
                                {"ring", 2, {"--mesh", "cp=2"}},
                                {"stages", 2, {"--mesh", "pp=2"}},
                                {"shards_of_tensors", 4, {"--mesh", "dp_shard=2,tp=2"}},
                                {"stages_of_shards", 4, {"--mesh", "pp=2,dp_shard=2", "--plan.recompute", "all"}},
                                {"ring_within_ulysses", 4, {"--mesh", "cp=2,sp=2", "--plan.compute_dtype", "bf16"}},
                                {"stages_of_tensors", 4, {"--mesh", "pp=2,tp=2"}},
                                {"four", 4, {"--mesh", "dp_shard=4", "--plan.recompute", "all"}},
                                {"hybrid", 4, {"--mesh", "dp_replicate=2,dp_shard=2", "--plan.reduce_dtype", "bf16"}},
                                {"library", 2, {"--mesh", "dp_shard=2", "--run.sums", "library"}},
                                {"offloaded",
                                 2,
                                 {"--mesh", "dp_shard=2", "--plan.activations", "offload", "--plan.parameters", "host",
                                  "--plan.states", "host", "--plan.update", "end"}},
                                {"offloaded_stages", 2, {"--mesh", "pp=2", "--plan.activations", "offload"}}};
INSTANTIATE_TEST_SUITE_P(ByTurns, GraphLayouts, ::testing::ValuesIn(in_turn("graphs of layouts", kGraphLayouts, 5)),
                         [](const auto& info) { return std::string(info.param.name); });

constexpr const char* kSana = R"(preset = "sana-tiny-norms"
config = { num_cross_attention_heads = 4, num_layers = 3, caption_channels = 64, caption_length = 5, in_channels = 12 })";

struct Family {
  const char* name;
  const char* model;
  std::vector<std::string> flags = {};
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class GraphFamilies : public ::testing::TestWithParam<Family> {};

/// What else a unit of the family makes on the host for the device is the same in each step of a form.
TEST_P(GraphFamilies, ChangeNoBit) {
  const auto& [name, model, more] = GetParam();
  const TinyRun run(std::string("graphs-") + name, ON_DEVICE, model);
  for (const std::string mesh : {"dp_shard=1", "tp=2"}) {
    for (const std::string graphs : {"off", "on"}) {
      std::vector<std::string> flags = {"--run.steps", "5", "--mesh", mesh};
      flags.insert(flags.end(), more.begin(), more.end());
      const Result r = train(mesh == "tp=2" ? 2 : 1, graphs + mesh, graphs, flags, {}, run);
      ASSERT_EQ(r.code, 0) << r.output;
      EXPECT_EQ(r.output.find("captured the steps of ") != std::string::npos, graphs == "on") << r.output;
    }
    ASSERT_EQ(curve_of(run, "on" + mesh).size(), 5);
    EXPECT_EQ(curve_of(run, "on" + mesh), curve_of(run, "off" + mesh)) << mesh;
    EXPECT_TRUE(run.model("on" + mesh) == run.model("off" + mesh)) << mesh;
  }
}

const Family kGraphFamilies[] = {{"sana", kSana, {"--data.frames", "1"}},
                                 {"stdit", R"(preset = "opensora1.2-tiny"
config = { in_channels = 12, caption_channels = 64, model_max_length = 5 })"},
                                 {"opensora", R"(preset = "opensora2-tiny"
config = { in_channels = 48, context_in_dim = 64, context_length = 5, vec_in_dim = 32 })"},
                                 {"sana_video", R"(preset = "sana-tiny-video"
config = { num_cross_attention_heads = 4, num_layers = 3, caption_channels = 64, caption_length = 5, in_channels = 12 })"}};
INSTANTIATE_TEST_SUITE_P(ByTurns, GraphFamilies, ::testing::ValuesIn(in_turn("graphs of families", kGraphFamilies, 2)),
                         [](const auto& info) { return std::string(info.param.name); });

/// Captions are dropped on one rank and kept on the other: what is a form's second time for one of them may be the other's
/// first, and they wait for each other's messages.
TEST(GraphRuns, RanksWhoseFormsComeApartCaptureAndRepeatTogether) {
  const TinyRun run("graphs-forms", ON_DEVICE, kSana);
  for (const std::string graphs : {"off", "on"}) {
    const Result r = train(2, graphs, graphs,
                           {"--run.steps", "14", "--mesh", "dp_shard=2", "--train.global_batch", "2",
                            "--diffusion.caption_dropout", "0.5", "--data.frames", "1"},
                           {}, run);
    ASSERT_EQ(r.code, 0) << r.output;
    const std::string captured = "captured the steps of ";
    const size_t first = r.output.find(captured);
    EXPECT_EQ(first != std::string::npos, graphs == "on") << r.output;
    EXPECT_TRUE(graphs == "off" || r.output.find(captured, first + 1) != std::string::npos) << "several forms";
  }
  EXPECT_EQ(curve_of(run, "on"), curve_of(run, "off"));
  EXPECT_TRUE(run.model("on") == run.model("off"));
}

/// What forbids them is told, and the run goes on without: what the plan knows by the plan, the rest before the first step.
TEST(GraphRuns, AreForbiddenByNameAndTheRunGoesOn) {
  struct Forbidden {
    const char* name;
    int ranks;
    std::vector<std::string> flags;
    Variables changed;
    const char* words;
  };
  const Forbidden cases[] = {{"gate",
                              1,
                              {"--experts.router", "gate", "--experts.count", "2"},
                              {},
                              "plan.graphs = on has no effect: a gate weighs predictions anew in each step"},
                             {"by-the-host",
                              2,
                              {"--mesh", "tp=2"},
                              {{"TESSERA_SIMULATED_WITHOUT_NCCL", "no NCCL here"}},
                              "plan.graphs has no effect: steps are no graphs: messages between ranks go by the host"}};
  for (const Forbidden& c : cases) {
    std::vector<std::string> flags = {"--run.steps", "2"};
    flags.insert(flags.end(), c.flags.begin(), c.flags.end());
    const Result r = train(c.ranks, std::string("no-") + c.name, "on", flags, c.changed);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find(c.words), std::string::npos) << r.output;
  }
}

/// A message that hangs within a graph, whose events cannot be asked for: the graph itself tells at which message it is.
TEST(GraphRuns, AMessageThatHangsInAGraphIsNamed) {
  // The reduction of the block before may be under way on a lane of its own: in the order that the launch has drawn it waits first.
  struct Hang {
    const char *mesh, *at, *said, *or_said;
  };
  for (const Hang& hang :
       {Hang{"dp_shard=2", "1,reduce blocks.1", "reduce blocks.1 on reduce:dp_shard", nullptr},
        {"tp=2", "1,forward blocks.1", "forward blocks.1 on tensor:tp", nullptr},
        {"cp=2", "1,backward blocks.1", "backward blocks.1 on ring:cp", "reduce blocks.2 on reduce:cp"},
        {"pp=2", "0,send", " on activations:pp", nullptr}}) {
    const Result r = train(2, std::string("hangs-") + hang.mesh, "on",
                           {"--run.steps", "8", "--mesh", hang.mesh, "--fault.timeout", "2"},
                           {{"TESSERA_SIMULATED_SLOW_GRAPH", hang.at}});
    EXPECT_EQ(r.code, 5) << hang.mesh << ": " << r.output;
    const bool told = r.output.find(hang.said) != std::string::npos ||
                      (hang.or_said && r.output.find(hang.or_said) != std::string::npos);
    EXPECT_TRUE(told) << hang.mesh << ": " << r.output;
    EXPECT_NE(r.output.find(", in a graph"), std::string::npos) << hang.mesh << ": " << r.output;
  }
}

}  // namespace
}  // namespace tessera::testing
