// Training steps as graphs: what is captured is the schedule, by lanes and by waits, and what is repeated has its bits.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "engine/toy_engine.h"
#include "simulated.h"
#include "tessera/engine/store/meter.h"
#include "tessera/plan/graphs.h"
#include "timeline.h"

namespace tessera::testing {
namespace {

using engine::toy::Toy, engine::toy::ToyRank, engine::toy::ToyStep;
using plan::Policy, plan::Tier;

class OnDevice final : public ::testing::Environment {
  void SetUp() override {
    engine::Meter::install();
    device::use(simulated_device(), 0);
    engine::Meter::use_device(simulated_device());
    engine::Meter::reserve(int64_t{256} << 20);
    timeline().compare_uses(true);
  }
};
[[maybe_unused]] const auto* const on_device = ::testing::AddGlobalTestEnvironment(new OnDevice);

struct GraphCase {
  const char* name;
  plan::UnitPlan each;
  int prefetch = 1;
  int64_t batch = 4;
};
void PrintTo(const GraphCase& c, std::ostream* out) { *out << c.name; }

const GraphCase kGraphCases[] = {
    {"keep", {}},
    {"recompute", {.activations = Policy::recompute}},
    {"offload", {.activations = Policy::offload}},
    {"offload_two_ahead", {.activations = Policy::offload}, 2},
    {"parameters_and_states_on_the_host", {.parameters = Tier::host, .states = Tier::host}},
    {"reduced_once", {.reduce_once = true}},
};

plan::Plan plan_of(const Toy& toy, const GraphCase& c) {
  plan::Plan plan = toy.plan(c.each);
  plan.prefetch = c.prefetch, plan.global_batch = c.batch;
  return plan;
}
std::unique_ptr<ToyRank> rank_of(const Toy& toy, const plan::Plan& plan, bool graphs) {
  return std::make_unique<ToyRank>(toy, plan, plan::compile_train(toy.spec(), plan, 0), comm::Rendezvous{}, false,
                                   graphs);
}
std::string news_of(ToyRank& rank) {
  std::string text;
  for (const auto& news : rank.engine().graphs()->take_news()) text += news.text + "\n";
  return text;
}

class Graphs : public ::testing::TestWithParam<GraphCase> {
 protected:
  void TearDown() override { timeline().forget_waits("", ""); }
  const Toy toy{3};
};
INSTANTIATE_TEST_SUITE_P(, Graphs, ::testing::ValuesIn(kGraphCases),
                         [](const auto& info) { return std::string(info.param.name); });

/// Two forms take turns. One is captured when it comes again.
TEST_P(Graphs, ChangeNoBit) {
  const plan::Plan plan = plan_of(toy, GetParam());
  const auto plain = rank_of(toy, plan, false), rank = rank_of(toy, plan, true);
  int64_t number = 0;
  for (const int64_t samples : {2, 2, 2, 1, 1, 2, 1, 2}) {
    plain->samples = rank->samples = samples;
    ++number;
    plain->lr = rank->lr = 1e-2 / static_cast<double>(number);  // of updates, which are no graph's
    const ToyStep expected = plain->step(number), found = rank->step(number);
    EXPECT_EQ(found.norm, expected.norm) << "step " << number;
    for (const auto& [name, weight] : expected.weights)
      EXPECT_TRUE(at::equal(found.weights.at(name), weight)) << "step " << number << ", " << name;
    for (const auto& [name, gradient] : expected.gradients)
      EXPECT_TRUE(at::equal(found.gradients.at(name), gradient)) << "step " << number << ", " << name;
  }
  EXPECT_EQ(rank->engine().graphs()->captured(), 2);
  EXPECT_EQ(rank->engine().graphs()->repeated(), 4);
  const std::string news = news_of(*rank);
  EXPECT_NE(news.find("captured the steps of 24 tokens in 2 micro-batches as a graph of "), std::string::npos) << news;
  EXPECT_NE(news.find("captured the steps of 12 tokens"), std::string::npos) << news;
}

/// The nodes of a label, as runs on their stream.
struct NodeRun {
  int stream;
  int64_t first, last;
  const GraphNode* begin;
};
std::map<std::string, std::vector<NodeRun>> runs_of(const std::vector<GraphNode>& nodes) {
  std::map<int, std::vector<const GraphNode*>> by_stream;
  for (const GraphNode& node : nodes) by_stream[node.stream].push_back(&node);
  std::map<std::string, std::vector<NodeRun>> runs;
  for (const auto& [stream, own] : by_stream)
    for (size_t i = 0; i < own.size(); ++i)
      if (i > 0 && own[i - 1]->label == own[i]->label)
        runs[own[i]->label].back().last = own[i]->place;
      else
        runs[own[i]->label].push_back({stream, own[i]->place, own[i]->place, own[i]});
  return runs;
}
std::string graph_label(const plan::Instruction& in) {
  return std::string(name(in.op)) + (in.name.empty() ? "" : " " + std::string(in.name));
}

/// The stream that brings batches, in the order of the capture's; -1: the lane that computes does.
int upload_stream(const std::vector<GraphNode>& nodes) {
  for (const GraphNode& node : nodes)
    if (node.stream > 0 && node.label.starts_with("forward")) return node.stream;
  return -1;
}
/// Without its nodes.
std::vector<GraphNode> of_lanes(std::vector<GraphNode> nodes) {
  std::erase_if(nodes, [uploads = upload_stream(nodes)](const GraphNode& node) { return node.stream == uploads; });
  return nodes;
}

/// Of the schedule's waits between lanes, those that a graph has and those that it lacks; of neighbours on a lane likewise.
struct Edges {
  int has = 0, lacks = 0, in_order = 0, out_of_order = 0;
};
Edges edges_of(const plan::Schedule& schedule, int norm, const std::vector<GraphNode>& nodes) {
  const auto runs = runs_of(nodes);
  std::map<std::string, size_t> met;
  std::map<int, const NodeRun*> found;  // by instruction
  std::map<std::string, size_t> all;
  for (int i = 0; i < norm; ++i) ++all[graph_label(schedule.list[static_cast<size_t>(i)])];
  for (int i = 0; i < norm; ++i) {
    const std::string of = graph_label(schedule.list[static_cast<size_t>(i)]);
    const auto run = runs.find(of);
    if (run != runs.end() && run->second.size() == all[of]) found[i] = &run->second[met[of]++];
  }
  Edges edges;
  std::map<plan::Lane, const NodeRun*> before;
  for (const auto& [i, run] : found) {
    const plan::Instruction& in = schedule.list[static_cast<size_t>(i)];
    if (const NodeRun* earlier = std::exchange(before[in.lane], run))
      ++(earlier->stream == run->stream && earlier->last < run->first ? edges.in_order : edges.out_of_order);
    std::vector<int> waits(in.wait.begin(), in.wait.end());
    while (!waits.empty()) {
      const int wait = waits.back();
      waits.pop_back();
      const auto other = found.find(wait);
      const plan::Instruction& earlier = schedule.list[static_cast<size_t>(wait)];
      if (other == found.end()) {  // one that gives the device nothing passes on what it waits for
        if (!runs.contains(graph_label(earlier))) waits.insert(waits.end(), earlier.wait.begin(), earlier.wait.end());
        continue;
      }
      if (other->second->stream == run->stream) continue;
      const auto s = static_cast<size_t>(other->second->stream);
      const bool behind = s < run->begin->behind.size() && run->begin->behind[s] > other->second->last;
      ++(behind ? edges.has : edges.lacks);
    }
  }
  return edges;
}
int norm_of(const plan::Schedule& schedule) {
  for (size_t i = 0; i < schedule.list.size(); ++i)
    if (schedule.list[i].op == plan::Op::norm && schedule.list[i].unit < 0) return static_cast<int>(i);
  return -1;
}

/// What a step without a graph gives the device, by label and work.
std::map<std::pair<std::string, std::string>, int64_t> launches_before_norm(ToyRank& rank, int64_t step) {
  (void)timeline().take_launches();
  rank.run(step);
  std::map<std::pair<std::string, std::string>, int64_t> counts;
  for (const auto& [name, launches] : timeline().take_launches())
    if (!name.first.empty() && !name.first.starts_with("update") && !name.first.starts_with("norm"))
      counts[name] = launches.count;
  return counts;
}

TEST_P(Graphs, HaveTheKernelsOfTheScheduleInItsOrderAndItsWaits) {
  GraphCase one = GetParam();
  one.batch = 2;  // a micro-batch, so that labels tell instructions apart
  const plan::Plan plan = plan_of(toy, one);
  const auto rank = rank_of(toy, plan, true);
  const auto launched = launches_before_norm(*rank, 1);
  (void)timeline().take_captured();
  rank->run(2);
  const auto captured = timeline().take_captured();
  ASSERT_EQ(captured.size(), 1);
  std::map<std::pair<std::string, std::string>, int64_t> nodes;
  for (const GraphNode& node : captured[0])
    if (!node.label.empty() && !node.label.starts_with("update") && !node.label.starts_with("norm") &&
        node.what != "word")
      ++nodes[{node.label, node.what}];
  const int norm = norm_of(rank->schedule());
  auto expected = launched;
  std::erase_if(expected, [](const auto& each) { return each.first.second == "word"; });  // progress is no graph's
  for (size_t i = static_cast<size_t>(norm); i < rank->schedule().list.size(); ++i)
    for (auto* of : {&expected, &nodes})  // labels that come again behind the norm
      std::erase_if(*of, [&](const auto& each) { return each.first.first == graph_label(rank->schedule().list[i]); });
  EXPECT_FALSE(nodes.empty());
  EXPECT_EQ(nodes, expected) << "the same kernels under each instruction";
  const Edges edges = edges_of(rank->schedule(), norm, of_lanes(captured[0]));
  EXPECT_EQ(edges.lacks, 0);
  EXPECT_EQ(edges.out_of_order, 0);
  EXPECT_GT(edges.in_order, 5);
  const bool moves = GetParam().name != std::string("keep") && GetParam().name != std::string("recompute") &&
                     GetParam().name != std::string("reduced_once");
  EXPECT_EQ(edges.has > 0, moves) << edges.has;
}

/// Addresses repeat, and numbers that kernels are given: what is captured another time is the same graph.
TEST_P(Graphs, AreTheSameWhenCapturedAgain) {
  const auto rank = rank_of(toy, plan_of(toy, GetParam()), true);
  (void)timeline().take_captured();
  for (int64_t step = 1; step <= 2; ++step) rank->run(step);
  rank->engine().graphs()->clear();
  for (int64_t step = 3; step <= 4; ++step) rank->run(step);
  const auto captured = timeline().take_captured();
  ASSERT_EQ(captured.size(), 2);
  ASSERT_EQ(captured[0].size(), captured[1].size());
  // lanes come to a capture in any order: nodes are compared lane by lane
  const auto by_label = [](const std::vector<GraphNode>& nodes) {
    std::map<std::string, std::vector<std::string>> by;
    for (const GraphNode& node : nodes) {
      std::ostringstream text;
      text << node.what;
      for (const Use& use : node.uses) text << " " << use.begin << "+" << use.bytes << (use.writes ? "w" : "r");
      by[node.label].push_back(text.str());
    }
    return by;
  };
  EXPECT_EQ(by_label(captured[0]), by_label(captured[1]));
}

/// A wait that the lanes leave out is an edge that the graph lacks.
TEST(GraphEdges, AreFoundMissing) {
  const Toy toy{3};
  const plan::Plan plan = plan_of(toy, {"offload", {.activations = Policy::offload}, 1, 2});
  const auto rank = rank_of(toy, plan, true);
  rank->run(1);
  (void)timeline().take_captured();
  timeline().compare_uses(false);  // which finds it too
  timeline().forget_waits("backward", "fetch");
  rank->run(2);
  timeline().forget_waits("", "");
  timeline().compare_uses(true);
  const auto captured = timeline().take_captured();
  ASSERT_EQ(captured.size(), 1);
  EXPECT_GT(edges_of(rank->schedule(), norm_of(rank->schedule()), of_lanes(captured[0])).lacks, 0);
}

/// A batch comes beside what is computed: behind no node of the lane that computes, and before the first that reads it.
TEST(GraphEdges, OfBatchesJoinTheLaneThatComputesAndWaitForNothingOfIt) {
  const Toy toy{3};
  const auto rank = rank_of(toy, plan_of(toy, kGraphCases[0]), true);
  rank->run(1);
  (void)timeline().take_captured();
  rank->run(2);
  const auto captured = timeline().take_captured();
  ASSERT_EQ(captured.size(), 1);
  const int uploads = upload_stream(captured[0]);
  ASSERT_GT(uploads, 0);
  std::vector<const GraphNode*> brought, taken;
  for (const GraphNode& node : captured[0])
    if (node.stream == uploads) {
      brought.push_back(&node);
    } else if (node.stream == 0 && node.label == "forward in" && node.what == "copy") {
      taken.push_back(&node);
    }
  ASSERT_EQ(brought.size(), 2) << "one copy for each micro-batch";
  ASSERT_EQ(taken.size(), 2);
  const int64_t first_taken = taken[0]->place;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(brought[i]->what, "copy");
    EXPECT_LE(brought[i]->behind.empty() ? 0 : brought[i]->behind[0], first_taken) << "micro-batch " << i;
    ASSERT_LT(static_cast<size_t>(uploads), taken[i]->behind.size());
    EXPECT_GT(taken[i]->behind[static_cast<size_t>(uploads)], brought[i]->place) << "micro-batch " << i;
  }
}

/// The memory of a graph's step counts as that of any step, and others do not get it meanwhile.
TEST(GraphMemory, IsThatOfThePlan) {
  const Toy toy{3};
  const plan::Plan plan = plan_of(toy, kGraphCases[0]);
  const auto rank = rank_of(toy, plan, true);
  const auto peak_of = [&](int64_t step) {
    engine::Meter::reset_peak();
    rank->run(step);
    return engine::Meter::peak();
  };
  const int64_t direct = peak_of(1), captured = peak_of(2), repeated = peak_of(3);
  EXPECT_EQ(rank->engine().graphs()->repeated(), 1);
  EXPECT_EQ(captured, direct);
  EXPECT_EQ(repeated, direct);
}

TEST(GraphMemory, IsNotTakenFromOthers) {
  const Toy toy{3};
  const plan::Plan plan = plan_of(toy, kGraphCases[0]);
  const auto plain = rank_of(toy, plan, false), rank = rank_of(toy, plan, true);
  for (int64_t step = 1; step <= 3; ++step) plain->run(step), rank->run(step);
  ASSERT_EQ(rank->engine().graphs()->repeated(), 1);
  std::vector<at::Tensor> others;  // some of them where the step had temporaries
  for (int i = 0; i < 64; ++i)
    others.push_back(at::full({64}, 7.0, at::TensorOptions(at::kFloat).device(device::here())));
  const ToyStep expected = plain->step(4), found = rank->step(4);
  EXPECT_EQ(rank->engine().graphs()->repeated(), 1) << "the graph would have written to them";
  for (const at::Tensor& other : others) EXPECT_TRUE(at::equal(other.cpu(), at::full({64}, 7.0, at::kFloat)));
  for (const auto& [name, weight] : expected.weights) EXPECT_TRUE(at::equal(found.weights.at(name), weight)) << name;
  EXPECT_NE(news_of(*rank).find("while others have its memory"), std::string::npos);
  others.clear();
  rank->run(5);
  EXPECT_EQ(rank->engine().graphs()->repeated(), 2);
}

/// Of graphs that take more of the driver than the plan counts, the one that was not repeated for longest goes; one that alone
/// takes more stays.
TEST(GraphMemory, OfTheDriverIsBounded) {
  const Toy toy{3};
  const auto rank = rank_of(toy, plan_of(toy, kGraphCases[0]), true);
  int64_t number = 0;
  const auto step = [&](int64_t samples) {
    rank->samples = samples;
    rank->run(++number);
  };
  const auto& graphs = *rank->engine().graphs();
  (void)timeline().take_captured();
  step(1), step(1);
  const auto captured = timeline().take_captured();
  ASSERT_EQ(captured.size(), 1);
  const int64_t room = plan::kGraphsBytes / plan::kNodeBytes;  // for two graphs of this size, not for three
  timeline().count_nodes_as(room / (5 * std::ssize(captured[0]) / 2));
  rank->engine().graphs()->clear();
  for (const int64_t samples : {1, 1, 2, 2, 1}) step(samples);
  EXPECT_EQ(graphs.captured(), 3);
  EXPECT_EQ(graphs.repeated(), 1) << "two have room";
  for (const int64_t samples : {3, 3, 1, 3}) step(samples);  // that of two samples goes
  EXPECT_EQ(graphs.captured(), 4);
  EXPECT_EQ(graphs.repeated(), 3);
  step(2);  // its form is a new one
  EXPECT_EQ(graphs.captured(), 4);
  EXPECT_EQ(graphs.repeated(), 3);
  timeline().count_nodes_as(2 * room);
  rank->engine().graphs()->clear();
  for (const int64_t samples : {1, 1, 1, 2, 2, 2}) step(samples);
  EXPECT_EQ(graphs.captured(), 6);
  EXPECT_EQ(graphs.repeated(), 5) << "each alone is kept while it is the only one";
  timeline().count_nodes_as(1);
}

/// What forbids graphs is named, and such steps run without.
TEST(GraphAbsence, IsNamedAndStepsRunWithout) {
  const Toy toy{2};
  plan::UnitPlan on_host{.reduce_once = true, .parameters = Tier::host, .gradients = Tier::host, .states = Tier::host};
  plan::Plan gradients = toy.plan(on_host), updates = toy.plan(),
             disk = toy.plan({.activations = Policy::offload, .offload_to = Tier::nvme});
  on_host.update_on = Tier::host;
  const plan::Plan host_updates = toy.plan(on_host);
  updates.update = plan::Update::in_backward;
  const std::pair<plan::Plan, const char*> cases[] = {{gradients, "squares of gradients"},
                                                      {host_updates, "an update runs on the host"},
                                                      {updates, "plan.update = in_backward"},
                                                      {disk, "offloaded to disk"}};
  for (const auto& [plan, words] : cases) {
    const auto rank = rank_of(toy, plan, true);
    for (int64_t step = 1; step <= 3; ++step) rank->run(step);
    EXPECT_EQ(rank->engine().graphs()->captured(), 0) << words;
    EXPECT_NE(news_of(*rank).find(words), std::string::npos) << words;
  }
}

/// Streams, events and the host as CUDA has them in a capture.
TEST(Capture, RefusesWhatCudaRefuses) {
  const device::Backend& table = simulated_device();
  const auto refused = [&](const auto& act) {
    std::string error;
    table.begin_graph();
    try {
      act();
      table.free_graph(table.end_graph());
    } catch (const c10::Error& found) {
      error = found.what_without_backtrace();
      try {
        table.end_graph();
      } catch (const c10::Error&) {
      }
    }
    return error;
  };
  device::Mark before;
  before.record();
  const at::Tensor x = at::ones({4}, at::TensorOptions(at::kFloat).device(device::here()));
  EXPECT_EQ(refused([&] { x.add_(1); }), "");
  EXPECT_NE(refused([&] { before.order(); }).find("Isolation"), std::string::npos);
  EXPECT_NE(refused([&] { x.cpu(); }).find("Unsupported"), std::string::npos);
  device::Mark within;
  EXPECT_NE(refused([&] { within.record(), within.await(); }).find("CapturedEvent"), std::string::npos);
  const device::Stream other = table.make_stream(device::Priority::normal);
  EXPECT_NE(refused([&] {
              within.record();
              table.set_stream(other);
              within.order();
              x.add_(1);
              table.set_stream(nullptr);
            }).find("Unjoined"),
            std::string::npos);
  table.wait();
  table.free_stream(other);
}

TEST(GraphsChoice, IsOnWhereLaunchesTakeLongerThanTheWork) {
  const Toy toy{30};
  const plan::Plan plan = toy.plan();
  constexpr double slow = 1, fast = 1e-3;  // seconds that a step computes
  const auto choose = [&](std::optional<bool> asked, double step, const std::string& forbidden = "") {
    return plan::choose_graphs(asked, toy.spec(), plan, step, forbidden);
  };
  EXPECT_TRUE(choose(std::nullopt, fast).on);
  EXPECT_GT(choose(std::nullopt, fast).gain, 0);
  EXPECT_NE(choose(std::nullopt, fast).why.find("a graph saves up to"), std::string::npos);
  constexpr int64_t nodes = 2 * (32 * 90 + 2 * 12);
  static_assert(plan::kMostGraphs * nodes * plan::kNodeBytes > plan::kGraphsBytes);
  EXPECT_EQ(choose(true, fast).bytes, plan::kGraphsBytes);
  const Toy small{1};
  EXPECT_EQ(plan::choose_graphs(true, small.spec(), small.plan(), fast, "").bytes,
            plan::kMostGraphs * plan::kNodeBytes * 2 * (3 * 90 + 2 * 12));
  EXPECT_EQ(choose(false, fast).bytes, 0);
  EXPECT_FALSE(choose(std::nullopt, slow).on);
  EXPECT_NE(choose(std::nullopt, slow).why.find("nothing to gain"), std::string::npos);
  EXPECT_TRUE(choose(true, slow).on);
  EXPECT_FALSE(choose(false, fast).on);
  EXPECT_FALSE(choose(true, fast, "dropout").on);
  EXPECT_EQ(choose(true, fast, "dropout").why, "dropout");
}

}  // namespace
}  // namespace tessera::testing
