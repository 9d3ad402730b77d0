#pragma once
// Order on the simulated device: streams, events, and who used which bytes last.
//
//   timeline().run("narrow", {read(x, 4 * n), written(out, 2 * n)}, [=] { ... });   // on the thread's current stream
//
// Work is done at once, on the thread that issues it. What a GPU would be free to do in another order is found by vector
// clocks: each stream and each thread of the host knows what is certainly done (plan/compile/races.h has the relation). Issuing work
// tells the stream what the thread knows, recording an event keeps what its stream knows, waiting for it passes that on, to
// a stream or to the thread. With TESSERA_SIMULATED_RECORD=1 each use of bytes is compared with the last uses of the same
// bytes, on the device and in page-locked memory: two uses in no order, one of which writes, are an error that names both.
// Memory that is freed and taken again is not looked at: what counts are uses of the same bytes, whosever they are.
//
// TESSERA_SIMULATED_FORGET="backward,swap" forgets waits from the start (forget_waits()).
//
// With TESSERA_SIMULATED_DELAY=1 (or another seed) copies and functions of the table on streams other than the first are done
// by a thread of the stream, each after a random time, and the first stream and the host really wait for events.
//
// With TESSERA_SIMULATED_FAULT="1,backward blocks.1" device 1 fails for good at the first work of that label, as a GPU at an
// illegal address: that call returns, what is given to the device from then on is not done, and calls throw. With
// TESSERA_SERIAL=1 that call throws. With TESSERA_SIMULATED_SLOW="1,stash" work of that label takes a minute on device 1,
// where it has a stream other than the first; TESSERA_SIMULATED_SLOW_GRAPH is the same of launches of graphs.
//
// Graphs: work is done as it is captured, so that operators have results, and again by each launch, in an order drawn from those
// that the streams and events of the capture allow. A message that has begun holds its stream alone until the other rank's part
// has come. As CUDA, a capture refuses to wait for an event from before it, a wait of
// the host, and an end before all of its streams are joined.
//
// With TESSERA_SIMULATED_LAUNCHES=FILE what the device is given is written to FILE, JSON objects to be added up by label and
// work (scripts/roofline-page does).
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tessera/device/backend.h"

namespace tessera::testing {

/// Bytes that an operation uses.
struct Use {
  const void* begin;
  int64_t bytes;
  bool writes;
};
inline Use read(const void* begin, int64_t bytes) { return {begin, bytes, false}; }
inline Use written(const void* begin, int64_t bytes) { return {begin, bytes, true}; }

/// What the host did since it was last asked.
struct HostCounts {
  int64_t waits = 0;       ///< for the device: copies to and from the host that were not enqueued, events, numbers
  int64_t bytes_back = 0;  ///< copied from the device to the host
};

/// Work of one name under one label: how often it touched memory, the bytes of its operands, the operations of its products.
struct Launches {
  int64_t count = 0, read = 0, written = 0;
  double flops = 0;
};

/// Work that a graph repeats.
struct GraphNode {
  std::string label, what;      // what the thread was labelled with, and the work
  int stream = 0;               // counted in the order in which streams came to the capture
  int64_t place = 0;            // of the node on its stream
  std::vector<int64_t> behind;  // by stream: how many of its nodes are certainly done when this one begins
  std::vector<Use> uses = {};
  std::function<void()> work = {};
  std::function<bool()> arrived = {};  // of a message, which `work` has begun
  std::function<void()> end = {};      // then
};
struct SimulatedGraph {
  std::vector<GraphNode> nodes;
  int64_t launches = 0;
};

class Timeline {
 public:
  Timeline();
  bool delays() const { return late_; }
  /// From here on as with TESSERA_SIMULATED_DELAY, without the random times if it is not set.
  void work_late(bool late);
  void compare_uses(bool on);  ///< as TESSERA_SIMULATED_RECORD
  /// Whether two uses were in no order since the last forget_waits(): what is freed on the way out, by destructors, is in none.
  bool found() const { return found_; }

  device::Stream make_stream(device::Priority priority);
  /// Of the streams that were made, by what their threads were last labelled with.
  std::map<std::string, device::Priority> priorities();
  void free_stream(device::Stream stream);
  void set_stream(device::Stream stream);  ///< of the calling thread; null: the first of its device
  device::Event make_event(bool timed);
  void free_event(device::Event event);
  void record(device::Event event);
  void wait_for(device::Event event);
  void await(device::Event event);
  bool has_happened(device::Event event);
  double seconds_between(device::Event from, device::Event to);  ///< as CUDA, of timed events that have happened
  void await_all();
  std::string fault() const { return failed_ ? kFault : ""; }
  void fail(bool fails) { failed_ = fails; }  ///< from here on, as at the label of TESSERA_SIMULATED_FAULT
  void label(const std::string& what);

  /// Work of the table.
  void run(const char* what, const std::vector<Use>& uses, std::function<void()> work);
  /// The same of work that the calling thread does right after the call.
  void begin(const std::string& what, const std::vector<Use>& uses);
  /// More uses of the work that the thread began last.
  void also(const std::vector<Use>& uses);
  /// The work that the thread began last has products of so many operations.
  void computes(double flops);
  /// The calling thread has waited for its stream.
  void host_waited();
  void copied_back(int64_t bytes);
  /// Code of the host uses page-locked memory at once.
  void host_uses(const Use& use);
  /// Nobody has used these bytes.
  void forget(const void* begin, int64_t bytes);

