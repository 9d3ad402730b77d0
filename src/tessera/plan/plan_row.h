#pragma once
// A key of a plan file: where its value lies in S, how it is read and written, and when it does nothing.
//
//   constexpr Row<UnitPlan> row = word<UnitPlan, &UnitPlan::states>("states");      // row_kinds.h
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
  std::string (*text)(const S&);                    ///< the value as TOML
  bool (*written)(const S&);                        ///< whether a file that we write has it
  std::string_view (*idle)(const Plan&) = nullptr;  ///< why a value other than the default does nothing; empty: it does
};

}  // namespace tessera::plan
