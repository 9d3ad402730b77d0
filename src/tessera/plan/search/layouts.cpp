#include "tessera/plan/search/layouts.h"

#include <algorithm>

#include "tessera/plan/token_shares.h"

namespace tessera::plan {

namespace {

/// A number of the model that the product of some axes must divide.
struct Divides {
  std::vector<Axis> axes;
  const char* what;
  int64_t LayoutBounds::*number;
  const char* why;
};
const Divides kDivides[] = {
    {{Axis::sp, Axis::tp},
     "heads",
     &LayoutBounds::heads,
     "each of these ranks computes the same number of heads; cp has no such bound"},
    {{Axis::tp},
     "features (their greatest common divisor)",
     &LayoutBounds::features,
     "each tp rank computes the same number of features of the sharded linears"},
};

/// "sp = 2 or sp = 4": the nearest divisors of `number` below and above `value`, for an axis whose rule also includes
/// `rest` ranks of other axes.
std::string nearest_values(std::string_view axis, int64_t number, int64_t value, int64_t rest) {
  const auto fits = [&](int64_t v) { return number % (v * rest) == 0; };
  int64_t below = value, above = value;
  while (below > 0 && !fits(below)) --below;
  while (above <= number && !fits(above)) ++above;
  const auto text = [&](int64_t v) { return std::string(axis) + " = " + std::to_string(v); };
  if (below == 0) return "no value of " + std::string(axis) + " does";
  return above > number ? text(below) : text(below) + " or " + text(above);
}

std::optional<Conflict> undivided(const Divides& rule, const Mesh& mesh, int64_t number) {
  int64_t product = 1;
  std::string names;
  for (Axis axis : rule.axes) {
    product *= mesh[axis];
    if (mesh[axis] > 1)
      names += (names.empty() ? "" : " x ") + std::string(axis_name(axis)) + " = " + std::to_string(mesh[axis]);
  }
  if (number % product == 0) return std::nullopt;
  std::string hint;
  for (Axis axis : rule.axes)
    if (mesh[axis] > 1)
      hint += (hint.empty() ? "" : ", or ") + nearest_values(axis_name(axis), number, mesh[axis], product / mesh[axis]);
  return Conflict{names + " does not divide the model's " + std::to_string(number) + " " + rule.what,
                  "use " + hint + ": " + rule.why};
}

int ranks_a_sample(const Mesh& mesh) { return mesh[Axis::pp] * sequence_size(mesh); }

bool faster(const Choice& a, const Choice& b) {
  if (a.fits != b.fits) return a.fits;
  return a.fits ? a.fastest < b.fastest : a.memory.peak < b.memory.peak;
}

class LayoutSearch {
 public:
  LayoutSearch(const LayoutBounds& bounds, const PlannerInput& input, const std::function<OnMesh(const Mesh&)>& on_mesh)
      : bounds_(bounds), input_(input), on_mesh_(on_mesh) {}

  std::vector<Layout> run(int finalists) {
    double before = 0;  // of the fastest mesh with fewer ranks a sample
    const std::vector<Mesh> ways = sample_sharings(bounds_, input_.global_batch);
    for (size_t i = 0; i < ways.size();) {
      const int degree = ranks_a_sample(ways[i]);
      for (; i < ways.size() && ranks_a_sample(ways[i]) == degree; ++i) try_soon(ways[i]);
      const double best = best_seconds();
      if (before > 0 && best >= before) break;
      before = best;
    }
    if (before > 0) try_higher_degrees(ways);
    std::vector<Mesh> last;  // the fastest meshes by ranks a sample
    for (const Layout& layout : sorted())
      if (static_cast<int>(last.size()) < finalists && layout.choice.fits) last.push_back(layout.mesh);
    for (const Mesh& mesh : last) plan_sharded(mesh);
    for (int i = 0; i < kMoreFinalists; ++i) {
      const std::optional<Mesh> mesh = of_another_degree();
      if (!mesh) break;
      plan_sharded(*mesh);
    }
    return sorted();
  }

