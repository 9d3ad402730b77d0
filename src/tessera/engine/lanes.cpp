#include "tessera/engine/lanes.h"

#include <latch>

#include "tessera/ops/ranges.h"
#include "tessera/plan/rules/issue.h"

namespace tessera::engine {

Lanes::Lanes(Interpreter& interpreter, StepTimes& times, Store& store, bool by_device)
    : interpreter_(interpreter),
      times_(times),
      store_(store),
      far_(ops::on_device(store.device())),
      by_device_(far_ && by_device) {
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

void Lanes::begin(ScheduleRun& run) {
  const size_t count = run.schedule().list.size();
  events_.reset(count);
  if (by_device_) {
    run.issued_before.assign(count, -1);
    int before = -1;
    for (const int i : plan::issue_order(run.schedule()))
      run.issued_before[static_cast<size_t>(i)] = std::exchange(before, i);
  }
  device::label("");
  store_.rest(nullptr);
  if (marks_.size() < count) marks_.resize(count), prepared_.resize(count);
  start_.record();
}

void Lanes::run(const std::shared_ptr<ScheduleRun>& shared, int begin, int end) {
  const auto& list = shared->schedule().list;
  const ops::AttentionScope scope(shared->plan().attention, times_.attention());
  const auto here = [this](const auto& act) {  // on the compute thread
    try {
      act();
    } catch (...) {
      events_.fail(std::current_exception());
      throw;
    }
  };
  for (int i = begin; i < end; ++i) {
    if (list[i].lane != plan::Lane::compute) {
      here([&] { issue(shared, i); });
      continue;
    }
    events_.await(list[i].wait);
    await_turn(*shared, i);
    here([&] { follow(*shared, list[i]), perform(*shared, i); });
  }
}

void Lanes::issue(const std::shared_ptr<ScheduleRun>& shared, int index) {
  const bool prepared = interpreter_.prepare(*shared, index);
  // What it gets may have been freed since the last instruction, by a thread that makes samples on this stream.
  if (prepared) prepared_[index].record();
  // Each lane shares ownership of the run: after a failure it may outlive the call.
  thread(shared->schedule().list[index].lane).push([this, shared, index, prepared] {
    try {
      const plan::Instruction& own = shared->schedule().list[index];
      events_.await(own.wait);
      await_turn(*shared, index);
      follow(*shared, own);
      if (prepared) prepared_[index].order();
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
  device::label(std::string(name(in.op)) + (in.name.empty() ? "" : " " + in.name));
  const bool host = works_on_host(in.lane);
  const auto after = [&](const device::Mark& mark) { host ? mark.await() : mark.order(); };
  bool& begun = run.begun[static_cast<size_t>(in.lane)];
  if (!std::exchange(begun, true) && in.lane != plan::Lane::compute) after(start_);
  for (const int earlier : in.wait)
    if (run.schedule().list[earlier].lane != in.lane) after(marks_[earlier]);
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
  if (enqueues) progress_->begins(in.lane, {run.program, run.step, index});
  run.times->began(index);
  if (whereabouts_) whereabouts_(run.step, index, in, false);
  interpreter_.execute(run, index);
  run.times->ended(index, t0);
  if (enqueues) progress_->given(in.lane);
  marks_[index].record();  // last: who waits for it waits for these too
  if (!device::has_streams()) marks_[index].await();
  if (whereabouts_) whereabouts_(run.step, index, in, true);
  interpreter_.check(run, index);
  events_.done(index);
}

void Lanes::end(const ScheduleRun& run) {
  events_.await_all();
  if (far_) join(run);
}

/// What comes after the schedule comes after all of its lanes.
void Lanes::join(const ScheduleRun& run) {
  device::label("");
  std::array<int, plan::kLaneCount> last;
  last.fill(-1);
  const auto& list = run.schedule().list;
  for (size_t i = 0; i < list.size(); ++i) last[static_cast<size_t>(list[i].lane)] = static_cast<int>(i);
  for (const int i : last)
    if (i >= 0 && list[static_cast<size_t>(i)].lane != plan::Lane::compute) marks_[static_cast<size_t>(i)].order();
  end_.record();
  store_.rest(&end_);
}

}  // namespace tessera::engine
