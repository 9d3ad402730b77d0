#pragma once
// What an instruction moves agrees with its unit's size, which the first line that tells it fixes for the rank, and
// with the bytes its collective sends. Internal to the rules.
//
//   sizes.whole(gather, "all_gather");    // complains when the bytes are not the unit's
//   sizes.bytes(unit);
#include <algorithm>
#include <cstdint>
#include <set>
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

  bool sharded(int unit) const { return sizes_[unit].sharded; }

  /// Line `k` moves a whole unit's parameters, or its whole gradient (reduce): by collectives of `kind`, if by any.
  void whole(int k, const std::string& kind) {
    Size& size = sizes_[book_.unit(k)];
    const bool reduces = book_.in(k).op == Op::reduce;
    int64_t& bytes = reduces ? size.gradient : size.parameters;
    int& line = reduces ? size.reduce : size.gather;
    if (line < 0) bytes = book_.in(k).bytes, line = k;
    if (!reduces && !book_.groups_of(k).empty()) size.sharded = true;
    expect(k, bytes, "the unit's size in " + book_.at(line));
    int64_t shard = 0;
    if (collectives(k, kind, &shard) && reduces) note_shard(k, shard);
  }

  /// Line `k` writes a unit's gradient.
  void gradient(int k) {
    Size& size = sizes_[book_.unit(k)];
    if (size.reduce < 0) size.gradient = book_.in(k).bytes, size.reduce = k;
    expect(k, size.gradient, "the size of the unit's gradient in " + book_.at(size.reduce));
    const int64_t trained = size.gather < 0 ? 0 : size.parameters - book_.in(size.gather).frozen;
    const bool halved = trained * 2 == size.gradient;  // slots of 16 bits; gradients are fp32
    if (size.gather >= 0 && trained != size.gradient && !halved)
      book_.complain(k, "bytes",
                     "the gradient has " + std::to_string(size.gradient) + " bytes, but " + book_.at(size.gather) +
                         " gathers " + std::to_string(trained) + " of what is trained");
    if (!size.sharded) note_shard(k, size.gradient);
  }

  /// Line `k` works on what this rank updates: its shard of the gradient, or a piece of it in two levels.
  void shard(int k) {
    const Size& size = sizes_[book_.unit(k)];
    if (size.shard_line < 0) look_ahead(k);
    if (size.outer < 0) note_shard(k, book_.in(k).bytes);
    if (size.outer < 0)
      expect(k, size.shard, "the size of the shard in " + book_.at(size.shard_line));
    else
      expect(k, size.piece, "what this rank has of the sum in " + book_.at(size.outer));
    collectives(k, "");
  }

  /// Line `k` moves a shard of the gradient to or from where it rests: fp32, or half as much where that is in 16 bits.
  void moved(int k) {
    const Size& size = sizes_[book_.unit(k)];
    if (size.shard_line >= 0 && book_.in(k).bytes * 2 != size.shard)
      expect(k, size.shard, "the size of the shard in " + book_.at(size.shard_line) + ", or half of it");
  }

  /// Line `k` sums a shard over those that hold the same: each has all of the sum (all_reduce), or a piece of it.
  void outer(int k) {
    Size& size = sizes_[book_.unit(k)];
    note_shard(k, book_.in(k).bytes);
    expect(k, size.shard, "the size of the shard in " + book_.at(size.shard_line));
    const std::vector<Comm>& comm = book_.in(k).comm;
    const bool pieces = !comm.empty() && comm.front().kind == "reduce_scatter";
    int64_t piece = 0;
    if (collectives(k, pieces ? "reduce_scatter" : "all_reduce", &piece) && pieces) size.piece = piece, size.outer = k;
  }
  /// Whether the unit is updated in pieces.
  bool in_pieces(int unit) const { return sizes_[unit].outer >= 0; }

  /// Line `k` gathers a shard of parameters from its pieces: fp32, or half as much where masters are bf16.
  void from_pieces(int k) {
    const Size& size = sizes_[book_.unit(k)];
    if (size.shard_line >= 0 && book_.in(k).bytes * 2 != size.shard)
      expect(k, size.shard, "the size of the shard in " + book_.at(size.shard_line));
    collectives(k, "all_gather");
  }

  /// Bytes of this rank's shard of the unit's gradient, -1 when no line has told it.
  int64_t shard_of(int unit) const { return sizes_[unit].shard; }

 private:
  struct Size {
    int64_t parameters = -1, gradient = -1, shard = -1, piece = -1;  // bytes
    int gather = -1, reduce = -1, shard_line = -1, outer = -1;       // the lines that told them
    bool sharded = false;
  };

  void note_shard(int k, int64_t bytes) {
    Size& size = sizes_[book_.unit(k)];
    if (size.shard_line < 0) size.shard = bytes, size.shard_line = k;
  }

  /// Where the lines begin in the middle of a run, an update may come before what tells whether it is of a piece.
  void look_ahead(int k) {
    const int rank = book_.lines()[k].rank, unit = book_.unit(k);
    for (int later = k + 1; later < static_cast<int>(book_.lines().size()) && book_.lines()[later].rank == rank;
         ++later)
      if (book_.unit(later) == unit && book_.in(later).op == Op::reduce_outer) return outer(later);
  }

  void expect(int k, int64_t bytes, const std::string& why) {
    if (book_.in(k).bytes != bytes)
      book_.complain(
          k, "bytes",
          "moves " + std::to_string(book_.in(k).bytes) + " bytes, expected " + std::to_string(bytes) + ": " + why);
  }

  /// A rank sends its shard to each of the other n - 1 members, or its part to each of them; of an all-reduce, all. A
  /// unit may have several buffers, each with its group. `shard`: bytes of the rank's shards of all of them, as
  /// they rest.
  bool collectives(int k, const std::string& kind, int64_t* shard = nullptr) {
    const std::vector<Comm>& comm = book_.in(k).comm;
    int64_t whole = 0, parts = 0;
    std::vector<int64_t> wholes;  // of each collective
    bool over_tp = false;
    for (const Comm& c : comm) {
      if (book_.group(c) < 0) return false;
      if (c.kind != kind || kind.empty()) {
        book_.complain(k, "groups",
                       "runs " + c.kind + ", expected " + (kind.empty() ? "no collective" : "one " + kind));
        return false;
      }
      const auto n = std::max<int64_t>(2, static_cast<int64_t>(book_.groups()[book_.group(c)].ranks.size()));
      const int64_t part = kind == "all_reduce" ? c.bytes : c.bytes / (n - 1);
      over_tp = over_tp || c.axis.ends_with("tp");
      parts += part;
      wholes.push_back(kind == "all_reduce" ? part : part * n);
      whole += wholes.back();
    }
    if (comm.empty()) return false;
    const bool narrow = whole * 2 == book_.in(k).bytes;                      // what is fp32 travels as bf16 or fp16
    const bool some_narrow = may_add_up(wholes, book_.in(k).bytes - whole);  // but not what rests in fewer bits
    if (shard) *shard = narrow ? parts * 2 : parts;
    // what the ranks of tp do not share is not gathered where nobody else shares it
    const bool partial = over_tp && whole < book_.in(k).bytes;
    if (whole == book_.in(k).bytes || narrow || some_narrow || partial) return true;
    book_.complain(k, "bytes",
                   "sends " + std::to_string(comm.front().bytes) + " bytes, expected a share of " +
                       std::to_string(book_.in(k).bytes) + " (these make " + std::to_string(whole) + ")");
    return false;
  }

  /// Whether some of the parts make `sum`; a unit has a handful of buffers.
  static bool may_add_up(const std::vector<int64_t>& parts, int64_t sum) {
    std::set<int64_t> sums = {0};
    for (const int64_t part : parts) {
      const std::set<int64_t> before = sums;
      for (const int64_t s : before) sums.insert(s + part);
    }
    return sums.contains(sum);
  }

  Book& book_;
  int rank_ = -1;
  std::vector<Size> sizes_;  // per unit
};

}  // namespace tessera::plan
