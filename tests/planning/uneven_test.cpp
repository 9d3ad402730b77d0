// Where a batch does not divide, ranks run micro-batches of other sizes: each is planned for its own, as a batch that divides
// into them is.
#include <gtest/gtest.h>

#include "tessera/models/registry.h"
#include "tessera/plan/shares.h"
#include "tessera/planning/planning.h"

namespace tessera::planning {
namespace {

class UnevenShares : public ::testing::Test {
 protected:
  PlanRequest request(const std::string& mesh, int64_t batch, int64_t micro_batch) const {
    PlanRequest r;
    r.model = model_.get();
    r.model_name = "small";
    r.latent = {16, 2, 8, 8};
    r.mesh = Mesh::parse(mesh);
    r.planner.global_batch = batch, r.planner.micro_batch = micro_batch;
    r.machine.profile = plan::find_profile("h200");
    return r;
  }
  /// `plan` with the batch of `request`.
  static Planned planned(PlanRequest request, plan::Plan plan) {
    plan.mesh = request.mesh;
    plan.global_batch = request.planner.global_batch, plan.micro_batch = request.planner.micro_batch;
    request.by_hand = std::move(plan);
    return make_plan_as_is(request);
  }
  /// Seconds that the rank computes forwards and backwards of the micro-batch.
  static double computes(const Planned& planned, int rank, int micro) {
    double seconds = 0;
    const plan::CostModel cost(planned.spec, planned.plan(), planned.machine);
    for (const plan::Instruction& in : planned.schedules(rank).train.list)
      if (in.lane == plan::Lane::compute && in.micro == micro && plan::carries_tokens(in.op))
        for (const plan::Phase& phase : cost.phases(in, rank))
          if (phase.resource == plan::Resource::compute) seconds += phase.seconds;
    return seconds;
  }
  static void expect_same_rank(const Planned& a, const Planned& b, int rank, const std::string& where) {
    EXPECT_EQ(a.memory(rank).peak, b.memory(rank).peak) << where;
    EXPECT_EQ(a.memory(rank).host.total(), b.memory(rank).host.total()) << where;
    EXPECT_DOUBLE_EQ(computes(a, rank, 0), computes(b, rank, 0)) << where;
  }

  std::unique_ptr<net::Denoiser> model_ = models::make_denoiser({.config_text = R"({"dim": 64, "num_heads": 2,
      "num_layers": 3, "ffn_dim": 192, "in_dim": 16, "out_dim": 16, "freq_dim": 32, "text_dim": 48, "text_len": 8})"});
};

TEST_F(UnevenShares, EachRankIsPlannedAsOneOfABatchOfItsOwnShare) {
  using plan::Policy;
  for (const Policy& policy : {Policy::keep, Policy::recompute, Policy::offload}) {
    const PlanRequest uneven = request("dp_shard=2", 5, 3);
    plan::Plan plan = make_plan_as_is(uneven).plan();
    for (plan::UnitPlan& unit : plan.units) unit.activations = policy;
    const Planned five = planned(uneven, plan), four = planned(request("dp_shard=2", 4, 2), plan),
                  six = planned(request("dp_shard=2", 6, 3), plan);
    const std::string where(plan::name(policy));
    expect_same_rank(five, four, 0, where + ", the rank of two samples");
    expect_same_rank(five, six, 1, where + ", the rank of three samples");
    EXPECT_LT(five.memory(0).peak, five.memory(1).peak) << where;
    EXPECT_EQ(five.choice.memory.peak, five.memory(1).peak) << where;
    EXPECT_GT(five.prediction.step.total, four.prediction.step.total) << where;
  }
}

TEST_F(UnevenShares, AShortMicroBatchAtTheEndTakesItsOwnTime) {
  const PlanRequest uneven = request("single", 5, 2);
  const plan::Plan plan = make_plan_as_is(uneven).plan();
  const Planned five = planned(uneven, plan), one = planned(request("single", 1, 1), plan);
  EXPECT_DOUBLE_EQ(computes(five, 0, 2), computes(one, 0, 0));
  EXPECT_LT(computes(five, 0, 2), computes(five, 0, 1));
  EXPECT_DOUBLE_EQ(computes(five, 0, 1), computes(five, 0, 0));
}

TEST_F(UnevenShares, MessagesBetweenStagesHaveTheBytesOfTheirMicroBatch) {
  const PlanRequest uneven = request("pp=2", 5, 2);
  const Planned found = planned(uneven, make_plan_as_is(uneven).plan());
  int64_t sent[3] = {};
  for (const plan::Instruction& in : found.schedules(0).train.list)
    if (in.op == plan::Op::send) sent[in.micro] = in.bytes;
  EXPECT_EQ(sent[0], sent[1]);
  EXPECT_LT(sent[2], sent[1]);
  EXPECT_GT(sent[2], 0);
}

TEST_F(UnevenShares, StepsOfOtherBatchesDivideThemOtherwiseSoEveryMicroBatchCountsAsTheLargest) {
  PlanRequest r = request("dp_shard=2", 5, 3);
  EXPECT_EQ(make_plan_as_is(r).spec.smaller.size(), 1u);
  r.others = {{.latent = {16, 1, 8, 8}, .samples = 6}};
  EXPECT_TRUE(make_plan_as_is(r).spec.smaller.empty());
}

TEST(SmallerMicroBatches, AreThoseThatEndAShare) {
  using Counts = std::vector<int64_t>;
  const auto counts = [](int ranks, int64_t batch, int64_t micro, std::vector<int64_t> shares = {}) {
    plan::Plan p;
    p.mesh[Axis::dp_shard] = ranks, p.global_batch = batch, p.micro_batch = micro, p.shares = std::move(shares);
    return plan::smaller_micro_batches(p);
  };
  EXPECT_EQ(counts(2, 8, 2), Counts{});
  EXPECT_EQ(counts(2, 5, 3), Counts{2});
  EXPECT_EQ(counts(4, 6, 2), Counts{1});
  EXPECT_EQ(counts(4, 3, 1), Counts{});
  EXPECT_EQ(counts(2, 13, 4), (Counts{2, 3}));
  EXPECT_EQ(counts(3, 14, 4, {4, 7, 3}), Counts{3});
}

}  // namespace
}  // namespace tessera::planning
