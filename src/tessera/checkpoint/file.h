#pragma once
// Files that are read at offsets, and files that are either wholly written or not there.
//
//   DurableFile out("sample.safetensors", bytes);    // writes sample.safetensors.<tag>-<n>.partial
//   out.write(data, bytes);
//   out.commit();           // fsync, rename, fsync of the folder; a device or a pipe gets the bytes and stays
//
// Every failed write is a UserError with Exit::disk; the temporary file is removed and what was at the path stays.
// (A program that wants the error for RLIMIT_FSIZE as well must ignore SIGXFSZ.)
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

using Path = std::filesystem::path;

/// A regular file open for reading. pread, not mmap: a mapped file that is cut short kills the process by SIGBUS,
/// a short pread is an error with a name.
class ReadFile {
 public:
  explicit ReadFile(const Path& path);  ///< throws UserError (input)
  ~ReadFile();
  ReadFile(ReadFile&& other) noexcept;
  ReadFile& operator=(ReadFile&& other) noexcept;

  const Path& path() const { return path_; }
  int64_t size() const { return size_; }
  void read(int64_t offset, int64_t bytes, void* to) const;  ///< exactly; any number of threads may call it

 private:
  Path path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

class DurableFile {
 public:
  DurableFile(const Path& path, int64_t bytes_needed);
  ~DurableFile();  ///< removes the temporary file unless committed
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(const void* data, int64_t bytes);
  void commit();

 private:
  [[noreturn]] void fail(std::string_view act);
  Path path_, partial_;  ///< no partial: bytes go to the path itself
  int fd_ = -1;
  int64_t needed_, written_ = 0;
};

/// path.<tag>-<n>.partial, where nobody else writes: no other thread, process, container or host.
Path temporary_name(Path path);

/// Removes what killed processes left of files that were being written: every temporary file of a DurableFile that
/// nobody holds. A user's own `x.partial` stays. Others may begin files there meanwhile.
void remove_dead_partials(const Path& folder);
/// The same beside one target alone: what was to become `path`. Its writers call it before they begin.
void remove_dead_partials_of(const Path& path);

/// A folder that takes the name of `final` when it is whole, as DurableFile does for a file; folders.h's publish() gives it
/// the name.
class PartialFolder {
 public:
  /// Makes it, and removes what dead writers of the same target left. `hint`: the key or flag that names it.
  PartialFolder(const Path& final, std::string_view hint);
  ~PartialFolder();  ///< removes it unless it has the name
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const Path& path() const { return partial_; }
  const Path& final() const { return final_; }

 private:
  const Path final_, partial_;
  int fd_ = -1;  // locked as long as somebody writes
};

/// Makes the folder and those above it where they are not there. Throws UserError (disk) with the system's reason.
/// `hint`: the key or flag that names it.
void make_folder(const Path& folder, std::string_view hint = "check the path");

std::string read_text(const Path& path);
void write_text(const Path& path, std::string_view text);  ///< through a DurableFile
void sync_folder(const Path& folder);                      ///< makes created and renamed entries survive a power cut

/// What a file is that people take for weights, by its first bytes, in words with the article: "empty", "a text (\"[run]\")", "a PNG picture". Empty for what begins like no other
/// kind: a safetensors file, whole or not.
std::string what_else(const ReadFile& file);

// Files that ranks of several machines share on a network file system.
//
//   if (!await_file(partial / "rank-00001.parts.json")) ...   // another rank has written it
//
// [Note: seen late] A machine keeps for a while what it has learnt of a folder on a network disk (of NFS a minute, as it is
// mounted by default): what another one has written or renamed may not be there for it yet. So a rank that needs a file of
// another rank waits for it, and ranks that see different checkpoints look again until they agree (RunFolder::choose).
// Names may lead to what was replaced (ESTALE), calls may be interrupted, and an answer that is lost makes a rename that
// was done look like one that failed: file.cpp and folders.cpp bear with these.

/// Whether several machines may mount the disk of the path, or of what is there of the folders above it.
bool on_network_disk(const std::filesystem::path& path);

/// Seconds in which a machine sees what another one has done.
inline constexpr double kSeenSeconds = 75;

/// Whether the file is there; on a network disk, after so many seconds at most.
bool await_file(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
