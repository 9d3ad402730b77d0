#pragma once
// Rates of a machine: a whole node, shipped with sources or measured by `tessera probe`.
//
//   const Profile node = find_profile("h200");                       // "1xh200", "RTX 4090", "8x4090", "mine.toml"
//   node.device.gemm.at("bf16").seconds(2.0 * m * n * k);            // seconds of one product
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::plan {

// Measured times by signature: the seconds of a call at each point of a grid of its sizes, by kind of call.
//
//   TimeGrid grid{.axes = {{16, 256}, {512}, {512}}, .seconds = {{"forward", {40e-6, 500e-6}}}};
//   grid.at("forward", {64, 512, 1024});      // between the points, and beyond them at the rate of the nearest

struct TimeGrid {
  std::vector<std::vector<double>> axes = {};               ///< sizes above zero, ascending
  std::map<std::string, std::vector<double>> seconds = {};  ///< one a point, the last axis runs fastest
  bool empty() const { return seconds.empty(); }
  /// Seconds of a call of these sizes, one for each axis: times are powers of sizes between neighbouring points, and grow
  /// with each size beyond the first and last. `kind` must be known.
  double at(const std::string& kind, const std::vector<double>& sizes) const;
  bool operator==(const TimeGrid&) const = default;
};

/// A rate that small work does not reach: at `half` work the rate is half of `top`. Work is FLOPs or bytes.
struct Rate {
  double top = 0, half = 0;
  double seconds(double work) const { return work > 0 && top > 0 ? (work + half) / top : 0; }
  bool operator==(const Rate&) const = default;
};

using RateByDtype = std::map<std::string, Rate>;  ///< "fp32", "tf32", "bf16", "fp8"

/// Of operators of one kind, by the bytes that their forward reads and writes.
struct OperatorRates {
  Rate forward, backward;
  bool operator==(const OperatorRates&) const = default;
};

/// Ends the name of a dtype for attention by cuDNN's kernel: "bf16_cudnn"; without it, on a GPU, flash computes.
inline constexpr std::string_view kByCudnn = "_cudnn";

struct DeviceProfile {
  int64_t memory = 0;  ///< bytes
  Rate bandwidth;      ///< bytes/s of elementwise work on long buffers: the optimiser
  Rate norm = {};      ///< bytes/s of gradients that are squared and summed; 0: as bandwidth
  Rate stream;         ///< bytes/s of the operators between products (norms, gates, GELU)
  RateByDtype gemm;    ///< FLOP/s of matrix products
  /// FLOP/s of attention, also by kernel (kByCudnn); a backward counts 2.5 times the forward's FLOPs.
  RateByDtype attention, attention_backward;
  // Measured by signature, where `tessera probe` was here; they then take the place of the rates above.
  /// Of products, by dtype: rows, in, out; "forward", "input_gradient" and "weight_gradient".
  std::map<std::string, TimeGrid> products = {};
  /// Likewise with weights and gradients that no cache holds, and the bytes of weights that both took turns with.
  std::map<std::string, TimeGrid> uncached_products = {};
  double cached = 0, uncached = 0;
  /// Of attention with one head of 64, by dtype and kernel: queries, keys; "forward" and "backward".
  std::map<std::string, TimeGrid> attentions = {};
  std::map<std::string, OperatorRates> operators = {};  ///< of the operators between products, by kind
  /// Seconds that calling an operator takes before it works; a backward calls twice as many. Of a GPU those of the host, which
  /// calls the next operators while the device works.
  double dispatch = 0;
  /// Bytes/s at which a forward writes what its graph keeps, and its backward reads it, beside what their operators take:
  /// no cache holds it until then. 0: the rates of the operators are of such memory.
  double kept_write = 0, kept_read = 0;
  bool operator==(const DeviceProfile&) const = default;
};

/// Bytes/s in one direction of a ring ("bus bandwidth" of nccl-tests).
struct LinkProfile {
  double gather = 0, reduce = 0;
  double latency = 0;             ///< seconds of each of the n - 1 hops of a ring
  double exchange = 0, send = 0;  ///< of all_to_all, and of messages between two; 0: as reduce and gather
  bool operator==(const LinkProfile&) const = default;
};

/// Seconds that a collective inside a unit takes beside those of its bytes: its ranks do not arrive at the same time, and the
/// threads that send need processors. A part of them grows with the work before it, whose ends differ from rank to rank.
struct WaitOf {
  double start = 0, share = 0;  ///< seconds, and of each second of the instruction without its waits
  double seconds(double instruction) const { return start + share * instruction; }
  /// From the waits of little and of much work (seconds without waits). Neither part is negative, whatever was measured.
  static WaitOf of(double work, double wait, double more_work, double longer_wait);
  bool operator==(const WaitOf&) const = default;
};
struct Wait {
  WaitOf forward = {}, backward = {};
  bool operator==(const Wait&) const = default;
};

/// The fastest algorithm of the device's library for each product that was measured (ops/products.h).
struct ProductChoices {
  std::string library = {};                        ///< that made them: "cuBLASLt 13.1.0"
  std::map<std::string, std::string> chosen = {};  ///< by name of a shape: what the library alone can read
  bool operator==(const ProductChoices&) const = default;
};

struct Profile {
  std::string name, source;
  std::string machine = {};  ///< that was measured, as this_machine() names it; empty: a shipped profile
  std::string target =
      {};  ///< the devices' architecture (base/target.h): "sm_90"; empty: plans are measured as on this process's device
  int devices = 0;  ///< devices of a node; 0: any number of ranks shares it (CPU)
  DeviceProfile device;
  LinkProfile link;                      ///< between the devices of a node; per device
  LinkProfile nic;                       ///< between nodes; per node
  double host_link = 0;                  ///< bytes/s from host memory to a device, and back
  double host_link_back = 0;             ///< bytes/s from a device to host memory; 0: as host_link
  double both_ways = 1;                  ///< rate of a copy while one goes the other way, of its rate alone
  double host_bandwidth = 0;             ///< bytes/s of host memory, shared by the node's devices
  int64_t host_memory = 0;               ///< bytes of the node
  double disk_read = 0, disk_write = 0;  ///< bytes/s of the node
  int64_t disk = 0;                      ///< bytes of the node
  /// Share of compute throughput lost during a collective (SMs and memory on a GPU, whole cores on a CPU).
  double steal = 0;
  double copy_steal = 0;  ///< likewise during a copy between device and host
  /// Rate of a copy while the rank computes, of its rate alone; 0: compute does not slow it down.
  double copy_beside = 0;
  double beside = 1;  ///< rate of a collective while the rank computes, of its rate alone
  double wake = 0;    ///< seconds from the end of an instruction to the begin of one on another lane that waits for it
  // What the engine adds, where `tessera probe` ran it.
  /// Seconds of an instruction on the compute lane beside those of its operators, by its name: a unit's graph, its context,
  /// the hand-over to other lanes.
  std::map<std::string, double, std::less<>> starts = {};
  std::map<std::string, Wait, std::less<>> waits = {};  ///< of collectives inside a unit, by Traffic::purpose
  ProductChoices algorithms = {};
  bool operator==(const Profile&) const = default;

  std::string to_toml() const;
};

/// The shipped machines with their sources: "h200" is a node of eight devices, "1xh200" one device of it; "rtx4090" is
/// one card, "8xrtx4090" eight in a machine.
const std::vector<Profile>& shipped_profiles();
/// One of them by any usual spelling, with any number of devices: "NVIDIA A100-SXM4-80GB", "4 x RTX 4090"; or a GPU that
/// is described, "16GiB,90TFLOPs,600GB/s". Nothing for other names. Throws UserError (usage) for GPUs that are not
/// supported, and where a description cannot be read.
std::optional<Profile> shipped_profile(std::string_view spelling);
/// The GPU whose name is nearest to one that is not known.
std::string nearest_profile(std::string_view spelling);

/// A shipped machine, or the path of a file that `tessera probe --out` wrote. Throws UserError: usage for an unknown name,
/// with the nearest one; input for a bad file, with its key.
Profile find_profile(std::string_view name_or_file);
/// The processor of this process and how many of them it has: "AMD EPYC, 2 cores".
std::string this_machine();
/// Throws UserError (usage) naming both for a profile that was measured on another machine than `here`, this one or a GPU of it
/// (job::computing_machine).
void check_machine(const Profile& profile, const std::string& here);
Profile parse_profile(std::string_view text, const std::string& file);

}  // namespace tessera::plan
