// Rules inside one pass of one rank: residency, order, arena and bytes. The pass is read line by line, as an
// executor would run it, and each operation has one function.
#include <map>
#include <set>
#include <utility>

#include "tessera/plan/rules/arena_rules.h"
#include "tessera/plan/rules/book.h"
#include "tessera/plan/rules/order.h"

namespace tessera::plan {

namespace {

/// What is known of a unit's whole size on one rank, from the first line that tells it.
struct Size {
  int64_t bytes = -1;
  int line = -1;
  int shards = 1;
};

/// Units that some rank recomputes in a step: (step, unit).
using Recomputed = std::set<std::pair<int64_t, int>>;

class StepRules {
 public:
  StepRules(Book& book, const Pass& pass, std::vector<Size>& sizes, const Recomputed& recomputed)
      : book_(book), pass_(pass), sizes_(sizes), recomputed_(recomputed), order_(book, pass), arena_(book, order_),
        resident_(book.units().size()), released_(book.units().size(), -1), outer_(book.units().size(), -1),
        updated_(book.units().size(), -1) {}

  void run() {
    for (int k = pass_.begin; k < pass_.end; ++k)
      if (book_.unit(k) >= 0) units_.insert(book_.unit(k));
    for (int k = pass_.begin; k < pass_.end; ++k) step(k);
    finish();
  }

 private:
  struct Resident {
    int gather = -1;
    std::vector<int> uses;
  };
  /// What happened to one micro-batch of one unit: lines, -1 for not yet.
  struct Work {
    int forward = -1, recompute = -1, gradient = -1, reduce = -1;
  };

  void step(int k) {
    const Op op = book_.in(k).op;
    const bool of_unit = op != Op::loss && op != Op::finish && op != Op::norm && op != Op::flush;
    if (of_unit && book_.unit(k) < 0) return;  // the form rule has named it
    switch (op) {
      case Op::gather: return gather(k);
      case Op::forward: return forward(k);
      case Op::release: return release(k);
      case Op::loss:
      case Op::finish: return output(k);
      case Op::recompute: return recompute(k);
      case Op::backward: return backward(k);
      case Op::idle: return idle(k);
      case Op::reduce: return reduce(k);
      case Op::reduce_outer: return reduce_outer(k);
      case Op::norm: return norm(k);
      case Op::update: return update(k);
      case Op::flush: return;  // writes what update has left; its barriers are a matter of groups
    }
  }

  // -- residency ---------------------------------------------------------------------------------------------------

  void gather(int k) {
    Resident& unit = resident_[book_.unit(k)];
    if (unit.gather >= 0) {
      book_.complain(unit.gather, "residency", "is never released before " + book_.at(k) + " gathers the unit again; put its release after its last use");
      arena_.give(unit.gather, book_.in(unit.gather).slot, k);
    }
    const bool sharded = book_.group(k) >= 0;
    if (sharded && book_.in(k).slot < 0) book_.complain(k, "form", "gathers from a group and has no \"slot\" to gather into");
    whole_size(k, shards(k));
    collective_size(k, "all_gather");
    arena_.take(k, book_.in(k).slot, book_.in(k).bytes, "slot");
    unit = {k, {}};
  }

  /// A use of gathered parameters; false when there are none.
  bool use(int k, const char* verb = "uses") {
    Resident& unit = resident_[book_.unit(k)];
    if (unit.gather < 0) {
      const int before = released_[book_.unit(k)], later = next_gather(k);
      std::string text = std::string(verb) + " parameters that are not gathered";
      if (before >= 0) text += ": " + book_.at(before) + " has released them";
      text += later >= 0 ? "; move " + book_.at(later) + " before this line" : "; put a gather before this line";
      book_.complain(k, "residency", text);
      return false;
    }
    if (book_.in(unit.gather).slot != book_.in(k).slot)
      book_.complain(k, "residency", "reads slot " + slot_text(book_.in(k).slot) + ", but " + book_.at(unit.gather) + " filled slot " +
                                         slot_text(book_.in(unit.gather).slot) + "; use that one");
    after(k, unit.gather, "residency", "the parameters may not have arrived");
    unit.uses.push_back(k);
    return true;
  }

