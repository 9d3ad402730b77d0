#include "tessera/models/common/row_parts.h"

#include <map>

#include "tessera/checkpoint/row_part.h"

namespace tessera::models {

using at::Tensor;

std::vector<std::pair<std::string, Tensor>> stored_together(
    const std::vector<std::pair<std::string, Tensor>>& ours,
    const std::function<std::string(const std::string&)>& name) {
  std::vector<std::pair<std::string, Tensor>> stored;
  std::map<std::string, std::pair<size_t, std::vector<Tensor>>> wholes;  // place in `stored`, parts in order
  for (const auto& [own, value] : ours) {
    const std::string theirs = name(own);
    const auto part = checkpoint::row_part(theirs);
    if (!part) {
      stored.emplace_back(theirs, value);
      continue;
    }
    auto& [place, parts] = wholes[part->whole];
    if (parts.empty()) {
      place = stored.size();
      parts.resize(static_cast<size_t>(part->count));
      stored.emplace_back(part->whole, Tensor());
    }
    parts[static_cast<size_t>(part->index)] = value;
  }
  for (const auto& [whole, found] : wholes) stored[found.first].second = at::cat(found.second);
  return stored;
}

}  // namespace tessera::models
