#pragma once
// What a machine can do: the rates of a whole node, shipped with their sources or measured by `tessera probe`.
//
//   const Profile node = find_profile("h200");                       // "1xh200", "8xa100-80", "mine.toml"
//   node.device.gemm.at("bf16").seconds(2.0 * m * n * k);            // seconds of one product
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::plan {

/// A rate that small work does not reach: `half` is the work done at half of `top`. Work is FLOPs or bytes.
struct Rate {
  double top = 0, half = 0;
  double seconds(double work) const { return work > 0 && top > 0 ? (work + half) / top : 0; }
  bool operator==(const Rate&) const = default;
};

using RateByDtype = std::map<std::string, Rate>;  ///< "fp32", "tf32", "bf16", "fp8"

struct DeviceProfile {
  int64_t memory = 0;  ///< bytes
  Rate bandwidth;      ///< bytes/s of plain arithmetic over long buffers: the optimiser, norms of gradients
  Rate stream;         ///< bytes/s that the operators between products read and write (norms, gates, GELU)
  RateByDtype gemm;    ///< FLOP/s of a product
  RateByDtype attention, attention_backward;  ///< FLOP/s; a backward counts 2.5 times the forward's FLOPs
  bool operator==(const DeviceProfile&) const = default;
};

/// Bytes/s in one direction, as a ring sees them (what NCCL's tests call bus bandwidth).
struct LinkProfile {
  double gather = 0, reduce = 0;
  double latency = 0;  ///< seconds of each of a ring's n - 1 hops
  bool operator==(const LinkProfile&) const = default;
};

struct Profile {
  std::string name, source;
  int devices = 0;  ///< of a node; 0: any number of ranks shares it (CPU)
  DeviceProfile device;
  LinkProfile link;                      ///< between the devices of a node, for each device
  LinkProfile nic;                       ///< between nodes, for the whole node
  double host_link = 0;                  ///< bytes/s between a device and host memory, each direction
  double host_bandwidth = 0;             ///< bytes/s of host memory, all devices of the node together
  int64_t host_memory = 0;               ///< bytes of the node
  double disk_read = 0, disk_write = 0;  ///< bytes/s of the node
  int64_t disk = 0;                      ///< bytes of the node
  /// Share of a collective's time that compute beside it loses (SMs and memory on a GPU, whole cores on a CPU).
  double steal = 0;
  bool operator==(const Profile&) const = default;

  std::string to_toml() const;
};

/// The shipped nodes, from sources that each names. "h200" is the node of eight, "1xh200" one device of it.
const std::vector<Profile>& shipped_profiles();

/// A shipped name, or the path of a file that `tessera probe --out` wrote. Throws UserError (usage) naming the nearest
/// name, (input) naming file and key.
Profile find_profile(std::string_view name_or_file);
Profile parse_profile(std::string_view text, const std::string& file);

}  // namespace tessera::plan
