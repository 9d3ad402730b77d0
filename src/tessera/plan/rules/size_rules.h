#pragma once
// What an instruction moves agrees with its unit's size, which the first line that tells it fixes for the rank, and
// with the bytes its collective sends. Internal to the rules.
//
//   sizes.whole(gather, "all_gather");    // complains when the bytes are not the unit's
//   sizes.bytes(unit);
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/rules/book.h"

namespace tessera::plan {

class SizeRules {
 public:
  explicit SizeRules(Book& book) : book_(book) {}

  /// Sizes are known per rank; the lines of a rank come together.
  void of_rank(int rank) {
    if (rank != rank_) sizes_.assign(book_.units().size(), {});
    rank_ = rank;
  }

  int64_t bytes(int unit) const { return sizes_[unit].bytes; }  ///< of the whole unit, -1 when no line has told it
  int shards(int unit) const { return sizes_[unit].shards; }

  /// Line `k` moves the whole unit, by one collective of `kind` where it has a group.
  void whole(int k, const std::string& kind) {
    Size& size = sizes_[book_.unit(k)];
    if (size.line < 0) size = {book_.in(k).bytes, k, members(k)};
    expect(k, size.bytes, "the unit's size in " + book_.at(size.line));
    collective(k, kind);
  }

  /// Line `k` works on this rank's shard.
  void shard(int k, const std::string& kind = "") {
    const Size& size = sizes_[book_.unit(k)];
    if (size.line >= 0)
      expect(k, size.bytes / size.shards,
             "1/" + std::to_string(size.shards) + " of the unit's size in " + book_.at(size.line));
    collective(k, kind);
  }

 private:
  struct Size {
    int64_t bytes = -1;
    int line = -1;
    int shards = 1;
  };

  int members(int k) const {
    return book_.group(k) < 0 ? 1 : std::max(1, static_cast<int>(book_.groups()[book_.group(k)].ranks.size()));
  }

  void expect(int k, int64_t bytes, const std::string& why) {
    if (book_.in(k).bytes != bytes)
      book_.complain(
          k, "bytes",
          "moves " + std::to_string(book_.in(k).bytes) + " bytes, expected " + std::to_string(bytes) + ": " + why);
  }

  /// A rank sends its shard to each of the other n - 1 members, or its part to each of them; of an all-reduce, all.
  void collective(int k, const std::string& kind) {
    const std::vector<Comm>& comm = book_.in(k).comm;
    if (book_.group(k) < 0 || comm.empty()) return;
    if (comm.size() != 1 || comm.front().kind != kind) {
      book_.complain(k, "groups",
                     "runs " + comm.front().kind + ", expected " + (kind.empty() ? "no collective" : "one " + kind));
      return;
    }
    const int64_t n = members(k), whole = book_.in(k).bytes;
    const int64_t sent = kind == "all_reduce" ? whole : whole / n * (n - 1);
    const bool narrow = kind == "all_gather" && comm.front().bytes * 2 == sent;  // parameters that travel as bf16
    if ((comm.front().bytes != sent && !narrow) || (kind != "all_reduce" && whole % n != 0))
      book_.complain(k, "bytes",
                     "sends " + std::to_string(comm.front().bytes) + " bytes, expected " + std::to_string(sent) +
                         " of " + std::to_string(whole) + " on " + std::to_string(n) + " ranks");
  }

  Book& book_;
  int rank_ = -1;
  std::vector<Size> sizes_;  // per unit
};

}  // namespace tessera::plan
