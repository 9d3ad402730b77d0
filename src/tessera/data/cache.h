#pragma once
// Encoded samples on disk: an entry for each clip and one for each caption, with what it was made from in its header.
//
//   CacheKey clip = clip_key({.source = item.path, .encoder = hash, .shape = "16x64x96", .preprocessing = "cover+crop"});
//   CacheKey text = text_key("a road", text_hash);
//   CacheSearch search(folder, contents);                             // cache_search.h
//   if (!search.find(clip).entry) write_clip(folder, clip, sample, contents);     // `tessera prepare`
//   CachedClip back = read_clip(*search.find(clip).entry);                        // `tessera train`
//
// [Note: keys of the cache] The name of an entry is a hash of what it is, so several recipes share a folder:
//
//   entry  file                      the hash is of                                               its header has besides
//   clip   <hash>.safetensors        source, its row's other files, encoder, shape,               stamp, content of each
//                                    preprocessing, version 2                                     of these files
//   text   texts/<hash>.safetensors  caption, encoder, version 2
//   both   <hash>.safetensors        source, caption, encoder, shape, preprocessing, version 1    stamp of the source
//
// `encoder` is, of a clip, a hash of what makes latents and conditions (autoencoder, CLIP, speech model); of a text, of
// text encoder, its weights and their dtype, tokenizer, instruction, and the most tokens of a caption (text_len). In
// version 1 it is one hash of all of them but dtype and length. Entries of version 1 are not written any more. Their
// clip is used for any caption; their text where it has as many rows as the caption has now.
//
// A clip's entry is right while its files have the stamp (size and time) that the header says, or else the content; one
// of the same files under another path is used too ([Note: moved clips], cache_search.h).
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/files/records.h"
#include "tessera/data/probes.h"

namespace tessera::data {

/// Fingerprints of the files that a cache was made from, remembered beside it by size and time: after `touch`, scp or a
/// checkout a file is read once and found to be the same.
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
  std::optional<Known> find(const Path& path) const;
  Known current(const Path& path) const;
  void put(const Path& path, const Known& known);
  static Known read(RecordReader in);
  NamedRecords known_;
};

/// Reads those of the files that `file` does not know, on several threads, and writes it anew. `done` is told how many
/// were read.
void update_contents(const Path& file, std::vector<Path> paths, const std::function<void(int64_t)>& done = {});

inline constexpr int kCacheVersion = 2;

struct CacheKey {
  /// A file that a clip is made from: its role ("" of the clip itself, "first", "pose", ...) and its state.
  struct Source {
    std::string role;
    Path path;
    std::string stamp;
  };
  checkpoint::Metadata fields;  ///< what the hash is of
  std::vector<Source> sources;  ///< none: a text
  /// What an entry of version 1 says of the same.
  checkpoint::Metadata before;

  bool is_text() const { return sources.empty(); }
  std::string hash() const;             ///< 32 hex digits
  Path file(const Path& folder) const;  ///< where an entry of it is written
  std::string name() const;             ///< for messages: the clip, or the caption in quotes
};

/// A file of the clip's row, which the clip's entry is made from too: its role and path.
using RowFile = std::pair<std::string, Path>;

/// The keys of a data set, of which there may be millions: made whenever one is asked for.
class CacheKeys {
 public:
  CacheKeys(size_t size, std::function<CacheKey(size_t)> key) : size_(size), key_(std::move(key)) {}
  CacheKeys(std::vector<CacheKey> keys) : CacheKeys(keys.size(), [keys](size_t index) { return keys[index]; }) {}
  CacheKeys(std::initializer_list<CacheKey> keys) : CacheKeys(std::vector(keys)) {}
  size_t size() const { return size_; }
  CacheKey operator[](size_t index) const { return key_(index); }

 private:
  size_t size_;
  std::function<CacheKey(size_t)> key_;
};

