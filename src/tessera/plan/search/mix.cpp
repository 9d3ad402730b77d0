#include "tessera/plan/search/mix.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "tessera/plan/compile/memory.h"
#include "tessera/plan/search/candidate.h"
#include "tessera/plan/search/search_space.h"

namespace tessera::plan {

namespace {

constexpr int kRows = 257, kColumns = 17;  // of a table: parts of what is kept, parts of what is sent

/// The options within the limits but those that compute no less than another one that keeps and sends no more.
std::vector<int> useful(const std::vector<MixOption>& options, int64_t kept, int64_t sent) {
  std::vector<int> indices;
  for (size_t i = 0; i < options.size(); ++i) {
    const MixOption& own = options[i];
    const auto replaces = [&](size_t j) {
      const MixOption& other = options[j];
      if (j == i || other.seconds > own.seconds || other.kept > own.kept || other.sent > own.sent) return false;
      return other != own || j < i;
    };
    bool needless = own.kept > kept || own.sent > sent;
    for (size_t j = 0; j < options.size() && !needless; ++j) needless = replaces(j);
    if (!needless) indices.push_back(static_cast<int>(i));
  }
  return indices;
}

/// The best choices of the blocks so far, by lists. Bytes are doubles, which are exact far beyond any machine's.
struct Layer {
  std::vector<double> seconds, kept, sent;
  std::vector<int> before, option;  ///< index of the choice that it extends, and of the last block's option
  size_t size() const { return seconds.size(); }
  void add(double s, double k, double n, int b, int o) {
    seconds.push_back(s), kept.push_back(k), sent.push_back(n), before.push_back(b), option.push_back(o);
  }
};

/// The best choice by its sums, each in a cell of the table. One more cell takes what is beyond the limits.
class Table {
 public:
  Table(double kept, double sent)
      : kept_(kept),
        sent_(sent),
        rows_a_byte_((kRows - 1) / std::max(1.0, kept)),
        columns_a_byte_((kColumns - 1) / std::max(1.0, sent)) {}

  void clear() {
    seconds_.assign(kRows * kColumns + 1, INFINITY), before_.assign(seconds_.size(), -1);
    option_.resize(seconds_.size()), of_kept_.resize(seconds_.size()), of_sent_.resize(seconds_.size());
    seconds_.back() = -INFINITY;
  }

  /// All choices with this option of the next block.
  void extend(const Layer& choices, const MixOption& with, int option) {
    const size_t count = choices.size();
    cell_.resize(count);
    const auto more_kept = static_cast<double>(with.kept), more_sent = static_cast<double>(with.sent);
    for (size_t b = 0; b < count; ++b) {
      const double k = choices.kept[b] + more_kept, n = choices.sent[b] + more_sent;
      const int row = std::min(static_cast<int>(k * rows_a_byte_), kRows - 1),
                column = std::min(static_cast<int>(n * columns_a_byte_), kColumns - 1);
      cell_[b] = k > kept_ || n > sent_ ? kRows * kColumns : row * kColumns + column;
    }
    for (size_t b = 0; b < count; ++b) {
      const auto c = static_cast<size_t>(cell_[b]);
      const double s = choices.seconds[b] + with.seconds;
      if (s > seconds_[c]) continue;
      const double k = choices.kept[b] + more_kept, n = choices.sent[b] + more_sent;
      const int before = static_cast<int>(b);
      if (before_[c] >= 0 && s == seconds_[c] &&
          std::tie(of_kept_[c], of_sent_[c], before_[c]) <= std::tie(k, n, before))
        continue;
      seconds_[c] = s, of_kept_[c] = k, of_sent_[c] = n, before_[c] = before, option_[c] = option;
    }
  }

  /// All but what computes no less than another that keeps less and sends no more.
  Layer layer() const {
    Layer some;
    std::vector<double> least(kColumns, INFINITY);  // seconds, of rows so far
    for (size_t row = 0, c = 0; row < kRows; ++row) {
      double of_fewer = INFINITY;  // of the columns so far
      for (size_t column = 0; column < kColumns; ++column, ++c) {
        of_fewer = std::min(of_fewer, least[column]);
        if (before_[c] < 0 || seconds_[c] >= of_fewer) continue;
        of_fewer = least[column] = seconds_[c];
        some.add(seconds_[c], of_kept_[c], of_sent_[c], before_[c], option_[c]);
      }
    }
    return some;
  }

