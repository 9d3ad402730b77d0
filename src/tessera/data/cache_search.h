#pragma once
// Which entries of a cache are there and right, those of version 1 among them, and which nobody needs.
//
//   CacheSearch search(folder, contents);
//   if (const auto found = search.find(key); found.entry) read_clip(*found.entry);
//   remove_unused(folder, files_in_use);                                              // `tessera prepare --prune`
#include <set>

#include "tessera/data/cache.h"

namespace tessera::data {

class CacheSearch {
 public:
  /// Rows of a caption's embedding, as it is encoded now; -1: entries of version 1 have other values.
  using Rows = std::function<int64_t(const std::string& caption)>;

  struct Found {
    std::optional<CacheEntry> entry;
    std::string stale;        ///< an entry is there, and this is wrong with it: "stale: stamp ..."
    bool unreadable = false;  ///< it is damaged
  };

  /// `rows` must be right for texts of version 1 to be used.
  CacheSearch(Path folder, Contents contents, Rows rows);

  Found find(const CacheKey& key);
  /// Files of clips whose stamp is not that of their entry: their content decides, and contents.jsonl should know it.
  std::vector<Path> changed(const std::vector<CacheKey>& keys);
  /// Takes the files of these clips for those that their entries were made from, without a look; says how many that
  /// were. contents() then holds it.
  int64_t trust(const std::vector<CacheKey>& keys);
  const Contents& contents() const { return contents_; }

 private:
  struct Old {
    checkpoint::Metadata header;
    Path file;
    int64_t rows = 0;  ///< of its text
  };
  std::optional<checkpoint::Metadata> header_of(const CacheKey& key) const;
  const std::vector<const Old*>& old_entries(const CacheKey& key);
  void look_for_old();

  const Path folder_;
  Contents contents_;
  const Rows rows_;
  bool looked_ = false;
  std::vector<Old> old_;
  std::map<std::string, std::vector<const Old*>> old_clips_, old_texts_;
};

struct Removed {
  int64_t entries = 0, bytes = 0;
};
/// Removes every entry, of any version, that is none of `used`. Other files stay.
Removed remove_unused(const Path& folder, const std::set<Path>& used);

}  // namespace tessera::data
