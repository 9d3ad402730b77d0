#include "tessera/data/text/text.h"

#include "data/scene.h"

namespace tessera::data {

TEST(CleanText, MakesWhiteSpaceSingle) {
  EXPECT_EQ(clean_text("  a\t\r\n b\xC2\xA0\xE3\x80\x80\xE2\x80\x83 c  "), "a b c");
  EXPECT_EQ(clean_text(" \n\t"), "");
}

TEST(CleanText, ResolvesEntitiesTwice) {
  EXPECT_EQ(clean_text("&amp;lt;b&amp;gt; &quot;x&quot; &#39;y&#x27; &hearts; &copy 2024"),
            "<b> \"x\" 'y' \u2665 \u00A9 2024");
  EXPECT_EQ(clean_text("&notanentity; &ampx; R&D; a & b &; &#; &#x; &unknown;"),
            "\u00ACanentity; &x; R&D; a & b &; &#; &#x; &unknown;");
}

TEST(CleanText, StraightensQuotesAndDropsControlCharacters) {
  EXPECT_EQ(clean_text("\u201Ccurly\u201D \u2018one\u2019s \uFB01ne\uFEFF \uFF21\uFF01"), "\"curly\" 'one's fine A!");
  EXPECT_EQ(clean_text(std::string("nul\0l \x07 bell\x7F", 14)), "null bell");
}

TEST(CleanText, ComposesAccentsAndOrdersStackedMarks) {
  if (compose("e\u0301") != "\u00E9") GTEST_SKIP() << "built without ICU";
  EXPECT_EQ(clean_text("e\u0301 \uAC00"), "\u00E9 \uAC00");
  EXPECT_EQ(clean_text("q\u0307\u0323"), "q\u0323\u0307") << "the mark below comes first";
  EXPECT_EQ(compose("\u212B"), "\u00C5");
  EXPECT_EQ(compose(""), "");
}

TEST(UnescapeHtml, FollowsHtml5ForNumbers) {
  EXPECT_EQ(unescape_html("&#128;&#x99;&#0;&#xD800;&#1114112;&#99999999999999999999;&#1;&#65"),
            "\u20AC\u2122\uFFFD\uFFFD\uFFFD\uFFFD"
            "A");
}

TEST(Utf8, KnowsWhatIsNot) {
  EXPECT_EQ(invalid_utf8("plain \u00E9 \u4E00 \U0001F600"), std::string::npos);
  for (const char* bad : {"ab\xFF", "ab\xC0\x80", "ab\xED\xA0\x80", "ab\xF5\x80\x80\x80", "ab\xE4\xB8", "ab\x80",
                          "ab\xE0\x80\x80", "ab\xF4\x90\x80\x80"})
    EXPECT_EQ(invalid_utf8(bad), 2u);
  EXPECT_EQ(clean_text("a\xFF"
                       "b"),
            "a\uFFFD"
            "b");
}

}  // namespace tessera::data