 private:
  const double kept_, sent_, rows_a_byte_, columns_a_byte_;
  std::vector<double> seconds_, of_kept_, of_sent_;
  std::vector<int> before_, option_, cell_;
};

}  // namespace

std::vector<int> best_mix(const std::vector<std::vector<MixOption>>& blocks, int64_t kept, int64_t sent) {
  Table table(static_cast<double>(kept), static_cast<double>(sent));
  std::vector<Layer> layers(1);
  layers.front().add(0, 0, 0, 0, 0);
  for (const std::vector<MixOption>& options : blocks) {
    table.clear();
    for (const int o : useful(options, kept, sent)) table.extend(layers.back(), options[static_cast<size_t>(o)], o);
    Layer layer = table.layer();
    if (layer.size() == 0) return {};
    layers.push_back(std::move(layer));
  }
  const std::vector<double>& last = layers.back().seconds;
  auto at = static_cast<size_t>(std::ranges::min_element(last) - last.begin());
  std::vector<int> choice(blocks.size());
  for (size_t b = blocks.size(); b-- > 0;) {
    const Layer& layer = layers[b + 1];
    choice[b] = layer.option[at], at = static_cast<size_t>(layer.before[at]);
  }
  return choice;
}

namespace {

/// What a block does with its activations.
struct Way {
  Policy activations;
  std::map<std::string, Policy> sites;
  bool operator==(const Way&) const = default;
};

class Mixer {
 public:
  Mixer(Pool& pool, const Evaluator& evaluator) : pool_(pool), evaluator_(evaluator), blocks_(evaluator.blocks) {
    const ModelSpec& model = evaluator.model;
    for (const size_t u : blocks_)
      if (!kinds_.contains(model.units[u].kind)) kinds_[model.units[u].kind] = ways_of(u);
    for (auto& [kind, ways] : kinds_) measure(ways);
  }

  void run() {
    if (blocks_.empty()) return;
    learn(start().candidate.plan);
    seed(start(), {0, 1, 2, 3, 4}, /*corrections=*/4);
    if (!pool_.best) shrink();
    if (pool_.best) climb();
  }

  void trade() {
    const PlannerInput& input = evaluator_.input;
    if (blocks_.empty() || input.budget <= 0 || !loses_time()) return;
    learn(pool_.best->candidate.plan);
    const Plan before = pool_.best->candidate.plan;
    int left = evaluations(), leaping = evaluations();
    for (const size_t part : {8, 16, 32})  // of the units
      for (bool better = true; better && left > 0;) {
        better = part == 8 && leaps(leaping);
        if (input.host_budget <= 0) continue;
        for (const TierOf traded : kTraded)
          for (const Tier to : {Tier::device, Tier::host})
            while (left > 0 && moved_and_mixed(traded, to, (before.units.size() + part - 1) / part, left))
              better = true;
      }
    if (pool_.best->candidate.plan != before) climb();
    if (input.host_budget > 0) explore();
  }

 private:
  struct Measured {
    Way way;
    MixOption option;
  };

  std::vector<Measured> ways_of(size_t u) const {
    const UnitSpec& unit = evaluator_.model.units[u];
    const PlannerInput& input = evaluator_.input;
    std::vector<Measured> ways = {{{Policy::keep, {}}, {}}};
    for (const Saving& saving : savings(input)) {
      if (saving.host() && input.host_budget <= 0) continue;
      Way way{saving.recomputes() ? Policy::recompute : saving.activations, {}};
      if (saving.recomputes() && leaves_device(saving.activations))
        way.sites[std::string(kBlockInput)] = Policy::offload;
      if (saving.recomputes() && saving.results != Policy::recompute)
        for (const std::string& site : kept_sites(unit, evaluator_.machine, saving.sites))
          way.sites[site] = saving.results;
      const auto same = [&](const Measured& m) { return m.way == way; };
      if (std::ranges::none_of(ways, same)) ways.push_back({way, {}});
    }
    for (Measured& m : ways) m.option.kept = static_cast<int64_t>(u);  // a block of the kind, for measure()
    return ways;
  }

  void measure(std::vector<Measured>& ways) const {
    for (Measured& m : ways) {
      const auto u = static_cast<size_t>(m.option.kept);
      Plan plan = start().candidate.plan;
      assign(plan, u, m.way);
      m.option = mix_option(evaluator_.model, plan, evaluator_.machine, u);
    }
  }

