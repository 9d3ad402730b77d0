#include "tessera/engine/lanes.h"

#include <atomic>
#include <latch>
#include <numeric>

#include "tessera/device/streams.h"
#include "tessera/ops/ranges.h"
#include "tessera/plan/compile/issue.h"

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

Lanes::Lanes(const Interpreter& interpreter, StepTimes& times, Store& store, bool by_device)
    : times_(times), store_(store), far_(ops::on_device(store.device())), by_device_(far_ && by_device) {
  for (const plan::Lane lane :
       {plan::Lane::gather, plan::Lane::reduce, plan::Lane::disk, plan::Lane::h2d, plan::Lane::d2h})
    thread(lane);
  if (interpreter.has_stages())
    for (const plan::Lane lane :
         {plan::Lane::send_next, plan::Lane::recv_prev, plan::Lane::send_prev, plan::Lane::recv_next})
      thread(lane);
  if (!far_) return;
  progress_ = std::make_shared<DeviceProgress>();
  under_way_.emplace([progress = progress_] { return progress->text(); });
  if (auto swap = store.swap_on_device()) swap_under_way_.emplace(std::move(swap));
}

/// A gather keeps computing waiting, a reduction the step's end alone.
LaneThread& Lanes::thread(plan::Lane lane) {
  std::unique_ptr<LaneThread>& thread = threads_[static_cast<size_t>(lane)];
  if (!thread)
    thread = std::make_unique<LaneThread>(lane == plan::Lane::gather   ? device::Priority::highest
                                          : lane == plan::Lane::reduce ? device::Priority::high
                                                                       : device::Priority::normal);
  return *thread;
}

void Lanes::drain() {
  std::vector<LaneThread*> threads;
  for (const auto& thread : threads_)
    if (thread) threads.push_back(thread.get());
  std::latch idle(static_cast<std::ptrdiff_t>(threads.size()));
  for (LaneThread* thread : threads) thread->push([&] { idle.count_down(); });
  idle.wait();
}

namespace {

std::vector<plan::SideBySide> order_of(const Lanes::Runs& runs) {
  std::vector<const plan::Schedule*> lists;
  for (const auto& run : runs) lists.push_back(&run->schedule());
  return plan::issued_side_by_side(lists, runs.front()->plan().prefetch);
}

}  // namespace

void Lanes::begin(const Runs& runs) {
  size_t count = 0;
  for (const auto& run : runs) run->first = static_cast<int>(count), count += run->schedule().list.size();
  events_.reset(count);
  if (by_device_) {
    for (const auto& run : runs) run->issued_before.assign(run->schedule().list.size(), -1);
    int before = -1;
    for (const auto& [r, i] : order_of(runs))
      if (const auto at = static_cast<size_t>(i); plan::sends_on_device(runs[r]->schedule().list[at]))
        runs[r]->issued_before[at] = std::exchange(before, runs[r]->first + i);
  }
  device::label("");
  store_.rest(nullptr);
  if (marks_.size() < count) marks_.resize(count), prepared_.resize(count);
  start_.record();
}

void Lanes::run(const std::shared_ptr<ScheduleRun>& shared, int begin, int end) {
  const ops::AttentionScope scope(shared->plan().attention, times_.attention());
  for (int i = begin; i < end; ++i) advance(shared, i);
}

void Lanes::run_to_norms(const Runs& runs) {
  const ops::AttentionScope scope(runs.front()->plan().attention, times_.attention());
  for (const auto& [r, i] : order_of(runs))
    if (i <= runs[r]->program->norm) advance(runs[r], i);
}

void Lanes::advance(const std::shared_ptr<ScheduleRun>& shared, int index) {
  const plan::Instruction& in = shared->schedule().list[index];
  const auto here = [this](const auto& act) {  // on the compute thread
    try {
      act();
    } catch (...) {
      events_.fail(std::current_exception());
      throw;
    }
  };
  if (in.lane != plan::Lane::compute) return here([&] { issue(shared, index); });
  events_.await(in.wait, shared->first);
  await_turn(*shared, index);
  here([&] { follow(*shared, in), perform(*shared, index); });
}

