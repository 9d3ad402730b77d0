#pragma once
// Files that ranks of several machines share on a network file system.
//
//   if (!await_file(partial / "rank-00001.parts.json")) ...   // another rank has written it
//
// [Note: seen late] A machine keeps for a while what it has learnt of a folder on a network disk (of NFS a minute, as it is
// mounted by default): what another one has written or renamed may not be there for it yet. So a rank that needs a file of
// another rank waits for it, and ranks that see different checkpoints look again until they agree (RunFolder::choose).
// Names may lead to what was replaced (ESTALE), calls may be interrupted, and an answer that is lost makes a rename that
// was done look like one that failed: file.cpp and folders.cpp bear with these.
#include <filesystem>

namespace tessera::checkpoint {

/// Whether several machines may mount the disk of the path, or of what is there of the folders above it.
bool on_network_disk(const std::filesystem::path& path);

/// Seconds in which a machine sees what another one has done.
inline constexpr double kSeenSeconds = 75;

/// Whether the file is there; on a network disk, after so many seconds at most.
bool await_file(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
