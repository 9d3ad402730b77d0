#include "tessera/engine/device_progress.h"

#include <atomic>

#include "tessera/device/streams.h"

namespace tessera::engine {

namespace {

constexpr int64_t kApart = 64;  // bytes: a cache line for each lane's word

}  // namespace

std::string describe(const plan::Instruction& in) {
  std::string text(name(in.op));
  if (!in.name.empty()) text += " " + in.name;
  if (in.micro >= 0) text += " (micro-batch " + std::to_string(in.micro) + ")";
  const bool moves = in.op == plan::Op::fetch || in.op == plan::Op::stash;
  if (moves) text += ", " + std::string(name(in.part)) + " on lane " + std::string(name(in.lane));
  std::string groups;
  for (const plan::Comm& c : in.comm)
    if (groups.find(c.group) == groups.npos) groups += (groups.empty() ? " on " : " and ") + c.group;
  return text + groups;
}

std::string describe(const LaneProgress& lane) {
  std::string text = describe(lane.next->instruction());
  if (lane.finished) text += ", after " + describe(lane.finished->instruction());
  return text;
}

DeviceProgress::DeviceProgress() { words_.reserve(plan::kLaneCount * kApart); }

uint32_t* DeviceProgress::word(plan::Lane lane) const {
  return reinterpret_cast<uint32_t*>(words_.at(static_cast<int64_t>(lane) * kApart));
}

void DeviceProgress::begins(plan::Lane lane, ProgramPlace place) {
  const std::lock_guard lock(mutex_);
  LaneState& state = lanes_[static_cast<size_t>(lane)];
  forget_finished(lane);
  state.open.push_back({++state.begun, std::move(place)});
}

void DeviceProgress::given(plan::Lane lane) {
  uint32_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!works_) return;
    LaneState& state = lanes_[static_cast<size_t>(lane)];
    number = state.begun;
    if (!state.open.empty()) state.open.back().given = true;
  }
  if (device::used()->write_word(word(lane), number)) return;
  const std::lock_guard lock(mutex_);
  works_ = false;
}

/// What the word says is done needs no place any more.
void DeviceProgress::forget_finished(plan::Lane lane) {
  LaneState& state = lanes_[static_cast<size_t>(lane)];
  const uint32_t done = std::atomic_ref(*word(lane)).load(std::memory_order_acquire);
  while (!state.open.empty() && static_cast<int32_t>(done - state.open.front().number) >= 0) {
    state.finished = std::move(state.open.front().place);
    state.open.pop_front();
  }
}

std::vector<LaneProgress> DeviceProgress::look() {
  const std::lock_guard lock(mutex_);
  std::vector<LaneProgress> found;
  for (size_t lane = 0; works_ && lane < lanes_.size(); ++lane) {
    LaneState& state = lanes_[lane];
    if (state.begun == 0) continue;
    const auto name = static_cast<plan::Lane>(lane);
    forget_finished(name);
    LaneProgress& one = found.emplace_back(LaneProgress{name, state.finished, std::nullopt});
    if (!state.open.empty()) one.next = state.open.front().place, one.given = state.open.front().given;
  }
  return found;
}

std::string DeviceProgress::text() {
  std::string words;
  for (const LaneProgress& lane : look())
    if (lane.next) words += (words.empty() ? "" : "; ") + describe(lane);
  return words;
}

}  // namespace tessera::engine
