#pragma once
// One block of memory handed out in pieces: best fit, neighbours that are free become one. The same requests in the same
// order get the same addresses.
//
//   Reserve reserve(base, bytes);
//   void* tensor = reserve.take(4096);             // null: no piece is large enough
//   reserve.give(tensor);
//
// Large pieces begin at a multiple of kWindowAlign from the base, as symmetric windows of collectives do
// (device/communicators.h).
#include <cstdint>
#include <map>
#include <set>

namespace tessera::engine {

class Reserve {
 public:
  static constexpr int64_t kAlign = 256;               ///< of addresses; what libraries of GPUs expect
  static constexpr int64_t kLarge = int64_t{1} << 20;  ///< pieces from here on begin where windows may

  Reserve(void* base, int64_t bytes);

  void* take(int64_t bytes);
  /// The first offset from `from` on at which a large piece may begin and `bytes` are free; -1: there is none.
  int64_t place_for(int64_t bytes, int64_t from) const;
  /// The bytes at that offset.
  void* take_at(int64_t offset, int64_t bytes);
  void give(void* data);

  int64_t size() const { return bytes_; }
  int64_t used() const { return used_; }
  int64_t largest() const { return largest_piece().second; }  ///< free piece
  /// Its offset and bytes.
  std::pair<int64_t, int64_t> largest_piece() const {
    return free_.empty() ? std::pair<int64_t, int64_t>{} : std::pair{free_.rbegin()->second, free_.rbegin()->first};
  }
  /// The end of the highest piece in use since the last reset_reach(): what the pieces needed with their gaps.
  int64_t reach() const { return reach_; }
  void reset_reach();

 private:
  void add_free(int64_t at, int64_t bytes);
  void* take_from(int64_t begin, int64_t at, int64_t size);

  char* const base_;
  const int64_t bytes_;
  int64_t used_ = 0, reach_ = 0;
  std::map<int64_t, int64_t> places_;           // free pieces: offset to bytes
  std::set<std::pair<int64_t, int64_t>> free_;  // the same: bytes, offset
  std::map<int64_t, int64_t> taken_;            // offset to bytes
};

}  // namespace tessera::engine
