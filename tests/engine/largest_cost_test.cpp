#include "tessera/engine/measure.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera::engine {
namespace {

/// Bytes at two sites and further ones; half of the first site's fit in 16 bits.
plan::Footprint cost_of(int64_t text, int64_t video, int64_t others) {
  plan::Footprint cost;
  cost.saved = text + video + others;
  cost.saved_by_site = {{"text", text}, {"video", video}};
  cost.compact_by_site["text"][DType::bf16] = {.whole = text / 2, .bytes = text / 4};
  return cost;
}

TEST(LargestCost, WhatStaysWhenASiteLeavesIsThatOfTheRankWhereMostStays) {
  plan::Footprint cost = cost_of(100, 300, 10);
  const plan::Footprint first = cost_of(200, 240, 4), last = cost;
  take_larger(cost, first);
  for (const plan::Footprint& one : {first, last}) {
    EXPECT_GE(cost.saved, one.saved);
    for (const char* site : {"text", "video"}) {
      const auto without = [&](const plan::Footprint& f) { return f.saved - f.saved_by_site.at(site); };
      EXPECT_GE(cost.saved_by_site.at(site), one.saved_by_site.at(site));
      EXPECT_GE(without(cost), without(one)) << site;
    }
    const auto in_form = [](const plan::Footprint& f) {
      const auto form = plan::Footprint(f).compact_by_site.at("text")[DType::bf16];
      return f.saved_by_site.at("text") - form.whole + form.bytes;
    };
    EXPECT_GE(in_form(cost), in_form(one));
  }
  EXPECT_EQ(cost.saved, 200 + 300 + 10);
}

TEST(LargestCost, RanksThatSendInAnotherOrderAreRefused) {
  plan::Footprint cost, other;
  cost.traffic = {{"tensor", {Axis::tp}, "all_gather", plan::Rows::share, 64}};
  other.traffic = cost.traffic;
  take_larger(cost, other);
  other.traffic[0].row_bytes = 32;
  EXPECT_THROW(take_larger(cost, other), InternalError);
  other.traffic.clear();
  EXPECT_THROW(take_larger(cost, other), InternalError);
}

}  // namespace
}  // namespace tessera::engine
