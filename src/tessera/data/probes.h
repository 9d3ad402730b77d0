#pragma once
// What is known of many files after a look into each, remembered beside the cache: looking into 100,000 files takes
// minutes, and into those that have no index of their frames as long as reading them; they seldom change.
//
//   update_probes("cache/probes.jsonl", paths, progress);      // one rank
//   Probes probes("cache/probes.jsonl");                       // all ranks
//   VideoInfo info = probes.info(path);                        // from the file where it is not remembered
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/files/records.h"
#include "tessera/data/footage.h"

namespace tessera::data {

/// Size and modification time: a file with the same stamp is taken for the same. Throws UserError (input) when it is
/// not there.
std::string file_stamp(const Path& path);

class Probes {
 public:
  Probes() = default;
  explicit Probes(
      const Path& file);  ///< nothing is known when it is not there; lines that cannot be read are not known

  bool knows(const Path& path) const;
  /// Throws UserError (input) as `probe` does.
  VideoInfo info(const Path& path) const;

  /// Of a whole video at this rate, where somebody has looked through it.
  std::optional<Footage> footage(const Path& path, double fps) const;

  void add(const Path& path, const VideoInfo& info);
  void add(const Path& path, const Footage& footage, double fps);  ///< of a file that it knows
  void write(const Path& file) const;                              ///< sorted by name; appears whole or not at all

 private:
  struct Known {
    std::string stamp;
    VideoInfo info;
    std::optional<Footage> footage = {};
    double fps = 0;  // of the footage
  };
  void put(const Path& path, const Known& known);
  std::optional<Known> current(const Path& path) const;  ///< of the file as it is now
  static Known read(RecordReader in);
  NamedRecords known_;
};

/// Files that were read to their end because they do not say how many frames they have, and how long that took.
struct CountedFiles {
  int64_t files = 0;
  double seconds = 0;  ///< of all threads together
};
/// Looks into those of the files that `file` does not know, on several threads, and writes it anew. Files that cannot
/// be read are left out: info() then says why. `done` is told how many files were looked into.
CountedFiles update_probes(const Path& file, const std::vector<Path>& paths,
                           const std::function<void(int64_t)>& done = {});
/// The same of paths that `each` gives one after the other: of ten million that are known none is kept.
using EachPath = std::function<void(const std::function<void(const Path&)>& take)>;
CountedFiles update_probes(const Path& file, const EachPath& each, const std::function<void(int64_t)>& done = {});
/// Looks through those of the videos whose footage at this rate `file` does not know, likewise.
void update_footage(const Path& file, const EachPath& each, double fps, const Showing& showing,
                    const std::function<void(int64_t)>& done = {});

}  // namespace tessera::data