void Lanes::issue(const std::shared_ptr<ScheduleRun>& shared, int index) {
  const bool prepared = shared->by->prepare(*shared, index);
  const auto at = static_cast<size_t>(shared->first + index);
  // What it gets may have been freed since the last instruction, by a thread that makes samples on this stream.
  if (prepared) prepared_[at].record();
  // Each lane shares ownership of the run: after a failure it may outlive the call.
  thread(shared->schedule().list[index].lane).push([this, shared, index, at, prepared] {
    try {
      const plan::Instruction& own = shared->schedule().list[index];
      events_.await(own.wait, shared->first);
      await_turn(*shared, index);
      follow(*shared, own);
      if (prepared) prepared_[at].order();
      perform(*shared, index);
    } catch (...) {
      events_.fail(std::current_exception());
    }
  });
}

/// [Note: lanes are streams] On a device an instruction is done for the host when it has been given to its lane's stream. The
/// streams are ordered by marks: here, what the lane is given next comes after the instructions that this one waits for. A
/// lane that works on the host waits for them itself. What was before the schedule is on the compute lane's stream, or was
/// joined to it (join).
void Lanes::follow(ScheduleRun& run, const plan::Instruction& in) {
  if (far_) device::label(std::string(name(in.op)) + (in.name.empty() ? "" : " " + in.name));
  const bool host = works_on_host(in.lane);
  const auto after = [&](const device::Mark& mark) { host ? mark.await() : mark.order(); };
  bool& begun = run.begun[static_cast<size_t>(in.lane)];
  if (!std::exchange(begun, true) && in.lane != plan::Lane::compute) after(start_);
  for (const int earlier : in.wait)  // start_ is behind what a graph has done
    if (earlier >= (run.capturing ? 0 : run.captured) && run.schedule().list[earlier].lane != in.lane)
      after(marks_[static_cast<size_t>(run.first + earlier)]);
}

/// An instruction that gives messages to streams does it after the one before it in the list has: [Note: one order of issue].
void Lanes::await_turn(const ScheduleRun& run, int index) {
  if (!by_device_) return;
  const int before = run.issued_before[static_cast<size_t>(index)];
  if (before >= 0) events_.await(std::span(&before, 1));
}

void Lanes::perform(ScheduleRun& run, int index) {
  const plan::Instruction& in = run.schedule().list[index];
  const bool enqueues = far_ && !works_on_host(in.lane);
  const double t0 = run.times->now();  // an injected delay counts as the instruction's time
  const bool own = !run.capturing;     // a graph would repeat its times and its progress
  if (enqueues && own) progress_->begins(in.lane, {run.program, run.step, index});
  if (own) run.times->began(index);
  if (whereabouts_) whereabouts_(run.step, index, in, false);
  run.by->execute(run, index);
  if (own) run.times->ended(index, t0);
  if (enqueues && own) progress_->given(in.lane);
  const auto at = static_cast<size_t>(run.first + index);
  marks_[at].record();  // last: who waits for it waits for these too
  if (!device::has_streams()) marks_[at].await();
  if (whereabouts_) whereabouts_(run.step, index, in, true);
  run.by->check(run, index);
  events_.done(run.first + index);
}

void Lanes::end(const Runs& runs) {
  events_.await_all();
  if (!far_) return;
  for (const auto& run : runs) join(*run, run->captured, static_cast<int>(run->schedule().list.size()));
  end_.record();
  store_.rest(&end_);
}

/// What comes after instructions [begin, end) comes after all of their lanes.
void Lanes::join(const ScheduleRun& run, int begin, int end) {
  device::label("");
  std::array<int, plan::kLaneCount> last;
  last.fill(-1);
  const auto& list = run.schedule().list;
  for (int i = begin; i < end; ++i) last[static_cast<size_t>(list[static_cast<size_t>(i)].lane)] = i;
  for (const int i : last)
    if (i >= 0 && list[static_cast<size_t>(i)].lane != plan::Lane::compute)
      marks_[static_cast<size_t>(run.first + i)].order();
}

void Lanes::capture(const std::shared_ptr<ScheduleRun>& shared, int end) {
  start_.record();  // within the graph, for the lanes
  run(shared, 0, end);
  std::vector<int> all(static_cast<size_t>(end));
  std::iota(all.begin(), all.end(), 0);
  events_.await(all);
  join(*shared, 0, end);
}

/// Events of the capture cannot be waited for.
void Lanes::repeated(ScheduleRun& run, int end) {
  run.captured = end;
  run.begun.fill(false);
  start_.record();
  if (std::exchange(run.capturing, false)) return;  // its lanes have told
  for (int i = 0; i < end; ++i) events_.done(run.first + i);
}

}  // namespace tessera::engine
