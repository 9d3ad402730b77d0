// Samples dealt to ranks by their experts: spread evenly by the fewest moves, the same on every rank; what a step leaves of
// the ranks' time; and the forecast of both, held against all choices that there are.
#include "tessera/plan/deal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <regex>
#include <sstream>

#include "plan/transformer.h"
#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/plan/simulate/predict.h"

namespace tessera::plan {
namespace {

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

/// Counts of `own` samples a rank, whose choices lean to a few experts, other ones on each rank.
ExpertShares drawn(uint64_t seed, int ranks, int64_t own, size_t experts) {
  const RandomKey key(seed, Purpose::test);
  ExpertShares chosen(experts, std::vector<int64_t>(static_cast<size_t>(ranks), 0));
  uint64_t next = 0;
  for (int r = 0; r < ranks; ++r) {
    const double lean = 1 + 8 * key.uniform(next++);
    const auto favourite = static_cast<size_t>(key.below(next++, experts));
    for (int64_t s = 0; s < own; ++s) {
      const auto step = static_cast<size_t>(std::pow(key.uniform(next++), lean) * static_cast<double>(experts));
      ++chosen[(favourite + step) % experts][static_cast<size_t>(r)];
    }
  }
  return chosen;
}

TEST(Deal, SpreadsEachExpertEvenlyByTheFewestMoves) {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const int ranks = 1 + static_cast<int>(seed % 7);
    const auto own = static_cast<int64_t>(seed % 9);
    const ExpertShares chosen = drawn(seed, ranks, own, 1 + seed % 5);
    const Deal dealt = deal(chosen);
    ASSERT_EQ(dealt.shares.size(), chosen.size());
    ExpertShares moved = chosen;
    int64_t moves = 0, fewest = 0;
    for (const Deal::Move& move : dealt.moves) {
      EXPECT_NE(move.from, move.to);
      EXPECT_GT(move.samples, 0);
      moved[move.expert][static_cast<size_t>(move.from)] -= move.samples;
      moved[move.expert][static_cast<size_t>(move.to)] += move.samples;
      moves += move.samples;
    }
    EXPECT_EQ(moved, dealt.shares) << seed;
    for (size_t e = 0; e < chosen.size(); ++e) {
      EXPECT_LE(std::ranges::max(dealt.shares[e]) - std::ranges::min(dealt.shares[e]), 1) << seed;
      EXPECT_EQ(sum(dealt.shares[e]), sum(chosen[e])) << seed;
      // Whatever even shares there are, above the larger part all must go, and of those above the smaller as many stay as
      // there are larger parts.
      const int64_t even = sum(chosen[e]) / ranks, larger = sum(chosen[e]) % ranks;
      int64_t above = 0, reach = 0;
      for (const int64_t samples : chosen[e]) above += std::max<int64_t>(0, samples - even), reach += samples > even;
      fewest += above - std::min(larger, reach);
    }
    EXPECT_EQ(moves, fewest) << seed;
    int64_t sent = 0, received = 0;
    for (int r = 0; r < ranks; ++r) {
      EXPECT_LE(dealt.sent(r), most_sent(own, ranks)) << seed << ", rank " << r;
      sent += dealt.sent(r), received += dealt.received(r);
    }
    EXPECT_EQ(sent, moves);
    EXPECT_EQ(received, moves);
  }
}

TEST(Deal, SendsTheMostWhereARankAloneHasSamplesOfItsExpert) {
  for (const int ranks : {2, 3, 4, 5})
    for (int64_t own = 1; own < 12; ++own) {
      ExpertShares chosen(2, std::vector<int64_t>(static_cast<size_t>(ranks), own));
      chosen[0].front() = own, chosen[1].front() = 0;
      for (size_t r = 1; r < chosen[0].size(); ++r) chosen[0][r] = 0;
      EXPECT_EQ(deal(chosen).sent(0), most_sent(own, ranks)) << ranks << " ranks of " << own;
    }
}

/// What does not divide stays where it is; what moves goes where fewer samples are.
TEST(Deal, LeavesWhatDoesNotDivideWhereItIs) {
  EXPECT_TRUE(deal({{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}).moves.empty());
  EXPECT_TRUE(deal({{2, 2}, {1, 1}}).moves.empty());
  const std::vector<Deal::Move> away = {{1, 0, 2, 1}};
  EXPECT_EQ(deal({{0, 1, 0}, {2, 0, 0}}).moves, away) << "rank 1 has a sample already";
  EXPECT_EQ(deal({{4, 0}, {0, 4}}).shares, (ExpertShares{{2, 2}, {2, 2}}));
  EXPECT_TRUE(deal({}).shares.empty());
}

TEST(StepUse, CountsWhatRanksCouldHaveRunAndMicroBatchesWithoutASample) {
  const StepUse alone = step_use({{4, 0}, {0, 4}}, {1});
  EXPECT_EQ(alone.samples, 8);
  EXPECT_EQ(alone.room, 16);
  EXPECT_EQ(alone.micros, 16);
  EXPECT_EQ(alone.dummies, 8);
  EXPECT_EQ(alone.idle(), 0.5);
  const StepUse uneven = step_use({{3, 1, 0}}, {2});
  EXPECT_EQ(uneven.room, 9);
  EXPECT_EQ(uneven.micros, 6) << "3 samples in two micro-batches, on each rank";
  EXPECT_EQ(uneven.dummies, 3);
  EXPECT_EQ(step_use({{0, 0}}, {1}).idle(), 0);
  EXPECT_EQ(step_use({{0, 0}}, {1}).dummy_share(), 0);
}

/// Ranks with a sample in the expert's last micro-batch, of so many samples each.
std::vector<bool> in_last_micro(const std::vector<int64_t>& shares, int64_t micro_batch) {
  const int64_t before = (div_up(std::ranges::max(shares), micro_batch) - 1) * micro_batch;
  std::vector<bool> there;
  for (const int64_t samples : shares) there.push_back(samples > before);
  return there;
}

TEST(Pairs, AreOfExpertsWhoseLastMicroBatchesTakeRanksOfTheirOwn) {
  EXPECT_EQ(expert_pairs({{1, 0}, {0, 1}}, {1}), (ExpertPairs{{0, 1}}));
  EXPECT_EQ(expert_pairs({{2, 0}, {0, 1}}, {1}), ExpertPairs{}) << "the samples of the first divide";
  EXPECT_EQ(expert_pairs({{2, 1, 0}, {0, 1, 1}, {0, 0, 1}, {0, 1, 0}}, {1}), (ExpertPairs{{1, 2}}))
      << "the samples of the first divide, two and one are three, and one is left";
  EXPECT_EQ(expert_pairs({{3, 0}, {0, 1}}, {1}), (ExpertPairs{{0, 1}})) << "behind a micro-batch that all have";
  EXPECT_EQ(expert_pairs({{3, 0}, {0, 1}}, {2}), ExpertPairs{}) << "two and one: all ranks have the only micro-batch";
  EXPECT_EQ(expert_pairs({{5, 0}, {0, 1}}, {2, 1}), (ExpertPairs{{0, 1}}));
  int64_t pairs = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 6);
    const int64_t micro_batch = 1 + static_cast<int64_t>(seed % 3);
    const ExpertShares chosen = drawn(seed, ranks, static_cast<int64_t>(seed % 9), 1 + seed % 5);
    const ExpertPairs found = expert_pairs(chosen, {micro_batch});
    const Deal dealt = deal(chosen, found);
    std::vector<int> times(chosen.size(), 0);
    for (const auto& [first, second] : found) {
      EXPECT_LT(first, second);
      ++times[first], ++times[second], ++pairs;
      const auto one = in_last_micro(dealt.shares[first], micro_batch),
                 other = in_last_micro(dealt.shares[second], micro_batch);
      for (size_t r = 0; r < one.size(); ++r) EXPECT_FALSE(one[r] && other[r]) << seed << ", rank " << r;
    }
    EXPECT_LE(std::ranges::max(times), 1) << seed;
    ExpertShares moved = chosen;
    for (const Deal::Move& move : dealt.moves) {
      moved[move.expert][static_cast<size_t>(move.from)] -= move.samples;
      moved[move.expert][static_cast<size_t>(move.to)] += move.samples;
    }
    EXPECT_EQ(moved, dealt.shares) << seed;
    for (size_t e = 0; e < chosen.size(); ++e) {
      EXPECT_LE(std::ranges::max(dealt.shares[e]) - std::ranges::min(dealt.shares[e]), 1) << seed;
      EXPECT_EQ(sum(dealt.shares[e]), sum(chosen[e])) << seed;
    }
    const StepUse apart = step_use(dealt.shares, {micro_batch}), beside = step_use(dealt.shares, {micro_batch}, found);
    EXPECT_EQ(beside.room, apart.room - ranks * std::ssize(found)) << "a sample's time of all ranks for each pair";
    EXPECT_GE(beside.idle(), -1e-12);
    EXPECT_EQ(beside.samples, apart.samples);
  }
  EXPECT_GT(pairs, 300);
}