  void release(int k) {
    if (!use(k, "releases")) return;
    Resident& unit = resident_[book_.unit(k)];
    unit.uses.pop_back();  // the release itself
    for (int earlier : unit.uses) after(k, earlier, "residency", "the parameters may still be read");
    arena_.give(unit.gather, book_.in(unit.gather).slot, k);
    unit.gather = -1;
    released_[book_.unit(k)] = k;
  }

  // -- order of the work -------------------------------------------------------------------------------------------

  void forward(int k) {
    use(k);
    Work& work = work_of(k);
    if (once(k, work.forward)) open_[book_.in(k).micro].push_back(k);
  }

  void output(int k) {
    const int micro = book_.in(k).micro;
    for (int unit : units_) {
      const auto found = work_.find({unit, micro});
      if (found == work_.end() || found->second.forward < 0)
        book_.complain(k, "order", "comes before the forward of " + book_.units()[unit] + " in this micro-batch; every unit must run first");
      else
        after(k, found->second.forward, "order", "its result may not be there");
    }
    once(k, output_.try_emplace(micro, -1).first->second);
    if (book_.in(k).op == Op::finish) open_.erase(micro);
  }

  void recompute(int k) {
    use(k);
    Work& work = work_of(k);
    if (work.forward < 0) book_.complain(k, "order", "has no forward to repeat; put the forward of this micro-batch before it");
    if (work.gradient >= 0) book_.complain(k, "order", "comes after " + book_.at(work.gradient) + ", which needs it; move it before");
    once(k, work.recompute);
  }

  void backward(int k) {
    use(k);
    Work& work = work_of(k);
    const auto output = output_.find(book_.in(k).micro);
    if (output == output_.end())
      book_.complain(k, "order", "has no gradient to start from: the loss of this micro-batch must come before it");
    else
      after(k, output->second, "order", "the gradient may not be there");
    if (work.forward < 0) {
      book_.complain(k, "order", "has no forward of this micro-batch before it");
    } else {
      after(k, work.forward, "order", "the graph may not be there");
      close(k);
    }
    if (work.recompute >= 0)
      after(k, work.recompute, "order", "the graph may not be there");
    else if (recomputed_.contains({pass_.step, book_.unit(k)}))
      book_.complain(k, "order", "the unit is recomputed elsewhere in this step, but not before this line; put its recompute here");
    gradient(k, work);
  }

  /// Backward undoes the forwards of a micro-batch, last one first.
  void close(int k) {
    std::vector<int>& open = open_[book_.in(k).micro];
    if (!open.empty() && book_.unit(open.back()) != book_.unit(k))
      book_.complain(k, "order", "the gradient passes through " + book_.units()[book_.unit(open.back())] + " first, forwarded last by " + book_.at(open.back()));
    std::erase_if(open, [&](int forward) { return book_.unit(forward) == book_.unit(k); });
  }

  void idle(int k) {
    Work& work = work_of(k);
    if (work.forward >= 0) book_.complain(k, "order", "is idle in a micro-batch that " + book_.at(work.forward) + " has run; a rank does one or the other");
    gradient(k, work);
  }

  // -- gradients ---------------------------------------------------------------------------------------------------

  void gradient(int k, Work& work) {
    if (norm_ >= 0) book_.complain(k, "order", "writes a gradient after " + book_.at(norm_) + " has counted them; move it before");
    once(k, work.gradient);
    const Size& size = sizes_[book_.unit(k)];
    if (size.shards > 1 && book_.in(k).grad < 0) book_.complain(k, "form", "writes a gradient that is sharded and has no slot \"grad\" for it");
    arena_.take(k, book_.in(k).grad, size.bytes, "gradient slot");
  }

