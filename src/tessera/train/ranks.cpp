#include "tessera/train/ranks.h"

#include <signal.h>
#include <unistd.h>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <thread>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/planning/mesh_checks.h"

namespace tessera::train {

namespace {

template <class Number>
bool read_number(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

static_assert(plan::kLaneCount == comm::kLanes, "the status has a place for each lane");

constexpr std::chrono::milliseconds kLooks(200);  // at the device

}  // namespace

InjectedFault InjectedFault::parse(const std::string& text) {
  InjectedFault fault;
  bool acts = false;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const size_t equals = item.find('=');
    const std::string key = item.substr(0, equals), value = equals == item.npos ? "" : item.substr(equals + 1);
    bool known = !value.empty();
    if (key == "rank")
      known = read_number(value, fault.rank);
    else if (key == "attempt")
      known = read_number(value, fault.attempt);
    else if (key == "step")
      known = read_number(value, fault.step.emplace());
    else if (key == "op")
      fault.op = value;
    else if (key == "unit")
      fault.unit = value;
    else if (key == "lane")
      fault.lane = value;
    else if (key == "do") {
      acts = true;
      if (value == "kill" || value == "stop" || value == "hang")
        fault.act = value;
      else
        known = read_number(value, fault.seconds);
    } else {
      known = false;
    }
    if (!known)
      throw UserError(Exit::usage, "train.drill", "TESSERA_DRILL: cannot read '" + item + "'",
                      "for example rank=1,step=3,op=reduce,do=stop (or kill, hang, or seconds)");
  }
  if (!acts) throw UserError(Exit::usage, "train.drill", "TESSERA_DRILL does not say what to do", "add do=kill");
  return fault;
}

void InjectedFault::at(int64_t now, const plan::Instruction& instruction) const {
  if ((step && *step != now) || name(instruction.op) != op) return;
  if (!unit.empty() && instruction.name != unit) return;
  if (!lane.empty() && name(instruction.lane) != lane) return;
  if (act == "kill") kill(getpid(), SIGKILL);
  if (act == "stop") kill(getpid(), SIGSTOP);
  while (act == "hang") pause();
  // A signal to the process may come to another thread first: this one goes no further meanwhile.
  std::this_thread::sleep_for(std::chrono::duration<double>(act.empty() ? seconds : 0.2));
}

std::optional<InjectedFault> injected_fault(int rank, int attempt) {
  const char* text = std::getenv("TESSERA_DRILL");
  if (!text) return std::nullopt;
  const InjectedFault fault = InjectedFault::parse(text);
  if (fault.rank != rank || fault.attempt != attempt) return std::nullopt;
  return fault;
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
  engine::Lanes& lanes = engine.lanes();
  lanes.on_instruction(
      [this](int64_t step, int index, const plan::Instruction& in, bool ends) { instruction(step, index, in, ends); });
  progress_ = lanes.progress();
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
      heartbeat_.at(now.step, now.index, engine::describe(lane) + ", on the GPU", activity);
      heartbeat_.waits(now.given && !lane.next->instruction().comm.empty());
    }
    hold.lock();
  }
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
  const std::string device = device::under_way();
  if (!device.empty()) words += (words.empty() ? ": on the GPU " : "; on the GPU ") + device;
  return "at step " + std::to_string(step_) + words;
}

std::optional<device::Failure> RankWatch::device_failure() {
  auto failed = device::failure(where());
  if (failed) heartbeat_.fails(failed->account());
  return failed;
}

void RankWatch::tell(const UserError& error) const {
  if (error.code() == Exit::rank_lost) log::error("another rank was lost while this one was " + where());
  if (error.code() == Exit::disk || error.code() == Exit::memory) log::error("failed " + where());
}

void RankWatch::phase(int64_t step, const std::string& what, int timeouts) {
  heartbeat_.at(step, -1, what, 0, timeouts);
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
  const int timeouts = in.op == plan::Op::flush ? kSlowWork : 1;
  heartbeat_.at(step, index, engine::describe(in), static_cast<int>(in.lane), timeouts);
  note(in.lane, step, engine::describe(in));
  if (injected_fault_) injected_fault_->at(step, in);
}

Mesh elastic_mesh(const Mesh& asked, const comm::Rendezvous& place) {
  if (place.asked_world <= place.world) return planning::fill_mesh(asked, place.world);
  Mesh mesh = planning::fill_mesh(asked, place.asked_world);
  const int model = mesh.world() / mesh.dp_size();  // ranks of one copy, as far as samples go
  if (place.world % model != 0)
    throw UserError(Exit::usage, "mesh",
                    std::to_string(place.world) + " of " + std::to_string(place.asked_world) +
                        " ranks are left, and mesh " + mesh.to_string() + " needs a multiple of " +
                        std::to_string(model),
                    "start the missing nodes, or choose pp, cp, sp and tp that fit one node");
  const int dp = place.world / model;
  mesh[Axis::dp_replicate] = std::gcd(mesh[Axis::dp_replicate], dp);
  mesh[Axis::dp_shard] = dp / mesh[Axis::dp_replicate];
  return mesh;
}

Ranks::Ranks(const comm::Rendezvous& place, const Mesh& asked, double timeout)
    : place(place), mesh(elastic_mesh(asked, place)), watch(place), comm(place, mesh, timeout), timeout_(timeout) {
  watch.follow(comm);
}

std::string Ranks::of_first(std::string own) {
  own.resize(static_cast<size_t>(gather({static_cast<double>(own.size())})[0][0]));
  all().broadcast(at::from_blob(own.data(), {static_cast<int64_t>(own.size())}, at::kChar), 0);
  return own;
}

void Ranks::wait_for_slowest(const std::function<void(prepare::Pace&)>& act) {
  // Our launcher, where there is one, names such a rank before the pace does.
  const prepare::Pace::Seconds longest(RankWatch::kSlowWork * timeout_ + 10);
  prepare::Pace pace(comm, mesh, {}, prepare::Pace::kTold, longest);
  try {
    pace.run([&] {
      act(pace);
      meet(pace);
    });
  } catch (const UserError&) {
    if (!pace.failed_elsewhere()) throw;
    throw UserError(Exit::rank_lost, "ranks", "another rank failed while this one waited for it",
                    "see that rank's message");
  }
}

void Ranks::meet(prepare::Pace& pace) {
  all().waits(true);
  try {
    pace.barrier();
  } catch (...) {
    all().waits(false);
    throw;
  }
  all().waits(false);
}

void Ranks::first_acts(int64_t step, const std::string& doing, const std::string& waiting,
                       const std::function<void()>& act) {
  wait_for_slowest([&](prepare::Pace&) {
    watch.phase(step, first() ? doing : waiting, RankWatch::kSlowWork);
    if (first()) act();
  });
}

}  // namespace tessera::train
