#pragma once
// Numbers and texts one after the other in as few bytes as they need, for lists of millions that stay in memory.
//
//   RecordWriter out;
//   out.number(300), out.text("cat.jpg");            // 2 + 8 bytes
//   RecordReader in(out.bytes().data());
//   in.number();  in.text();                         // 300, "cat.jpg"
//
//   Records records;
//   records.push_back(out.bytes());
//   records[0].number();                             // 300
//
//   NamedRecords known;
//   known.put("videos/cat.mp4", out);
//   known.find("videos/cat.mp4")->number();          // 300
//
// Numbers are in seven bits a byte, the lowest first, the last byte without its eighth; a text has its length before it. A
// reader trusts what a writer of this process wrote: nothing of a file is read so.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::data {

class RecordWriter {
 public:
  void number(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  void text(std::string_view value) {
    number(value.size());
    bytes_ += value;
  }
  void real(double value) {
    auto bits = std::bit_cast<uint64_t>(value);
    for (int i = 0; i < 8; ++i, bits >>= 8) bytes_ += static_cast<char>(bits);
  }
  std::string& bytes() { return bytes_; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class RecordReader {
 public:
  explicit RecordReader(const char* at) : at_(at) {}
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(*at_++);
      value |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return value;
    }
  }
  std::string_view text() {
    const size_t size = number();
    const std::string_view value(at_, size);
    at_ += size;
    return value;
  }
  double real() {
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits |= uint64_t{static_cast<unsigned char>(*at_++)} << (8 * i);
    return std::bit_cast<double>(bits);
  }
  const char* at() const { return at_; }

 private:
  const char* at_;
};

/// Many records, and the texts that many of them have. They lie in blocks that copies of the list share; a block that is
/// shared grows no more.
class Records {
 public:
  size_t size() const { return places_.size(); }
  RecordReader operator[](size_t index) const;
  void push_back(std::string_view bytes) { places_.push_back(stored(bytes)); }
  void push_back(const RecordWriter& record) { push_back(record.bytes()); }
  /// In place of the one that is there, whose bytes stay as long as the list.
  void set(size_t index, const RecordWriter& record) { places_[index] = stored(record.bytes()); }
  void copy(size_t from, size_t to) { places_[to] = uint64_t{places_[from]}; }
  void repeat(size_t index) { places_.push_back(uint64_t{places_[index]}); }
  /// Only records [first, last) stay.
  void keep(size_t first, size_t last);

  /// The number of a text that many records have, and the text again.
  uint32_t number_of(std::string_view text);
  const std::string& text_of(uint64_t number) const { return texts_[number]; }

 private:
  struct Block {
    std::unique_ptr<char[]> bytes;
    size_t size, used = 0;
  };
  uint64_t stored(std::string_view bytes);

  std::vector<std::shared_ptr<Block>> blocks_;
  std::deque<uint64_t> places_;  // of each record, its block and where it begins there
  std::vector<std::string> texts_;
  std::unordered_map<std::string, uint32_t> numbers_;
};

/// Finds the numbers of what lies in a list, 0 and so on, by hashes of it: some ten bytes each.
class NumberTable {
 public:
  /// The number of what has this hash and is(number); -1: there is none.
  template <class Is>
  int64_t find(uint64_t hash, const Is& is) const {
    if (slots_.empty()) return -1;
    size_t at = place(hash);
    for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1))
      if (is(slots_[at] - 1)) return slots_[at] - 1;
    return -1;
  }
  /// Adds the next number; `hash_of` tells the hashes of those that are there.
  template <class HashOf>
  void add(uint64_t hash, const HashOf& hash_of) {
    if (4 * (count_ + 1) > 3 * slots_.size()) grow(hash_of);
    put(hash, ++count_);
  }

 private:
  size_t place(uint64_t hash) const { return (hash * 0x9E3779B97F4A7C15ull >> 20) & (slots_.size() - 1); }
  void put(uint64_t hash, uint32_t number) {
    size_t at = place(hash);
    while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = number;
  }
  template <class HashOf>
  void grow(const HashOf& hash_of) {
    slots_ = std::vector<uint32_t>(std::max<size_t>(16, 2 * slots_.size()));
    for (uint32_t number = 0; number < count_; ++number) put(hash_of(number), number + 1);
  }
  std::vector<uint32_t> slots_;  // numbers from 1 on; 0: none
  uint32_t count_ = 0;
};

/// Records that are found by the names of files, whose folders are kept once.
class NamedRecords {
 public:
  /// Behind its name.
  std::optional<RecordReader> find(std::string_view name) const;
  void put(std::string_view name, const RecordWriter& record);
  /// Those of names that begin alike come together.
  void each_by_name(const std::function<void(const std::string& name, RecordReader record)>& take) const;

 private:
  std::string name_of(uint32_t number) const;
  int64_t number_of(std::string_view name) const;
  Records records_;
  NumberTable numbers_;
};

/// Goes through a list that makes its values when they are asked for.
template <class List, class Value>
class ListIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Value;
  using difference_type = std::ptrdiff_t;
  using pointer = void;
  using reference = Value;
  ListIterator() = default;
  ListIterator(const List* list, size_t index) : list_(list), index_(index) {}
  Value operator*() const { return (*list_)[index_]; }
  ListIterator& operator++() {
    ++index_;
    return *this;
  }
  ListIterator operator++(int) { return {list_, index_++}; }
  bool operator==(const ListIterator&) const = default;

 private:
  const List* list_ = nullptr;
  size_t index_ = 0;
};

}  // namespace tessera::data
