// Rules within one pass of one rank: the order of operations from forward to update. The pass is read line by line, as
// an executor would run it, and each operation has one function.
#include <map>
#include <set>
#include <utility>

#include "tessera/plan/rules/arena_rules.h"
#include "tessera/plan/rules/checker.h"
#include "tessera/plan/rules/message_rules.h"
#include "tessera/plan/rules/order.h"
#include "tessera/plan/rules/partition_rules.h"
#include "tessera/plan/rules/pending.h"
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
  StepRules(Checker& checker, const Pass& pass, SizeRules& sizes, const Recomputed& recomputed, Pending& pending)
      : checker_(checker),
        pass_(pass),
        sizes_(sizes),
        recomputed_(recomputed),
        pending_(pending),
        order_(checker, pass),
        arena_(checker, order_),
        host_(checker, order_),
        disk_(checker, order_),
        tiers_(checker, order_, arena_, host_),
        partitions_(checker, order_, sizes, tiers_),
        saved_(checker, order_, host_, disk_),
        residency_(checker, pass, order_, arena_, sizes),
        messages_(checker, pass, order_),
        outer_(checker.units().size(), -1),
        unreduced_(checker.units().size(), -1),
        shares_(checker.units().size(), -1),
        updated_(checker.units().size(), -1),
        early_(checker.units().size(), -1) {}

  void run() {
    for (int k = pass_.begin; k < pass_.end; ++k)
      if (checker_.unit(k) >= 0 && !MessageRules::is(checker_, k)) units_.insert(checker_.unit(k));
    for (int k = pass_.begin; k < pass_.end; ++k)
      if (checker_.in(k).op == Op::weight_grad) deferred_.insert({checker_.unit(k), checker_.in(k).micro});
    for (int k = pass_.begin; k < pass_.end; ++k) step(k), memory(k);
    finish();
  }

 private:
  void step(int k) {
    const Op op = checker_.in(k).op;
    const bool of_unit = op != Op::loss && op != Op::finish && op != Op::norm && op != Op::flush;
    if (of_unit && checker_.unit(k) < 0) return;  // the form rule reports it
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
        return checker_.unit(k) < 0 ? norm(k) : share(k);
      case Op::update:
        return update(k);
      case Op::gather_outer:
        return partitions_.gather_outer(k);
      case Op::stash:
        return checker_.in(k).part == Part::activations ? saved_.stash(k, work_of(k)) : leave(k);
      case Op::drop:
        return MessageRules::is(checker_, k) ? messages_.forget(k) : saved_.drop(k, work_of(k));
      case Op::fetch:
        return checker_.in(k).part == Part::activations ? saved_.fetch(k, work_of(k)) : bring(k);
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
        // writes what updates have changed; its barriers belong to the group rules
        return pending_.refuse(checker_, k);
    }
  }

  /// [Note: memory at a place]
  void memory(int k) {
    if (takes_memory(checker_.in(k)) && last_touch_ >= 0)
      after(k, last_touch_, "the memory that it is given here may still be in use");
    if (touches_activations(checker_.in(k))) last_touch_ = k;
  }

  void gather(int k) {
    const Instruction& in = checker_.in(k);
    const int unit = checker_.unit(k);
    pending_.refuse_gather(checker_, k);
    unchanged(k);
    if (updated_[unit] >= 0) after(k, updated_[unit], "the parameters may not be updated");
    partitions_.gather(k);
    if (in.scratch >= 0) {
      const bool inside = in.slot >= 0 && in.scratch >= in.slot && in.scratch < in.slot + in.bytes;
      if (!tiers_.present(k, Part::parameters))
        checker_.report(k, "residency", "gathers a shard that no fetch has loaded; put the fetch before it");
      inside ? tiers_.absorb(k, Part::parameters) : tiers_.use(k, Part::parameters, in.scratch, /*changes=*/false);
    }
    residency_.gather(k);
  }

  void forward(int k) {
    residency_.use(k);
    unchanged(k);
    messages_.take(k, /*forward=*/true);
    Work& work = work_of(k);
    if (only_once(checker_, k, work.forward)) open_[checker_.in(k).micro].push_back(k);
  }

  void output(int k) {
    const int micro = checker_.in(k).micro;
    for (int unit : units_) {
      const auto found = work_.find({unit, micro});
      if (found == work_.end() || found->second.forward < 0)
        checker_.report(k, "order",
                        "comes before the forward of " + checker_.units()[unit] +
                            " in this micro-batch; every unit must run first");
      else
        after(k, found->second.forward, "its result may not be there");
    }
    only_once(checker_, k, output_.try_emplace(micro, -1).first->second);
    if (checker_.in(k).op == Op::finish) open_.erase(micro);
  }

  void recompute(int k) {
    residency_.use(k);
    unchanged(k);
    Work& work = work_of(k);
    if (work.forward < 0)
      checker_.report(k, "order", "has no forward to repeat; put the forward of this micro-batch before it");
    if (work.gradient >= 0)
      checker_.report(k, "order", "comes after " + checker_.at(work.gradient) + ", which needs it; move it before");
    saved_.is_back(k, work);
    only_once(checker_, k, work.recompute);
  }

  void backward(int k) {
    residency_.use(k);
    unchanged(k);
    Work& work = work_of(k);
    const auto output = output_.find(checker_.in(k).micro);
    const bool sent = messages_.take(k, /*forward=*/false) || messages_.has_gradient(checker_.in(k).micro);
    if (output != output_.end())
      after(k, output->second, "the gradient may not be there");
    else if (!sent)
      checker_.report(k, "order", "has no gradient to start from: the loss of this micro-batch must come before it");
    if (work.forward < 0) {
      checker_.report(k, "order", "has no forward of this micro-batch before it");
    } else {
      after(k, work.forward, "the graph may not be there");
      close(k);
    }
    saved_.is_back(k, work);
    if (work.recompute >= 0)
      after(k, work.recompute, "the graph may not be there");
    else if (recomputed_.contains({pass_.step, checker_.unit(k)}))
      checker_.report(
          k, "order",
          "the unit is recomputed elsewhere in this step, but not before this line; put its recompute here");
    only_once(checker_, k, work.backward);
    if (!deferred_.contains({checker_.unit(k), checker_.in(k).micro})) gradient(k, work);
  }

  /// Runs the weight gradients that the backward deferred.
  void weight_grad(int k) {
    Work& work = work_of(k);
    if (work.backward < 0)
      checker_.report(k, "order", "has no backward of this micro-batch before it");
    else
      after(k, work.backward, "what it needs may not be there");
    gradient(k, work);
  }

  /// The backward runs through the forwards of a micro-batch in reverse.
  void close(int k) {
    std::vector<int>& open = open_[checker_.in(k).micro];
    if (!open.empty() && checker_.unit(open.back()) != checker_.unit(k))
      checker_.report(k, "order",
                      "the gradient passes through " + checker_.units()[checker_.unit(open.back())] +
                          " first, forwarded last by " + checker_.at(open.back()));
    std::erase_if(open, [&](int forward) { return checker_.unit(forward) == checker_.unit(k); });
  }

  void idle(int k) {
    Work& work = work_of(k);
    if (work.forward >= 0)
      checker_.report(
          k, "order",
          "is idle in a micro-batch that " + checker_.at(work.forward) + " has run; a rank does one or the other");
    gradient(k, work);
  }

  // -- gradients ---------------------------------------------------------------------------------------------------

  void gradient(int k, Work& work) {
    if (checker_.in(k).bytes == 0) return sizes_.gradient(k);  // the unit has no trained parameters
    if (norm_ >= 0)
      checker_.report(k, "order",
                      "writes a gradient after " + checker_.at(norm_) + " has counted them; move it before");
    before_the_update(k);
    only_once(checker_, k, work.gradient);
    sizes_.gradient(k);
    if (sizes_.sharded(checker_.unit(k)) && checker_.in(k).grad < 0)
      checker_.report(k, "form", "writes a gradient that is sharded and has no slot \"grad\" for it");
    int& open = unreduced_[checker_.unit(k)];
    if (checker_.in(k).add && open < 0 && tiers_.present(k, Part::gradients)) {
      tiers_.absorb(k, Part::gradients);  // the sum so far was reloaded
      arena_.take(k, checker_.in(k).grad, checker_.in(k).bytes, "gradient slot");
      open = k;
      return;
    }
    if (checker_.in(k).add) {
      if (open < 0)
        checker_.report(k, "order", "adds to a gradient that no earlier micro-batch has written; remove \"add\"");
      else if (checker_.in(open).grad != checker_.in(k).grad)
        checker_.report(k, "order",
                        "adds to gradient slot " + slot_text(checker_.in(k).grad) + ", but " + checker_.at(open) +
                            " began the sum in slot " + slot_text(checker_.in(open).grad));
      else
        after(k, open, "the sum so far may not be there");
      return;
    }
    if (open >= 0)
      checker_.report(k, "order", "begins a new gradient, and that of " + checker_.at(open) + " is lost; add to it");
    arena_.take(k, checker_.in(k).grad, checker_.in(k).bytes, "gradient slot");
    open = k;
  }

  void reduce(int k) {
    Work& work = work_of(k);
    sizes_.whole(k, "reduce_scatter");
    if (work.gradient < 0) {
      checker_.report(
          k, "order",
          "reduces a gradient that no backward or idle of this micro-batch has written; move it after that");
    } else {
      const int64_t written = checker_.in(work.gradient).grad;
      if (written != checker_.in(k).grad)
        checker_.report(k, "order",
                        "reduces gradient slot " + slot_text(checker_.in(k).grad) + ", but " +
                            checker_.at(work.gradient) + " wrote slot " + slot_text(written));
      after(k, work.gradient, "the gradient may not be whole");
    }
    only_once(checker_, k, work.reduce);
    if (const int outer = outer_[checker_.unit(k)]; outer >= 0)
      checker_.report(k, "order",
                      "comes after " + checker_.at(outer) + ", which sums the whole over the replicas; move it before");
    arena_.take(k, checker_.in(k).scratch, checker_.in(k).bytes, "scratch");
    arena_.give(k, checker_.in(k).scratch, k);
    if (checker_.in(k).target >= 0 && checker_.in(k).add)
      tiers_.use(k, Part::gradients, checker_.in(k).target, /*changes=*/true);
    else if (checker_.in(k).target >= 0)
      tiers_.make(k, Part::gradients, checker_.in(k).target, sizes_.shard_of(checker_.unit(k)));
    const int open = std::exchange(unreduced_[checker_.unit(k)], -1);
    if (open >= 0) arena_.give(open, checker_.in(open).grad, k);
    bool earlier = false;
    for (auto it = work_.lower_bound({checker_.unit(k), -1}); it != work_.end() && it->first.first == checker_.unit(k);
         ++it) {
      Work& other = it->second;
      if (other.reduce >= 0 && other.reduce < k) earlier = true;
      if (other.gradient >= 0 && other.reduce < 0) other.reduce = k;  // accumulated in the same slot
    }
    if (earlier != checker_.in(k).add)
      checker_.report(k, "order",
                      earlier ? "replaces what earlier micro-batches have summed; set \"add\""
                              : "adds to a shard that holds an old step's gradient; remove \"add\"");
  }

  /// Reloads a buffer from its placement. A gradient that accumulates is fp32 in the arena, whatever its storage dtype.
  void bring(int k) {
    const int unit = checker_.unit(k);
    const bool gradient = checker_.in(k).part == Part::gradients;
    if (gradient) sizes_.moved(k);
    tiers_.fetch(k, pending_.may_be(unit), gradient && checker_.in(k).micro >= 0 ? sizes_.shard_of(unit) : 0);
  }

  /// Offloads a gradient shard: the sum so far continues elsewhere.
  void leave(int k) {
    const int unit = checker_.unit(k);
    if (checker_.in(k).part == Part::gradients) sizes_.moved(k);
    if (checker_.in(k).part == Part::gradients && checker_.in(k).lane != Lane::disk) {
      after_gradients(k, unit);
      if (shares_[unit] >= 0) after(k, shares_[unit], "its share of the norm may not be taken");
      stays(k);
    }
    tiers_.stash(k);
  }

  /// From here on a gradient that was written whole is a buffer like others: the same bytes under another name.
  void stays(int k) {
    int& open = unreduced_[checker_.unit(k)];
    if (open < 0 || checker_.in(open).grad < 0 || tiers_.present(k, Part::gradients)) return;
    arena_.forget(open, checker_.in(open).grad);
    tiers_.make(open, Part::gradients, checker_.in(open).grad,
                std::max(checker_.in(k).bytes, sizes_.shard_of(checker_.unit(k))));
    open = -1;
  }

  /// The unit's share of the norm, taken while its gradient is on the device.
  void share(int k) {
    sizes_.shard(k);
    after_gradients(k, checker_.unit(k));
    before_the_update(k);
    if (outer_[checker_.unit(k)] >= 0)
      after(k, outer_[checker_.unit(k)], "the gradient is not summed over the replicas yet");
    only_once(checker_, k, shares_[checker_.unit(k)]);
  }

  void reduce_outer(int k) {
    sizes_.outer(k);
    if (sizes_.partitioned(checker_.unit(k)) && checker_.in(k).scratch < 0)
      checker_.report(k, "form",
                      "gives each replica a partition and has no \"scratch\" to receive the others' parts in");
    arena_.take(k, checker_.in(k).scratch, checker_.in(k).bytes, "scratch");
    arena_.give(k, checker_.in(k).scratch, k);
    after_gradients(k, checker_.unit(k));
    before_the_update(k);
    only_once(checker_, k, outer_[checker_.unit(k)]);
  }

  void norm(int k) {
    bool replicated[2] = {false, false};  // of unsharded units, of sharded ones
    for (size_t unit = 0; unit < outer_.size(); ++unit)
      if (outer_[unit] >= 0) replicated[sizes_.sharded(static_cast<int>(unit))] = true;
    pending_.refuse(checker_, k);
    all_or_none(k);
    for (int unit : units_) {
      if (outer_[unit] >= 0)
        after(k, outer_[unit], "that gradient is not summed over the replicas yet");
      else if (replicated[sizes_.sharded(unit)] && has_gradient(unit))
        checker_.report(k, "order",
                        "counts the gradient of " + checker_.units()[unit] +
                            ", which has no reduce_outer; put it before this line");
      after_gradients(k, unit);
      if (shares_[unit] >= 0)
        after(k, shares_[unit], "its share may not be taken");
      else if (tiers_.is_offloaded(unit, Part::gradients))
        checker_.report(k, "order",
                        "counts the gradient of " + checker_.units()[unit] +
                            ", which is not on the device; take its norm before it leaves");
    }
    only_once(checker_, k, norm_);
  }

  void update(int k) {
    sizes_.shard(k);
    const int unit = checker_.unit(k);
    bool left = false;  // the gradient is that of the previous step
    if (norm_ >= 0)
      after(k, norm_, "the norm may not be known");
    else if (has_gradient(unit))
      update_in_backward(k);
    else if (!(left = pending_.take(unit)))
      checker_.report(k, "order",
                      "has no norm before it, and the step is clipped by it; put the norm before all updates");
    if (checker_.in(k).lane == Lane::host) {
      tiers_.use_at_rest(k, Part::gradients, /*changes=*/false, left);
      for (const Part part : {Part::parameters, Part::states}) tiers_.use_at_rest(k, part, /*changes=*/true, left);
    } else {
      tiers_.use(k, Part::parameters, checker_.in(k).slot, /*changes=*/true);
      tiers_.use(k, Part::gradients, checker_.in(k).grad, /*changes=*/false);
      tiers_.use(k, Part::states, checker_.in(k).scratch, /*changes=*/true);
    }
    only_once(checker_, k, updated_[unit]);
    partitions_.update(k);
  }

  /// An update before the norm of all gradients: without clipping it waits only for its own gradient.
  void update_in_backward(int k) {
    const int unit = checker_.unit(k);
    after_gradients(k, unit);
    if (outer_[unit] >= 0) after(k, outer_[unit], "the gradient is not summed over the replicas yet");
    if (shares_[unit] >= 0)
      after(k, shares_[unit], "its share of the norm may not be taken");
    else
      checker_.report(
          k, "order",
          "has no norm before it: the step may be clipped by that of all gradients; put the norm before all "
          "updates, or, where nothing clips, that of the unit before its update");
    if (checker_.in(k).grad >= 0) stays(k);
    early_[unit] = k;
  }

  /// A norm used for clipping comes before every update: some updates wait for it, or none.
  void all_or_none(int k) {
    int early = -1, other = -1;
    for (int unit : units_) {
      if (early_[unit] >= 0)
        early = early_[unit];
      else if (has_gradient(unit))
        other = unit;
    }
    if (early >= 0 && other >= 0)
      checker_.report(early, "order",
                      "comes before " + checker_.at(k) + ", for which the update of " + checker_.units()[other] +
                          " waits; put all updates behind it, or each behind its own unit's backward");
  }

  /// The update has not yet used the gradient that is written or included in the norm here.
  void before_the_update(int k) {
    if (const int update = early_[checker_.unit(k)]; update >= 0)
      checker_.report(k, "order",
                      "comes after " + checker_.at(update) + ", which has used the gradient; move it before");
  }

  /// All uses of parameters within a step see the same values.
  void unchanged(int k) {
    if (const int update = early_[checker_.unit(k)]; update >= 0)
      checker_.report(k, "order", "uses parameters that " + checker_.at(update) + " has changed; move it before");
  }

  bool has_gradient(int unit) const {
    const auto first = work_.lower_bound({unit, -1});
    for (auto it = first; it != work_.end() && it->first.first == unit; ++it)
      if (it->second.gradient >= 0) return true;
    return false;
  }

  /// `k` comes after the unit's gradients of all micro-batches, and after their reduction if they are sharded.
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
    partitions_.finish();
    messages_.finish();
    int gradient = -1;
    for (const auto& [key, work] : work_) {
      gradient = std::max(gradient, work.gradient);
      const bool sent = tiers_.is_offloaded(key.first, Part::gradients) && !sizes_.sharded(key.first);
      if (work.gradient >= 0 && work.reduce < 0 && checker_.in(work.gradient).grad >= 0) {
        if (!sent)
          checker_.report(work.gradient, "order", "its gradient slot is never reduced; put its reduce after it");
        if (sent && unreduced_[key.first] == work.gradient)
          checker_.report(work.gradient, "order", "its gradient slot is never sent back; put its stash after it");
      }
      if (work.gradient >= 0 && norm_ >= 0 && updated_[key.first] < norm_ && early_[key.first] < 0)
        pending_.add(key.first, norm_);
    }
    for (const auto& [micro, forwards] : open_)
      for (int forward : forwards) checker_.report(forward, "order", "its result is used by no backward and no finish");
    if (gradient >= 0 && norm_ < 0)
      checker_.report(gradient, "order", "its gradient is in no norm; put norm and update after it");
  }

  // -- helpers -----------------------------------------------------------------------------------------------------

  Work& work_of(int k) { return work_[{checker_.unit(k), checker_.in(k).micro}]; }

  void after(int k, int earlier, const char* otherwise) {
    must_follow(checker_, order_, k, earlier, "order", otherwise);
  }

  Checker& checker_;
  const Pass& pass_;
  SizeRules& sizes_;
  const Recomputed& recomputed_;
  Pending& pending_;
  const Order order_;
  ArenaRules arena_, host_, disk_;
  TierRules tiers_;
  PartitionRules partitions_;
  SavedRules saved_;
  Residency residency_;
  MessageRules messages_;
  std::set<int> units_;                       // units that the pass names
  std::vector<int> outer_;                    // by unit: the line that summed it over replicas
  std::vector<int> unreduced_;                // by unit: the line that began the gradient being accumulated
  std::vector<int> shares_;                   // by unit: the line that took its share of the norm
  std::vector<int> updated_;                  // by unit: the line that updated it
  std::vector<int> early_;                    // by unit: the same line if it came before the norm of all gradients
  std::map<std::pair<int, int>, Work> work_;  // (unit, micro-batch)
  std::map<int, std::vector<int>> open_;      // by micro-batch: forwards whose backward has not run yet, in order
  std::map<int, int> output_;                 // by micro-batch: its loss or finish
  std::set<std::pair<int, int>> deferred_;    // (unit, micro-batch) with deferred weight gradients
  int norm_ = -1;
  int last_touch_ = -1;  // the line of the compute lane that last used memory of activations
};

}  // namespace

void check_steps(Checker& checker) {
  Recomputed recomputed;
  for (int k = 0; k < static_cast<int>(checker.lines().size()); ++k)
    if (checker.in(k).op == Op::recompute) recomputed.insert({checker.lines()[k].step, checker.unit(k)});
  SizeRules sizes(checker);
  Pending pending;
  int rank = -1;
  for (const Pass& pass : checker.passes()) {
    if (std::exchange(rank, pass.rank) != pass.rank) {
      pending.end(checker);
      pending = Pending(/*in_the_middle=*/pass.step > 1);
    }
    sizes.of_rank(pass.rank);
    StepRules(checker, pass, sizes, recomputed, pending).run();
  }
  pending.end(checker);
}

}  // namespace tessera::plan
