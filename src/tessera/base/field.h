#pragma once
// Accesses a member by a path of member pointers, so that tables can name where a value is stored.
//
//   field<&Recipe::plan, &PlanKeys::strategy>(recipe) = Strategy::full_shard;

namespace tessera {

template <auto... Path>
constexpr auto& field(auto& object) {
  return (object.*....*Path);
}

}  // namespace tessera
