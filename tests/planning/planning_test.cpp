#include "tessera/planning/planning.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/models/common/adapted.h"
#include "tessera/models/registry.h"
#include "tessera/plan/schedule_json.h"
#include "tessera/planning/plan_advice.h"
#include "tessera/planning/plan_page.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/plan_view.h"

namespace tessera::planning {
namespace {

constexpr const char* kConfig =
    R"({"dim": 64, "num_heads": 2, "num_layers": 3, "ffn_dim": 192, "in_dim": 16, "out_dim": 16, "freq_dim": 32,
        "text_dim": 48, "text_len": 8})";

class Planning : public ::testing::Test {
 protected:
  PlanRequest request(const std::string& mesh, int64_t batch = 4) {
    PlanRequest r;
    r.model = model_.get();
    r.model_name = "small";
    r.latent = {16, 4, 16, 16};
    r.mesh = Mesh::parse(mesh);
    r.planner.global_batch = batch;
    r.planner.micro_batch = batch / r.mesh.dp_size();
    r.run.steps = 10;
    return r;
  }
  /// Halfway between the least that any plan needs and what the fastest takes.
  static int64_t tight(const PlanRequest& request) {
    PlanRequest tiny = request;
    tiny.planner.budget = 1;
    const int64_t least = make_plan_as_is(tiny).choice.memory.peak;
    return (least + make_plan_as_is(request).choice.memory.peak) / 2;
  }

  std::unique_ptr<net::Denoiser> model_ = models::make_denoiser({.config_text = kConfig});
};

TEST_F(Planning, AnFp32PlanOnAMachineThatIsMuchFasterInBf16SaysBothTimes) {
  PlanRequest r = request("single");
  r.machine.profile = plan::find_profile("1xh200");
  const Planned slow = make_plan(r);
  EXPECT_NE(slow.choice.warning.find("with plan.compute_dtype = \"bf16\" this plan takes "), std::string::npos)
      << slow.choice.warning;
  r.machine.dtype = "bf16";
  EXPECT_EQ(make_plan(r).choice.warning.find("bf16"), std::string::npos);
  r.machine.dtype = "fp32";
  r.machine.profile.device.gemm["fp32"] = r.machine.profile.device.gemm.at("bf16");
  EXPECT_EQ(make_plan(r).choice.warning.find("bf16"), std::string::npos);
}

/// Requests that share measurements differ in what ranks, samples, shape and dtype they are of; data parallelism measures nothing
/// anew.
TEST_F(Planning, WhatCopiesOfARequestShareIsWhatEachWouldMeasure) {
  const PlanRequest first = request("single");
  const auto planned = [](PlanRequest r, bool afresh) {
    if (afresh) r.measurements = no_measurements();
    return plan_json(make_plan_as_is(r));
  };
  for (const char* mesh : {"single", "cp=2", "dp_shard=2,cp=2", "dp_replicate=2,dp_shard=2", "tp=2", "sp=2", "pp=2"})
    for (const DType compute : {DType::f32, DType::bf16})
      for (const int64_t frames : {4, 2}) {
        PlanRequest r = first;
        r.mesh = Mesh::parse(mesh);
        r.planner.micro_batch = r.planner.global_batch / r.mesh.dp_size();
        r.planner.compute = compute, r.latent[1] = frames;
        EXPECT_EQ(planned(r, false), planned(r, true)) << mesh << ", " << frames << " frames";
      }
}

