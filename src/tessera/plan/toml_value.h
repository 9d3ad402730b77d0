#pragma once
// A value of a plan file with its position for messages. Internal to the plan-file reader.
//
//   TomlValue value(table, "states", "units[0].", "plan.toml");
//   if (value) tier_of(value.text(), value.where());
#include <cstdint>
#include <string>
#include <vector>

#include <toml++/toml.h>

namespace tessera::plan {

class TomlValue {
 public:
  /// `prefix`: path of the table, for messages ("units[0].").
  TomlValue(const toml::table& table, std::string_view key, std::string prefix, const std::string& file)
      : table_(table), key_(key), prefix_(std::move(prefix)), file_(file), node_(table.get(key)) {}

  explicit operator bool() const { return node_; }  ///< whether the key is present
  const toml::node& node() const { return *node_; }
  /// Whether the same table also has `key`.
  bool beside(std::string_view key) const { return table_.contains(key); }
  /// "plan.read plan.toml: units[0].states"
  std::string where() const { return "plan.read " + file_ + ": " + name(); }
  std::string name() const { return prefix_ + key_; }
  const std::string& file() const { return file_; }

  // These throw UserError (usage) for values of another type.
  std::string text() const;
  bool boolean() const;
  int64_t integer(int64_t least) const;  ///< at most INT32_MAX
  /// A table below this one. `hint` shows how to write it.
  const toml::table& table(const std::string& hint) const;
  [[noreturn]] void fail(const std::string& what, const std::string& hint) const;

 private:
  const toml::table& table_;
  std::string key_, prefix_;
  const std::string& file_;
  const toml::node* node_;
};

/// Throws UserError (usage) at the first unknown key of `table`, naming the nearest known one.
void check_known_keys(const toml::table& table, const std::string& prefix, const std::string& file,
                      const std::vector<std::string>& known);

}  // namespace tessera::plan
