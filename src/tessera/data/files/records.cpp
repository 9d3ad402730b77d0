#include "tessera/data/files/records.h"

#include <algorithm>
#include <cstring>

namespace tessera::data {

namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr int kPlaceBits = 40;  // of a record's place; the rest is the number of its block

}  // namespace

uint64_t Records::stored(std::string_view bytes) {
  const auto fits = [&](const std::shared_ptr<Block>& block) {
    return block.use_count() == 1 && block->size - block->used >= bytes.size();
  };
  if (blocks_.empty() || !fits(blocks_.back())) {
    const size_t size = std::max(kBlockBytes, bytes.size());
    blocks_.push_back(std::make_shared<Block>(Block{std::unique_ptr<char[]>(new char[size]), size}));
  }
  Block& block = *blocks_.back();
  std::memcpy(block.bytes.get() + block.used, bytes.data(), bytes.size());
  const uint64_t place = (uint64_t{blocks_.size() - 1} << kPlaceBits) + block.used;
  block.used += bytes.size();
  return place;
}

RecordReader Records::operator[](size_t index) const {
  const uint64_t place = places_[index];
  return RecordReader(blocks_[place >> kPlaceBits]->bytes.get() + (place & ((uint64_t{1} << kPlaceBits) - 1)));
}

void Records::keep(size_t first, size_t last) {
  places_.resize(last);
  places_.erase(places_.begin(), places_.begin() + static_cast<std::ptrdiff_t>(first));
}

uint32_t Records::number_of(std::string_view text) {
  const auto [place, fresh] = numbers_.emplace(text, static_cast<uint32_t>(texts_.size()));
  if (fresh) texts_.emplace_back(text);
  return place->second;
}

}  // namespace tessera::data