/// A bucket of fewer tokens that is wider than the largest one has larger halos where ranks share its tokens.
TEST(PlanningOfBuckets, NoBucketTakesMoreThanIsPlannedForAllOfThem) {
  const auto model = models::make_denoiser({.family = "sana", .config_text = R"({"_class_name":
      "SanaVideoTransformer3DModel", "num_attention_heads": 4, "attention_head_dim": 12, "num_cross_attention_heads": 4,
      "num_layers": 2, "in_channels": 4, "caption_channels": 8, "caption_length": 4, "patch_size": [1, 1, 1]})"});
  std::mt19937_64 random(5);
  const auto draw = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  int more = 0;  // how often the one with most tokens would not have been enough
  for (const std::string mesh : {"sp=2", "cp=3", "cp=2,tp=2", "sp=4", "pp=2,cp=2"}) {
    for (int drawn = 0; drawn < 2; ++drawn) {
      PlanRequest request;
      request.model = model.get();
      request.model_name = "video";
      request.mesh = Mesh::parse(mesh);
      request.planner.global_batch = request.planner.micro_batch = 2;
      std::vector<std::array<int64_t, 4>> latents;
      const int64_t tokens = draw(120, 240);  // at most, as buckets of one area have
      for (int i = 0; i < 3; ++i) {
        const int64_t frames = draw(1, 2), height = draw(2, 12);
        latents.push_back({4, frames, height, tokens / (frames * height)});
        const auto& b = latents.back();
        if (b[1] * b[2] * b[3] > request.latent[1] * request.latent[2] * request.latent[3]) request.latent = b;
      }
      const Planned narrow = make_plan_as_is(request);
      request.wider = wider_than(request.latent, latents);
      request.by_hand = narrow.plan();
      const Planned planned = make_plan_as_is(request);
      for (const auto& latent : latents) {
        PlanRequest alone = request;
        alone.latent = latent, alone.wider = {};
        const Planned one = make_plan_as_is(alone);
        for (int rank = 0; rank < request.mesh.world(); ++rank) {
          EXPECT_LE(one.memory(rank).peak, planned.memory(rank).peak)
              << mesh << ", rank " << rank << ", " << latent[1] << " x " << latent[2] << " x " << latent[3];
          more += one.memory(rank).peak > narrow.memory(rank).peak;
        }
      }
    }
  }
  EXPECT_GT(more, 0);
}

TEST_F(Planning, JsonHasTheFieldsOfTheContractAndSharesAddUp) {
  const Planned planned = make_plan(request("dp_shard=2"));
  const auto json = nlohmann::json::parse(plan_json(planned));
  for (const char* key :
       {"fits", "mesh", "device", "host", "disk", "step_seconds", "group_hashes", "candidates", "advice"})
    EXPECT_TRUE(json.contains(key)) << key;
  const auto& step = json["step_seconds"];
  const double total = step["total"];
  EXPECT_GT(total, 0);
  EXPECT_NEAR(step["compute"].get<double>() + step["exposed_comm"].get<double>() + step["exposed_copy"].get<double>() +
                  step["optimizer"].get<double>() + step["encoders"].get<double>(),
              total, 1e-9 * total + 1e-12);
  int64_t parts = 0;
  for (const auto& [part, bytes] : json["device"]["by_part"].items()) parts += bytes.get<int64_t>();
  EXPECT_EQ(parts, json["device"]["peak_bytes"].get<int64_t>());
  ASSERT_FALSE(json["candidates"].empty());
  for (const char* key : {"plan", "fits", "seconds", "why"}) EXPECT_TRUE(json["candidates"][0].contains(key)) << key;
}

TEST_F(Planning, TheWinnerIsTheFastestThatFits) {
  PlanRequest r = request("dp_shard=2");
  r.planner.budget = tight(r);
  const Planned planned = make_plan(r);
  ASSERT_TRUE(planned.choice.fits);
  for (const auto& c : planned.choice.candidates) EXPECT_GT(candidate_seconds(planned, c), 0) << c.plan.summary();
  for (const auto& c : planned.choice.candidates)
    if (c.fits) EXPECT_GE(c.seconds, planned.choice.seconds * (1 - 1e-9)) << c.plan.summary();
}

/// What encoders take for the samples of a step does not depend on its micro-batches.
TEST_F(Planning, CandidatesOfOtherMicroBatchesCountAllThatEncodersTakeForAStep) {
  for (const bool on_host : {true, false}) {
    PlanRequest r = request("single", 8);
    r.machine.profile = plan::find_profile("4090");
    r.any_micro_batch = true;
    constexpr double kEncoders = 1000;
    (on_host ? r.machine.beside.host : r.machine.beside.between) = kEncoders;
    const Planned planned = make_plan(r);
    std::set<int64_t> sizes;
    for (const plan::Candidate& c : planned.choice.candidates) {
      sizes.insert(c.plan.micro_batch);
      EXPECT_NEAR(candidate_seconds(planned, c), kEncoders, 1) << c.plan.summary();
      plan::Candidate unknown = c;
      unknown.seconds = 0;  // of one that the search left before its time was known
      EXPECT_NEAR(candidate_seconds(planned, unknown), kEncoders, 1) << c.plan.summary();
    }
    EXPECT_GE(sizes.size(), 2u);
  }
}

