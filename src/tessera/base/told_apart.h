#pragma once
// Two times of one sentence, with as many digits as tell them apart.
//
//   const auto [now, before] = told_apart(0.00312, 0.00334);    // "3.1 ms", "3.3 ms"; format_seconds says 3 ms of both
#include <string>
#include <utility>

namespace tessera {

/// Both as format_seconds says them where that differs, else in milliseconds or seconds with as many decimals as do, up
/// to 6; where none do, as format_seconds says them.
std::pair<std::string, std::string> told_apart(double seconds, double others);

}  // namespace tessera
