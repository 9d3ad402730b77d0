#include "timeline.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "memory.h"
#include "torch_device.h"

namespace tessera::testing {

namespace {

void join(std::vector<uint64_t>& clock, const std::vector<uint64_t>& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

uint64_t known(const std::vector<uint64_t>& clock, int stream) {
  return static_cast<size_t>(stream) < clock.size() ? clock[static_cast<size_t>(stream)] : 0;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : "0";
}

}  // namespace

Timeline::Timeline()
    : fails_at_(setting("TESSERA_SIMULATED_FAULT")),
      hangs_at_(setting("TESSERA_SIMULATED_SLOW")),
      hangs_in_graphs_at_(setting("TESSERA_SIMULATED_SLOW_GRAPH")) {
  compares_ = setting("TESSERA_SIMULATED_RECORD") == std::string("1");
  const std::string pair = setting("TESSERA_SIMULATED_FORGET");
  if (const size_t comma = pair.find(','); comma != pair.npos)
    forgotten_waiter_ = pair.substr(0, comma), forgotten_recorder_ = pair.substr(comma + 1);
  seed_ = static_cast<unsigned>(std::atoi(setting("TESSERA_SIMULATED_DELAY")));
  late_ = seed_ != 0;
  if (const char* log = std::getenv("TESSERA_SIMULATED_LAUNCHES")) launches_log_ = std::fopen(log, "w");
}

bool Timeline::is_at(const std::string& place) const {
  const size_t comma = place.find(',');
  return comma != std::string::npos && std::atoi(place.c_str()) == current_device() &&
         mine().label.starts_with(place.substr(comma + 1));
}

/// The work that the thread is about to give is the device's last.
void Timeline::fail_if_wanted() {
  if (is_at(fails_at_)) failed_ = true;
  if (setting("TESSERA_SERIAL") == std::string("1")) check();
}

void Timeline::check() const { TORCH_CHECK(!failed_, "CUDA error: ", kFault); }

void Timeline::work_late(bool late) { late_ = late; }

void Timeline::compare_uses(bool on) {
  const std::lock_guard lock(mutex_);
  compares_ = on;
  cells_.clear();
}

Timeline::ThreadState& Timeline::mine() {
  static thread_local auto* state = new ThreadState;  // not destroyed: what a thread frees at its end may ask for it
  return *state;
}

Timeline::StreamState& Timeline::current() {
  if (mine().stream) return *mine().stream;
  StreamState*& first = firsts_[current_device()];
  if (!first) {
    first = &add_stream();
    first->first = true;
  }
  return *first;
}

Timeline::StreamState& Timeline::add_stream() {
  streams_.push_back(std::make_unique<StreamState>());
  streams_.back()->index = static_cast<int>(streams_.size()) - 1;
  return *streams_.back();
}

device::Stream Timeline::make_stream(device::Priority priority) {
  const std::lock_guard lock(mutex_);
  check();
  StreamState& made = add_stream();
  made.priority = priority;
  return &made;
}

std::map<std::string, device::Priority> Timeline::priorities() {
  const std::lock_guard lock(mutex_);
  std::map<std::string, device::Priority> by;
  for (const auto& stream : streams_)
    if (!stream->label.empty()) by[stream->label] = stream->priority;
  return by;
}

void Timeline::free_stream(device::Stream stream) {
  auto& freed = *static_cast<StreamState*>(stream);
  {
    const std::lock_guard lock(mutex_);
    freed.stop = true;
  }
  moved_.notify_all();
  if (freed.thread.joinable()) freed.thread.join();
}

void Timeline::set_stream(device::Stream stream) { mine().stream = static_cast<StreamState*>(stream); }

device::Event Timeline::make_event(bool timed) {
  auto* event = new EventState;
  event->timed = timed;
  return event;
}
void Timeline::free_event(device::Event event) { delete static_cast<EventState*>(event); }

void Timeline::record(device::Event event) {
  const std::lock_guard lock(mutex_);
  StreamState& stream = current();
  check();
  issue(stream, {});
  auto& state = *static_cast<EventState*>(event);
  const bool captured = stream.captured >= 0;
  const auto seconds = state.timed ? std::make_shared<std::atomic<double>>(now()) : nullptr;
  if (seconds && delays() && !stream.first) push(stream, [seconds] { *seconds = now(); });
  state = {stream.clock, mine().label, &stream, stream.given, state.timed, seconds};
  if (captured) state.capture = capture_, state.behind = stream.behind;
}

bool Timeline::forgets(const EventState& event) const {
  return !forgotten_waiter_.empty() && mine().label.starts_with(forgotten_waiter_) &&
         event.label.starts_with(forgotten_recorder_);
}

void Timeline::wait_for(device::Event event) {
  std::unique_lock lock(mutex_);
  check();
  const EventState seen = *static_cast<EventState*>(event);  // as it is now: it may be recorded again
  if (forgets(seen)) return;
  StreamState& stream = current();
  join_capture(stream, seen);
  join(stream.clock, seen.clock);
  if (!delays() || !seen.stream) return;
  if (stream.first) return drain(*seen.stream, seen.place, lock);
  push(stream, [this, seen] {
    std::unique_lock inner(mutex_);
    drain(*seen.stream, seen.place, inner);
  });
}

void Timeline::await(device::Event event) {
  std::unique_lock lock(mutex_);
  check();
  const EventState seen = *static_cast<EventState*>(event);
  if (forgets(seen)) return;
  check_uncaptured(seen);
  ++counts_.waits;
  join(mine().known, seen.clock);
  if (seen.stream) drain(*seen.stream, seen.place, lock);
}

bool Timeline::has_happened(device::Event event) {
  const std::lock_guard lock(mutex_);
  check();
  const auto& seen = *static_cast<EventState*>(event);
  if (forgets(seen)) return true;
  check_uncaptured(seen);
  if (pending(seen)) return false;
  join(mine().known, seen.clock);
  return true;
}

double Timeline::seconds_between(device::Event from, device::Event to) {
  const std::lock_guard lock(mutex_);
  const auto &first = *static_cast<EventState*>(from), &second = *static_cast<EventState*>(to);
  TORCH_CHECK(first.seconds && second.seconds, "seconds between events that are not timed, or were not recorded");
  TORCH_CHECK(!pending(first) && !pending(second), "seconds between events that have not happened");
  return *second.seconds - *first.seconds;
}

void Timeline::slow_down(std::string label, double seconds) {
  const std::lock_guard lock(mutex_);
  slowed_ = std::move(label), slowed_by_ = seconds;
}

void Timeline::await_all() {
  std::unique_lock lock(mutex_);
  check_wait();
  ++counts_.waits;
  for (size_t s = 0; s < streams_.size(); ++s) {
    join(mine().known, streams_[s]->clock);
    drain(*streams_[s], streams_[s]->given, lock);
  }
}

void Timeline::label(const std::string& what) {
  mine().label = what;
  if (!mine().stream) return;
  const std::lock_guard lock(mutex_);
  mine().stream->label = what;
}

void Timeline::run(const char* what, const std::vector<Use>& uses, std::function<void()> work) {
  {
    std::unique_lock lock(mutex_);
    check();
    fail_if_wanted();
    StreamState& stream = current();
    name(what);
    issue(stream, uses);
    count(uses);
    keep(stream, uses, work);
    if (delays() && !stream.first) return push(stream, std::move(work));
  }
  const bool computes = !sizes_alone() || std::string_view(what) == "word";  // progress is the host's to read
  if (!failed_ && computes) work();
}

void Timeline::begin(const std::string& what, const std::vector<Use>& uses) {
  std::unique_lock lock(mutex_);
  check();
  fail_if_wanted();
  StreamState& stream = current();
  name(what);
  issue(stream, uses);
  count(uses);
  keep(stream, uses, {});
  drain(stream, stream.given, lock);
}

void Timeline::also(const std::vector<Use>& uses) {
  const std::lock_guard lock(mutex_);
  StreamState& stream = current();
  for (const Use& use : uses) compare(stream, stream.clock, use);
  count(uses);
  if (stream.captured < 0 || mine().node < 0) return;
  std::vector<Use>& kept = graph_->nodes[static_cast<size_t>(mine().node)].uses;
  kept.insert(kept.end(), uses.begin(), uses.end());
}

void Timeline::name(const std::string& what) {
  mine().what = interned(what);
  mine().counted = false;
}

/// Work without memory of the device, as a view of a tensor, launches nothing.
void Timeline::count(const std::vector<Use>& uses) {
  Launches more;
  for (const Use& use : uses)
    if (use.begin) (use.writes ? more.written : more.read) += use.bytes;
  if (more.read + more.written == 0 || !mine().what) return;
  more.count = !std::exchange(mine().counted, true);
  add(more);
}

void Timeline::computes(double flops) {
  const std::lock_guard lock(mutex_);
  add({0, 0, 0, flops});
}

void Timeline::add(const Launches& more) {
  const ThreadState& thread = mine();
  Launches& found = launches_[{thread.label, *thread.what}];
  found.count += more.count, found.read += more.read, found.written += more.written, found.flops += more.flops;
  if (launches_log_)
    std::fprintf(launches_log_,
                 R"({"label": "%s", "what": "%s", "launches": %ld, "read": %ld, "written": %ld, "flops": %.17g})"
                 "\n",
                 thread.label.c_str(), thread.what->c_str(), more.count, more.read, more.written, more.flops);
}

std::map<std::pair<std::string, std::string>, Launches> Timeline::take_launches() {
  const std::lock_guard lock(mutex_);
  return std::exchange(launches_, {});
}

void Timeline::host_uses(const Use& use) {
  const std::lock_guard lock(mutex_);
  ThreadState& thread = mine();
  if (!thread.host) {
    thread.host = &add_stream();
    thread.host->host = true;
  }
  const auto own = static_cast<size_t>(thread.host->index);
  if (thread.known.size() <= own) thread.known.resize(own + 1);
  ++thread.known[own];
  thread.what = interned("code");
  compare(*thread.host, thread.known, use);
}

void Timeline::host_waited() {
  std::unique_lock lock(mutex_);
  check_wait();
  ++counts_.waits;
  StreamState& stream = current();
  join(mine().known, stream.clock);
  drain(stream, stream.given, lock);
}

void Timeline::copied_back(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  counts_.bytes_back += bytes;
}

HostCounts Timeline::take_counts() {
  const std::lock_guard lock(mutex_);
  return std::exchange(counts_, {});
}

void Timeline::forget_waits(std::string waiter, std::string recorder) {
  const std::lock_guard lock(mutex_);
  forgotten_waiter_ = std::move(waiter), forgotten_recorder_ = std::move(recorder);
  found_ = false;
}

// Graphs

namespace {

void join_places(std::vector<int64_t>& behind, const std::vector<int64_t>& other) {
  if (behind.size() < other.size()) behind.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) behind[i] = std::max(behind[i], other[i]);
}

}  // namespace

void Timeline::begin_graph() {
  const std::lock_guard lock(mutex_);
  check();
  TORCH_CHECK(!graph_, "a graph is begun within another");
  graph_ = std::make_unique<SimulatedGraph>();
  origin_ = &current();
  capturer_ = std::this_thread::get_id();
  captured_ = {origin_};
  origin_->captured = 0, origin_->nodes = 0, origin_->behind.clear();
  ++capture_;
}

SimulatedGraph* Timeline::end_graph() {
  const std::lock_guard lock(mutex_);
  check();
  TORCH_CHECK(graph_ && &current() == origin_, "a graph is ended that this stream has not begun");
  const std::unique_ptr<SimulatedGraph> graph = std::move(graph_);
  const std::vector<StreamState*> streams = std::move(captured_);
  const std::vector<int64_t> joined = origin_->behind;
  for (StreamState* stream : streams) stream->captured = -1;
  for (size_t s = 1; s < streams.size(); ++s)
    TORCH_CHECK((s < joined.size() ? joined[s] : 0) == streams[s]->nodes,
                "the capture was ended with work of a stream that is not joined (cudaErrorStreamCaptureUnjoined), of ",
                streams[s]->label);
  std::erase_if(graph->nodes, [](const GraphNode& node) { return node.uses.empty(); });  // views
  for (const GraphNode& node : graph->nodes)
    TORCH_CHECK(sizes_alone() || node.work, "the simulated device cannot repeat ", node.what, " of ", node.label);
  constexpr size_t kMost = 16;
  if (made_.size() == kMost) made_.erase(made_.begin());
  made_.push_back(graph->nodes);
  return std::make_unique<SimulatedGraph>(std::move(*graph)).release();
}

int64_t Timeline::nodes_of(const SimulatedGraph& graph) const { return counted_as_ * std::ssize(graph.nodes); }

/// Node after node, each time one of a stream drawn from those whose next one need wait for nothing more.
void Timeline::launch(SimulatedGraph& graph) {
  size_t streams = 0;
  for (const GraphNode& node : graph.nodes) streams = std::max(streams, static_cast<size_t>(node.stream) + 1);
  std::vector<std::vector<const GraphNode*>> open(streams);
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node)
    open[static_cast<size_t>(node->stream)].push_back(&*node);
  std::vector<char> begun(streams);  // its next one is a message under way
  const auto ready = [&](size_t stream) {
    const GraphNode& node = *open[stream].back();
    if (begun[stream]) return node.arrived();
    for (size_t s = 0; s < streams; ++s)  // the next one of the other stream is none that this one is behind
      if (s != stream && s < node.behind.size() && !open[s].empty() && open[s].back()->place < node.behind[s])
        return false;
    return true;
  };
  const bool at_once = !delays() || current().first;
  std::mt19937 random(static_cast<unsigned>(++graph.launches));
  for (size_t left = graph.nodes.size(); left > 0;) {
    std::vector<size_t> next;
    for (size_t s = 0; s < streams; ++s)
      if (!open[s].empty() && ready(s)) next.push_back(s);
    if (next.empty()) {
      TORCH_CHECK(std::ranges::count(begun, 1) > 0, "the nodes of a graph wait for each other");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      continue;
    }
    const size_t chosen = next[random() % next.size()];
    const GraphNode& node = *open[chosen].back();
    if (begun[chosen]) {
      node.end();
    } else {
      const std::string before = std::exchange(mine().label, node.label);
      if (is_at(hangs_in_graphs_at_)) std::this_thread::sleep_for(std::chrono::minutes(1));
      run(node.what.c_str(), node.uses, [work = node.work, end = at_once ? std::function<void()>() : node.end] {
        if (work) work();
        if (end) end();
      });
      mine().label = before;
    }
    begun[chosen] = !begun[chosen] && node.arrived && at_once;
    if (begun[chosen]) continue;
    open[chosen].pop_back();
    --left;
  }
}

