#pragma once
// Files inside .tar and .zip archives, named as if the archive were a folder: "shards/00000.tar/cat.jpg".
//
//   for (const Member& member : members_of("shards/00000.tar")) ...        // "cat.jpg", where it lies
//   if (const auto range = find_in_archive("shards/00000.tar/cat.jpg")) ...
//
// Nothing is unpacked to disk: a member is a range of its archive's bytes, read there, and where a zip has it deflated it
// is inflated into memory when it is opened. Archives are read once and where their members lie is remembered; one that has
// changed since is read again.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/file.h"

namespace tessera::data {

// Tar archives as tarfile, GNU tar and WebDataset write them: POSIX ustar, with pax headers or GNU's long names.
//
//   for (const Member& member : read_tar(checkpoint::ReadFile("00000.tar"))) ...

struct Member {
  std::string name;              ///< as in the archive, without a leading "./"
  int64_t begin = 0, bytes = 0;  ///< where its bytes lie in the archive, and its size
  int64_t packed = -1;           ///< of zips: it is deflated, in so many bytes; -1: its bytes are there as they are
  uint32_t crc32 = 0;            ///< of a deflated one's content
};

/// The regular files in their order. Every header's checksum is checked, every member lies inside the file. Throws
/// UserError (input) naming the archive and the byte.
std::vector<Member> read_tar(const checkpoint::ReadFile& file);

using Path = std::filesystem::path;

bool is_archive(const Path& path);  ///< by its ending: .tar, .zip

/// The regular files of an archive in their order; folders and links are left out. Throws UserError (input) naming the
/// archive for one that is not there, cut short or damaged, for sparse, encrypted and oddly compressed members, and names used
/// twice.
std::vector<Member> members_of(const Path& archive);

/// The bytes of a member, of at most 1 GiB where it is deflated. Throws UserError (input).
std::string read_member(const checkpoint::ReadFile& archive, const Member& member);

/// A member, and the archive on disk that has it.
struct InArchive {
  Path archive;
  Member member;
};

/// Where a member lies; nothing for a path that leads through no archive. Throws UserError (input) for an archive
/// that cannot be read and for a member that is not in it.
std::optional<InArchive> find_in_archive(const Path& path);

/// Whether it is a regular file, or the member of an archive. False also for what cannot be looked at: a link to itself,
/// a name that is too long.
bool is_file(const Path& path);

/// A file, a member of an archive, or a picture in a table (parquet.h), read at offsets as if it were a file of its own.
class OpenFile {
 public:
  /// Throws UserError (input) for one that is not there or damaged, and for a deflated one that becomes more than
  /// `most_inflated` bytes.
  explicit OpenFile(const Path& path, int64_t most_inflated = int64_t{1} << 30);

  int64_t size() const { return bytes_; }
  void read(int64_t begin, int64_t bytes, void* to) const;  ///< exactly, inside of size()

 private:
  std::optional<InArchive> place_;
  checkpoint::ReadFile file_;
  int64_t begin_ = 0, bytes_ = 0;
  std::optional<std::string> inflated_;  ///< of a deflated one, or of a picture in a table
};

/// The bytes of a file or member, at most `most` of them. Throws UserError (input).
std::string read_bytes(const Path& path, int64_t most = int64_t{1} << 30);

}  // namespace tessera::data
