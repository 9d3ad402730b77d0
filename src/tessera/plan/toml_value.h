#pragma once
// A value of a plan file with its position for messages. Internal to the plan-file reader.
//
//   TomlValue value(table, "states", "units[0].", "plan.toml");
//   if (value) tier_of(value.text(), value.where());
#include <toml++/toml.h>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/text.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/plan.h"

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

// Rows of the keys of a plan file: how a value is read and written, and when it has no effect.
//
//   constexpr Row<UnitPlan> kRows[] = {enum_row<UnitPlan, &UnitPlan::states>("states")};

class TomlValue;

template <class S>
struct Row {
  std::string_view key;
  /// Throws UserError (usage) naming file and key.
  void (*read)(S&, const TomlValue&);
  std::string (*text)(const S&);  ///< the value as TOML
  bool (*written)(const S&);      ///< whether our own files contain it
  /// why a value other than the default has no effect; empty: it has one
  std::string_view (*idle)(const Plan&) = nullptr;
};

// Reads the names of enumeration values in plans and recipes, by one overloaded function that tables can call.
//
//   read_enum(unit.states, "host", "plan.read plan.toml: units[0].states");
//   unit.states == Tier::host;  name(unit.states);                    // "host"

// Each throws UserError (usage) naming `where` and the nearest name.
inline void read_enum(Tier& to, std::string_view text, std::string_view where) { to = tier_of(text, where); }
inline void read_enum(Update& to, std::string_view text, std::string_view where) { to = update_of(text, where); }
inline void read_enum(Strategy& to, std::string_view text, std::string_view where) { to = strategy_of(text, where); }
inline void read_enum(Policy& to, std::string_view text, std::string_view where) { to = policy_of(text, where); }
inline void read_enum(Masters& to, std::string_view text, std::string_view where) { to = masters_of(text, where); }
inline void read_enum(Moments& to, std::string_view text, std::string_view where) { to = moments_of(text, where); }
inline void read_enum(Attention& to, std::string_view text, std::string_view where) { to = attention_of(text, where); }
inline void read_enum(Optimizer& to, std::string_view text, std::string_view where) { to = optimizer_of(text, where); }
inline void read_enum(PipelineSchedule& to, std::string_view text, std::string_view where) {
  to = pipeline_schedule_of(text, where);
}
inline void read_enum(DType& to, std::string_view text, std::string_view where) {
  to = dtype_of(text, where, kComputeTypes);
}

// Builders of rows for each kind of value.

template <class S>
bool always(const S&) {
  return true;
}
template <class S>
bool never(const S&) {
  return false;
}
/// Whether the value differs from the default.
template <class S, auto... Path>
bool changed(const S& s) {
  const S untouched;
  return field<Path...>(s) != field<Path...>(untouched);
}

template <class S, auto... Path>
constexpr Row<S> enum_row(std::string_view key, bool (*written)(const S&) = changed<S, Path...>) {
  return {key, [](S& s, const TomlValue& value) { read_enum(field<Path...>(s), value.text(), value.where()); },
          [](const S& s) { return in_quotes(name(field<Path...>(s))); }, written};
}

template <class S, int64_t least, auto... Path>
constexpr Row<S> count(std::string_view key, bool (*written)(const S&) = changed<S, Path...>) {
  return {key,
          [](S& s, const TomlValue& value) {
            auto& to = field<Path...>(s);
            to = static_cast<std::remove_reference_t<decltype(to)>>(value.integer(least));
          },
          [](const S& s) { return std::to_string(field<Path...>(s)); }, written};
}

}  // namespace tessera::plan
