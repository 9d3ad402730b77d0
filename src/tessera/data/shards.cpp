#include "tessera/data/shards.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/files/file_kinds.h"

namespace tessera::data {

namespace fs = std::filesystem;
using checkpoint::Json;

namespace {

constexpr const char* kList = "wids-meta.json";
constexpr int64_t kMostText = int64_t{16} << 20;

struct Sample {
  std::string key;
  std::map<std::string, const Member*> files;  // by ending
};

/// Members of one name together, in the order in which the first of them comes.
std::vector<Sample> samples_of(const std::vector<Member>& members, bool first_dot) {
  std::vector<Sample> samples;
  std::map<std::string_view, size_t> places;
  for (const Member& member : members) {
    const size_t base = member.name.rfind('/') + 1;  // npos + 1 is 0
    if (member.name[base] == '.') continue;          // ._a.jpg and .DS_Store of other programs
    const size_t dot = first_dot ? member.name.find('.', base) : member.name.rfind('.');
    if (dot == std::string::npos || dot < base) continue;
    const std::string_view key = std::string_view(member.name).substr(0, dot);
    const auto [place, fresh] = places.emplace(key, samples.size());
    if (fresh) samples.push_back({std::string(key), {}});
    std::string ending = member.name.substr(dot);
    std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
    samples[place->second].files[ending] = &member;
  }
  return samples;
}

/// The sample's file of that ending: "a.png", else "a.image.png" where no other field has that ending, or one of these names
/// is the sample's own. Null where there is none, or several that only who made them can tell apart.
const Member* field_of(const Sample& sample, const std::string& ending) {
  if (const auto plain = sample.files.find(ending); plain != sample.files.end()) return plain->second;
  const Member* found = nullptr;
  int fields = 0;
  for (const auto& [field, member] : sample.files) {
    if (!field.ends_with(ending) || field.size() <= ending.size() || field[field.size() - ending.size()] != '.')
      continue;
    for (const char* own : {"image", "img", "jpg", "video", "clip", "caption", "text", "prompt", "latent"})
      if (field == "." + std::string(own) + ending) return member;
    found = member, ++fields;
  }
  return fields == 1 ? found : nullptr;
}

const Member* media_of(const Sample& sample, bool latents) {
  if (latents) return field_of(sample, ".npy");
  for (const auto* endings : {&image_endings(), &video_endings()})
    for (const std::string& ending : *endings)
      if (const Member* member = field_of(sample, ending)) return member;
  return nullptr;
}

class ArchiveReader {
 public:
  ArchiveReader(const Archive& archive, const DatasetSpec& spec)
      : archive_(archive),
        spec_(spec),
        members_(members_of(archive.path)),
        file_(archive.path),
        side_(Path(archive.path).replace_extension(), spec.captions),
        tar_(ending_of(archive.path) == ".tar") {}

  const CaptionFiles& side_files() const { return side_; }

  std::vector<Item> read(MissingFiles& missing, Problems& problems) const {
    std::vector<Item> items;
    const std::vector<Sample> samples = samples_of(*members_, tar_);
    for (const Sample& sample : samples) {
      const std::string where = archive_.path.string() + ": " + sample.key;
      try {
        if (side_.drops(sample.key)) {
          missing.dropped();
          continue;
        }
        items.push_back(item_of(sample, where));
      } catch (const UserError& error) {
        problems.add(where, error);
      }
    }
    const auto found = static_cast<int64_t>(samples.size());
    if (archive_.samples >= 0 && archive_.samples != found)
      problems.add(
          archive_.path.string(),
          "holds " + std::to_string(found) + " samples, " + kList + " counts " + std::to_string(archive_.samples),
          "fetch the archive again, or write " + std::string(kList) + " anew");
    return items;
  }

 private:
  std::string text_of(const Member& member, const std::string& where) const {
    check_input(member.bytes <= kMostText, "data.dataset",
                where + ": " + member.name + " has " + std::to_string(member.bytes) + " bytes, expected a text",
                "remove it");
    return read_member(file_, member);
  }

