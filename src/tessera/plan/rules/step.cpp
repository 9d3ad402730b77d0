// Rules inside one pass of one rank: what comes after what, from forward to update. The pass is read line by line, as
// an executor would run it, and each operation has one function.
#include <map>
#include <set>
#include <utility>

#include "tessera/plan/rules/arena_rules.h"
#include "tessera/plan/rules/book.h"
#include "tessera/plan/rules/message_rules.h"
#include "tessera/plan/rules/order.h"
#include "tessera/plan/rules/pending.h"
#include "tessera/plan/rules/piece_rules.h"
#include "tessera/plan/rules/residency.h"
#include "tessera/plan/rules/saved_rules.h"
#include "tessera/plan/rules/size_rules.h"
#include "tessera/plan/rules/tier_rules.h"

namespace tessera::plan {

namespace {

/// Units that some rank recomputes in a step: (step, unit).
using Recomputed = std::set<std::pair<int64_t, int>>;

class StepRules {
 public:
  StepRules(Book& book, const Pass& pass, SizeRules& sizes, const Recomputed& recomputed, Pending& pending)
      : book_(book),
        pass_(pass),
        sizes_(sizes),
        recomputed_(recomputed),
        pending_(pending),
        order_(book, pass),
        arena_(book, order_),
        host_(book, order_),
        disk_(book, order_),
        tiers_(book, order_, arena_, host_),
        pieces_(book, order_, sizes, tiers_),
        saved_(book, order_, host_, disk_),
        residency_(book, pass, order_, arena_, sizes),
        messages_(book, pass, order_),
        outer_(book.units().size(), -1),
        unreduced_(book.units().size(), -1),
        shares_(book.units().size(), -1),
        updated_(book.units().size(), -1),
        early_(book.units().size(), -1) {}

  void run() {
    for (int k = pass_.begin; k < pass_.end; ++k)
      if (book_.unit(k) >= 0 && !MessageRules::is(book_, k)) units_.insert(book_.unit(k));
    for (int k = pass_.begin; k < pass_.end; ++k)
      if (book_.in(k).op == Op::weight_grad) deferred_.insert({book_.unit(k), book_.in(k).micro});
    for (int k = pass_.begin; k < pass_.end; ++k) step(k);
    finish();
  }

 private:
  void step(int k) {
    const Op op = book_.in(k).op;
    const bool of_unit = op != Op::loss && op != Op::finish && op != Op::norm && op != Op::flush;
    if (of_unit && book_.unit(k) < 0) return;  // the form rule has named it
    switch (op) {
      case Op::gather:
        return gather(k);
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
        return book_.unit(k) < 0 ? norm(k) : share(k);
      case Op::update:
        return update(k);
      case Op::gather_outer:
        return pieces_.gather_outer(k);
      case Op::stash:
        return book_.in(k).part == Part::activations ? saved_.stash(k, work_of(k)) : leave(k);
      case Op::drop:
        return MessageRules::is(book_, k) ? messages_.forget(k) : saved_.drop(k, work_of(k));
      case Op::fetch:
        return book_.in(k).part == Part::activations ? saved_.fetch(k, work_of(k)) : bring(k);
      case Op::send:
        return messages_.send(k);
      case Op::recv:
        return messages_.recv(k);
      case Op::weight_grad:
        return weight_grad(k);
      case Op::compress:
        return saved_.compress(k, work_of(k));
      case Op::expand:
        return saved_.expand(k, work_of(k));
      case Op::flush:
        return pending_.refuse(book_, k);  // writes what updates have left; its barriers are a matter of groups
    }
  }