/// Work of a stream that is captured.
void Timeline::keep(StreamState& stream, const std::vector<Use>& uses, std::function<void()> work) {
  mine().node = -1;
  if (stream.captured < 0) return;
  TORCH_CHECK(&stream != origin_ || capturer_ == std::this_thread::get_id(), "another thread gives ", *mine().what,
              " to the stream that is captured, and it would become part of the graph: ", mine().label);
  mine().node = static_cast<int64_t>(graph_->nodes.size());
  graph_->nodes.push_back(
      {mine().label, *mine().what, stream.captured, stream.nodes, stream.behind, uses, std::move(work)});
  ++stream.nodes;
  const auto own = static_cast<size_t>(stream.captured);
  if (stream.behind.size() <= own) stream.behind.resize(own + 1);
  stream.behind[own] = stream.nodes;
}

void Timeline::repeated_by(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (current().captured >= 0 && mine().node >= 0)
    graph_->nodes[static_cast<size_t>(mine().node)].work = std::move(work);
}

void Timeline::repeated_by(std::function<void()> begin, std::function<bool()> arrived, std::function<void()> end) {
  repeated_by(std::move(begin));
  const std::lock_guard lock(mutex_);
  if (current().captured < 0 || mine().node < 0) return;
  GraphNode& node = graph_->nodes[static_cast<size_t>(mine().node)];
  node.arrived = std::move(arrived), node.end = std::move(end);
}

