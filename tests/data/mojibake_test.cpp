// Text that was UTF-8 and was read as Windows-1252 or Latin-1, and text that only looks a little like it.
#include "tessera/data/text/text.h"

#include <gtest/gtest.h>

namespace tessera::data {
namespace {

TEST(Mojibake, LinesThatWereReadWronglyAreReadAnew) {
  EXPECT_EQ(repair_encoding("sch\u00C3\u00B6n \u00E2\u20AC\u0153x\u00E2\u20AC\u009D"), "sch\u00F6n \u201Cx\u201D");
  EXPECT_EQ(repair_encoding("l\u00E2\u20AC\u2122\u00C3\u00A9t\u00C3\u00A9"), "l\u2019\u00E9t\u00E9");
  EXPECT_EQ(repair_encoding("\u00C2\u00A9 2024"), "\u00A9 2024");
  EXPECT_EQ(repair_encoding("\u00E4\u00B8\u00AD\u00E2\u0080\u009D"), "\u4E2D\u201D") << "as Latin-1";
  EXPECT_EQ(repair_encoding("na\u00C3\u0192\u00C2\u00AFve"), "na\u00EFve") << "twice";
  EXPECT_EQ(repair_encoding("\u00C3\u00A9\n\u00E9t\u00E9 \u00C3\u00A9\n"), "\u00E9\n\u00E9t\u00E9 \u00C3\u00A9\n")
      << "a line by itself";
  EXPECT_EQ(fix_text("sch\u00C3\u00B6n \u00E2\u20AC\u0153x\u00E2\u20AC\u009D"), "sch\u00F6n \"x\"");
}

TEST(Mojibake, RightTextStays) {
  for (const char* text : {"", "a cat", "\u00E9t\u00E9", "\u00C3O PAULO", "S\u00C3O \u00A9", "\u00C2\u2026",
                           "50 \u20AC", "\u00E2 \u20AC", "\u4E2D\u6587", "caf\u00E9 \u201Cx\u201D"})
    EXPECT_EQ(repair_encoding(text), text);
  EXPECT_EQ(repair_encoding("\u00C3\u00A9 \u4E2D"), "\u00C3\u00A9 \u4E2D")
      << "not wrong as a whole: ftfy would repair it";
  EXPECT_EQ(repair_encoding("\xC3"), "\xC3") << "no UTF-8";
}

}  // namespace
}  // namespace tessera::data
