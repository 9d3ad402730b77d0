#pragma once
// One block of memory handed out in pieces: best fit, neighbours that are free become one. The same requests in the same
// order get the same addresses.
//
//   Reserve reserve(base, bytes);
//   void* tensor = reserve.take(4096);             // null: no piece is large enough
//   reserve.give(tensor);
#include <cstdint>
#include <map>
#include <set>

namespace tessera::engine {

class Reserve {
 public:
  static constexpr int64_t kAlign = 256;  ///< of addresses; what libraries of GPUs expect

  Reserve(void* base, int64_t bytes);

  void* take(int64_t bytes);
  void give(void* data);

  int64_t size() const { return bytes_; }
  int64_t used() const { return used_; }
  int64_t largest() const { return free_.empty() ? 0 : free_.rbegin()->first; }  ///< free piece
  /// The end of the highest piece in use since the last reset_reach(): what the pieces needed with their gaps.
  int64_t reach() const { return reach_; }
  void reset_reach();

 private:
  void add_free(int64_t at, int64_t bytes);

  char* const base_;
  const int64_t bytes_;
  int64_t used_ = 0, reach_ = 0;
  std::map<int64_t, int64_t> places_;           // free pieces: offset to bytes
  std::set<std::pair<int64_t, int64_t>> free_;  // the same: bytes, offset
  std::map<int64_t, int64_t> taken_;            // offset to bytes
};

}  // namespace tessera::engine
