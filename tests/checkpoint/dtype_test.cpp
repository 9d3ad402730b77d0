#include "tessera/checkpoint/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tessera/base/check.h"

namespace tessera::checkpoint {

template <class T>
float one(DType dtype, T bits) {
  float value;
  to_f32(dtype, &bits, 1, &value);
  return value;
}

TEST(DType, NamesAreThoseOfSafetensorsAndParseBack) {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    DType dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_name(DType::bf16), "BF16");
  EXPECT_EQ(dtype_name(DType::boolean), "BOOL");
  EXPECT_FALSE(parse_dtype("f32"));
}

TEST(DType, HalfPrecisionConvertsExactlyWithSubnormalsAndSpecials) {
  EXPECT_EQ(one<uint16_t>(DType::f16, 0x3c00), 1.0f);
  EXPECT_EQ(one<uint16_t>(DType::f16, 0xc000), -2.0f);
  EXPECT_EQ(one<uint16_t>(DType::f16, 0x7bff), 65504.0f);
  EXPECT_EQ(one<uint16_t>(DType::f16, 0x0001), 0x1p-24f);
  EXPECT_TRUE(std::signbit(one<uint16_t>(DType::f16, 0x8000)));
  EXPECT_EQ(one<uint16_t>(DType::f16, 0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(one<uint16_t>(DType::f16, 0x7e00)));
  EXPECT_EQ(one<uint16_t>(DType::bf16, 0xbfc0), -1.5f);
}

TEST(DType, EightBitFloatsFollowTheirTwoDefinitions) {
  EXPECT_EQ(one<uint8_t>(DType::f8_e4m3, 0x7e), 448.0f);
  EXPECT_EQ(one<uint8_t>(DType::f8_e4m3, 0x01), 0x1p-9f);
  EXPECT_TRUE(std::isnan(one<uint8_t>(DType::f8_e4m3, 0xff)));
  EXPECT_EQ(one<uint8_t>(DType::f8_e5m2, 0x7b), 57344.0f);
  EXPECT_EQ(one<uint8_t>(DType::f8_e5m2, 0x01), 0x1p-16f);
  EXPECT_EQ(one<uint8_t>(DType::f8_e5m2, 0x7c), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(one<uint8_t>(DType::f8_e5m2, 0x7d)));
}

TEST(DType, UnalignedDoublesConvert) {
  char raw[17];
  double values[2] = {0.1, -3.0};
  std::memcpy(raw + 1, values, 16);
  float out[2];
  to_f32(DType::f64, raw + 1, 2, out);
  EXPECT_EQ(out[0], 0.1f);
  EXPECT_EQ(out[1], -3.0f);
  EXPECT_THROW(one<int64_t>(DType::i64, 1), InternalError);
}

TEST(DType, ByteCountRefusesOverflowAndNegativeDimensions) {
  EXPECT_EQ(byte_count({2, 3}, DType::f16), 12);
  EXPECT_EQ(byte_count({}, DType::f64), 8);
  EXPECT_EQ(byte_count({5, 0}, DType::f32), 0);
  EXPECT_FALSE(byte_count({-1}, DType::f32));
  EXPECT_FALSE(byte_count({int64_t{1} << 32, int64_t{1} << 32}, DType::u8));
  EXPECT_FALSE(byte_count({int64_t{1} << 61}, DType::f32));
}

TEST(DType, NoNumberIsSeenInEveryTypeThatHasOne) {
  const auto finite = [](DType dtype, auto bits) { return all_finite(dtype, &bits, 1); };
  EXPECT_TRUE(finite(DType::f32, std::numeric_limits<float>::max()));
  EXPECT_TRUE(finite(DType::f32, -std::numeric_limits<float>::denorm_min()));
  EXPECT_FALSE(finite(DType::f32, -std::numeric_limits<float>::infinity()));
  EXPECT_FALSE(finite(DType::f32, std::numeric_limits<float>::signaling_NaN()));
  EXPECT_TRUE(finite(DType::f64, std::numeric_limits<double>::max()));
  EXPECT_FALSE(finite(DType::f64, std::numeric_limits<double>::quiet_NaN()));
  for (const auto& [dtype, most, bad] : {std::tuple(DType::f16, uint16_t{0x7bff}, uint16_t{0xfc00}),
                                         {DType::bf16, uint16_t{0xff7f}, uint16_t{0x7f80}}}) {
    EXPECT_TRUE(finite(dtype, most));
    EXPECT_FALSE(finite(dtype, bad));
    EXPECT_FALSE(finite(dtype, static_cast<uint16_t>(bad | 1)));
  }
  EXPECT_TRUE(finite(DType::f8_e4m3, uint8_t{0xfe}));
  EXPECT_FALSE(finite(DType::f8_e4m3, uint8_t{0xff}));
  EXPECT_TRUE(finite(DType::f8_e5m2, uint8_t{0x7b}));
  EXPECT_FALSE(finite(DType::f8_e5m2, uint8_t{0x7c}));
  EXPECT_TRUE(finite(DType::u8, uint8_t{0xff}));
  std::vector<float> values(1001, 1.0f);
  for (const size_t at : {0, 7, 1000}) {
    values[at] = NAN;
    EXPECT_FALSE(all_finite(DType::f32, values.data(), 1001));
    EXPECT_EQ(all_finite(DType::f32, values.data(), static_cast<int64_t>(at)), true);
    values[at] = 1;
  }
  EXPECT_TRUE(all_finite(DType::f32, values.data(), 1001));
}

}  // namespace tessera::checkpoint
