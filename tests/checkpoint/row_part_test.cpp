#include "tessera/checkpoint/row_part.h"

#include <numeric>

#include "checkpoint/files.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::checkpoint {

TEST(RowPart, NamesComeApartAndTogether) {
  const auto part = row_part("blocks.0.attn.qkv.1of3.weight");
  ASSERT_TRUE(part);
  EXPECT_EQ(part->whole, "blocks.0.attn.qkv.weight");
  EXPECT_EQ(part->first, 1);
  EXPECT_EQ(part->last, 2);
  EXPECT_EQ(part->count, 3);
  for (const char* name :
       {"a.1of3.weight", "a.b.3-6of7.weight", "a.1-4of5c.weight", "a.0of3p128.bias", "a.0of1p8.scale"})
    EXPECT_EQ(part_name(whole_name(name), *row_part(name)), name);
  EXPECT_EQ(whole_name("a.weight"), "a.weight");
  for (const char* other :
       {"weight", "a.weight", "blocks.0.attn.weight", "a.3of3.weight", "a.1of.weight", "a.of2.weight", "a.-1of2.weight",
        "a.1of2x.weight", "a.2-1of3.weight", "a.0-3of3.weight", "a.0of1p3.weight", "a.0of1p0.weight"})
    EXPECT_FALSE(row_part(other)) << other;
}

TEST(RowPart, AWeightSetReadsThem) {
  const Path path = Path(::testing::TempDir()) / "row_part.safetensors";
  const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  write_safetensors(path, {{"a.qkv.weight", DType::f32, {6, 2}, values.data()}});
  const WeightSet set = open_weights(path);
  EXPECT_TRUE(set.contains("a.qkv.2of3.weight"));
  EXPECT_FALSE(set.contains("a.other.2of3.weight"));
  EXPECT_EQ(set.at("a.qkv.2of3.weight").shape, (Shape{2, 2}));
  EXPECT_EQ(set.at("a.qkv.2of3.weight").name, "a.qkv.2of3.weight");
  std::vector<float> found(2);
  set.read_f32("a.qkv.1of3.weight", 1, 2, found.data());
  EXPECT_EQ(found, (std::vector<float>{5, 6}));
  set.read("a.qkv.2of3.weight", 2, 2, found.data());
  EXPECT_EQ(found, (std::vector<float>{10, 11}));
  EXPECT_THROW(set.at("a.qkv.0of4.weight"), UserError) << "six rows are not four equal parts";
}

namespace {

/// The values of a part by what its name means, of a stored tensor with the values 0, 1, 2, ...
std::vector<float> by_definition(const RowPart& part, const std::vector<int64_t>& stored) {
  const int64_t width = std::accumulate(stored.begin() + 1, stored.end(), int64_t{1}, std::multiplies<>());
  std::vector<float> values;
  if (part.columns) {
    const int64_t one = stored[1] / part.count * (width / stored[1]);
    for (int64_t row = 0; row < stored[0]; ++row)
      for (int64_t c = part.first * one; c < part.last * one; ++c)
        values.push_back(static_cast<float>(row * width + c));
    return values;
  }
  const int64_t one = stored[0] / part.count;
  for (int64_t row = 0; row < (part.last - part.first) * one; ++row) {
    int64_t there = row;
    if (part.pairs > 0) {
      const int64_t head = row / part.pairs, in = row % part.pairs, half = part.pairs / 2;
      there = head * part.pairs + (in < half ? 2 * in : 2 * (in - half) + 1);
    }
    for (int64_t c = 0; c < width; ++c) values.push_back(static_cast<float>((part.first * one + there) * width + c));
  }
  return values;
}

}  // namespace

// Rows, columns and heads; the first, a middle and the last part, and several together; matrices, vectors and kernels.
TEST(RowPart, EveryRangeOfEveryPartHasTheElementsThatTheNameMeansAndGoesBackToItsPlace) {
  const std::pair<const char*, std::vector<int64_t>> cases[] = {
      {"a.0of3.w", {6, 5}},    {"a.1of3.w", {6, 5}},    {"a.1-2of3.w", {6, 2, 3}}, {"a.2of3.b", {6}},
      {"a.0of4c.w", {3, 8}},   {"a.1-2of4c.w", {3, 8}}, {"a.2-3of4c.w", {3, 8}},   {"a.1of2c.w", {2, 4, 3}},
      {"a.0of3p4.w", {24, 3}}, {"a.1of3p4.w", {24, 3}}, {"a.2of3p8.w", {24, 2}},   {"a.1of2p6.b", {24}},
      {"a.0of1p4.w", {12, 2}}};
  for (const auto& [name, stored] : cases) {
    const RowPart part = *row_part(name);
    const int64_t all = std::accumulate(stored.begin(), stored.end(), int64_t{1}, std::multiplies<>());
    std::vector<float> whole(static_cast<size_t>(all));
    std::iota(whole.begin(), whole.end(), 0.0f);
    const std::vector<float> expected = by_definition(part, stored);
    const auto read = [&](int64_t begin, int64_t count, void* to) {
      ASSERT_LE(begin + count, all);
      std::copy_n(whole.begin() + begin, count, static_cast<float*>(to));
    };
    const auto count = static_cast<int64_t>(expected.size());
    for (int64_t begin = 0; begin < count; ++begin)
      for (int64_t end = begin + 1; end <= count; ++end) {
        std::vector<float> found(static_cast<size_t>(end - begin));
        read_part(part, stored, sizeof(float), begin, end - begin, read, found.data());
        ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + begin))
            << name << ", elements " << begin << " to " << end;
      }
    std::vector<float> put(whole.size(), -1);
    put_part(part, stored, sizeof(float), expected.data(), put.data());
    for (size_t i = 0; i < put.size(); ++i)
      ASSERT_TRUE(put[i] == whole[i] || put[i] == -1) << name << ", element " << i;
    EXPECT_EQ(std::ranges::count(put, -1.0f), all - count) << name;
  }
}

}  // namespace tessera::checkpoint