TEST_F(Planning, WhatDoesNotFitIsAnsweredWithPlansThatDo) {
  PlanRequest r = request("dp_shard=1");
  PlanRequest smaller = r;
  smaller.planner.micro_batch = 1, smaller.planner.budget = 1;
  r.planner.budget = make_plan_as_is(smaller).choice.memory.peak + (1 << 20);
  const Planned planned = make_plan(r);
  ASSERT_FALSE(planned.choice.fits);
  EXPECT_EQ(planned.choice.advice.find("infeasible: every plan with these settings needs at least "), 0u)
      << planned.choice.advice;
  EXPECT_NE(planned.choice.advice.find(". It fits with "), std::string::npos) << planned.choice.advice;
  EXPECT_NE(planned.choice.advice.find("train.micro_batch = "), std::string::npos) << planned.choice.advice;
  EXPECT_NE(planned.choice.advice.find("a rank, a step of"), std::string::npos) << planned.choice.advice;
}

/// The least device memory of any plan.
int64_t least_of(PlanRequest request) {
  request.planner.budget = 1;
  return make_plan_as_is(request).choice.memory.peak;
}

TEST_F(Planning, FormatsThatMakeARunFitAreNamedAloneOrTheFewestTogether) {
  PlanRequest r = request("single", 1);
  r.latent = {16, 1, 4, 4};  // so few tokens that parameters, gradients and states are what counts
  r.planner.compute = r.planner.param_dtype = DType::bf16;
  PlanRequest moments = r, gradients = r, masters = r;
  moments.planner.states.moments = plan::Moments::int8;
  gradients.planner.grad = DType::bf16;
  masters.planner.states.masters = plan::Masters::split;
  PlanRequest both = moments;
  both.planner.grad = DType::bf16;
  const int64_t alone = least_of(moments), two = least_of(both);
  ASSERT_LT(two, std::min({alone, least_of(gradients), least_of(masters)}));

  r.planner.budget = alone;
  const std::string one = make_plan(r).choice.advice;
  PlanRequest asked = moments;
  asked.planner.budget = alone;
  EXPECT_NE(one.find("plan.moments = int8: " + format_bytes(make_plan_as_is(asked).choice.memory.peak) + " a rank"),
            std::string::npos)
      << one;
  const size_t pair = one.rfind(" and plan.");
  if (pair != std::string::npos)
    EXPECT_LT(pair, one.find("with plan.moments = int8: ")) << "one is enough, and two only for a faster step: " << one;

  r.planner.budget = two;
  const std::string together = make_plan(r).choice.advice;
  const size_t first = together.find("plan.grad_dtype = bf16"), second = together.find(" and plan.moments = int8: ");
  ASSERT_NE(first, std::string::npos) << together;
  ASSERT_NE(second, std::string::npos) << together;
  EXPECT_LT(first, second) << together;
}

TEST_F(Planning, AFrozenBaseIn8BitsIsNamedWithWhatItReallyTakes) {
  const auto adapted = [&](DType base) {
    model_ = models::make_denoiser({.config_text = kConfig});
    models::adapt(*model_, {.rank = 4, .base = base, .targets = {"all"}});
    PlanRequest r = request("single", 1);
    r.latent = {16, 1, 4, 4};
    r.planner.compute = r.planner.param_dtype = DType::bf16;
    return r;
  };
  const int64_t budget = least_of(adapted(DType::i8)) + 4096;
  PlanRequest codes = adapted(DType::i8);
  codes.planner.budget = budget;
  const auto takes = static_cast<double>(make_plan_as_is(codes).choice.memory.peak);
  PlanRequest half = adapted(DType::bf16);
  half.planner.budget = budget;
  const Planned planned = make_plan(half);
  ASSERT_FALSE(planned.choice.fits);
  const std::string key = "lora.base_dtype = int8: ";
  const size_t at = planned.choice.advice.find(key);
  ASSERT_NE(at, std::string::npos) << planned.choice.advice;
  const std::string said = planned.choice.advice.substr(at + key.size());
  ASSERT_EQ(said.find(" KiB a rank, a step of "), said.find(' ')) << said;
  // the spec of a base in bf16 with other bytes: kernels of int8 take a little less beside them
  EXPECT_NEAR(std::stod(said) * 1024, takes, 0.005 * takes) << said;
}

