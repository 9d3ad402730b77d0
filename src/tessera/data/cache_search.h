#pragma once
// Which entries of a cache are there and right, those of version 1 among them, and which nobody needs.
//
// [Note: moved clips] A clip at a path that has no entry may be one that was encoded under another path: a data set in
// another folder, or a recipe started elsewhere. An entry is taken for it whose clip had the same name, and differs from
// what is wanted in the folder alone, of the clip and of its row's files, where all of these files have the content that
// the entry says.
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
    bool moved = false;       ///< it was made of the same files under another path
  };

  /// `rows` must be right for texts of version 1 to be used.
  CacheSearch(Path folder, Contents contents, Rows rows);

  Found find(const CacheKey& key);
  /// Files of clips whose stamp is not that of their entry, or that may have been moved: their content decides, and
  /// contents.jsonl should know it.
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
  /// Entries of clips that `key`'s may have been before it was moved, and the key that each would then have had.
  std::vector<std::pair<const Old*, CacheKey>> moved_entries(const CacheKey& key);
  void look_for_others();

  const Path folder_;
  Contents contents_;
  const Rows rows_;
  bool looked_ = false;
  std::vector<Old> old_, clips_;  // of version 1; of this version
  std::map<std::string, std::vector<const Old*>> old_clips_, old_texts_;
  std::map<std::string, std::vector<const Old*>> clips_named_;  // by file name, encoder and shape
};

struct Removed {
  int64_t entries = 0, bytes = 0;
};
/// Removes every entry, of any version, that is none of `used`. Other files stay.
Removed remove_unused(const Path& folder, const std::set<Path>& used);

}  // namespace tessera::data
