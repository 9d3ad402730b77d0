// Format: POSIX.1-2017, pax (ustar interchange format and extended headers), and GNU tar's manual, "Basic Tar Format".
#include "tessera/data/files/archive.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "tessera/base/check.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/torch_zip.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/files/inflate.h"
#include "tessera/data/files/parquet.h"
#include "tessera/data/files/records.h"

namespace tessera::data {

namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kMostTarHeader = int64_t{1} << 20;  // of a pax header or a long name
constexpr int64_t kMostMember = int64_t{1} << 50;

/// A field of a header: its text up to the first zero byte.
std::string_view field(std::string_view header, size_t begin, size_t length) {
  const std::string_view bytes = header.substr(begin, length);
  return bytes.substr(0, bytes.find('\0'));
}

class TarReader {
 public:
  explicit TarReader(const checkpoint::ReadFile& file) : file_(file) {}

  std::vector<Member> read() {
    while (next_header()) take_member();
    return std::move(members_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(Exit::input, "data.archive", file_.path().string() + ": byte " + std::to_string(at_) + ": " + what,
                    "the archive is damaged or only partly copied: fetch it again");
  }

  /// False at the block of zeros that ends an archive.
  bool next_header() {
    if (at_ > file_.size() - kBlock) refuse("the archive ends without its end mark (cut short?)");
    header_.resize(kBlock);
    file_.read(at_, kBlock, header_.data());
    if (header_.find_first_not_of('\0') == std::string::npos) {
      if (!long_name_.empty() || !pax_.empty()) refuse("a header of a file that does not follow");
      return false;
    }
    check_sum();
    bytes_ = number(124, 12, "size");
    if (pax_.contains("size")) bytes_ = pax_number("size");
    if (bytes_ > file_.size() - kBlock - at_)
      refuse("a member of " + std::to_string(bytes_) + " bytes, the archive has " + std::to_string(file_.size()) +
             " (cut short?)");
    return true;
  }

  void check_sum() const {
    const int64_t written = number(148, 8, "checksum");
    int64_t sum = 0, with_signs = 0;  // old programs add signed bytes
    for (size_t i = 0; i < header_.size(); ++i) {
      const char byte = i >= 148 && i < 156 ? ' ' : header_[i];
      sum += static_cast<unsigned char>(byte), with_signs += static_cast<signed char>(byte);
    }
    if (written != sum && written != with_signs)
      refuse("a header with checksum " + std::to_string(sum) + ", " + std::to_string(written) + " is written in it");
  }

  /// Octal digits with blanks around them, or base 256 after a byte of 0x80.
  int64_t number(size_t begin, size_t length, const char* what) const {
    const std::string_view bytes = std::string_view(header_).substr(begin, length);
    int64_t value = 0;
    if (static_cast<unsigned char>(bytes[0]) == 0x80) {
      for (const char c : bytes.substr(1)) {
        if (value > kMostMember) refuse(std::string(what) + " is too large");
        value = value * 256 + static_cast<unsigned char>(c);
      }
      return value;
    }
    size_t i = bytes.find_first_not_of(' ');
    for (; i < bytes.size() && bytes[i] >= '0' && bytes[i] <= '7'; ++i) value = value * 8 + (bytes[i] - '0');
    if (i < bytes.size() && bytes.find_first_not_of(std::string_view(" \0", 2), i) != std::string_view::npos)
      refuse(std::string(what) + " is no octal number");
    return value;
  }

  int64_t pax_number(const char* key) const {
    const std::string& text = pax_.at(key);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kMostMember)
      refuse("pax " + std::string(key) + " is " + checkpoint::shown(text));
    return value;
  }

