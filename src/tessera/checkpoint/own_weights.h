#pragma once
// The mark of weights that a run of this program wrote: what they were trained with is what the recipe gives them.
//
//   write_safetensors(file, tensors, own_metadata());
//   if (is_own(open_weights(path))) ...
#include "tessera/checkpoint/weights.h"

namespace tessera::checkpoint {

inline constexpr const char* kTrainedBy = "trained_by";

inline Metadata own_metadata() {
  return {{"format", "pt"}, {kTrainedBy, "tessera"}};
}  // "pt": readers of diffusers ask

inline bool is_own(const WeightSet& weights) {
  const Metadata& metadata = weights.metadata();
  const auto found = metadata.find(kTrainedBy);
  return found != metadata.end() && found->second == "tessera";
}

}  // namespace tessera::checkpoint