  void gather(int k) {
    const Instruction& in = book_.in(k);
    const int unit = book_.unit(k);
    pending_.refuse_gather(book_, k);
    unchanged(k);
    if (updated_[unit] >= 0) after(k, updated_[unit], "the parameters may not be updated");
    pieces_.gather(k);
    if (in.scratch >= 0) {
      const bool inside = in.slot >= 0 && in.scratch >= in.slot && in.scratch < in.slot + in.bytes;
      if (!tiers_.present(k, Part::parameters))
        book_.complain(k, "residency", "gathers a shard that no fetch has brought; put the fetch before it");
      inside ? tiers_.absorb(k, Part::parameters) : tiers_.use(k, Part::parameters, in.scratch, /*changes=*/false);
    }
    residency_.gather(k);
  }

  void forward(int k) {
    residency_.use(k);
    unchanged(k);
    messages_.take(k, /*forward=*/true);
    Work& work = work_of(k);
    if (only_once(book_, k, work.forward)) open_[book_.in(k).micro].push_back(k);
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
    only_once(book_, k, output_.try_emplace(micro, -1).first->second);
    if (book_.in(k).op == Op::finish) open_.erase(micro);
  }

  void recompute(int k) {
    residency_.use(k);
    unchanged(k);
    Work& work = work_of(k);
    if (work.forward < 0)
      book_.complain(k, "order", "has no forward to repeat; put the forward of this micro-batch before it");
    if (work.gradient >= 0)
      book_.complain(k, "order", "comes after " + book_.at(work.gradient) + ", which needs it; move it before");
    saved_.is_back(k, work);
    only_once(book_, k, work.recompute);
  }

  void backward(int k) {
    residency_.use(k);
    unchanged(k);
    Work& work = work_of(k);
    const auto output = output_.find(book_.in(k).micro);
    const bool sent = messages_.take(k, /*forward=*/false) || messages_.has_gradient(book_.in(k).micro);
    if (output != output_.end())
      after(k, output->second, "the gradient may not be there");
    else if (!sent)
      book_.complain(k, "order", "has no gradient to start from: the loss of this micro-batch must come before it");
    if (work.forward < 0) {
      book_.complain(k, "order", "has no forward of this micro-batch before it");
    } else {
      after(k, work.forward, "the graph may not be there");
      close(k);
    }
    saved_.is_back(k, work);
    if (work.recompute >= 0)
      after(k, work.recompute, "the graph may not be there");
    else if (recomputed_.contains({pass_.step, book_.unit(k)}))
      book_.complain(k, "order",
                     "the unit is recomputed elsewhere in this step, but not before this line; put its recompute here");
    only_once(book_, k, work.backward);
    if (!deferred_.contains({book_.unit(k), book_.in(k).micro})) gradient(k, work);
  }