  void take_member() {
    const char type = header_[156];
    const int64_t data = at_ + kBlock;
    if (type == 'x' || type == 'g' || type == 'L' || type == 'K') {
      if (bytes_ > kMostTarHeader) refuse("an extended header of " + std::to_string(bytes_) + " bytes");
      std::string text(static_cast<size_t>(bytes_), '\0');
      file_.read(data, bytes_, text.data());
      if (type == 'x') read_pax(text);
      if (type == 'L') long_name_ = text.substr(0, text.find('\0'));
    } else {
      if (type == 'S' || pax_.contains("GNU.sparse.major") || pax_.contains("GNU.sparse.map"))
        refuse("a sparse member, whose bytes are not there as they are; archive it again without --sparse");
      if (type == '0' || type == '\0' || type == '7') add(data);
      long_name_.clear(), pax_.clear();
    }
    at_ = data + (bytes_ + kBlock - 1) / kBlock * kBlock;
  }

  /// Lines of "LENGTH KEY=VALUE\n", each length that of its whole line.
  void read_pax(std::string_view text) {
    while (!text.empty()) {
      size_t length = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
      const size_t head = static_cast<size_t>(end - text.data()) + 1;
      if (error != std::errc() || length > text.size() || length < head + 2 || *end != ' ' || text[length - 1] != '\n')
        refuse("a pax header that is not lines of LENGTH KEY=VALUE");
      const std::string_view line = text.substr(head, length - head - 1);
      const size_t equal = line.find('=');
      if (equal == std::string_view::npos) refuse("a pax header that is not lines of LENGTH KEY=VALUE");
      pax_[std::string(line.substr(0, equal))] = std::string(line.substr(equal + 1));
      text.remove_prefix(length);
    }
  }

  void add(int64_t begin) {
    std::string name;
    if (pax_.contains("path")) {
      name = pax_.at("path");
    } else if (!long_name_.empty()) {
      name = long_name_;
    } else {
      name = field(header_, 0, 100);
      const bool posix = header_.compare(257, 6, std::string_view("ustar\0", 6)) == 0;
      if (const std::string_view prefix = field(header_, 345, 155); posix && !prefix.empty())
        name = std::string(prefix) + "/" + name;
    }
    if (name.starts_with("./")) name.erase(0, 2);
    if (name.empty() || name.find('\0') != std::string::npos) refuse("a member without a name");
    members_.push_back({std::move(name), begin, bytes_});
  }

  const checkpoint::ReadFile& file_;
  int64_t at_ = 0, bytes_ = 0;
  std::string header_, long_name_;
  std::map<std::string, std::string> pax_;
  std::vector<Member> members_;
};

}  // namespace

std::vector<Member> read_tar(const checkpoint::ReadFile& file) { return TarReader(file).read(); }

namespace fs = std::filesystem;

namespace {

/// The members of an archive as they stay in memory, some ten bytes each: a data set may have ten million. A record has how
/// many letters of its name are those of the one before, and the others; where it begins behind the end of that one; and the
/// first of each group has all of it.
class Index {
 public:
  Index(const Path& archive, std::string stamp, const std::vector<Member>& members) : stamp_(std::move(stamp)) {
    check_input(members.size() < ~uint32_t{0} / 2, "data.archive", archive.string() + ": has too many members",
                "make several archives of it");
    const size_t slots = std::bit_ceil(members.size() * 3 / 2 + 1);
    small_ = members.size() < 0xFFFF;
    if (small_)
      small_slots_.resize(slots);
    else
      slots_.resize(slots);
    RecordWriter out;
    const Member none;
    for (size_t m = 0; m < members.size(); ++m) {
      const Member& member = members[m];
      const Member& before = m % kGroup == 0 ? none : members[m - 1];
      if (m % kGroup == 0) groups_.push_back(out.bytes().size());
      write(out, member, before);
      const size_t place = place_of(member.name, [&](uint32_t number) { return members[number].name == member.name; });
      check_input(slot(place) == 0, "data.archive",
                  archive.string() + ": the name " + checkpoint::shown(member.name) + " is used twice",
                  "archive each file once, under a name of its own");
      if (small_)
        small_slots_[place] = static_cast<uint16_t>(m + 1);
      else
        slots_[place] = static_cast<uint32_t>(m + 1);
    }
    records_ = std::move(out.bytes());
    records_.shrink_to_fit(), groups_.shrink_to_fit();
  }