Planned priced(const PlanRequest& request, Planned planned) {
  planned.prices = memory_prices(request, planned);
  return planned;
}

TEST_F(Planning, WhatMoreMemoryBuysIsPlannedAndSaidUnlessNothingIsLeftToBuy) {
  PlanRequest r = request("dp_shard=2");
  const int64_t roomy = make_plan_as_is(r).choice.memory.peak;
  r.planner.budget = tight(r);
  const Planned planned = make_plan_as_is(r);
  ASSERT_TRUE(planned.choice.fits);
  const std::string text = more_memory(priced(r, planned));
  PlanRequest more = r;
  more.planner.budget += r.planner.budget / 4;
  const double seconds = make_plan_as_is(more).choice.seconds;
  ASSERT_LT(seconds, planned.choice.seconds * 0.98);
  EXPECT_NE(text.find("+" + format_bytes(r.planner.budget / 4) + " of device memory: -"), std::string::npos) << text;
  EXPECT_NE(text.find("device memory binds"), std::string::npos) << text;
  r.planner.budget = 2 * roomy;
  EXPECT_EQ(more_memory(priced(r, make_plan_as_is(r))), "");
}

TEST_F(Planning, MicroBatchesAreAsLargeAsFitsAndIsFastest) {
  PlanRequest r = request("dp_shard=1", 8);
  r.any_micro_batch = true;
  const Planned roomy = make_plan(r);
  for (const auto& c : roomy.choice.candidates) EXPECT_GE(c.seconds, roomy.choice.seconds * (1 - 1e-9));
  PlanRequest one = r;
  one.any_micro_batch = false, one.planner.micro_batch = 1, one.planner.budget = 1;
  r.planner.budget = make_plan_as_is(one).choice.memory.peak + (64 << 10);
  const Planned tight = make_plan(r);
  ASSERT_TRUE(tight.choice.fits) << tight.choice.advice;
  EXPECT_LT(tight.plan().micro_batch, 8);
  EXPECT_EQ(tight.plan().global_batch, 8);
  EXPECT_GE(tight.choice.seconds, roomy.choice.seconds * (1 - 1e-9));
  r.planner.budget = 1;
  EXPECT_EQ(make_plan_as_is(r).plan().micro_batch, 1) << "the smallest is shown when nothing fits";
}

TEST_F(Planning, ALoraIn16BitsSavesHalfAndItsBaseTakesTheBytesOfItsForm) {
  const auto plan = [&](DType compute, DType base) {
    model_ = models::make_denoiser({.config_text = kConfig});
    models::adapt(*model_, {.rank = 4, .base = base, .targets = {"all"}});
    PlanRequest r = request("dp_shard=2");
    r.planner.compute = r.planner.param_dtype = compute;
    return make_plan(r);
  };
  const Planned whole = plan(DType::f32, DType::f32), half = plan(DType::bf16, DType::bf16),
                codes = plan(DType::bf16, DType::i8);
  const auto saved = [](const Planned& p) { return static_cast<double>(p.spec.units[1].cost.saved); };
  EXPECT_LT(saved(half), 0.65 * saved(whole)) << "what is added up over blocks and statistics stay fp32";
  EXPECT_EQ(saved(codes), saved(half));
  EXPECT_TRUE(nlohmann::json::parse(plan_json(whole))["frozen_base"].is_null());
  const auto base = nlohmann::json::parse(plan_json(codes))["frozen_base"];
  EXPECT_EQ(base["form"], "int8");
  EXPECT_EQ(base["linears"], 30);
  EXPECT_NE(plan_text(codes).find("30 frozen linears in int8"), std::string::npos) << plan_text(codes);
  EXPECT_LT(codes.choice.memory.by_part.parameters, half.choice.memory.by_part.parameters);
  EXPECT_LT(half.choice.memory.by_part.parameters, whole.choice.memory.by_part.parameters);
}