  /// Adds the ways of a plan's blocks to those known: earlier passes keep results that no saving names together.
  void learn(const Plan& plan) {
    for (const size_t u : blocks_) {
      if (way_in(plan, u)) continue;
      std::vector<Measured> own = {{{plan.units[u].activations, plan.units[u].sites}, {}}};
      own.front().option.kept = static_cast<int64_t>(u);
      measure(own);
      kinds_.at(evaluator_.model.units[u].kind).push_back(own.front());
    }
  }

  static void assign(Plan& plan, size_t u, const Way& way) {
    plan.units[u].activations = way.activations;
    plan.units[u].sites = way.sites;
  }

  const std::vector<Measured>& ways(size_t u) const { return kinds_.at(evaluator_.model.units[u].kind); }

  /// The way of block `u` in the plan; empty if it is none of those known.
  const Measured* way_in(const Plan& plan, size_t u) const {
    for (const Measured& m : ways(u))
      if (m.way.activations == plan.units[u].activations && m.way.sites == plan.units[u].sites) return &m;
    return nullptr;
  }

  /// Sums over the blocks of a plan; nothing if one has a way that is not known.
  std::optional<MixOption> sum_of(const Plan& plan) const {
    MixOption sum;
    for (const size_t u : blocks_) {
      const Measured* way = way_in(plan, u);
      if (!way) return std::nullopt;
      sum.seconds += way->option.seconds, sum.kept += way->option.kept, sum.sent += way->option.sent;
    }
    return sum;
  }

  /// The best plan, or the smallest if none fits.
  const Evaluated& start() const { return pool_.best ? *pool_.best : *pool_.smallest; }

  /// `plan` with the knapsack's choice. Blocks of a kind that keep least come first, because theirs live longest.
  Plan with(Plan plan, const std::vector<int>& choice) const {
    std::map<std::string, std::vector<size_t>> places;
    std::map<std::string, std::vector<const Measured*>> chosen;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      const std::string& kind = evaluator_.model.units[blocks_[b]].kind;
      places[kind].push_back(blocks_[b]);
      chosen[kind].push_back(&ways(blocks_[b])[static_cast<size_t>(choice[b])]);
    }
    for (auto& [kind, list] : chosen) {
      std::ranges::stable_sort(list, {}, [](const Measured* m) { return m->option.kept; });
      for (size_t i = 0; i < list.size(); ++i) assign(plan, places[kind][i], list[i]->way);
    }
    return plan;
  }

  /// Considers the knapsack's plans for several limits of what is sent, in quarters of what can be, each with the device
  /// bytes that it really has. `start` is what they have in common, and need not fit.
  void seed(const Evaluated start, const std::vector<int>& quarters, int corrections) {
    const PlannerInput& input = evaluator_.input;
    const std::optional<MixOption> base = sum_of(start.candidate.plan);
    if (!base || input.budget <= 0) return;
    const auto micros = static_cast<double>(start.candidate.plan.accumulation());
    std::vector<std::vector<MixOption>> options;
    int64_t most_sent = 0;
    for (const size_t u : blocks_) {
      int64_t most = 0;
      options.emplace_back();
      for (const Measured& m : ways(u)) options.back().push_back(m.option), most = std::max(most, m.option.sent);
      most_sent += most;
    }
    // What the host has room for beside the plan's other buffers there.
    int64_t room = 0;
    if (input.host_budget > 0) room = std::max<int64_t>(0, input.host_budget - start.candidate.host + base->sent);
    // More than the link carries in a forward only waits.
    const double seconds_a_byte =
        evaluator_.machine.profile.host_link > 0 ? 1 / evaluator_.machine.profile.host_link : 0;
    const double window =
        seconds_a_byte > 0 && pool_.best ? pool_.best->candidate.seconds / (3 * micros) / seconds_a_byte : 1e18;
    const auto limit = static_cast<int64_t>(std::min(window, static_cast<double>(std::min(most_sent, room))));
    std::set<std::vector<int>> tried;
    for (const int quarter : quarters) {
      if (quarter > 0 && limit <= 0) break;
      int64_t kept = input.budget - (start.candidate.peak - base->kept);
      for (int i = 0; i < corrections && kept > 0; ++i) {
        const std::vector<int> choice = best_mix(options, kept, limit / 4 * quarter);
        if (choice.empty() || !tried.insert(choice).second) break;
        Plan plan = with(start.candidate.plan, choice);
        Evaluated e = evaluator_.evaluate(plan);
        const int64_t spare = input.budget - e.candidate.peak;
        const bool fits = e.candidate.fits;
        consider_seed(std::move(e));
        if (fits)
          if (Plan spread = alternate_offloading(plan, evaluator_, kUnchanged); spread != plan)
            consider_seed(evaluator_.evaluate(std::move(spread)));
        kept += spare;
      }
    }
  }