  /// What the backward has left for later.
  void weight_grad(int k) {
    Work& work = work_of(k);
    if (work.backward < 0)
      book_.complain(k, "order", "has no backward of this micro-batch before it");
    else
      after(k, work.backward, "what it needs may not be there");
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
    if (book_.in(k).bytes == 0) return sizes_.gradient(k);  // nothing of the unit is trained
    if (norm_ >= 0)
      book_.complain(k, "order", "writes a gradient after " + book_.at(norm_) + " has counted them; move it before");
    before_the_update(k);
    only_once(book_, k, work.gradient);
    sizes_.gradient(k);
    if (sizes_.sharded(book_.unit(k)) && book_.in(k).grad < 0)
      book_.complain(k, "form", "writes a gradient that is sharded and has no slot \"grad\" for it");
    int& open = unreduced_[book_.unit(k)];
    if (book_.in(k).add && open < 0 && tiers_.present(k, Part::gradients)) {
      tiers_.absorb(k, Part::gradients);  // the sum so far was brought back
      arena_.take(k, book_.in(k).grad, book_.in(k).bytes, "gradient slot");
      open = k;
      return;
    }
    if (book_.in(k).add) {
      if (open < 0)
        book_.complain(k, "order", "adds to a gradient that no earlier micro-batch has written; remove \"add\"");
      else if (book_.in(open).grad != book_.in(k).grad)
        book_.complain(k, "order",
                       "adds to gradient slot " + slot_text(book_.in(k).grad) + ", but " + book_.at(open) +
                           " began the sum in slot " + slot_text(book_.in(open).grad));
      else
        after(k, open, "the sum so far may not be there");
      return;
    }
    if (open >= 0)
      book_.complain(k, "order", "begins a new gradient, and that of " + book_.at(open) + " is lost; add to it");
    arena_.take(k, book_.in(k).grad, book_.in(k).bytes, "gradient slot");
    open = k;
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
    only_once(book_, k, work.reduce);
    if (const int outer = outer_[book_.unit(k)]; outer >= 0)
      book_.complain(k, "order",
                     "comes after " + book_.at(outer) + ", which sums the whole over the replicas; move it before");
    arena_.take(k, book_.in(k).scratch, book_.in(k).bytes, "scratch");
    arena_.give(k, book_.in(k).scratch, k);
    if (book_.in(k).target >= 0 && book_.in(k).add)
      tiers_.use(k, Part::gradients, book_.in(k).target, /*changes=*/true);
    else if (book_.in(k).target >= 0)
      tiers_.make(k, Part::gradients, book_.in(k).target, sizes_.shard_of(book_.unit(k)));
    const int open = std::exchange(unreduced_[book_.unit(k)], -1);
    if (open >= 0) arena_.give(open, book_.in(open).grad, k);
    bool earlier = false;
    for (auto it = work_.lower_bound({book_.unit(k), -1}); it != work_.end() && it->first.first == book_.unit(k);
         ++it) {
      Work& other = it->second;
      if (other.reduce >= 0 && other.reduce < k) earlier = true;
      if (other.gradient >= 0 && other.reduce < 0) other.reduce = k;  // summed in the same slot
    }
    if (earlier != book_.in(k).add)
      book_.complain(k, "order",
                     earlier ? "replaces what earlier micro-batches have summed; set \"add\""
                             : "adds to a shard that holds an old step's gradient; remove \"add\"");
  }

  /// A buffer comes from where it rests. A gradient that more is to be added to is fp32 in the arena whatever it rests
  /// as.
  void bring(int k) {
    const int unit = book_.unit(k);
    const bool gradient = book_.in(k).part == Part::gradients;
    if (gradient) sizes_.moved(k);
    tiers_.fetch(k, pending_.may_be(unit), gradient && book_.in(k).micro >= 0 ? sizes_.shard_of(unit) : 0);
  }

  /// A gradient shard leaves the arena: what was summed there until here goes on elsewhere.
  void leave(int k) {
    const int unit = book_.unit(k);
    if (book_.in(k).part == Part::gradients) sizes_.moved(k);
    if (book_.in(k).part == Part::gradients && book_.in(k).lane != Lane::disk) {
      after_gradients(k, unit);
      if (shares_[unit] >= 0) after(k, shares_[unit], "its share of the norm may not be taken");
      stays(k);
    }
    tiers_.stash(k);
  }

  /// A gradient that was written whole is a buffer like others from here on: the same bytes, under another name.
  void stays(int k) {
    int& open = unreduced_[book_.unit(k)];
    if (open < 0 || book_.in(open).grad < 0 || tiers_.present(k, Part::gradients)) return;
    arena_.forget(open, book_.in(open).grad);
    tiers_.make(open, Part::gradients, book_.in(open).grad,
                std::max(book_.in(k).bytes, sizes_.shard_of(book_.unit(k))));
    open = -1;
  }

  /// The part of the norm that is taken while a gradient is on the device.
  void share(int k) {
    sizes_.shard(k);
    after_gradients(k, book_.unit(k));
    before_the_update(k);
    if (outer_[book_.unit(k)] >= 0) after(k, outer_[book_.unit(k)], "the gradient is not summed over the replicas yet");
    only_once(book_, k, shares_[book_.unit(k)]);
  }

