#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "matrix.h"
#include "plan/edit.h"
#include "plan/toy.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/plan_file.h"

namespace tessera::plan {
namespace {

using toy::draw;
using toy::Edit;
using toy::Random;

bool uses_parameters(const Line& line) {
  return line.in.op == Op::forward || line.in.op == Op::recompute || line.in.op == Op::backward;
}
bool same_unit(const Line& a, const Line& b) { return a.rank == b.rank && a.step == b.step && a.in.name == b.in.name; }

TEST(RandomPlans, FiveHundredCompileAndKeepTheRules) {
  Random random(11);
  for (int n = 0; n < 500; ++n) {
    const ModelSpec spec = toy::random_model(random);
    Plan plan = toy::random_plan(random, spec, n % 5 == 0 ? 4 : 2);
    if (n % 3 == 1) plan.param_dtype = DType::bf16;
    if (n % 6 == 1) plan.compute = DType::bf16;
    if (n % 4 == 1) plan.reduce = DType::f16;
    if (n % 3 == 2) plan.grad = DType::bf16;
    const auto violations = check(toy::run(spec, plan, draw(random, 1, 2), draw(random, 0, 2)));
    ASSERT_TRUE(violations.empty()) << to_toml(plan, toy::names(spec)) << toy::text(violations);
  }
}

/// What a search compiles of the plans that it does not simulate.
TEST(RandomPlans, CompiledForMemoryTakeWhatTheRunTakes) {
  Random random(12);
  for (int n = 0; n < 500; ++n) {
    const bool stages = n % 3 == 0;
    const ModelSpec spec = stages ? toy::conditioned(toy::random_model(random)) : toy::random_model(random);
    const Plan plan = stages ? toy::random_pipeline(random, spec) : toy::random_plan(random, spec, n % 5 == 0 ? 4 : 2);
    for (int rank = 0; rank < plan.mesh.world(); ++rank) {
      const Schedule run = compile_train(spec, plan, rank);
      const Schedule memory = compile_train(spec, plan, rank, /*pending=*/true, CompiledFor::memory);
      ASSERT_EQ(run.list.size(), memory.list.size());
      EXPECT_EQ(std::tie(run.arena, run.host_arena, run.disk_arena),
                std::tie(memory.arena, memory.host_arena, memory.disk_arena));
      const MemoryCurve of_run = memory_curve(spec, plan, run, rank), found = memory_curve(spec, plan, memory, rank);
      ASSERT_EQ(of_run.peak, found.peak) << to_toml(plan, toy::names(spec));
      EXPECT_EQ(of_run.host.total(), found.host.total());
      EXPECT_EQ(of_run.nvme.total(), found.nvme.total());
      if (plan.update != Update::just_in_time) continue;
      const Schedule first = compile_train(spec, plan, rank, /*pending=*/false),
                     updates = compile_updates(spec, plan, rank);
      EXPECT_EQ(arenas_without_pending(spec, plan, rank),
                (ArenaBytes{updates.arena, updates.host_arena}.covering({first.arena, first.host_arena})));
    }
  }
}

/// One way to spoil a schedule; returns false when these lines have nothing to spoil in this way.
struct Mutation {
  const char* name;
  bool (*apply)(Edit& edit, Random& random);
};

template <class Wanted>
int pick(Edit& edit, Random& random, const Wanted& wanted) {
  const std::vector<int> found = edit.all(wanted);
  return found.empty() ? -1 : found[random() % found.size()];
}

/// The first use of what line `gather` gathers, or -1 on an idle rank.
int first_use(Edit& edit, int gather) {
  const int next = edit.find(
      [&](const Line& l) { return same_unit(l, edit[gather]) && (uses_parameters(l) || l.in.op == Op::release); },
      gather);
  return next >= 0 && uses_parameters(edit[next]) ? next : -1;
}

template <Op op>
bool remove_one(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) { return l.in.op == op; });
  if (k >= 0) edit.remove(k);
  return k >= 0;
}

bool move_gather(Edit& edit, Random& random) {
  const int gather = pick(edit, random, [](const Line& l) { return l.in.op == Op::gather; });
  const int use = gather < 0 ? -1 : first_use(edit, gather);
  if (use >= 0) edit.move_behind(gather, use);
  return use >= 0;
}

