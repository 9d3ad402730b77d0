#include "tessera/device/streams.h"

#include <ATen/record_function.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::device {

namespace {

/// Events of marks that are gone, for the next ones.
struct Pool {
  std::mutex mutex;
  std::vector<Event> events;
};
Pool& pool(bool timed) {
  static auto* once = new Pool[2];  // marks of other statics may go after it would
  return once[timed];
}

class OwnStream {
 public:
  ~OwnStream() {
    if (stream_) used()->free_stream(stream_);
  }
  void make(Priority priority) {
    if (stream_) return;
    stream_ = used()->make_stream(priority);
    used()->set_stream(stream_);
  }
  Stream stream() const { return stream_; }

 private:
  Stream stream_ = nullptr;
};

OwnStream& of_thread() {
  static thread_local OwnStream stream;
  return stream;
}

std::atomic<const char*> newest_operator = nullptr;

/// Names are the dispatcher's, which keeps them.
std::unique_ptr<at::ObserverContext> note_operator(const at::RecordFunction& function) {
  newest_operator = function.name();
  return nullptr;
}

bool serial() {
  const char* wanted = std::getenv("TESSERA_SERIAL");
  const bool is = wanted && std::string_view(wanted) == "1";
  if (is) at::addGlobalCallback(at::RecordFunctionCallback(&note_operator).scopes({at::RecordScope::FUNCTION}));
  return is;
}

thread_local std::string doing;

}  // namespace

void label(const std::string& what) {
  doing = what;
  if (used() && used()->label) used()->label(what);
}

const std::string& labelled() { return doing; }

std::string last_operator() {
  const char* name = newest_operator;
  return name ? name : "";
}

bool has_streams() {
  static const bool one = serial();
  return used() && !one;
}

void own_stream(Priority priority) {
  if (has_streams()) of_thread().make(priority);
}

SideStream::~SideStream() {
  if (stream_) used()->free_stream(stream_);
}

SideStream::Scope::Scope(SideStream& stream) {
  if (!has_streams()) return;
  if (!stream.stream_) stream.stream_ = used()->make_stream(Priority::normal);
  used()->set_stream(stream.stream_);
}

SideStream::Scope::~Scope() {
  if (has_streams()) used()->set_stream(of_thread().stream());
}

Mark::~Mark() {
  if (!event_) return;
  Pool& mine = pool(timed_);
  const std::lock_guard lock(mine.mutex);
  mine.events.push_back(event_);
}

void Mark::record() {
  if (!used()) return;
  if (!event_) {
    Pool& mine = pool(timed_);
    const std::lock_guard lock(mine.mutex);
    if (!mine.events.empty()) event_ = mine.events.back(), mine.events.pop_back();
  }
  if (!event_) event_ = used()->make_event(timed_);
  used()->record(event_);
}

}  // namespace tessera::device
