#include "tessera/base/target.h"

#include <charconv>
#include <cstdlib>

#include "tessera/base/check.h"

namespace tessera {

namespace {

// LibTorch 2.11, ATen/cuda/CublasHandlePool.cpp without CUBLAS_WORKSPACE_CONFIG: two blocks of 4 MiB and eight of 16 KiB, 32
// MiB on Hopper and Blackwell. cuBLASLt uses the same memory.
constexpr std::string_view kSmall = ":4096:2:16:8", kLarge = ":32768:1";
/// Of the two with which cuBLAS gives the same bits each time, that which costs no time.
constexpr std::string_view kSameBits = ":4096:8";

// LibTorch, ATen/native/cudnn/Conv_v8.cpp: without cudnn.benchmark each way of the heuristics is tried until one finds its
// workspace; too little memory is the one limit. The variable is in PyTorch's list of those of CUDA's libraries. Enough for
// copies in another layout of what most convolutions of Wan's autoencoder read and write for a chunk of 480 x 832: 6 frames
// and 4 of 96 channels, 1.4 GiB. [E]
constexpr std::string_view kConvolutionMib = "2048";

/// The first number of `text`, which then begins behind it; negative: it begins with none.
int64_t number(std::string_view& text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

/// The sum over ":KiB:count"; 0: there is none.
int64_t bytes_in(std::string_view setting) {
  int64_t sum = 0;
  for (size_t colon; (colon = setting.find(':')) != setting.npos;) {
    setting.remove_prefix(colon + 1);
    std::string_view pair = setting;
    const int64_t kib = number(pair);
    if (kib < 0 || !pair.starts_with(':')) continue;
    pair.remove_prefix(1);
    const int64_t count = number(pair);
    if (count < 0) continue;
    sum += kib * 1024 * count, setting = pair;
  }
  return sum;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

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

std::string cublas_setting(const Target& target, bool deterministic) {
  static const std::string given = environment("CUBLAS_WORKSPACE_CONFIG");  // before a run sets it
  return !given.empty() ? given : std::string(deterministic ? kSameBits : target.cublas);
}

int64_t cublas_workspace(const Target& target, std::string_view setting) {
  const int64_t bytes = bytes_in(setting);
  return bytes > 0 ? bytes : bytes_in(target.cublas);
}

std::string cudnn_setting() {
  static const std::string given = environment("CUDNN_CONV_WSCAP_DBG");  // likewise
  return given.empty() ? std::string(kConvolutionMib) : given;
}

int64_t cudnn_workspace(std::string_view setting) {
  int64_t mib = number(setting);
  if (mib < 0 || !setting.empty()) setting = kConvolutionMib, mib = number(setting);
  return mib << 20;
}

}  // namespace tessera
