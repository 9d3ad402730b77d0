#pragma once
// Files inside .tar and .zip archives, named as if the archive were a folder: "shards/00000.tar/cat.jpg".
//
//   for (const Member& member : *members_of("shards/00000.tar")) ...        // "cat.jpg", where it lies
//   if (const auto range = range_in_archive("shards/00000.tar/cat.jpg")) ...
//
// Nothing is unpacked: a member is a range of its archive's bytes. Archives are read once and remembered; one that has
// changed since is read again.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/files/tar.h"

namespace tessera::data {

using Path = std::filesystem::path;

bool is_archive(const Path& path);  ///< by its ending: .tar, .zip

/// The regular files of an archive in their order; folders and links are left out. Throws UserError (input) naming the
/// archive for one that is not there, cut short or damaged, for sparse and compressed members, and names used twice.
std::shared_ptr<const std::vector<Member>> members_of(const Path& archive);

/// Bytes of a file on disk.
struct ByteRange {
  Path file;
  int64_t begin = 0, bytes = 0;
};

/// Where a member's bytes lie; nothing for a path that leads through no archive. Throws UserError (input) for an archive
/// that cannot be read and for a member that is not in it.
std::optional<ByteRange> range_in_archive(const Path& path);

/// Whether it is a regular file, or the member of an archive. False also for what cannot be looked at: a link to itself,
/// a name that is too long.
bool is_file(const Path& path);

/// The bytes of a file or member, at most `most` of them. Throws UserError (input).
std::string read_bytes(const Path& path, int64_t most = int64_t{1} << 30);

}  // namespace tessera::data
