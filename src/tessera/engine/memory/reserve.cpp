#include "tessera/engine/memory/reserve.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/device/communicators.h"

namespace tessera::engine {

Reserve::Reserve(void* base, int64_t bytes) : base_(static_cast<char*>(base)), bytes_(bytes / kAlign * kAlign) {
  if (bytes_ > 0) add_free(0, bytes_);
}

void Reserve::add_free(int64_t at, int64_t bytes) {
  places_.emplace(at, bytes);
  free_.emplace(bytes, at);
}

void* Reserve::take(int64_t bytes) {
  const int64_t size = round_up(bytes, kAlign);
  const int64_t align = size >= kLarge ? device::kWindowAlign : kAlign;
  auto best = free_.lower_bound({size, 0});
  while (best != free_.end() && round_up(best->second, align) + size > best->second + best->first) ++best;
  if (best == free_.end()) return nullptr;
  return take_from(best->second, round_up(best->second, align), size);
}

int64_t Reserve::place_for(int64_t bytes, int64_t from) const {
  const int64_t size = round_up(bytes, kAlign);
  for (const auto& [begin, found] : places_)
    if (const int64_t at = round_up(std::max(begin, from), device::kWindowAlign); at + size <= begin + found) return at;
  return -1;
}

void* Reserve::take_at(int64_t offset, int64_t bytes) {
  const int64_t size = round_up(bytes, kAlign);
  auto piece = places_.upper_bound(offset);
  check_internal(piece != places_.begin() && (--piece)->first + piece->second >= offset + size, "engine.reserve",
                 "what is taken at a place is not free");
  return take_from(piece->first, offset, size);
}

/// Of the free piece at `begin`.
void* Reserve::take_from(int64_t begin, int64_t at, int64_t size) {
  const int64_t end = begin + places_.at(begin);
  free_.erase({end - begin, begin});
  places_.erase(begin);
  if (at > begin) add_free(begin, at - begin);
  if (end > at + size) add_free(at + size, end - at - size);
  taken_.emplace(at, size);
  used_ += size;
  reach_ = std::max(reach_, at + size);
  return base_ + at;
}

void Reserve::give(void* data) {
  const auto piece = taken_.find(static_cast<char*>(data) - base_);
  check_internal(piece != taken_.end(), "engine.reserve", "memory is given back that was not taken");
  int64_t at = piece->first, size = piece->second;
  taken_.erase(piece);
  used_ -= size;
  const auto merge = [&](auto place) {
    free_.erase({place->second, place->first});
    at = std::min(at, place->first), size += place->second;
    places_.erase(place);
  };
  if (const auto after = places_.find(at + size); after != places_.end()) merge(after);
  if (auto before = places_.lower_bound(at); before != places_.begin() && (--before)->first + before->second == at)
    merge(before);
  add_free(at, size);
}

void Reserve::reset_reach() { reach_ = taken_.empty() ? 0 : taken_.rbegin()->first + taken_.rbegin()->second; }

}  // namespace tessera::engine
