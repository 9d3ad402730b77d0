#include "tessera/data/bucket_draws.h"

#include <gtest/gtest.h>

#include <map>

#include "data/scene.h"
#include "tessera/base/check.h"
#include "tessera/data/aspect_ratios.h"

namespace tessera::data {

namespace {

std::vector<Bucket> buckets_of_items(const std::vector<std::string>& items) {
  std::vector<Bucket> all;
  std::vector<std::string> sizes;
  for (const std::string& text : items) {
    const BucketItem item = parse_bucket_item(text);
    auto size = std::find(sizes.begin(), sizes.end(), item.size());
    if (size == sizes.end()) size = sizes.insert(size, item.size());
    for (Bucket bucket : buckets_of(item.shape)) {
      bucket.batch = item.batch, bucket.take = item.take, bucket.keep = item.keep;
      bucket.level = static_cast<int>(size - sizes.begin());
      all.push_back(bucket);
    }
  }
  return all;
}

/// The shapes, without the ratio, that many clips of one size go to: how many to each, "" for none.
std::map<std::string, int> where(const std::vector<Bucket>& buckets, const ClipSize& clip) {
  std::map<std::string, int> counts;
  for (int i = 0; i < 4000; ++i) {
    const BucketChoice choice = choose_drawn(buckets, clip, 0.5, 7, "clip-" + std::to_string(i));
    ++counts[choice.bucket < 0 ? "" : buckets[static_cast<size_t>(choice.bucket)].text()];
  }
  return counts;
}

}  // namespace

TEST(BucketDraws, ItemsHaveABatchAndShares) {
  const BucketItem item = parse_bucket_item("33x256px=96:0.5:0.25");
  EXPECT_EQ(item.shape, "33x256px");
  EXPECT_EQ(item.size(), "256px");
  EXPECT_EQ(item.batch, 96);
  EXPECT_EQ(item.take, 0.5);
  EXPECT_EQ(item.keep, 0.25);
  EXPECT_EQ(item.text(), "33x256px=96:0.5:0.25");
  EXPECT_EQ(parse_bucket_item("33x480x832=4").text(), "33x480x832=4");
  EXPECT_EQ(parse_bucket_item("33x480x832").batch, 0);
  EXPECT_EQ(parse_bucket_item("ASPECT_RATIO_1024").size(), "ASPECT_RATIO_1024");
  for (const char* wrong :
       {"33x256px=", "33x256px=0", "33x256px=4:2", "33x256px=4:0.5:", "33x256px=4:a", "33x256px=-3"})
    expect_error(Exit::usage, {wrong, "SHAPE=BATCH"}, [&] { parse_bucket_item(wrong); });
}

TEST(BucketDraws, ASizeTakesItsShareAndTheNextSmallerOneHasTheRest) {
  const auto buckets = buckets_of_items({"1x256px=8", "33x256px=8", "33x768px=2:0.25"});
  const auto large = where(buckets, {.height = 1024, .width = 1024, .frames = 50});
  EXPECT_NEAR(large.at("33x768x768"), 1000, 120);
  EXPECT_NEAR(large.at("33x256x256"), 3000, 120);
  EXPECT_EQ(large.size(), 2u) << "and none is left out";
  const auto small = where(buckets, {.height = 300, .width = 300, .frames = 50});
  EXPECT_EQ(small.at("33x256x256"), 4000) << "it is too small for 768px";
  const auto picture = where(buckets, {.height = 1024, .width = 1024, .frames = 1, .image = true});
  EXPECT_EQ(picture.at("1x256x256"), 4000);
}

TEST(BucketDraws, AShareOfALengthIsPassedOverForShorterOnesAndTheLastMayLeaveClipsOut) {
  const auto buckets = buckets_of_items({"17x256px=8:0.5", "65x256px=2:1:0.4"});
  const auto found = where(buckets, {.height = 256, .width = 256, .frames = 70});
  EXPECT_NEAR(found.at("65x256x256"), 1600, 130) << "kept for 0.4 of them";
  EXPECT_NEAR(found.at("17x256x256"), 1200, 130) << "which takes half of the others";
  EXPECT_NEAR(found.at(""), 1200, 130) << "the draws leave these out";
  EXPECT_EQ(choose_drawn(buckets, {.height = 256, .width = 256, .frames = 9}, 0.5, 7, "a").problem.empty(), false)
      << "too short is a fault of the clip";
}

/// Two tables of one area are two sizes all the same, and an area is the one that the table names.
TEST(BucketDraws, TablesOfOneAreaAreSizesOfTheirOwn) {
  const auto buckets = buckets_of_items({"1xASPECT_RATIO_2880=8:0.5", "1xASPECT_RATIO_4K=8"});
  const auto found = where(buckets, {.height = 3840, .width = 2160, .frames = 1, .image = true});
  EXPECT_NEAR(found.at("1x3840x2112"), 2000, 150);
  EXPECT_NEAR(found.at("1x3840x2160"), 2000, 150);
  const auto small = buckets_of_items({"1xASPECT_RATIO_240P=8"});
  const ClipSize least{.height = 192, .width = 426, .frames = 1, .image = true};  // 0.8 of 102,240, not of 320 x 320
  ASSERT_EQ(drawn_sizes(small).size(), 1u);
  EXPECT_EQ(drawn_sizes(small)[0].area, 102240);
  EXPECT_TRUE(draw_bucket(drawn_sizes(small), least, DrawStyle::shares, [](Drawn) { return 0.5; }));
}

TEST(BucketDraws, DependOnSeedAndNameAlone) {
  const auto buckets = buckets_of_items({"33x256px=8", "33x768px=2:0.5"});
  const ClipSize clip{.height = 1024, .width = 1024, .frames = 50};
  int other_seed = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string name = "clip-" + std::to_string(i);
    const int bucket = choose_drawn(buckets, clip, 0.5, 7, name).bucket;
    EXPECT_EQ(bucket, choose_drawn(buckets, clip, 0.5, 7, name).bucket);
    other_seed += bucket != choose_drawn(buckets, clip, 0.5, 8, name).bucket;
  }
  EXPECT_NEAR(other_seed, 100, 40);
}

}  // namespace tessera::data
