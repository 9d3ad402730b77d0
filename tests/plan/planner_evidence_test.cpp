// How good the planner's plans are: against every plan there is for short chains, and against themselves with less
// memory and slower links.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "matrix.h"
#include "plan/planner_toy.h"
#include "tessera/plan/search/candidate.h"
#include "tessera/plan/search/mix.h"
#include "tessera/plan/search/search_space.h"

namespace tessera::plan {
namespace {

using toy::draw, toy::Random;

double part(Random& random, double least, double most) {
  return least + (most - least) * static_cast<double>(random() % 10007) / 10006;
}

/// A model and a machine whose costs are drawn: up to three kinds of blocks, each with its own bytes and seconds, and a
/// host link that carries a block's activations in a tenth of its forward to ten times as long.
struct Problem {
  ModelSpec model;
  Machine machine = toy::machine();
  Mesh mesh = Mesh::parse("single");
  PlannerInput input;
};

void scale(UnitSpec& unit, double bytes, double attention, double flops) {
  Footprint& f = unit.cost;
  const auto by = [&](int64_t& n, double factor) {
    n = static_cast<int64_t>(static_cast<double>(n) * factor) / 64 * 64;
  };
  for (int64_t* n : {&f.saved, &f.keep_peak, &f.forward_peak, &f.recompute_saved, &f.recompute_peak, &f.backward_peak})
    by(*n, bytes);
  for (auto& [site, n] : f.saved_by_site) by(n, bytes);
  for (auto& [site, n] : f.results) by(n, bytes * attention);
  for (auto& [sites, replay] : f.replays) {
    for (int64_t* n : {&replay.forward_peak, &replay.recompute_saved, &replay.recompute_peak}) by(*n, bytes);
    replay.forward_flops *= flops;
  }
  f.forward_flops *= flops, f.backward_flops *= flops;
}

/// `most_with_host`: chains of more blocks have no host.
Problem drawn(Random& random, int blocks, int most_with_host = 64) {
  Problem p;
  p.model = toy::dear_model(blocks);
  const int kinds = draw(random, 1, 3);
  struct Kind {
    double bytes, attention, flops;
  };
  std::vector<Kind> drawn;
  for (int k = 0; k < kinds; ++k)
    drawn.push_back({part(random, 0.4, 2.5), part(random, 0.3, 1.2), part(random, 0.3, 3)});
  double seconds = 0, bytes = 0;
  for (auto& unit : p.model.units) {
    if (!is_block(unit)) continue;
    const int k = draw(random, 0, kinds - 1);
    unit.kind = "block" + std::to_string(k);
    const Kind& kind = drawn[static_cast<size_t>(k)];
    scale(unit, kind.bytes, kind.attention, kind.flops);
    if (draw(random, 0, 1)) {
      unit.cost.selective = unit.cost;
      unit.cost.selective->saved = unit.cost.saved * 3 / 5;
      unit.cost.selective->keep_peak -= unit.cost.saved - unit.cost.selective->saved;
      unit.cost.selective->rebuilt = unit.cost.saved, unit.cost.selective->rebuilds = 5;
    }
    UnitWork& work = p.machine.work[unit.kind];
    work = {};
    work.attention = {{"attn", 4e11 * kind.flops}, {"cross", 1e11 * kind.flops}};
    work.add_product(5e11 * kind.flops, true);
    seconds += work.forward_flops() / 8e14, bytes += static_cast<double>(unit.cost.saved);
  }
  // Blocks of one kind share a footprint; whether norms are rebuilt was drawn for each and holds for the first of it.
  for (auto& unit : p.model.units)
    for (const auto& first : p.model.units)
      if (first.kind == unit.kind && is_block(unit)) {
        unit.cost = first.cost;
        break;
      }
  p.machine.profile.host_link = bytes / seconds * std::pow(10, part(random, -1, 1));
  p.machine.profile.host_bandwidth = 0;
  p.input = toy::input(0);
  p.input.global_batch = draw(random, 1, 2);
  p.input.update = Update::end;
  p.input.prefetch = 1;
  p.input.parameters = p.input.gradients = p.input.states_tier = Tier::device;
  if (draw(random, 0, 2) && blocks <= most_with_host) p.input.host_budget = int64_t{1} << 40;
  const int64_t most = choose(p.model, p.mesh, p.input, p.machine).memory.peak;
  PlannerInput one = p.input;
  one.budget = 1;
  const int64_t least = choose(p.model, p.mesh, one, p.machine).memory.peak;
  p.input.budget = least + static_cast<int64_t>(static_cast<double>(most - least) * part(random, 0, 1));
  if (p.input.host_budget > 0 && draw(random, 0, 1))
    p.input.host_budget = static_cast<int64_t>(bytes * part(random, 0.1, 1.0));
  return p;
}

/// The ways of saving that a block of the problem may take.
std::vector<UnitPlan> ways(const Problem& p, const UnitSpec& unit) {
  std::vector<UnitPlan> result = {UnitPlan{}};
  for (const Saving& saving : savings(p.input)) {
    if (saving.host() && p.input.host_budget <= 0) continue;
    UnitPlan way;
    way.activations = saving.recomputes() ? Policy::recompute : saving.activations;
    if (saving.recomputes() && leaves_device(saving.activations)) way.sites[std::string(kBlockInput)] = Policy::offload;
    if (saving.recomputes() && saving.results != Policy::recompute)
      for (const std::string& site : kept_sites(unit, p.machine, saving.sites)) way.sites[site] = saving.results;
    if (std::ranges::find(result, way) == result.end()) result.push_back(way);
  }
  return result;
}

/// What each block does, to see how two plans differ.
std::string ways_text(const Plan& plan) {
  std::string text;
  for (const UnitPlan& unit : plan.units) {
    text += std::string(name(unit.activations));
    for (const auto& [site, policy] : unit.sites) text += "+" + site + ":" + std::string(name(policy));
    text += "  ";
  }
  return text;
}

/// The least seconds of all plans that fit, each block in any way. A plan takes at least what its compute takes: so
/// those that compute least are simulated first, until none that is left can be faster.
double optimum(const Problem& p, Plan* winner = nullptr) {
  Plan plan = toy::plan(p.model, "single", p.input.global_batch, p.input.micro_batch, *p.input.prefetch);
  struct Option {
    UnitPlan way;
    double again;
  };
  std::vector<std::vector<Option>> options;
  const auto compute = [&](const Plan& of) {
    const CostModel cost(p.model, of, p.machine);
    double seconds = 0;
    for (int u = 0; u < static_cast<int>(of.units.size()); ++u)
      seconds += cost.forward_seconds(u, false) + cost.backward_seconds(u) + cost.rebuild_seconds(u) +
                 (of.units[static_cast<size_t>(u)].recomputes() ? cost.forward_seconds(u, true) : 0);
    return seconds * static_cast<double>(of.accumulation());
  };
  const double least = compute(plan);
  std::vector<size_t> blocks;
  for (size_t u = 0; u < p.model.units.size(); ++u) {
    if (!is_block(p.model.units[u])) continue;
    blocks.push_back(u);
    options.emplace_back();
    for (const UnitPlan& way : ways(p, p.model.units[u])) {
      Plan with = plan;
      with.units[u] = way;
      options.back().push_back({way, compute(with) - least});
    }
  }
  struct Coded {
    double seconds;
    int64_t choice;  // in the base of each block's number of options
  };
  std::vector<Coded> all = {{least, 0}};
  for (size_t b = options.size(); b-- > 0;) {
    std::vector<Coded> longer;
    longer.reserve(all.size() * options[b].size());
    const auto base = static_cast<int64_t>(options[b].size());
    for (const auto& [seconds, choice] : all)
      for (int64_t o = 0; o < base; ++o)
        longer.push_back({seconds + options[b][static_cast<size_t>(o)].again, choice * base + o});
    all = std::move(longer);
  }
  std::ranges::sort(all, {}, &Coded::seconds);
  double best = INFINITY;
  for (const auto& [seconds, coded] : all) {
    if (seconds >= best) break;
    int64_t choice = coded;
    for (size_t b = 0; b < blocks.size(); ++b) {
      const auto base = static_cast<int64_t>(options[b].size());
      plan.units[blocks[b]] = options[b][static_cast<size_t>(choice % base)].way;
      choice /= base;
    }
    std::vector<RankGroup> groups = rank_groups(p.model, plan);
    const MemoryCurve curve = memory_curve(p.model, plan, groups.front().schedule, 0);
    if (curve.peak > p.input.budget || (p.input.host_budget > 0 && curve.host.total() > p.input.host_budget)) continue;
    if (const double took = predict(p.model, plan, p.machine, std::move(groups)).step.total; took < best) {
      best = took;
      if (winner) *winner = plan;
    }
  }
  return best;
}

/// [ways ^ blocks plans each] Found plans are within 1 % of the best there is in 99 of 100 problems, and never over a
/// budget.
TEST(Evidence, PlansOfShortChainsAreWithinAPercentOfTheBestThereIs) {
  constexpr int kProblems = 2000;
  tessera::testing::MatrixPart part("chains against all of their plans", kProblems);
  int worse = 0, ran = 0, unfit = 0;
  double most = 1, sum = 0;
  for (const int i : part) {
    Random random(static_cast<uint64_t>(i) + 77);
    const Problem p = drawn(random, 1 + i % 6, 3);  // five blocks with a host have a million plans
    const Choice choice = choose(p.model, p.mesh, p.input, p.machine);
    Plan winner;
    const double best = optimum(p, &winner);
    if (!choice.fits) {
      EXPECT_EQ(best, INFINITY) << "problem " << i << ": there is a plan:\n" << ways_text(winner);
      ++unfit;
      continue;
    }
    EXPECT_LE(choice.memory.peak, p.input.budget) << i;
    if (p.input.host_budget > 0) EXPECT_LE(choice.memory.host.total(), p.input.host_budget) << i;
    const double ratio = choice.seconds / best;
    EXPECT_GE(ratio, 1 - 1e-9) << "problem " << i << ": not all plans were tried";
    ++ran, sum += ratio, most = std::max(most, ratio), worse += ratio > 1.01;
    if (ratio > 1.01)
      std::printf("problem %d: %.4f of the best:\n%s\nthe best:\n%s\n", i, ratio, ways_text(choice.plan).c_str(),
                  ways_text(winner).c_str());
  }
  std::printf("%d problems, %d without a plan: mean %.5f of the best, worst %.4f, %d above 1.01\n", ran + unfit, unfit,
              sum / std::max(1, ran), most, worse);
  EXPECT_LE(worse, ran / 100 + (ran < kProblems)) << "a part of the problems may have one more";
}

TEST(Evidence, TheKnapsackFindsTheLeastSecondsOfAllChoices) {
  for (int n = 0; n < 300; ++n) {
    Random random(n);
    std::vector<std::vector<MixOption>> blocks(static_cast<size_t>(draw(random, 1, 5)));
    for (auto& options : blocks)
      for (int o = draw(random, 1, 4); o > 0; --o)
        options.push_back(
            {part(random, 0, 1), draw(random, 0, 200) * 1024, draw(random, 0, 3) ? 0 : draw(random, 0, 99) * 1024});
    if (n % 3 == 0) blocks.assign(static_cast<size_t>(draw(random, 2, 7)), blocks.front());
    if (n % 6 == 0) blocks.back().pop_back(), blocks.back().push_back({0.5, 50 * 1024, 0});
    const int64_t kept = draw(random, 0, 700) * 1024, sent = draw(random, 0, 2) * 80 * 1024;
    const std::vector<int> found = best_mix(blocks, kept, sent);
    const auto sum = [&](const std::vector<int>& choice) {
      MixOption total;
      for (size_t b = 0; b < blocks.size(); ++b) {
        const MixOption& option = blocks[b][static_cast<size_t>(choice[b])];
        total.seconds += option.seconds, total.kept += option.kept, total.sent += option.sent;
      }
      return total;
    };
    double best = INFINITY, nearly = INFINITY;  // with the whole limits, and without a cell of each for each block
    std::vector<int> choice(blocks.size(), 0);
    for (bool more = true; more;) {
      const MixOption total = sum(choice);
      if (total.kept <= kept && total.sent <= sent) best = std::min(best, total.seconds);
      if (total.kept <= kept * 63 / 64 && total.sent <= sent / 2) nearly = std::min(nearly, total.seconds);
      more = false;
      for (size_t b = 0; b < choice.size() && !more; ++b) {
        more = ++choice[b] < static_cast<int>(blocks[b].size());
        if (!more) choice[b] = 0;
      }
    }
    if (found.empty()) {
      EXPECT_EQ(nearly, INFINITY) << n;
      continue;
    }
    const MixOption total = sum(found);
    EXPECT_LE(total.kept, kept) << n;
    EXPECT_LE(total.sent, sent) << n;
    EXPECT_GE(total.seconds, best - 1e-9) << n;
    EXPECT_LE(total.seconds, nearly + 1e-9) << n;
  }
}

/// One of what a machine has becomes more.
void improve(Random& random, Problem& p) {
  const double times = part(random, 1.05, 3);
  const auto more = [&](int64_t& bytes) { bytes = static_cast<int64_t>(static_cast<double>(bytes) * times); };
  switch (draw(random, 0, 4)) {
    case 0:
      more(p.input.budget);
      break;
    case 1:
      more(p.input.host_budget);
      break;
    case 2:
      p.machine.profile.host_link *= times;
      break;
    case 3:
      p.machine.profile.disk_read *= times, p.machine.profile.disk_write *= times;
      break;
    default:
      p.machine.profile.link.gather *= times, p.machine.profile.link.reduce *= times;
  }
}

/// What a machine with more memory or a faster link or disk takes, beginning with the plan of the machine before it.
TEST(Evidence, MoreMemoryOrAFasterLinkNeverPlansSlower) {
  constexpr int kChains = 240, kSteps = 4;
  tessera::testing::MatrixPart part("machines that become better", kChains);
  int alone_slower = 0, faster = 0, fitted = 0;
  double worst_alone = 1;
  for (const int i : part) {
    Random random(static_cast<uint64_t>(i) + 500);
    Problem p = drawn(random, draw(random, 2, 10));
    p.mesh = Mesh::parse(draw(random, 0, 1) ? "single" : "dp_shard=2");
    p.input.global_batch = 2 * draw(random, 1, 2);
    p.input.update.reset(), p.input.prefetch.reset();
    p.input.parameters.reset(), p.input.gradients.reset(), p.input.states_tier.reset();
    p.input.may_update_in_backward = draw(random, 0, 1);
    p.input.nvme = draw(random, 0, 1);
    p.machine.profile.disk_read = p.machine.profile.host_link / 4;
    p.machine.profile.disk_write = p.machine.profile.host_link / 6;
    if (p.input.host_budget == 0 || p.input.host_budget > (int64_t{1} << 35)) p.input.host_budget = p.input.budget;
    Choice before = choose(p.model, p.mesh, p.input, p.machine);
    for (int step = 0; step < kSteps; ++step) {
      improve(random, p);
      const Choice alone = choose(p.model, p.mesh, p.input, p.machine);
      PlannerInput with = p.input;
      if (before.fits) with.incumbent = before.plan;
      const Choice after = choose(p.model, p.mesh, with, p.machine);
      if (before.fits) {
        ++fitted;
        ASSERT_TRUE(after.fits) << i << ": what fitted fits no more";
        EXPECT_LE(after.seconds, before.seconds * (1 + 1e-9)) << i << ", step " << step;
        EXPECT_TRUE(alone.fits) << i << ": found only with the plan before";
        alone_slower += alone.seconds > before.seconds * 1.001;
        worst_alone = std::max(worst_alone, alone.seconds / before.seconds);
        faster += after.seconds < before.seconds * 0.999;
      }
      if (after.fits) EXPECT_LE(after.memory.peak, p.input.budget) << i;
      before = after;
    }
  }
  std::printf(
      "%d better machines, %d of them plan faster; without the plan before %d are slower, the worst %.4f times\n",
      fitted, faster, alone_slower, worst_alone);
  if (fitted >= 20) EXPECT_GT(faster, 0);  // of a handful, drawn under sanitizers, none may be
}

/// [Note: the same time] on budgets that grow, each searched by itself. No plan of less memory is told, so in the whole matrix
/// a few of the fastest plans are slower with more memory, by less than what counts as the same time.
TEST(Evidence, OfPlansOfTheSameTimeTheOneOfLeastMemoryIsPreferred) {
  constexpr int kSeeds = 200, kBudgets = 5;
  tessera::testing::MatrixPart part("budgets that grow, on every mesh", kSeeds);
  const char* meshes[] = {"single", "dp_shard=4", "dp_replicate=2,dp_shard=2", "pp=2", "pp=2,dp_shard=2"};
  int pairs = 0, slower = 0, less = 0;
  double worst = 1, worst_preferred = 1;
  for (const int i : part) {
    Random random(static_cast<uint64_t>(i) + 4300);
    Problem p = drawn(random, draw(random, 2, 10));
    p.mesh = Mesh::parse(meshes[static_cast<size_t>(i) % std::size(meshes)]);
    p.input.global_batch = 4 * draw(random, 1, 2);
    p.input.update.reset(), p.input.prefetch.reset();
    p.input.parameters.reset(), p.input.gradients.reset(), p.input.states_tier.reset();
    if (p.input.host_budget > (int64_t{1} << 35)) p.input.host_budget = p.input.budget / draw(random, 1, 8);
    const int64_t first = p.input.budget;
    double best = INFINITY, preferred = INFINITY;
    for (int b = 0; b < kBudgets; ++b) {
      p.input.budget = first + first * b / 8;
      p.input.thrifty = false;
      const Choice fastest = choose(p.model, p.mesh, p.input, p.machine);
      p.input.thrifty = true;
      const Choice choice = choose(p.model, p.mesh, p.input, p.machine);
      ASSERT_EQ(choice.fits, fastest.fits) << i;
      if (!choice.fits) {
        EXPECT_EQ(best, INFINITY) << i << ", budget " << b << ": what fitted fits no more";
        continue;
      }
      // Seconds of candidates are those of few micro-batches, of what is chosen those of all: 0.01 % apart.
      constexpr double kApart = 1e-3;
      EXPECT_NEAR(choice.fastest, fastest.seconds, fastest.seconds * kApart) << i;
      EXPECT_LE(choice.memory.peak, p.input.budget) << i;
      EXPECT_LE(choice.seconds, fastest.seconds * (1 + kSameTime + kApart)) << i;
      EXPECT_LE(choice.memory.peak, fastest.memory.peak) << i;
      const auto of = [&](const Plan& plan) { return std::ranges::find(choice.candidates, plan, &Candidate::plan); };
      const auto first = std::ranges::min_element(choice.candidates, [](const Candidate& a, const Candidate& b) {
        return a.fits != b.fits ? a.fits : is_better(a, b);
      });
      // Where a plan does not fit with all of its micro-batches, the next fastest is taken.
      if (of(fastest.plan) != choice.candidates.end() && of(choice.plan) != choice.candidates.end() &&
          of(fastest.plan)->host == first->host && of(choice.plan)->seconds <= first->seconds * (1 + kSameTime)) {
        EXPECT_LE(of(choice.plan)->host, first->host) << i << ": memory of the host for memory of the device";
        for (const Candidate& c : choice.candidates)
          if (c.fits && c.host <= first->host && c.seconds <= of(choice.plan)->seconds)
            EXPECT_GE(c.peak, of(choice.plan)->peak) << i;
      }
      less += choice.memory.peak < fastest.memory.peak;
      if (best < INFINITY)
        ++pairs, slower += fastest.seconds > best * 1.001, worst = std::max(worst, fastest.seconds / best);
      if (preferred < INFINITY) worst_preferred = std::max(worst_preferred, choice.seconds / preferred);
      best = std::min(best, fastest.seconds), preferred = std::min(preferred, choice.seconds);
    }
  }
  std::printf(
      "%d larger budgets: %d are slower by more than 0.1 %%, the worst %.4f times, of the preferred %.4f; %d plans take less "
      "memory\n",
      pairs, slower, worst, worst_preferred, less);
  EXPECT_LE(worst, 1 + kSameTime);
  if (pairs >= 100) EXPECT_GT(less, 0);
  if (pairs >= 700) EXPECT_LE(slower, pairs / 80);
}

TEST(Evidence, WhatNoPlanCouldTakeIsToldFromWhatWasNotFound) {
  for (int i = 0; i < 40; ++i) {
    Random random(static_cast<uint64_t>(i) + 900);
    Problem p = drawn(random, draw(random, 1, 3), 3);
    if (p.input.host_budget > 0) p.input.host_budget = int64_t{1} << 40;
    PlannerInput one = p.input;
    one.budget = 1;
    const int64_t least = choose(p.model, p.mesh, one, p.machine).memory.peak;
    p.input.budget = least - 1;
    const Choice none = choose(p.model, p.mesh, p.input, p.machine);
    if (none.fits) continue;  // a mix of blocks takes less than the same way for all
    EXPECT_EQ(optimum(p), INFINITY) << i;
    EXPECT_EQ(none.advice.find("infeasible: every plan with these settings needs at least "), 0u) << none.advice;
  }
  const auto tried = [](int64_t peak, int64_t host) {
    Candidate c;
    c.peak = peak, c.host = host;
    return c;
  };
  constexpr int64_t kGiB = int64_t{1} << 30;
  PlannerInput in = toy::input(20 * kGiB, 10 * kGiB);
  const std::vector<Candidate> apart = {tried(18 * kGiB, 11 * kGiB), tried(21 * kGiB, 9 * kGiB)};
  EXPECT_FALSE(shortage_of(in, apart).infeasible) << "between them there may be one";
  EXPECT_EQ(describe(shortage_of(in, apart), in).find("not found: "), 0u);
  EXPECT_TRUE(shortage_of(in, {tried(25 * kGiB, 6 * kGiB), tried(15 * kGiB, 16 * kGiB)}).infeasible);
  EXPECT_EQ(describe(shortage_of(in, {tried(15 * kGiB, 16 * kGiB)}), in),
            "infeasible: every plan with these settings needs at least 31.00 GiB of device and host memory a rank "
            "together; ");
  EXPECT_TRUE(shortage_of(in, {tried(21 * kGiB, 2 * kGiB)}).infeasible) << "device memory is not host memory";
  in.nvme = true;
  EXPECT_FALSE(shortage_of(in, {tried(15 * kGiB, 16 * kGiB)}).infeasible) << "the disk holds the rest";
}

TEST(Evidence, APlanOfLessMemoryIsWhereASearchBegins) {
  Random random(3);
  Problem p = drawn(random, 6);
  const Choice less = choose(p.model, p.mesh, p.input, p.machine);
  ASSERT_TRUE(less.fits);
  p.input.incumbent = less.plan;
  p.input.first_that_fits = true;
  EXPECT_EQ(choose(p.model, p.mesh, p.input, p.machine).plan, less.plan);
}

}  // namespace
}  // namespace tessera::plan