  void reduce_outer(int k) {
    sizes_.outer(k);
    if (sizes_.in_pieces(book_.unit(k)) && book_.in(k).scratch < 0)
      book_.complain(k, "form", "gives each replica a piece and has no \"scratch\" to receive the others' parts in");
    arena_.take(k, book_.in(k).scratch, book_.in(k).bytes, "scratch");
    arena_.give(k, book_.in(k).scratch, k);
    after_gradients(k, book_.unit(k));
    before_the_update(k);
    only_once(book_, k, outer_[book_.unit(k)]);
  }

  void norm(int k) {
    bool replicated[2] = {false, false};  // of whole units, of sharded ones
    for (size_t unit = 0; unit < outer_.size(); ++unit)
      if (outer_[unit] >= 0) replicated[sizes_.sharded(static_cast<int>(unit))] = true;
    pending_.refuse(book_, k);
    all_or_none(k);
    for (int unit : units_) {
      if (outer_[unit] >= 0)
        after(k, outer_[unit], "that gradient is not summed over the replicas yet");
      else if (replicated[sizes_.sharded(unit)] && has_gradient(unit))
        book_.complain(
            k, "order",
            "counts the gradient of " + book_.units()[unit] + ", which has no reduce_outer; put it before this line");
      after_gradients(k, unit);
      if (shares_[unit] >= 0)
        after(k, shares_[unit], "its share may not be taken");
      else if (tiers_.rests_elsewhere(unit, Part::gradients))
        book_.complain(k, "order",
                       "counts the gradient of " + book_.units()[unit] +
                           ", which is not on the device; take its norm before it leaves");
    }
    only_once(book_, k, norm_);
  }

  void update(int k) {
    sizes_.shard(k);
    const int unit = book_.unit(k);
    bool left = false;  // the gradient is that of the step before
    if (norm_ >= 0)
      after(k, norm_, "the norm may not be known");
    else if (has_gradient(unit))
      update_in_backward(k);
    else if (!(left = pending_.take(unit)))
      book_.complain(k, "order",
                     "has no norm before it, and the step is clipped by it; put the norm before all updates");
    if (book_.in(k).lane == Lane::host) {
      tiers_.use_at_rest(k, Part::gradients, /*changes=*/false, left);
      for (const Part part : {Part::parameters, Part::states}) tiers_.use_at_rest(k, part, /*changes=*/true, left);
    } else {
      tiers_.use(k, Part::parameters, book_.in(k).slot, /*changes=*/true);
      tiers_.use(k, Part::gradients, book_.in(k).grad, /*changes=*/false);
      tiers_.use(k, Part::states, book_.in(k).scratch, /*changes=*/true);
    }
    only_once(book_, k, updated_[unit]);
    pieces_.update(k);
  }

  /// An update ahead of the norm of all: where nothing clips, its own gradient is all that it waits for.
  void update_in_backward(int k) {
    const int unit = book_.unit(k);
    after_gradients(k, unit);
    if (outer_[unit] >= 0) after(k, outer_[unit], "the gradient is not summed over the replicas yet");
    if (shares_[unit] >= 0)
      after(k, shares_[unit], "its share of the norm may not be taken");
    else
      book_.complain(k, "order",
                     "has no norm before it: the step may be clipped by that of all gradients; put the norm before all "
                     "updates, or, where nothing clips, that of the unit before its update");
    if (book_.in(k).grad >= 0) stays(k);
    early_[unit] = k;
  }

  /// A norm that clips comes before every update: one that some updates did not wait for clips nothing, and none waits.
  void all_or_none(int k) {
    int early = -1, other = -1;
    for (int unit : units_) {
      if (early_[unit] >= 0)
        early = early_[unit];
      else if (has_gradient(unit))
        other = unit;
    }
    if (early >= 0 && other >= 0)
      book_.complain(early, "order",
                     "comes before " + book_.at(k) + ", for which the update of " + book_.units()[other] +
                         " waits; put all updates behind it, or each behind its own unit's backward");
  }