TEST_F(Planning, ABlockIn16BitsThatMakesNormsAndSumsAgainSavesFourteenTensorsInsteadOfTwentyThree) {
  PlanRequest r = request("dp_shard=1", 1);
  r.latent = {16, 4, 64, 64};  // so many tokens that nothing else counts
  r.planner.compute = r.planner.param_dtype = DType::bf16;
  const plan::Footprint block = make_plan(r).spec.units[1].cost;
  const double unit = static_cast<double>(block.out) / 2;  // [tokens, dim] of 16 bits: the input is fp32
  const auto tensors = [&](const plan::GraphCost& graph) { return 2 + static_cast<double>(graph.saved) / unit; };
  EXPECT_NEAR(tensors(block) - tensors(*block.selective), 9, 0.1);
  EXPECT_LT(tensors(*block.selective), 0.65 * tensors(block));
  EXPECT_EQ(block.selective->rebuilds, 9) << "three norms of tokens, four of queries and keys, two sums";
  EXPECT_LT(block.selective->backward_peak + block.selective->saved, block.backward_peak + block.saved);
}

TEST_F(Planning, APlaceForActivationsIsTakenOrSaidToChangeNothing) {
  PlanRequest r = request("dp_shard=2");
  r.planner.offload_to = plan::Tier::nvme, r.planner.nvme = true;
  EXPECT_NE(make_plan(r).choice.warning.find("offload_to = nvme has no effect"), std::string::npos);
  r.planner.activations = plan::Policy::offload;
  const Planned planned = make_plan(r);
  EXPECT_EQ(planned.choice.warning.find("has no effect"), std::string::npos) << planned.choice.warning;
  EXPECT_GT(planned.choice.memory.nvme.activations, 0);
}

TEST_F(Planning, APrefetchOrThreadsThatNothingUsesAreSaidToChangeNothing) {
  PlanRequest r = request("dp_shard=1");
  r.planner.prefetch = 3, r.planner.update_threads = 4;
  const std::string warning = make_plan(r).choice.warning;
  EXPECT_NE(warning.find("prefetch = 3 has no effect"), std::string::npos) << warning;
  EXPECT_NE(warning.find("update_threads = 4 has no effect"), std::string::npos) << warning;
  r.planner.update_on = plan::Tier::host, r.planner.host_budget = 1 << 30;  // now there is what to bring and to update
  const std::string none = make_plan(r).choice.warning;
  EXPECT_EQ(none.find("has no effect"), std::string::npos) << none;
}

/// What people decide by: the run's time, samples a second, a prompt's, and how near predictions are.
TEST_F(Planning, TheRunItsSamplesAndTheWordsOfAStartFollowFromTheStep) {
  PlanRequest r = request("dp_shard=2");
  const auto run_of = [](const Planned& planned) { return nlohmann::json::parse(plan_json(planned))["run"]; };
  const Planned bare = make_plan(r);
  const double step = bare.prediction.step.total;
  EXPECT_DOUBLE_EQ(run_of(bare)["seconds"], 10 * step);
  EXPECT_DOUBLE_EQ(run_of(bare)["samples_per_second"], 4 / step);
  EXPECT_EQ(run_of(bare)["prompt_seconds"], 0);
  r.run.sample_every = 4, r.run.sample_prompts = 3, r.run.sample_steps = 7;
  const Planned sampled = make_plan(r);
  const auto json = run_of(sampled);
  Planned probed = sampled;
  probed.machine.profile.machine = "this one";
  EXPECT_NE(plan_words(probed).find("nine of ten predictions are within 10 %"), std::string::npos);
  EXPECT_GT(json["prompt_seconds"], 0.0);
  EXPECT_DOUBLE_EQ(json["prompts_seconds"], 3 * 3 * json["prompt_seconds"].get<double>()) << "after 4, 8 and 10 steps";
  EXPECT_DOUBLE_EQ(json["seconds"], 10 * step + json["prompts_seconds"].get<double>());
  const std::string words = plan_words(sampled), text = plan_text(sampled);
  EXPECT_EQ(std::ranges::count(words, '\n'), 1) << words;
  for (const char* part : {"small on mesh dp_shard=2", "a step takes about", "samples/s",
                           "half of published runs are within 14 %", "(in FSDP's words: ", "The plan: keep "})
    EXPECT_NE(words.find(part), std::string::npos) << part << ": " << words;
  for (const char* row : {"\n  samples/s ", "\n  a prompt ", "\n  the run ", "\n  in FSDP's words "})
    EXPECT_NE(text.find(row), std::string::npos) << row << text;
}