  void consider_seed(Evaluated e) {
    if (e.candidate.fits) seeds_.push_back(e.candidate);
    pool_.consider(std::move(e));
  }

  /// One or two blocks that change their way.
  struct Move {
    double gain;  ///< expected seconds, or bytes
    size_t first, second;
    const Measured *to, *other;
  };

  /// Blocks that stand for those of the same kind and way: the first and the last of each. All, of few.
  std::vector<size_t> representatives(const Plan& plan) const {
    if (blocks_.size() <= kFew) return blocks_;
    std::map<std::pair<std::string, const Measured*>, std::pair<size_t, size_t>> ends;
    for (const size_t u : blocks_) {
      const auto [it, is_new] = ends.try_emplace({evaluator_.model.units[u].kind, way_in(plan, u)}, u, u);
      it->second.second = u;
    }
    std::set<size_t> result;
    for (const auto& [key, pair] : ends) result.insert({pair.first, pair.second});
    return {result.begin(), result.end()};
  }

  /// All changes of one or two blocks of `plan` that stand for others: `each(change of the sums, move)`.
  template <typename Each>
  void each_move(const Plan& plan, const Each& each) const {
    const auto add = [&](size_t u, const Measured* to, size_t v, const Measured* other) {
      const Measured *from = way_in(plan, u), *before = other ? way_in(plan, v) : nullptr;
      if (!from || (other && !before)) return;
      MixOption change{to->option.seconds - from->option.seconds, 0, to->option.sent - from->option.sent};
      // The backward of the last block comes at once: what it computes again takes the room that it would have kept.
      if (u != blocks_.back()) change.kept = to->option.kept - from->option.kept;
      if (other) {
        change.seconds += other->option.seconds - before->option.seconds;
        change.sent += other->option.sent - before->option.sent;
        if (v != blocks_.back()) change.kept += other->option.kept - before->option.kept;
      }
      each(change, Move{0, u, v, to, other});
    };
    const std::vector<size_t> some = representatives(plan);
    for (const size_t u : some)
      for (const Measured& to : ways(u)) {
        if (&to == way_in(plan, u)) continue;
        add(u, &to, u, nullptr);
        for (const size_t v : some)
          if (v != u)
            for (const Measured& other : ways(v))
              if (&other != way_in(plan, v) && (v > u || to.way != other.way)) add(u, &to, v, &other);
      }
  }

  static void largest_gain_first(std::vector<Move>& moves) {
    std::ranges::stable_sort(moves, [](const Move& a, const Move& b) { return a.gain > b.gain; });
  }

  /// Moves that may make the plan faster, the largest expected gain first. `waits`: seconds of copies that compute waits
  /// for.
  std::vector<Move> faster_moves(const Candidate& best, double waits) const {
    const PlannerInput& input = evaluator_.input;
    const int64_t spare = input.budget > 0 ? input.budget - best.peak : INT64_MAX / 4;
    // the sum is not quite the peak
    const int64_t tolerance = blocks_.size() <= kFew ? best.peak : best.peak / 16;
    const double link = evaluator_.machine.profile.host_link, seconds_a_byte = link > 0 ? 2 / link : 0;
    const auto micros = static_cast<double>(best.plan.accumulation());
    std::vector<Move> result;
    each_move(best.plan, [&](const MixOption& change, Move move) {
      if (change.kept > spare + tolerance) return;
      // Copies count while compute waits for some; without a wait more of them may still hide.
      const double copies = static_cast<double>(change.sent) * seconds_a_byte;
      move.gain = -micros * (change.seconds + (copies < 0 ? std::max(copies, -waits) : waits > 0 ? copies : 0));
      if (move.gain > best.seconds * 1e-6 || (waits > 0 && move.gain >= 0)) result.push_back(move);
    });
    largest_gain_first(result);
    return result;
  }

