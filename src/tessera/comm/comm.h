#pragma once
// A process group and its collectives, over a transport. Comm makes them (comm.h).
//
//   gather.all_gather(slot, shard);                       // Group& gather = comm.group("gather", kShardAxes)
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/transport.h"
#include "tessera/torch_headers.h"

namespace tessera::comm {

class Comm;
class DeviceLinks;

/// Seconds that the calling thread has spent in collectives, waiting included; never decreases.
double seconds_in_collectives();
/// From here on messages that the calling thread gives to the device are timed there.
void time_device_messages();
/// Seconds that the device was in the calling thread's messages, of those that are known to be done; never decreases.
double seconds_in_device_messages();

class Group {
 public:
  Group(std::string name, std::string axis, std::vector<int> members, int index, std::unique_ptr<Transport> transport);

  /// Makes the communicator for tensors on the device where use_device_links() has chosen them; does nothing elsewhere, or
  /// the second time. All members call it in the same order, while nothing else is under way. A group that has none sends
  /// copies.
  void connect();
  /// Messages of tensors in these bytes of the device need no copy of the library's own from here on, where it can. What is
  /// lent already, and a group without communicator, changes nothing. All members call it in the same order. The bytes that
  /// messages use, not the device's whole block: between machines the library registers all of them with each network card.
  void lend(void* data, int64_t bytes);
  /// The library's collectives on tensors in `memory` of the device may use the other members' directly from here on, at one
  /// offset in it on all members: a symmetric window, where the library opens one. Else they stay as they are, and
  /// window_text() says why. All members call it in the same order, while nothing else is under way. Does nothing for a group
  /// without collectives of the library.
  void open_window(const at::Tensor& memory);
  /// Before `memory` is freed, by all members; does nothing if its window is not the one that is open. Waits for the device.
  void close_window(const at::Tensor& memory);
  /// "collectives of 1.20 GiB in a symmetric window"; "no symmetric window: ..."; empty: none was asked for.
  const std::string& window_text() const { return window_text_; }
  /// Whether tensors on the device are sent by its own communicator.
  bool by_device() const { return device_transport_ != nullptr; }
  const Transport* device_transport() const { return device_transport_.get(); }
  bool by_shared_memory() const { return transport_ && transport_->by_shared_memory(); }

  const std::string& name() const { return name_; }
  const std::string& axis() const { return axis_; }  ///< "dp_shard"; empty for a group of one
  int size() const { return static_cast<int>(members_.size()); }
  int rank() const { return index_; }  ///< this process's index in the group
  const std::vector<int>& members() const { return members_; }

  /// out [N * n] = the members' shards [n], concatenated; any dtype. `in` may be this member's part of `out`.
  void all_gather(at::Tensor out, const at::Tensor& in);
  /// shard [n] (+)= sum over members, in rank order, of this member's part of their flat [N * n]. `scratch` [N * n].
  /// fp32; deterministic.
  void reduce_scatter(at::Tensor shard, const at::Tensor& flat, at::Tensor scratch, bool accumulate);
  /// In place, fp32, summed in rank order: every member gets the same bits.
  void all_reduce(at::Tensor tensor);
  /// out[i] goes to member i and in[i] comes from it; this member's own part is copied. Both ends know the sizes; empty
  /// tensors are not sent. Contiguous, any dtype.
  void all_to_all(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in);
  /// Ring shift: `out` goes to the next member and `in` comes from the previous one.
  void shift(const at::Tensor& out, const at::Tensor& in);
  /// Row i: the values of member i. All members pass the same number of values.
  std::vector<std::vector<double>> all_gather_doubles(const std::vector<double>& mine);
  /// Send to and receive from the other member of a group of two.
  void send(const at::Tensor& tensor);
  void recv(at::Tensor tensor);
  /// Copies `tensor` of member `root` to every member.
  void broadcast(at::Tensor tensor, int root);
  void barrier();
  int64_t take_sent_bytes();  ///< bytes sent since the last call
  void watch(Watch watch) { watch_ = std::move(watch); }
  /// Marks this thread as waiting for a message of this group that another thread receives.
  void waits(bool inside) const;

 private:
  friend class Comm;
  void run(const char* what, const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in);
  template <class Act>
  void guarded(const char* what, int64_t bytes, Act act);
  bool library_sums(const at::Tensor& tensor) const;

  const std::string name_, axis_;
  const std::vector<int> members_;
  const int index_;
  std::unique_ptr<Transport> transport_, device_transport_;
  DeviceLinks* links_ = nullptr;  // null: none are used
  std::function<std::unique_ptr<Transport>()> connect_;
  std::vector<std::pair<void*, int64_t>> lent_;
  bool one_machine_ = true;
  const void* window_ = nullptr;  // where the open one begins
  std::string window_text_;
  static constexpr int64_t kAllReducePiece = 1 << 20;  // values reduced at a time
  at::Tensor buffer(at::Device device, int64_t values);
  bool library_sums_ = false;
  std::vector<float> buffer_;  // memory of all_reduce, reused
  int64_t sent_ = 0;
  Watch watch_;
};

/// What a member of a group would open a window on: bytes of the block that it lends.
struct WindowPlace {
  int64_t block = 0, offset = 0, bytes = 0;  ///< block 0: the library has taken none
  bool operator==(const WindowPlace&) const = default;
};
/// Why the members of a group, of these ranks, open no window on these; empty: they may.
std::string against_window(const std::vector<WindowPlace>& places, const std::vector<int>& ranks, bool one_machine);

}  // namespace tessera::comm