TEST_F(Planning, TheTableHasNoLineTwiceAndTheJsonItsBudgetsAndBusyTimes) {
  PlanRequest r = request("dp_shard=1");
  r.planner.budget = tight(r), r.planner.host_budget = 1 << 20;
  const Planned planned = make_plan(r);
  const std::string text = plan_text(planned);
  EXPECT_NE(text.find("budget 1.00 MiB"), std::string::npos) << text;
  std::istringstream lines(text.substr(text.find("considered: ")));
  std::set<std::string> seen;
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(seen.insert(line).second) << line;
  const auto json = nlohmann::json::parse(plan_json(planned));
  EXPECT_EQ(json["host"]["budget_bytes"], 1 << 20);
  EXPECT_GE(json["busy_seconds"]["copies"].get<double>(), json["step_seconds"]["exposed_copy"].get<double>());
  EXPECT_EQ(json["busy_seconds"]["collectives"], 0);
}

TEST_F(Planning, TheLargestByTheHostsBudgetSaysThatOne) {
  PlanRequest r = request("dp_shard=1", 1);
  r.planner.activations = plan::Policy::offload;
  r.planner.host_budget = int64_t{1} << 40;
  r.planner.host_budget = make_plan_as_is(r).choice.memory.host.total() * 3;
  const Largest found = largest(r, GrowthAxis::batch, {});
  ASSERT_TRUE(found.found);
  EXPECT_NE(found.limit.find(" of host memory a rank, of "), std::string::npos) << found.limit;
}

TEST_F(Planning, TheLargestFitsAndTheNextDoesNot) {
  PlanRequest r = request("dp_shard=2");
  r.planner.budget = make_plan_as_is(r).choice.memory.peak * 2;
  for (GrowthAxis grow : {GrowthAxis::frames, GrowthAxis::batch, GrowthAxis::resolution}) {
    const Largest found = largest(r, grow, {});
    ASSERT_TRUE(found.found);
    EXPECT_LE(found.peak, r.planner.budget) << found.text;
    EXPECT_NE(found.limit.find(" would take "), std::string::npos) << found.limit;
  }
  const Largest alone = largest(r, GrowthAxis::batch, {});
  for (const int64_t near : {int64_t{1}, alone.count - 1, alone.count, alone.count + 1, 5 * alone.count}) {
    int tried = 0;
    const Largest found = largest(
        r, GrowthAxis::batch, {}, [&](const std::string&) { ++tried; }, near);
    EXPECT_EQ(found.count, alone.count) << near;
    EXPECT_EQ(found.limit, alone.limit) << near;
    if (near == alone.count) EXPECT_EQ(tried, 2) << "the answer of a request like it, and the next";
  }
  r.planner.budget = 1;
  EXPECT_FALSE(largest(r, GrowthAxis::batch, {}).found);
  EXPECT_THROW(growth_axis_of("frame_count"), UserError);
}