  /// Moves after which the smallest plan may fit, what exceeds the budgets least first.
  std::vector<Move> smaller_moves() const {
    const Candidate& smallest = pool_.smallest->candidate;
    const auto lacking = [&](int64_t kept, int64_t sent) {
      return static_cast<double>(std::max<int64_t>(0, over_device(evaluator_.input, smallest) + kept) +
                                 std::max<int64_t>(0, over_host(evaluator_.input, smallest) + sent));
    };
    std::vector<Move> result;
    each_move(smallest.plan, [&](const MixOption& change, Move move) {
      move.gain = lacking(0, 0) - lacking(change.kept, change.sent);
      result.push_back(move);
    });
    largest_gain_first(result);
    return result;
  }

  Plan moved(Plan plan, const Move& move) const {
    assign(plan, move.first, move.to->way);
    if (move.other) assign(plan, move.second, move.other->way);
    return plan;
  }

  /// How many plans of changed blocks are evaluated: fewer of models of many units, which take longer.
  int evaluations() const { return static_cast<int>(kEvaluations / evaluator_.model.units.size()); }

  /// Changes single blocks and pairs of the smallest plan until something fits or nothing becomes smaller.
  void shrink() {
    int left = evaluations();
    for (bool smaller = true; smaller && !pool_.best && left > 0;) {
      smaller = false;
      const Plan from = pool_.smallest->candidate.plan;
      for (const Move& move : smaller_moves()) {
        if (left-- <= 0) break;
        pool_.consider(evaluator_.evaluate(moved(from, move)));
        smaller = pool_.smallest->candidate.plan != from;
        if (smaller || pool_.best) break;
      }
    }
  }

  /// Changes single blocks and pairs of `from` while the simulator finds that faster, in so many plans.
  void polish(Candidate from, int left) {
    for (bool better = true; better && left > 0;) {
      better = false;
      const Prediction now = evaluator_.predicted(from.plan);
      for (const Move& move : faster_moves(from, now.step.exposed_copy)) {
        if (left-- <= 0) break;
        Evaluated e = evaluator_.evaluate(moved(from.plan, move));
        if (!e.candidate.fits || !is_better(e.candidate, from)) continue;
        from = e.candidate, better = true;
        if (is_better(from, pool_.best->candidate)) pool_.consider(std::move(e));
        break;
      }
    }
  }
  void polish() { polish(pool_.best->candidate, evaluations()); }

  void climb() {
    polish();
    for (int round = 0; round < kRounds && relieve(); ++round) polish();
  }

  /// Climbs from other seeds too: which of them leads highest, their own seconds do not tell.
  void explore() {
    std::ranges::stable_sort(seeds_, is_better);
    std::vector<std::optional<MixOption>> known = {sum_of(pool_.best->candidate.plan)};
    size_t tried = 0;
    for (const Candidate& seed : std::exchange(seeds_, {})) {
      if (tried == kSeeds || seed.seconds > pool_.best->candidate.seconds * (1 + kFarSeed)) break;
      if (std::ranges::find(known, sum_of(seed.plan)) != known.end()) continue;
      known.push_back(sum_of(seed.plan)), ++tried;
      polish(seed, evaluations() / 2);
    }
  }

  /// Whether the best plan is slower than one with all the device memory that it likes.
  bool loses_time() const {
    Plan plan = pool_.best->candidate.plan;
    for (const size_t u : blocks_) assign(plan, u, {Policy::keep, {}});
    for (UnitPlan& unit : plan.units) unit.parameters = unit.gradients = unit.states = unit.update_on = Tier::device;
    return pool_.best->candidate.seconds > evaluator_.seconds(std::move(plan)).total * (1 + kLittle);
  }

  /// What moves between device and host together: one part of units that the device updates; null: all parts of those that the
  /// host does, which then the device updates.
  using TierOf = Tier UnitPlan::*;

  /// `plan` with this part of `count` more units on `to`: the first that have it on the other side, or the last.
  static Plan with_part(Plan plan, TierOf part, Tier to, size_t count) {
    const Tier from = to == Tier::device ? Tier::host : Tier::device;
    const auto moves = [&](UnitPlan& unit) {
      if (part) {
        if (unit.update_on == Tier::host || unit.*part != from) return false;
        unit.*part = to;
        return true;
      }
      if (unit.update_on != from || unit.states == Tier::nvme) return false;
      unit.parameters = unit.gradients = unit.states = unit.update_on = to;
      return true;
    };
    const size_t units = plan.units.size();
    for (size_t i = 0; i < units && count > 0; ++i) count -= moves(plan.units[to == Tier::device ? i : units - 1 - i]);
    return plan;
  }

