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

const std::vector<PolicyWord>& policy_words() {
  static const std::vector<PolicyWord> words = {{"keep", Policy::keep},
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
  return words;
}

std::string_view name(const Policy& policy) {
  if (policy == kRecomputeOffload.policy) return kRecomputeOffload.word;
  const auto& words = policy_words();
  const auto found = std::ranges::find(words, policy, &PolicyWord::policy);
  check_internal(found != words.end(), "plan.policy", "a policy that no word names");
  return found->word;
}

Policy policy_of(std::string_view text, std::string_view where) {
  std::vector<std::string> known;
  for (const PolicyWord& word : policy_words()) {
    if (word.word == text) return word.policy;
    known.emplace_back(word.word);
  }
  unknown_word(where, text, known);
}

}  // namespace tessera::plan
