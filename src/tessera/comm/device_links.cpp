#include "tessera/comm/device_links.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "tessera/comm/patience.h"
#include "tessera/comm/rings.h"
#include "tessera/device/nccl_ways.h"
#include "tessera/device/streams.h"

namespace tessera::comm {

namespace {

constexpr auto kPeriod = std::chrono::milliseconds(50);
constexpr double kTold = 0.2;  // seconds in a message until it is told
/// A thread that waits for the library looks again and again for so long before it sleeps: the library launches what it is
/// given from a thread of its own, some tens of microseconds later, and a sleep is ten times as long.
constexpr auto kLooks = std::chrono::milliseconds(1);

/// Seconds that the device was in a thread's messages, which the thread that looks adds up; null: they are not timed.
thread_local std::shared_ptr<std::atomic<double>> timed_seconds;

std::vector<device::Message> messages(const std::vector<at::Tensor>& tensors) {
  std::vector<device::Message> all;
  all.reserve(tensors.size());
  for (const at::Tensor& t : tensors)
    all.push_back(t.defined() ? device::Message{t.mutable_data_ptr(), static_cast<int64_t>(t.nbytes())}
                              : device::Message{});
  return all;
}

}  // namespace

/// A message that was given to a stream, or is about to be.
struct DeviceLinks::Outstanding {
  const Link* link;
  const char* what;
  int64_t bytes;
  std::string label;                                            // of the instruction
  std::shared_ptr<std::atomic<double>> timed;                   // of the thread that gave it
  device::Mark begin{timed != nullptr}, end{timed != nullptr};  // on its stream
  bool given = false;                                           // `end` is recorded
  double began = -1;                                            // when the device was seen in it; negative: not yet
  bool told = false;
};

/// What the thread looks at.
class DeviceLinks::Watcher {
 public:
  Watcher(const device::Communicators& table, double seconds) : table(table), seconds(seconds) {
    words_ = static_cast<uint32_t*>(device::used()->take_pinned(kWords * static_cast<int64_t>(sizeof(uint32_t))));
    thread_ = std::thread([this] { look(); });
  }
  ~Watcher() {
    {
      const std::lock_guard hold(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
    if (words_) device::used()->give_pinned(words_);
  }

  using Entry = std::list<Outstanding>::iterator;
  Entry begins(const Link& link, const char* what, int64_t bytes) {
    Outstanding message{&link, what, bytes, device::labelled(), timed_seconds};
    message.begin.record();
    const std::lock_guard hold(mutex_);
    return list_.insert(list_.end(), std::move(message));
  }
  void given(Entry entry) {
    entry->end.record();  // nobody looks at it before it is given
    const std::lock_guard hold(mutex_);
    entry->given = true;
  }
  void forget(Entry entry) {
    const std::lock_guard hold(mutex_);
    list_.erase(entry);
  }
  void add(const Link& link) {
    const std::lock_guard hold(mutex_);
    links_.insert(&link);
  }
  void remove(const Link& link) {
    const std::lock_guard hold(mutex_);
    links_.erase(&link);
    running_.reset();
    std::erase_if(list_, [&](const Outstanding& o) { return o.link == &link; });
  }
  /// The process sends nothing more.
  void fail(const std::string& why) {
    const std::lock_guard hold(mutex_);
    fail_held(why);
  }
  /// Without the lock, which is held while communicators are ended: whoever waits learns of the failure at once.
  void check() const {
    if (failed_.load(std::memory_order_acquire)) throw std::runtime_error(failure_);
  }
  void watch(DeviceWatch watch) {
    const std::lock_guard hold(mutex_);
    watch_ = std::move(watch);
  }

  // Graphs
  bool captures() const { return captures_; }
  std::string against_capture() const {
    if (!words_) return "the driver has no page-locked memory for the progress of messages in a graph";
    const std::lock_guard hold(mutex_);
    return links_.size() > kWords / 2 ? "more than " + std::to_string(kWords / 2) + " communicators" : "";
  }
  void begin_capture() {
    captured_ = std::make_shared<GraphMessages>();
    last_ = device::Mark();
    captures_ = true;
  }
  std::shared_ptr<GraphMessages> end_capture() {
    captures_ = false;
    return std::move(captured_);
  }
  template <class Act>
  void capture(const Link& link, const char* what, int64_t bytes, Act act);
  void launches(std::shared_ptr<const GraphMessages> graph) {
    const std::lock_guard hold(mutex_);
    for (int64_t w = 0; w < kWords; ++w) std::atomic_ref(words_[w]).store(0, std::memory_order_release);
    inside_.assign(graph->links.size(), {});
    running_ = std::move(graph);
  }

  const device::Communicators& table;
  const double seconds;

 private:
  void fail_held(const std::string& why);
  void look();
  void look_at_all();
  void look_at(Outstanding& message);
  void look_at_graph();
  uint32_t word(size_t link, bool ended) const {
    return std::atomic_ref(words_[2 * link + ended]).load(std::memory_order_acquire);
  }
  /// A message of a running graph that the device is in.
  struct Inside {
    uint32_t number = 0;
    double began = 0;
    bool told = false;
  };
  bool outlasts(double began, bool& told, const std::string& text);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::list<Outstanding> list_;
  std::set<const Link*> links_;
  DeviceWatch watch_;
  double awake_ = 0;  // seconds in which this process was awake
  std::atomic<bool> failed_ = false;
  std::string failure_;                    // written once, before failed_
  static constexpr int64_t kWords = 2048;  // two of each link
  uint32_t* words_ = nullptr;              // page-locked; null: the driver has none
  std::atomic<bool> captures_ = false;
  std::shared_ptr<GraphMessages> captured_;
  device::Mark last_;  // the message of the capture that was given last
  std::shared_ptr<const GraphMessages> running_;
  std::vector<Inside> inside_;  // of its links
  std::thread thread_;
};

class DeviceLinks::Link final : public Transport {
 public:
  Link(Watcher& watched, std::string name) : watcher_(watched), name_(std::move(name)) {}
  ~Link() override {
    if (!made_) return;
    watcher_.remove(*this);
    watcher_.table.close_window(made_);
    watcher_.table.free(made_);
  }

  void open(int index, int size, const DeviceMessages& messages, const Agree& agree) {
    index_ = index, rings_ = messages.rings;
    const std::string id = agree(index == 0 ? watcher_.table.new_id() : "");
    made_ = watcher_.table.connect(id, size, index, messages.channels, name_);
    watcher_.add(*this);
    settle("connecting");
    greet(index, size, messages);
    ways_.read(watcher_.table.told());
  }

  void exchange(const char* what, const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) override {
    const std::vector<device::Message> sent = messages(out), received = messages(in);
    int64_t bytes = 0;
    for (const auto* side : {&sent, &received})
      for (const device::Message& m : *side) bytes = std::max(bytes, m.bytes);
    give(what, bytes, [&] { watcher_.table.exchange(made_, sent, received); });
  }

  /// This member's part lies in its place already.
  bool all_gather(const at::Tensor& out, const at::Tensor& in) override {
    const auto bytes = static_cast<int64_t>(in.nbytes());
    if (bytes == 0) return true;
    char* all = static_cast<char*>(out.mutable_data_ptr());
    give("all_gather", bytes, [&] { watcher_.table.all_gather(made_, all, all + index_ * bytes, bytes); });
    return true;
  }

  bool reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    give("reduce_scatter", static_cast<int64_t>(in.nbytes()), [&] {
      watcher_.table.reduce_scatter(made_, out.mutable_data_ptr<float>(), in.const_data_ptr<float>(), out.numel());
    });
    return true;
  }

  bool all_reduce(const at::Tensor& values) override {
    give("all_reduce", static_cast<int64_t>(values.nbytes()),
         [&] { watcher_.table.all_reduce(made_, values.mutable_data_ptr<float>(), values.numel()); });
    return true;
  }

  const device::Ways* ways() const override { return &ways_; }
  void lend(void* data, int64_t bytes) override {
    const bool taken = watcher_.table.lend(made_, data, bytes);
    lends_ = taken && (lends_ || !std::exchange(lent_, true));
  }
  bool lends() const override { return lends_; }
  bool has_collectives() const override { return rings_; }

  std::string open_window(void* data, int64_t bytes) override {
    std::optional<std::string> answer;
    wait_until("opening a window",
               [&] { return (answer = watcher_.table.open_window(made_, data, bytes)).has_value(); });
    return *answer;
  }
  void close_window() override { watcher_.table.close_window(made_); }
  const std::string& name() const { return name_; }
  /// Whose members have other lists: [Note: one order of issue].
  bool between_stages() const { return name_.starts_with("activations") || name_.starts_with("gradients"); }
  std::string fault() const { return watcher_.table.fault(made_); }
  device::Communicator communicator() const { return made_; }

 private:
  template <class Act>
  void give(const char* what, int64_t bytes, Act act) {
    watcher_.check();
    if (watcher_.captures()) {
      return watcher_.capture(*this, what, bytes, [&] {
        act();
        settle(what);
      });
    }
    const auto entry = watcher_.begins(*this, what, bytes);
    try {
      act();
      settle(what);
    } catch (...) {
      watcher_.forget(entry);
      throw;
    }
    watcher_.given(entry);
  }

  /// Waits until the host has done its part, which is no more than to launch once all are connected.
  void settle(const char* what) {
    wait_until(what, [&] { return watcher_.table.settled(made_); });
  }
  template <class Done>
  void wait_until(const char* what, Done done) {
    std::optional<Patience> patience;
    const auto begun = std::chrono::steady_clock::now();
    while (!done()) {
      watcher_.check();
      if (!patience) patience.emplace(watcher_.seconds);
      if (patience->over()) {
        watcher_.fail("not all ranks of " + name_ + " started " + what + " within fault.timeout");
        watcher_.check();
      }
      if (std::chrono::steady_clock::now() - begun < kLooks)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    watcher_.check();
  }

  /// A byte in each way that messages will go: what the first message between two connects is connected now, while nothing
  /// else is under way.
  void greet(int index, int size, const DeviceMessages& messages) {
    constexpr int64_t kApart = 16;
    auto* bytes = static_cast<char*>(device::scratch(0, 2 * kApart * size));
    if (!bytes) throw std::runtime_error("the device has no memory left for messages: lower plan.budget");
    std::vector<device::Message> out(static_cast<size_t>(size)), in(out);
    const std::vector<int> peers = messages.peers_of(index, size);
    for (const int i : peers) {
      out[static_cast<size_t>(i)] = {bytes + kApart * i, 1};
      in[static_cast<size_t>(i)] = {bytes + kApart * (size + i), 1};
    }
    if (!peers.empty()) give("connecting", 1, [&] { watcher_.table.exchange(made_, out, in); });
    if (messages.rings)
      give("connecting", 1, [&] { watcher_.table.all_gather(made_, bytes, bytes + kApart * index, kApart); });
    device::Mark done;
    done.record();
    done.await();
    watcher_.check();
  }

  Watcher& watcher_;
  const std::string name_;
  int index_ = 0;
  bool lent_ = false, lends_ = false, rings_ = false;
  device::Ways ways_;
  device::Communicator made_ = nullptr;
};

void DeviceLinks::Watcher::fail_held(const std::string& why) {
  if (failed_.load(std::memory_order_relaxed)) return;
  failure_ = why;
  failed_.store(true, std::memory_order_release);
  std::vector<device::Communicator> all;
  for (const Link* link : links_) all.push_back(link->communicator());
  table.abort_all(all);
}

void DeviceLinks::Watcher::look() {
  using Clock = std::chrono::steady_clock;
  std::unique_lock hold(mutex_);
  for (auto looked = Clock::now(); !stop_;) {
    changed_.wait_for(hold, kPeriod);
    const auto now = Clock::now();
    awake_ += std::min(std::chrono::duration<double>(now - looked).count(), kPause);
    looked = now;
    try {
      device::enter_thread();
      look_at_all();
    } catch (const std::exception& error) {  // the device has failed for good
      const std::string text = error.what();
      fail_held(text.substr(0, text.find('\n')));
    }
  }
}

void DeviceLinks::Watcher::look_at_all() {
  for (auto at = list_.begin(); at != list_.end();) {
    const bool done = at->given && at->end.passed();
    if (done && at->told && watch_) watch_("", false);
    if (done && at->timed) *at->timed += at->end.seconds_since(at->begin);
    if (!done) look_at(*at);
    at = done ? list_.erase(at) : std::next(at);
  }
  if (running_) look_at_graph();
  for (const Link* link : links_)
    if (!failed_)
      if (const std::string fault = link->fault(); !fault.empty()) fail_held(fault + " (" + link->name() + ")");
}

/// Whether the device has been in a message for longer than the deadline. Tells once that it is in one for a while.
bool DeviceLinks::Watcher::outlasts(double began, bool& told, const std::string& text) {
  const double inside = awake_ - began;
  if (inside > kTold && !std::exchange(told, true) && watch_) watch_(text, true);
  return inside > seconds;
}

namespace {
std::string doing_text(const std::string& label, const std::string& link) {
  return (label.empty() ? "a message" : label) + " on " + link;
}
}  // namespace

void DeviceLinks::Watcher::look_at(Outstanding& message) {
  if (failed_ || !message.begin.passed()) return;
  if (message.began < 0) message.began = awake_;
  const std::string text = doing_text(message.label, message.link->name());
  if (outlasts(message.began, message.told, text))
    fail_held(std::string(message.what) + " of " + std::to_string(message.bytes) + " bytes, " + text +
              ", began on the device and did not end");
}

/// [Note: messages of a graph] Events of a graph cannot be asked for. So the graph itself writes to page-locked memory, for each
/// link, the number of the message that begins and of the one that has ended, and the thread looks at these words while
/// a launch of it runs. The messages of all links but those between stages come one after the other, by edges, in the order
/// in which they were given to their streams: [Note: one order of issue] holds in a launch as well, whatever the library does.
/// Neighbours among the stages have other lists, so a receive that others had to wait for might wait for what they send: each
/// direction keeps to its own stream.
template <class Act>
void DeviceLinks::Watcher::capture(const Link& link, const char* what, int64_t bytes, Act act) {
  std::vector<GraphMessages::OfLink>& links = captured_->links;  // given in turn: nobody else is here
  auto of = std::ranges::find(links, &link, &GraphMessages::OfLink::link);
  if (of == links.end()) of = links.insert(links.end(), {&link, link.name(), {}});
  of->messages.push_back({what, bytes, device::labelled()});
  uint32_t* words = words_ + 2 * (of - links.begin());
  const auto number = static_cast<uint32_t>(of->messages.size());
  const auto write = [&](uint32_t* word) {
    if (!device::used()->write_word(word, number))
      throw std::runtime_error("the device writes no numbers to the host, by which messages of a graph are watched");
  };
  const bool in_turn = !link.between_stages();
  if (in_turn) last_.order();
  write(words);
  act();
  write(words + 1);
  if (in_turn) last_.record();
}

void DeviceLinks::Watcher::look_at_graph() {
  bool over = true;
  for (size_t i = 0; i < running_->links.size() && !failed_; ++i) {
    const GraphMessages::OfLink& of = running_->links[i];
    Inside& inside = inside_[i];
    const uint32_t ended = word(i, true), began = word(i, false);
    over = over && ended == of.messages.size();
    if (began == ended || inside.number != began) {
      if (inside.told && watch_) watch_("", false);
      inside = {began, awake_, false};
    }
    if (began <= ended || began > of.messages.size()) continue;
    const GraphMessages::Message& message = of.messages[began - 1];
    const std::string text = doing_text(message.label, of.name) + ", in a graph";
    if (outlasts(inside.began, inside.told, text))
      fail_held(std::string(message.what) + " of " + std::to_string(message.bytes) + " bytes, " + text +
                ", began on the device and did not end");
  }
  if (over) running_.reset();
}

DeviceLinks::DeviceLinks(const device::Communicators& table, double seconds)
    : watcher_(std::make_unique<Watcher>(table, seconds)) {}
DeviceLinks::~DeviceLinks() = default;

std::unique_ptr<Transport> DeviceLinks::connect(const std::string& name, int index, int size,
                                                const DeviceMessages& messages, const Agree& agree) {
  auto link = std::make_unique<Link>(*watcher_, name);
  link->open(index, size, messages, agree);
  return link;
}

void time_device_messages() {
  if (!timed_seconds) timed_seconds = std::make_shared<std::atomic<double>>(0);
}
double seconds_in_device_messages() { return timed_seconds ? timed_seconds->load() : 0; }

void DeviceLinks::begin_capture() { watcher_->begin_capture(); }
std::shared_ptr<GraphMessages> DeviceLinks::end_capture() { return watcher_->end_capture(); }
void DeviceLinks::launches(std::shared_ptr<const GraphMessages> graph) { watcher_->launches(std::move(graph)); }
std::string DeviceLinks::against_capture() const { return watcher_->against_capture(); }

void DeviceLinks::check() const { watcher_->check(); }
void DeviceLinks::watch(DeviceWatch watch) { watcher_->watch(std::move(watch)); }
std::string DeviceLinks::version() const { return watcher_->table.version(); }

}  // namespace tessera::comm
