#include "tessera/plan/attention.h"

#include <algorithm>

#include "tessera/base/names.h"

namespace tessera::plan {

namespace {

constexpr std::array<std::string_view, 2> kNames = {"flash", "cudnn"};

std::string_view name(AttentionKernel kernel) {
  return kernel == AttentionKernel::cudnn ? "cuDNN" : kernel == AttentionKernel::flash ? "flash" : "products";
}

}  // namespace

std::string_view name(Attention attention) { return kNames[static_cast<size_t>(attention)]; }
Attention attention_of(std::string_view text, std::string_view where) { return named<Attention>(kNames, text, where); }

AttentionTaken attention_kernel(Attention asked, const AttentionCall& call) {
  using enum AttentionKernel;
  if (!call.half) return {products, "fp32"};
  if (call.head % 8 != 0 || call.head > 256) return {products, "heads of " + std::to_string(call.head)};
  if (asked == Attention::flash) return {flash};
  if (!has_cudnn_heads(call.head)) return {flash, "heads of " + std::to_string(call.head)};
  if (call.keys < kCudnnKeys) return {flash, "fewer than " + std::to_string(kCudnnKeys) + " keys"};
  return {cudnn};
}

void AttentionUse::add(const AttentionUse& other) {
  for (const auto& [taken, at] : other.sites) sites[taken].insert(at.begin(), at.end());
  shapes.insert(other.shapes.begin(), other.shapes.end());
}

bool AttentionUse::takes(std::string_view site, AttentionKernel kernel) const {
  return std::ranges::any_of(
      sites, [&](const auto& one) { return one.first.kernel == kernel && one.second.contains(std::string(site)); });
}

std::string AttentionUse::text() const {
  std::string text;
  for (const auto& [taken, at] : sites) {
    std::string list;
    for (const std::string& site : at)
      if (!site.empty()) list += (list.empty() ? "" : ", ") + site;
    text += (text.empty() ? "" : "; ") + std::string(name(taken.kernel)) + " at " +
            (list.empty() ? "a backward" : list) + (taken.why.empty() ? "" : " (" + taken.why + ")");
  }
  return text;
}

}  // namespace tessera::plan
