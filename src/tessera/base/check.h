#pragma once
// Errors that say where something failed, what was found and expected, and what to do next.
//
//   throw UserError(Exit::input, "data.decode", "clips/a.mp4: no video stream", "re-encode or remove the file");
//   check_input(size > 8, "safetensors", path + ": " + std::to_string(size) + " bytes, a header needs at least 8");
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Exit codes of the program (docs/ lists them).
enum class Exit : int {
  done = 0,        ///< success
  comparison = 1,  ///< verify or plan --check found a difference
  usage = 2,       ///< command line, recipe or mesh
  input = 3,       ///< unreadable or wrong data, checkpoint or case
  no_fit = 4,      ///< the plan does not fit
  rank_lost = 5,   ///< a rank died or timed out
  not_finite = 6,  ///< stopped on NaN or Inf
  disk = 7,        ///< disk full or failed write
  memory = 8,      ///< memory budget exceeded at run time
  internal = 70,   ///< our own fault
  again = 75,      ///< stopped by a signal after a checkpoint: start again
};

/// Base of our errors. `where` names the operation ("checkpoint.load"), `hint` the next action.
class Error : public std::runtime_error {
 public:
  Error(Exit code, std::string_view where, std::string_view what, std::string_view hint = {});
  Exit code() const { return code_; }
  const std::string& hint() const { return hint_; }

 private:
  Exit code_;
  std::string hint_;
};

/// A fault that the user can correct: recipe, data, machine.
class UserError : public Error {
 public:
  using Error::Error;
};

/// A broken invariant of the program itself (exit 70).
class InternalError : public Error {
 public:
  InternalError(std::string_view where, std::string_view what)
      : Error(Exit::internal, where, what, "this is a fault in tessera; please report it with the command") {}
};

inline void check_input(bool ok, std::string_view where, std::string_view what, std::string_view hint = {}) {
  if (!ok) throw UserError(Exit::input, where, what, hint);
}
inline void check_internal(bool ok, std::string_view where, std::string_view what) {
  if (!ok) throw InternalError(where, what);
}

/// a / b, exact; throws InternalError naming both otherwise.
int64_t div_exact(int64_t a, int64_t b, std::string_view where);
constexpr int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return div_up(a, b) * b; }

/// The known names closest to `word` (Levenshtein distance), best first, at most `count`; for "did you mean".
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& known, size_t count = 1);

// Arithmetic on numbers of users and of their files: what does not fit is an error, never another number.
//
//   const int64_t samples = checked_product({steps, global_batch}, "recipe: run.steps x train.global_batch");

/// Throw UserError (usage), which `what` opens, where the result is beyond 2^63.
int64_t checked_product(std::initializer_list<int64_t> factors, std::string_view what);
int64_t checked_sum(std::initializer_list<int64_t> terms, std::string_view what);
/// As an int.
int checked_int(int64_t value, std::string_view what);

// Accesses a member by a path of member pointers, so that tables can name where a value is stored.
//
//   field<&Recipe::plan, &PlanKeys::strategy>(recipe) = Strategy::full_shard;

template <auto... Path>
constexpr auto& field(auto& object) {
  return (object.*....*Path);
}

}  // namespace tessera
