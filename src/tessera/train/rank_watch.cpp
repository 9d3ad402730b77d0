#include "tessera/train/rank_watch.h"

#include <chrono>
#include <utility>

#include "tessera/base/log.h"

namespace tessera::train {

namespace {

constexpr int kDeviceActivity = comm::kActivities - 1;  // of the GPU, in a message that it was given
static_assert(plan::kLaneCount <= kDeviceActivity, "the status has no place for a lane");

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// What a sample costs its rank. (`norm` waits for the others; updates cost the same however many samples there are.)
bool is_work(plan::Op op) {
  using plan::Op;
  return op == Op::forward || op == Op::loss || op == Op::recompute || op == Op::backward || op == Op::weight_grad;
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
    if (!waits) return heartbeat_.done(kDeviceActivity);
    int64_t step = 0;
    {
      const std::lock_guard hold(lock_);
      step = step_;
    }
    heartbeat_.at(step, -1, doing + " on the GPU", kDeviceActivity);
    heartbeat_.waits(true);
  });
}

void RankWatch::follow(engine::Executor& executor) {
  executor.on_instruction(
      [this](int64_t step, int index, const plan::Instruction& in, bool ends) { instruction(step, index, in, ends); });
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
  return "at step " + std::to_string(step_) + words;
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

double RankWatch::take_work() { return std::exchange(work_, 0.0); }

void RankWatch::instruction(int64_t step, int index, const plan::Instruction& in, bool ends) {
  const bool counts = in.lane == plan::Lane::compute && is_work(in.op);
  if (ends) {
    if (counts) work_ += now() - began_;
    heartbeat_.done(static_cast<int>(in.lane));
    note(in.lane, step, "");
    return;
  }
  // The main thread waits for the lanes now, which is no work that it could hang in.
  if (in_phase_.exchange(false)) {
    heartbeat_.done();
    note(plan::Lane::compute, step, "");
  }
  if (counts) began_ = now();
  heartbeat_.at(step, index, describe(in), static_cast<int>(in.lane));
  note(in.lane, step, describe(in));
  if (injected_fault_) injected_fault_->at(step, in);
}

}  // namespace tessera::train
