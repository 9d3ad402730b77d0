#pragma once
// Finds instructions that use the same memory in no order, if lanes are streams.
//
//   for (const Race& race : find_races(model, plan, schedule, rank)) std::cerr << to_string(race, schedule) << "\n";
//
// [Note: races] Two instructions race if they use the same bytes, one of them writes, and neither happens before the
// other (clocks.h). Bytes that were freed and taken again are the same bytes: the compute lane takes and frees the
// memory of activations in the order of the list, and whatever was freed until then may be what an instruction gets.
// So who takes memory comes after every use of all memory freed before it. As in FastTrack (Flanagan and Freund 2009) the
// search keeps no pairs: for each range of bytes and each lane the last read and the last write, because the
// instructions of a lane are in order. It looks at each instruction once.
#include <string>
#include <vector>

#include "tessera/plan/clocks.h"
#include "tessera/plan/effects.h"

namespace tessera::plan {

struct Race {
  int first, second;   ///< indices of the list
  std::string memory;  ///< "the parameters gathered for blocks.3, arena [0, 4096)", "memory taken at its place"
  bool operator==(const Race&) const = default;
};

/// All races of one schedule, by the second instruction.
std::vector<Race> find_races(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank);

/// "fetch blocks.3, micro-batch 0 (i 57, h2d) does not wait for backward blocks.4 ... (i 55, compute): both use ...".
std::string to_string(const Race& race, const Schedule& schedule);

/// Two steps of a walk in no order; `use` is the second's, null for memory that it takes at its place.
struct Clash {
  int first, second;
  const Use* use;
};
std::vector<Clash> clashes(const std::vector<Step>& steps, const Clocks& clocks);

}  // namespace tessera::plan
