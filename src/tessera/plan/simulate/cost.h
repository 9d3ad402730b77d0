#pragma once
// What ranks that share tokens exchange inside an instruction, beside its compute: the part that nothing hides.
//
//   exposed({{.begun = 0, .awaited = 0.9, .seconds = 0.2}, {.begun = 0.9, .awaited = 0.9, .seconds = 0.2}});   // {0, 0.2}
#include <memory>
#include <vector>

#include "tessera/plan/simulate/profile.h"
#include "tessera/plan/simulate/work.h"

namespace tessera::plan {

/// A message of an instruction, in seconds of its compute.
struct Exchange {
  double begun = 0, awaited = 0;  ///< where it is begun, and where the compute waits for it
  double seconds = 0;             ///< if it runs alone
};

/// Seconds that the compute waits for each. Those that are awaited later than they are begun run one after another on a lane of
/// their own, in the order given, which is that in which they are begun and awaited; while the compute waits for any, this lane
/// goes on. One that is awaited where it is begun is waited for whole.
std::vector<double> exposed(const std::vector<Exchange>& exchanges);

// The cost model: seconds of each instruction if it runs alone on the machine.
//
//   CostModel cost(spec, plan, {.profile = find_profile("h200"), .work = work, .dtype = "bf16"});
//   for (const Phase& phase : cost.phases(instruction, rank)) phase.seconds;
//
// [Note: cost model]
//   product    (FLOPs + half) / top of the profile's dtype, and no less than its weight takes to be read; a backward has
//              two for each product of the forward
//              in 8 bits (Formats::fp8) at the rate of fp8, where times are measured as much faster than these as that rate is
//              than theirs; and its operands are read and codes written at the streaming rate,
//              twice read where columns are lines, x once for all products that read it (Product::again); a weight gradient is made in a tensor of its own and then added
//   attention  forward FLOPs at one rate, 2.5 times as many at the rate of the backward
//   others     bytes read and written at the streaming rate; a backward streams twice as much, plus the tensors that
//              selective recompute recomputes (GraphCost::rebuilt)
//   Products, attention and others by the measured times of their signatures and kinds, where the profile has these, products
//   between those of cached and of uncached weights by the bytes that a rank holds;
//   each call then also takes the time to dispatch it, each instruction what the engine adds to it (Profile::starts), and
//   a graph that is not recomputed its bytes, written and read when no cache holds them. A GPU works while the host
//   dispatches: a forward or backward takes the longer of its work and of its dispatches
//   update     at the plain bandwidth: parameter, gradient and states read, all but the gradient written (AdamW: 28
//              bytes an fp32 element), and what sums over tensors read before; on the host at the lower of the rank's
//              share of host memory bandwidth and the rate of its threads
//   collective a ring: bytes sent / bandwidth + (n - 1) hops. A group within a node uses the device's link; a group
//              across nodes also the node's NIC, shared by all groups that leave the node together; the slower counts
//              Inside a unit: one around the ring overlaps self-attention; another, what the unit was measured to compute
//              between its begin and its wait (plan::Traffic, exchanges.h), at the top rate of products. What is hidden
//              slows compute down as a transfer of another lane does: by `steal`, for as long as it takes `beside` compute.
//              Each adds its wait for the other ranks (Profile::waits)
//   message    bytes / bandwidth of the link between the two ranks + one hop
//   copy       bytes / host link, or its share of host memory bandwidth; the disk is shared by the node's ranks

/// Seconds of a rank's work for a step that no instruction does: frozen encoders, which prepare the samples of the next
/// step while this one runs.
struct Beside {
  double between = 0;  ///< between two steps: nothing hides them
  double device = 0;   ///< hidden where the step leaves the device's compute free: exposed transfers, bubbles
  double host = 0;     ///< on the host's processors: hidden while the step runs
};

/// The machine that a plan runs on, and the dtypes it runs in.
struct Machine {
  Profile profile = find_profile("cpu");
  WorkTable work = {};        ///< empty: Footprint's FLOPs at the rate of products
  SignatureTable sizes = {};  ///< of the work, where they were counted
  struct Counted {
    WorkTable work;
    SignatureTable sizes;
  };
  std::map<int64_t, Counted> smaller = {};  ///< the work of ModelSpec::smaller, by samples
  std::string dtype = "fp32";               ///< of products and attention
  double wire = 1;                          ///< bytes on a link for each byte in the schedule (0.5: bf16)
  double update_bytes = 28;                 ///< bytes an optimiser step moves for each element
  Beside beside = {};
};

/// The resource that a phase of an instruction uses; concurrent phases share a resource evenly. None: it waits for other ranks.
enum class Resource { compute, link, h2d, d2h, disk, host, none };
inline constexpr int kResources = 7;
/// The part of a step that a phase's time counts as.
enum class Share { compute, comm, copy, optimizer, bubble };
inline constexpr int kShares = 5;

struct Phase {
  Resource resource = Resource::compute;
  Share share = Share::compute;
  double seconds = 0;
  bool is_collective = false;  ///< a collective: starts when all members have arrived, ends for all together
};

class CostModel {
 public:
  /// Keeps references to all three. Throws UserError (usage) if the profile has no rate of the dtype.
  CostModel(const ModelSpec& model, const Plan& plan, const Machine& machine);
  CostModel(const ModelSpec& model, const Plan& plan, Machine&& machine) = delete;
  CostModel(const CostModel&) = delete;
  ~CostModel();

