#pragma once
// What `tessera --version` prints.
#include <string>

namespace tessera::apps {

/// Two lines: the program's version and commit, and LibTorch's version with the vector instructions it found.
std::string version();

}  // namespace tessera::apps
