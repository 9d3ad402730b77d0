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
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/checkpoint/in_place.h"

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

}  // namespace tessera::report
