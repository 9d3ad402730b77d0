#pragma once
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
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/comm/group.h"
#include "tessera/comm/rendezvous.h"

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
  Watch watch_;
};

}  // namespace tessera::comm
