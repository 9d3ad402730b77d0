// One order of issue: the lists of all ranks of a mesh come to their end on devices that begin messages in the order in which
// the host gives them; ranks that issue in different orders do not.
#include "tessera/plan/compile/issue.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>

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

/// Plans whose ranks have samples of two passes, of which the last micro-batch of each is for ranks of its own.
void each_pair(
    const std::function<void(const Case&, const std::vector<Schedule>&, const std::vector<Schedule>&)>& act) {
  for (uint64_t seed = 0; seed < 600; seed += 2) {
    Case c(seed);
    Plan& plan = c.plan;
    const int ranks = plan.mesh.dp_size();
    if (plan.mesh[Axis::pp] > 1 || ranks < 2) continue;
    plan.update = Update::end;
    std::vector<Schedule> lists[2];
    for (const bool first : {true, false}) {
      Plan pass = plan;
      const auto even = static_cast<int64_t>(seed / 2 % 3) * plan.micro_batch * first;  // before the last micro-batch
      pass.shares.assign(static_cast<size_t>(ranks), even);
      for (int r = 0; r < ranks; ++r) pass.shares[static_cast<size_t>(r)] += (r < ranks / 2) == first;
      for (int rank = 0; rank < plan.mesh.world(); ++rank)
        lists[first ? 0 : 1].push_back(compile_train(c.spec, pass, rank, /*pending=*/false));
    }
    act(c, lists[0], lists[1]);
  }
}

TEST(SideBySide, ListsComeToTheirEndWithOneOrderOfWhatRanksShare) {
  int cases = 0;
  each_pair([&](const Case& c, const std::vector<Schedule>& one, const std::vector<Schedule>& other) {
    std::vector<Schedule> joined;
    for (size_t rank = 0; rank < one.size(); ++rank)
      joined.push_back(joined_side_by_side({&one[rank], &other[rank]}, c.plan.prefetch));
    const std::string stuck = issue_deadlock(issued(joined));
    ASSERT_TRUE(stuck.empty()) << c.plan.mesh.to_string() << "\n" << stuck;
    for (size_t a = 0; a < joined.size(); ++a)
      for (size_t b = 0; b < a; ++b)
        ASSERT_EQ(shared_groups(joined[a], static_cast<int>(b)), shared_groups(joined[b], static_cast<int>(a)))
            << c.plan.mesh.to_string() << ", ranks " << b << " and " << a;
    ++cases;
  });
  EXPECT_GT(cases, 100);
}

/// Each list is whole and in its own order, waits are for what is before, and on no rank are activations of both there.
TEST(SideBySide, EachListIsInItsOrderAndTheOtherComputesBetween) {
  int turns = 0, early = 0, late = 0;  // gathers, before and behind what the other computes of the same unit
  each_pair([&](const Case& c, const std::vector<Schedule>& one, const std::vector<Schedule>& other) {
    for (size_t rank = 0; rank < one.size(); ++rank) {
      const std::vector<const Schedule*> lists = {&one[rank], &other[rank]};
      int next[2] = {0, 0}, open[2] = {0, 0};
      std::set<std::pair<int, int>> returns[2];  // units that have a backward, and micro-batches
      for (const size_t l : {0U, 1U})
        for (const Instruction& in : lists[l]->list)
          if (in.op == Op::backward) returns[l].emplace(in.unit, in.micro);
      size_t before = 0;
      std::set<std::pair<size_t, int>> gathered, forwards;  // in the last micro-batch, by list and unit
      for (const auto& [l, i] : issued_side_by_side(lists, c.plan.prefetch)) {
        ASSERT_EQ(i, next[l]++);
        const Instruction& in = lists[l]->list[static_cast<size_t>(i)];
        if (in.op == Op::forward && returns[l].contains({in.unit, in.micro})) ++open[l];
        if (in.op == Op::backward) --open[l];
        EXPECT_FALSE(open[0] > 0 && open[1] > 0) << "rank " << rank;
        if (in.micro + 1 == lists[l]->micros && in.op == Op::forward) forwards.emplace(l, in.unit);
        // Of several micro-batches the last may find its units gathered, until its backward.
        if (lists[l]->micros == 1 && in.op == Op::gather && gathered.emplace(l, in.unit).second)
          (forwards.contains({1 - l, in.unit}) ? late : early) += 1;
        turns += std::exchange(before, l) != l;
      }
      for (const size_t l : {0U, 1U}) ASSERT_EQ(next[l], std::ssize(lists[l]->list));
      const Schedule joined = joined_side_by_side(lists, c.plan.prefetch);
      for (size_t i = 0; i < joined.list.size(); ++i)
        for (const int w : joined.list[i].wait) ASSERT_LT(w, static_cast<int>(i));
      const auto& order = issued_side_by_side({&one[rank]}, c.plan.prefetch);
      for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i].index, static_cast<int>(i)) << "of one list its own";
    }
  });
  EXPECT_GT(turns, 5000);
  EXPECT_GT(early, 3000);
  EXPECT_EQ(late, 0);
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
