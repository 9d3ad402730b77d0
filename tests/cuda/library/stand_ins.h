#pragma once
// The drivers and libraries with a fault each that tests/cuda/CMakeLists.txt makes.
//
//   DriverWatch watch(uuid, stand_in("nvml_stops"), std::chrono::hours(1));
#include <string>

inline std::string stand_in(const std::string& name) { return LIBRARY_FOLDER "/lib" + name + ".so"; }
