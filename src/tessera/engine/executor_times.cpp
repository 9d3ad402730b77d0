// The executor's times: how long lanes worked, what compute waited for, and traces.
#include <utility>

#include "tessera/engine/executor.h"
#include "tessera/plan/is_block.h"

namespace tessera::engine {

namespace {

/// What a sample costs its rank. (`norm` waits for the others; updates cost the same however many samples there are.)
bool is_work(const plan::Instruction& in) {
  using plan::Op;
  const bool computes = in.op == Op::forward || in.op == Op::loss || in.op == Op::recompute || in.op == Op::backward ||
                        in.op == Op::weight_grad;
  return computes && in.lane == plan::Lane::compute;
}

}  // namespace

void Executor::read_times() {
  times_read_ = true;
  if (by_device_) comm::time_device_messages();
}

void Executor::keep_lines(bool keep) {
  if (keep_lines_ != keep) settle_times(/*wait=*/true);  // of what ran until now
  keep_lines_ = keep;
}

/// Adds a schedule's times and trace lines to those of the executor. `in_collectives`: seconds of collectives inside compute.
void Executor::note_times(const plan::Program& program, int64_t step, const DeviceTimes::Seconds& times,
                          double in_collectives) {
  const auto& list = program.schedule.list;
  if (program.schedule.phase == "train") {
    const std::vector<double> waited = waited_for(list, times);
    exposed_ += exposed_time(list, times, waited);
    if (keep_lines_) {
      std::vector<bool> blocks;
      for (const auto& unit : units_) blocks.push_back(plan::is_block(unit->spec()));
      in_effect_ = in_effect(list, times, waited, blocks);
    }
    exposed_.comm += in_collectives;
  }
  if (step != traced_step_) traced_step_ = step, base_ = 0;
  if (keep_lines_) last_lines_.clear();
  for (size_t i = 0; i < list.size(); ++i) {
    const double seconds = times[i][1] - times[i][0];
    busy_[std::string(name(list[i].lane))] += seconds;
    if (is_work(list[i])) work_ += seconds;
    if (!trace_ && !keep_lines_) continue;
    const std::string line = plan::to_json(list[i], program.schedule.phase, rank_, step, static_cast<int>(i), base_,
                                           times[i][0], times[i][1]);
    if (trace_) trace_->write(line + '\n');
    if (keep_lines_) last_lines_.push_back(line);
  }
  if (trace_) trace_->flush();
  base_ += static_cast<int>(list.size());
}

/// Notes the times of schedules that the device has ended; of all of them with `wait`.
void Executor::settle_times(bool wait) {
  for (; !unsettled_.empty(); unsettled_.pop_front()) {
    const DeviceTimes& times = *unsettled_.front();
    if (!times.passed()) {
      if (!wait) return;
      times.await();
    }
    const double inside = comm::seconds_in_device_messages();
    note_times(times.program(), times.step(), times.seconds(), inside - std::exchange(in_messages_, inside));
  }
}

std::map<std::string, double> Executor::take_busy() {
  settle_times(/*wait=*/false);
  return std::exchange(busy_, {});
}

Exposed Executor::take_exposed() {
  settle_times(/*wait=*/false);
  return std::exchange(exposed_, {});
}

double Executor::take_work() {
  settle_times(/*wait=*/false);
  return std::exchange(work_, 0.0);
}

const std::vector<std::string>& Executor::last_lines() {
  settle_times(/*wait=*/true);
  return last_lines_;
}

const InEffect& Executor::last_effect() {
  settle_times(/*wait=*/true);
  in_effect_.attention = attention_.text();
  return in_effect_;
}

}  // namespace tessera::engine
