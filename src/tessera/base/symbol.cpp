#include "tessera/base/symbol.h"

#include <functional>
#include <mutex>
#include <unordered_set>

namespace tessera {

namespace {

struct Hash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

}  // namespace

const std::string Symbol::kEmpty;

const std::string& Symbol::kept(std::string_view text) {
  static std::mutex mutex;
  static auto& texts = *new std::unordered_set<std::string, Hash, std::equal_to<>>();  // used until the process ends
  const std::lock_guard lock(mutex);
  const auto known = texts.find(text);
  return known != texts.end() ? *known : *texts.emplace(text).first;
}

}  // namespace tessera
