#pragma once
// run.on_event: a command of the user's that gets the events of a run, the lines of metrics.jsonl, on its standard input:
// for wandb, mlflow, uploads of checkpoints, messages (docs/run-folder.md has examples).
//
//   EventHook hook("python3 to_wandb.py", "runs/a");   // started; the run never waits for it
//   hook.tell("{\"type\":\"step\",...}\n");
//   if (const std::string text = hook.losses(); !text.empty()) log.fault(step, "on_event", text);
#include <sys/types.h>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/json.h"
#include "tessera/report/history.h"

namespace tessera::report {

class EventHook {
 public:
  /// Starts `command` by /bin/sh, in a process group of its own, so that Ctrl-C ends the run and the command hears of it;
  /// its variable TESSERA_RUN is the run's folder. It inherits no open file of this process but stdout and stderr. What
  /// cannot be started is told and loses all events. Empty: there is no command.
  EventHook(const std::string& command, const std::filesystem::path& run);
  /// Closes its input: the command reads to the end, for as long as it likes; nobody waits for it.
  ~EventHook();
  EventHook(const EventHook&) = delete;
  EventHook& operator=(const EventHook&) = delete;

  /// A whole line. Where the command has ended, or has read so little that the pipe is full, it is lost and counted; the
  /// first time, a warning says so. What the command gets are whole lines.
  void tell(std::string_view line);
  /// "run.on_event: 3 of 120 events were lost: ..."; empty: none were.
  std::string losses() const;

 private:
  ssize_t push(std::string_view bytes) const;
  void lose(const std::string& why);
  void explain(const std::string& why);
  void close_pipe();

