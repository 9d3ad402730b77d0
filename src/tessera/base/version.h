#pragma once
// The version of program and library; CMakeLists.txt, the wheel and CITATION.cff have it from here.

namespace tessera {

inline constexpr const char* kVersion = "0.2.0";

}  // namespace tessera
