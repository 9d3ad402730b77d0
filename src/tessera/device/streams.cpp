#include "tessera/device/streams.h"

#include <cstdlib>
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
Pool& pool() {
  static auto* once = new Pool;  // marks of other statics may go after it would
  return *once;
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

 private:
  Stream stream_ = nullptr;
};

bool serial() {
  const char* wanted = std::getenv("TESSERA_SERIAL");
  return wanted && std::string_view(wanted) == "1";
}

thread_local std::string doing;

}  // namespace

void label(const std::string& what) {
  doing = what;
  if (used() && used()->label) used()->label(what);
}

const std::string& labelled() { return doing; }

bool has_streams() {
  static const bool one = serial();
  return used() && !one;
}

void own_stream(Priority priority) {
  static thread_local OwnStream stream;
  if (has_streams()) stream.make(priority);
}

Mark::~Mark() {
  if (!event_) return;
  const std::lock_guard lock(pool().mutex);
  pool().events.push_back(event_);
}

void Mark::record() {
  if (!used()) return;
  if (!event_) {
    const std::lock_guard lock(pool().mutex);
    if (!pool().events.empty()) event_ = pool().events.back(), pool().events.pop_back();
  }
  if (!event_) event_ = used()->make_event(/*timed=*/false);
  used()->record(event_);
}

}  // namespace tessera::device
