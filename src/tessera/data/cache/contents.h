#pragma once
// Fingerprints of the files that a cache was made from, remembered beside it by size and time: after `touch`, scp or a
// checkout a file is read once and found to be the same.
//
//   update_contents("cache/contents.jsonl", changed, progress);      // one rank
//   Contents contents("cache/contents.jsonl");                       // all ranks
//   contents.is(path, "1048576 bytes, crc32c 0a1b2c3d");             // read where it is not remembered
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/data/probes.h"

namespace tessera::data {

/// Size and CRC-32C of a file's bytes, of an archive's member, or of all pictures of a folder of frames. Reads all of
/// it. Throws UserError (input) when it cannot be read.
std::string file_content(const Path& path);

class Contents {
 public:
  Contents() = default;
  /// Nothing is known when the file is not there; lines that cannot be read are not known.
  explicit Contents(const Path& file);

  bool knows(const Path& path) const;  ///< as it is now, by size and time
  /// What is known of the file as it is now, else read now.
  std::string of(const Path& path) const;
  /// Contents that it was taken for by take_for(), as the file is now.
  std::vector<std::string> taken(const Path& path) const;
  bool taken_for(const Path& path, const std::string& content) const;
  /// Whether it has this content, or was taken for it.
  bool is(const Path& path, const std::string& content) const {
    return taken_for(path, content) || of(path) == content;
  }

  void add(const Path& path, std::string content);
  /// From now on the file as it is counts as having this content, which nobody has looked at (`prepare --trust`).
  void take_for(const Path& path, std::string content);
  void write(const Path& file) const;  ///< sorted by name; appears whole or not at all

 private:
  struct Known {
    std::string stamp, content;      // content is empty: nobody has read it
    std::vector<std::string> taken;  // contents that it is taken for
  };
  const Known* find(const Path& path) const;
  Known& current(const Path& path);
  std::map<std::string, Known> known_;
};

/// Reads those of the files that `file` does not know, on several threads, and writes it anew. `done` is told how many
/// were read.
void update_contents(const Path& file, std::vector<Path> paths, const std::function<void(int64_t)>& done = {});

}  // namespace tessera::data
