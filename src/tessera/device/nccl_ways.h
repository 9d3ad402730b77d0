#pragma once
// How GPUs reach each other, as NCCL's log tells (NCCL_DEBUG=INFO), and what is slower than it need be.
//
//   Ways ways;
//   ways.read("host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n");
//   ways.text();                          // "host memory"
//   ways.warning(/*one_machine=*/true);   // what to look at
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace tessera::device {

class Ways {
 public:
  /// Whole lines; those that say nothing of ways are passed over.
  void read(std::string_view log);
  bool known() const { return !found_.empty(); }
  /// "NVLink, RDMA into GPU memory"; empty: not known.
  std::string text() const;
  /// Of a communicator whose members are on one machine, or on several. Empty: nothing.
  std::string warning(bool one_machine) const;

 private:
  enum class Way { peers, host, rdma, rdma_by_host, sockets };
  void read_line(std::string_view line);

  bool nvlink_ = false;  // between the GPUs of a machine
  std::set<Way> found_;
};

/// Why /dev/shm of `bytes` is too small for `ranks` ranks on this machine; empty: it is not.
std::string small_shared_memory(int64_t bytes, int ranks);

}  // namespace tessera::device
