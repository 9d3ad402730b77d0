// The rule that says which kernel attention takes, its line, and what the kernels cost.
#include "tessera/plan/attention.h"
#include "tessera/plan/plan_file.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"
#include "tessera/plan/simulate/cost.h"
#include "toy.h"

namespace tessera::plan {
namespace {

using enum AttentionKernel;

TEST(AttentionRule, AsksFewKeysAndWideHeadsOfFlashAndWhatNeitherServesOfProducts) {
  const auto taken = [](Attention asked, const AttentionCall& call) { return attention_kernel(asked, call).kernel; };
  for (const int64_t head : {8, 64, 96, 128}) {
    EXPECT_EQ(taken(Attention::cudnn, {.head = head, .keys = 32'760}), cudnn) << head;
    EXPECT_EQ(taken(Attention::cudnn, {.head = head, .keys = kCudnnKeys}), cudnn) << head;
    EXPECT_EQ(taken(Attention::cudnn, {.head = head, .keys = kCudnnKeys - 1}), flash) << head;
    EXPECT_EQ(taken(Attention::flash, {.head = head, .keys = 32'760}), flash) << head;
    EXPECT_EQ(taken(Attention::cudnn, {.half = false, .head = head, .keys = 32'760}), products) << head;
  }
  for (const int64_t head : {136, 192, 256}) EXPECT_EQ(taken(Attention::cudnn, {.head = head, .keys = 4096}), flash);
  for (const int64_t head : {4, 100, 264})
    for (const Attention asked : {Attention::flash, Attention::cudnn})
      EXPECT_EQ(taken(asked, {.head = head, .keys = 4096}), products) << head;
}

TEST(AttentionRule, GivesAReasonWhereverItTakesAnotherThanItWasAskedFor) {
  for (const Attention asked : {Attention::flash, Attention::cudnn})
    for (const bool half : {false, true})
      for (const int64_t head : {12, 128, 136, 264})
        for (const int64_t keys : {1, 512, 1024}) {
          const AttentionTaken found = attention_kernel(asked, {.half = half, .head = head, .keys = keys});
          const bool as_asked = found.kernel == (asked == Attention::cudnn ? cudnn : flash);
          EXPECT_EQ(found.why.empty(), as_asked) << head << ", " << keys << ": " << found.why;
        }
}

TEST(AttentionRule, ItsLineNamesKernelsSitesAndReasons) {
  AttentionUse use;
  EXPECT_EQ(use.text(), "");
  use.sites[{flash, "fewer than 1024 keys"}] = {"cross_attn_img", "cross_attn"};
  use.sites[{cudnn}] = {"self_attn", ""};  // "": of a backward
  EXPECT_EQ(use.text(), "cuDNN at self_attn; flash at cross_attn, cross_attn_img (fewer than 1024 keys)");
  EXPECT_TRUE(use.takes("self_attn", cudnn));
  EXPECT_FALSE(use.takes("self_attn", flash));
  AttentionUse backward;
  backward.sites[{products, "heads of 12"}] = {""};
  use.add(backward);
  EXPECT_TRUE(use.text().ends_with("; products at a backward (heads of 12)")) << "it is told where no forward took it";
}

TEST(AttentionRule, PlansNameTheKernelByItsKeyAndKnowNoOther) {
  EXPECT_EQ(attention_of(name(Attention::cudnn), "plan.attention"), Attention::cudnn);
  EXPECT_THROW(attention_of("cudn", "plan.attention"), UserError);
  const Plan plan = plan_of_toml("attention = \"cudnn\"", "plan.toml", {"stem"});
  EXPECT_EQ(plan.attention, Attention::cudnn);
  EXPECT_NE(to_toml(plan, {"stem"}).find("attention = \"cudnn\""), std::string::npos);
  EXPECT_EQ(to_toml(plan_of_toml("", "plan.toml", {"stem"}), {"stem"}).find("attention ="), std::string::npos);
}

/// A block whose attention is of 8 FLOPs; flash does 4 a second and 5 in its backward, cuDNN twice as many.
TEST(AttentionCost, IsThatOfTheKernelThatTheSiteTakes) {
  ModelSpec model;
  model.units = {{.name = "block", .kind = "block", .params = {}, .cost = {}}};
  Plan plan;
  plan.units.resize(1);
  Machine machine;
  machine.dtype = "bf16";
  machine.profile.device.gemm = {{"bf16", {1, 0}}};
  machine.profile.device.stream = {1, 0};
  machine.profile.device.attention = {{"bf16", {4, 0}}, {"bf16_cudnn", {8, 0}}};
  machine.profile.device.attention_backward = {{"bf16", {5, 0}}, {"bf16_cudnn", {10, 0}}};
  machine.work["block"] = {.attention = {{"self_attn", 8}}, .backward = true};
  const auto seconds = [&](const AttentionUse& use) {
    model.units[0].cost.attention = use;
    const CostModel cost(model, plan, machine);
    return std::pair(cost.forward_seconds(0, false), cost.backward_seconds(0));
  };
  EXPECT_EQ(seconds({{{{cudnn}, {"self_attn"}}}}), std::pair(1.0, 2.0));
  EXPECT_EQ(seconds({{{{flash, "run.deterministic"}, {"self_attn"}}}}), std::pair(2.0, 4.0));
  EXPECT_EQ(seconds({}), std::pair(1.0, 2.0)) << "of published runs nothing says which: the faster";
  machine.profile.device.attention.erase("bf16_cudnn"), machine.profile.device.attention_backward.erase("bf16_cudnn");
  EXPECT_EQ(seconds({{{{cudnn}, {"self_attn"}}}}), std::pair(2.0, 4.0)) << "no rate of it is known";
}

}  // namespace
}  // namespace tessera::plan
