#include "tessera/data/order.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "data/scene.h"
#include "tessera/base/random.h"

namespace tessera::data {

TEST(SampleOrder, EveryEpochIsAPermutation) {
  const SampleOrder order(7, 13);
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < 13; ++i) seen.push_back(order.at(epoch * 13 + i));
    std::sort(seen.begin(), seen.end());
    std::vector<int64_t> all(13);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all);
  }
}

TEST(SampleOrder, EpochsAndSeedsShuffleDifferently) {
  const auto epoch = [](uint64_t seed, int64_t number) {
    const SampleOrder order(seed, 50);
    return order.batch(number * 50, 50, 0, 1);
  };
  EXPECT_NE(epoch(1, 0), epoch(1, 1));
  EXPECT_NE(epoch(1, 0), epoch(2, 0));
  EXPECT_EQ(epoch(1, 3), epoch(1, 3));
}

TEST(SampleOrder, ResumesAnywhere) {
  const SampleOrder whole(3, 7);
  for (int64_t position : {0, 6, 7, 40}) {
    const auto place = whole.place(position);
    const SampleOrder resumed(3, 7);
    EXPECT_EQ(resumed.at(resumed.position(place)), whole.at(position));
  }
  EXPECT_EQ(whole.place(40), (SampleOrder::Place{5, 5}));
}

TEST(SampleOrder, RanksTogetherTakeTheGlobalBatchOnEveryLayout) {
  const SampleOrder order(11, 10);
  const auto whole = order.batch(8, 6, 0, 1);  // crosses an epoch
  for (const int dp_size : {2, 3, 4, 6, 8}) {
    std::vector<int64_t> together;
    for (int rank = 0; rank < dp_size; ++rank)
      for (const int64_t index : order.batch(8, 6, rank, dp_size)) together.push_back(index);
    EXPECT_EQ(together, whole) << dp_size;
  }
}

TEST(SampleOrder, IsSpreadEvenly) {
  std::vector<int> first(5);
  const SampleOrder order(1, 5);
  for (int64_t epoch = 0; epoch < 5000; ++epoch) ++first[static_cast<size_t>(order.at(epoch * 5))];
  for (const int count : first) EXPECT_NEAR(count, 1000, 130);
}

TEST(BatchOrder, WithOneBucketIsTheSampleOrder) {
  const SampleOrder plain(5, 9);
  const BatchOrder order(5, std::vector<int>(9, 0), 4);
  for (int64_t position = 0; position < 100; ++position) {
    EXPECT_EQ(order.at(position).index, plain.at(position));
    EXPECT_EQ(order.at(position).epoch, position / 9);
  }
}

TEST(BatchOrder, AGlobalBatchHoldsOneBucketAndNoSampleIsLeftOut) {
  std::vector<int> buckets;  // 7 samples of bucket 2, 3 of bucket 0, 1 of bucket 5
  for (const auto& [bucket, count] : {std::pair{2, 7}, {0, 3}, {5, 1}}) buckets.insert(buckets.end(), count, bucket);
  const int64_t batch = 4, size = 11;
  const BatchOrder order(5, buckets, batch);
  std::vector<int> seen(size);
  for (int64_t step = 0; step < 2 * size; ++step) {
    for (int64_t place = 0; place < batch; ++place) {
      const auto pick = order.at(step * batch + place);
      EXPECT_EQ(buckets[static_cast<size_t>(pick.index)], order.bucket(step));
      EXPECT_EQ(pick.epoch, seen[static_cast<size_t>(pick.index)]) << "an epoch has each sample once";
      ++seen[static_cast<size_t>(pick.index)];
    }
  }
  for (const int count : seen) EXPECT_EQ(count, 2 * batch) << "11 steps are 4 epochs of all";
}

TEST(BatchOrder, BucketsGetTheirShareAtAnyTime) {
  std::vector<int> buckets(90, 0);
  buckets.resize(100, 1);
  const BatchOrder order(1, buckets, 8);
  int64_t rare = 0;
  for (int64_t step = 0; step < 250; ++step) {
    rare += order.bucket(step) == 1;
    EXPECT_NEAR(static_cast<double>(rare), 0.1 * static_cast<double>(step + 1), 1.0) << step;
  }
}

