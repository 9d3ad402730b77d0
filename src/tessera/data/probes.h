#pragma once
// What the headers of many files say, remembered beside the cache: looking into 100,000 files takes minutes, and they
// seldom change.
//
//   update_probes("cache/probes.jsonl", paths, progress);      // one rank
//   Probes probes("cache/probes.jsonl");                       // all ranks
//   VideoInfo info = probes.info(path);                        // from the file where it is not remembered
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/data/video.h"

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

  void add(const Path& path, const VideoInfo& info);
  void write(const Path& file) const;  ///< sorted by name; appears whole or not at all

 private:
  struct Known {
    std::string stamp;
    VideoInfo info;
  };
  std::map<std::string, Known> known_;
};

/// Looks into those of the files that `file` does not know, on several threads, and writes it anew. Files that cannot
/// be read are left out: info() then says why. `done` is told how many files were looked into.
void update_probes(const Path& file, const std::vector<Path>& paths, const std::function<void(int64_t)>& done = {});

}  // namespace tessera::data