  void reduce(int k) {
    Work& work = work_of(k);
    whole_size(k, shards(k));
    collective_size(k, "reduce_scatter");
    if (work.gradient < 0) {
      book_.complain(k, "order", "reduces a gradient that no backward or idle of this micro-batch has written; move it after that");
    } else {
      const int64_t written = book_.in(work.gradient).grad;
      if (written != book_.in(k).grad)
        book_.complain(k, "order", "reduces gradient slot " + slot_text(book_.in(k).grad) + ", but " + book_.at(work.gradient) + " wrote slot " + slot_text(written));
      after(k, work.gradient, "order", "the gradient may not be whole");
    }
    once(k, work.reduce);
    arena_.take(k, book_.in(k).scratch, book_.in(k).bytes, "scratch");
    arena_.give(k, book_.in(k).scratch, k);
    if (work.gradient >= 0) arena_.give(work.gradient, book_.in(work.gradient).grad, k);
  }

  void reduce_outer(int k) {
    shard_size(k);
    collective_size(k, "all_reduce");
    after_gradients(k, book_.unit(k));
    once(k, outer_[book_.unit(k)]);
  }

  void norm(int k) {
    const bool replicated = std::any_of(outer_.begin(), outer_.end(), [](int line) { return line >= 0; });
    for (int unit : units_) {
      if (outer_[unit] >= 0)
        after(k, outer_[unit], "order", "that gradient is not summed over the replicas yet");
      else if (replicated && has_gradient(unit))
        book_.complain(k, "order", "counts the gradient of " + book_.units()[unit] + ", which has no reduce_outer; put it before this line");
      after_gradients(k, unit);
    }
    once(k, norm_);
  }

  void update(int k) {
    shard_size(k);
    if (norm_ < 0)
      book_.complain(k, "order", "has no norm before it, and the step is clipped by it; put the norm before all updates");
    else
      after(k, norm_, "order", "the norm may not be known");
    once(k, updated_[book_.unit(k)]);
  }

  bool has_gradient(int unit) const {
    const auto first = work_.lower_bound({unit, -1});
    for (auto it = first; it != work_.end() && it->first.first == unit; ++it)
      if (it->second.gradient >= 0) return true;
    return false;
  }

  /// `k` follows all micro-batches' gradients of the unit, reduced where they are sharded.
  void after_gradients(int k, int unit) {
    for (auto it = work_.lower_bound({unit, -1}); it != work_.end() && it->first.first == unit; ++it) {
      const Work& work = it->second;
      if (work.reduce >= 0) after(k, work.reduce, "order", "that gradient may not be summed");
      else if (work.gradient >= 0) after(k, work.gradient, "order", "that gradient may not be whole");
    }
  }

  // -- the end of the pass -----------------------------------------------------------------------------------------

  void finish() {
    for (const Resident& unit : resident_)
      if (unit.gather >= 0) book_.complain(unit.gather, "residency", "is never released; put its release after its last use");
    int gradient = -1;
    for (const auto& [key, work] : work_) {
      gradient = std::max(gradient, work.gradient);
      if (work.gradient >= 0 && work.reduce < 0 && book_.in(work.gradient).grad >= 0)
        book_.complain(work.gradient, "order", "its gradient slot is never reduced; put its reduce after it");
      if (work.gradient >= 0 && norm_ >= 0 && updated_[key.first] < 0)
        book_.complain(norm_, "order", "counts the gradient of " + book_.units()[key.first] + ", which no update uses; put its update after this line");
    }
    for (const auto& [micro, forwards] : open_)
      for (int forward : forwards) book_.complain(forward, "order", "its result is used by no backward and no finish");
    if (gradient >= 0 && norm_ < 0) book_.complain(gradient, "order", "its gradient is in no norm; put norm and update after it");
  }

  // -- small words -------------------------------------------------------------------------------------------------

  Work& work_of(int k) { return work_[{book_.unit(k), book_.in(k).micro}]; }