  Item item_of(const Sample& sample, const std::string& where) const {
    const Member* media = media_of(sample, spec_.latents);
    if (!media) {
      std::string found;
      for (const auto& [ending, member] : sample.files) found += (found.empty() ? "" : ", ") + ending;
      const bool other = field_of(sample, ".npy") || media_of(sample, false);
      throw UserError(
          Exit::input, "data.dataset",
          where + (spec_.latents ? ": no .npy of its latents" : ": no picture or video") + ", found " + found,
          other ? std::string("data.latents = \"") + (spec_.latents ? "no" : "npy") + "\" takes what is there"
                : "fix or remove the sample");
    }
    NamedCaptions named;
    for (const std::string& ending : caption_endings()) {
      const Member* text = field_of(sample, ending);
      if (!text || named.contains("prompt")) continue;
      std::string& prompt = named["prompt"] = text_of(*text, where);
      while (prompt.ends_with('\n') || prompt.ends_with('\r')) prompt.pop_back();
    }
    if (const Member* json = field_of(sample, ".json")) {
      const Json object = checkpoint::parse_json(text_of(*json, where), where + ".json");
      check_input(object.is_object(), "data.dataset", where + ".json: expected an object", "fix or remove the sample");
      for (auto& [name, text] : named_captions(object)) named[name] = text;
    }
    side_.add_captions(sample.key, /*renames=*/true, named);
    if (named.empty() && !spec_.caption.empty()) named["prompt"] = spec_.caption;
    Captions captions = choose_captions(named, side_.scores(sample.key), spec_.captions, where, /*lenient=*/!tar_);
    const std::string motion = side_.motion(sample.key);
    for (std::string& text : captions.texts) text += motion;
    Item item{archive_.path / media->name, std::move(captions.texts), where};
    item.weights = std::move(captions.weights);
    return item;
  }

  const Archive& archive_;
  const DatasetSpec& spec_;
  const std::shared_ptr<const std::vector<Member>> members_;
  const checkpoint::ReadFile file_;
  const CaptionFiles side_;
  const bool tar_;
};

/// An archive by the name that a list has for it: beside the list where it was moved with it.
Path find_archive(const std::string& url, const Path& folder, const std::string& where) {
  const Path named = url.starts_with("file:") ? Path(url.substr(5)) : Path(url);
  for (const Path& path : {folder / named, folder / named.filename()}) {
    const std::string command = unpacking(path);
    check_input(command.empty() || !is_file(path), "data.dataset",
                where + ": " + path.string() + ": is packed, and only members of a plain .tar are read in their places",
                "unpack it, and name the .tar: " + command);
    if (is_file(path)) return path;
  }
  throw UserError(Exit::input, "data.dataset", where + ": " + checkpoint::shown(url) + ": no such archive",
                  "urls are files, relative to " + folder.string());
}

std::vector<Archive> listed(const Path& list) {
  const Json json = checkpoint::parse_json(checkpoint::read_text(list), list.string());
  const Json& shards =
      checkpoint::json_array(checkpoint::json_member(json, "shardlist", list.string()), list.string() + ": shardlist");
  std::vector<Archive> archives;
  for (const Json& shard : shards) {
    const std::string where = list.string() + ": shardlist[" + std::to_string(archives.size()) + "]";
    Archive archive;
    archive.path = find_archive(checkpoint::json_string(checkpoint::json_member(shard, "url", where), where + ": url"),
                                list.parent_path(), where);
    if (shard.contains("nsamples"))
      archive.samples = checkpoint::json_integer(shard.at("nsamples"), where + ": nsamples");
    archives.push_back(std::move(archive));
  }
  return archives;
}

std::vector<Archive> by_name(const Path& folder) {
  std::vector<Archive> archives;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_file(entry.path()) && is_archive(entry.path())) archives.push_back({entry.path()});
  std::sort(archives.begin(), archives.end(),
            [](const auto& a, const auto& b) { return a.path.native() < b.path.native(); });
  return archives;
}

}  // namespace

bool has_archives(const Path& folder) {
  if (!is_folder(folder)) return false;
  if (is_file(folder / kList)) return true;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if ((is_clip(entry.path()) || is_npy(entry.path())) && is_file(entry.path())) return false;
  return !by_name(folder).empty();
}

std::vector<Archive> archives_of(const Path& folder) {
  if (folder.filename() == kList) return listed(folder);
  if (!fs::is_directory(folder)) return {{folder}};
  return fs::exists(folder / kList) ? listed(folder / kList) : by_name(folder);
}

std::vector<Item> read_archive(const Archive& archive, const DatasetSpec& spec, MissingFiles& missing,
                               Problems& problems) {
  try {
    const ArchiveReader reader(archive, spec);
    missing.count(reader.side_files());
    return reader.read(missing, problems);
  } catch (const UserError& error) {
    problems.add(archive.path.string(), error);
    return {};
  }
}

}  // namespace tessera::data
