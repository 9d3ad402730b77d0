#pragma once
// Rows of the keys of a plan file: how a value is read and written, and when it has no effect.
//
//   constexpr Row<UnitPlan> kRows[] = {enum_row<UnitPlan, &UnitPlan::states>("states")};
#include <string>
#include <string_view>

#include "tessera/base/field.h"
#include "tessera/base/text.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/toml_value.h"

namespace tessera::plan {

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
