// Every optimiser against its published formula in fp64, with other numbers than the usual ones, over several steps with a
// stop between them; and every number of it acts.
#include <gtest/gtest.h>

#include "optim/plain.h"
#include "tessera/optim/adafactor.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/came.h"

namespace tessera::optim {
namespace {

using plan::Factoring;
using plan::Masters;
using plan::Optimizer;
using Made = std::unique_ptr<const net::UnitUpdate>;

constexpr double kNear = 2e-5;  // of the largest move: rounding of fp32 over six steps

struct Case {
  const char* name;
  Optimizer optimizer;
  Factoring factoring;
  double lr;
  Numbers usual, given;
  Made (*make)(const Numbers& n, Masters masters);
  std::vector<int64_t> shape = {3, 10, 37};  ///< three matrices; ranks begin inside rows
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

ProdigyOptions prodigy_of(const Numbers& n, Masters masters) {
  ProdigyOptions options;
  options.betas = {n.at("beta1"), n.at("beta2")}, options.beta3 = n.at("beta3");
  options.eps = n.at("eps"), options.weight_decay = n.at("weight_decay");
  options.d0 = n.at("d0"), options.d_coef = n.at("d_coef");
  if (n.at("growth_rate") > 0) options.growth_rate = n.at("growth_rate");
  options.bias_correction = n.at("bias_correction") > 0, options.safeguard_warmup = n.at("safeguard_warmup") > 0;
  options.format.masters = masters;
  return options;
}

Followed follow(const Case& c, const Numbers& numbers, Masters masters = Masters::fp32) {
  std::optional<ProdigyOptions> prodigy;
  if (c.optimizer == Optimizer::prodigy) prodigy = prodigy_of(numbers, masters);
  return follow([&] { return c.make(numbers, masters); }, c.optimizer, numbers, c.shape, c.factoring, c.lr, masters,
                prodigy);
}

class Formulas : public ::testing::TestWithParam<Case> {};

TEST_P(Formulas, AreFollowedWithOtherNumbersThanTheUsualOnesAndOverAStop) {
  for (const Masters masters : {Masters::fp32, Masters::split}) {
    EXPECT_LT(follow(GetParam(), GetParam().given, masters).off, kNear) << name(masters);
    EXPECT_LT(follow(GetParam(), GetParam().usual, masters).off, kNear) << name(masters);
  }
}

TEST_P(Formulas, HaveNoNumberWithoutAnEffect) {
  const Followed with = follow(GetParam(), GetParam().given);
  for (const auto& [name, usual] : GetParam().usual) {
    Numbers numbers = GetParam().given;
    ASSERT_NE(numbers.at(name), usual) << name << ": give it another value";
    numbers.at(name) = usual;
    const Followed without = follow(GetParam(), numbers);
    EXPECT_LT(without.off, kNear) << name;
    EXPECT_GT(distance(with.moved, without.moved), 100 * kNear * with.moved.abs().max().item<double>()) << name;
  }
}

const Numbers kAdafactor = {{"eps1", 1e-30},     {"eps2", 1e-3},       {"clip_threshold", 1},  {"decay_rate", -0.8},
                            {"weight_decay", 0}, {"relative_step", 0}, {"scale_parameter", 0}, {"beta1", 0}};
const Numbers kAdafactorGiven = {{"eps1", 0.3},          {"eps2", 0.9},         {"clip_threshold", 0.4},
                                 {"decay_rate", -0.3},   {"weight_decay", 0.2}, {"relative_step", 1},
                                 {"scale_parameter", 1}, {"beta1", 0.6}};
Made adafactor(const Numbers& n, Masters masters) {
  AdafactorOptions options;
  options.eps = {n.at("eps1"), n.at("eps2")}, options.clip_threshold = n.at("clip_threshold");
  options.decay_rate = n.at("decay_rate"), options.weight_decay = n.at("weight_decay");
  options.relative_step = n.at("relative_step") > 0, options.scale_parameter = n.at("scale_parameter") > 0;
  options.beta1 = n.at("beta1");
  options.format = {.masters = masters, .optimizer = Optimizer::adafactor, .first_moment = n.at("beta1") > 0};
  return std::make_unique<const Adafactor>(options);
}

const Numbers kCame = {{"beta1", 0.9},  {"beta2", 0.999},      {"beta3", 0.9999},  {"eps1", 1e-30},
                       {"eps2", 1e-16}, {"clip_threshold", 1}, {"weight_decay", 0}};
const Numbers kCameGiven = {{"beta1", 0.7}, {"beta2", 0.9},          {"beta3", 0.6},       {"eps1", 0.3},
                            {"eps2", 0.05}, {"clip_threshold", 0.4}, {"weight_decay", 0.2}};
template <Factoring factoring>
Made came(const Numbers& n, Masters masters) {
  CameOptions options;
  options.betas = {n.at("beta1"), n.at("beta2"), n.at("beta3")};
  options.eps = {n.at("eps1"), n.at("eps2")};
  options.clip_threshold = n.at("clip_threshold"), options.weight_decay = n.at("weight_decay");
  options.factoring = factoring, options.format.masters = masters;
  return std::make_unique<const Came>(options);
}

/// Without the numbers that act on what is factored alone.
Numbers less(Numbers numbers, const std::vector<std::string>& names) {
  for (const auto& name : names) numbers.erase(name);
  return numbers;
}

INSTANTIATE_TEST_SUITE_P(
    , Formulas,
    ::testing::Values(
        Case{"adamw",
             Optimizer::adamw,
             Factoring::none,
             0.05,
             {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.01}, {"decay_last", 0}},
             {{"beta1", 0.6}, {"beta2", 0.8}, {"eps", 0.05}, {"weight_decay", 0.3}, {"decay_last", 1}},
             [](const Numbers& n, Masters masters) -> Made {
               AdamWOptions options{{n.at("beta1"), n.at("beta2")}, n.at("eps"), n.at("weight_decay")};
               options.format.masters = masters, options.decay_last = n.at("decay_last") > 0;
               return std::make_unique<const AdamW>(options);
             }},
        Case{"lion",
             Optimizer::lion,
             Factoring::none,
             0.02,
             {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0}},
             {{"beta1", 0.5}, {"beta2", 0.4}, {"weight_decay", 0.3}},
             [](const Numbers& n, Masters masters) -> Made {
               LionOptions options{{n.at("beta1"), n.at("beta2")}, n.at("weight_decay")};
               options.format.masters = masters;
               return std::make_unique<const Lion>(options);
             }},
        Case{"adafactor", Optimizer::adafactor, Factoring::last_two, 0.6, kAdafactor, kAdafactorGiven, adafactor},
        Case{"adafactor_vector",
             Optimizer::adafactor,
             Factoring::last_two,
             0.6,
             kAdafactor,
             kAdafactorGiven,
             adafactor,
             {1110}},
        Case{"came", Optimizer::came, Factoring::last_two, 0.1, kCame, kCameGiven, came<Factoring::last_two>},
        Case{"came_whole", Optimizer::came, Factoring::matrices, 0.1, less(kCame, {"beta3", "eps2"}),
             less(kCameGiven, {"beta3", "eps2"}),
             [](const Numbers& n, Masters masters) -> Made {
               Numbers all = n;
               all.insert({{"beta3", 0.5}, {"eps2", 0.5}});
               return came<Factoring::matrices>(all, masters);
             }},
        Case{"prodigy",
             Optimizer::prodigy,
             Factoring::none,
             1,
             {{"beta1", 0.9},
              {"beta2", 0.999},
              {"beta3", 0},
              {"eps", 1e-8},
              {"weight_decay", 0},
              {"d0", 1e-3},
              {"d_coef", 1},
              {"growth_rate", 0},
              {"bias_correction", 0},
              {"safeguard_warmup", 0}},
             {{"beta1", 0.6},
              {"beta2", 0.8},
              {"beta3", 0.5},
              {"eps", 0.05},
              {"weight_decay", 0.3},
              {"d0", 1e-2},
              {"d_coef", 1.5},
              {"growth_rate", 1.2},
              {"bias_correction", 1},
              {"safeguard_warmup", 1}},
             [](const Numbers& n, Masters masters) -> Made {
               return std::make_unique<const Prodigy>(prodigy_of(n, masters));
             }}),
    [](const auto& info) { return info.param.name; });

// Any state of it, such as that of a run that goes on with train.d0 set to the d that it had found, below its largest estimate.
TEST(Prodigy, ItsStepSizeFollowsFromAnyStateByTheFormulaOfProdigyopt) {
  for (const double growth : {1.1, 3.0, std::numeric_limits<double>::infinity()})
    for (const double d : {0.5, 0.75})
      for (const double most : {0.75, 9.0})
        for (const double toward : {-1.0, 0.25, 1.0, 20.0}) {
          const ProdigyOptions options{.d0 = 0.5, .growth_rate = growth};
          ProdigySize size(options, d, most, 0.3);
          const net::StepControl control{4, 2, 1, d};
          size.take({toward, 2}, control);
          const double found = (options.third() * 0.3 + d / 0.5 * (d * 2) * toward) / 2;
          const double first = d == 0.5 ? std::max(d, found) : d;
          EXPECT_NEAR(size.d(), std::min(std::max(most, found), first * growth), 1e-12)
              << growth << d << most << toward;
          EXPECT_NEAR(size.most(), std::max(most, found), 1e-12);
        }
}

}  // namespace
}  // namespace tessera::optim
