#pragma once
// Buffers on host or disk: each is fetched into the arena before use and stashed after a change, hop by hop. Follows
// one pass. Internal to the rules.
//
//   TierRules tiers(checker, order, arena, host);
//   tiers.fetch(k); tiers.stash(k);                       // in the order of the lines
//   tiers.use(k, Part::states, in.scratch, /*changes=*/true);
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tessera/plan/rules/arena_rules.h"
#include "tessera/plan/rules/checker.h"
#include "tessera/plan/rules/order.h"

namespace tessera::plan {

class TierRules {
 public:
  TierRules(Checker& checker, const Order& order, ArenaRules& arena, ArenaRules& host)
      : checker_(checker), order_(order), arena_(arena), host_(host) {}

  /// `left`: a gradient of the previous pass may still be stored. `room`: bytes that it takes in the arena, if more
  /// than the bytes moved.
  void fetch(int k, bool left = false, int64_t room = 0) {
    const Instruction& in = checker_.in(k);
    Buffer& buffer = of(k, in.part);
    if (in.lane == Lane::disk || in.host < 0) {  // from its placement
      if (buffer.written >= 0)
        follow(k, buffer.written, "it may not have been written back yet");
      else if (in.part == Part::gradients && !left)  // all other buffers existed before the pass
        checker_.report(k, "residency", "brings back a gradient that nothing has sent there; put a stash before it");
      buffer.read = k;
    }
    if (in.lane == Lane::disk) {
      if (buffer.hop >= 0)
        checker_.report(k, "residency",
                        "reads from the disk what " + checker_.at(buffer.hop) +
                            " has put into host memory and nothing has written; put a stash before it");
      host_.take(k, in.host, in.bytes, "host memory");
      buffer.hop = k;
      return;
    }
    leave_host(k, buffer);
    if (buffer.owner >= 0)
      checker_.report(k, "residency", "fetches what " + checker_.at(buffer.owner) + " has in use; send it back first");
    arena_.take(k, in.slot, std::max(in.bytes, room), std::string(name(in.part)));
    buffer.owner = buffer.last = k, buffer.at = in.slot;
  }

  void stash(int k) {
    const Instruction& in = checker_.in(k);
    Buffer& buffer = of(k, in.part);
    if (in.lane == Lane::disk) {
      leave_host(k, buffer);
      overwrite(k, buffer);
      return;
    }
    if (buffer.owner < 0 || buffer.at != in.slot) {
      checker_.report(k, "residency",
                      "sends what is not at " + slot_text(in.slot) + "; fetch or compute it there first");
    } else {
      follow(k, buffer.last, "it may still change");
      arena_.give(buffer.owner, buffer.at, k);
    }
    if (in.host >= 0) {
      host_.take(k, in.host, in.bytes, "host memory");
      buffer.hop = k;
    } else {
      overwrite(k, buffer);
    }
    buffer.owner = -1;
  }

  /// Line `k` uses the buffer at `at`, where it must be. A changed buffer belongs to `k` from then on and must be
  /// stashed; an unchanged one frees its arena range when `k` is done.
  void use(int k, Part part, int64_t at, bool changes) {
    if (at < 0) {
      const auto found = buffers_.find({checker_.unit(k), part});
      if (found == buffers_.end()) return;
      if (found->second.owner >= 0)
        checker_.report(k, "residency",
                        "does not use what " + checker_.at(found->second.owner) + " has fetched for it");
      // The buffer is placed on the device after all (gradients that are rounded).
      if (found->second.written >= 0) follow(k, found->second.written, "it may not have been stored yet");
      return;
    }
    Buffer& buffer = of(k, part);
    if (buffer.owner < 0 || buffer.at != at) {
      checker_.report(k, "residency",
                      "needs the unit's " + std::string(name(part)) + " at " + slot_text(at) +
                          ", where nothing has fetched them; put a fetch before it");
      return;
    }
    follow(k, buffer.last, "they may not have arrived");
    if (!changes) {
      arena_.give(buffer.owner, at, k);
      buffer.owner = -1;
    }
    buffer.last = k;
  }

  /// Line `k` uses the buffer in place on the host. `left` as in fetch.
  void use_at_rest(int k, Part part, bool changes, bool left) {
    Buffer& buffer = of(k, part);
    if (buffer.owner >= 0)
      checker_.report(k, "residency",
                      "works on the host with what " + checker_.at(buffer.owner) + " has in use; send it back first");
    if (buffer.written >= 0)
      follow(k, buffer.written, "it may not have been written back yet");
    else if (part == Part::gradients && !left)
      checker_.report(k, "residency", "uses a gradient on the host that nothing has sent there; put a stash before it");
    if (changes)
      overwrite(k, buffer);
    else
      buffer.read = k;
  }

  /// Line `k` creates the buffer, `bytes` long, at `at`.
  void make(int k, Part part, int64_t at, int64_t bytes) {
    arena_.take(k, at, bytes, std::string(name(part)));
    Buffer& buffer = of(k, part);
    buffer.owner = buffer.last = k, buffer.at = at;
  }

  /// `k` takes a range that contains the buffer: the two are one range from here on.
  void absorb(int k, Part part) {
    Buffer& buffer = of(k, part);
    if (buffer.owner < 0) return;
    follow(k, buffer.last, "it may not have arrived");
    arena_.forget(buffer.owner, buffer.at);
    buffer.owner = -1;
  }

  bool present(int k, Part part) { return of(k, part).owner >= 0; }
  bool is_offloaded(int unit, Part part) const { return buffers_.contains({unit, part}); }

  void finish() {
    for (const auto& [key, buffer] : buffers_) {
      if (buffer.owner >= 0)
        checker_.report(buffer.last, "residency",
                        "leaves " + std::string(name(key.second)) + " in the arena that are never sent back");
      if (buffer.hop >= 0) checker_.report(buffer.hop, "residency", "leaves host memory that no later hop takes over");
    }
  }

 private:
  struct Buffer {
    int owner = -1, last = -1;  // lines: the one that took its arena range, and the one that used it last
    int64_t at = -1;
    int hop = -1;      // line that put it into host memory on the way to or from disk
    int written = -1;  // line after which the stored copy is up to date
    int read = -1;     // line that read the stored copy last
  };

  Buffer& of(int k, Part part) { return buffers_[{checker_.unit(k), part}]; }

  /// Line `k` writes the stored copy.
  void overwrite(int k, Buffer& buffer) {
    if (buffer.read >= 0) follow(k, buffer.read, "it may still be read");
    buffer.written = k;
  }

  void leave_host(int k, Buffer& buffer) {
    const Instruction& in = checker_.in(k);
    if (in.host < 0) return;
    if (buffer.hop < 0 || checker_.in(buffer.hop).host != in.host) {
      checker_.report(k, "residency", "reads host memory at " + slot_text(in.host) + ", where nothing has put it");
      return;
    }
    follow(k, buffer.hop, "the hop before may not be done");
    host_.give(buffer.hop, in.host, k);
    buffer.hop = -1;
  }

  void follow(int k, int earlier, const char* otherwise) {
    must_follow(checker_, order_, k, earlier, "residency", otherwise);
  }

  Checker& checker_;
  const Order& order_;
  ArenaRules &arena_, &host_;
  std::map<std::pair<int, Part>, Buffer> buffers_;
};

}  // namespace tessera::plan
