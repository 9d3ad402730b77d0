#include "tessera/plan/policy.h"

#include <algorithm>
#include <array>
#include <string>

#include "tessera/base/check.h"
#include "tessera/base/names.h"

namespace tessera::plan {

namespace {

constexpr std::array<std::string_view, 3> kTiers = {"device", "host", "nvme"};

constexpr Policy in_form(DType form, Tier tier) { return {Graph::rebuild, form, tier}; }

}  // namespace

std::string_view name(Tier tier) { return kTiers[static_cast<size_t>(tier)]; }
Tier tier_of(std::string_view text, std::string_view where) { return named<Tier>(kTiers, text, where); }

const std::vector<NamedPolicy>& named_policies() {
  static const std::vector<NamedPolicy> policies = {{"keep", Policy::keep},
                                                    {"rebuild", Policy::rebuild},
                                                    {"recompute", Policy::recompute},
                                                    {"offload", Policy::offload},
                                                    {"bf16", in_form(DType::bf16, Tier::device)},
                                                    {"fp16", in_form(DType::f16, Tier::device)},
                                                    {"int8", in_form(DType::i8, Tier::device)},
                                                    {"fp8", in_form(DType::f8_e4m3, Tier::device)},
                                                    {"offload_bf16", in_form(DType::bf16, Tier::host)},
                                                    {"offload_fp16", in_form(DType::f16, Tier::host)},
                                                    {"offload_int8", in_form(DType::i8, Tier::host)},
                                                    {"offload_fp8", in_form(DType::f8_e4m3, Tier::host)}};
  return policies;
}

std::string_view name(const Policy& policy) {
  if (policy == kRecomputeOffload.policy) return kRecomputeOffload.name;
  const auto& policies = named_policies();
  const auto found = std::ranges::find(policies, policy, &NamedPolicy::policy);
  check_internal(found != policies.end(), "plan.policy", "a policy without a name");
  return found->name;
}

Policy policy_of(std::string_view text, std::string_view where) {
  std::vector<std::string> known;
  for (const NamedPolicy& named : named_policies()) {
    if (named.name == text) return named.policy;
    known.emplace_back(named.name);
  }
  unknown_name(where, text, known);
}

}  // namespace tessera::plan
