#include "tessera/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace tessera {
namespace {

std::vector<float> normals(const RandomKey& key, uint64_t first, size_t count) {
  std::vector<float> values(count);
  key.normal(values.data(), first, count);
  return values;
}

TEST(RandomKey, AnElementDoesNotDependOnHowItsRangeIsCut) {
  const RandomKey key(7, Purpose::noise, 3, 5);
  const std::vector<float> whole = normals(key, 0, 1001);
  for (const size_t first : {size_t{0}, size_t{1}, size_t{6}, size_t{333}, size_t{1000}}) {
    const std::vector<float> tail = normals(key, first, whole.size() - first);
    EXPECT_EQ(tail, std::vector<float>(whole.begin() + static_cast<std::ptrdiff_t>(first), whole.end()));
    EXPECT_EQ(static_cast<float>(key.normal(first)), whole[first]);
  }
}

TEST(RandomKey, EveryPartOfTheKeyChangesTheNumbers) {
  std::set<uint32_t> seen;
  for (const RandomKey& key :
       {RandomKey(1, Purpose::noise, 2, 3), RandomKey(2, Purpose::noise, 2, 3), RandomKey(1, Purpose::timestep, 2, 3),
        RandomKey(1, Purpose::noise, 3, 3), RandomKey(1, Purpose::noise, 2, 4), RandomKey(1, Purpose::noise, 3, 2)})
    seen.insert(key.bits(0));
  EXPECT_EQ(seen.size(), 6u);
}

TEST(RandomKey, NumbersHaveTheirDistribution) {
  const RandomKey key(11, Purpose::test);
  constexpr int kCount = 40'000;
  double sum = 0, squares = 0, uniform = 0;
  std::vector<int> tally(7);
  for (const float x : normals(key, 0, kCount)) sum += x, squares += double{x} * x;
  for (int i = 0; i < kCount; ++i) {
    const double u = key.uniform(static_cast<uint64_t>(i));
    ASSERT_TRUE(u > 0 && u < 1);
    uniform += u;
    ++tally[key.below(static_cast<uint64_t>(i), tally.size())];
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 1, 0.03);
  EXPECT_NEAR(uniform / kCount, 0.5, 0.01);
  for (const int times : tally) EXPECT_NEAR(times, kCount / 7.0, 300);
}

TEST(RandomKey, HalfWordsOfARangeAreThoseOfTheWhole) {
  const RandomKey key(5, Purpose::rounding, 9);
  std::vector<uint16_t> whole(100), part(40);
  key.half_words(whole.data(), 0, whole.size());
  key.half_words(part.data(), 13, part.size());
  EXPECT_EQ(part, std::vector<uint16_t>(whole.begin() + 13, whole.begin() + 53));
}

TEST(RandomKey, TextsHashByFnv1a) {
  EXPECT_EQ(hash_text(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash_text("a"), 0xaf63dc4c8601ec8cu);
}

}  // namespace
}  // namespace tessera
