#include "tessera/engine/step_times.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "tessera/comm/comm.h"

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

ScheduleTimes::ScheduleTimes(plan::ProgramPtr program, int64_t step, bool timed)
    : program_(std::move(program)),
      step_(step),
      host_(program_->schedule.list.size()),
      began_at_(0),
      in_collectives_(comm::seconds_in_collectives()) {
  if (timed) {
    began_.reserve(host_.size()), ended_.reserve(host_.size());
    for (const plan::Instruction& in : program_->schedule.list)
      began_.emplace_back(!works_on_host(in.lane)), ended_.emplace_back(!works_on_host(in.lane));
    start_.record();
  }
  began_at_ = now();
}

double ScheduleTimes::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count() - began_at_;
}

void ScheduleTimes::began(int index) {
  if (timed() && !works_on_host(program_->schedule.list[index].lane)) began_[static_cast<size_t>(index)].record();
}

void ScheduleTimes::ended(int index, double t0) {
  host_[static_cast<size_t>(index)] = {t0, now()};
  if (timed() && !works_on_host(program_->schedule.list[index].lane)) ended_[static_cast<size_t>(index)].record();
}

void ScheduleTimes::close() {
  in_collectives_ = comm::seconds_in_collectives() - in_collectives_;
  if (timed()) end_.record();
}