  const std::string& stamp() const { return stamp_; }
  std::optional<Member> find(std::string_view name) const {
    Member found;
    const auto is = [&](uint32_t number) { return (found = member(number)).name == name; };
    if (slot(place_of(name, is)) == 0) return std::nullopt;
    return found;
  }
  std::vector<Member> members() const {
    std::vector<Member> all;
    RecordReader in(records_.data());
    while (in.at() < records_.data() + records_.size())
      all.push_back(read(in, all.size() % kGroup == 0 ? Member() : all.back()));
    return all;
  }

 private:
  static constexpr size_t kGroup = 16;

  static int64_t end_of(const Member& member) {
    return member.begin + (member.packed >= 0 ? member.packed : member.bytes);
  }
  static void write(RecordWriter& out, const Member& member, const Member& before) {
    const auto [own, other] = std::ranges::mismatch(member.name, before.name);
    const auto same = static_cast<size_t>(own - member.name.begin());
    out.number(same), out.text(std::string_view(member.name).substr(same));
    const int64_t behind = member.begin - end_of(before);  // a zip's members may lie in any order
    out.number(static_cast<uint64_t>(behind) << 1 ^ (behind < 0 ? ~uint64_t{0} : 0));
    out.number(static_cast<uint64_t>(member.bytes)), out.number(static_cast<uint64_t>(member.packed + 1));
    if (member.packed >= 0) out.number(member.crc32);
  }
  static Member read(RecordReader& in, const Member& before) {
    Member member;
    member.name.assign(before.name, 0, in.number());
    member.name += in.text();
    const uint64_t behind = in.number();
    member.begin = end_of(before) + static_cast<int64_t>(behind >> 1 ^ (behind & 1 ? ~uint64_t{0} : 0));
    member.bytes = static_cast<int64_t>(in.number());
    member.packed = static_cast<int64_t>(in.number()) - 1;
    if (member.packed >= 0) member.crc32 = static_cast<uint32_t>(in.number());
    return member;
  }
  Member member(uint32_t number) const {
    RecordReader in(records_.data() + groups_[number / kGroup]);
    Member member = read(in, {});
    for (size_t i = 0; i < number % kGroup; ++i) member = read(in, member);
    return member;
  }
  uint32_t slot(size_t place) const { return small_ ? small_slots_[place] : slots_[place]; }
  /// Where the name is in the table, or would be.
  template <class Is>
  size_t place_of(std::string_view name, const Is& is) const {
    const size_t last = (small_ ? small_slots_.size() : slots_.size()) - 1;
    size_t place = std::hash<std::string_view>()(name) & last;
    while (slot(place) != 0 && !is(slot(place) - 1)) place = (place + 1) & last;
    return place;
  }

  std::string stamp_, records_;
  std::vector<size_t> groups_;  // where the records of each begin
  bool small_ = true;
  // By the hash of a name the number of its record, from 1 on; 0: none. One of the two, by how many there are.
  std::vector<uint16_t> small_slots_;
  std::vector<uint32_t> slots_;
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
    if (found != known.end() && found->second->stamp() == stamp) return found->second;
  }
  auto index = std::make_shared<const Index>(archive, std::move(stamp), read_members(archive));
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

std::vector<Member> members_of(const Path& archive) { return index_of(archive)->members(); }

std::string read_member(const checkpoint::ReadFile& archive, const Member& member) {
  if (member.packed >= 0) return inflated_member(archive, member, kMostInflated);
  std::string text(static_cast<size_t>(member.bytes), '\0');
  archive.read(member.begin, member.bytes, text.data());
  return text;
}

std::optional<InArchive> find_in_archive(const Path& path) {
  const auto parts = split_at_archive(path);
  if (!parts) return std::nullopt;
  std::optional<Member> found = index_of(parts->first)->find(parts->second);
  check_input(found.has_value(), "data.archive",
              parts->first.string() + ": holds no " + checkpoint::shown(parts->second), "fix or remove the row");
  return InArchive{parts->first, std::move(*found)};
}

bool is_file(const Path& path) {
  std::error_code unseen;
  if (fs::is_regular_file(path, unseen) || find_in_table(path)) return true;
  const auto parts = split_at_archive(path);
  return parts && index_of(parts->first)->find(parts->second);
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
