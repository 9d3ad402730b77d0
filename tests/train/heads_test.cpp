#include "tessera/train/heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/optim/adamw.h"

namespace tessera::train {
namespace {

/// The networks that have the next steps, of which the updates in `skips` (counted from 0) are skipped.
std::vector<size_t> walk(Turns& turns, int64_t steps, const std::vector<int64_t>& skips = {}) {
  std::vector<size_t> all;
  for (int64_t s = 0; s < steps; ++s) {
    all.push_back(turns.now());
    turns.end_step(std::ranges::count(skips, s) == 0);
  }
  return all;
}

Turns of_two() {
  return Turns({{"student", {.name = "linear", .lr = 1, .total_steps = 4}}, {"discriminator", {.lr = 0.5}}});
}

TEST(Turns, GoRoundAndASkippedOneIsMadeAgain) {
  Turns turns = of_two();
  EXPECT_EQ(walk(turns, 6, {1, 2}), (std::vector<size_t>{0, 1, 1, 1, 0, 1}));
  EXPECT_EQ(turns.taken(0), 2);
  EXPECT_EQ(turns.taken(1), 2);
}

TEST(Turns, RatesFollowANetworksOwn) {
  Turns turns = of_two();
  const double first = turns.rate(0);
  walk(turns, 1);
  const double second = turns.rate(0);
  EXPECT_LT(second, first);
  walk(turns, 1);
  EXPECT_EQ(turns.rate(0), second) << "the heads' steps are none of its own";
  EXPECT_EQ(turns.rate(1), 0.5);
}

TEST(Turns, GoOnBehindACheckpointOfTheSameNetworksAlone) {
  Turns whole = of_two(), after = of_two();
  walk(whole, 3);
  checkpoint::Manifest manifest;
  EXPECT_THROW(after.resume(manifest), UserError);
  whole.write(manifest);
  after.resume(manifest);
  EXPECT_EQ(after.taken(0), 2);
  EXPECT_EQ(after.rate(0), whole.rate(0));
  EXPECT_EQ(walk(after, 4), walk(whole, 4));
  Turns others({{"student"}, {"critic"}});
  EXPECT_THROW(others.resume(manifest), UserError);
}

constexpr int64_t kTokens = 6, kWidth = 5;
constexpr size_t kHeads = 2;

Heads heads() {
  return Heads(std::make_unique<optim::AdamW>(optim::AdamWOptions{}), {.loss = {.hinge = true}, .seed = 3},
               {kHeads, kWidth}, at::kCPU, /*peers=*/nullptr);
}

Heads::Rows rows(int64_t samples, double moved) {
  Heads::Rows rows;
  const RandomKey key(7, Purpose::noise, static_cast<uint64_t>(10 * moved));
  for (int64_t i = 0; i < samples; ++i) {
    rows[i] = at::empty({kTokens, static_cast<int64_t>(kHeads) * kWidth}, at::kFloat);
    key.normal(rows[i].mutable_data_ptr<float>(), static_cast<uint64_t>(1000 * i),
               static_cast<size_t>(rows[i].numel()));
    rows[i] += moved;
  }
  return rows;
}

Heads::Spread of_one_rank(int64_t samples) {
  Heads::Spread spread{samples, {{}}};
  for (int64_t i = 0; i < samples; ++i) spread.of_rank[0].push_back(i);
  return spread;
}

TEST(Heads, TellAGroupAtATimeWhatTheDiscriminatorTells) {
  constexpr int64_t kSamples = 10;  // two groups
  const Heads::Rows own = rows(kSamples, 0.1);
  const Heads::Told told = heads().tell(own, of_one_rank(kSamples), kTokens);
  diffusion::Discriminator all(diffusion::initial_heads(kHeads, kWidth, 3));
  std::vector<at::Tensor> features(kHeads);
  for (size_t h = 0; h < kHeads; ++h) {
    std::vector<at::Tensor> of_head;
    for (int64_t i = 0; i < kSamples; ++i)
      of_head.push_back(own.at(i).narrow(1, static_cast<int64_t>(h) * kWidth, kWidth).t());
    features[h] = at::stack(of_head);
  }
  const diffusion::JudgedLoss expected = diffusion::generator_loss(all, features, {});
  EXPECT_NEAR(told.loss, expected.loss, 1e-6);
  ASSERT_EQ(told.at_rows.size(), static_cast<size_t>(kSamples));
  for (int64_t i = 0; i < kSamples; ++i)
    for (size_t h = 0; h < kHeads; ++h) {
      const at::Tensor at_head = told.at_rows.at(i).narrow(1, static_cast<int64_t>(h) * kWidth, kWidth).t();
      EXPECT_LE((at_head - expected.at_features[h][i]).abs().max().item<float>(), 1e-7) << i << " of head " << h;
    }
}

TEST(Heads, LearnToTellAndStayAsTheyAreWhereALossIsNotFinite) {
  constexpr int64_t kSamples = 4;
  Heads learning = heads(), skipping = heads();
  const Heads::Rows fakes = rows(kSamples, 0.2), reals = rows(kSamples, 0.7);
  const auto lesson = [&](Heads& of, const Heads::Rows& shown) {
    return of.learn(shown, of_one_rank(kSamples), reals, of_one_rank(kSamples), kTokens, 1e-2);
  };
  Heads::Rows broken = fakes;
  broken[1] = fakes.at(1).clone();
  broken[1][2][3] = std::numeric_limits<float>::infinity();
  const double first = lesson(learning, fakes).loss.loss;
  EXPECT_NEAR(first, 1, 0.3);
  EXPECT_EQ(lesson(skipping, fakes).loss.loss, first);
  EXPECT_FALSE(lesson(skipping, broken).finite);
  double last = first;
  for (int i = 0; i < 40; ++i) {
    const Heads::Lesson learnt = lesson(learning, fakes);
    EXPECT_TRUE(learnt.finite);
    EXPECT_EQ(lesson(skipping, fakes).loss.loss, learnt.loss.loss) << "lesson " << i;
    last = learnt.loss.loss;
  }
  EXPECT_LT(last, 0.85 * first);
}

}  // namespace
}  // namespace tessera::train
