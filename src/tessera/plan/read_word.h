#pragma once
// The values that plans and recipes write as words, read into their fields: one name for all of them, for tables.
//
//   read_word(unit.states, "host", "plan.read plan.toml: units[0].states");
//   unit.states == Tier::host;  name(unit.states);                    // "host"
#include "tessera/plan/plan.h"

namespace tessera::plan {

// Each throws UserError (usage) naming `where` and the nearest word.
inline void read_word(Tier& to, std::string_view text, std::string_view where) { to = tier_of(text, where); }
inline void read_word(Update& to, std::string_view text, std::string_view where) { to = update_of(text, where); }
inline void read_word(Strategy& to, std::string_view text, std::string_view where) { to = strategy_of(text, where); }
inline void read_word(Policy& to, std::string_view text, std::string_view where) { to = policy_of(text, where); }
inline void read_word(Masters& to, std::string_view text, std::string_view where) { to = masters_of(text, where); }
inline void read_word(Moments& to, std::string_view text, std::string_view where) { to = moments_of(text, where); }
inline void read_word(PipelineSchedule& to, std::string_view text, std::string_view where) {
  to = pipeline_schedule_of(text, where);
}
inline void read_word(DType& to, std::string_view text, std::string_view where) {
  to = dtype_of(text, where, kComputeTypes);
}

}  // namespace tessera::plan