  int pipe_ = -1;  // -1: no command, or none that reads
  pid_t process_ = -1;
  std::string rest_;  // of a line of which the pipe took the beginning
  std::string why_;   // the first event was lost
  int64_t told_ = 0, lost_ = 0;
};

// metrics.jsonl: what happened, a JSON object a line, written as it happens (contract, section run folder).
//
//   MetricsWriter metrics("runs/a/metrics.jsonl", /*done=*/100);   // cuts off lines after step 100: they come again
//   metrics.step({.step = 101, .loss = 0.3, ...});
//   metrics.flush();                                               // before a checkpoint of these steps is published

struct RankMetrics {
  int rank = 0;
  struct Bytes {
    int64_t parameters = 0, gradients = 0, states = 0, activations = 0, slots = 0, temporaries = 0, host = 0;
    bool operator==(const Bytes&) const = default;
  } bytes;                 ///< by part, when the peak was reached
  int64_t peak_bytes = 0;  ///< device tier, from the end of the process's first step
  int64_t persistent_bytes = 0, predicted_peak_bytes = 0, reserved_bytes = 0;
  int64_t samples_bytes = 0;                  ///< host memory of the step's samples; the next ones take as much
  std::map<std::string, int64_t> sent_bytes;  ///< by mesh axis, of the step before
  std::map<std::string, double> busy;         ///< seconds by lane, of the step before
  /// Share of that step, and of what followed it (samples, checkpoints), in which the lane was busy.
  std::map<std::string, double> utilisation;
  double model_flops = 0;     ///< that the model takes of this rank in this step: forward and backward, no recompute
  std::optional<double> mfu;  ///< of this step: model_flops a second over StepMetrics::peak_flops
  /// Seconds of the step before in which computing stood still: for collectives, for copies between device, host and
  /// disk, for other stages of a pipeline, and with nothing to wait for between two instructions; and before this step for
  /// its samples.
  struct Exposed {
    double comm = 0, copy = 0, stages = 0, data = 0, dispatch = 0;
  } exposed;
  /// Of activations that the plan keeps in fewer bits: relative errors, the mean over all saved tensors of the step and
  /// the largest. Absent where nothing was compressed.
  struct CompressionError {
    double mean = 0, most = 0;
  };
  std::optional<CompressionError> compression_error;
  /// What the driver says of the rank's GPU, the means of its readings since the step before. Absent without one.
  struct Driver {
    double utilisation = 0;  ///< share of the time in which some kernel ran
    double watts = 0;
    int64_t memory_bytes = 0;  ///< taken on the GPU, by all processes
  };
  std::optional<Driver> driver;
  double sample_seconds = 0;  ///< of the rank's own work for a sample, of the step before; 0: it had none
};

/// The causes for which computing stood still, as metrics.jsonl names them.
inline constexpr std::pair<const char*, double RankMetrics::Exposed::*> kExposed[] = {
    {"comm", &RankMetrics::Exposed::comm},
    {"copy", &RankMetrics::Exposed::copy},
    {"stages", &RankMetrics::Exposed::stages},
    {"data", &RankMetrics::Exposed::data},
    {"dispatch", &RankMetrics::Exposed::dispatch}};

/// What a rank did, in order, and the seconds that each took.
using Phases = std::vector<std::pair<std::string, double>>;

/// Of more ranks a line of metrics.jsonl has the slowest, the fullest and rank 0 alone, but for every so many steps; beside
/// them stands what all have between them.
inline constexpr size_t kMostRanks = 16;
inline constexpr int64_t kAllRanksEvery = 100;

/// A field of the ranks' entries, "peak_bytes" or "bytes.parameters", over the ranks that have it.
struct Spread {
  std::string field;
  double least = 0, median = 0, most = 0;
};
std::vector<Spread> spreads(const std::vector<RankMetrics>& ranks);

struct StepMetrics {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0;  ///< 17 digits: bit-identity is said of these
  double seconds = 0;
  int64_t samples = 0, tokens = 0;
  std::optional<double> loss_scale;  ///< that the step ran with; where something is fp16
  std::optional<double> d;           ///< the step size that an optimiser found itself, which lr multiplies
  std::optional<double> peak_flops;  ///< FLOP/s of a rank in the plan's dtype; where a profile says what that is
  std::optional<double> mfu;         ///< model FLOPs utilisation, the mean of the ranks' own
  /// Of a run with experts: whose step it was, and which of its own.
  std::string expert;
  int64_t expert_step = 0;
  struct Moved {
    int64_t bytes = 0;
    double seconds = 0, waited = 0;
  } moved;  ///< by a swap of experts, on rank 0: bytes between tiers, the time of it, and how long lanes waited
  /// Of a run whose experts are chosen by a gate, in the order of the experts.
  struct Chosen {
    int64_t samples = 0;     ///< of the step that chose it
    double probability = 0;  ///< mean over the samples of what the gate gives it without noise
    double grad_norm = 0;    ///< 0: it had no sample, and no update
    int64_t updates = 0;     ///< so far
    double seconds = 0;      ///< of its pass
    /// Those samples by tenths of the range of timesteps.
    std::vector<int64_t> by_timestep = {};
    int64_t micro_batch = 0;  ///< samples that its pass runs at once, at most
  };
  struct Gate {
    std::vector<Chosen> experts;
    double balance_loss = 0;  ///< 1: even; as many as there are experts: all samples choose one
    double entropy = 0;       ///< mean over the samples, in nats
    double temperature = 0, grad_norm = 0;
    /// Of the time that all ranks took for the step's samples, the share in which they had none; and of their
    /// micro-batches those without a sample (plan/deal.h).
    double idle = 0, dummies = 0;
    double undealt_idle = 0;  ///< what `idle` would be if samples had stayed where they were drawn
    int64_t moved = 0;        ///< samples that went to another rank
    double seconds = 0;       ///< that this took rank 0
  };
  std::optional<Gate> gate;
  /// The mean loss of the samples whose timestep is in each tenth of the range, and how many they were.
  struct Bin {
    double loss = 0;
    int64_t count = 0;
  };
  std::vector<Bin> by_timestep = {};
  std::vector<std::pair<std::string, Bin>> by_set = {};  ///< likewise of each of several data sets, by its name
  std::optional<Bin> preserved = {};  ///< likewise of the twins (train.preserve), which no set counts
  /// Of a unit's products in 8 bits, over all ranks: the shares of values that the codes lose, of operands in e4m3 (inputs and
  /// weights) and of gradients in e5m2.
  struct EightBits {
    std::string unit;
    struct Lost {
      double zeros = 0;    ///< values other than zero whose code is zero
      double clipped = 0;  ///< values beyond the format
    } operands, gradients = {};
  };
  std::vector<EightBits> fp8 = {};  ///< empty: of a step that counts none
  std::vector<RankMetrics> ranks;
  std::string plan_hash = {};  ///< of the plan that the step executed (plan/plan_file.h)