bool Timeline::captures() {
  const std::lock_guard lock(mutex_);
  return current().captured >= 0;
}

std::vector<std::vector<GraphNode>> Timeline::take_captured() {
  const std::lock_guard lock(mutex_);
  return std::exchange(made_, {});
}

/// A stream that waits for an event of the capture becomes part of it.
void Timeline::join_capture(StreamState& stream, const EventState& event) {
  const bool captured = graph_ && event.capture == capture_;
  TORCH_CHECK(event.capture == 0 || captured,
              "a stream waits for an event of a graph that is not being captured (cudaErrorInvalidResourceHandle), ",
              mine().label, " for ", event.label);
  if (!event.stream) return;  // never recorded
  TORCH_CHECK(stream.captured < 0 || captured,
              "a captured stream waits for an event from before (cudaErrorStreamCaptureIsolation), ", mine().label,
              " for ", event.label);
  if (!captured) return;
  if (stream.captured < 0) {
    stream.captured = static_cast<int>(captured_.size()), stream.nodes = 0, stream.behind.clear();
    captured_.push_back(&stream);
  }
  join_places(stream.behind, event.behind);
}

void Timeline::check_uncaptured(const EventState& event) const {
  TORCH_CHECK(event.capture == 0, "the host asks for an event of a graph (cudaErrorCapturedEvent), ", mine().label,
              " for ", event.label);
}