  void after(int k, int earlier, const char* rule, const char* otherwise) {
    if (!order_.before(earlier, k)) book_.complain(k, rule, "does not wait for " + book_.at(earlier) + ": " + otherwise + "; add that line to \"wait\"");
  }

  /// Notes that `k` did it, and complains when an earlier line did already.
  bool once(int k, int& done) {
    if (done >= 0) book_.complain(k, "order", "does again what " + book_.at(done) + " has done; remove one of them");
    return std::exchange(done, k) < 0;
  }

  int next_gather(int k) const {
    for (int later = k + 1; later < pass_.end; ++later)
      if (book_.in(later).op == Op::gather && book_.unit(later) == book_.unit(k)) return later;
    return -1;
  }

  static std::string slot_text(int64_t slot) { return slot < 0 ? "none" : std::to_string(slot); }

  // -- bytes -------------------------------------------------------------------------------------------------------

  int shards(int k) const { return book_.group(k) < 0 ? 1 : std::max<int>(1, static_cast<int>(book_.groups()[book_.group(k)].ranks.size())); }

  void expect_bytes(int k, int64_t bytes, const std::string& why) {
    if (book_.in(k).bytes != bytes)
      book_.complain(k, "bytes", "moves " + std::to_string(book_.in(k).bytes) + " bytes, expected " + std::to_string(bytes) + ": " + why);
  }

  void whole_size(int k, int shards) {
    Size& size = sizes_[book_.unit(k)];
    if (size.line < 0) size = {book_.in(k).bytes, k, shards};
    expect_bytes(k, size.bytes, "the unit's size in " + book_.at(size.line));
  }

  void shard_size(int k) {
    const Size& size = sizes_[book_.unit(k)];
    if (size.line >= 0)
      expect_bytes(k, size.bytes / size.shards, "1/" + std::to_string(size.shards) + " of the unit's size in " + book_.at(size.line));
  }

  /// A rank sends its shard to each of the other n - 1 members, or its part for each of them; of an all-reduce, all.
  void collective_size(int k, const std::string& kind) {
    if (book_.group(k) < 0 || book_.in(k).comm.empty()) return;
    const Comm& comm = book_.in(k).comm.front();
    if (comm.kind != kind || book_.in(k).comm.size() != 1) {
      book_.complain(k, "groups", "runs " + comm.kind + ", expected one " + kind);
      return;
    }
    const int64_t n = shards(k), whole = book_.in(k).bytes;
    const int64_t sent = kind == "all_reduce" ? whole : whole / n * (n - 1);
    if (comm.bytes != sent || (kind != "all_reduce" && whole % n != 0))
      book_.complain(k, "bytes", "sends " + std::to_string(comm.bytes) + " bytes, expected " + std::to_string(sent) + " of " +
                                     std::to_string(whole) + " on " + std::to_string(n) + " ranks");
  }

  Book& book_;
  const Pass& pass_;
  std::vector<Size>& sizes_;
  const Recomputed& recomputed_;
  const Order order_;
  ArenaRules arena_;
  std::set<int> units_;                        // that the pass names
  std::vector<Resident> resident_;             // per unit
  std::vector<int> released_, outer_, updated_;  // per unit: the line that did it
  std::map<std::pair<int, int>, Work> work_;   // (unit, micro-batch)
  std::map<int, std::vector<int>> open_;       // per micro-batch: forwards whose backward is to come, in order
  std::map<int, int> output_;                  // per micro-batch: its loss or finish
  int norm_ = -1;
};

}  // namespace

void check_steps(Book& book) {
  Recomputed recomputed;
  for (int k = 0; k < static_cast<int>(book.lines().size()); ++k)
    if (book.in(k).op == Op::recompute) recomputed.insert({book.lines()[k].step, book.unit(k)});
  std::vector<Size> sizes;
  int rank = -1;
  for (const Pass& pass : book.passes()) {
    if (pass.rank != rank) sizes.assign(book.units().size(), {});
    rank = pass.rank;
    StepRules(book, pass, sizes, recomputed).run();
  }
}

}  // namespace tessera::plan
