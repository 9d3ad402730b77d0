#include "tessera/plan/toml_value.h"

#include <algorithm>
#include <sstream>

#include "tessera/base/check.h"

namespace tessera::plan {

void TomlValue::fail(const std::string& what, const std::string& hint) const {
  throw UserError(Exit::usage, "plan.read", file_ + ": " + name() + ": " + what, hint);
}

int64_t TomlValue::integer(int64_t least) const {
  const auto value = node_->value_exact<int64_t>();
  if (value && *value >= least && *value <= INT32_MAX) return *value;
  std::ostringstream found;
  node_->visit([&](const auto& n) { found << n; });
  fail("found " + found.str(), "expected a whole number, at least " + std::to_string(least));
}

std::string TomlValue::text() const {
  const auto value = node_ ? node_->value_exact<std::string>() : std::nullopt;
  if (!value) fail("not a string", "write " + key_ + " = \"...\"");
  return *value;
}

bool TomlValue::boolean() const {
  const auto value = node_->value_exact<bool>();
  if (!value) fail("not true or false", "write " + key_ + " = true");
  return *value;
}

const toml::table& TomlValue::table(const std::string& hint) const {
  const toml::table* table = node_->as_table();
  if (!table) fail("not a table", hint);
  return *table;
}

void check_known_keys(const toml::table& table, const std::string& prefix, const std::string& file,
                      const std::vector<std::string>& known) {
  for (const auto& [key, value] : table) {
    const std::string name(key.str());
    if (std::ranges::find(known, name) == known.end())
      throw UserError(Exit::usage, "plan.read", file + ": " + prefix + name + ": unknown key",
                      "did you mean " + prefix + nearest(name, known).front() + "?");
  }
}

}  // namespace tessera::plan