InstructionTimes ScheduleTimes::seconds() const {
  const auto& list = program_->schedule.list;
  InstructionTimes found = host_;
  if (!timed()) return found;
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

StepTimes::StepTimes(int rank, bool far, bool by_device, std::vector<bool> blocks, const std::string& trace)
    : rank_(rank), far_(far), by_device_(far && by_device), blocks_(std::move(blocks)) {
  if (trace.empty()) return;
  read();
  ::unlink(trace.c_str());  // it may be a link to a file elsewhere
  trace_.emplace(trace, checkpoint::GrowingFile::Begin::empty);
}

void StepTimes::read() {
  read_ = true;
  if (by_device_) comm::time_device_messages();
}

std::unique_ptr<ScheduleTimes> StepTimes::begin(plan::ProgramPtr program, int64_t step, bool timed) const {
  return std::make_unique<ScheduleTimes>(std::move(program), step, far_ && read_ && timed);
}

void StepTimes::end(std::unique_ptr<ScheduleTimes> times) {
  times->close();
  if (times->timed())
    unsettled_.push_back(std::move(times));
  else if (!far_)
    note(times->program(), times->step(), times->seconds(), times->in_collectives());
}

void StepTimes::keep_lines(bool keep) {
  if (keep_lines_ != keep) settle(/*wait=*/true);  // of what ran until now
  keep_lines_ = keep;
}

void StepTimes::note(const plan::Program& program, int64_t step, const InstructionTimes& times, double in_collectives) {
  const auto& list = program.schedule.list;
  if (program.schedule.phase == "train") {
    const std::vector<double> waited = waited_for(list, times);
    exposed_ += exposed_time(list, times, waited);
    if (keep_lines_) in_effect_ = in_effect(list, times, waited, blocks_);
    exposed_.comm += in_collectives;
  }
  if (step != traced_step_) traced_step_ = step, base_ = 0;
  if (keep_lines_) last_lines_.clear();
  std::array<double*, plan::kLaneCount> busy = {};
  for (size_t i = 0; i < list.size(); ++i) {
    const double seconds = times[i][1] - times[i][0];
    double*& of_lane = busy[static_cast<size_t>(list[i].lane)];
    if (!of_lane) of_lane = &busy_[std::string(name(list[i].lane))];
    *of_lane += seconds;
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

void StepTimes::settle(bool wait) {
  for (; !unsettled_.empty(); unsettled_.pop_front()) {
    const ScheduleTimes& times = *unsettled_.front();
    if (!times.passed()) {
      if (!wait) return;
      times.await();
    }
    const double inside = comm::seconds_in_device_messages();
    note(times.program(), times.step(), times.seconds(), inside - std::exchange(in_messages_, inside));
  }
}

const std::vector<std::string>& StepTimes::last_lines() {
  settle(/*wait=*/true);
  return last_lines_;
}

const InEffect& StepTimes::last_effect() {
  settle(/*wait=*/true);
  in_effect_.attention = attention_.text();
  return in_effect_;
}

namespace {

/// The counter for waiting on the lane; null for lanes that compute, on the device or on the host.
double* share_of(Exposed& exposed, plan::Lane lane) {
  switch (lane) {
    case plan::Lane::gather:
    case plan::Lane::reduce:
    case plan::Lane::control:
      return &exposed.comm;
    case plan::Lane::h2d:
    case plan::Lane::d2h:
    case plan::Lane::disk:
      return &exposed.copy;
    case plan::Lane::send_next:
    case plan::Lane::recv_prev:
    case plan::Lane::send_prev:
    case plan::Lane::recv_next:
      return &exposed.stages;
    default:
      return nullptr;
  }
}

}  // namespace

std::vector<double> waited_for(const std::vector<plan::Instruction>& list, const InstructionTimes& times) {
  std::vector<double> waited(list.size());
  const int count = static_cast<int>(list.size());
  std::vector<int> before(list.size(), -1);  // on the same lane
  std::array<int, plan::kLaneCount> newest;
  newest.fill(-1);
  for (int i = 0; i < count; ++i) before[i] = std::exchange(newest[static_cast<size_t>(list[i].lane)], i);
  const auto later = [&](int a, int b) { return a < 0 || (b >= 0 && times[b][1] > times[a][1]) ? b : a; };
  const auto last_of = [&](const plan::Waits& wait, int found) {
    for (int w : wait) found = later(found, w);
    return found;
  };
  // Each link of the chain counts from when it could begin: the time that a gather waits for the disk counts as the
  // disk's.
  const auto blame = [&](int i, double from, double to) {
    while (i >= 0 && to > from) {
      const int earlier = last_of(list[i].wait, before[i]);
      const double begin = earlier < 0 ? from : std::clamp(times[earlier][1], from, to);
      waited[i] += to - begin;
      to = begin, i = earlier;
    }
  };
  double computed = 0;
  for (int i = 0; i < count; ++i) {
    if (list[i].lane != plan::Lane::compute) continue;
    const int awaited = last_of(list[i].wait, -1);
    if (awaited >= 0) blame(awaited, computed, std::min(times[awaited][1], times[i][0]));
    computed = times[i][1];
  }
  int end = -1;  // the step ends with its last instruction, on whichever lane
  for (int i = 0; i < count; ++i) end = later(end, i);
  if (end >= 0) blame(end, computed, times[end][1]);
  return waited;
}

Exposed exposed_time(const std::vector<plan::Instruction>& list, const InstructionTimes& times,
                     const std::vector<double>& waited) {
  Exposed exposed;
  double ready = 0;  // when the compute lane could begin its next instruction
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].lane != plan::Lane::compute) continue;
    for (const int awaited : list[i].wait) ready = std::max(ready, times[static_cast<size_t>(awaited)][1]);
    exposed.dispatch += std::max(0.0, times[i][0] - ready);
    ready = times[i][1];
  }
  for (size_t i = 0; i < list.size(); ++i)
    if (double* share = share_of(exposed, list[i].lane)) *share += waited[i];
  return exposed;
}