 private:
  static Mesh unsharded(Mesh mesh) {
    mesh[Axis::dp_shard] = mesh.dp_size();
    mesh[Axis::dp_replicate] = 1;
    return mesh;
  }

  /// Plans with the first plan that fits, at the lowest degree of sharding that fits.
  void try_soon(const Mesh& mesh) {
    for (const Mesh& sharded : shardings(mesh, bounds_.node))
      if (plan(sharded, true)) return;
  }

  /// In full, with all degrees of sharding.
  void plan_sharded(const Mesh& mesh) {
    for (const Mesh& sharded : shardings(unsharded(mesh), bounds_.node)) plan(sharded, false);
  }

  /// First plans that fit say little of the time that a plan made for the mesh takes: they compute again what more ranks a
  /// sample have room for. So of the fastest mesh each axis is doubled further, while a step with all the memory it could
  /// have would be faster than what was found.
  void try_higher_degrees(const std::vector<Mesh>& ways) {
    const Mesh fastest = unsharded(sorted().front().mesh);
    for (const Axis axis : kSharing)
      for (int times = 2; times <= kMostTimes; times *= 2) {
        const auto way = std::ranges::find_if(ways, [&](const Mesh& mesh) {
          return std::ranges::all_of(
              kSharing, [&](Axis other) { return mesh[other] == fastest[other] * (other == axis ? times : 1); });
        });
        if (way == ways.end()) break;
        if (found_on(*way)) continue;
        if (least_seconds(*way) >= best_seconds()) break;
        try_soon(*way);
      }
  }

  /// Seconds of a step with as much memory as it likes.
  double least_seconds(const Mesh& mesh) const {
    const OnMesh there = on_mesh_(mesh);
    PlannerInput input = input_;
    input.budget = input.host_budget = 0, input.first_that_fits = true;
    return choose(there.measured.model, mesh, input, there.measured.machine).seconds;
  }

  /// The fastest of the meshes that have a degree of an axis which none that was planned in full has, and that may be faster
  /// than all of these.
  std::optional<Mesh> of_another_degree() {
    const auto planned_with = [&](Axis axis, int degree) {
      return std::ranges::any_of(found_, [&](const Layout& l) { return l.planned && l.mesh[axis] == degree; });
    };
    for (const Layout& layout : sorted()) {
      const Mesh& mesh = layout.mesh;
      if (!layout.choice.fits || layout.planned || std::ranges::find(hopeless_, mesh) != hopeless_.end()) continue;
      if (std::ranges::all_of(kSharing, [&](Axis axis) { return planned_with(axis, mesh[axis]); })) continue;
      if (least_seconds(mesh) < best_seconds()) return mesh;
      hopeless_.push_back(mesh);
    }
    return std::nullopt;
  }

  /// Whether the mesh was tried, with any degree of sharding.
  bool found_on(const Mesh& mesh) const {
    return std::ranges::any_of(found_, [&](const Layout& l) { return unsharded(l.mesh) == unsharded(mesh); });
  }

  bool plan(const Mesh& mesh, bool soon) {
    const OnMesh there = on_mesh_(mesh);
    PlannerInput input = input_;
    input.budget = there.budget, input.host_budget = there.host_budget;
    input.first_that_fits = soon;
    if (soon && !input.strategy && mesh.shard_size() > 1) input.strategy = Strategy::full_shard;
    Choice choice = choose(there.measured.model, mesh, input, there.measured.machine);
    choice.candidates.clear();
    const bool fits = choice.fits;
    const auto known = std::find_if(found_.begin(), found_.end(), [&](const Layout& l) { return l.mesh == mesh; });
    if (known == found_.end())
      found_.push_back({mesh, std::move(choice), !soon});
    else
      *known = {mesh, std::move(choice), !soon};
    return fits;
  }

  double best_seconds() const {
    double best = 0;
    for (const Layout& layout : found_)
      if (layout.choice.fits && (best == 0 || layout.choice.fastest < best)) best = layout.choice.fastest;
    return best;
  }

