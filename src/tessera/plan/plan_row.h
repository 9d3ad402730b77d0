#pragma once
// One key of a plan file: how its value is read and written, and when it has no effect.
//
//   constexpr Row<UnitPlan> row = enum_row<UnitPlan, &UnitPlan::states>("states");      // row_kinds.h
#include <string>
#include <string_view>

#include "tessera/plan/plan.h"

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

}  // namespace tessera::plan
