#include "tessera/data/files/archive.h"

#include <sys/stat.h>

#include <map>
#include <mutex>
#include <unordered_map>

#include "tessera/base/check.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/torch_zip.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/files/tar.h"

namespace tessera::data {

namespace fs = std::filesystem;

namespace {

struct Index {
  std::string stamp;
  std::shared_ptr<const std::vector<Member>> members;
  std::unordered_map<std::string_view, size_t> places;  // names are those of `members`
};

/// Size and time of change, by which an archive that was replaced is known.
std::string stamp_of(const Path& archive) {
  struct stat info {};
  check_input(::stat(archive.c_str(), &info) == 0 && S_ISREG(info.st_mode), "data.archive",
              archive.string() + ": no such archive", "check data.path and data.metadata");
  return std::to_string(info.st_size) + "@" + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec);
}

std::vector<Member> read_members(const Path& archive) {
  const checkpoint::ReadFile file(archive);
  if (ending_of(archive) == ".tar") return read_tar(file);
  std::vector<Member> members;
  for (checkpoint::ZipEntry& entry :
       checkpoint::read_zip(file, "clips are read from where they lie: store them uncompressed (zip -0)"))
    if (!entry.name.ends_with('/')) members.push_back({std::move(entry.name), entry.begin, entry.bytes});
  return members;
}

std::shared_ptr<const Index> index_of(const Path& archive) {
  static std::mutex lock;
  static std::map<Path, std::shared_ptr<const Index>> known;
  std::string stamp = stamp_of(archive);
  {
    const std::lock_guard<std::mutex> guard(lock);
    const auto found = known.find(archive);
    if (found != known.end() && found->second->stamp == stamp) return found->second;
  }
  auto index = std::make_shared<Index>();
  index->stamp = std::move(stamp);
  index->members = std::make_shared<const std::vector<Member>>(read_members(archive));
  for (size_t i = 0; i < index->members->size(); ++i) {
    const std::string& name = (*index->members)[i].name;
    check_input(index->places.emplace(name, i).second, "data.archive",
                archive.string() + ": the name " + checkpoint::shown(name) + " is used twice",
                "archive each file once, under a name of its own");
  }
  const std::lock_guard<std::mutex> guard(lock);
  return known[archive] = std::move(index);
}

/// The archive that a path leads through, and the name in it.
std::optional<std::pair<Path, std::string>> split_at_archive(const Path& path) {
  std::error_code unseen;
  for (Path folder = path.parent_path(); folder.has_relative_path(); folder = folder.parent_path())
    if (is_archive(folder) && fs::is_regular_file(folder, unseen))
      return std::pair(folder, path.lexically_relative(folder).generic_string());
  return std::nullopt;
}

}  // namespace

bool is_archive(const Path& path) {
  const std::string ending = ending_of(path);
  return ending == ".tar" || ending == ".zip";
}

std::shared_ptr<const std::vector<Member>> members_of(const Path& archive) { return index_of(archive)->members; }

std::optional<ByteRange> range_in_archive(const Path& path) {
  const auto parts = split_at_archive(path);
  if (!parts) return std::nullopt;
  const auto index = index_of(parts->first);
  const auto found = index->places.find(parts->second);
  check_input(found != index->places.end(), "data.archive",
              parts->first.string() + ": holds no " + checkpoint::shown(parts->second), "fix or remove the row");
  const Member& member = (*index->members)[found->second];
  return ByteRange{parts->first, member.begin, member.bytes};
}

bool is_file(const Path& path) {
  std::error_code unseen;
  if (fs::is_regular_file(path, unseen)) return true;
  const auto parts = split_at_archive(path);
  return parts && index_of(parts->first)->places.contains(parts->second);
}

std::string read_bytes(const Path& path, int64_t most) {
  const std::optional<ByteRange> range = range_in_archive(path);
  const checkpoint::ReadFile file(range ? range->file : path);
  const int64_t begin = range ? range->begin : 0, bytes = range ? range->bytes : file.size();
  check_input(bytes <= most, "data.archive",
              path.string() + ": has " + std::to_string(bytes) + " bytes, expected at most " + std::to_string(most),
              "is it what its name says?");
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read(begin, bytes, text.data());
  return text;
}

}  // namespace tessera::data
