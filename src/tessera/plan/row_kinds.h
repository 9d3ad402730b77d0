#pragma once
// Builders of plan-file rows for each kind of value. Internal to the tables of rows.
//
//   constexpr Row<UnitPlan> kRows[] = {enum_row<UnitPlan, &UnitPlan::states>("states")};
#include <string>

#include "tessera/base/field.h"
#include "tessera/base/text.h"
#include "tessera/plan/plan_row.h"
#include "tessera/plan/read_enum.h"
#include "tessera/plan/toml_value.h"

namespace tessera::plan {

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
