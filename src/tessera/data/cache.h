#pragma once
// Encoded samples on disk: one <hash>.safetensors each, with what it was made from in its metadata.
//
//   CacheKey key = cache_key(item.path, item.caption, encoder_hash, "16x64x96", "cover+crop fps=16");
//   if (cache_problem(folder, key)) write_cached(folder, key, sample);        // `tessera prepare`
//   CacheReader cache(folder, keys);                                          // `tessera train`
//   CachedSample sample = cache.load(index);
//
// The hash names what the sample is (source, caption, encoder, shape, preprocessing, version), so several recipes share
// a folder. The source's size and time stand only in the metadata: a clip that was replaced is found stale, by name.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"

namespace tessera::data {

using Path = checkpoint::Path;

inline constexpr int kCacheVersion = 1;

struct CacheKey {
  std::string source;  ///< the clip's path as the dataset gives it
  std::string stamp;   ///< its size and modification time
  std::string caption;
  std::string encoder;        ///< hash of everything that encodes (autoencoder, text encoder, tokenizer)
  std::string shape;          ///< of the pixels: "16x64x96"
  std::string preprocessing;  ///< how pixels were made from the file

  std::string hash() const;               ///< 32 hex digits
  Path file(const Path& folder) const;    ///< folder/<hash>.safetensors
  checkpoint::Metadata metadata() const;  ///< all fields and the version
};

/// Fills in the stamp; throws UserError (input) when the source is not there.
CacheKey cache_key(const Path& source, std::string caption, std::string encoder, std::string shape,
                   std::string preprocessing);

struct CachedTensor {
  checkpoint::Shape shape;
  std::vector<float> values;
};

struct CachedSample {
  CachedTensor latent;                         ///< [C, f, h, w]
  CachedTensor context;                        ///< [n, D]
  std::map<std::string, CachedTensor> extras;  ///< y, clip_fea, audio: what the model family adds
  std::string source;
};

/// Nothing when the entry is there and was made from this key; else what is wrong ("missing", "stale: encoder ...",
/// "unreadable: ..."). Looks at its header alone.
std::optional<std::string> cache_problem(const Path& folder, const CacheKey& key);

/// Nothing when the bytes of the entry are those that were written; else which are not. Reads all of it. Entries of
/// versions that wrote no checksums have none to differ from.
std::optional<std::string> cache_damage(const Path& folder, const CacheKey& key);

/// Creates the folder where needed; the entry appears whole or not at all. `sample.source` is taken from the key.
void write_cached(const Path& folder, const CacheKey& key, const CachedSample& sample);

/// The samples of a dataset, by index. Nothing is held open or in memory; any number of threads may load.
class CacheReader {
 public:
  /// Throws UserError (input) naming the first entry that is missing or stale and how many there are.
  CacheReader(Path folder, std::vector<CacheKey> keys);

  int64_t size() const { return static_cast<int64_t>(keys_.size()); }
  const std::string& source(int64_t index) const { return keys_.at(static_cast<size_t>(index)).source; }
  /// Throws UserError (input) naming the entry where its bytes are not those that were written.
  CachedSample load(int64_t index) const;

 private:
  Path folder_;
  std::vector<CacheKey> keys_;
};

}  // namespace tessera::data
