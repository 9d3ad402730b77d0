#include "tessera/plan/order/races.h"

#include <algorithm>
#include <array>

#include "tessera/plan/clocks.h"
#include "tessera/plan/order/accesses.h"

namespace tessera::plan {

namespace {

/// The last uses of some bytes, by lane.
struct Uses {
  Clock reads = kNever, writes = kNever;
};

/// One kind of memory, cut where any access begins or ends.
class Cells {
 public:
  void cut(const Access& access) { cuts_.insert(cuts_.end(), {access.begin, access.end}); }
  void done() {
    std::sort(cuts_.begin(), cuts_.end());
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
    cells_.resize(cuts_.size());
  }
  template <class Each>
  void each(const Access& access, const Each& each) {
    auto cell = std::lower_bound(cuts_.begin(), cuts_.end(), access.begin) - cuts_.begin();
    for (; cuts_[cell] < access.end; ++cell) each(cells_[cell]);
  }

 private:
  std::vector<int64_t> cuts_;
  std::vector<Uses> cells_;  // of the bytes from each cut to the next
};

class Search {
 public:
  Search(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank)
      : list_(schedule.list), clocks_(schedule.list), walk_(model, plan, rank) {
    for (const Instruction& in : list_) effects_.push_back(walk_.run(in));
    for (const Effects& effects : effects_)
      for (const auto* accesses : {&effects.accesses, &effects.frees})
        for (const Access& access : *accesses) cells(access).cut(access);
    for (Cells& cells : memory_) cells.done();
  }

  std::vector<Race> run() {
    for (int i = 0; i < static_cast<int>(list_.size()); ++i) {
      if (effects_[i].takes) compare(freed_, i, "memory taken at its place");
      for (const Access& access : effects_[i].accesses) use(access, i);
      for (const Access& access : effects_[i].frees) free(access);
      // what it took for itself is free again when it ends
      if (touches_activations(list_[i])) freed_[static_cast<int>(Lane::compute)] = i;
    }
    return std::move(races_);
  }

 private:
  Cells& cells(const Access& access) { return memory_[static_cast<int>(access.memory)]; }

  void use(const Access& access, int i) {
    Clock earlier = kNever;
    const auto lane = static_cast<size_t>(list_[i].lane);
    cells(access).each(access, [&](Uses& uses) {
      join(earlier, uses.writes);
      if (access.writes) join(earlier, uses.reads);
      (access.writes ? uses.writes : uses.reads)[lane] = i;
    });
    compare(earlier, i, walk_.describe(access));
  }

  void free(const Access& access) {
    cells(access).each(access, [&](Uses& uses) {
      join(freed_, uses.reads);
      join(freed_, uses.writes);
      uses = {};
    });
  }

  /// Reports what of `earlier` is not done when `i` starts.
  void compare(const Clock& earlier, int i, const std::string& memory) {
    const size_t own = static_cast<size_t>(list_[i].lane);
    for (size_t lane = 0; lane < earlier.size(); ++lane)
      if (lane != own && earlier[lane] > clocks_.at(i)[lane]) races_.push_back({earlier[lane], i, memory});
  }

  const std::vector<Instruction>& list_;
  const Clocks clocks_;
  AccessWalk walk_;
  std::vector<Effects> effects_;
  std::array<Cells, kMemories> memory_;
  Clock freed_ = kNever;  // by lane: the last use of memory that is free
  std::vector<Race> races_;
};

std::string describe(const Instruction& in, int i) {
  std::string text(name(in.op));
  if (!in.name.empty()) text += " " + in.name;
  if (in.micro >= 0) text += ", micro-batch " + std::to_string(in.micro);
  return text + " (i " + std::to_string(i) + ", " + std::string(name(in.lane)) + ")";
}

}  // namespace

std::vector<Race> find_races(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank) {
  return Search(model, plan, schedule, rank).run();
}

std::string to_string(const Race& race, const Schedule& schedule) {
  return describe(schedule.list[race.second], race.second) + " does not wait for " +
         describe(schedule.list[race.first], race.first) + ": both use " + race.memory;
}

}  // namespace tessera::plan
