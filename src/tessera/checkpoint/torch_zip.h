#pragma once
// Zip archives as torch.save writes them: entries that are stored, not compressed, with zip64 where something is large.
// Those of other programs may have deflated entries; whoever asks for them inflates them.
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
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

struct ZipEntry {
  std::string name;
  int64_t begin = 0, bytes = 0;  ///< where its data lies in the file, and its size
  int64_t packed = -1;           ///< it is deflated, in so many bytes of the file; -1: stored
  uint32_t crc32 = 0;  ///< as the archive has it, not verified; 0 also where a writer of stored entries left it out
};

/// What to do about an entry that is compressed.
inline constexpr const char* kStoreAgain =
    "torch.save stores its files plainly; save it again with torch.save, or convert it to safetensors";

enum class Deflated { refuse, take };

/// The directory of the archive. Every entry lies inside the file, and no deflated one says that it is larger than what
/// its bytes can become (1032 times as many). Encrypted entries and those of another compression, several disks, names
/// used twice and everything else that is out of place is a UserError (input) that names the file.
std::vector<ZipEntry> read_zip(const ReadFile& file, Deflated deflated = Deflated::refuse,
                               const char* store_again = kStoreAgain);

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

// Writes a dict of tensors as torch.save does; torch.load(PATH, weights_only=True) opens it.
//
//   TorchWriter out("model.pth", infos);
//   for (const TensorInfo& tensor : infos) out.write(data_of(tensor));
//   out.commit();

/// Beside `path`, flushed and renamed (file.h). Every tensor is contiguous and has a storage of its own.
class TorchWriter {
 public:
  TorchWriter(const Path& path, std::vector<TensorInfo> tensors);

  void write(const void* data);  ///< all bytes of the next tensor, in the order given
  void commit();

 private:
  std::vector<TensorInfo> tensors_;
  size_t next_ = 0;
  ZipWriter zip_;
};

}  // namespace tessera::checkpoint
