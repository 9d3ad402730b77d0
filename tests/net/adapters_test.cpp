// The dropout in front of an adapter: another mask for each step, site and seed, the same wherever a sample is cut.
#include "tessera/net/adapters.h"

#include <gtest/gtest.h>

#include "tessera/base/random.h"

namespace tessera::net {
namespace {

Tokens tokens_of(uint64_t step) {
  Tokens tokens;
  tokens.offsets = {0, 4, 10};
  tokens.samples = {7, 3};
  tokens.step = step;
  tokens.begin = 0, tokens.end = 10;
  return tokens;
}

ops::Dropout drop(const AdapterSettings& settings, const char* site, uint64_t step) {
  const Tokens tokens = tokens_of(step);
  return dropout_at(settings, site, tokens, tokens, 10, false);
}

TEST(AdapterDropout, IsKeyedBySeedStepUnitAndSite) {
  const AdapterSettings settings{.dropout = 0.25, .seed = 5, .prefix = "blocks.0."};
  const ops::Dropout one = drop(settings, "self_attn.q", 3);
  EXPECT_EQ(one.p, 0.25);
  EXPECT_EQ(one.seed, 5u);
  EXPECT_EQ(one.step, 3u);
  EXPECT_EQ(drop(settings, "self_attn.q", 4).step, 4u);
  EXPECT_EQ(one.site, drop(settings, "self_attn.q", 4).site);
  EXPECT_NE(one.site, drop(settings, "self_attn.k", 3).site);
  const AdapterSettings other{.dropout = 0.25, .seed = 6, .prefix = "blocks.1."};
  EXPECT_NE(one.site, drop(other, "self_attn.q", 3).site) << "another block has another mask";
  EXPECT_EQ(drop(other, "self_attn.q", 3).seed, 6u);
  ASSERT_EQ(one.runs.size(), 2u);
  EXPECT_EQ(one.runs[1].sample, 3u);
}

TEST(AdapterDropout, IsNoneWithoutTrainingOrAShare) {
  EXPECT_EQ(drop({.dropout = 0, .seed = 5}, "q", 1).p, 0);
  Tokens sampled = tokens_of(1);
  sampled.samples.clear();
  EXPECT_EQ(dropout_at({.dropout = 0.5}, "q", sampled, sampled, 10, false).p, 0);
  EXPECT_EQ(dropout_at({.dropout = 0.5}, "q", sampled, sampled, 10, true).p, 0.5) << "meta tensors stand for training";
}

TEST(AdapterDropout, LeavesRanksAndAdaptersOutByDrawsOfTheirOwn) {
  const Tokens tokens = tokens_of(3);
  const AdapterSettings settings{.rank_dropout = 0.25, .module_dropout = 0.5, .seed = 5, .prefix = "blocks.0."};
  const ops::Dropout left_out = left_out_at(settings, "self_attn.q", tokens, tokens, 10, false);
  EXPECT_EQ(left_out.p, 0.25);
  EXPECT_EQ(left_out.whole, 0.5);
  EXPECT_TRUE(left_out.alike);
  EXPECT_EQ(left_out.runs.size(), 2u);
  EXPECT_NE(left_out.site, drop({.dropout = 0.25, .seed = 5, .prefix = "blocks.0."}, "self_attn.q", 3).site);
  EXPECT_FALSE(left_out_at({.seed = 5}, "q", tokens, tokens, 10, false).active());
  EXPECT_FALSE(drop(settings, "self_attn.q", 3).active()) << "the input has a share of its own";
  Tokens sampled = tokens;
  sampled.samples.clear();
  EXPECT_FALSE(left_out_at(settings, "q", sampled, sampled, 10, false).active());
}

}  // namespace
}  // namespace tessera::net
