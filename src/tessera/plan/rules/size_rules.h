#pragma once
// The bytes of an instruction match its unit's size, which the first line that shows it fixes for the rank, and the
// bytes of its collective. Internal to the rules.
//
//   sizes.whole(gather, "all_gather");    // reports if the bytes are not the unit's
//   sizes.bytes(unit);
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tessera/plan/rules/checker.h"

namespace tessera::plan {

class SizeRules {
 public:
  explicit SizeRules(Checker& checker) : checker_(checker) {}

  /// Sizes are known per rank; the lines of a rank are contiguous.
  void of_rank(int rank) {
    if (rank != rank_) sizes_.assign(checker_.units().size(), {});
    rank_ = rank;
  }

  bool sharded(int unit) const { return sizes_[unit].sharded; }

  /// Line `k` moves all of a unit's parameters, or its whole gradient (reduce), by collectives of `kind` if there are
  /// any.
  void whole(int k, const std::string& kind) {
    Size& size = sizes_[checker_.unit(k)];
    const bool reduces = checker_.in(k).op == Op::reduce;
    int64_t& bytes = reduces ? size.gradient : size.parameters;
    int& line = reduces ? size.reduce : size.gather;
    if (line < 0) bytes = checker_.in(k).bytes, line = k;
    if (!reduces && !checker_.groups_of(k).empty()) size.sharded = true;
    expect(k, bytes, "the unit's size in " + checker_.at(line));
    int64_t shard = 0;
    if (collectives(k, kind, &shard) && reduces) note_shard(k, shard);
  }

  /// Line `k` writes a unit's gradient.
  void gradient(int k) {
    Size& size = sizes_[checker_.unit(k)];
    if (size.reduce < 0) size.gradient = checker_.in(k).bytes, size.reduce = k;
    expect(k, size.gradient, "the size of the unit's gradient in " + checker_.at(size.reduce));
    const int64_t trained = size.gather < 0 ? 0 : size.parameters - checker_.in(size.gather).frozen;
    const bool halved = trained * 2 == size.gradient;  // slots of 16 bits; gradients are fp32
    if (size.gather >= 0 && trained != size.gradient && !halved)
      checker_.report(k, "bytes",
                      "the gradient has " + std::to_string(size.gradient) + " bytes, but " + checker_.at(size.gather) +
                          " gathers " + std::to_string(trained) + " of trained parameters");
    if (!size.sharded) note_shard(k, size.gradient);
  }

  /// Line `k` uses what this rank updates: its shard of the gradient, or with two_level its partition of the shard.
  void shard(int k) {
    const Size& size = sizes_[checker_.unit(k)];
    if (size.shard_line < 0) look_ahead(k);
    if (size.outer < 0) note_shard(k, checker_.in(k).bytes);
    if (size.outer < 0)
      expect(k, size.shard, "the size of the shard in " + checker_.at(size.shard_line));
    else
      expect(k, size.partition, "this rank's partition of the sum in " + checker_.at(size.outer));
    if (checker_.in(k).op != Op::update) {
      collectives(k, "");
      return;
    }
    for (const Comm& c : checker_.in(k).comm)  // sums over tensors, of any size
      if (c.kind != "all_reduce") checker_.report(k, "groups", "runs " + c.kind + ", expected sums by all_reduce");
  }

  /// Line `k` offloads or reloads a gradient shard: fp32, or half the bytes if it is stored in 16 bits.
  void moved(int k) {
    const Size& size = sizes_[checker_.unit(k)];
    if (size.shard_line >= 0 && checker_.in(k).bytes * 2 != size.shard)
      expect(k, size.shard, "the size of the shard in " + checker_.at(size.shard_line) + ", or half of it");
  }

  /// Line `k` sums a shard over its replicas: each receives all of the sum (all_reduce) or its partition
  /// (reduce_scatter).
  void outer(int k) {
    Size& size = sizes_[checker_.unit(k)];
    note_shard(k, checker_.in(k).bytes);
    expect(k, size.shard, "the size of the shard in " + checker_.at(size.shard_line));
    const std::vector<Comm>& comm = checker_.in(k).comm;
    const bool partitions = !comm.empty() && comm.front().kind == "reduce_scatter";
    int64_t partition = 0;
    if (collectives(k, partitions ? "reduce_scatter" : "all_reduce", &partition) && partitions)
      size.partition = partition, size.outer = k;
  }
  /// Whether the unit is updated in partitions.
  bool partitioned(int unit) const { return sizes_[unit].outer >= 0; }