/// The mean over all choices of so few samples that they can be listed.
DealForecast listed(const std::vector<double>& frequencies, const std::vector<int64_t>& own, int64_t micro_batch,
                    bool together) {
  const double all = std::accumulate(frequencies.begin(), frequencies.end(), 0.0);
  int64_t samples = sum(own), cases = 1;
  for (int64_t s = 0; s < samples; ++s) cases *= static_cast<int64_t>(frequencies.size());
  DealForecast mean;
  for (int64_t c = 0; c < cases; ++c) {
    double probability = 1;
    int64_t left = c;
    ExpertShares chosen(frequencies.size(), std::vector<int64_t>(own.size(), 0));
    for (size_t r = 0; r < own.size(); ++r)
      for (int64_t s = 0; s < own[r]; ++s) {
        const auto e = static_cast<size_t>(left) % frequencies.size();
        left /= static_cast<int64_t>(frequencies.size());
        probability *= frequencies[e] / all;
        ++chosen[e][r];
      }
    const ExpertPairs pairs = together ? expert_pairs(chosen, {micro_batch}) : ExpertPairs{};
    mean.pairs += probability * static_cast<double>(pairs.size());
    const Deal dealt = deal(chosen, pairs);
    for (const auto& [way, shares] : {std::pair(&mean.dealt, &dealt.shares), {&mean.undealt, &chosen}}) {
      const StepUse use = step_use(*shares, {micro_batch}, way == &mean.dealt ? pairs : ExpertPairs{});
      way->idle += probability * use.idle(), way->dummies += probability * use.dummy_share();
      way->passes.resize(shares->size());
      for (size_t e = 0; e < shares->size(); ++e)
        if (std::ranges::max((*shares)[e]) > 0) way->passes[e][std::ranges::max((*shares)[e])] += probability;
    }
    int64_t busiest = 0;
    for (int r = 0; r < static_cast<int>(own.size()); ++r)
      busiest = std::max({busiest, dealt.sent(r), dealt.received(r)});
    mean.busiest += probability * static_cast<double>(busiest);
    for (const Deal::Move& move : dealt.moves) mean.moved += probability * static_cast<double>(move.samples);
  }
  return mean;
}

