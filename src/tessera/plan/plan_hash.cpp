#include "tessera/plan/plan_hash.h"

#include "tessera/base/sha256.h"

namespace tessera::plan {

std::string plan_hash(const Plan& plan) {
  std::vector<std::string> numbers;
  for (size_t u = 0; u < plan.units.size(); ++u) numbers.push_back(std::to_string(u));
  const Digest digest = sha256(plan.to_toml(numbers));
  std::string text;
  for (size_t i = 0; i < 8; ++i)
    for (const int half : {digest[i] >> 4, digest[i] & 15}) text += "0123456789abcdef"[half];
  return text;
}

}  // namespace tessera::plan
