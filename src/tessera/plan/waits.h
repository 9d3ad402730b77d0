#pragma once
// What an instruction waits for: a short list of indices. Up to six need no memory of their own, because a search makes
// millions of such lists.
//
//   Waits waits = {earlier};
//   waits.push_back(last), waits.append(others);
//   for (const int w : waits) ...
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>

namespace tessera::plan {

class Waits {
 public:
  using value_type = int;
  using iterator = int*;
  using const_iterator = const int*;

  Waits() = default;
  Waits(std::initializer_list<int> list) : Waits(list.begin(), list.end()) {}
  template <typename Iterator>
  Waits(Iterator first, Iterator last) {
    for (; first != last; ++first) push_back(*first);
  }
  Waits(const Waits& other) { append(other); }
  Waits(Waits&& other) noexcept { take(other); }
  Waits& operator=(const Waits& other) {
    if (this != &other) clear(), append(other);
    return *this;
  }
  Waits& operator=(Waits&& other) noexcept {
    if (this != &other) release(), take(other);
    return *this;
  }
  ~Waits() { release(); }

  int* begin() { return data(); }
  int* end() { return data() + size_; }
  const int* begin() const { return data(); }
  const int* end() const { return data() + size_; }
  int* data() { return capacity_ > kInside ? outside_ : inside_; }
  const int* data() const { return capacity_ > kInside ? outside_ : inside_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int& operator[](size_t i) { return data()[i]; }
  int operator[](size_t i) const { return data()[i]; }

  void clear() { size_ = 0; }
  void push_back(int wait) {
    if (size_ == capacity_) grow();
    data()[size_++] = wait;
  }
  void append(const Waits& others) {
    for (const int wait : others) push_back(wait);
  }
  void insert(const int* at, int wait) {
    const auto place = at - begin();
    push_back(wait);
    std::rotate(begin() + place, end() - 1, end());
  }
  void erase(int* first, int* last) { size_ = static_cast<uint32_t>(std::copy(last, end(), first) - begin()); }
  void erase(int* at) { erase(at, at + 1); }
  template <typename Condition>
  void erase_if(const Condition& condition) {
    erase(std::remove_if(begin(), end(), condition), end());
  }

  bool operator==(const Waits& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

 private:
  static constexpr uint32_t kInside = 6;

  void grow() {
    int* larger = new int[2 * capacity_];
    std::copy(begin(), end(), larger);
    release();
    outside_ = larger, capacity_ *= 2;
  }
  void release() {
    if (capacity_ > kInside) delete[] outside_;
  }
  void take(Waits& other) {
    std::memcpy(static_cast<void*>(this), &other, sizeof *this);
    other.size_ = 0, other.capacity_ = kInside;
  }

  uint32_t size_ = 0, capacity_ = kInside;
  union {
    int inside_[kInside];
    int* outside_;
  };
};

}  // namespace tessera::plan