void Timeline::check_wait() {
  TORCH_CHECK(current().captured < 0,
              "the host waits for a stream that is captured (cudaErrorStreamCaptureUnsupported), in ", mine().label);
}

// Uses

/// Work comes after what its stream was given before, and after what the thread that issues it knows to be done.
void Timeline::issue(StreamState& stream, const std::vector<Use>& uses) {
  join(stream.clock, mine().known);
  const auto own = static_cast<size_t>(stream.index);
  if (stream.clock.size() <= own) stream.clock.resize(own + 1);
  ++stream.clock[own];
  for (const Use& use : uses) compare(stream, stream.clock, use);
}

/// Cuts the cell that has `at` within it in two.
void Timeline::split(const char* at) {
  auto next = cells_.upper_bound(at);
  if (next == cells_.begin()) return;
  auto cell = std::prev(next);
  if (cell->first == at || cell->second.end <= at) return;
  Cell rest = cell->second;
  cell->second.end = at;
  cells_.emplace_hint(next, at, std::move(rest));
}

/// As in FastTrack (Flanagan and Freund 2009) the last write, and the last read of each stream since, are enough.
void Timeline::compare(const StreamState& stream, const Clock& clock, const Use& use) {
  if (!compares_ || use.bytes <= 0 || !use.begin) return;
  const auto *begin = static_cast<const char*>(use.begin), *end = begin + use.bytes;
  const LastUse own{stream.index, known(clock, stream.index), mine().what, interned(mine().label)};
  const auto check = [&](const std::vector<LastUse>& earlier, const char* kind, const char* from, const char* to) {
    for (const LastUse& other : earlier) {
      if (other.stream == stream.index || other.at <= known(clock, other.stream)) continue;
      found_ = true;
      TORCH_CHECK(false, "the simulated device: ", describe(own), use.writes ? " writes" : " reads", " bytes that ",
                  describe(other), " ", kind,
                  ", and neither waits for the other: ", static_cast<const void*>(std::max(begin, from)), " to ",
                  static_cast<const void*>(std::min(end, to)),
                  ". Let the stream of the second wait for an event of the first");
    }
  };
  split(begin), split(end);
  const char* at = begin;
  auto cell = cells_.lower_bound(begin);
  for (; at < end; ++cell) {
    if (cell == cells_.end() || cell->first > at)  // nobody used these yet
      cell = cells_.emplace_hint(cell, at, Cell{cell == cells_.end() ? end : std::min(end, cell->first), {}, {}});
    Cell& bytes = cell->second;
    check(bytes.writes, "writes", at, bytes.end);
    if (use.writes) {
      check(bytes.reads, "reads", at, bytes.end);
      bytes.reads.clear();
      bytes.writes = {own};
    } else {
      std::erase_if(bytes.reads, [&](const LastUse& other) { return other.at <= known(clock, other.stream); });
      bytes.reads.push_back(own);
    }
    at = bytes.end;
  }
  if (!use.writes) return;
  cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(end));
  cells_[begin] = {end, {}, {own}};
}