  /// Line `k` gathers a shard of parameters from its partitions: fp32, or half the bytes if masters are bf16.
  void from_partitions(int k) {
    const Size& size = sizes_[checker_.unit(k)];
    if (size.shard_line >= 0 && checker_.in(k).bytes * 2 != size.shard)
      expect(k, size.shard, "the size of the shard in " + checker_.at(size.shard_line));
    collectives(k, "all_gather");
  }

  /// Bytes of this rank's shard of the unit's gradient, -1 if no line has shown it.
  int64_t shard_of(int unit) const { return sizes_[unit].shard; }

 private:
  struct Size {
    int64_t parameters = -1, gradient = -1, shard = -1, partition = -1;  // bytes
    int gather = -1, reduce = -1, shard_line = -1, outer = -1;           // the lines that showed them
    bool sharded = false;
  };

  void note_shard(int k, int64_t bytes) {
    Size& size = sizes_[checker_.unit(k)];
    if (size.shard_line < 0) size.shard = bytes, size.shard_line = k;
  }

  /// In lines that begin in the middle of a run, an update may come before the line that shows whether it is
  /// partitioned.
  void look_ahead(int k) {
    const int rank = checker_.lines()[k].rank, unit = checker_.unit(k);
    for (int later = k + 1; later < static_cast<int>(checker_.lines().size()) && checker_.lines()[later].rank == rank;
         ++later)
      if (checker_.unit(later) == unit && checker_.in(later).op == Op::reduce_outer) return outer(later);
  }

  void expect(int k, int64_t bytes, const std::string& why) {
    if (checker_.in(k).bytes != bytes)
      checker_.report(
          k, "bytes",
          "moves " + std::to_string(checker_.in(k).bytes) + " bytes, expected " + std::to_string(bytes) + ": " + why);
  }

  /// A rank sends its shard to each of the other n - 1 members, or a part to each of them; in an all-reduce, all of it.
  /// A unit may have several buffers, each with its group. `shard`: stored bytes of the rank's shards of all buffers.
  bool collectives(int k, const std::string& kind, int64_t* shard = nullptr) {
    const std::vector<Comm>& comm = checker_.in(k).comm;
    int64_t whole = 0, parts = 0;
    std::vector<int64_t> wholes;  // of each collective
    bool over_tp = false;
    for (const Comm& c : comm) {
      if (checker_.group(c) < 0) return false;
      if (c.kind != kind || kind.empty()) {
        checker_.report(k, "groups",
                        "runs " + c.kind + ", expected " + (kind.empty() ? "no collective" : "one " + kind));
        return false;
      }
      const auto n = std::max<int64_t>(2, static_cast<int64_t>(checker_.groups()[checker_.group(c)].ranks.size()));
      const int64_t part = kind == "all_reduce" ? c.bytes : c.bytes / (n - 1);
      over_tp = over_tp || c.axis.text().ends_with("tp");
      parts += part;
      wholes.push_back(kind == "all_reduce" ? part : part * n);
      whole += wholes.back();
    }
    if (comm.empty()) return false;
    const bool narrow = whole * 2 == checker_.in(k).bytes;  // fp32 values communicated as bf16 or fp16
    const bool some_narrow = may_add_up(wholes, checker_.in(k).bytes - whole);  // except buffers stored in fewer bits
    if (shard) *shard = narrow ? parts * 2 : parts;
    // Buffers sharded by tensor parallelism are not gathered if no other axis shards them.
    const bool partial = over_tp && whole < checker_.in(k).bytes;
    if (whole == checker_.in(k).bytes || narrow || some_narrow || partial) return true;
    checker_.report(k, "bytes",
                    "sends " + std::to_string(comm.front().bytes) + " bytes, expected a share of " +
                        std::to_string(checker_.in(k).bytes) + " (these make " + std::to_string(whole) + ")");
    return false;
  }

  /// Whether some of the parts sum to `sum`; a unit has few buffers.
  static bool may_add_up(const std::vector<int64_t>& parts, int64_t sum) {
    std::set<int64_t> sums = {0};
    for (const int64_t part : parts) {
      const std::set<int64_t> before = sums;
      for (const int64_t s : before) sums.insert(s + part);
    }
    return sums.contains(sum);
  }

  Checker& checker_;
  int rank_ = -1;
  std::vector<Size> sizes_;  // by unit
};

}  // namespace tessera::plan
