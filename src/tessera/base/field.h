#pragma once
// The member at the end of a path of pointers to members: tables name where a value lies.
//
//   field<&Recipe::plan, &PlanKeys::strategy>(recipe) = Strategy::full_shard;

namespace tessera {

template <auto... Path>
constexpr auto& field(auto& object) {
  return (object.*....*Path);
}

}  // namespace tessera