  /// What one step from plan to plan does not reach: slots of gathered units take what blocks could keep, and the other way
  /// round; the device updates all units, or the host. The blocks are mixed anew with each. Whether one became faster.
  bool leaps(int& left) {
    bool better = false;
    const PlannerInput& input = evaluator_.input;
    const auto leap = [&](auto change) {
      Plan plan = pool_.best->candidate.plan;
      change(plan);
      better |= left > 0 && mixed(std::move(plan), left);
    };
    for (const int depth : {0, 1, 2})
      for (const bool sharded : {false, true})
        if (input.prefetch.value_or(depth) == depth && !(sharded && input.strategy))
          leap([&](Plan& plan) {
            plan.prefetch = depth;
            for (UnitPlan& unit : plan.units)
              if (sharded && unit.strategy == Strategy::shard_grad_op) unit.strategy = Strategy::full_shard;
          });
    if (may_update_on_host(input))
      for (const Tiers& tiers : {kOnDevice, Tiers{Tier::device, Tier::device, Tier::host}, kOnHost})
        for (const Update when : {Update::end, Update::just_in_time})
          if (input.update.value_or(when) == when)
            leap([&](Plan& plan) {
              plan.update = when;
              for (UnitPlan& unit : plan.units) {
                if (unit.states == Tier::nvme) continue;
                unit.parameters = input.parameters.value_or(tiers.parameters);
                unit.gradients = input.gradients.value_or(tiers.gradients);
                unit.states = input.states_tier.value_or(tiers.states);
                const bool there = unit.parameters == Tier::host && unit.gradients == Tier::host;
                unit.update_on = there && unit.states == Tier::host ? tiers.gradients : Tier::device;
              }
            });
    return better;
  }

  /// Moves buffers of the best plan and mixes anew with the memory that this leaves; whether it became faster.
  bool moved_and_mixed(TierOf part, Tier to, size_t count, int& left) {
    const PlannerInput& input = evaluator_.input;
    if (part ? (input.*user_tier_of(part)).has_value() : !may_update_on_host(input)) return false;
    const Candidate before = pool_.best->candidate;
    return mixed(with_part(before.plan, part, to, count), left);
  }

  /// Mixes the blocks of `plan`, which need not fit, anew; whether the best plan became faster.
  bool mixed(Plan plan, int& left) {
    const Candidate before = pool_.best->candidate;
    if (plan == before.plan) return false;
    const int evaluated = evaluator_.evaluated();
    Evaluated start = evaluator_.evaluate(std::move(plan));
    if (start.candidate.fits) pool_.consider(start);
    seed(start, {4, 3, 2}, /*corrections=*/2);
    left -= evaluator_.evaluated() - evaluated;
    return pool_.best->candidate.seconds < before.seconds * (1 - kShortWait / 2);
  }

