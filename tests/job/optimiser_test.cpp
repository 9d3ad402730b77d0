// The optimiser that a recipe names has every number that the recipe gives: against the formulas of optim/plain.h.
#include "tessera/job/optimiser.h"

#include <gtest/gtest.h>

#include "optim/plain.h"
#include "tessera/optim/averaged.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::job {
namespace {

using optim::Numbers;
using plan::Factoring;

constexpr double kNear = 2e-5;

/// A key with a value other than its default, and the numbers of the formula that it stands for.
struct Key {
  std::string key, value;
  Numbers means;
};
struct Case {
  const char* name;
  std::vector<Key> keys;
  Numbers usual;  ///< of the formula, where no key is given
  Factoring factoring = Factoring::none;
  double lr = 0.05;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// By the keys but one. Prodigy's d0 is always given: its usual one moves nothing in six steps.
optim::Followed followed(const Case& c, size_t without) {
  recipe::Overrides given = {{"train.optimizer", c.name}};
  Numbers numbers = c.usual;
  for (size_t k = 0; k < c.keys.size(); ++k) {
    if (k == without) continue;
    given.emplace_back(c.keys[k].key, c.keys[k].value);
    for (const auto& [name, value] : c.keys[k].means) numbers[name] = value;
  }
  const recipe::Recipe recipe = recipe::load_recipe("", given);
  std::optional<optim::ProdigyOptions> prodigy;
  if (recipe.plan.states.optimizer == plan::Optimizer::prodigy) prodigy = prodigy_options(recipe.train);
  // rates are those of the formula: a schedule's, which the optimiser is told
  return optim::follow([&] { return optimiser_of(recipe, recipe.plan.states); }, recipe.plan.states.optimizer, numbers,
                       c.factoring == Factoring::none ? std::vector<int64_t>{1110} : std::vector<int64_t>{30, 37},
                       c.factoring, c.lr, plan::Masters::fp32, prodigy);
}

class RecipesOptimiser : public ::testing::TestWithParam<Case> {};

TEST_P(RecipesOptimiser, HasEveryNumberOfTheRecipe) {
  const size_t all = GetParam().keys.size();
  const optim::Followed with = followed(GetParam(), all);
  EXPECT_LT(with.off, kNear);
  const double most = with.moved.abs().max().item<double>();
  for (size_t k = 0; k < all; ++k) {
    if (GetParam().keys[k].key == "train.d0") continue;
    const optim::Followed without = followed(GetParam(), k);
    EXPECT_LT(without.off, kNear) << "without " << GetParam().keys[k].key;
    EXPECT_GT(optim::distance(with.moved, without.moved), 100 * kNear * most) << GetParam().keys[k].key;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , RecipesOptimiser,
    ::testing::Values(
        Case{"adamw",
             {{"train.betas", "0.6,0.8", {{"beta1", 0.6}, {"beta2", 0.8}}},
              {"train.eps", "0.05", {{"eps", 0.05}}},
              {"train.weight_decay", "0.5", {{"weight_decay", 0.5}}}},
             {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.01}}},
        Case{"lion",
             {{"train.betas", "0.5,0.4", {{"beta1", 0.5}, {"beta2", 0.4}}},
              {"train.weight_decay", "0.5", {{"weight_decay", 0.5}}}},
             {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.01}}},
        Case{"adafactor",
             {{"train.factored_eps", "0.3,0.9", {{"eps1", 0.3}, {"eps2", 0.9}}},
              {"train.weight_decay", "0.2", {{"weight_decay", 0.2}}},
              {"train.factored_beta1", "0.6", {{"beta1", 0.6}}},
              {"train.relative_step", "true", {{"relative_step", 1}, {"scale_parameter", 1}}}},
             {{"eps1", 1e-30}, {"eps2", 1e-3}, {"weight_decay", 0.01}, {"clip_threshold", 1}, {"decay_rate", -0.8}},
             Factoring::last_two,
             0.6},
        Case{"came",
             {{"train.betas", "0.7,0.9,0.6", {{"beta1", 0.7}, {"beta2", 0.9}, {"beta3", 0.6}}},
              {"train.factored_eps", "0.3,0.05", {{"eps1", 0.3}, {"eps2", 0.05}}},
              {"train.weight_decay", "0.3", {{"weight_decay", 0.3}}}},
             {{"beta1", 0.9},
              {"beta2", 0.999},
              {"beta3", 0.9999},
              {"eps1", 1e-30},
              {"eps2", 1e-16},
              {"clip_threshold", 1},
              {"weight_decay", 0.01}},
             Factoring::matrices},
        Case{"prodigy",
             {{"train.betas", "0.6,0.8", {{"beta1", 0.6}, {"beta2", 0.8}}},
              {"train.beta3", "0.5", {{"beta3", 0.5}}},
              {"train.eps", "0.05", {{"eps", 0.05}}},
              {"train.weight_decay", "0.3", {{"weight_decay", 0.3}}},
              {"train.d0", "1e-2", {{"d0", 1e-2}}},
              {"train.d_coef", "1.5", {{"d_coef", 1.5}}},
              {"train.growth_rate", "1.2", {{"growth_rate", 1.2}}},
              {"train.bias_correction", "true", {{"bias_correction", 1}}},
              {"train.safeguard_warmup", "true", {{"safeguard_warmup", 1}}}},
             {{"beta1", 0.9},
              {"beta2", 0.999},
              {"beta3", 0},
              {"eps", 1e-8},
              {"weight_decay", 0.01},
              {"d0", 1e-6},
              {"d_coef", 1}},
             Factoring::none,
             1}),
    [](const auto& info) { return info.param.name; });

/// What a tensor becomes in two steps.
at::Tensor trained(const recipe::Overrides& given, int64_t from_step = 1, double lr = 1e-2,
                   const char* state = nullptr) {
  const recipe::Recipe recipe = recipe::load_recipe("", given);
  const auto update = optimiser_of(recipe, recipe.plan.states);
  optim::Ranks ranks(*update, {16, 64}, {0, 1024});
  const at::Tensor grad = at::cos(at::arange(1024).to(at::kFloat));
  for (int64_t step = from_step; step < from_step + 2; ++step) ranks.step({step, lr, 1, 0}, grad);
  return state ? ranks.state(state) : ranks.whole();
}

/// LoRA+: B moves as with a rate that is so many times higher, everything else as without; the average follows it.
TEST(OptimiserOfARecipe, LoraPlusIsARateOfB) {
  for (const char* optimizer : {"adamw", "lion", "came", "adafactor"}) {
    const auto moved = [&](const char* ratio, const std::string& name, double lr, const char* ema = "0") {
      const recipe::Recipe recipe = recipe::load_recipe("", {{"train.mode", "lora"},
                                                             {"train.optimizer", optimizer},
                                                             {"train.weight_decay", "0.3"},
                                                             {"train.ema", ema},
                                                             {"lora.plus_ratio", ratio}});
      const auto update = optimiser_of(recipe, recipe.plan.states);
      optim::Ranks ranks(*update, {16, 64}, {0, 256, 1024}, 0, plan::Masters::fp32, name);
      const at::Tensor grad = at::cos(at::arange(1024).to(at::kFloat));
      for (int64_t step = 1; step <= 3; ++step) ranks.step({step, lr, 1, 0}, grad);
      return ema == std::string("0") ? ranks.whole() : ranks.state(std::string(plan::kAverage));
    };
    const std::string b = "blocks.0.self_attn.q.lora_B.weight", a = "blocks.0.self_attn.q.lora_A.weight";
    EXPECT_TRUE(at::equal(moved("4", b, 1e-2), moved("1", b, 4e-2))) << optimizer;
    EXPECT_TRUE(at::equal(moved("4", a, 1e-2), moved("1", a, 1e-2))) << optimizer;
    EXPECT_FALSE(at::equal(moved("4", b, 1e-2), moved("1", b, 1e-2))) << optimizer;
    EXPECT_TRUE(at::equal(moved("4", b, 1e-2, "0.9"), moved("1", b, 4e-2, "0.9"))) << optimizer;
  }
}

TEST(OptimiserOfARecipe, ARateOfItsOwnHasNoLoraPlus) {
  for (const recipe::Overrides& own :
       {recipe::Overrides{{"train.optimizer", "prodigy"}},
        recipe::Overrides{{"train.optimizer", "adafactor"}, {"train.relative_step", "true"}}}) {
    recipe::Overrides given = {{"train.mode", "lora"}, {"lora.plus_ratio", "4"}};
    given.insert(given.end(), own.begin(), own.end());
    EXPECT_THROW(recipe::load_recipe("", given), UserError);
    given[1].second = "1";
    EXPECT_NO_THROW(recipe::load_recipe("", given));
  }
}

TEST(OptimiserOfARecipe, LionsDecoupledDecayIsThatOfAStepAtTheRecipesRate) {
  const auto by = [&](const char* decay, const char* decoupled) {
    return trained({{"train.optimizer", "lion"},
                    {"train.lr", "0.02"},
                    {"train.weight_decay", decay},
                    {"train.decoupled_decay", decoupled}},
                   1, 0.02);
  };
  EXPECT_LT(optim::distance(by("0.01", "true"), by("0.5", "false")), 1e-6) << "0.5 times 0.02";
  EXPECT_GT(optim::distance(by("0.01", "true"), by("0.01", "false")), 1e-3);
}

TEST(OptimiserOfARecipe, AdafactorsWarmUpIsThatOfRelativeStepsAlone) {
  const auto by = [&](const char* relative, const char* warm) {
    return trained({{"train.optimizer", "adafactor"},
                    {"train.relative_step", relative},
                    {"train.warmup_init", warm},
                    {"train.weight_decay", "0"}},
                   3);
  };
  const at::Tensor start = trained({{"train.optimizer", "adafactor"}}, 1, 0);
  EXPECT_LT(optim::distance(by("true", "true"), start), 1e-5) << "3e-6 and 4e-6 by the size of the tensor";
  EXPECT_GT(optim::distance(by("true", "false"), start), 1e-3);
}

TEST(OptimiserOfARecipe, TheAverageHasTheDecayOfTheRecipe) {
  const std::pair<recipe::Overrides, optim::AverageOptions> cases[] = {
      {{{"train.ema", "0.3"}}, {.decay = 0.3}},
      {{{"train.ema", "0.9"}, {"train.ema_after", "3"}}, {.decay = 0.9, .after = 3}},
      {{{"train.ema", "0.9"}, {"train.ema_power", "0.75"}}, {.decay = 0.9, .power = 0.75}},
      {{{"train.ema", "0.9"}, {"train.ema_power", "0.75"}, {"train.ema_inv_gamma", "4"}},
       {.decay = 0.9, .power = 0.75, .inv_gamma = 4}},
      {{{"train.ema", "0.9"}, {"train.ema_min_decay", "0.7"}}, {.decay = 0.9, .least = 0.7}}};
  std::vector<at::Tensor> averages;
  for (const auto& [given, options] : cases) {
    // from step 5 on, the average begins at the state's zeros
    const recipe::Recipe recipe = recipe::load_recipe("", given);
    const auto update = optimiser_of(recipe, recipe.plan.states);
    optim::Ranks ranks(*update, {64}, {0, 64});
    at::Tensor expected = at::zeros({64});
    for (int64_t step = 5; step < 8; ++step) {
      ranks.step(step);
      const double decay = optim::average_decay(options, step);
      expected = expected * decay + ranks.whole() * (1 - decay);
    }
    EXPECT_LT(optim::distance(ranks.state("ema"), expected), 1e-6) << averages.size();
    for (const auto& other : averages) EXPECT_GT(optim::distance(ranks.state("ema"), other), 1e-3);
    averages.push_back(ranks.state("ema"));
  }
}

TEST(OptimiserOfARecipe, RandomRoundingFollowsTheSeedOfTheRun) {
  const auto masters = [](const char* optimizer, const char* seed) {
    const recipe::Recipe recipe = recipe::load_recipe(
        "",
        {{"train.optimizer", optimizer}, {"plan.masters", "bf16"}, {"plan.compute_dtype", "bf16"}, {"run.seed", seed}});
    const auto update = optimiser_of(recipe, recipe.plan.states);
    const plan::ParamSpec spec{"w", {1024}};
    const auto specs = update->states(spec);
    std::vector<uint16_t> param(1024, 0x3f80);
    const at::Tensor grad = at::cos(at::arange(1024).to(at::kFloat));
    std::vector<std::vector<float>> states, sums;
    net::Slice slice;
    slice.spec = &spec, slice.numel = slice.end = 1024, slice.specs = &specs;
    slice.param = param.data(), slice.grad = grad.const_data_ptr<float>();
    for (const auto& state : specs)
      slice.states.push_back(states.emplace_back(static_cast<size_t>(state.values(0, 1024)) + 1).data());
    const net::StepControl control{1, 1e-3, 1, 1};
    for (int round = 0; round < update->rounds(); ++round) {
      std::vector<double> part(static_cast<size_t>(update->sums(spec, round)));
      update->add_sums(slice, control, round, part.data());
      slice.sums.push_back(sums.emplace_back(part.begin(), part.end()).data());
      update->take_sums(slice, control, round);
    }
    update->update(slice, control);
    return param;
  };
  for (const char* optimizer : {"adamw", "lion", "adafactor", "came", "prodigy"}) {
    EXPECT_EQ(masters(optimizer, "1"), masters(optimizer, "1")) << optimizer;
    EXPECT_NE(masters(optimizer, "1"), masters(optimizer, "2")) << optimizer;
  }
}

}  // namespace
}  // namespace tessera::job
