#pragma once
// A run read from its folder, for `top` and the report, while it runs or later.
//
//   RunFolder run("runs/a");                    // refuses what is not a run
//   while (run.poll()) draw(run);               // reads only what was added since
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/report/metrics.h"

namespace tessera::report {

/// What recipe.toml and plan.json say; empty or 0 where they do not.
struct RunFacts {
  std::string model, mesh, plan;
  int64_t parameters = 0, steps = 0, global_batch = 0;
  int64_t predicted_peak = 0;            ///< device bytes of the rank that needs most
  double predicted_seconds = 0;          ///< of a step
  RankMetrics::Exposed predicted_waits;  ///< of them, on the slowest rank
};

/// A line of metrics.jsonl that is no step: skip, sample, checkpoint, fault, stage.
struct RunEvent {
  int64_t step = 0;
  std::string type;
  std::string text;    ///< for people, one line
  std::string file;    ///< of a sample or checkpoint, as it was written down
  std::string prompt;  ///< of a sample
  std::optional<double> psnr;
};

class RunFolder {
 public:
  /// Throws UserError (input) when the folder is missing, or has neither metrics.jsonl nor recipe.toml.
  explicit RunFolder(std::filesystem::path folder);

  /// Reads what was added to metrics.jsonl; starts over when a resumed run has cut it back. False: nothing new.
  bool poll();

  const std::filesystem::path& folder() const { return folder_; }
  const RunFacts& facts() const { return facts_; }
  const std::vector<StepMetrics>& steps() const { return steps_; }  ///< in order; `ranks` stays empty
  const std::vector<RankMetrics>& ranks() const { return ranks_; }  ///< of the last step; of many, those that it names
  int64_t world() const { return world_; }                          ///< how many ranks it had
  const std::vector<RunEvent>& events() const { return events_; }
  const std::vector<EvalMetrics>& evals() const { return evals_; }  ///< held-out losses, in order
  /// The mean loss by tenths of the timesteps over the newest tenth of the steps, at least 20 of them; empty: none has it.
  std::vector<StepMetrics::Bin> loss_by_timestep() const;
  /// Likewise of each of several data sets, by its name.
  std::vector<std::pair<std::string, StepMetrics::Bin>> loss_by_set() const;
  /// Likewise the samples that chose each expert behind a gate, by tenths of the timesteps; empty: the run has none.
  std::vector<std::vector<int64_t>> experts_by_timestep() const;
  /// Likewise how often samples chose each.
  std::vector<double> expert_frequencies() const;
  const StepMetrics* counted_fp8() const;  ///< the newest step that counted what products in 8 bits lose; null: none
  StepMetrics::Bin preserved() const;      ///< of twins, likewise; count 0: there are none
  bool finished() const { return facts_.steps > 0 && last_step() >= facts_.steps; }
  int64_t last_step() const { return last_step_; }  ///< 0: none yet
  /// Mean over the newest steps (at most 20; the first one, which warms up, only when it is alone); 0: no step yet.
  double step_seconds() const;
  /// Of compressed activations over the whole run, all ranks: the mean of the steps' means, and the largest. Nothing
  /// where none were.
  std::optional<RankMetrics::CompressionError> compression_error() const;
  /// What computing waited for in a step, by rank: the mean over all steps but the first.
  struct Waits {
    int rank = 0;
    RankMetrics::Exposed seconds;
  };
  std::vector<Waits> waits() const;
  /// By rank, the mean over all steps but the first: MFU (nothing where no step has one), the share in which each lane
  /// was busy, and what the GPU's driver said (nothing without one; of its memory the most).
  struct Utilisation {
    int rank = 0;
    std::optional<double> mfu;
    std::map<std::string, double> lanes;
    std::optional<RankMetrics::Driver> driver;
  };
  std::vector<Utilisation> utilisation() const;
  /// Of the newest step, over all its ranks: bytes that tensors took at the peak, and that the allocator held. Of many ranks
  /// a step names a few; these are from its ranks_summary.
  struct Memory {
    Spread used, reserved, planned;
  };
  const Memory& memory() const { return memory_; }
  /// The line of a stop that was asked for, if nothing came after it.
  const RunEvent* stop() const;
  /// Numbers, from 1, of the lines that are no events; they are skipped.
  const std::vector<int64_t>& strays() const { return strays_; }
  /// Whether a process of this machine trains in the folder; nothing where it has no lock that can be asked.
  std::optional<bool> held() const;
  /// Since metrics.jsonl was last written to; nothing when there is none.
  std::optional<std::chrono::duration<double>> quiet() const;

 private:
  void read_facts();
  void restart();
  void take_line(const std::string& line);
  std::filesystem::path folder_;
  RunFacts facts_;
  std::vector<StepMetrics> steps_;
  std::vector<RankMetrics> ranks_;
  Memory memory_;
  std::vector<RunEvent> events_;
  std::vector<EvalMetrics> evals_;
  struct {
    double sum_of_means = 0, most = 0;
    int64_t count = 0;
  } compression_;
  std::map<int, RankMetrics::Exposed> waited_;  ///< by rank, the sum over `waited_steps_` steps
  int64_t waited_steps_ = 0;
  struct Used {
    double mfu = 0;
    int64_t mfu_steps = 0, lane_steps = 0;
    std::map<std::string, double> lanes;
    RankMetrics::Driver driver;
    int64_t driver_steps = 0;
  };
  std::vector<int64_t> strays_;
  std::map<int, Used> used_;  ///< by rank, sums over these steps
  int64_t last_step_ = 0, world_ = 0;
  int64_t line_ = 0;       ///< lines that were read
  int64_t offset_ = 0;     ///< bytes of metrics.jsonl that were read, whole lines only
  std::string last_line_;  ///< the one that ends at offset_: when it is no longer there, the file was cut back
};

/// "used 8.00 to 9.00 MiB (median 8.50) of 10.00 MiB planned, 10.00 MiB reserved; 64 ranks".
std::string used_and_reserved(const RunFolder::Memory& memory, size_t world);

/// The run below `base` (at most three folders deep) that was written to last. Throws UserError (usage) when there is none.
std::filesystem::path newest_run(const std::filesystem::path& base);

}  // namespace tessera::report
