#include "tessera/plan/plan_file.h"
#include "tessera/planning/plan_request.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"
#include "tessera/models/registry.h"

namespace tessera::planning {
namespace {

struct Priced : ::testing::TestWithParam<const char*> {
  const std::unique_ptr<net::Denoiser> model =
      models::make_denoiser({.config_text =
                                 R"({"dim": 64, "num_heads": 2, "num_layers": 4,
      "ffn_dim": 192, "in_dim": 16, "out_dim": 16, "freq_dim": 32, "text_dim": 48, "text_len": 8})"});
  PlanRequest request() const {
    PlanRequest request;
    request.model = model.get();
    request.latent = {16, 3, 18, 16};  // 216 tokens: 72 a rank of three
    request.mesh = Mesh::parse(GetParam());
    request.planner.global_batch = 7, request.planner.micro_batch = 1;
    request.planner.recompute_every = 2;
    return request;
  }
};

TEST_P(Priced, EachRankCompilesWhatTheRankThatPlannedHasPriced) {
  const Planned found = make_plan_as_is(request());
  const std::vector<PricedStep> priced = priced_steps(found);
  ASSERT_EQ(static_cast<int>(priced.size()), found.plan().mesh.world());
  for (int rank = 0; rank < found.plan().mesh.world(); ++rank) {
    const Planned taken = take_plan(request(), to_toml(found.plan(), found.unit_names()), rank);
    EXPECT_EQ(taken.plan(), found.plan());
    EXPECT_EQ(taken.choice.memory.peak, found.memory(rank).peak);
    EXPECT_NO_THROW(require_priced(taken.schedules(rank).train, priced[static_cast<size_t>(rank)], rank)) << rank;
  }
}

TEST_P(Priced, AnotherPlanThanThePricedOneIsRefused) {
  const Planned found = make_plan_as_is(request());
  const PricedStep priced = priced_steps(found)[0];
  ASSERT_TRUE(priced.exact);
  plan::Plan other = found.plan();
  other.units[1].activations = plan::Policy::keep;  // blocks.0, which recomputes
  EXPECT_THROW(require_priced(plan::compile_train(found.spec, other, 0), priced, 0), InternalError);
  plan::Schedule hasty = found.schedules(0).train;
  hasty.list.back().wait.clear();
  hasty.list.back().wait.push_back(0);
  EXPECT_THROW(require_priced(hasty, priced, 0), InternalError);
}

TEST_P(Priced, ARankWithLessMemoryThanThePlanNeedsSaysSo) {
  const Planned found = make_plan_as_is(request());
  PlanRequest less = request();
  less.planner.budget = found.memory(0).peak / 2;
  try {
    take_plan(less, to_toml(found.plan(), found.unit_names()), 0);
    FAIL() << "taken";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::no_fit);
    EXPECT_NE(std::string(error.what()).find("the plan of rank 0 takes"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, Priced,
                         ::testing::Values("dp_shard=1", "dp_replicate=2,dp_shard=2", "pp=2,dp_shard=2", "cp=2,tp=2",
                                           "dp_shard=2,sp=2"));

}  // namespace
}  // namespace tessera::planning
