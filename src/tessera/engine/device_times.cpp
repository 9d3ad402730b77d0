#include "tessera/engine/device_times.h"

#include <algorithm>

namespace tessera::engine {

DeviceTimes::DeviceTimes(plan::ProgramPtr program, int64_t step) : program_(std::move(program)), step_(step) {
  const auto& list = program_->schedule.list;
  began_.reserve(list.size()), ended_.reserve(list.size());
  for (const plan::Instruction& in : list) {
    const bool timed = !works_on_host(in.lane);
    began_.emplace_back(timed), ended_.emplace_back(timed);
  }
  start_.record();
}

void DeviceTimes::close(Seconds host) {
  host_ = std::move(host);
  end_.record();
}

DeviceTimes::Seconds DeviceTimes::seconds() const {
  const auto& list = program_->schedule.list;
  Seconds found = host_;
  // The device comes to the schedule some time after the host. No event happens before it was recorded: the largest distance
  // between both is that time where the device was ever out of work, as it is behind each wait of the host.
  double behind = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (works_on_host(list[i].lane)) continue;
    found[i] = {began_[i].seconds_since(start_), ended_[i].seconds_since(start_)};
    behind = std::max(behind, host_[i][1] - found[i][1]);
  }
  for (size_t i = 0; i < list.size(); ++i)
    if (works_on_host(list[i].lane))
      for (double& at : found[i]) at = std::max(0.0, at - behind);
  return found;
}

}  // namespace tessera::engine