  /// Blocks whose copied activations the compute lane waits for, the longest wait first.
  std::vector<size_t> waited_for() const {
    const Prediction p = evaluator_.predicted(pool_.best->candidate.plan);
    const RankGroup& slowest = p.groups[static_cast<size_t>(p.slowest)];
    const std::vector<Instruction>& list = slowest.schedule.list;
    std::map<size_t, double> waits;
    double free = 0;  // when the compute lane has ended what came before
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].lane != Lane::compute) continue;
      int last = -1;
      for (const int w : list[i].wait)
        if (last < 0 || slowest.spans[static_cast<size_t>(w)].end > slowest.spans[static_cast<size_t>(last)].end)
          last = w;
      const double wait = slowest.spans[i].begin - free;
      if (wait > p.step.total * kShortWait && last >= 0 && list[static_cast<size_t>(last)].part == Part::activations)
        waits[static_cast<size_t>(list[static_cast<size_t>(last)].unit)] += wait;
      free = slowest.spans[i].end;
    }
    std::vector<size_t> units;
    for (const size_t u : blocks_)
      if (waits.contains(u)) units.push_back(u);
    std::ranges::stable_sort(units, [&](size_t a, size_t b) { return waits[a] > waits[b]; });
    return units;
  }

  /// Exchanges the way of a block that compute waits for with that of a block of its kind nearby: the sums stay as they
  /// are, and the copy lies beside other compute. Whether that made the best plan faster.
  bool relieve() {
    const double before = pool_.best->candidate.seconds;
    for (bool better = true; better && relieving_ > 0;) {
      better = false;
      const Plan from = pool_.best->candidate.plan;
      for (const size_t u : waited_for()) {
        const Measured* way = way_in(from, u);
        std::vector<size_t> others;
        for (const size_t v : blocks_)
          if (way && evaluator_.model.units[v].kind == evaluator_.model.units[u].kind && way_in(from, v) &&
              way_in(from, v) != way)
            others.push_back(v);
        std::ranges::stable_sort(others, {}, [&](size_t v) { return v > u ? v - u : u - v; });
        if (others.size() > kNear) others.resize(kNear);
        for (const size_t v : others) {
          if (better || relieving_-- <= 0) break;
          Evaluated e = evaluator_.evaluate(moved(from, Move{0, u, v, way_in(from, v), way}));
          if (e.candidate.fits && is_better(e.candidate, pool_.best->candidate)) better = pool_.consider(std::move(e));
        }
        if (better) break;
      }
    }
    return pool_.best->candidate.seconds < before * (1 - kShortWait);
  }

  static constexpr size_t kEvaluations = 4000, kFew = 8;
  static constexpr size_t kUnchanged = 4;     // blocks at the end that copies of others do not come between
  static constexpr size_t kNear = 4;          // blocks that one may exchange with
  static constexpr int kRounds = 3;           // of exchanges, each followed by the other changes
  static constexpr double kShortWait = 1e-3;  // of a step: less is not looked at
  static constexpr double kLittle = 5e-3;     // of a step: a search that is so near to its bound ends
  static constexpr size_t kSeeds = 2;         // that are climbed from beside the best
  static constexpr double kFarSeed = 0.03;    // slower seeds than this are not
  static constexpr TierOf kTraded[] = {&UnitPlan::gradients, &UnitPlan::states, &UnitPlan::parameters, nullptr};

  Pool& pool_;
  const Evaluator& evaluator_;
  const std::vector<size_t>& blocks_;
  std::map<std::string, std::vector<Measured>> kinds_;
  int relieving_ = evaluations();  // exchanges that may still be evaluated
  std::vector<Candidate> seeds_;   // the knapsack's plans that fit
};

}  // namespace

Plan alternate_offloading(Plan plan, const Evaluator& evaluator, size_t last) {
  std::map<std::string, std::vector<size_t>> kinds;
  for (const size_t u : evaluator.blocks) kinds[evaluator.model.units[u].kind].push_back(u);
  for (auto& [kind, units] : kinds) {
    for (size_t i = 0; i < last && !units.empty() && !plan.units[units.back()].offloads(); ++i) units.pop_back();
    std::vector<UnitPlan> away, near;
    for (const size_t u : units) (plan.units[u].offloads() ? away : near).push_back(plan.units[u]);
    for (size_t i = 0, sent = 0; i < units.size(); ++i) {
      const bool offloads_next = (i + 1) * away.size() / units.size() > sent;
      plan.units[units[i]] = offloads_next ? away[sent] : near[i - sent];
      sent += offloads_next;
    }
  }
  return plan;
}

MixOption mix_option(const ModelSpec& model, const Plan& plan, const Machine& machine, size_t block) {
  const UnitPlan& choice = plan.units[block];
  const CostModel cost(model, plan, machine);
  const int unit = static_cast<int>(block);
  const int64_t sent = offloaded_bytes(model, plan, unit);
  const Footprint& f = model.units[block].cost;
  int64_t held = f.graph(choice.selective()).saved;
  if (choice.recomputes()) {
    held = block > 0 ? model.units[block - 1].cost.out : 0;
    for (const auto& [site, bytes] : f.results) held += choice.policy(site) != Policy::recompute ? bytes : 0;
  }
  return {(choice.recomputes() ? cost.forward_seconds(unit, true) + cost.start_seconds(Op::recompute) : 0) +
              (choice.selective() ? cost.rebuild_seconds(unit) : 0),
          std::max<int64_t>(0, held - sent), sent};
}

void mix_activations(Pool& pool, const Evaluator& evaluator) { Mixer(pool, evaluator).run(); }

void trade_memory(Pool& pool, const Evaluator& evaluator) { Mixer(pool, evaluator).trade(); }

}  // namespace tessera::plan