TEST_F(Planning, TheTraceHasPredictedAndMeasuredLanesOnOneClock) {
  const Planned planned = make_plan(request("dp_shard=2"));
  std::vector<std::string> executed;
  const auto& list = planned.prediction.groups[0].schedule.list;
  for (size_t i = 0; i < list.size(); ++i)
    executed.push_back(plan::to_json(list[i], "train", 0, 3, static_cast<int>(i), 0,
                                     100.0 + 0.1 * static_cast<double>(i), 100.1 + 0.1 * static_cast<double>(i)));
  const auto trace = nlohmann::json::parse(plan_trace(planned, executed));
  size_t predicted = 0, measured = 0;
  double first = 1e30;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const bool ran = event["pid"].get<int>() >= 1 << 20;
    ++(ran ? measured : predicted);
    if (ran) first = std::min(first, event["ts"].get<double>());
  }
  EXPECT_EQ(predicted, list.size());
  EXPECT_EQ(measured, list.size());
  EXPECT_NEAR(first, 0, 1);  // a step begins at zero, whatever the process's clock said
}

TEST_F(Planning, ThePageNeedsNothingElseAndDrawsEveryInstruction) {
  const Planned planned = make_plan(request("dp_shard=2"));
  const std::string page = plan_page(planned);
  EXPECT_EQ(page.find("http"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("backward blocks.1, micro 0"), std::string::npos);
  EXPECT_NE(page.find("peak "), std::string::npos);
}

TEST_F(Planning, ThePageSaysWhatIsElsewhereAndHasNoCandidateTwice) {
  PlanRequest r = request("dp_shard=1");
  r.planner.budget = tight(r), r.planner.host_budget = 1 << 20;
  const std::string page = plan_page(make_plan(r));
  EXPECT_NE(page.find("host, a rank"), std::string::npos);
  EXPECT_NE(page.find("budget 1.00 MiB"), std::string::npos);
  std::set<std::string> seen;
  for (size_t at = page.find("<tr><td>keep "); at != std::string::npos; at = page.find("<tr><td>keep ", at + 1)) {
    const std::string line = page.substr(at, page.find("</tr>", at) - at);
    EXPECT_TRUE(seen.insert(line).second) << line;
  }
  EXPECT_GT(seen.size(), 3u);
}

TEST_F(Planning, MicroBatchesLargerThanARanksSamplesAreCutToThemAndSaid) {
  PlanRequest r = request("dp_shard=2");
  r.by_hand = make_plan(r).plan();
  r.by_hand->micro_batch = 2000;
  const Planned planned = make_plan(r);
  EXPECT_EQ(planned.plan().micro_batch, 2);
  EXPECT_NE(planned.choice.warning.find("micro_batch = 2000 is more than the samples of a rank"), std::string::npos);
}

TEST_F(Planning, APlanWrittenByHandIsKeptAndTheFasterOneNamed) {
  PlanRequest r = request("dp_shard=2");
  plan::Plan slow = make_plan(r).plan();
  slow.prefetch = 0;
  for (auto& unit : slow.units) unit.activations = plan::Policy::recompute;
  r.by_hand = slow;
  const Planned planned = make_plan(r);
  EXPECT_EQ(planned.plan(), slow);
  EXPECT_NE(planned.choice.warning.find("set by hand"), std::string::npos) << planned.choice.warning;
}

TEST_F(Planning, AMeshThatIsSlowerThanFewerRanksSaysSoWithBothTimes) {
  PlanRequest r = request("tp=2");
  r.machine.profile.link = {1e6, 1e6, 0.01};  // whatever is exchanged takes longer than to compute it twice
  const Planned slow = make_plan(r);
  const double alone = make_plan(request("single")).choice.seconds;
  ASSERT_GT(slow.choice.seconds, 2 * alone);
  const std::string sentence =
      "tp=2 is predicted to be slower than one rank with the same batch: " + format_seconds(slow.choice.seconds) +
      " a step, not " + format_seconds(alone);
  EXPECT_NE(slow.choice.warning.find(sentence), std::string::npos) << slow.choice.warning << "\n" << sentence;
  r.machine.profile.link = {1e12, 1e12, 0};
  EXPECT_EQ(make_plan(r).choice.warning.find("is predicted to be slower"), std::string::npos)
      << make_plan(r).choice.warning;
}

}  // namespace
}  // namespace tessera::planning
