#pragma once
// experts.json in a folder of two experts that a run exported: {"boundary": 0.875, "flow_shift": 12}, by which it was
// trained. convert writes them where other programs look for them, and a run from this folder takes the boundary.

namespace tessera::weights {

inline constexpr const char* kExpertsFile = "experts.json";

}  // namespace tessera::weights
