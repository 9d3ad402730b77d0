#pragma once
// Zip archives as torch.save writes them: entries that are stored, not compressed, with zip64 where something is large.
//
//   ReadFile file("model.pth");
//   for (const ZipEntry& entry : read_zip(file)) file.read(entry.begin, entry.bytes, to);
//
//   ZipWriter out("new.pth", bytes_needed);
//   out.add("archive/data/0", data, bytes);
//   out.commit();
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/file.h"

namespace tessera::checkpoint {

struct ZipEntry {
  std::string name;
  int64_t begin = 0, bytes = 0;  ///< where its data lies in the file
  uint32_t crc32 = 0;            ///< as the archive has it, not verified; 0 also where a writer left it out
};

/// What to do about an entry that is compressed.
inline constexpr const char* kStoreAgain =
    "torch.save stores its files plainly; save it again with torch.save, or convert it to safetensors";

/// The directory of the archive. Every entry lies inside the file; compressed and encrypted ones, several disks, names
/// used twice and everything else that is out of place is a UserError (input) that names the file.
std::vector<ZipEntry> read_zip(const ReadFile& file, const char* store_again = kStoreAgain);

/// Writes beside `path` and renames (file.h). Data begins at multiples of 64 bytes, as readers that map the file like.
class ZipWriter {
 public:
  /// Sizes and offsets from `zip64_from` on take the 64-bit form (a parameter for the tests).
  ZipWriter(const Path& path, int64_t bytes_needed, uint32_t zip64_from = UINT32_MAX);

  void add(const std::string& name, const void* data, int64_t bytes);
  void commit();  ///< the directory, flush, rename

 private:
  struct Written {
    ZipEntry entry;
    int64_t header = 0;  ///< where its local header lies
  };
  void put(const std::string& bytes);

  DurableFile file_;
  const uint64_t zip64_from_;
  int64_t position_ = 0;
  std::vector<Written> written_;
};

}  // namespace tessera::checkpoint
