#include "tessera/models/common/names.h"

#include <algorithm>
#include <optional>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/row_part.h"

namespace tessera::models {

namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

/// The texts that '#' and '*' matched, or nullopt when the name does not match.
std::optional<std::vector<std::string_view>> match(std::string_view pattern, std::string_view name) {
  std::vector<std::string_view> found;
  size_t n = 0;
  for (const char c : pattern) {
    const size_t start = n;
    if (c == '*') {
      n = name.size();
    } else if (c == '#') {
      while (n < name.size() && digit(name[n])) ++n;
      if (n == start) return std::nullopt;
    } else {
      if (n == name.size() || name[n] != c) return std::nullopt;
      ++n;
      continue;
    }
    found.push_back(name.substr(start, n - start));
  }
  if (n != name.size()) return std::nullopt;
  return found;
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) { return match(pattern, name).has_value(); }

std::string rename(const std::vector<NamePattern>& table, std::string_view name) {
  for (const NamePattern& row : table) {
    const auto found = match(row.ours, name);
    if (!found) continue;
    std::string result;
    size_t next = 0;
    for (const char c : row.theirs) {
      if (c == '#' || c == '*')
        result += found->at(next++);
      else
        result += c;
    }
    return result;
  }
  return std::string(name);
}

std::string to_foreign(const KeyMap& map, std::string_view official) {
  std::string name(official);
  for (const auto& table : map) name = rename(table, name);
  return name;
}

std::string to_official(const KeyMap& map, std::string_view foreign) {
  std::string name(foreign);
  for (auto table = map.rbegin(); table != map.rend(); ++table) {
    std::vector<NamePattern> swapped;
    for (const NamePattern& row : *table) swapped.push_back({row.theirs, row.ours});
    name = rename(swapped, name);
  }
  return name;
}

std::vector<std::string> row_parts(const KeyMap& map, std::string_view stored) {
  if (checkpoint::row_part(stored)) return {};  // is one itself
  std::vector<std::string> parts;
  for (const auto& table : map)
    for (const NamePattern& row : table) {
      const auto part = checkpoint::row_part(row.theirs);
      if (part && match(part->whole, stored)) parts.push_back(checkpoint::part_name(stored, *part));
    }
  return parts;
}

Naming detect_naming(const std::vector<std::string>& official, const ForeignName& foreign,
                     const std::vector<std::string>& namings, const std::vector<std::string>& stored,
                     const std::string& file) {
  const std::set<std::string> known(stored.begin(), stored.end());
  Naming best;
  int64_t most = 0;
  for (const auto& naming : namings) {
    for (const auto& prefix : kOptionalPrefixes) {
      const int64_t found = std::count_if(official.begin(), official.end(), [&](const std::string& name) {
        const std::string theirs = prefix + foreign(name, naming);
        return known.count(checkpoint::whole_name(theirs)) > 0;
      });
      if (found > most) most = found, best = {naming, prefix};
    }
  }
  if (most > 0) return best;
  const std::string theirs = stored.empty() ? "nothing" : "'" + stored.front().substr(0, 120) + "' and others";
  const std::string ours = official.empty() ? "nothing" : "'" + official.front() + "' and others";
  throw UserError(Exit::input, "models.names",
                  file + ": holds none of the model's tensors: it has " + theirs + ", the model has " + ours,
                  "is this the file that was meant? tessera inspect " + file + " says what it is");
}

void unknown_name(const std::string& key, const std::string& name, const std::vector<std::string>& known) {
  std::string list;
  for (const auto& other : known) list += (list.empty() ? "" : ", ") + other;
  const auto near = nearest(name, known);
  throw UserError(Exit::usage, key, "'" + name + "' is not known",
                  (near.empty() ? "" : "did you mean " + near[0] + "? ") + "Known: " + list);
}

}  // namespace tessera::models
