#pragma once
// Formats and parses bytes and seconds: "1.50 GiB", "12.3 s".
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

std::string format_bytes(int64_t bytes);     ///< binary units: B, KiB, MiB, GiB, TiB
std::string format_seconds(double seconds);  ///< "12 ms", "3.4 s", "2 min 05 s", "1 h 03 min"
/// Two times for one sentence, with enough digits to differ: "3.1 ms", "3.3 ms". Both by format_seconds if the results differ;
/// else in milliseconds or seconds with as many decimals as needed, up to 6. Times that are equal even then are formatted with
/// format_seconds.
std::pair<std::string, std::string> format_distinct_seconds(double seconds, double others);
/// Parses "24GiB", "512 MiB", "24G" (binary too, as in ulimit), "24GB" (decimal), "1.5e9" (bytes), ignoring case.
/// Throws UserError (usage) naming `key`.
int64_t parse_bytes(std::string_view text, std::string_view key);

}  // namespace tessera
