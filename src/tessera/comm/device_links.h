#pragma once
// Messages of groups whose tensors lie on the device: enqueued on the calling thread's stream by the device's communicators
// (device/communicators.h), without a wait of the host. Internal to the room.
//
//   DeviceLinks links(*device::used()->communicators, timeout + 10);
//   const auto transport = links.connect("ring:cp", index, size, device_messages("ring"), agree);   // all, in one order
//   transport->exchange("all_gather", out, in);                                    // returns when the stream has it
//   links.check();                                                                 // throws what has failed since
//
// A thread looks at what the device was given. What has begun and does not end within the deadline, or is known to have
// failed, ends all communicators of the process, so that no stream and no host waits any more, and check() says what it
// was. The deadline counts the time in which this process is awake (patience.h).
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tessera/base/device_messages.h"
#include "tessera/comm/transport.h"
#include "tessera/device/communicators.h"

namespace tessera::comm {

class Group;

/// Messages of a graph of the device (Comm::begin_capture), by link and in their order there.
struct GraphMessages {
  struct Message {
    const char* what;
    int64_t bytes;
    std::string label;  // of the instruction
  };
  struct OfLink {
    const Transport* link;
    std::string name;
    std::vector<Message> messages;
  };
  std::vector<OfLink> links;
  std::map<Group*, int64_t> sent;  // bytes of a launch
};

class DeviceLinks {
 public:
  DeviceLinks(const device::Communicators& table, double seconds);
  ~DeviceLinks();
  DeviceLinks(const DeviceLinks&) = delete;
  DeviceLinks& operator=(const DeviceLinks&) = delete;

  /// What member 0 passes, on all members.
  using Agree = std::function<std::string(const std::string& mine)>;
  /// A communicator, which has sent a byte in each way in which `messages` go: none connects anything later.
  std::unique_ptr<Transport> connect(const std::string& name, int index, int size, const DeviceMessages& messages,
                                     const Agree& agree);
  /// Throws PeerError or std::runtime_error if a message has failed.
  void check() const;
  /// Messages that are given from here on become nodes of a graph: [Note: messages of a graph].
  void begin_capture();
  std::shared_ptr<GraphMessages> end_capture();
  /// A launch of the graph is about to be given to the device, which has done the one before.
  void launches(std::shared_ptr<const GraphMessages> graph);
  /// Why no graph may have messages; empty: one may.
  std::string against_capture() const;
  /// Called by the thread when the device has been in a message for a while, and when it no longer is.
  void watch(DeviceWatch watch);
  std::string version() const;

 private:
  class Link;
  struct Outstanding;
  class Watcher;
  const std::unique_ptr<Watcher> watcher_;
};

}  // namespace tessera::comm