template <bool with_waits>
bool swap_collectives(Edit& edit, Random& random) {
  const int a = pick(edit, random, [](const Line& l) { return !l.in.comm.empty() && l.phase != "checkpoint"; });
  if (a < 0) return false;
  const int b = pick(edit, random, [&](const Line& l) {
    const bool alike = l.in.op == edit[a].in.op && l.in.name == edit[a].in.name;
    return !l.in.comm.empty() && l.rank == edit[a].rank && l.step == edit[a].step && l.phase == edit[a].phase && !alike;
  });
  if (b >= 0 && with_waits) edit.swap(a, b);
  if (b >= 0 && !with_waits) std::swap(edit[a].in, edit[b].in);
  return b >= 0;
}

bool change_bytes(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) {
    return l.in.op == Op::gather || l.in.op == Op::reduce || l.in.op == Op::reduce_outer || l.in.op == Op::update ||
           l.in.op == Op::gather_outer || l.in.part == Part::gradients;
  });
  edit[k].in.bytes += edit[k].in.part == Part::gradients ? 64 : 1024;  // twice as many might be its fp32 form
  return true;
}

bool change_comm_bytes(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) { return !l.in.comm.empty(); });
  if (k >= 0) edit[k].in.comm[0].bytes += 8;
  return k >= 0;
}

/// Copies between tiers wait for memory that others used, and that may order what a missing wait does not.
bool moves_between_tiers(Edit& edit) {
  return edit.find([](const Line& l) { return l.in.op == Op::fetch; }, 0) >= 0;
}

bool forget_the_gather(Edit& edit, Random& random) {
  if (moves_between_tiers(edit)) return false;
  const int gather = pick(edit, random, [](const Line& l) { return l.in.op == Op::gather; });
  const int use = first_use(edit, gather);
  if (use >= 0) std::erase(edit.waits(use), gather);
  return use >= 0;
}

bool forget_the_backward(Edit& edit, Random& random) {
  if (moves_between_tiers(edit)) return false;
  const int k = pick(edit, random, [](const Line& l) { return l.in.op == Op::reduce; });
  if (k >= 0) edit.waits(k).clear();
  return k >= 0;
}

bool forget_the_reductions(Edit& edit, Random& random) {
  if (moves_between_tiers(edit)) return false;
  const int k = pick(edit, random, [](const Line& l) { return l.in.op == Op::norm && !l.in.comm.empty(); });
  if (k < 0) return false;
  // Updates in the backward have waited for theirs, and the norm comes behind them on the same lane.
  const auto here = [&](const Line& l) { return l.rank == edit[k].rank && l.step == edit[k].step; };
  const int loss = edit.find([&](const Line& l) { return here(l) && l.in.op == Op::loss; });
  const int early = edit.find([&](const Line& l) { return here(l) && l.in.op == Op::update; }, std::max(loss, 0));
  if (early >= 0 && early < k) return false;
  edit.waits(k).clear();
  return true;
}

bool forget_the_update(Edit& edit, Random& random) {
  if (moves_between_tiers(edit)) return false;
  const int k = pick(edit, random, [](const Line& l) { return l.in.op == Op::gather_outer; });
  if (k >= 0) edit.waits(k).clear();
  return k >= 0;
}

bool gather_before_the_update(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) { return l.in.op == Op::gather_outer; });
  if (k < 0) return false;
  const int update = edit.find([&](const Line& l) { return same_unit(l, edit[k]) && l.in.op == Op::update; });
  edit.move_behind(update, k);
  return true;
}

bool sum_pieces_as_wholes(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) {
    return l.in.op == Op::reduce_outer && l.in.comm.front().kind == "reduce_scatter";
  });
  if (k < 0) return false;
  for (Comm& comm : edit[k].in.comm) comm.kind = "all_reduce";
  return true;
}

bool outer_scratch_over_gradient(Edit& edit, Random& random) {
  const int k = pick(
      edit, random, [](const Line& l) { return l.in.op == Op::reduce_outer && l.in.scratch >= 0 && l.in.target >= 0; });
  if (k >= 0) edit[k].in.scratch = edit[k].in.target;
  return k >= 0;
}