TEST(Forecast, IsTheMeanOverAllChoices) {
  for (const std::vector<double>& frequencies :
       {std::vector<double>{0.9, 0.1}, {60, 30, 10}, {1, 1, 1}, {1, 1}, {0, 1}, {0.5, 0.2, 0.1, 0.1, 0.1}})
    for (const std::vector<int64_t>& own : {std::vector<int64_t>{1, 1}, {3, 3}, {2, 2, 2}, {2, 1, 1}, {4}})
      for (const auto& [micro, together] : {std::pair<int64_t, bool>(1, false), {2, false}, {1, true}, {2, true}}) {
        if (frequencies.size() == 5 && sum(own) > 5) continue;
        DealForecast found = deal_forecast(frequencies, own, {micro}, together);
        const DealForecast expected = listed(frequencies, own, micro, together);
        constexpr double kNear = 0.03;  // of means of 4000 numbers up to 1: five of their deviations
        EXPECT_NEAR(found.dealt.idle, expected.dealt.idle, kNear);
        EXPECT_NEAR(found.undealt.idle, expected.undealt.idle, kNear);
        EXPECT_NEAR(found.dealt.dummies, expected.dealt.dummies, kNear);
        EXPECT_NEAR(found.undealt.dummies, expected.undealt.dummies, kNear);
        EXPECT_NEAR(found.pairs, expected.pairs, 2 * kNear);
        EXPECT_NEAR(found.moved, expected.moved, 3 * kNear);
        EXPECT_NEAR(found.busiest, expected.busiest, 3 * kNear);
        for (size_t e = 0; e < frequencies.size(); ++e)
          for (const auto& [samples, passes] : expected.dealt.passes[e])
            EXPECT_NEAR(found.dealt.passes[e][samples], passes, 2 * kNear) << e << ", " << samples;
        EXPECT_LE(found.dealt.idle, found.undealt.idle + 1e-12);
        EXPECT_EQ(found.worst_sent, most_sent(std::ranges::max(own), static_cast<int>(own.size())));
      }
}
DealForecast found(const std::vector<double>& f) { return deal_forecast(f, {4, 4, 4}, {1}); }

