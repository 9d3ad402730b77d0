#include "tessera/train/rank_watch.h"

#include <chrono>
#include <utility>

#include "tessera/base/log.h"
#include "tessera/device/streams.h"

namespace tessera::train {

namespace {

static_assert(plan::kLaneCount == comm::kLanes, "the status has a place for each lane");

constexpr std::chrono::milliseconds kLooks(200);  // at the device

/// "backward blocks.3 (micro-batch 0), after recompute blocks.3 (micro-batch 0)"
std::string lane_text(const engine::LaneProgress& lane) {
  std::string text = describe(lane.next->instruction());
  if (lane.finished) text += ", after " + describe(lane.finished->instruction());
  return text;
}

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

RankWatch::RankWatch(const comm::Rendezvous& place)
    : heartbeat_(place), injected_fault_(injected_fault(place.rank, place.attempt)) {}

void RankWatch::follow(comm::Comm& comm) {
  comm.watch([this](bool waits) { heartbeat_.waits(waits); });
}

void RankWatch::follow_device(comm::Comm& comm) {
  comm.watch_device([this](const std::string& doing, bool waits) {
    if (!waits) return heartbeat_.done(comm::kInMessage);
    int64_t step = 0;
    {
      const std::lock_guard hold(lock_);
      step = step_;
    }
    heartbeat_.at(step, -1, doing + " on the GPU", comm::kInMessage);
    heartbeat_.waits(true);
  });
}

void RankWatch::follow(engine::Engine& engine) {
  engine::Executor& executor = engine.executor();
  executor.on_instruction(
      [this](int64_t step, int index, const plan::Instruction& in, bool ends) { instruction(step, index, in, ends); });
  progress_ = executor.progress();
  swap_ = engine.store().swap_on_device();
  if (progress_ && !thread_.joinable()) thread_ = std::thread([this] { look_at_device(); });
}

RankWatch::~RankWatch() {
  {
    const std::lock_guard hold(lock_);
    ending_ = true;
  }
  ends_.notify_all();
  if (thread_.joinable()) thread_.join();
}

/// A collective that the device was given waits there for others, and says so. One that the host has not given yet does not:
/// others wait for this rank.
void RankWatch::look_at_device() {
  struct Told {
    int64_t step = -1;
    int index = -1;
    bool given = false;
    bool operator==(const Told&) const = default;
  };
  std::array<Told, comm::kLanes> told;
  std::unique_lock hold(lock_);
  while (!ends_.wait_for(hold, kLooks, [this] { return ending_; })) {
    hold.unlock();
    for (const engine::LaneProgress& lane : progress_->look()) {
      const Told now = lane.next ? Told{lane.next->step, lane.next->index, lane.given} : Told{};
      const int activity = comm::kOnDevice + static_cast<int>(lane.lane);
      if (std::exchange(told[static_cast<size_t>(lane.lane)], now) == now) continue;
      if (!lane.next) {
        heartbeat_.done(activity);
        continue;
      }
      heartbeat_.at(now.step, now.index, lane_text(lane) + ", on the GPU", activity);
      heartbeat_.waits(now.given && !lane.next->instruction().comm.empty());
    }
    hold.lock();
  }
}

std::string RankWatch::on_device() const {
  std::string words;
  if (!progress_) return words;
  for (const engine::LaneProgress& lane : progress_->look())
    if (lane.next) words += (words.empty() ? "" : "; ") + lane_text(lane);
  if (const std::string swap = swap_ ? swap_() : ""; !swap.empty()) words += (words.empty() ? "" : "; ") + swap;
  return words;
}

void RankWatch::note(plan::Lane lane, int64_t step, std::string what) {
  const std::lock_guard hold(lock_);
  step_ = step;
  doing_[static_cast<size_t>(lane)] = std::move(what);
}

std::string RankWatch::where() const {
  const std::lock_guard hold(lock_);
  std::string words;
  for (const std::string& what : doing_)
    if (!what.empty()) words += (words.empty() ? ": " : "; ") + what;
  const std::string device = on_device();
  if (!device.empty()) words += (words.empty() ? ": on the GPU " : "; on the GPU ") + device;
  return "at step " + std::to_string(step_) + words;
}

std::optional<UserError> RankWatch::device_failure(device::DriverWatch* driver) {
  const std::string fault = device::used() ? device::used()->fault() : "";
  if (fault.empty()) return std::nullopt;
  constexpr std::chrono::milliseconds kUntilTold(500);
  std::string what = "the GPU failed: " + fault;
  if (const std::string xid = driver ? driver->take_fault(kUntilTold) : ""; !xid.empty()) what += ", " + xid;
  if (const std::string name = device::last_operator(); !name.empty()) what += ", in " + name;
  what += "; " + where();
  heartbeat_.fails(what);
  return UserError(Exit::rank_lost, "device", what,
                   "start again to resume from the newest checkpoint; if it recurs at the same place, TESSERA_SERIAL=1 "
                   "names the operator");
}

void RankWatch::tell(const UserError& error) const {
  if (error.code() == Exit::rank_lost) log::error("another rank was lost while this one was " + where());
  if (error.code() == Exit::disk || error.code() == Exit::memory) log::error("failed " + where());
}

void RankWatch::phase(int64_t step, const std::string& what) {
  heartbeat_.at(step, -1, what);
  note(plan::Lane::compute, step, what);
  in_phase_ = true;
}

void RankWatch::instruction(int64_t step, int index, const plan::Instruction& in, bool ends) {
  if (ends) {
    heartbeat_.done(static_cast<int>(in.lane));
    note(in.lane, step, "");
    return;
  }
  // The main thread waits for the lanes now, which is no work that it could hang in.
  if (in_phase_.exchange(false)) {
    heartbeat_.done();
    note(plan::Lane::compute, step, "");
  }
  heartbeat_.at(step, index, describe(in), static_cast<int>(in.lane));
  note(in.lane, step, describe(in));
  if (injected_fault_) injected_fault_->at(step, in);
}

}  // namespace tessera::train
