#include "tessera/base/bounded_regex.h"

#include <gtest/gtest.h>

#include "bounded.h"

namespace tessera {

TEST(BoundedRegex, MatchesAWholeName) {
  const auto pattern = BoundedRegex::parse("(.*\\.)?(blocks\\.[0-9]{1,2}\\.(?:q|k))");
  ASSERT_TRUE(pattern);
  EXPECT_TRUE(pattern->matches("blocks.12.q"));
  EXPECT_TRUE(pattern->matches("model.blocks.3.k"));
  EXPECT_FALSE(pattern->matches("blocks.123.q"));
  EXPECT_FALSE(pattern->matches("blocks.12.q.weight"));
}

TEST(BoundedRegex, WhatTakesForEverOrTheStackIsRefusedOrTakesNeither) {
  const std::string name(1024, 'a');
  for (const char* expression : {"(a|a)*b", "(a*)*b", "(.*.*.*.*)*b"}) {
    const auto pattern = BoundedRegex::parse(expression);
    ASSERT_TRUE(pattern) << expression;
    expect_done_cheaply([&] { check_internal(!pattern->matches(name), "test", "it matches"); });
  }
  std::string optional;
  for (int i = 0; i < 100; ++i) optional += "a?";
  expect_done_cheaply([&] {
    const auto pattern = BoundedRegex::parse("(?:" + optional + "){1,16}a*");
    check_internal(pattern && pattern->matches(name), "test", "it does not match");
  });
  EXPECT_FALSE(BoundedRegex::parse("a*")->matches(std::string(1 << 20, 'a'))) << "no module has such a name";
  for (const std::string& expression :
       {std::string(257, 'a'), std::string("(a*)\\1"), std::string("(?=(a*)*b)a"), std::string("(?!b)a"),
        std::string("(a{9}){9}"), std::string("a{17}"), std::string("a{99999999999}"), std::string("("),
        std::string("*"), std::string("[b-a]")})
    EXPECT_FALSE(BoundedRegex::parse(expression)) << expression;
}

}  // namespace tessera
