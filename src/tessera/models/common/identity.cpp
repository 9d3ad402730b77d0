#include "tessera/models/common/identity.h"

#include <algorithm>
#include <charconv>

#include "tessera/checkpoint/row_part.h"

namespace tessera::models {

std::optional<std::string> Identity::official(const std::string& stored) const {
  if (!stored.starts_with(prefix)) return std::nullopt;
  const std::string name = stored.substr(prefix.size());
  if (!names || !map()) return name;
  for (const auto& [second, official] : names->tied)
    if (name == second && naming == "diffusers") return official;
  return to_official(*map(), name);
}

std::vector<std::string> Identity::parts(const std::string& stored) const {
  if (!names || !map() || !stored.starts_with(prefix)) return {};
  std::vector<std::string> parts = row_parts(*map(), std::string_view(stored).substr(prefix.size()));
  for (std::string& part : parts) part.insert(0, prefix);
  return parts;
}

const KeyMap* Identity::map() const {
  if (naming == "diffusers") return &names->diffusers;
  if (naming == "fused") return &names->fused;
  const bool official = naming == "official" || naming == "comfyui" || naming == "diffsynth";  // but for a prefix
  return official && !names->official.empty() ? &names->official : nullptr;
}

std::string Identity::foreign(const std::string& official, const std::string& to) const {
  if (!names) return official;
  if (to == "comfyui" && !names->comfyui_prefix.empty())
    return names->comfyui_prefix + to_foreign(names->official, official);
  const bool renamed = to == "diffusers" || (to == "comfyui" && names->comfyui_as_diffusers);
  if (renamed) return to_foreign(names->diffusers, official);
  // ComfyUI's blocks have queries, keys and values in one tensor
  if (to == "fused" || (to == "comfyui" && !names->fused.empty())) return to_foreign(names->fused, official);
  return to == "official" ? to_foreign(names->official, official) : official;
}

int64_t count_blocks(const Shapes& official) {
  constexpr std::string_view kLists[] = {"blocks", "layers"};
  std::map<std::string_view, int64_t> most;  // of each list
  for (const auto& [name, shape] : official) {
    const std::string_view list = std::string_view(name).substr(0, name.find('.'));
    int64_t index = 0;
    const bool blocks = std::ranges::any_of(kLists, [&](std::string_view end) { return list.ends_with(end); });
    if (!blocks || list.size() == name.size()) continue;
    const auto [end, error] = std::from_chars(name.data() + list.size() + 1, name.data() + name.size(), index);
    if (error == std::errc() && *end == '.' && index < kMostBlocks) most[list] = std::max(most[list], index + 1);
  }
  int64_t sum = 0;
  for (const auto& [list, count] : most) sum += count;
  return sum;
}

int64_t size_of(const Shapes& official, const std::string& name, size_t dim) {
  const auto found = official.find(name);
  return found == official.end() || dim >= found->second.size() ? 0 : found->second[dim];
}

Shapes official_shapes(const Identity& identity, const Shapes& stored) {
  Shapes result;
  for (const auto& [name, shape] : stored) {
    const std::vector<std::string> parts = identity.parts(name);
    if (parts.empty())
      if (const auto official = identity.official(name)) result.emplace(*official, shape);
    for (const std::string& part : parts) {
      const auto divided = checkpoint::part_shape(*checkpoint::row_part(part), shape);
      result.emplace(*identity.official(part), divided.value_or(shape));
    }
  }
  return result;
}

}  // namespace tessera::models
