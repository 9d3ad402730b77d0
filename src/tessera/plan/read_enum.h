#pragma once
// Reads the names of enumeration values in plans and recipes, by one overloaded function that tables can call.
//
//   read_enum(unit.states, "host", "plan.read plan.toml: units[0].states");
//   unit.states == Tier::host;  name(unit.states);                    // "host"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

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

}  // namespace tessera::plan
