#pragma once
// Arithmetic on numbers of users and of their files: what does not fit is an error, never another number.
//
//   const int64_t samples = checked_product({steps, global_batch}, "recipe: run.steps x train.global_batch");
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace tessera {

/// Throw UserError (usage), which `what` opens, where the result is beyond 2^63.
int64_t checked_product(std::initializer_list<int64_t> factors, std::string_view what);
int64_t checked_sum(std::initializer_list<int64_t> terms, std::string_view what);
/// As an int.
int checked_int(int64_t value, std::string_view what);

}  // namespace tessera
