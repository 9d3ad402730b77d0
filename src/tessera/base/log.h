#pragma once
// One line to the user's terminal (stderr), prefixed with the rank when there are several.
#include <string_view>

namespace tessera::log {

void set_rank(int rank, int world);  ///< rank 0 prints info; every rank prints warnings and errors
void info(std::string_view text);    ///< rank 0 only
void warn(std::string_view text);
void error(std::string_view text);

}  // namespace tessera::log