/// Of up to four samples on a rank: one plan runs them at once and recomputes, the other one by one and keeps all.
std::vector<PassPlan> two_plans() { return {{{}, {4, 4, 4, 4.5}}, {{}, {1.5, 3, 4.5, 6}}}; }

TEST(PlansByUse, TakeTheFewestSecondsForHowOftenAnExpertIsChosen) {
  DealForecast::Way use;
  use.passes = {{{4, 0.9}, {3, 0.1}}, {{1, 0.3}}, {}, {{4, 0.5}, {1, 0.5}}};
  EXPECT_EQ(plans_by_use(two_plans(), use), (std::vector<size_t>{0, 1, 1, 1}));
  EXPECT_DOUBLE_EQ(seconds_of(two_plans()[0], use.passes[3]), 4.25);
  EXPECT_DOUBLE_EQ(seconds_of(two_plans()[1], use.passes[3]), 3.75);
  EXPECT_EQ(seconds_of(two_plans()[1], use.passes[2]), 0) << "no step chose it";
  std::vector<PassPlan> near = two_plans();
  near[1].seconds = {3.97, 3.97, 3.97, 4.47};
  EXPECT_EQ(plans_by_use(near, use), std::vector<size_t>(4, 0)) << "a per cent is no reason";
  near[1].seconds = {3.95, 3.95, 3.95, 4.45};
  EXPECT_EQ(plans_by_use(near, use), std::vector<size_t>(4, 1));
  EXPECT_EQ(plans_by_use({two_plans()[0]}, use), std::vector<size_t>(4, 0));
}

TEST(PlansByUse, FollowTheFrequencies) {
  const auto chosen = [](const std::vector<double>& frequencies) {
    return plans_by_use(two_plans(), deal_forecast(frequencies, {4, 4}, {1}).dealt);
  };
  EXPECT_EQ(chosen({0.9, 0.1}), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(chosen({1, 9}), (std::vector<size_t>{1, 0}));
  EXPECT_EQ(chosen({1, 0}), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(chosen({0.2, 0.2, 0.2, 0.2, 0.2}), std::vector<size_t>(5, 1));
}

TEST(StepUse, HasMicroBatchesOfEachExpert) {
  const StepUse use = step_use({{4, 4}, {1, 0}}, {4, 1});
  EXPECT_EQ(use.micros, 4);
  EXPECT_EQ(use.dummies, 1);
  EXPECT_EQ(use.room, 10);
}

TEST(Forecast, IsTheSameForTheSameFrequenciesInAnyUnit) {
  EXPECT_EQ(found({0.9, 0.1}).dealt.idle, found({90, 10}).dealt.idle);
  EXPECT_EQ(found({1, 0}).undealt.idle, 0) << "a single expert leaves nothing unused";
  EXPECT_EQ(found({1, 0}).moved, 0);
}

/// The share of the mean step that pairs of experts side by side save, of the plan that a search finds.
double saved(const toy::Network& network, const char* profile, const std::vector<int64_t>& own,
             const std::vector<double>& frequencies) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  Machine machine;
  machine.profile = find_profile(profile);
  machine.work = network.work, machine.dtype = "bf16";
  PlannerInput input;
  input.global_batch = sum(own), input.micro_batch = 1;
  input.budget = machine.profile.device.memory / 10 * 8, input.host_budget = 400 * kGiB;
  Plan plan = choose(network.model, Mesh::parse("dp_shard=" + std::to_string(own.size())), input, machine).plan;
  const auto mean = [&](int together) {
    plan.together = together;
    return gate_mean(network.model, plan, machine, frequencies, own, 0).dealt;
  };
  const double apart = mean(1);
  return 1 - mean(2) / apart;
}

/// The rows of a table of docs/experts.md whose first cell fits, by their cells.
std::vector<std::vector<std::string>> rows_of(const std::string& first) {
  std::ifstream page(TESSERA_SOURCE_DIR "/docs/experts.md");
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(page, line);) {
    std::vector<std::string> cells;
    std::istringstream in(line);
    for (std::string cell; std::getline(in, cell, '|');) cells.push_back(cell);
    if (cells.size() > 1 && std::regex_match(cells[1], std::regex(first))) rows.push_back(cells);
  }
  return rows;
}
std::vector<double> frequencies_of(const std::string& cell) {
  if (cell.find("five alike") != cell.npos) return {1, 1, 1, 1, 1};
  std::vector<double> frequencies;
  std::istringstream in(cell);
  for (std::string one; std::getline(in, one, '/');) frequencies.push_back(std::stod(one));
  return frequencies;
}
std::vector<int64_t> own_of(int ranks, int64_t batch) {
  std::vector<int64_t> own;
  for (int r = 0; r < ranks; ++r) own.push_back(batch / ranks + (r < batch % ranks));
  return own;
}

