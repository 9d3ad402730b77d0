#pragma once
// A violation that the rules find in a schedule.
#include <string>

namespace tessera::plan {

struct Violation {
  int line = 0;      ///< of the file, from 1
  std::string rule;  ///< a name of [Note: the rules] in rules.h
  std::string text;  ///< rank, step and instruction, what was expected, what to do
};

}  // namespace tessera::plan
