#pragma once
// experts.json in a folder of two experts that a run exported: {"boundary": 0.875, "flow_shift": 12}, by which it was
// trained. convert writes them where other programs look for them, and a run from this folder takes the boundary.
//
//   write_experts_file("runs/a/model/experts.json", {.boundary = 0.875, .flow_shift = 12});
//   if (const auto boundary = read_experts_file("base/experts.json").boundary) ...
#include <optional>

#include "tessera/checkpoint/file.h"

namespace tessera::checkpoint {

inline constexpr const char* kExpertsFile = "experts.json";

struct ExpertsFacts {
  std::optional<double> boundary, flow_shift;
};

/// A field that is missing or no number is nothing; of a file that is no JSON all are.
ExpertsFacts read_experts_file(const Path& file);
void write_experts_file(const Path& file, const ExpertsFacts& facts);

}  // namespace tessera::checkpoint
