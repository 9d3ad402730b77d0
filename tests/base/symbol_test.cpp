#include "tessera/base/symbol.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Symbol, EqualTextsAreOneSymbol) {
  const std::string text = "blocks.7";
  const Symbol a = text, b = "blocks.7", other = "blocks.8";
  EXPECT_EQ(a, b);
  EXPECT_EQ(&a.text(), &b.text());
  EXPECT_NE(a, other);
  EXPECT_EQ(a, text);
  EXPECT_NE(a, "blocks");
  EXPECT_EQ("forward " + std::string() + a, "forward blocks.7");
}

TEST(Symbol, NoTextIsEmpty) {
  EXPECT_TRUE(Symbol().empty());
  EXPECT_EQ(Symbol(), Symbol(""));
  EXPECT_FALSE(Symbol("a").empty());
}

}  // namespace
}  // namespace tessera
