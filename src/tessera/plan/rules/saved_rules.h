#pragma once
// What a forward saved for its backward, through quantisation and offload to host and disk and back: nothing is moved
// before it is computed, used while offloaded, or reloaded twice. Follows one pass. Internal to the rules.
//
//   SavedRules saved(checker, order, host, disk);
//   saved.stash(k, work);               // in the order of the lines; `work` is the unit's micro-batch
//   saved.is_back(backward, work);
#include "tessera/plan/rules/arena_rules.h"
#include "tessera/plan/rules/checker.h"
#include "tessera/plan/rules/order.h"

namespace tessera::plan {

/// The lines that processed one micro-batch of one unit, -1 for not yet.
struct Work {
  int forward = -1, recompute = -1, backward = -1, gradient = -1, reduce = -1;
  int compress = -1, stash = -1, write = -1, drop = -1, read = -1, fetch = -1, expand = -1;
};

class SavedRules {
 public:
  SavedRules(Checker& checker, const Order& order, ArenaRules& host, ArenaRules& disk)
      : checker_(checker), order_(order), host_(host), disk_(disk) {}

  void compress(int k, Work& work) {
    if (work.forward < 0)
      checker_.report(k, "order", "has nothing to compress: the forward of this micro-batch must come before it");
    else
      after(k, work.forward, "what it compresses may not be there");
    if (work.stash >= 0)
      checker_.report(k, "order",
                      "comes after " + checker_.at(work.stash) + ", which moves what it makes; move it before");
    if (work.gradient >= 0)
      checker_.report(k, "order",
                      "comes after " + checker_.at(work.gradient) + ", which has used up what it compresses");
    only_once(checker_, k, work.compress);
  }

  void expand(int k, Work& work) {
    if (work.compress < 0) {
      checker_.report(k, "order", "has nothing to expand: the compress of this micro-batch must come before it");
    } else {
      after(k, work.compress, "what it expands may not be there");
      same_bytes(k, work.compress);
    }
    has_come(k, work);
    only_once(checker_, k, work.expand);
  }

  void stash(int k, Work& work) {
    if (checker_.in(k).lane == Lane::disk) return write(k, work);
    if (work.forward < 0)
      checker_.report(k, "order", "has nothing to copy: the forward of this micro-batch must come before it");
    else
      after(k, work.forward, "what it copies may not be there");
    if (work.compress >= 0) after(k, work.compress, "what it copies may not be compressed yet");
    if (work.gradient >= 0)
      checker_.report(k, "order", "comes after " + checker_.at(work.gradient) + ", which has used up what it copies");
    host_.take(k, checker_.in(k).host, checker_.in(k).bytes, "host memory");
    only_once(checker_, k, work.stash);
  }

  void drop(int k, Work& work) {
    if (work.stash < 0)
      checker_.report(k, "order", "frees what no stash has copied; put the stash before it");
    else
      after(k, work.stash, "the copy may not be done"), same_bytes(k, work.stash);
    only_once(checker_, k, work.drop);
  }

  void fetch(int k, Work& work) {
    if (checker_.in(k).lane == Lane::disk) return read(k, work);
    if (work.drop < 0) checker_.report(k, "order", "brings back what is still there; put a stash and a drop before it");
    if (work.write >= 0 && work.read < 0)
      checker_.report(
          k, "residency",
          "needs what " + checker_.at(work.write) + " has sent on to the disk; put a fetch from there before it");
    else
      leave_host(k, work.read >= 0 ? work.read : work.stash, "the copy may not be done");
    only_once(checker_, k, work.fetch);
  }

  /// Stashed activations must be reloaded, and compressed ones expanded, before `k` reads them.
  void is_back(int k, const Work& work) {
    has_come(k, work);
    if (work.expand >= 0)
      after(k, work.expand, "its activations may not be expanded");
    else if (work.compress >= 0)
      checker_.report(k, "residency",
                      "needs what " + checker_.at(work.compress) + " has compressed; put an expand before it");
  }

 private:
  void write(int k, Work& work) {
    if (work.stash < 0)
      checker_.report(k, "order", "writes what no stash has copied to the host; put the stash before it");
    leave_host(k, work.stash, "the copy may not be there");
    disk_.take(k, checker_.in(k).slot, checker_.in(k).bytes, "place on the disk");
    only_once(checker_, k, work.write);
  }

  void read(int k, Work& work) {
    if (work.write < 0) {
      checker_.report(k, "order", "reads what nothing has written to the disk; put the stash to it before");
    } else {
      after(k, work.write, "it may not be written yet");
      same_bytes(k, work.write);
      if (checker_.in(k).slot != checker_.in(work.write).slot)
        checker_.report(k, "residency",
                        "reads the disk at " + slot_text(checker_.in(k).slot) + ", but " + checker_.at(work.write) +
                            " wrote " + slot_text(checker_.in(work.write).slot));
      disk_.give(work.write, checker_.in(work.write).slot, k);
    }
    host_.take(k, checker_.in(k).host, checker_.in(k).bytes, "host memory");
    only_once(checker_, k, work.read);
  }

  /// Line `k` moves on what `filler` put into host memory (-1: nothing did).
  void leave_host(int k, int filler, const char* otherwise) {
    if (filler < 0) return;
    after(k, filler, otherwise);
    same_bytes(k, filler);
    if (checker_.in(k).host != checker_.in(filler).host)
      checker_.report(k, "residency",
                      "reads host memory at " + slot_text(checker_.in(k).host) + ", but " + checker_.at(filler) +
                          " wrote " + slot_text(checker_.in(filler).host));
    host_.give(filler, checker_.in(filler).host, k);
  }

  void has_come(int k, const Work& work) {
    if (work.fetch >= 0)
      after(k, work.fetch, "its activations may not be back");
    else if (work.stash >= 0)
      checker_.report(k, "residency",
                      "needs what " + checker_.at(work.stash) + " has sent away; put a fetch before it");
  }

  void same_bytes(int k, int stash) {
    if (checker_.in(k).bytes != checker_.in(stash).bytes)
      checker_.report(k, "bytes",
                      "moves " + std::to_string(checker_.in(k).bytes) + " bytes, but " + checker_.at(stash) +
                          " moved " + std::to_string(checker_.in(stash).bytes));
  }

  void after(int k, int earlier, const char* otherwise) {
    must_follow(checker_, order_, k, earlier, "order", otherwise);
  }

  Checker& checker_;
  const Order& order_;
  ArenaRules &host_, &disk_;
};

}  // namespace tessera::plan