// Process groups of the mesh, their collectives, and what connects them.
//
//   Comm comm(rendezvous_from_env(), mesh, timeout_seconds);
//   Group& gather = comm.group("gather", kShardAxes);
//   gather.all_gather(slot, shard);
//
// Each (purpose, axes) has its own communicator, so gathers, reductions and control never wait for each other. All
// calls block the calling thread; different groups may be used from different threads at once. In a group of one, a
// collective does what it means for one rank. Collectives allocate no memory, except 4 MiB for all_reduce.
//
// Tensors may lie on the process's device (device/backend.h). Where the ranks have agreed on it (use_device_links), these are
// sent by the device's own communicators: a collective is enqueued on the calling thread's stream and returns, as a copy
// does, and the tensors must stay until the stream has done it. Otherwise Gloo sends copies of them in host memory.
//
// Between ranks of one machine tensors in host memory travel through memory that the processes share ([Note: shared rings]);
// between machines, and where that memory cannot be had, by Gloo. TESSERA_SHARED_MEMORY=0 takes Gloo everywhere.

namespace tessera::device {
struct Communicators;
}  // namespace tessera::device

namespace tessera::comm {

/// How a communicator sends.
struct Link {
  std::string group;  ///< "gather:dp_shard"
  int ranks = 1;
  std::string by;       ///< "Gloo, TCP at 10.0.0.3 (eth0, 25000 Mb/s)"
  std::string warning;  ///< what is slower than it need be, and what to do; empty: nothing
};

struct GraphMessages;

class Comm {
 public:
  /// Connects to the other ranks; `timeout` (seconds) bounds every collective. Throws UserError (rank_lost) if a rank
  /// does not arrive.
  Comm(const Rendezvous& place, const Mesh& mesh, double timeout = 60);
  /// The ranks of `other` in another mesh, by the same store; one for each mesh. Its groups are its own.
  Comm(const Comm& other, const Mesh& mesh);
  ~Comm();

  /// This rank's group for the purpose over the axes; created on first use, which all ranks must do in the same order.
  Group& group(std::string_view purpose, const std::vector<Axis>& axes);
  /// A group of the given ranks along `axis`, which include this one: a pair of neighbour stages.
  Group& group_of(std::string_view purpose, const std::string& axis, const std::vector<int>& members);
  void barrier();
  struct DeviceLinking {
    bool used;
    std::string how;           ///< "NCCL 2.28.9"; or why not
    std::string warning = {};  ///< of what it may fail at on this machine; empty: nothing
  };
  /// Groups that are made from here on send what lies on the device by its own communicators, once they connect(), if every
  /// rank can. The same answer on all ranks, which all call it once. `against`: why this rank must not; empty: nothing.
  DeviceLinking use_device_links(std::string against = {});
  /// Whether use_device_links() has chosen them.
  bool by_device() const;
  // Messages of a graph of the device, all ranks of which capture and launch it together: NCCL wants the ranks of a message to
  // use graphs of one capture.
  /// Why there can be none; empty: there can.
  std::string against_capture() const;
  /// Messages on the device that are given from here on are the graph's. Before the device begins it.
  void begin_capture();
  std::shared_ptr<const GraphMessages> end_capture();
  /// Before each launch, while the device is in no other: its messages keep the deadline, and are counted as sent.
  void launches(const std::shared_ptr<const GraphMessages>& graph);
  /// From here on sums over tensors on the device are the library's, in its order, where use_device_links() has chosen it:
  /// faster, and not the same bits as on another layout, library or machine. Others stay in the order of ranks.
  void sum_by_library();
  /// Of the groups of several ranks that there are, as this rank sends.
  std::vector<Link> links() const;
  /// Throws UserError (usage) on every rank if ranks have different texts, naming the first that differs from rank 0.
  void check_agreement(std::string_view what, std::string_view text);
  /// Bytes this rank sent over each axis since the last call.
  std::map<std::string, int64_t> take_sent_bytes();
  /// Watches all groups, including those created later.
  void watch(Watch watch);
  void watch_device(DeviceWatch watch);

 private:
  struct Shared;
  void make_device_links(const device::Communicators& table);
  const Rendezvous place_;
  const Mesh mesh_;
  std::shared_ptr<Shared> shared_;
  const std::string within_;  // what the names of its groups begin with in the store
  std::map<std::string, std::unique_ptr<Group>> groups_;
  bool library_sums_ = false;
  std::map<Group*, int64_t> sent_before_;  // the capture
  Watch watch_;
};

}  // namespace tessera::comm
