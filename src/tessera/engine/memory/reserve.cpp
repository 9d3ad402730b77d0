#include "tessera/engine/memory/reserve.h"

#include "tessera/base/check.h"

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
  const auto best = free_.lower_bound({size, 0});
  if (best == free_.end()) return nullptr;
  const auto [found, at] = *best;
  free_.erase(best);
  places_.erase(at);
  if (found > size) add_free(at + size, found - size);
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
