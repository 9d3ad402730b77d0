#pragma once
// What a step took of the device beside what its plan said.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "planned_share.h"

namespace tessera::testing {

/// Ranks of a step of metrics.jsonl: none above its plan, and not much below.
inline void expect_planned_peaks(const nlohmann::json& step, const std::string& run) {
  ASSERT_FALSE(step.at("ranks").empty()) << run;
  for (const auto& rank : step.at("ranks")) {
    const double peak = rank.at("peak_bytes"), planned = rank.at("predicted_peak_bytes");
    EXPECT_LE(peak, planned) << run << ", rank " << rank.at("rank");
    EXPECT_GE(peak, planned_share(planned) * planned) << run << ", rank " << rank.at("rank");
  }
}

}  // namespace tessera::testing