bool gradient_over_parameters(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) { return l.in.op == Op::backward && l.in.slot >= 0; });
  if (k < 0) return false;
  const int reduce = edit.find([&](const Line& l) { return same_unit(l, edit[k]) && l.in.op == Op::reduce; }, k);
  if (reduce < 0) return false;  // reduced with a later micro-batch
  edit[k].in.grad = edit[reduce].in.grad = edit[k].in.slot;
  return true;
}

bool scratch_over_gradient(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) { return l.in.op == Op::reduce; });
  if (k >= 0) edit[k].in.scratch = edit[k].in.grad;
  return k >= 0;
}

bool two_gathers_in_one_slot(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) { return l.in.op == Op::gather && l.in.slot >= 0; });
  if (k < 0) return false;
  const Line first = edit[k];
  const int free = edit.find([&](const Line& l) { return same_unit(l, first) && l.in.op == Op::release; }, k);
  const int second = edit.find([&](const Line& l) { return l.in.op == Op::gather && l.rank == first.rank; }, k + 1);
  if (second < 0 || second > free) return false;  // never gathered at the same time
  const Line moved = edit[second];
  const int end = edit.find([&](const Line& l) { return same_unit(l, moved) && l.in.op == Op::release; }, second);
  for (int u = second; u <= end; ++u)
    if (same_unit(edit[u], moved) && edit[u].in.slot == moved.in.slot) edit[u].in.slot = first.in.slot;
  return true;
}

bool use_another_slot(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) { return uses_parameters(l) && l.in.slot >= 0; });
  if (k >= 0) edit[k].in.slot += 1024;
  return k >= 0;
}

bool wait_for_itself(Edit& edit, Random& random) {
  const int k = draw(random, 0, static_cast<int>(edit.size()) - 1);
  edit.waits(k).push_back(k);
  return true;
}

bool rename_group(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) { return !l.in.comm.empty(); });
  if (k >= 0) edit[k].in.group = "other" + edit[k].in.group.text().substr(edit[k].in.group.text().find(':'));
  return k >= 0;
}

bool forget_the_fetch(Edit& edit, Random& random) {
  const int k =
      pick(edit, random, [](const Line& l) { return l.in.op == Op::fetch && l.in.part == Part::activations; });
  if (k < 0) return false;
  const int use = edit.find(
      [&](const Line& l) {
        return same_unit(l, edit[k]) && l.in.micro == edit[k].in.micro &&
               (l.in.op == Op::expand || l.in.op == Op::recompute || l.in.op == Op::backward);
      },
      k);
  if (use < 0) return false;
  // Waiting for a later fetch of the lane would do.
  const int later = edit.find([&](const Line& l) { return l.in.op == Op::fetch && l.rank == edit[k].rank; }, k + 1);
  if (later >= 0 && later < use) return false;
  std::erase(edit.waits(use), k);
  return edit[use].in.op == Op::backward;
}

/// The first update behind a norm comes ahead of it.
bool update_before_the_norm(Edit& edit, Random& random) {
  const int norm = pick(edit, random, [](const Line& l) { return l.in.op == Op::norm && l.in.name.empty(); });
  if (norm < 0) return false;
  const int update = edit.find([](const Line& l) { return l.in.op == Op::update; }, norm);
  if (update < 0 || edit[update].phase != "train" || edit[update].rank != edit[norm].rank ||
      edit[update].step != edit[norm].step)
    return false;
  edit.move_behind(norm, update);
  return true;
}

/// An update just in time comes behind the gather that it was to be ahead of.
bool update_behind_the_gather(Edit& edit, Random& random) {
  const int update = pick(edit, random, [](const Line& l) { return l.in.op == Op::update && l.phase == "train"; });
  if (update < 0) return false;
  const int gather =
      edit.find([&](const Line& l) { return l.in.op == Op::gather && same_unit(l, edit[update]); }, update);
  if (gather < 0 || edit[gather].phase != "train" || edit[gather].step != edit[update].step) return false;
  edit.move_behind(update, gather);
  return true;
}

bool add_to_nothing(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) { return l.in.op == Op::backward && !l.in.add; });
  if (k >= 0) edit[k].in.add = true;
  return k >= 0;
}

