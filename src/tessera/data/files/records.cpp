#include "tessera/data/files/records.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tessera/base/random.h"

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

namespace {

/// Of a path, with the last "/".
std::string_view folder_of(std::string_view path) { return path.substr(0, path.rfind('/') + 1); }  // npos + 1 is 0

}  // namespace

std::string NamedRecords::name_of(uint32_t number) const {
  RecordReader in = records_[number];
  const std::string& folder = records_.text_of(in.number());
  return folder + std::string(in.text());
}

int64_t NamedRecords::number_of(std::string_view name) const {
  return numbers_.find(hash_text(name), [&](uint32_t number) { return name_of(number) == name; });
}

std::optional<RecordReader> NamedRecords::find(std::string_view name) const {
  const int64_t number = number_of(name);
  if (number < 0) return std::nullopt;
  RecordReader in = records_[static_cast<size_t>(number)];
  in.number(), in.text();
  return in;
}

void NamedRecords::put(std::string_view name, const RecordWriter& record) {
  const std::string_view folder = folder_of(name);
  RecordWriter out;
  out.number(records_.number_of(folder));
  out.text(name.substr(folder.size()));
  out.bytes() += record.bytes();
  if (const int64_t number = number_of(name); number >= 0) return records_.set(static_cast<size_t>(number), out);
  records_.push_back(out);
  numbers_.add(hash_text(name), [this](uint32_t number) { return hash_text(name_of(number)); });
}

void NamedRecords::each_by_name(const std::function<void(const std::string&, RecordReader)>& take) const {
  std::vector<uint32_t> order(records_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [this](uint32_t number) { return name_of(number); });
  for (const uint32_t number : order) {
    const std::string name = name_of(number);
    take(name, *find(name));
  }
}

}  // namespace tessera::data