  /// The phases of `in`, in order; empty if it takes no time.
  std::vector<Phase> phases(const Instruction& in, int rank) const;
  /// Seconds of a message to or from the neighbour at the other end of `lane`.
  double message_seconds(int64_t bytes, Lane lane, int rank) const;
  /// Seconds of one collective of `rank`'s group over `axes` ("dp_shard", "dp_shard+cp").
  double collective_seconds(const Comm& comm, int rank) const;
  double forward_seconds(int unit, bool replay) const;
  double backward_seconds(int unit) const;
  /// Extra backward time of selective recompute under the unit's plan.
  double rebuild_seconds(int unit) const;
  /// The weight-gradient part of a backward.
  double weight_grad_seconds(int unit) const;
  /// Of an instruction on the compute lane, beside its operators.
  double start_seconds(Op op) const;

  const Machine& machine() const { return machine_; }
  const Plan& plan() const { return plan_; }

 private:
  struct Priced;  // a unit's work with its sizes
  Priced priced(const std::string& kind) const;
  /// The costs of the instruction's micro-batch.
  const CostModel& of_micro(const Instruction& in, int rank) const;
  /// Of product `index` of `flops`; `call` as in DeviceProfile::products.
  double product_seconds(double flops, const Product* sizes, const char* call) const;
  /// Of one in 8 bits: at that rate, and what quantises its operands streams.
  double fp8_seconds(double flops, const Product& sizes, std::string_view call) const;
  double code_seconds(const Instruction& in, int rank) const;  // to quantise the shard that a gather sends
  double products_seconds(const std::vector<double>& flops, const std::vector<Product>* sizes, const char* call) const;
  double site_seconds(const Priced& priced, const std::string& site, bool backward) const;
  /// Of operators that are neither product nor attention.
  double others_seconds(const Priced& priced, bool backward) const;
  double copy_seconds(double bytes, bool back) const;  ///< `back`: from the device to the host
  /// Seconds of an update that moves so many bytes on the device or host.
  double update_seconds(double bytes, bool on_host) const;
  /// Of the products of an update of whole matrices; `apart`: by the host of a device.
  double matrix_seconds(double flops, bool apart) const;
  /// Seconds of self-attention in a forward, recompute or backward; ring communication overlaps it.
  double attention_seconds(const Instruction& in) const;
  /// Of what a unit's graph keeps until the backward, moved at `rate` bytes/s.
  double kept_seconds(int unit, double rate) const;
  /// Of a collective inside an instruction: around a ring, what self-attention does not hide.
  double seconds_beside_attention(const Comm& comm, const Instruction& in, int rank) const;
  /// Of each collective of a unit's forward, recompute or backward, the seconds that nothing hides; then those that its ranks wait.
  void add_exchanges(const Instruction& in, int rank, std::vector<Phase>& phases) const;
  const ModelSpec& model_;
  const Plan& plan_;
  const Machine& machine_;
  Rate product_, fp8_;
  bool in_codes_ = false;  // weights of products in 8 bits come as codes
  struct Attending {
    Rate forward, backward;
    const TimeGrid* grid = nullptr;  ///< measured times of the kind; null: none
  };
  Attending flash_, cudnn_;
  bool usually_cudnn_ = false;                               ///< where nothing says which: the faster
  std::map<std::string, const AttentionUse*> attention_of_;  ///< by kind
  double dispatch_ = 0;                 ///< seconds of a call that its work adds to; 0 where the device works beside
  const TimeGrid* products_ = nullptr;  ///< measured times of the dtype, if there are
  const TimeGrid* uncached_ = nullptr;  ///< likewise, of weights that no cache holds
  double uncached_part_ = 0;            ///< 0: as products_, 1: as uncached_
  struct OfKind {
    double forward, backward;
  };
  OfKind of_kind(const Priced& priced) const;
  std::map<std::string, OfKind> of_kind_;  ///< of units with all their sites, by UnitSpec::kind
  struct Smaller;
  std::vector<std::unique_ptr<Smaller>> smaller_;  ///< of ModelSpec::smaller
};

}  // namespace tessera::plan