  /// Sets every `mfu`, from `seconds` and the ranks' model_flops.
  void count_mfu(double peak_flops_of_a_rank);
};

/// The loss of clips that are held out.
struct EvalMetrics {
  int64_t step = 0;
  std::string set;  ///< which clips: the path, or "share"
  double loss = 0;  ///< mean over the quantiles
  int64_t samples = 0;
  std::vector<std::pair<double, double>> by_timestep, by_sigma;  ///< sigmas, each with its loss
};

/// The parts by their names in metrics.jsonl, in the order in which reports show them; host last.
std::vector<std::pair<std::string, int64_t>> named_parts(const RankMetrics::Bytes& bytes);
std::string format_flops(double per_second);  ///< "312 TFLOP/s", "5.2 GFLOP/s"
/// Reads a line's "ranks" entry back. Fields that another version did not write are 0. Throws UserError (input).
RankMetrics read_rank(const JsonFields& rank);

class MetricsWriter {
 public:
  /// Goes on behind the lines up to step `done`: cuts the file once, at the first line beyond it, and appends. What was
  /// written before stays at every instant. Throws UserError (disk).
  /// Each line goes to `on_event` too (EventHook).
  MetricsWriter(const std::filesystem::path& file, int64_t done, const std::string& on_event = {});
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  const History& found() const { return found_; }             ///< what the file held
  std::string lost_events() const { return hook_.losses(); }  ///< of run.on_event, for the report; empty: none
  /// Until all lines would survive a power cut. Throws UserError (disk).
  void flush();

  void step(const StepMetrics& metrics);
  void eval(const EvalMetrics& metrics);
  void skip(int64_t step, const std::string& why, std::optional<double> loss_scale = {});
  void sample(int64_t step, const std::string& file, const std::string& prompt, std::optional<double> psnr,
              std::optional<double> audio_effect = {});
  /// Without `seconds`: a kill kept the line from being written when it was saved.
  void checkpoint(int64_t step, const std::string& folder, std::optional<double> seconds);
  /// What went wrong: `kind` is "restart", "slow_rank", "rebalance", or "diverged", which ends the run; `rank` -1: none by
  /// itself. `shares`: samples of a step by dp rank from now on, where they change.
  void fault(int64_t step, const std::string& kind, const std::string& text, int rank = -1,
             const std::vector<int64_t>& shares = {});
  /// A `restart` that the launcher noted. `time`, in milliseconds since 1970, identifies it, so that it is written
  /// once.
  void restart(int64_t step, const std::string& text, int64_t time);
  /// Before the first step: a frozen base is stored in `form`; |stored - w| / |w| of all of it and of its worst linear.
  void base(const std::string& form, double error, double worst, const std::string& worst_linear);
  /// The time from the start to the first step after `step`: `text` of rank 0 for people, the phases of every rank.
  void start(int64_t step, const std::string& text, const std::vector<Phases>& ranks);
  /// The run goes on from a checkpoint of `step`.
  void resume(int64_t step, const std::string& from);
  /// The run ends before its last step because it was asked to.
  void stop(int64_t step, const std::string& text);
  /// And one key has another value than it had there; `text` is for people.
  void change(int64_t step, const std::string& key, const std::string& before, const std::string& now,
              const std::string& text);
  /// What the user was warned of and will want to know later. `what`: "history", "transport", "spike", or what failed
  /// without ending the run: "sample", "report", "export", "checkpoint".
  void warning(int64_t step, const std::string& what, const std::string& text);
  /// A stage begins: `step` is its first, `changes` and `plan` are for people, one line each.
  void stage(int64_t step, int number, const std::string& changes, const std::string& plan);

 private:
  void write(std::string line);
  [[noreturn]] void fail(const std::string& act) const;
  const std::filesystem::path path_;
  const History found_;
  EventHook hook_;
  int fd_ = -1;
};

}  // namespace tessera::report
