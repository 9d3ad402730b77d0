#pragma once
// Cases of a parameterized test as a matrix (matrix.h): `make test` runs those whose turn it is, `make test-all` all.
//
//   INSTANTIATE_TEST_SUITE_P(ByTurns, Memory, ::testing::ValuesIn(in_turn("memory of policies", kPolicies)), name_of);
#include <iterator>
#include <string>
#include <vector>

#include "matrix.h"

namespace tessera::testing {

/// At least one of `cases`, or `least`. Says how many as a MatrixPart does, when the program starts.
template <typename Case, size_t n>
std::vector<Case> in_turn(const std::string& name, const Case (&cases)[n], size_t least = 1) {
  std::vector<Case> chosen;
  MatrixPart part(name, static_cast<int>(n), least);
  for (const int i : part) chosen.push_back(cases[i]);
  return chosen;
}

}  // namespace tessera::testing
