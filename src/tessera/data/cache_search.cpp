#include "tessera/data/cache_search.h"

#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"

namespace tessera::data {

namespace fs = std::filesystem;

using checkpoint::Metadata;
using checkpoint::SafetensorsFile;

namespace {

/// Whether a file is named as entries are: 32 hex digits.
bool is_entry(const fs::directory_entry& file) {
  const std::string stem = file.path().stem().string();
  return file.path().extension() == ".safetensors" && stem.size() == 32 &&
         stem.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::vector<Path> entries_in(const Path& folder) {
  std::vector<Path> files;
  std::error_code none;
  for (const auto& file : fs::directory_iterator(folder, none))
    if (is_entry(file)) files.push_back(file.path());
  std::ranges::sort(files);  // every rank in one order
  return files;
}

/// The fields of a header of version 1 that a key of a clip or text has, as one text.
std::string same_fields(const Metadata& header, const Metadata& key) {
  std::string text;
  for (const auto& [name, value] : key) {
    const auto found = header.find(name);
    text += (found == header.end() ? "" : found->second) + '\n';
  }
  return text;
}

const Metadata kOldClip = {{"source", ""}, {"encoder", ""}, {"shape", ""}, {"preprocessing", ""}, {"version", ""}};
const Metadata kOldText = {{"caption", ""}, {"encoder", ""}, {"version", ""}};

std::string text_in(const Metadata& header, const std::string& name) {
  const auto found = header.find(name);
  return found == header.end() ? "" : found->second;
}

/// What an entry of a clip has in common with that of the clip in another folder.
std::string name_of_clip(const Metadata& fields) {
  return Path(text_in(fields, "source")).filename().string() + '\n' + text_in(fields, "encoder") + '\n' +
         text_in(fields, "shape");
}

/// The two folders in which one and the same path lies: "old/set" and "new" of old/set/a/1.mp4 and new/a/1.mp4.
std::pair<Path, Path> roots(Path before, Path now) {
  while (before.has_filename() && now.has_filename() && before.filename() == now.filename()) {
    before = before.parent_path();
    now = now.parent_path();
  }
  return {before, now};
}

/// The path as it was before `now` was `before`.
Path moved_back(const Path& path, const Path& before, const Path& now) {
  const Path inside = path.lexically_relative(now.empty() ? Path(".") : now);
  return inside.empty() || *inside.begin() == ".." ? path : before / inside;
}

/// The key of the same clip when its files were in another folder.
CacheKey key_before(CacheKey key, const Path& before, const Path& now) {
  key.fields.at("source") = moved_back(key.fields.at("source"), before, now).string();
  std::string& text = key.fields.at("preprocessing");
  size_t from = 0;  // clip_key() adds the files in this order
  for (const CacheKey::Source& source : key.sources) {
    const std::string path = source.path.string();
    if (source.role.empty()) continue;
    const size_t at = text.find(" " + source.role + "=" + path, from);
    if (at == std::string::npos) continue;
    const std::string there = " " + source.role + "=" + moved_back(source.path, before, now).string();
    text.replace(at, source.role.size() + 2 + path.size(), there);
    from = at + there.size();
  }
  return key;
}

/// Size and nothing more of a stamp: files of other sizes need not be read.
std::string size_in(const std::string& stamp) { return stamp.substr(0, stamp.find(',')); }

/// What is asked again when the entry is read: all but checksums.
Metadata without_checksums(Metadata header) {
  std::erase_if(header, [](const auto& field) { return field.first.starts_with("crc32c."); });
  return header;
}

}  // namespace

CacheSearch::CacheSearch(Path folder, Contents contents, Rows rows)
    : folder_(std::move(folder)), contents_(std::move(contents)), rows_(std::move(rows)) {}

std::optional<Metadata> CacheSearch::header_of(const CacheKey& key) const {
  const Path file = key.file(folder_);
  if (!fs::exists(file)) return std::nullopt;
  return SafetensorsFile::open(file).metadata();
}

void CacheSearch::look_for_others() {
  if (looked_) return;
  looked_ = true;
  for (const Path& file : entries_in(folder_)) {
    try {
      const SafetensorsFile entry = SafetensorsFile::open(file);
      const std::string version = text_in(entry.metadata(), "version");
      if (version == std::to_string(kCacheVersion)) clips_.push_back({entry.metadata(), file});
      if (version != "1") continue;
      const SafetensorsFile::Entry* context = entry.find("context");
      old_.push_back({entry.metadata(), file, context && !context->shape.empty() ? context->shape[0] : -1});
    } catch (const UserError&) {
      continue;  // what cannot be read is made again
    }
  }
  for (const Old& old : old_) {
    old_clips_[same_fields(old.header, kOldClip)].push_back(&old);
    old_texts_[same_fields(old.header, kOldText)].push_back(&old);
  }
  for (const Old& clip : clips_) clips_named_[name_of_clip(clip.header)].push_back(&clip);
}

std::vector<std::pair<const CacheSearch::Old*, CacheKey>> CacheSearch::moved_entries(const CacheKey& key) {
  std::vector<std::pair<const Old*, CacheKey>> found;
  if (key.is_text()) return found;
  look_for_others();
  const auto named = clips_named_.find(name_of_clip(key.fields));
  if (named == clips_named_.end()) return found;
  for (const Old* clip : named->second) {
    const auto [before, now] = roots(clip->header.at("source"), key.fields.at("source"));
    CacheKey there = key_before(key, before, now);
    const bool same = std::ranges::all_of(
        there.fields, [&](const auto& field) { return text_in(clip->header, field.first) == field.second; });
    if (same && size_in(text_in(clip->header, "stamp")) == size_in(key.sources.front().stamp))
      found.emplace_back(clip, std::move(there));
  }
  return found;
}

const std::vector<const CacheSearch::Old*>& CacheSearch::old_entries(const CacheKey& key) {
  static const std::vector<const Old*> kNone;
  if (key.before.empty()) return kNone;
  look_for_others();
  const auto& known = key.is_text() ? old_texts_ : old_clips_;
  const auto found = known.find(same_fields(key.before, key.before));
  return found == known.end() ? kNone : found->second;
}

CacheSearch::Found CacheSearch::find(const CacheKey& key) {
  Found found;
  const auto take = [&](const Path& file, const Metadata& header) {
    if (const auto problem = header_problem(header, key, contents_))
      found.stale = file.string() + ": " + *problem;
    else
      found.entry = CacheEntry{file, without_checksums(header), key.is_text(), key.name()};
  };
  try {
    if (const auto header = header_of(key)) {
      take(key.file(folder_), *header);
      return found;
    }
  } catch (const UserError& error) {
    found.unreadable = true;
    found.stale = key.file(folder_).string() + ": unreadable: " + error.what();
    return found;
  }
  for (const Old* old : old_entries(key)) {
    if (key.is_text() && (old->rows < 0 || old->rows != rows_(key.fields.at("caption")))) continue;
    take(old->file, old->header);
    if (found.entry) return found.stale.clear(), found;
  }
  for (const auto& [clip, there] : moved_entries(key)) {
    const auto is_same = [&, entry = clip](const CacheKey::Source& source) {
      return contents_.is(source.path, content_in(entry->header, source));
    };
    if (!std::ranges::all_of(key.sources, is_same)) continue;
    found.entry = CacheEntry{clip->file, without_checksums(clip->header), false, key.name()};
    found.stale.clear();
    found.moved = true;
    return found;
  }
  return found;
}

std::vector<Path> CacheSearch::changed(const std::vector<CacheKey>& keys) {
  std::vector<Path> files;
  for (const CacheKey& key : keys) {
    try {
      if (const auto header = header_of(key)) {
        for (const CacheKey::Source& source : changed_files(*header, key)) files.push_back(source.path);
      } else if (!moved_entries(key).empty()) {
        for (const CacheKey::Source& source : key.sources) files.push_back(source.path);
      }
    } catch (const UserError&) {
      continue;  // find() tells
    }
  }
  return files;
}

int64_t CacheSearch::trust(const std::vector<CacheKey>& keys) {
  int64_t files = 0;
  const auto take = [&](const Metadata& header, const CacheKey& key) {
    for (const CacheKey::Source& source : changed_files(header, key)) {
      const std::string content = content_in(header, source);
      if (contents_.taken_for(source.path, content)) continue;
      if (contents_.knows(source.path) && contents_.of(source.path) == content) continue;
      contents_.take_for(source.path, content);
      ++files;
    }
  };
  for (const CacheKey& key : keys) {
    try {
      if (const auto header = header_of(key)) {
        take(*header, key);
        continue;
      }
    } catch (const UserError&) {
      continue;
    }
    for (const Old* old : old_entries(key)) take(old->header, key);
  }
  return files;
}

Removed remove_unused(const Path& folder, const std::set<Path>& used) {
  Removed removed;
  for (const Path& place : {folder, folder / "texts"})
    for (const Path& file : entries_in(place)) {
      if (used.contains(file)) continue;
      std::error_code failed;
      const auto bytes = static_cast<int64_t>(fs::file_size(file, failed));
      if (!fs::remove(file, failed) || failed)
        throw UserError(Exit::disk, "prepare --prune", file.string() + ": " + failed.message(),
                        "check the permissions of data.cache");
      ++removed.entries, removed.bytes += bytes;
    }
  return removed;
}

}  // namespace tessera::data
