// Lion, Adafactor, CAME and Prodigy over slices as ranks hold them, and the average of weights. The golden cases compare numbers
// with other programs (tools/verify); here are the properties that a layout must not change.
#include <gtest/gtest.h>

#include "optim/ranks.h"
#include "tessera/optim/adafactor.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/averaged.h"
#include "tessera/optim/came.h"
#include "tessera/optim/prodigy.h"

namespace tessera::optim {
namespace {

using plan::Masters;
using plan::Moments;
using plan::Optimizer;

TEST(Lion, GivesTheSameBitsHoweverTheTensorIsCut) {
  for (const Moments moments : {Moments::fp32, Moments::bf16, Moments::int8}) {
    const Lion lion({.weight_decay = 0.1, .format = {Masters::fp32, moments, Optimizer::lion}, .seed = 3});
    Ranks whole(lion, {64, 100}, {0, 6400}), cut(lion, {64, 100}, {0, 256, 2048, 6400});
    for (int64_t step = 1; step <= 5; ++step) whole.step(step), cut.step(step);
    EXPECT_TRUE(at::equal(whole.whole(), cut.whole())) << name(moments);
  }
}

TEST(Lion, MovesEveryElementByTheRateAndAGradientOfZeroMovesNothing) {
  const Lion lion({});
  Ranks ranks(lion, {300}, {0, 300});
  const at::Tensor before = ranks.whole();
  ranks.step(1, 0);
  EXPECT_TRUE(at::equal(ranks.whole(), before)) << "the sign of 0 is 0";
  ranks.step(2);
  EXPECT_NEAR(distance(ranks.whole(), before), 1e-2, 1e-7);
  EXPECT_NEAR((ranks.whole() - before).abs().min().item<double>(), 1e-2, 1e-7);
}

TEST(Prodigy, GivesTheSameBitsHoweverTheTensorIsCutAndTotalsOfTheWhole) {
  for (const Moments moments : {Moments::fp32, Moments::bf16, Moments::int8}) {
    const Prodigy prodigy({.weight_decay = 0.1,
                           .bias_correction = true,
                           .format = {Masters::fp32, moments, Optimizer::prodigy},
                           .seed = 3});
    Ranks whole(prodigy, {64, 100}, {0, 6400}), cut(prodigy, {64, 100}, {0, 256, 2048, 6400});
    const at::Tensor start = whole.whole();
    for (int64_t step = 1; step <= 5; ++step) {
      whole.d = cut.d = 0.1 * static_cast<double>(step);
      whole.step(step, 0.5), cut.step(step, 0.5);
      if (step == 1) EXPECT_EQ(whole.totals[0], 0) << "nothing has moved";
      EXPECT_NEAR(whole.totals[0], cut.totals[0], 1e-6 * whole.totals[1]);
      EXPECT_NEAR(whole.totals[1], cut.totals[1], 1e-6 * whole.totals[1]);
    }
    EXPECT_TRUE(at::equal(whole.whole(), cut.whole())) << name(moments);
    EXPECT_TRUE(at::equal(whole.state("p0"), start)) << name(moments);
    EXPECT_NEAR(whole.totals[1], whole.state("s").abs().sum().item<double>(), 1e-5 * whole.totals[1]);
  }
}

TEST(Prodigy, ItsStepSizeFollowsLargerEstimatesAlone) {
  const ProdigyOptions options{.betas = {0.9, 0.81}, .d0 = 0.5, .d_coef = 2};
  ProdigySize size(options);
  const net::StepControl control{2, 3, 1, 0.5};  // rate 1.5
  size.take({4, 2}, control);                    // 1.5 * 4 = 6, of 2, twice
  EXPECT_DOUBLE_EQ(size.d(), 6);
  size.take({-1, 2}, control);  // 0.9 * 6 - 1.5
  EXPECT_DOUBLE_EQ(size.estimate(), 0.9 * 6 - 1.5);
  EXPECT_DOUBLE_EQ(size.d(), 6);
  const double numerator = size.numerator();
  size.take({1, 0}, {2, 0, 1, 6});
  EXPECT_DOUBLE_EQ(size.d(), 6) << "nothing follows from a rate of 0";
  EXPECT_DOUBLE_EQ(size.numerator(), 0.9 * numerator);
}

TEST(Prodigy, AStepSizeGrowsAtMostByItsRateTowardsTheLargestEstimate) {
  const ProdigyOptions options{.betas = {0.9, 0.81}, .d0 = 0.5, .d_coef = 2, .growth_rate = 1.5};
  ProdigySize size(options);
  const net::StepControl control{2, 3, 1, 0.5};
  size.take({4, 2}, control);  // an estimate of 6
  EXPECT_DOUBLE_EQ(size.d(), 6) << "the first one beyond d0 is taken whole, as prodigyopt does";
  size.take({40, 2}, {3, 3, 1, 6});
  EXPECT_DOUBLE_EQ(size.d(), 9) << "1.5 times 6";
  EXPECT_GT(size.most(), 100);
  const double most = size.most();
  size.take({-1000, 2}, {4, 0, 1, 9});
  EXPECT_DOUBLE_EQ(size.d(), 9) << "nothing follows from a rate of 0";
  size.take({0, 100}, {4, 3, 1, 9});
  EXPECT_DOUBLE_EQ(size.d(), 13.5) << "it grows on where the last estimate was smaller";
  EXPECT_DOUBLE_EQ(size.most(), most);
  ProdigySize resumed(options, size.d(), size.most(), size.numerator());
  for (ProdigySize* each : {&size, &resumed}) each->take({0, 100}, {5, 3, 1, 13.5});
  EXPECT_DOUBLE_EQ(resumed.d(), size.d());
  EXPECT_DOUBLE_EQ(resumed.d(), 13.5 * 1.5);
}

TEST(Prodigy, StandsStillWhereThereIsNoGradient) {
  const Prodigy prodigy({});
  Ranks ranks(prodigy, {300}, {0, 300});
  const at::Tensor before = ranks.whole();
  ranks.d = 1e-30;  // d times epsilon is 0 in fp32
  ranks.step(1, 0);
  EXPECT_TRUE(at::equal(ranks.whole(), before));
}

struct Factored {
  const char* name;
  std::unique_ptr<const net::UnitUpdate> (*make)();
};
std::ostream& operator<<(std::ostream& out, const Factored& f) { return out << f.name; }

class FactoredUpdates : public ::testing::TestWithParam<Factored> {};

// 257 columns: ranges of whole blocks of 256 begin and end inside rows.
TEST_P(FactoredUpdates, OfAShardedTensorAreThoseOfAWholeOne) {
  const auto update = GetParam().make();
  Ranks whole(*update, {40, 257}, {0, 40 * 257}), cut(*update, {40, 257}, {0, 256, 5120, 40 * 257});
  const at::Tensor start = whole.whole();
  for (int64_t step = 1; step <= 10; ++step) {
    whole.step(step), cut.step(step);
    ASSERT_TRUE(cut.same_whole_states()) << "every rank has the sums of the whole tensor";
  }
  const double moved = distance(whole.whole(), start);
  EXPECT_GT(moved, 1e-3);
  EXPECT_LT(distance(whole.whole(), cut.whole()), 1e-5 * moved);
  const at::Tensor rows = whole.state("exp_avg_sq_row"), columns = whole.state("exp_avg_sq_col");
  EXPECT_EQ(rows.numel(), 40);
  EXPECT_EQ(columns.numel(), 257);
  EXPECT_LT(distance(rows, cut.state("exp_avg_sq_row")), 1e-6 * rows.max().item<double>());
  EXPECT_LT(distance(columns, cut.state("exp_avg_sq_col")), 1e-6 * columns.max().item<double>());
}

TEST_P(FactoredUpdates, OfColumnsOnTwoRanksAreThoseOfTheWholeMatrix) {
  const auto update = GetParam().make();
  Ranks whole(*update, {16, 64}, {0, 1024}), columns(*update, {16, 64}, {0, 1, 2}, 32);
  const at::Tensor start = whole.whole();
  for (int64_t step = 1; step <= 5; ++step) whole.step(step), columns.step(step);
  const double moved = distance(whole.whole(), start);
  EXPECT_GT(moved, 1e-3);
  EXPECT_LT(distance(whole.whole(), columns.whole()), 1e-5 * moved);
}

TEST_P(FactoredUpdates, OfAVectorKeepASecondMomentForEachElement) {
  const auto update = GetParam().make();
  Ranks ranks(*update, {77}, {0, 77});
  ranks.step(1);
  EXPECT_EQ(ranks.state("exp_avg_sq").numel(), 77);
  EXPECT_FALSE(ranks.state("exp_avg_sq_row").defined());
}

INSTANTIATE_TEST_SUITE_P(
    , FactoredUpdates,
    ::testing::Values(Factored{"adafactor",
                               []() -> std::unique_ptr<const net::UnitUpdate> {
                                 return std::make_unique<const Adafactor>(AdafactorOptions{.weight_decay = 0.01});
                               }},
                      Factored{"adafactor_relative",
                               []() -> std::unique_ptr<const net::UnitUpdate> {
                                 return std::make_unique<const Adafactor>(
                                     AdafactorOptions{.relative_step = true, .scale_parameter = true});
                               }},
                      Factored{"adafactor_first_moment",
                               []() -> std::unique_ptr<const net::UnitUpdate> {
                                 return std::make_unique<const Adafactor>(AdafactorOptions{
                                     .weight_decay = 0.01,
                                     .scale_parameter = true,
                                     .beta1 = 0.7,
                                     .format = {.optimizer = Optimizer::adafactor, .first_moment = true}});
                               }},
                      Factored{"came",
                               []() -> std::unique_ptr<const net::UnitUpdate> {
                                 return std::make_unique<const Came>(CameOptions{.weight_decay = 0.01});
                               }}),
    [](const auto& info) { return info.param.name; });

TEST(Adafactor, ItsFirstMomentIsOfUpdatesTimesTheirRateInAnyFormat) {
  const auto made = [](Moments moments) {
    return Adafactor({.beta1 = 0.75,
                      .format = {.moments = moments, .optimizer = Optimizer::adafactor, .first_moment = true},
                      .seed = 3});
  };
  const Adafactor plain({}), moved = made(Moments::fp32);
  Ranks without(plain, {40, 257}, {0, 40 * 257}), with(moved, {40, 257}, {0, 40 * 257});
  const at::Tensor start = with.whole();
  without.step(1), with.step(1);
  const at::Tensor quarter = (without.whole() - start) / 4;
  EXPECT_LT(distance(with.whole() - start, quarter), 1e-6) << "the first update counts by 1 - beta1";
  EXPECT_LT(distance(with.state("exp_avg"), -quarter), 1e-6);
  for (const Moments moments : {Moments::bf16, Moments::int8}) {
    const Adafactor rounded = made(moments);
    Ranks whole(rounded, {40, 257}, {0, 40 * 257}), cut(rounded, {40, 257}, {0, 256, 5120, 40 * 257});
    for (int64_t step = 1; step <= 5; ++step) whole.step(step), cut.step(step);
    EXPECT_LT(distance(whole.whole(), cut.whole()), 2e-2 * distance(whole.whole(), start)) << name(moments);
  }
}

TEST(Adafactor, TheRateOfAWarmUpIsAMillionthAStep) {
  const Adafactor warm({.relative_step = true, .warmup_init = true}), cold({.relative_step = true});
  Ranks slow(warm, {16, 64}, {0, 1024}), fast(cold, {16, 64}, {0, 1024});
  const at::Tensor start = slow.whole();
  slow.step(3), fast.step(3);  // where the rate is 1e-2, the smaller of 1e-2 and 1 / sqrt(3)
  EXPECT_LT(distance((slow.whole() - start) * 1e-2, (fast.whole() - start) * 3e-6), 1e-9);
  EXPECT_GT(distance(slow.whole(), start), 1e-7);
}

TEST(Came, Keeps3x3ConvolutionsWholeAsSanaDoes) {
  const Came sana({}), pytorch({.factoring = plan::Factoring::last_two});
  const auto kinds = [](const net::UnitUpdate& update, std::vector<int64_t> shape) {
    std::string all;
    for (const auto& state : update.states({"w", std::move(shape)})) all += state.kind + " ";
    return all;
  };
  EXPECT_EQ(kinds(sana, {4, 3, 3, 3}), "exp_avg exp_avg_sq ");
  EXPECT_EQ(kinds(sana, {5, 4, 1, 1}), "exp_avg exp_avg_sq_row exp_avg_sq_col exp_avg_res_row exp_avg_res_col ");
  EXPECT_EQ(kinds(pytorch, {4, 3, 3, 3}), "exp_avg exp_avg_sq_row exp_avg_sq_col exp_avg_res_row exp_avg_res_col ");
}

TEST(Average, BeginsAsACopyRisesToItsDecayAndFollowsTheWeights) {
  EXPECT_EQ(average_decay({}, 1), 0);
  EXPECT_DOUBLE_EQ(average_decay({}, 2), 2.0 / 11);
  EXPECT_DOUBLE_EQ(average_decay({.decay = 0.9}, 1000000), 0.9);
  EXPECT_EQ(average_decay({.after = 5}, 6), 0);
  EXPECT_DOUBLE_EQ(average_decay({.power = 0.5}, 4), 0.5);
  EXPECT_DOUBLE_EQ(average_decay({.power = 0.5, .inv_gamma = 1.0 / 3}, 6), 0.75) << "1 - (1 + 5 * 3)^-0.5";
  EXPECT_DOUBLE_EQ(average_decay({.least = 0.25}, 2), 0.25) << "beyond 2/11";
  EXPECT_EQ(average_decay({.least = 0.25}, 1), 0) << "it begins as a copy all the same";
  {
    const Masters masters = Masters::fp32;
    const plan::StateFormat format{.masters = masters, .ema = true};
    const Averaged averaged(std::make_unique<const AdamW>(AdamWOptions{.format = format}), {.decay = 0.5}, masters);
    Ranks ranks(averaged, {300}, {0, 300});
    ranks.step(1);
    EXPECT_TRUE(at::equal(ranks.state("ema"), ranks.whole()));
    const at::Tensor before = ranks.state("ema");
    ranks.step(2);
    const at::Tensor expected = before * (2.0 / 11) + ranks.whole() * (9.0 / 11);
    EXPECT_LT(distance(ranks.state("ema"), expected), 1e-6);
  }
}

TEST(Average, OfRoundedMastersIsRefused) {
  EXPECT_THROW(Averaged(std::make_unique<const Lion>(LionOptions{}), {}, Masters::bf16), UserError);
}

}  // namespace
}  // namespace tessera::optim
