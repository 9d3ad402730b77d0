// Where the samples of a run go on when its batches change between two starts.
#include <gtest/gtest.h>

#include <set>

#include "tessera/prepare/stage_data.h"

namespace tessera::prepare {
namespace {

constexpr int64_t kSamples = 12;

/// One part of a run, from step 1, whose order alone is asked.
StageData part(int64_t global_batch, int64_t first_step = 1, int64_t position = 0) {
  return {nullptr, data::BatchOrder(7, std::vector<int>(kSamples, 0), global_batch), first_step, position,
          global_batch};
}

std::set<int64_t> seen(const StageData& data, int64_t first, int64_t last) {
  std::set<int64_t> indices;
  for (int64_t step = first; step <= last; ++step)
    for (int64_t place = 0; place < data.batch(step); ++place) indices.insert(data.pick(step, place).index);
  return indices;
}

TEST(StageData, ARunThatGoesOnWithOtherBatchesSeesEachSampleOfTheEpochOnce) {
  const StageData before = part(2);
  std::vector<StageData> after = {part(3)};
  go_on_behind(after, 3, before.place_after(3));
  std::set<int64_t> all = seen(before, 1, 3);
  ASSERT_EQ(all.size(), 6u);
  for (const int64_t index : seen(after[0], 4, 5)) EXPECT_TRUE(all.insert(index).second) << index << " came twice";
  EXPECT_EQ(all.size(), static_cast<size_t>(kSamples));
  EXPECT_EQ(after[0].place_after(5), (data::SampleOrder::Place{1, 0}));
}

TEST(StageData, TheNextStartOfSuchARunGoesOnWithIt) {
  std::vector<StageData> once = {part(3)};
  go_on_behind(once, 3, part(2).place_after(3));
  std::vector<StageData> again = {part(3)};
  go_on_behind(again, 4, once[0].place_after(4));
  for (int64_t step = 5; step < 12; ++step)
    for (int64_t place = 0; place < 3; ++place)
      EXPECT_EQ(again[0].pick(step, place).index, once[0].pick(step, place).index) << step;
}

TEST(StageData, TheSameBatchesChangeNothing) {
  std::vector<StageData> data = {part(2), part(4, 6, 10)};
  for (const int64_t done : {0, 3, 5, 8}) {
    std::vector<StageData> resumed = data;
    go_on_behind(resumed, done, data[done < 6 ? 0 : 1].place_after(done));
    for (size_t p = 0; p < data.size(); ++p) {
      EXPECT_EQ(resumed[p].position, data[p].position) << done;
      EXPECT_EQ(resumed[p].first_step, data[p].first_step) << done;
    }
  }
}

TEST(StageData, LaterStagesFollow) {
  std::vector<StageData> data = {part(4), part(2, 6, 20)};
  go_on_behind(data, 3, part(2).place_after(3));  // 6 samples, then two steps of 4
  EXPECT_EQ(data[1].samples_before(6), 14);
  go_on_behind(data, 5, part(2).place_after(5));  // at the end of the first stage
  EXPECT_EQ(data[1].samples_before(6), 10);
}

// Of several shapes a batch has one: what was seen may end in the middle of it.
TEST(StageData, OfSeveralShapesARunThatGoesOnBeginsWithAWholeBatchOfOneShape) {
  std::vector<int> shapes;
  for (int64_t i = 0; i < 24; ++i) shapes.push_back(static_cast<int>(i % 3 == 0));
  const auto whole = [&](int64_t batch) { return StageData{nullptr, data::BatchOrder(7, shapes, batch), 1, 0, batch}; };
  for (const int64_t batch : {3, 4, 5})
    for (const int64_t done : {1, 2, 3}) {
      const StageData before = whole(2);
      std::vector<StageData> after = {whole(batch), whole(2)};
      after[1].first_step = done + 4;
      go_on_behind(after, done, before.place_after(done));
      EXPECT_GE(after[0].samples_before(done + 1), before.samples_before(done + 1)) << "nothing is seen twice";
      for (int64_t step = done + 1; step <= done + 6; ++step) {
        const StageData& part = after[step < done + 4 ? 0 : 1];
        for (int64_t place = 0; place < part.batch(step); ++place)
          EXPECT_EQ(shapes[static_cast<size_t>(part.pick(step, place).index)], part.bucket(step))
              << "batches of " << batch << ", step " << step << ", place " << place;
      }
    }
}

/// A part whose two sets, of 3 and 9 samples, come by these amounts.
StageData part_of_sets(std::vector<double> amounts, int64_t batch, int64_t first_step = 1) {
  std::vector<int> sets(kSamples, 1);
  std::fill(sets.begin(), sets.begin() + 3, 0);
  StageData data{nullptr, data::BatchOrder(7, std::vector<int>(kSamples, 0), batch, {}, {sets, std::move(amounts)}),
                 first_step, 0, batch};
  data.sets = {"small", "large"};
  return data;
}

TEST(StageData, SetsGoOnBehindTheirOwnSamplesInAStageAndInARunThatGoesOnWithOtherWeights) {
  const auto stages = [](double weight) {
    std::vector<StageData> data = {part_of_sets({3, 9}, 4), part_of_sets({weight, 9}, 4, 6)};
    data[1].follow(data[0]);
    return data;
  };
  std::vector<StageData> data = stages(9);
  EXPECT_EQ(data[1].seen_before(6), data[0].seen_before(6));
  EXPECT_EQ(data[1].seen_before(6)[0].samples, 5);
  EXPECT_EQ(data[1].seen_before(8)[0].samples, 5 + 4) << "half of two batches of four";
  for (const int64_t done : {2, 5, 7}) {
    std::vector<StageData> same = stages(9), other = stages(27);
    const size_t p = done < 6 ? 0 : 1;
    go_on_behind(same, done, data[p].place_after(done), data[p].seen_before(done + 1));
    go_on_behind(other, done, data[p].place_after(done), data[p].seen_before(done + 1));
    for (int64_t step = done + 1; step < done + 9; ++step) {
      const size_t now = step < 6 ? 0 : 1;
      for (int64_t place = 0; place < 4; ++place)
        EXPECT_EQ(same[now].pick(step, place).index, data[now].pick(step, place).index) << "to the bit";
    }
    EXPECT_EQ(other[p].seen_before(done + 1), data[p].seen_before(done + 1));
  }
}

TEST(StageData, ASetThatIsNewBegins) {
  StageData before = part_of_sets({3, 9}, 4), after = part_of_sets({3, 9}, 4, 4);
  after.sets = {"another", "large"};
  after.follow(before);
  EXPECT_EQ(after.seen_before(4), (std::vector<StageData::Seen>{{"another", 0}, {"large", 9}}));
}

TEST(StageData, WithoutAPlaceTheStepsSayIt) {
  std::vector<StageData> data = {part(4)};
  go_on_behind(data, 3, {});
  EXPECT_EQ(data[0].samples_before(4), 12);
}

}  // namespace
}  // namespace tessera::prepare
