#pragma once
// What a test begins with that needs the golden cases, or its fixture's SetUp: without them it is skipped, told and counted
// by scripts/test; where CI=true it fails.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#define TESSERA_NEED_GOLDENS()                                                                            \
  if (!std::filesystem::exists(TESSERA_GOLDENS)) {                                                        \
    const char* tessera_ci = std::getenv("CI");                                                           \
    if (tessera_ci && std::string_view(tessera_ci) == "true")                                             \
      FAIL() << "no golden cases at " << TESSERA_GOLDENS << ", which CI must have";                       \
    GTEST_SKIP() << "no golden cases at " << TESSERA_GOLDENS << " (scripts/build -DTESSERA_GOLDENS=DIR)"; \
  }                                                                                                       \
  static_assert(true)