TEST(BatchOrder, ResumesAnywhere) {
  const std::vector<int> buckets = {0, 1, 1, 0, 1, 2, 0};
  const BatchOrder whole(9, buckets, 3);
  std::vector<int64_t> all;
  for (int64_t p = 0; p < 60; ++p) all.push_back(whole.at(p).index);
  for (const int64_t from : {1, 17, 41}) {
    const BatchOrder resumed(9, buckets, 3);
    for (int64_t p = from; p < 60; ++p) EXPECT_EQ(resumed.at(p).index, all[static_cast<size_t>(p)]);
  }
}

TEST(Captions, AreDrawnAnewEachEpochAndAllComeUp) {
  std::vector<int> seen(3);
  bool changes = false;
  for (int64_t epoch = 0; epoch < 300; ++epoch) {
    const int64_t caption = draw_caption(4, epoch, 17, 3);
    EXPECT_EQ(caption, draw_caption(4, epoch, 17, 3));
    changes = changes || caption != draw_caption(4, epoch, 18, 3);
    ++seen[static_cast<size_t>(caption)];
  }
  EXPECT_TRUE(changes) << "samples draw for themselves";
  for (const int count : seen) EXPECT_NEAR(count, 100, 30);
}

TEST(SampleOrder, OfNothingIsRefused) {
  expect_error(Exit::input, {"dataset is empty"}, [] { SampleOrder(1, 0); });
}

TEST(BatchOrder, BatchesOfAnotherSizeGoOnWhereTheLastOnesEnded) {
  const BatchOrder before(5, std::vector<int>(11, 0), 4), after(5, std::vector<int>(11, 0), 6);
  std::vector<int64_t> seen;
  for (int64_t i = 0; i < 8; ++i) seen.push_back(before.at(i).index);
  for (int64_t i = 0; i < 3; ++i) seen.push_back(after.at(after.go_on(8) + i).index);
  std::sort(seen.begin(), seen.end());
  std::vector<int64_t> all(11);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all) << "the epoch is finished without a sample twice";
}

TEST(BatchOrder, WithSeveralBucketsBatchesOfAnotherSizeBeginWhereABatchBegins) {
  std::vector<int> buckets(11, 0);
  buckets[3] = buckets[7] = 1;
  const BatchOrder after(5, buckets, 6);
  EXPECT_EQ(after.go_on(12), 12);
  const int64_t position = after.go_on(8);
  EXPECT_EQ(position, 12);
  for (int64_t i = 0; i < 6; ++i)
    EXPECT_EQ(buckets[static_cast<size_t>(after.at(position + i).index)], after.bucket(position / 6));
}

/// Three buckets of 30, 12 and 7 samples with batches of 6, 4 and 1.
std::vector<int> three_buckets() {
  std::vector<int> buckets(30, 0);
  buckets.resize(42, 1);
  buckets.resize(49, 2);
  return buckets;
}

TEST(BatchOrder, BucketsHaveBatchesOfTheirOwnAndEveryClipComesEquallyOften) {
  const std::vector<int> buckets = three_buckets();
  const std::map<int, int64_t> batches = {{0, 6}, {1, 4}, {2, 1}};
  const BatchOrder order(5, buckets, 8, batches);
  EXPECT_EQ(order.stride(), 6);
  std::vector<int64_t> used(3), seen(buckets.size());
  const std::vector<int64_t> sizes = {30, 12, 7};
  int64_t samples = 0;
  for (int64_t step = 0; step < 15 * 40; ++step) {
    const int bucket = order.bucket(step);
    ASSERT_EQ(order.batch_size(step), batches.at(bucket));
    ASSERT_EQ(order.consumed(step * order.stride()), samples);
    for (int64_t place = 0; place < order.batch_size(step); ++place) {
      const BatchOrder::Pick pick = order.at(step * order.stride() + place);
      ASSERT_EQ(buckets[static_cast<size_t>(pick.index)], bucket) << "a step has one bucket";
      ASSERT_EQ(pick.epoch, seen[static_cast<size_t>(pick.index)]++) << "each sample once in an epoch of its bucket";
    }
    samples += order.batch_size(step);
    used[static_cast<size_t>(bucket)] += order.batch_size(step);
    for (size_t b = 0; b < 3; ++b) {
      const double due = static_cast<double>(samples) * static_cast<double>(sizes[b]) / 49;
      ASSERT_NEAR(static_cast<double>(used[b]), due, 2 * 6) << "step " << step;
    }
  }
  // 5 + 3 + 7 batches are an epoch of all three
  EXPECT_EQ(used, (std::vector<int64_t>{40 * 30, 40 * 12, 40 * 7}));
}

