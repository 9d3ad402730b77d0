#pragma once
// Which entries of a cache are there and right, those of version 1 among them, and which nobody needs.
//
// [Note: moved clips] A clip at a path that has no entry, or a wrong one, may be one that was encoded under another path
// or name: a data set in another folder, a renamed clip. Its content decides. A file is read for that where an entry of a
// clip of its kind and size is there; where that has the same content, as the files of its row have, and was made in the
// same way, it is taken. Not from a clip of this data set that is still there: copies have an entry each.
//
//   CacheSearch search(folder, contents);
//   const auto found = search.find(keys);                                             // of each key
//   if (found[0].entry) read_clip(*found[0].entry);
//   remove_unused(folder, files_in_use);                                              // `tessera prepare --prune`
#include <set>

#include "tessera/data/cache.h"

namespace tessera::data {

/// The entry at the key's path where its header says just what the key does; others are for CacheSearch, which reads more.
std::optional<CacheEntry> entry_as_it_is(const Path& folder, const CacheKey& key);

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

  /// Entries of which find() is not asked, as entry_as_it_is() found them: they are taken by no key.
  void leave(const CacheEntries& entries);

  /// Of each key of a data set. An entry that is one key's own is taken by no other.
  std::vector<Found> find(const CacheKeys& keys);
  Found find(const CacheKey& key) { return std::move(find(CacheKeys{key}).front()); }
  /// The same, one by one as they are found, those of other paths behind the others.
  void find(const CacheKeys& keys, const std::function<void(size_t, Found)>& take);
  /// Files of clips whose stamp is not that of their entry, or that may have been moved: their content decides, and
  /// contents.jsonl should know it. Those that trust() took for an entry's are not among them.
  std::vector<Path> changed(const CacheKeys& keys);
  /// Takes the files of these clips for those that their entries were made from, without a look; says how many that
  /// were. contents() then holds it. A clip without an entry is taken for the one of its name or of its size and time,
  /// where that is one alone. From now on find() reads no file.
  int64_t trust(const CacheKeys& keys);
  const Contents& contents() const { return contents_; }

 private:
  struct Old {
    checkpoint::Metadata header;
    Path file;
    int64_t rows = 0;  ///< of its text
  };
  const std::vector<const Old*>& old_entries(const CacheKey& key);
  const std::vector<const Old*>& clips_with(const char* what, const checkpoint::Metadata& made,
                                            const std::string& value);
  /// A clip's entry under another path, by what its files are taken for and, where they may be read, by their content.
  /// `own` is the header of the entry at its path.
  const Old* moved_entry(const CacheKey& key, const std::optional<checkpoint::Metadata>& own, bool read);
  /// The entry at the key's path, or one of version 1; `own` gets the header of the one at its path.
  Found find_at_its_path(const CacheKey& key, std::optional<checkpoint::Metadata>& own);
  /// The one that trust() takes a clip for.
  const Old* trusted_entry(const CacheKey& key);
  void look_for_others();

  const Path folder_;
  Contents contents_;
  const Rows rows_;
  bool looked_ = false;
  std::vector<Old> old_, clips_;  // of version 1; of this version
  std::map<std::string, std::vector<const Old*>> old_clips_, old_texts_;
  std::map<std::string, std::vector<const Old*>> clips_with_;  // by size, stamp, name and content, of those made alike
  bool indexed_ = false, trusting_ = false;
  /// Hashes of the names of this data set's entries that are right where they are: clips_with_ leaves them out.
  std::vector<uint64_t> owned_;
};

struct Removed {
  int64_t entries = 0, bytes = 0;
};
/// Removes every entry, of any version, that is none of `used`. Other files stay.
Removed remove_unused(const Path& folder, const std::set<Path>& used);

}  // namespace tessera::data
