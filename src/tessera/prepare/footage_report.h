#pragma once
// What prepare sees of files before it encodes their clips, and tells of the footage afterwards.
//
//   look_into_files(recipe.data, items, files_beside);                            // rank 0; probes.jsonl
//   FootageReport report(folder, rank);
//   report.add({.entry = hash, .source = "a.mp4", .footage = data::look_at(frames)});     // each rank, each clip
//   report.finish(entries, captions);                                        // rank 0, when all have added; report.jsonl
//
// Ranks write what they add to a file of their own, line by line, so that a kill loses none of it; rank 0 puts these
// into report.jsonl. A clip that is not encoded anew keeps its line.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/in_place.h"
#include "tessera/data/clips.h"
#include "tessera/data/footage.h"
#include "tessera/recipe/recipe.h"

namespace tessera::prepare {

using FilesBeside = std::function<std::vector<std::pair<std::string, data::Path>>(const data::Item&)>;

/// Into those that are not known yet, and through those that are cut at scenes or bars; says how long it took to count
/// frames of files that have no index of them.
void look_into_files(const recipe::Recipe::Data& data, const data::Items& items, const FilesBeside& beside);

/// A clip of the cache: its entry's hash, and where it comes from.
struct SeenClip {
  std::string entry, source;
  int64_t start = 0;  ///< at the rate of training
  std::string shape;
  data::Footage footage = {};
};

class FootageReport {
 public:
  FootageReport(data::Path folder, int rank) : folder_(std::move(folder)), rank_(rank) {}

  void add(const SeenClip& clip);
  /// Writes report.jsonl anew, and logs a table of what was found of these entries and captions, each of which belongs
  /// to a clip; nothing is logged where `quiet` and nothing was added by any rank.
  using Texts = std::function<std::vector<std::string>()>;  ///< asked for where they are needed
  void finish(const Texts& entries, const Texts& captions, bool quiet);

 private:
  data::Path part(int rank) const { return folder_ / ("report." + std::to_string(rank) + ".part"); }
  const data::Path folder_;
  const int rank_;
  std::optional<checkpoint::GrowingFile> own_;
};

/// Entries that an earlier version made of files which it showed otherwise, by what is shown otherwise now.
class RereadClips {
 public:
  /// `reading`: of data::Clip; `encoded`: whether an entry of that version is there.
  void add(const std::string& reading, bool encoded);
  /// "3 clips are encoded again, ...: 2 turned ..., 1 HDR"; empty where there are none.
  std::string text() const;

 private:
  int64_t clips_ = 0;
  std::map<std::string, int64_t> reasons_;
};

}  // namespace tessera::prepare
