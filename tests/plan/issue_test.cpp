// One order of issue: the lists of all ranks of a mesh come to their end on devices that begin messages in the order in which
// the host gives them; ranks that issue in different orders do not.
#include "tessera/plan/rules/issue.h"

#include <gtest/gtest.h>

#include "plan/toy.h"

namespace tessera::plan {
namespace {

using toy::draw;
using toy::Random;

/// Messages inside the units over cp, sp and tp.
ModelSpec sequential(ModelSpec spec) {
  for (UnitSpec& unit : spec.units) {
    const auto add = [](std::vector<Traffic>& all, bool back) {
      all.push_back({"sequence", {Axis::sp}, "all_to_all", Rows::share, 64});
      all.push_back({"ring", {Axis::cp}, "ring", Rows::share, 64});
      all.push_back({"tensor", {Axis::tp}, back ? "all_gather" : "reduce_scatter", Rows::share, 64});
    };
    add(unit.cost.traffic, false), add(unit.cost.backward_traffic, true);
  }
  return spec;
}

struct Case {
  ModelSpec spec;
  Plan plan;
  explicit Case(uint64_t seed) {
    Random random(seed);
    spec = sequential(toy::conditioned(toy::random_model(random)));
    plan = seed % 2 ? toy::random_pipeline(random, spec) : toy::random_plan(random, spec, 2);
    for (const Axis axis : {Axis::cp, Axis::sp, Axis::tp})
      if (plan.mesh.world() < 8) plan.mesh[axis] = draw(random, 1, 2);
  }
  /// The schedules of one phase of all ranks.
  std::vector<std::vector<Schedule>> phases() const {
    std::vector<std::vector<Schedule>> all(5);
    for (int rank = 0; rank < plan.mesh.world(); ++rank) {
      RunSchedules of = compile_all(spec, plan, rank, 2);
      for (auto&& [phase, schedule] : {std::pair(0, &of.train), {1, &of.first}, {2, &of.updates}, {3, &of.sample}})
        all[static_cast<size_t>(phase)].push_back(std::move(*schedule));
    }
    all.pop_back();
    return all;
  }
};

std::vector<IssuedList> issued(const std::vector<Schedule>& ranks) {
  std::vector<IssuedList> lists;
  for (const Schedule& schedule : ranks) lists.push_back({&schedule, issue_order(schedule)});
  return lists;
}

TEST(IssueOrder, RandomPlansOnAllAxesComeToTheirEnd) {
  int messages = 0, meshes[6] = {};
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Case c(seed);
    for (const Axis axis : kAllAxes) meshes[static_cast<int>(axis)] += c.plan.mesh[axis] > 1;
    for (const std::vector<Schedule>& ranks : c.phases()) {
      for (const IssuedList& list : issued(ranks)) messages += static_cast<int>(list.order.size());
      const std::string stuck = issue_deadlock(issued(ranks));
      ASSERT_TRUE(stuck.empty()) << "seed " << seed << ", " << ranks[0].phase << " on " << c.plan.mesh.to_string()
                                 << "\n"
                                 << stuck;
    }
  }
  EXPECT_GT(messages, 10000);
  for (const int used : meshes) EXPECT_GT(used, 30) << "an axis is hardly tried";
}

/// The groups that a rank's messages go to, in order, of those that `other` is a member of.
std::vector<std::string> shared_groups(const Schedule& schedule, int other) {
  std::vector<std::string> groups;
  for (const int i : issue_order(schedule))
    for (const Comm& comm : schedule.list[i].comm) {
      const std::string ranks = "," + comm.group.text().substr(comm.group.text().find('[') + 1);
      const std::string one = "," + std::to_string(other);
      const bool member = ranks.find(one + ",") != ranks.npos || ranks.find(one + "]") != ranks.npos;
      if (member && comm.kind != "send" && comm.kind != "recv") groups.push_back(comm.group);
    }
  return groups;
}

TEST(IssueOrder, TwoRanksHaveTheSameOrderOfWhatTheyShare) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Case c(seed);
    for (const std::vector<Schedule>& ranks : c.phases())
      for (size_t one = 0; one < ranks.size(); ++one)
        for (size_t other = 0; other < one; ++other)
          ASSERT_EQ(shared_groups(ranks[one], static_cast<int>(other)),
                    shared_groups(ranks[other], static_cast<int>(one)))
              << "seed " << seed << ", ranks " << other << " and " << one;
  }
}

/// On one rank two messages of different groups change places.
TEST(IssueOrder, RanksThatIssueInDifferentOrdersAreFound) {
  int tried = 0, found = 0;
  for (uint64_t seed = 0; seed < 60; seed += 2) {
    const Case c(seed);
    for (const std::vector<Schedule>& ranks : c.phases()) {
      auto lists = issued(ranks);
      std::vector<int>& order = lists[0].order;
      for (size_t k = 0; k + 1 < order.size(); ++k) {
        const Schedule& schedule = ranks[0];
        const Instruction &a = schedule.list[order[k]], &b = schedule.list[order[k + 1]];
        if (a.group == b.group || a.lane == b.lane) continue;
        std::swap(order[k], order[k + 1]);
        const std::string stuck = issue_deadlock(lists);
        std::swap(order[k], order[k + 1]);
        ++tried;
        if (stuck.empty()) continue;
        ++found;
        EXPECT_NE(stuck.find("rank 0 "), std::string::npos) << stuck;
      }
    }
  }
  EXPECT_GT(tried, 50);
  EXPECT_GT(found, tried / 2) << tried;
}

/// Two communicators over two ranks, as in NVIDIA/nccl#195.
TEST(IssueOrder, TwoCommunicatorsInTwoOrdersNameWhatEachRankIsIn) {
  Schedule schedule;
  for (const auto& [op, lane, group] : {std::tuple(Op::gather, Lane::gather, "gather:dp_shard[0,1]"),
                                        {Op::reduce, Lane::reduce, "reduce:dp_shard[0,1]"}}) {
    Instruction in;
    in.op = op, in.lane = lane, in.name = "blocks.0", in.group = group;
    in.comm = {{"dp_shard", "all_gather", 4, group}};
    schedule.list.push_back(in);
  }
  EXPECT_EQ(issue_deadlock({{&schedule, {0, 1}}, {&schedule, {0, 1}}}), "");
  EXPECT_EQ(issue_deadlock({{&schedule, {0, 1}}, {&schedule, {1, 0}}}),
            "rank 0 is in gather blocks.0 (i 0) on gather:dp_shard[0,1]\n"
            "rank 1 is in reduce blocks.0 (i 1) on reduce:dp_shard[0,1]\n");
}

}  // namespace
}  // namespace tessera::plan
