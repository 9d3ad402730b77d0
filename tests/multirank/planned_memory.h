#pragma once
// What a step took of the device beside what its plan said.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::testing {

/// Every rank of a step of metrics.jsonl: never above its plan, and no more than 2 % below.
inline void expect_planned_peaks(const nlohmann::json& step, const std::string& run) {
  ASSERT_FALSE(step.at("ranks").empty()) << run;
  for (const auto& rank : step.at("ranks")) {
    const double peak = rank.at("peak_bytes"), predicted = rank.at("predicted_peak_bytes");
    if (const char* f = std::getenv("ATTACK_LOG")) {
      std::FILE* o = std::fopen(f, "a");
      std::fprintf(o, "%.5f %.0f %.0f %s %s\n", peak / predicted, predicted, predicted - peak,
                   ::testing::UnitTest::GetInstance()->current_test_info()->name(), run.c_str());
      std::fclose(o);
    }
    EXPECT_LE(peak, predicted) << run << ", rank " << rank.at("rank");
    EXPECT_GE(peak, 0.98 * predicted) << run << ", rank " << rank.at("rank");
  }
}

}  // namespace tessera::testing