TEST(BatchOrder, BatchesOfSeveralSizesAreFoundAnywhereAndGoOnWhereOthersEnded) {
  const BatchOrder whole(5, three_buckets(), 8, {{0, 6}, {1, 4}, {2, 1}});
  std::vector<int> turns;
  for (int64_t step = 0; step < 100; ++step) turns.push_back(whole.bucket(step));
  for (const int64_t step : {99, 3, 40, 41})
    EXPECT_EQ(BatchOrder(5, three_buckets(), 8, {{0, 6}, {1, 4}, {2, 1}}).bucket(step),
              turns[static_cast<size_t>(step)]);
  for (const int64_t step : {0, 1, 17, 60}) {
    const int64_t position = step * whole.stride();
    EXPECT_EQ(whole.go_on(whole.consumed(position)), position) << "at the batch that comes next";
  }
}

TEST(BatchOrder, EqualBatchesAreThoseOfOneGlobalBatch) {
  const BatchOrder one(5, three_buckets(), 4), each(5, three_buckets(), 9, {{0, 4}, {1, 4}, {2, 4}});
  for (int64_t position = 0; position < 400; ++position) {
    EXPECT_EQ(one.at(position).index, each.at(position).index);
    EXPECT_EQ(one.go_on(position), each.go_on(position));
  }
}

/// Samples of two sets that share shape 0, the second one with a shape of its own besides.
struct TwoSets {
  std::vector<int> buckets, sets;
  TwoSets() {
    for (const auto& [set, bucket, count] : {std::tuple(0, 0, 6), {1, 0, 4}, {1, 3, 5}}) {
      buckets.insert(buckets.end(), count, bucket);
      sets.insert(sets.end(), count, set);
    }
  }
  BatchOrder order(int64_t batch, std::vector<double> amounts, uint64_t seed = 5) const {
    return {seed, buckets, batch, {}, {sets, std::move(amounts)}};
  }
};

TEST(SetOrder, ASetAloneIsTheOrderWithoutSets) {
  for (const std::vector<int>& buckets : {std::vector<int>(9, 0), three_buckets()}) {
    const BatchOrder plain(5, buckets, 4);
    const BatchOrder order(5, buckets, 4, {}, {std::vector<int>(buckets.size(), 0), {double(buckets.size())}});
    for (int64_t position = 0; position < 400; ++position) {
      EXPECT_EQ(order.at(position).index, plain.at(position).index);
      EXPECT_EQ(order.at(position).epoch, plain.at(position).epoch);
      EXPECT_EQ(order.place(position), plain.place(position));
      EXPECT_EQ(order.go_on(position), plain.go_on(position));
    }
  }
}

// 6 samples three times and 9 twice: an epoch of 36, in which each comes as often as its set's repeats say.
TEST(SetOrder, AnEpochHasEachSampleAsOftenAsItsSetsRepeats) {
  const TwoSets data;
  const BatchOrder order = data.order(4, {18, 18});
  EXPECT_EQ(order.size(), 36);
  std::vector<int> seen(15);
  for (int64_t step = 0; step < 3 * 9; ++step)
    for (int64_t place = 0; place < 4; ++place) {
      const BatchOrder::Pick pick = order.at(step * 4 + place);
      EXPECT_EQ(data.buckets[static_cast<size_t>(pick.index)], order.bucket(step)) << "a batch has one shape";
      EXPECT_EQ(pick.epoch, seen[static_cast<size_t>(pick.index)]++) << "none comes twice before its set's others";
    }
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_NEAR(seen[i], data.sets[i] == 0 ? 9 : 6, 1) << i;
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 3 * 36);
}