namespace {

constexpr double kHidden = 0.05;  // of an instruction's own time

InEffect::Hidden* kind_of(InEffect& did, plan::Op op) {
  switch (op) {
    case plan::Op::gather:
    case plan::Op::gather_outer:
      return &did.gathers;
    case plan::Op::reduce:
    case plan::Op::reduce_outer:
      return &did.reductions;
    case plan::Op::fetch:
      return &did.fetches;
    case plan::Op::stash:
      return &did.stashes;
    case plan::Op::send:
    case plan::Op::recv:
      return &did.messages;
    default:
      return nullptr;
  }
}

/// See InEffect::pending.
int most_pending(const std::vector<plan::Instruction>& list, const InstructionTimes& times) {
  std::map<int, double> complete;  // by unit: when its gradient was
  std::vector<std::pair<double, int>> changes;
  for (size_t i = 0; i < list.size(); ++i) {
    const plan::Instruction& in = list[i];
    if (in.op == plan::Op::backward || in.op == plan::Op::weight_grad || in.op == plan::Op::reduce ||
        in.op == plan::Op::reduce_outer)
      complete[in.unit] = times[i][1];
    if (in.op != plan::Op::update) continue;
    const auto found = complete.find(in.unit);
    changes.emplace_back(found == complete.end() ? times.front()[0] : found->second, 1);
    changes.emplace_back(times[i][1], -1);
  }
  std::ranges::sort(changes);
  int now = 0, most = 0;
  for (const auto& [when, change] : changes) most = std::max(most, now += change);
  return most;
}

}  // namespace

InEffect in_effect(const std::vector<plan::Instruction>& list, const InstructionTimes& times,
                   const std::vector<double>& waited, const std::vector<bool>& blocks) {
  InEffect did;
  std::set<int> computed, recomputed, offloaded, compressed;
  bool backwards = false, norm = false;
  for (size_t i = 0; i < list.size(); ++i) {
    const plan::Instruction& in = list[i];
    if (InEffect::Hidden* kind = kind_of(did, in.op)) {
      ++kind->all;
      kind->hidden += waited[i] <= kHidden * (times[i][1] - times[i][0]);
    }
    if (in.op == plan::Op::forward) computed.insert(in.unit);
    if (in.op == plan::Op::backward) backwards = true;
    if (in.op == plan::Op::recompute) recomputed.insert(in.unit);
    if (in.op == plan::Op::stash && in.part == plan::Part::activations) offloaded.insert(in.unit);
    if (in.op == plan::Op::compress) compressed.insert(in.unit);
    if (in.op == plan::Op::norm && in.unit < 0) norm = true;
    if (in.op != plan::Op::update) continue;
    did.host_updates += in.lane == plan::Lane::host;
    if (!norm) ++(backwards ? did.early_updates : did.late_updates);
  }
  const auto count = [&](const std::set<int>& units) {
    return static_cast<int>(std::ranges::count_if(units, [&](int u) { return blocks[static_cast<size_t>(u)]; }));
  };
  did.pending = most_pending(list, times);
  did.blocks = count(computed), did.recomputed = count(recomputed);
  did.offloaded = count(offloaded), did.compressed = count(compressed);
  return did;
}

std::string InEffect::text() const {
  std::string text;
  const auto add = [&](int n, const std::string& words) {
    if (n > 0) text += (text.empty() ? "" : "; ") + words;
  };
  const auto of = [](int n, int all) { return std::to_string(n) + " of " + std::to_string(all); };
  add(recomputed, "recomputed " + of(recomputed, blocks) + " blocks");
  add(offloaded, "offloaded activations of " + of(offloaded, blocks) + " blocks");
  add(compressed, "compressed activations of " + of(compressed, blocks) + " blocks");
  const std::pair<const char*, Hidden> kinds[] = {{"gathers", gathers},
                                                  {"reductions", reductions},
                                                  {"fetches", fetches},
                                                  {"stashes", stashes},
                                                  {"messages", messages}};
  for (const auto& [name, kind] : kinds) add(kind.all, of(kind.hidden, kind.all) + " " + name + " hidden");
  add(late_updates, std::to_string(late_updates) + " updates of the step before just in time");
  add(early_updates, std::to_string(early_updates) + " updates in the backward");
  add(host_updates, std::to_string(host_updates) + " updates on the host");
  if (late_updates + early_updates + host_updates > 0)  // else all are, at the end
    add(pending, std::to_string(pending) + " updates pending at most");
  if (text.empty()) text = "kept all activations, moved nothing";
  return text + (attention.empty() ? "" : "; attention by " + attention);
}

}  // namespace tessera::engine
