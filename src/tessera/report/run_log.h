#pragma once
// Event files as TensorBoard reads them: scalars and pictures of a run, written as they happen.
//
//   TensorBoardWriter board("runs/a", /*done=*/100);               // runs/a/events.out.tfevents.*, a new file a start
//   board.scalars(101, {{"train/loss", 0.3}, {"train/lr", 1e-4}});
//   board.image(101, "samples/0", 64, 96, gif_bytes);              // any format a browser shows
//
// The form: records of a length, its checksum, an Event message and its checksum (TensorFlow's
// core/lib/io/record_writer and core/util/event.proto). The few fields that are needed are encoded here, so nothing is
// linked for them.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/checkpoint/in_place.h"
#include "tessera/data/video.h"
#include "tessera/report/metrics.h"

namespace tessera::report {

class TensorBoardWriter {
 public:
  /// Opens a new event file in `folder`. When `done` > 0 the file begins by taking back the steps after `done`, which
  /// an earlier start may have written: they will come again. Throws UserError (disk).
  TensorBoardWriter(const std::filesystem::path& folder, int64_t done);

  /// One event with a value a tag. Values become fp32; a NaN or infinity is written as it is. Throws UserError (disk).
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values);
  /// `encoded` is the picture's file (png, jpeg, gif), height x width in pixels. Throws UserError (disk).
  void image(int64_t step, const std::string& tag, int height, int width, const std::vector<uint8_t>& encoded);

  const std::filesystem::path& file() const { return out_.path(); }

 private:
  void event(std::string_view body);  ///< adds the wall time and writes the record through to the file
  checkpoint::GrowingFile out_;
};

/// The checksum of a record: CRC-32C, turned and shifted so that checksums of checksums keep their strength.
uint32_t masked_crc32c(std::string_view bytes);

// Writes the events of a run to metrics.jsonl and to TensorBoard's event file.
//
//   RunLog log("runs/a", /*done=*/100);
//   log.step(metrics);
//   log.sample({.step = 200, .file = "samples/step-000200-0.mp4", .text = "a cat", .picture = picture_of(frames)});

/// A sample as TensorBoard shows it: small, as a GIF.
struct Picture {
  int height = 0, width = 0;
  std::vector<uint8_t> gif;
};
Picture picture_of(const data::Frames& frames);

class RunLog : MetricsWriter {
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

  // What concerns metrics.jsonl alone.
  using MetricsWriter::base, MetricsWriter::change, MetricsWriter::checkpoint, MetricsWriter::fault,
      MetricsWriter::flush, MetricsWriter::found, MetricsWriter::lost_events, MetricsWriter::restart,
      MetricsWriter::resume, MetricsWriter::stage, MetricsWriter::start, MetricsWriter::stop, MetricsWriter::warning;

  void step(const StepMetrics& metrics);
  void eval(const EvalMetrics& metrics);
  void skip(int64_t step, const std::string& why, std::optional<double> loss_scale = {});
  /// Writes the line of metrics.jsonl last: a sample that has one lacks nothing.
  void sample(const Sample& sample);

 private:
  TensorBoardWriter board_;
};

/// A step as TensorBoard's tags: train/*, memory/rank N/*, busy/rank N/*, exposed/rank N/*; of many ranks, in place of
/// theirs, ranks/*.
std::vector<std::pair<std::string, double>> step_scalars(const StepMetrics& metrics);

}  // namespace tessera::report