TEST(SetOrder, SharesHoldAtAnyTimeAndFractionsAreKept) {
  std::vector<int> sets(1000, 0);
  std::fill(sets.begin() + 10, sets.end(), 1);  // 10 samples and 990
  const BatchOrder order(5, std::vector<int>(1000, 0), 8, {}, {sets, {300.5, 700}});
  EXPECT_EQ(order.size(), 1001) << "rounded";
  int64_t small = 0;
  for (int64_t position = 0; position < 3000; ++position) {
    EXPECT_EQ(order.of_sets(position), (std::vector{small, position - small}));
    EXPECT_NEAR(static_cast<double>(small), static_cast<double>(position) * 300.5 / 1000.5, 1);
    small += sets[static_cast<size_t>(order.at(position).index)] == 0;
  }
}

TEST(SetOrder, OneSetsOrderDoesNotDependOnTheOthersShare) {
  const TwoSets data;
  const auto of_first = [&](const BatchOrder& order) {
    std::vector<int64_t> indices;
    for (int64_t position = 0; indices.size() < 30; ++position)
      if (const int64_t index = order.at(position).index; index < 6) indices.push_back(index);
    return indices;
  };
  EXPECT_EQ(of_first(data.order(4, {6, 9})), of_first(data.order(3, {60, 9})));
  EXPECT_NE(of_first(data.order(4, {6, 9})), of_first(data.order(4, {6, 9}, 6)));
}

TEST(SetOrder, OtherSharesGoOnBehindWhatEachSetHasSeen) {
  const TwoSets data;
  for (const int64_t steps : {1, 4, 7, 20}) {
    const BatchOrder before = data.order(4, {6, 9});
    std::vector<int> seen(15);
    for (int64_t position = 0; position < 4 * steps; ++position) ++seen[static_cast<size_t>(before.at(position).index)];
    const std::vector<int64_t> of_sets = before.of_sets(4 * steps);
    BatchOrder after = data.order(4, {60, 9});
    const int64_t position = after.go_on(before.consumed(4 * steps));
    after.go_on_in_sets(position, of_sets);
    EXPECT_EQ(after.of_sets(position), of_sets);
    for (int64_t place = 0; place < 6;
         ++place) {  // of the first set, which has one shape, those are next that were least seen
      int64_t at = position;
      for (int64_t own = -1; own < place; ++at) own += after.at(at).index < 6;
      const int64_t index = after.at(at - 1).index;
      ++seen[static_cast<size_t>(index)];
    }
    const auto [least, most] = std::minmax_element(seen.begin(), seen.begin() + 6);
    EXPECT_LE(*most - *least, 1) << steps;
    BatchOrder again = data.order(4, {60, 9});  // a start behind two more steps of the changed run
    again.go_on_in_sets(position + 8, after.of_sets(position + 8));
    for (int64_t p = position + 8; p < position + 80; ++p) EXPECT_EQ(again.at(p).index, after.at(p).index);
  }
}

TEST(SetOrder, BatchesOfSeveralSizesAndSetsTakeWhatIsDue) {
  const TwoSets data;
  const BatchOrder order(5, data.buckets, 8, {{0, 6}, {3, 2}}, {data.sets, {6, 18}});
  std::vector<int64_t> used(2);
  int64_t samples = 0;
  for (int64_t step = 0; step < 200; ++step) {
    ASSERT_EQ(order.consumed(step * order.stride()), samples);
    ASSERT_EQ(order.of_sets(step * order.stride()), used);
    ASSERT_EQ(order.batch_size(step), order.bucket(step) == 0 ? 6 : 2);
    for (int64_t place = 0; place < order.batch_size(step); ++place, ++samples)
      ++used[static_cast<size_t>(data.sets[static_cast<size_t>(order.at(step * order.stride() + place).index)])];
  }
  EXPECT_NEAR(static_cast<double>(used[0]) / static_cast<double>(samples), 0.25, 0.02);
}

