// Rules inside one pass of one rank: what comes after what, from forward to update. The pass is read line by line, as
// an executor would run it, and each operation has one function.
#include <map>
#include <set>
#include <utility>

#include "tessera/plan/rules/arena_rules.h"
#include "tessera/plan/rules/book.h"
#include "tessera/plan/rules/order.h"
#include "tessera/plan/rules/residency.h"
#include "tessera/plan/rules/size_rules.h"

namespace tessera::plan {

namespace {

/// Units that some rank recomputes in a step: (step, unit).
using Recomputed = std::set<std::pair<int64_t, int>>;

class StepRules {
 public:
  StepRules(Book& book, const Pass& pass, SizeRules& sizes, const Recomputed& recomputed)
      : book_(book),
        pass_(pass),
        sizes_(sizes),
        recomputed_(recomputed),
        order_(book, pass),
        arena_(book, order_),
        residency_(book, pass, order_, arena_, sizes),
        outer_(book.units().size(), -1),
        updated_(book.units().size(), -1) {}

  void run() {
    for (int k = pass_.begin; k < pass_.end; ++k)
      if (book_.unit(k) >= 0) units_.insert(book_.unit(k));
    for (int k = pass_.begin; k < pass_.end; ++k) step(k);
    finish();
  }

 private:
  /// What happened to one micro-batch of one unit: lines, -1 for not yet.
  struct Work {
    int forward = -1, recompute = -1, gradient = -1, reduce = -1;
  };

  void step(int k) {
    const Op op = book_.in(k).op;
    const bool of_unit = op != Op::loss && op != Op::finish && op != Op::norm && op != Op::flush;
    if (of_unit && book_.unit(k) < 0) return;  // the form rule has named it
    switch (op) {
      case Op::gather:
        return residency_.gather(k);
      case Op::forward:
        return forward(k);
      case Op::release:
        return residency_.release(k);
      case Op::loss:
      case Op::finish:
        return output(k);
      case Op::recompute:
        return recompute(k);
      case Op::backward:
        return backward(k);
      case Op::idle:
        return idle(k);
      case Op::reduce:
        return reduce(k);
      case Op::reduce_outer:
        return reduce_outer(k);
      case Op::norm:
        return norm(k);
      case Op::update:
        return update(k);
      case Op::flush:
        return;  // writes what update has left; its barriers are a matter of groups
    }
  }

  void forward(int k) {
    residency_.use(k);
    Work& work = work_of(k);
    if (once(k, work.forward)) open_[book_.in(k).micro].push_back(k);
  }

  void output(int k) {
    const int micro = book_.in(k).micro;
    for (int unit : units_) {
      const auto found = work_.find({unit, micro});
      if (found == work_.end() || found->second.forward < 0)
        book_.complain(
            k, "order",
            "comes before the forward of " + book_.units()[unit] + " in this micro-batch; every unit must run first");
      else
        after(k, found->second.forward, "its result may not be there");
    }
    once(k, output_.try_emplace(micro, -1).first->second);
    if (book_.in(k).op == Op::finish) open_.erase(micro);
  }

  void recompute(int k) {
    residency_.use(k);
    Work& work = work_of(k);
    if (work.forward < 0)
      book_.complain(k, "order", "has no forward to repeat; put the forward of this micro-batch before it");
    if (work.gradient >= 0)
      book_.complain(k, "order", "comes after " + book_.at(work.gradient) + ", which needs it; move it before");
    once(k, work.recompute);
  }

  void backward(int k) {
    residency_.use(k);
    Work& work = work_of(k);
    const auto output = output_.find(book_.in(k).micro);
    if (output == output_.end())
      book_.complain(k, "order", "has no gradient to start from: the loss of this micro-batch must come before it");
    else
      after(k, output->second, "the gradient may not be there");
    if (work.forward < 0) {
      book_.complain(k, "order", "has no forward of this micro-batch before it");
    } else {
      after(k, work.forward, "the graph may not be there");
      close(k);
    }
    if (work.recompute >= 0)
      after(k, work.recompute, "the graph may not be there");
    else if (recomputed_.contains({pass_.step, book_.unit(k)}))
      book_.complain(k, "order",
                     "the unit is recomputed elsewhere in this step, but not before this line; put its recompute here");
    gradient(k, work);
  }

  /// Backward undoes the forwards of a micro-batch, last one first.
  void close(int k) {
    std::vector<int>& open = open_[book_.in(k).micro];
    if (!open.empty() && book_.unit(open.back()) != book_.unit(k))
      book_.complain(k, "order",
                     "the gradient passes through " + book_.units()[book_.unit(open.back())] +
                         " first, forwarded last by " + book_.at(open.back()));
    std::erase_if(open, [&](int forward) { return book_.unit(forward) == book_.unit(k); });
  }

  void idle(int k) {
    Work& work = work_of(k);
    if (work.forward >= 0)
      book_.complain(
          k, "order",
          "is idle in a micro-batch that " + book_.at(work.forward) + " has run; a rank does one or the other");
    gradient(k, work);
  }

  // -- gradients ---------------------------------------------------------------------------------------------------