  std::vector<Layout> sorted() const {
    std::vector<Layout> all = found_;
    std::stable_sort(all.begin(), all.end(),
                     [](const Layout& a, const Layout& b) { return faster(a.choice, b.choice); });
    return all;
  }

  static constexpr Axis kSharing[] = {Axis::cp, Axis::sp, Axis::tp, Axis::pp};
  static constexpr int kMostTimes = 8;      // the fastest mesh's degree of an axis
  static constexpr int kMoreFinalists = 6;  // of degrees that the fastest meshes lack

  const LayoutBounds& bounds_;
  const PlannerInput& input_;
  const std::function<OnMesh(const Mesh&)>& on_mesh_;
  std::vector<Layout> found_;
  std::vector<Mesh> hopeless_;  // whose steps no memory makes faster than the fastest
};

}  // namespace

std::optional<Conflict> conflict(const Mesh& mesh, const LayoutBounds& bounds) {
  for (const Divides& rule : kDivides)
    if (auto found = undivided(rule, mesh, bounds.*rule.number)) return found;
  if (mesh[Axis::pp] > bounds.units)
    return Conflict{"pp = " + std::to_string(mesh[Axis::pp]) + " pipeline stages, and the model has " +
                        std::to_string(bounds.units) + " units; each stage needs one",
                    "use pp = " + std::to_string(bounds.units) + " or less"};
  const int64_t ranks = sequence_size(mesh);
  if (bounds.tokens > 0 && bounds.tokens < ranks)
    return Conflict{"cp x sp x tp = " + std::to_string(ranks) + " ranks share the tokens of a sample, and it has " +
                        std::to_string(bounds.tokens),
                    "use at most " + std::to_string(bounds.tokens) + " of them, or larger clips"};
  return std::nullopt;
}

std::vector<Mesh> sample_sharings(const LayoutBounds& bounds, int64_t global_batch) {
  std::vector<Mesh> result;
  const auto divisors = [](int n) {
    std::vector<int> found;
    for (int d = 1; d <= n; ++d)
      if (n % d == 0) found.push_back(d);
    return found;
  };
  for (int pp : divisors(bounds.world))
    for (int cp : divisors(bounds.world / pp))
      for (int sp : divisors(bounds.world / pp / cp))
        for (int tp : divisors(bounds.world / pp / cp / sp)) {
          Mesh mesh;
          mesh[Axis::pp] = pp, mesh[Axis::cp] = cp, mesh[Axis::sp] = sp, mesh[Axis::tp] = tp;
          mesh[Axis::dp_shard] = bounds.world / (pp * cp * sp * tp);
          const bool within_node = bounds.node <= 0 || sp * tp <= bounds.node;
          if (within_node && mesh.dp_size() <= global_batch && !conflict(mesh, bounds)) result.push_back(mesh);
        }
  std::stable_sort(result.begin(), result.end(),
                   [](const Mesh& a, const Mesh& b) { return ranks_a_sample(a) < ranks_a_sample(b); });
  return result;
}

std::vector<Mesh> shardings(const Mesh& mesh, int node) {
  std::vector<Mesh> result;
  const int dp = mesh.dp_size(), inside = sequence_size(mesh);
  for (int nodes : {1, 4}) {
    const int shard = node > 0 ? std::max(1, nodes * node / inside) : dp;
    if (shard >= dp || dp % shard != 0) continue;
    Mesh cut = mesh;
    cut[Axis::dp_shard] = shard, cut[Axis::dp_replicate] = dp / shard;
    if (std::find(result.begin(), result.end(), cut) == result.end()) result.push_back(cut);
  }
  Mesh all = mesh;
  all[Axis::dp_shard] = dp, all[Axis::dp_replicate] = 1;
  result.push_back(all);
  return result;
}

std::vector<Layout> search_layouts(const LayoutBounds& bounds, const PlannerInput& input,
                                   const std::function<OnMesh(const Mesh&)>& on_mesh, int finalists) {
  return LayoutSearch(bounds, input, on_mesh).run(finalists);
}

}  // namespace tessera::plan