TEST(Turns, ThatAreApartAreEachNthButTheFirst) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomKey draw(seed, Purpose::order, 1);
    uint64_t d = 0;
    const auto number = [&](int64_t least, int64_t most) {
      return least + static_cast<int64_t>(draw.below(d++, static_cast<uint64_t>(most - least + 1)));
    };
    const auto members = static_cast<size_t>(number(2, 5));
    const int64_t every = number(2, 7);
    std::vector<int64_t> rates, batches, half_rates[2], half_batches[2];
    std::vector<bool> apart;
    std::vector<int32_t> of_halves[2];
    for (size_t i = 0; i < members; ++i) {
      rates.push_back(number(1, 40)), batches.push_back(number(1, 6));
      apart.push_back(i == 0 ? false : i == 1 ? true : number(0, 1) == 1);
      half_rates[apart[i]].push_back(rates[i]), half_batches[apart[i]].push_back(batches[i]);
      of_halves[apart[i]].push_back(static_cast<int32_t>(i));
    }
    const Turns turns(rates, batches, apart, every);
    const Turns halves[] = {Turns(half_rates[0], half_batches[0]), Turns(half_rates[1], half_batches[1])};
    std::vector<int64_t> before(members);
    int64_t of_half[2] = {0, 0};
    for (int64_t n = 0; n < 200; ++n) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", turn " + std::to_string(n));
      const bool is_apart = n > 0 && n % every == 0;
      const Turns::Turn turn = turns.at(n), alone = halves[is_apart].at(of_half[is_apart]++);
      ASSERT_EQ(turn.whose, of_halves[is_apart].at(static_cast<size_t>(alone.whose)));
      ASSERT_EQ(turn.number, alone.number);
      ASSERT_EQ(turns.before(turn), before);
      ++before[static_cast<size_t>(turn.whose)];
    }
  }
}

/// Shapes 3 and 5 have one frame; 4 is a clip's.
TEST(BatchOrder, GivesImagesEachNthBatch) {
  std::vector<int> buckets;
  for (int i = 0; i < 30; ++i) buckets.push_back(i < 4 ? 3 : i < 20 ? 4 : 5);
  const std::map<int, int64_t> batches = {{3, 2}, {4, 4}, {5, 2}};
  const BatchOrder order(9, buckets, 4, batches, {}, {.buckets = {3, 5, 8}, .every = 5});
  std::map<int, int> steps;
  std::map<int64_t, int> seen;
  int64_t samples = 0;
  for (int64_t step = 0; step < 600; ++step) {
    const int bucket = order.bucket(step);
    ASSERT_EQ(bucket != 4, step > 0 && step % 5 == 0) << step;
    ASSERT_EQ(order.consumed(step * order.stride()), samples) << step;
    ASSERT_EQ(order.go_on(samples), step * order.stride());
    for (int64_t i = 0; i < order.batch_size(step); ++i) ++seen[order.at(step * order.stride() + i).index];
    samples += order.batch_size(step), ++steps[bucket];
  }
  EXPECT_NEAR(steps[5], steps[3] * 2.5, 3) << "images among each other come by their number";
  for (int64_t i = 0; i < 30; ++i) EXPECT_NEAR(seen[i], i < 4 || i >= 20 ? 119 * 2 / 14 : 481 * 4 / 16, 1) << i;
}

TEST(BatchOrder, RefusesTurnsOfImagesWithoutBoth) {
  const auto refused = [](const std::vector<int>& buckets) -> std::string {
    try {
      const BatchOrder order(1, buckets, 2, {}, {}, {.buckets = {1}, .every = 3});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused({0, 0}).find("no image"), std::string::npos);
  EXPECT_NE(refused({1, 1}).find("images alone"), std::string::npos);
  EXPECT_EQ(refused({0, 1}), "");
}

}  // namespace tessera::data
