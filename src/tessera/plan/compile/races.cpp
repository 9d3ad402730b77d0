#include "tessera/plan/compile/races.h"

#include <algorithm>
#include <array>

#include "tessera/plan/unit_sizes.h"

namespace tessera::plan {

Clocks::Clocks(const std::vector<Instruction>& list) {
  for (const Instruction& in : list) add(in.lane, in.wait);
}

void Clocks::add(Lane lane, std::span<const int> wait) {
  Clock done = kNever;
  const auto follow = [&](int earlier) {
    join(done, done_[earlier]);
    int& own = done[static_cast<int>(lanes_[earlier])];
    own = std::max(own, earlier);
  };
  int& last = last_[static_cast<int>(lane)];
  if (last >= 0) follow(last);
  for (const int earlier : wait) follow(earlier);
  last = static_cast<int>(lanes_.size());
  lanes_.push_back(lane);
  done_.push_back(done);
}

namespace {

/// The last uses of some bytes, by lane.
struct LastUses {
  Clock reads = kNever, writes = kNever;
};

/// The bytes of one memory, cut where any access begins or ends.
class Cells {
 public:
  void cut(const Access& access) { cuts_.insert(cuts_.end(), {access.at, access.at + access.bytes}); }
  void done() {
    std::sort(cuts_.begin(), cuts_.end());
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
    cells_.resize(cuts_.size());
  }
  template <class Each>
  void each(const Access& access, const Each& each) {
    auto cell = std::lower_bound(cuts_.begin(), cuts_.end(), access.at) - cuts_.begin();
    for (; cuts_[cell] < access.at + access.bytes; ++cell) each(cells_[cell]);
  }

 private:
  std::vector<int64_t> cuts_;
  std::vector<LastUses> cells_;  // of the bytes from each cut to the next
};

class Search {
 public:
  Search(const std::vector<Step>& steps, const Clocks& clocks) : steps_(steps), clocks_(clocks) {
    for (const Step& step : steps)
      for (const Use& use : step.uses)
        if (has_range(use)) cells(use).cut(use);
    for (Cells& cells : memory_) cells.done();
  }

  std::vector<Clash> run() {
    for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
      const Step& step = steps_[i];
      if (step.touches_activations || step.takes_memory) compare(freed_, i, nullptr);
      for (const Use& use : step.uses)
        if (use.act != Act::lack) apply(use, i);
      // what it took for itself is free again when it ends
      if (step.touches_activations) freed_[static_cast<size_t>(Lane::compute)] = i;
    }
    return std::move(found_);
  }

 private:
  static bool has_range(const Use& use) { return use.memory != Memory::own && use.bytes > 0; }
  Cells& cells(const Access& access) { return memory_[static_cast<size_t>(access.memory)]; }

  void apply(const Use& use, int i) {
    Clock earlier = kNever;
    const auto lane = static_cast<size_t>(steps_[i].lane);
    const auto each = [&](LastUses& last) {
      join(earlier, last.writes);
      if (use.writes) join(earlier, last.reads);
      (use.writes ? last.writes : last.reads)[lane] = i;
    };
    if (use.memory != Memory::own) {
      if (has_range(use)) cells(use).each(use, each);
      return compare(earlier, i, &use);
    }
    LastUses& own = own_[use.key];
    each(own);
    compare(earlier, i, &use);
    if (use.act != Act::end) return;
    if (steps_[i].touches_activations) join(freed_, own.reads), join(freed_, own.writes);
    own = {};
  }

  /// Reports what of `earlier` is not done when `i` starts.
  void compare(const Clock& earlier, int i, const Use* use) {
    const auto own = static_cast<size_t>(steps_[i].lane);
    for (size_t lane = 0; lane < earlier.size(); ++lane)
      if (lane != own && earlier[lane] > clocks_.at(i)[lane]) found_.push_back({earlier[lane], i, use});
  }

  const std::vector<Step>& steps_;
  const Clocks& clocks_;
  std::array<Cells, 4> memory_;
  ByThing<LastUses> own_;  // of things with memory of their own
  Clock freed_ = kNever;   // by lane: the last use of memory that is free
  std::vector<Clash> found_;
};

std::string describe(const Instruction& in, int i) {
  std::string text(name(in.op));
  if (!in.name.empty()) text += " " + in.name;
  if (in.micro >= 0) text += ", micro-batch " + std::to_string(in.micro);
  return text + " (i " + std::to_string(i) + ", " + std::string(name(in.lane)) + ")";
}

}  // namespace

std::vector<Clash> clashes(const std::vector<Step>& steps, const Clocks& clocks) { return Search(steps, clocks).run(); }

std::vector<Race> find_races(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank) {
  const UnitSizes sizes(model, plan, rank);
  std::set<int> units;
  for (const Instruction& in : schedule.list)
    if (in.part != Part::message && in.unit >= 0) units.insert(in.unit);
  EffectWalk walk(std::move(units), [&](int unit) { return sizes.layout(unit).grad_shard * size_of(DType::f32); });
  std::vector<Step> steps;
  for (int i = 0; i < static_cast<int>(schedule.list.size()); ++i)
    steps.push_back(walk.run(i, schedule.list[i], schedule.list[i].wait));
  std::vector<Race> races;
  for (const Clash& clash : clashes(steps, Clocks(schedule.list))) {
    const Use* use = clash.use;
    std::string memory = "memory taken at its place";
    if (use) memory = describe(use->key.thing, use->key.unit < 0 ? "" : model.units[use->key.unit].name);
    if (use && use->memory != Memory::own)
      memory += ", " + std::string(name(use->memory)) + " [" + std::to_string(use->at) + ", " +
                std::to_string(use->at + use->bytes) + ")";
    races.push_back({clash.first, clash.second, memory});
  }
  return races;
}

std::string to_string(const Race& race, const Schedule& schedule) {
  return describe(schedule.list[race.second], race.second) + " does not wait for " +
         describe(schedule.list[race.first], race.first) + ": both use " + race.memory;
}

}  // namespace tessera::plan
