#pragma once
// Process groups of the mesh and their collectives, as thin calls to c10d.
//
//   Comm comm(rendezvous_from_env(), mesh, timeout_seconds);
//   Group& gather = comm.group("gather", kShardAxes);
//   gather.all_gather(slot, shard);
//
// Each (purpose, axes) is a communicator of its own, so gathers, reductions and control never wait for each other. All
// calls block the calling thread; different groups may be used from different threads at once. A group of one does what
// the collective means for one rank. Collectives take no memory of their own, but for 4 MiB of all_reduce. Between
// ranks of one machine what is large is read from the other's memory (same_host.h).
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/torch_headers.h"

namespace tessera::comm {

/// Point-to-point transport of one group; the backend's part.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Sends `out[i]` to member i and receives `in[i]` from it, for every member but this one (undefined: nothing), and
  /// returns when all is done. Throws on time-out or a lost peer.
  virtual void exchange(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) = 0;
};

/// Told by the thread of a collective when it begins to wait for others (true) and when it has them (false). After a
/// failure there is no second call: where it failed stays known.
using Watch = std::function<void(bool waits)>;

/// Seconds that the calling thread has spent in collectives, waiting for others included: only grows.
double seconds_in_collectives();

class Group {
 public:
  Group(std::string name, std::string axis, std::vector<int> members, int index, std::unique_ptr<Transport> transport);

  const std::string& name() const { return name_; }
  const std::string& axis() const { return axis_; }  ///< "dp_shard"; empty for a group of one
  int size() const { return static_cast<int>(members_.size()); }
  int rank() const { return index_; }  ///< this process's place in the group
  const std::vector<int>& members() const { return members_; }

  /// out [N * n] = the members' shards [n] one after the other; any dtype. `in` may be this member's place in `out`.
  void all_gather(at::Tensor out, const at::Tensor& in);
  /// shard [n] (+)= sum over members, in their order, of their flat [N * n] at this member's place. `scratch` [N * n].
  /// fp32; the same bits every time.
  void reduce_scatter(at::Tensor shard, const at::Tensor& flat, at::Tensor scratch, bool accumulate);
  /// In place, fp32, summed in members' order: every member has the same bits.
  void all_reduce(at::Tensor tensor);
  /// out[i] goes to member i and in[i] comes from it; this member's own is copied. Both ends know the sizes; what is
  /// empty is not sent. Contiguous, any dtype.
  void all_to_all(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in);
  /// `out` goes to the next member and `in` comes from the one before, in a circle.
  void shift(const at::Tensor& out, const at::Tensor& in);
  /// Row i: what member i gave. All give the same number of values.
  std::vector<std::vector<double>> all_gather_doubles(const std::vector<double>& mine);
  /// To and from the other member of a pair.
  void send(const at::Tensor& tensor);
  void recv(at::Tensor tensor);
  /// Every member gets what member `root` has.
  void broadcast(at::Tensor tensor, int root);
  void barrier();
  int64_t take_sent_bytes();  ///< since the last call
  void watch(Watch watch) { watch_ = std::move(watch); }
  /// For a thread that waits for what another sends here.
  void waits(bool inside) const;

 private:
  void run(const char* what, const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in);

  const std::string name_, axis_;
  const std::vector<int> members_;
  const int index_;
  std::unique_ptr<Transport> transport_;
  static constexpr int64_t kAllReducePiece = 1 << 20;  // values at a time
  std::vector<float> buffer_;                          // of all_reduce, kept
  int64_t sent_ = 0;
  Watch watch_;
};

class Comm {
 public:
  /// Meets the other ranks; `timeout` seconds bound every collective. Throws UserError (rank_lost) when one does not
  /// come.
  Comm(const Rendezvous& place, const Mesh& mesh, double timeout = 60);
  ~Comm();

  /// The group of this rank for the purpose over the axes; made on first use, by all ranks in the same order.
  Group& group(std::string_view purpose, const std::vector<Axis>& axes);
  /// The same of some ranks along `axis`, this one among them: a pair of neighbour stages.
  Group& group_of(std::string_view purpose, const std::string& axis, const std::vector<int>& members);
  void barrier();
  /// Throws UserError (usage) on every rank when a rank has another text, naming the first that differs from rank 0.
  void check_agreement(std::string_view what, std::string_view text);
  /// Bytes this rank sent over each axis since the last call.
  std::map<std::string, int64_t> take_sent_bytes();
  /// Watches all groups, also those that are made later.
  void watch(Watch watch);

 private:
  struct Backend;
  const Rendezvous place_;
  const Mesh mesh_;
  std::unique_ptr<Backend> backend_;
  std::map<std::string, std::unique_ptr<Group>> groups_;
  Watch watch_;
};

}  // namespace tessera::comm
