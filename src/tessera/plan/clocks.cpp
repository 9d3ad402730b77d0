#include "tessera/plan/clocks.h"

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

}  // namespace tessera::plan
