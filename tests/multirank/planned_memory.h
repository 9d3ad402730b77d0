#pragma once
// What a step took of the device beside what its plan said.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "planned_share.h"

namespace tessera::testing {

/// Whose peak may not be much below its plan.
enum class Held {
  every_rank,
  /// Where a batch does not divide, all ranks are planned as the one with most samples.
  largest_rank,
};

/// Ranks of a step of metrics.jsonl: none above its plan, and not much below.
inline void expect_planned_peaks(const nlohmann::json& step, const std::string& run, Held held = Held::every_rank) {
  ASSERT_FALSE(step.at("ranks").empty()) << run;
  double largest = 0;
  for (const auto& rank : step.at("ranks")) largest = std::max(largest, rank.at("peak_bytes").get<double>());
  for (const auto& rank : step.at("ranks")) {
    const double peak = rank.at("peak_bytes"), planned = rank.at("predicted_peak_bytes");
    EXPECT_LE(peak, planned) << run << ", rank " << rank.at("rank");
    if (held == Held::every_rank || peak == largest)
      EXPECT_GE(peak, planned_share(planned) * planned) << run << ", rank " << rank.at("rank");
  }
}

}  // namespace tessera::testing
