#pragma once
// Formats two times for one sentence with enough digits to differ.
//
//   const auto [now, before] = format_distinct_seconds(0.00312, 0.00334);    // "3.1 ms", "3.3 ms"
#include <string>
#include <utility>

namespace tessera {

/// Formats both with format_seconds if the results differ; else in milliseconds or seconds with as many decimals as
/// needed, up to 6. Times that are equal even then are formatted with format_seconds.
std::pair<std::string, std::string> format_distinct_seconds(double seconds, double others);

}  // namespace tessera