bool lose_the_sum(Edit& edit, Random& random) {
  const int k = pick(edit, random, [](const Line& l) {
    return l.in.add && (l.in.op == Op::backward || l.in.op == Op::reduce || l.in.op == Op::idle);
  });
  if (k >= 0) edit[k].in.add = false;
  return k >= 0;
}

constexpr Mutation kMutations[] = {
    {"delete a stash", remove_one<Op::stash>},
    {"delete a drop", remove_one<Op::drop>},
    {"delete a fetch", remove_one<Op::fetch>},
    {"delete a compress", remove_one<Op::compress>},
    {"delete an expand", remove_one<Op::expand>},
    {"forget to wait for the fetch", forget_the_fetch},
    {"add a gradient to nothing", add_to_nothing},
    {"begin a sum anew", lose_the_sum},
    {"delete a release", remove_one<Op::release>},
    {"delete a gather", remove_one<Op::gather>},
    {"delete a forward", remove_one<Op::forward>},
    {"delete a loss", remove_one<Op::loss>},
    {"delete a backward", remove_one<Op::backward>},
    {"delete a reduce", remove_one<Op::reduce>},
    {"delete a reduce_outer", remove_one<Op::reduce_outer>},
    {"delete a gather_outer", remove_one<Op::gather_outer>},
    {"forget to wait for the update of a piece", forget_the_update},
    {"gather pieces before they are updated", gather_before_the_update},
    {"sum pieces as if they were wholes", sum_pieces_as_wholes},
    {"put the receive buffer of a sum of pieces over the gradient", outer_scratch_over_gradient},
    {"delete a norm", remove_one<Op::norm>},
    {"delete an update", remove_one<Op::update>},
    {"move an update ahead of the norm", update_before_the_norm},
    {"move an update behind its gather", update_behind_the_gather},
    {"move a gather behind its use", move_gather},
    {"swap two collectives of a rank", swap_collectives<true>},
    {"swap two collectives, but not their waits", swap_collectives<false>},
    {"change bytes", change_bytes},
    {"change the bytes of a collective", change_comm_bytes},
    {"forget to wait for the gather", forget_the_gather},
    {"forget to wait for the backward", forget_the_backward},
    {"forget to wait for the reductions", forget_the_reductions},
    {"put a gradient over parameters", gradient_over_parameters},
    {"put a scratch over its gradient", scratch_over_gradient},
    {"put two units into one slot", two_gathers_in_one_slot},
    {"use another slot", use_another_slot},
    {"wait for itself", wait_for_itself},
    {"rename a group on one rank", rename_group},
};

/// A round spoils a plan of its own in each way.
TEST(RandomPlans, EveryMutationIsRefused) {
  std::map<std::string, int> applied;
  tessera::testing::MatrixPart part("rounds of mutations", 150);
  for (const int n : part) {
    Random random(23 + n);
    for (const Mutation& mutation : kMutations) {
      const ModelSpec spec = toy::random_model(random);
      Plan plan = toy::random_plan(random, spec, 2);
      if (n % 4 == 1) plan.grad = DType::bf16;
      if (n % 3 == 0)  // some without tiers
        for (UnitPlan& unit : plan.units) unit = {Policy::keep, unit.strategy};
      const int steps = plan.update == Update::just_in_time ? 2 : 1;  // the second begins with updates
      Edit edit(toy::run(spec, plan, steps, draw(random, 0, 2)));
      if (!mutation.apply(edit, random)) continue;
      ++applied[mutation.name];
      ASSERT_FALSE(check(edit.done()).empty()) << mutation.name << "\n"
                                               << to_toml(plan, toy::names(spec)) << toy::text(edit.done());
    }
  }
  for (const Mutation& mutation : kMutations)
    EXPECT_GE(applied[mutation.name], part.size() / 30) << mutation.name << " found too little to spoil";
}

TEST(RandomPlans, EditingNothingChangesNothing) {
  const ModelSpec spec = toy::model(2);
  const auto lines = toy::run(spec, toy::plan(spec, "dp_shard=2", 3, 1, 1), 2, 1);
  EXPECT_EQ(toy::text(Edit(lines).done()), toy::text(lines));
}

}  // namespace
}  // namespace tessera::plan
