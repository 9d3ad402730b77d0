#pragma once
// Writes the events of a run to metrics.jsonl and to TensorBoard's event file.
//
//   RunLog log("runs/a", /*done=*/100);
//   log.step(metrics);
//   log.sample({.step = 200, .file = "samples/step-000200-0.mp4", .text = "a cat", .picture = picture_of(frames)});
#include <optional>

#include "tessera/data/video.h"
#include "tessera/report/metrics.h"
#include "tessera/report/tensorboard.h"

namespace tessera::report {

/// A sample as TensorBoard shows it: small, as a GIF.
struct Picture {
  int height = 0, width = 0;
  std::vector<uint8_t> gif;
};
Picture picture_of(const data::Frames& frames);

class RunLog {
 public:
  /// Goes on after step `done`; the events go to the command `on_event` too (event_hook.h). Throws UserError (disk), as
  /// all that follows does.
  RunLog(const std::filesystem::path& out, int64_t done, const std::string& on_event = {});

  struct Sample {
    int64_t step = 0;
    int prompt = 0;          ///< which of the prompts, from 0
    std::string file, text;  ///< where it is, what was asked for
    std::optional<double> psnr;
    std::optional<double> audio_effect = {};  ///< see Denoising
    Picture picture;
  };

  const History& found() const { return metrics_.found(); }           ///< what metrics.jsonl held
  std::string lost_events() const { return metrics_.lost_events(); }  ///< of `on_event`; empty: none
  /// Until the lines of metrics.jsonl would survive a power cut.
  void flush() { metrics_.flush(); }

  void step(const StepMetrics& metrics);
  void eval(const EvalMetrics& metrics);
  void skip(int64_t step, const std::string& why, std::optional<double> loss_scale = {});
  /// Writes the line of metrics.jsonl last: a sample that has one lacks nothing.
  void sample(const Sample& sample);
  void checkpoint(int64_t step, const std::string& folder, std::optional<double> seconds);
  void fault(int64_t step, const std::string& kind, const std::string& text, int rank = -1,
             const std::vector<int64_t>& shares = {});
  void restart(int64_t step, const std::string& text, int64_t time);
  void base(const std::string& form, double error, double worst, const std::string& worst_linear);
  void start(int64_t step, const std::string& text, const std::vector<Phases>& ranks);
  void resume(int64_t step, const std::string& from);
  /// The run ends before its last step because it was asked to.
  void stop(int64_t step, const std::string& text);
  void change(int64_t step, const std::string& key, const std::string& before, const std::string& now,
              const std::string& text);
  void warning(int64_t step, const std::string& what, const std::string& text);
  void stage(int64_t step, int number, const std::string& changes, const std::string& plan);

 private:
  MetricsWriter metrics_;
  TensorBoardWriter board_;
};

/// A step as TensorBoard's tags: train/*, memory/rank N/*, busy/rank N/*, exposed/rank N/*; of many ranks, in place of
/// theirs, ranks/*.
std::vector<std::pair<std::string, double>> step_scalars(const StepMetrics& metrics);

}  // namespace tessera::report
