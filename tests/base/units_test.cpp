#include "tessera/base/units.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera {
namespace {

TEST(Units, BytesAreBinaryWithTwoDecimals) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 40), "3.00 TiB");
  EXPECT_EQ(format_bytes(-2048), "-2.00 KiB");
}

TEST(Units, SecondsChangeTheirUnitWithTheirSize) {
  EXPECT_EQ(format_seconds(0.0124), "12 ms");
  EXPECT_EQ(format_seconds(0.9996), "1.0 s");
  EXPECT_EQ(format_seconds(3.44), "3.4 s");
  EXPECT_EQ(format_seconds(125), "2 min 05 s");
  EXPECT_EQ(format_seconds(3780), "1 h 03 min");
}

TEST(Units, SizesAreReadAsPeopleWriteThem) {
  for (const char* text : {"24GiB", "24 gib", "24G", "24g"}) EXPECT_EQ(parse_bytes(text, "key"), int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("24GB", "key"), 24'000'000'000);
  EXPECT_EQ(parse_bytes("1.5e9", "key"), 1'500'000'000);
  EXPECT_EQ(parse_bytes("7 B", "key"), 7);
  for (const char* text : {"", "GiB", "-1", "12 apples", "nan", "1e30"}) {
    try {
      parse_bytes(text, "plan.budget");
      ADD_FAILURE() << text;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      EXPECT_NE(std::string(error.what()).find("plan.budget"), std::string::npos);
    }
  }
}

TEST(Units, TwoTimesHaveTheDigitsThatTellThemApart) {
  EXPECT_EQ(format_distinct_seconds(0.00312, 0.00334), (std::pair<std::string, std::string>("3.1 ms", "3.3 ms")));
  EXPECT_EQ(format_distinct_seconds(2, 5), (std::pair<std::string, std::string>("2.0 s", "5.0 s")));
}

}  // namespace
}  // namespace tessera