  void begin_graph();
  SimulatedGraph* end_graph();
  void launch(SimulatedGraph& graph);
  int64_t nodes_of(const SimulatedGraph& graph) const;
  void count_nodes_as(int64_t many) { counted_as_ = many; }  ///< each node of a graph, from here on
  /// How a launch repeats the work that the thread began last by begin(): nothing but views or sizes needs no such way.
  void repeated_by(std::function<void()> work);
  /// The same of a message: what it sends, whether all that it receives is there, and the rest.
  void repeated_by(std::function<void()> begin, std::function<bool()> arrived, std::function<void()> end);
  bool captures();  ///< the calling thread's stream
  /// Those that were made last, newest last; they may be freed already.
  std::vector<std::vector<GraphNode>> take_captured();

  HostCounts take_counts();
  /// By label and work, since it was last asked.
  std::map<std::pair<std::string, std::string>, Launches> take_launches();
  /// From here on streams do not wait for events where `waiter` begins what the thread is labelled with, and `recorder` what
  /// the event's thread was; empty words: all do again. A wait of the host is forgotten too, and where it asks, the event has happened.
  void forget_waits(std::string waiter, std::string recorder);
  /// From here on work on other streams than the first takes so much longer where its label begins so.
  void slow_down(std::string label, double seconds);

 private:
  using Clock = std::vector<uint64_t>;  // by stream: how much of its work is done
  static constexpr const char* kFault = "an illegal memory access was encountered (cudaErrorIllegalAddress)";
  struct Job {
    std::string label;
    std::function<void()> work;
    bool hangs = false;
  };
  struct StreamState {
    int index = 0;
    bool first = false, host = false;
    device::Priority priority{};
    std::string label;  // of its thread
    Clock clock;
    uint64_t given = 0;
    // of a delayed device
    uint64_t done = 0;
    std::deque<Job> queue;
    std::thread thread;
    bool stop = false;
    int captured = -1;  // its place among the streams of the capture
    int64_t nodes = 0;  // that it has of it
    std::vector<int64_t> behind;
  };
  struct EventState {
    Clock clock;
    std::string label;
    StreamState* stream = nullptr;
    uint64_t place = 0;
    bool timed = false;
    std::shared_ptr<std::atomic<double>> seconds;  // when the stream came to it
    int64_t capture = 0;                           // number of the capture that it is part of; 0: none
    std::vector<int64_t> behind = {};
  };
  struct LastUse {
    int stream;
    uint64_t at;
    const std::string *what, *label;
  };
  struct Cell {
    const char* end;
    std::vector<LastUse> reads, writes;
  };
  struct ThreadState {
    StreamState* stream = nullptr;
    StreamState* host = nullptr;  // what the thread does itself
    Clock known;
    std::string label;
    const std::string* what = nullptr;
    bool counted = false;  // among the launches
    int64_t node = -1;     // of the graph being captured: its last work
  };

  static ThreadState& mine();
  StreamState& add_stream();
  StreamState& current();
  void issue(StreamState& stream, const std::vector<Use>& uses);
  void name(const std::string& what);
  void count(const std::vector<Use>& uses);
  void add(const Launches& more);
  /// `clock`: what is done when the use begins, which belongs to `stream`.
  void compare(const StreamState& stream, const Clock& clock, const Use& use);
  void split(const char* at);
  const std::string* interned(const std::string& text) { return &*texts_.insert(text).first; }
  std::string describe(const LastUse& use) const;
  bool forgets(const EventState& event) const;
  void push(StreamState& stream, std::function<void()> work);
  void drain(StreamState& stream, uint64_t place, std::unique_lock<std::mutex>& lock);
  void serve(StreamState& stream);
  void fail_if_wanted();
  void keep(StreamState& stream, const std::vector<Use>& uses, std::function<void()> work);
  void join_capture(StreamState& stream, const EventState& event);
  void check_uncaptured(const EventState& event) const;
  void check_wait();
  void check() const;
  bool pending(const EventState& event) const { return event.stream && event.stream->done < event.place; }

  std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<std::unique_ptr<StreamState>> streams_;  // never destroyed: events point to them
  std::map<int, StreamState*> firsts_;                 // by device
  std::map<const char*, Cell> cells_;
  std::set<std::string> texts_;
  bool compares_ = false;
  std::atomic<bool> found_ = false;
  unsigned seed_ = 0;
  std::atomic<bool> late_ = false;
  HostCounts counts_;
  std::map<std::pair<std::string, std::string>, Launches> launches_;
  std::FILE* launches_log_ = nullptr;
  std::unique_ptr<SimulatedGraph> graph_;  // being captured
  StreamState* origin_ = nullptr;
  std::thread::id capturer_;
  std::vector<StreamState*> captured_;
  int64_t capture_ = 0;  // its number
  std::vector<std::vector<GraphNode>> made_;
  std::atomic<int64_t> counted_as_ = 1;
  std::string forgotten_waiter_, forgotten_recorder_;
  std::string slowed_;
  /// "1,backward blocks.1", of the environment: whether the calling thread's device is at that label.
  bool is_at(const std::string& place) const;
  const std::string fails_at_, hangs_at_, hangs_in_graphs_at_;
  double slowed_by_ = 0;
  std::atomic<bool> failed_ = false;
};

Timeline& timeline();

}  // namespace tessera::testing