  void gradient(int k, Work& work) {
    if (norm_ >= 0)
      book_.complain(k, "order", "writes a gradient after " + book_.at(norm_) + " has counted them; move it before");
    once(k, work.gradient);
    if (sizes_.shards(book_.unit(k)) > 1 && book_.in(k).grad < 0)
      book_.complain(k, "form", "writes a gradient that is sharded and has no slot \"grad\" for it");
    arena_.take(k, book_.in(k).grad, sizes_.bytes(book_.unit(k)), "gradient slot");
  }

  void reduce(int k) {
    Work& work = work_of(k);
    sizes_.whole(k, "reduce_scatter");
    if (work.gradient < 0) {
      book_.complain(k, "order",
                     "reduces a gradient that no backward or idle of this micro-batch has written; move it after that");
    } else {
      const int64_t written = book_.in(work.gradient).grad;
      if (written != book_.in(k).grad)
        book_.complain(k, "order",
                       "reduces gradient slot " + slot_text(book_.in(k).grad) + ", but " + book_.at(work.gradient) +
                           " wrote slot " + slot_text(written));
      after(k, work.gradient, "the gradient may not be whole");
    }
    once(k, work.reduce);
    arena_.take(k, book_.in(k).scratch, book_.in(k).bytes, "scratch");
    arena_.give(k, book_.in(k).scratch, k);
    if (work.gradient >= 0) arena_.give(work.gradient, book_.in(work.gradient).grad, k);
  }

  void reduce_outer(int k) {
    sizes_.shard(k, "all_reduce");
    after_gradients(k, book_.unit(k));
    once(k, outer_[book_.unit(k)]);
  }

  void norm(int k) {
    const bool replicated = std::any_of(outer_.begin(), outer_.end(), [](int line) { return line >= 0; });
    for (int unit : units_) {
      if (outer_[unit] >= 0)
        after(k, outer_[unit], "that gradient is not summed over the replicas yet");
      else if (replicated && has_gradient(unit))
        book_.complain(
            k, "order",
            "counts the gradient of " + book_.units()[unit] + ", which has no reduce_outer; put it before this line");
      after_gradients(k, unit);
    }
    once(k, norm_);
  }

  void update(int k) {
    sizes_.shard(k);
    if (norm_ < 0)
      book_.complain(k, "order",
                     "has no norm before it, and the step is clipped by it; put the norm before all updates");
    else
      after(k, norm_, "the norm may not be known");
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
      if (work.reduce >= 0)
        after(k, work.reduce, "that gradient may not be summed");
      else if (work.gradient >= 0)
        after(k, work.gradient, "that gradient may not be whole");
    }
  }

  // -- the end of the pass -----------------------------------------------------------------------------------------

  void finish() {
    residency_.finish();
    int gradient = -1;
    for (const auto& [key, work] : work_) {
      gradient = std::max(gradient, work.gradient);
      if (work.gradient >= 0 && work.reduce < 0 && book_.in(work.gradient).grad >= 0)
        book_.complain(work.gradient, "order", "its gradient slot is never reduced; put its reduce after it");
      if (work.gradient >= 0 && norm_ >= 0 && updated_[key.first] < 0)
        book_.complain(norm_, "order",
                       "counts the gradient of " + book_.units()[key.first] +
                           ", which no update uses; put its update after this line");
    }
    for (const auto& [micro, forwards] : open_)
      for (int forward : forwards) book_.complain(forward, "order", "its result is used by no backward and no finish");
    if (gradient >= 0 && norm_ < 0)
      book_.complain(gradient, "order", "its gradient is in no norm; put norm and update after it");
  }

  // -- small words -------------------------------------------------------------------------------------------------

  Work& work_of(int k) { return work_[{book_.unit(k), book_.in(k).micro}]; }

  void after(int k, int earlier, const char* otherwise) { must_follow(book_, order_, k, earlier, "order", otherwise); }

  /// Notes that `k` did it, and complains when an earlier line did already.
  bool once(int k, int& done) {
    if (done >= 0) book_.complain(k, "order", "does again what " + book_.at(done) + " has done; remove one of them");
    return std::exchange(done, k) < 0;
  }

  Book& book_;
  const Pass& pass_;
  SizeRules& sizes_;
  const Recomputed& recomputed_;
  const Order order_;
  ArenaRules arena_;
  Residency residency_;
  std::set<int> units_;                       // that the pass names
  std::vector<int> outer_, updated_;          // per unit: the line that did it
  std::map<std::pair<int, int>, Work> work_;  // (unit, micro-batch)
  std::map<int, std::vector<int>> open_;      // per micro-batch: forwards whose backward is to come, in order
  std::map<int, int> output_;                 // per micro-batch: its loss or finish
  int norm_ = -1;
};

}  // namespace

void check_steps(Book& book) {
  Recomputed recomputed;
  for (int k = 0; k < static_cast<int>(book.lines().size()); ++k)
    if (book.in(k).op == Op::recompute) recomputed.insert({book.lines()[k].step, book.unit(k)});
  SizeRules sizes(book);
  for (const Pass& pass : book.passes()) {
    sizes.of_rank(pass.rank);
    StepRules(book, pass, sizes, recomputed).run();
  }
}

}  // namespace tessera::plan
