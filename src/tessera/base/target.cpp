#include "tessera/base/target.h"

#include "tessera/base/check.h"

namespace tessera {

namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
// LibTorch 2.11, ATen/cuda/CublasHandlePool.cpp without CUBLAS_WORKSPACE_CONFIG: two blocks of 4 MiB and eight of 16 KiB, 32
// MiB on Hopper and Blackwell. cuBLASLt uses the same memory.
constexpr int64_t kSmall = 2 * 4 * kMiB + 8 * 16 * kKiB, kLarge = 32 * kMiB;

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {"sm_80", 108, kSmall},   // A100
      {"sm_86", 84, kSmall},    // RTX 3090 (82), A40
      {"sm_89", 142, kSmall},   // L40S, RTX 4090 (128)
      {"sm_90", 132, kLarge},   // H100, H200
      {"sm_100", 148, kLarge},  // B200
      {"sm_120", 188, kLarge},  // RTX PRO 6000, RTX 5090 (170)
  };
  return all;
}

const Target& target(std::string_view name, std::string_view where) {
  std::vector<std::string> known;
  for (const Target& one : targets()) {
    if (one.name == name) return one;
    known.emplace_back(one.name);
  }
  throw UserError(Exit::input, std::string(where), "unknown target '" + std::string(name) + "'",
                  "did you mean " + nearest(std::string(name), known).front() + "?");
}

}  // namespace tessera