TEST(Forecast, IsThatOfTheTableOfThePageWithItsBytesAndWhatPairsSave) {
  // A clip of 81 x 480 x 832 of Wan: what is noisy and the target of 16 x 21 x 60 x 104 numbers, and 512 rows of text.
  constexpr double kBytes = 1024 + 2 * 4 * 16 * 21 * 60 * 104 + 4 * 512 * 4096 + 8;
  const toy::Network wan = toy::transformer({.dim = 1536, .ffn = 8960, .blocks = 30, .tokens = 32760});
  const auto rows = rows_of(R"( [234], (8|32) )");
  ASSERT_EQ(rows.size(), 15U);
  for (const auto& cells : rows) {
    ASSERT_EQ(cells.size(), 9U) << cells[1];
    int ranks = 0, batch = 0;
    ASSERT_EQ(std::sscanf(cells[1].c_str(), " %d, %d", &ranks, &batch), 2);
    const std::vector<double> frequencies = frequencies_of(cells[2]);
    const std::vector<int64_t> own = own_of(ranks, batch);
    const DealForecast forecast = deal_forecast(frequencies, own, {1}),
                       beside = deal_forecast(frequencies, own, {1}, /*together=*/true);
    EXPECT_NEAR(std::stod(cells[3]), 100 * forecast.undealt.idle, 0.0501) << cells[1] << cells[2];
    EXPECT_NEAR(std::stod(cells[4]), 100 * forecast.dealt.idle, 0.0501) << cells[1] << cells[2];
    EXPECT_NEAR(std::stod(cells[5]), forecast.moved, 0.0501) << cells[1] << cells[2];
    EXPECT_NEAR(std::stod(cells[6]), forecast.moved * kBytes / 1e6, 0.501) << cells[1] << cells[2];
    EXPECT_NEAR(std::stod(cells[7]), 100 * beside.dealt.idle, 0.0501) << cells[1] << cells[2];
    EXPECT_NEAR(std::stod(cells[8]), 100 * saved(wan, "h200", own, frequencies), 0.0501) << cells[1] << cells[2];
  }
}

/// Where a step gathers longer than it computes there is little to save.
TEST(Forecast, OfPairsIsLittleWhereStepsAreBoundByTheirLinks) {
  const toy::Network picture = toy::transformer({.dim = 5120, .ffn = 13824, .blocks = 6, .tokens = 1560});
  for (const int ranks : {2, 4})
    for (const std::vector<double>& frequencies : {std::vector<double>{90, 10}, {60, 30, 10}, {1, 1, 1, 1, 1}})
      EXPECT_LT(saved(picture, "8x4090", own_of(ranks, 8), frequencies), 0.1) << ranks;
}

}  // namespace
}  // namespace tessera::plan