  /// What is written or counted here the update has not used yet.
  void before_the_update(int k) {
    if (const int update = early_[book_.unit(k)]; update >= 0)
      book_.complain(k, "order", "comes after " + book_.at(update) + ", which has used the gradient; move it before");
  }

  /// Within a step all uses of parameters see the same.
  void unchanged(int k) {
    if (const int update = early_[book_.unit(k)]; update >= 0)
      book_.complain(k, "order", "uses parameters that " + book_.at(update) + " has changed; move it before");
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
    tiers_.finish();
    pieces_.finish();
    messages_.finish();
    int gradient = -1;
    for (const auto& [key, work] : work_) {
      gradient = std::max(gradient, work.gradient);
      const bool sent = tiers_.rests_elsewhere(key.first, Part::gradients) && !sizes_.sharded(key.first);
      if (work.gradient >= 0 && work.reduce < 0 && book_.in(work.gradient).grad >= 0) {
        if (!sent)
          book_.complain(work.gradient, "order", "its gradient slot is never reduced; put its reduce after it");
        if (sent && unreduced_[key.first] == work.gradient)
          book_.complain(work.gradient, "order", "its gradient slot is never sent back; put its stash after it");
      }
      if (work.gradient >= 0 && norm_ >= 0 && updated_[key.first] < norm_ && early_[key.first] < 0)
        pending_.add(key.first, norm_);
    }
    for (const auto& [micro, forwards] : open_)
      for (int forward : forwards) book_.complain(forward, "order", "its result is used by no backward and no finish");
    if (gradient >= 0 && norm_ < 0)
      book_.complain(gradient, "order", "its gradient is in no norm; put norm and update after it");
  }

  // -- small words -------------------------------------------------------------------------------------------------

  Work& work_of(int k) { return work_[{book_.unit(k), book_.in(k).micro}]; }

  void after(int k, int earlier, const char* otherwise) { must_follow(book_, order_, k, earlier, "order", otherwise); }

  Book& book_;
  const Pass& pass_;
  SizeRules& sizes_;
  const Recomputed& recomputed_;
  Pending& pending_;
  const Order order_;
  ArenaRules arena_, host_, disk_;
  TierRules tiers_;
  PieceRules pieces_;
  SavedRules saved_;
  Residency residency_;
  MessageRules messages_;
  std::set<int> units_;                       // that the pass names
  std::vector<int> outer_;                    // per unit: the line that summed it over replicas
  std::vector<int> unreduced_;                // per unit: the line that began the gradient now being summed
  std::vector<int> shares_;                   // per unit: the line that took its share of the norm
  std::vector<int> updated_;                  // per unit: the line that did it
  std::vector<int> early_;                    // per unit: the same line where it came before the norm of all
  std::map<std::pair<int, int>, Work> work_;  // (unit, micro-batch)
  std::map<int, std::vector<int>> open_;      // per micro-batch: forwards whose backward is to come, in order
  std::map<int, int> output_;                 // per micro-batch: its loss or finish
  std::set<std::pair<int, int>> deferred_;    // (unit, micro-batch) whose weights' gradients come later
  int norm_ = -1;
};

}  // namespace

void check_steps(Book& book) {
  Recomputed recomputed;
  for (int k = 0; k < static_cast<int>(book.lines().size()); ++k)
    if (book.in(k).op == Op::recompute) recomputed.insert({book.lines()[k].step, book.unit(k)});
  SizeRules sizes(book);
  Pending pending;
  int rank = -1;
  for (const Pass& pass : book.passes()) {
    if (std::exchange(rank, pass.rank) != pass.rank) {
      pending.end(book);
      pending = Pending(/*in_the_middle=*/pass.step > 1);
    }
    sizes.of_rank(pass.rank);
    StepRules(book, pass, sizes, recomputed, pending).run();
  }
  pending.end(book);
}

}  // namespace tessera::plan
