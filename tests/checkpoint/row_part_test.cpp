#include "tessera/checkpoint/row_part.h"

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

}  // namespace tessera::checkpoint
