#pragma once
// The version of program and library. CMakeLists.txt and the wheel read it here; CITATION.cff repeats it (scripts/check).

namespace tessera {

inline constexpr const char* kVersion = "0.2.0";

}  // namespace tessera