struct ClipKey {
  Path source;  ///< as the data set gives it
  std::string encoder, shape, preprocessing;
  std::vector<RowFile> files = {};
  std::string encoder_before = {};  ///< of entries of version 1; empty: these are not looked for
};
/// Takes the stamps, without which it is good for the entry's name and fields alone. Throws UserError (input) when a file is
/// not there.
CacheKey clip_key(const ClipKey& clip, bool with_stamps = true);
CacheKey text_key(const std::string& caption, const std::string& encoder, const std::string& encoder_before = {});

struct CachedTensor {
  checkpoint::Shape shape;
  std::vector<float> values;
};

struct CachedClip {
  CachedTensor latent;                         ///< [C, f, h, w]
  std::map<std::string, CachedTensor> extras;  ///< y, clip_fea, audio: what the model family adds
};

struct CachedText {
  CachedTensor context, pooled = {}, glyphs = {};  ///< [n, D]; [P]; [g, G], no shape where there is none
};

/// Where a clip or a text lies, and what its header said when it was found.
struct CacheEntry {
  Path file;
  checkpoint::Metadata header;
  bool is_text = false;
  std::string name;  ///< for messages
  /// In place of a header that is not kept (CacheEntries); 0: it is.
  uint64_t digest = 0;
};

/// The entries of a data set, of which there may be millions, each with some twenty bytes: an entry's name is the hash of its
/// key, and of its header a digest is kept. Some may not be there. What it gives has no name for messages.
class CacheEntries {
 public:
  CacheEntries() = default;
  /// All texts, or all clips, of a cache.
  CacheEntries(Path folder, bool texts) : folder_(std::move(folder)), texts_(texts) {}
  /// The number of the entry of this key, which is new where none has the key yet.
  std::pair<size_t, bool> add(const CacheKey& key);
  void all_added() { numbers_ = {}; }  ///< nothing is added any more
  /// `of_fields`: the header is that of the key alone, which write_clip() adds to.
  void set(size_t index, const std::optional<CacheEntry>& entry, bool of_fields = false);
  size_t size() const { return places_.size(); }
  bool has(size_t index) const { return places_[index].digest != 0; }
  std::string hash(size_t index) const;  ///< of its key
  std::optional<CacheEntry> operator[](size_t index) const;
  CacheEntry at(size_t index) const;  ///< throws InternalError where there is none

 private:
  struct Place {
    uint64_t hash[2];     // of the key
    uint64_t digest = 0;  // of the header; 0: there is no entry
  };
  Path folder_;
  bool texts_ = false;
  std::deque<Place> places_;
  NumberTable numbers_;
  std::unordered_map<size_t, Path> elsewhere_;  // files that have another name than their key
};

/// Nothing when the header is that of the key and its files are those it was made from; else what differs ("stale:
/// ..."). `contents` is asked for files of another stamp. `header` is of version 1 where it says so.
std::optional<std::string> header_problem(const checkpoint::Metadata& header, const CacheKey& key,
                                          const Contents& contents);

/// Files whose stamp is not the header's: their content decides.
std::vector<CacheKey::Source> changed_files(const checkpoint::Metadata& header, const CacheKey& key);
/// What the header says of a file's content, as Contents knows it. Of version 1, which had none, the stamp.
std::string content_in(const checkpoint::Metadata& header, const CacheKey::Source& source);

/// The entry appears whole or not at all; the folder is made where needed.
void write_clip(const Path& folder, const CacheKey& key, const CachedClip& clip, const Contents& contents);
void write_caption(const Path& folder, const CacheKey& key, const CachedText& text);

/// Throw UserError (input) naming the entry where it has gone or been replaced, or its bytes are not those that were
/// written. Entries of the first versions have no checksums to differ from.
CachedClip read_clip(const CacheEntry& entry);
CachedText read_caption(const CacheEntry& entry);
/// Nothing when all of it can be read and is what was written.
std::optional<std::string> damage(const CacheEntry& entry);

}  // namespace tessera::data
