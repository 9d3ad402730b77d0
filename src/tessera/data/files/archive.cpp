#include "tessera/data/files/archive.h"

#include <sys/stat.h>

#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "tessera/base/check.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/torch_zip.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/files/inflate.h"
#include "tessera/data/files/parquet.h"
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
       checkpoint::read_zip(file, checkpoint::Deflated::take, "archive them again as they are: zip -0"))
    if (!entry.name.ends_with('/'))
      members.push_back({std::move(entry.name), entry.begin, entry.bytes, entry.packed, entry.crc32});
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

/// What a deflated member becomes.
std::string inflated_member(const checkpoint::ReadFile& archive, const Member& member, int64_t most) {
  return inflated(archive, {member.begin, member.packed, member.bytes, member.crc32},
                  archive.path().string() + "/" + member.name, most);
}

/// The file on disk that has a path's bytes.
Path file_of(const std::optional<InArchive>& place, const Path& path) {
  if (place) return place->archive;
  const auto picture = find_in_table(path);
  return picture ? picture->table : path;
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

std::string read_member(const checkpoint::ReadFile& archive, const Member& member) {
  if (member.packed >= 0) return inflated_member(archive, member, kMostInflated);
  std::string text(static_cast<size_t>(member.bytes), '\0');
  archive.read(member.begin, member.bytes, text.data());
  return text;
}

std::optional<InArchive> find_in_archive(const Path& path) {
  const auto parts = split_at_archive(path);
  if (!parts) return std::nullopt;
  const auto index = index_of(parts->first);
  const auto found = index->places.find(parts->second);
  check_input(found != index->places.end(), "data.archive",
              parts->first.string() + ": holds no " + checkpoint::shown(parts->second), "fix or remove the row");
  return InArchive{parts->first, (*index->members)[found->second]};
}

bool is_file(const Path& path) {
  std::error_code unseen;
  if (fs::is_regular_file(path, unseen) || find_in_table(path)) return true;
  const auto parts = split_at_archive(path);
  return parts && index_of(parts->first)->places.contains(parts->second);
}

std::string read_bytes(const Path& path, int64_t most) {
  const OpenFile file(path, most);
  check_input(
      file.size() <= most, "data.archive",
      path.string() + ": has " + std::to_string(file.size()) + " bytes, expected at most " + std::to_string(most),
      "is it what its name says?");
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, file.size(), text.data());
  return text;
}

OpenFile::OpenFile(const Path& path, int64_t most_inflated)
    : place_(find_in_archive(path)), file_(file_of(place_, path)), bytes_(file_.size()) {
  if (const auto picture = find_in_table(path)) {
    inflated_ = read_picture(*picture);
    bytes_ = static_cast<int64_t>(inflated_->size());
  }
  if (!place_) return;
  begin_ = place_->member.begin, bytes_ = place_->member.bytes;
  if (place_->member.packed >= 0) inflated_ = inflated_member(file_, place_->member, most_inflated);
}

void OpenFile::read(int64_t begin, int64_t bytes, void* to) const {
  check_internal(begin >= 0 && bytes >= 0 && begin <= size() - bytes, "data.archive", "read past the end of a file");
  if (!inflated_) return file_.read(begin_ + begin, bytes, to);
  if (bytes > 0) std::memcpy(to, inflated_->data() + begin, static_cast<size_t>(bytes));
}

}  // namespace tessera::data