void Timeline::forget(const void* begin, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto *from = static_cast<const char*>(begin), *to = from + bytes;
  split(from), split(to);
  cells_.erase(cells_.lower_bound(from), cells_.lower_bound(to));
}

std::string Timeline::describe(const LastUse& use) const {
  std::string text = *use.what;
  if (!use.label->empty()) text += " of " + *use.label;
  const StreamState& stream = *streams_[static_cast<size_t>(use.stream)];
  if (stream.host) return text + " (the host)";
  return text + (stream.first ? " (the first stream)" : " (stream " + std::to_string(use.stream) + ")");
}

// A delayed device

void Timeline::push(StreamState& stream, std::function<void()> work) {
  if (!stream.thread.joinable()) stream.thread = std::thread([this, &stream] { serve(stream); });
  stream.queue.push_back({mine().label, std::move(work), is_at(hangs_at_)});
  ++stream.given;
  moved_.notify_all();
}

void Timeline::drain(StreamState& stream, uint64_t place, std::unique_lock<std::mutex>& lock) {
  if (delays()) moved_.wait(lock, [&] { return stream.done >= place; });
}

void Timeline::serve(StreamState& stream) {
  std::mt19937 random(seed_ + static_cast<unsigned>(stream.index));
  std::unique_lock lock(mutex_);
  for (;;) {
    moved_.wait(lock, [&] { return stream.stop || !stream.queue.empty(); });
    if (stream.queue.empty()) return;
    const Job job = std::move(stream.queue.front());
    stream.queue.pop_front();
    const bool slow = !slowed_.empty() && job.label.starts_with(slowed_);
    const double seconds = slow ? slowed_by_ : 0;
    lock.unlock();
    if (job.hangs) std::this_thread::sleep_for(std::chrono::minutes(1));
    if (slow) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    if (seed_) std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
    if (!failed_) job.work();
    lock.lock();
    ++stream.done;
    moved_.notify_all();
  }
}

Timeline& timeline() {
  static auto* once = new Timeline;  // threads may compute until the process ends
  return *once;
}

}  // namespace tessera::testing
