#include "tessera/data/cache_search.h"

#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

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

/// Size and nothing more of a stamp: files of other sizes need not be read.
std::string size_in(const std::string& stamp) { return stamp.substr(0, stamp.find(',')); }

std::string name_of(const Path& path) { return path.filename().string(); }
/// Of an entry, whose name is a hash. Two of one mark cost one of them its use under another path, no more.
uint64_t mark_of(const Path& entry) { return hash_text(name_of(entry)); }

/// How a clip's entry is looked for in CacheSearch::clips_with_: among those of its kind of file, encoders and shape.
std::string place_of(const char* what, const Metadata& made, const std::string& value) {
  return Path(text_in(made, "source")).extension().string() + '\n' + text_in(made, "encoder") + '\n' +
         text_in(made, "shape") + '\n' + what + '\n' + value;
}

/// How the key's clip is made, without the paths of its row's files: clip_key() adds them in the order of the sources.
std::string preprocessing_alone(const CacheKey& key) {
  const std::string& text = key.fields.at("preprocessing");
  size_t files = 0;
  for (const CacheKey::Source& source : key.sources)
    if (!source.role.empty()) files += source.role.size() + 2 + source.path.string().size();
  return text.substr(0, text.size() - files);
}

/// The paths of an entry's clip and of its row's files, in the order of the key's; nothing where the entry was made in
/// another way or of other kinds of files.
std::optional<std::vector<Path>> files_in(const Metadata& header, const CacheKey& key) {
  const std::string text = text_in(header, "preprocessing"), alone = preprocessing_alone(key);
  const auto stamps = std::ranges::count_if(header, [](const auto& field) { return field.first.starts_with("stamp"); });
  if (!text.starts_with(alone) || static_cast<size_t>(stamps) != key.sources.size()) return std::nullopt;
  std::vector<Path> files = {text_in(header, "source")};
  size_t at = alone.size();
  for (size_t i = 1; i < key.sources.size(); ++i) {
    const std::string role = " " + key.sources[i].role + "=";
    if (text.compare(at, role.size(), role) != 0) return std::nullopt;
    at += role.size();
    const size_t end = i + 1 < key.sources.size() ? text.find(" " + key.sources[i + 1].role + "=", at) : text.size();
    if (end == std::string::npos) return std::nullopt;
    files.emplace_back(text.substr(at, end - at));
    at = end;
  }
  if (at != text.size()) return std::nullopt;
  return files;
}

std::string stamp_in(const Metadata& header, const CacheKey::Source& source) {
  return text_in(header, source.role.empty() ? "stamp" : "stamp." + source.role);
}

/// What is asked again when the entry is read: all but checksums.
Metadata without_checksums(Metadata header) {
  std::erase_if(header, [](const auto& field) { return field.first.starts_with("crc32c."); });
  return header;
}

std::optional<Metadata> header_of(const Path& folder, const CacheKey& key) {
  const Path file = key.file(folder);
  if (!fs::exists(file)) return std::nullopt;
  return SafetensorsFile::open(file).metadata();
}

}  // namespace

std::optional<CacheEntry> entry_as_it_is(const Path& folder, const CacheKey& key) {
  try {
    const auto header = header_of(folder, key);
    if (!header || !changed_files(*header, key).empty()) return std::nullopt;
    for (const auto& [name, value] : key.fields)
      if (text_in(*header, name) != value) return std::nullopt;
    return CacheEntry{key.file(folder), without_checksums(*header), key.is_text(), key.name()};
  } catch (const UserError&) {
    return std::nullopt;
  }
}

CacheSearch::CacheSearch(Path folder, Contents contents, Rows rows)
    : folder_(std::move(folder)), contents_(std::move(contents)), rows_(std::move(rows)) {}

void CacheSearch::leave(const CacheEntries& entries) {
  for (size_t e = 0; e < entries.size(); ++e)
    if (const auto entry = entries[e]) owned_.push_back(mark_of(entry->file));
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
}

const std::vector<const CacheSearch::Old*>& CacheSearch::clips_with(const char* what, const Metadata& made,
                                                                    const std::string& value) {
  static const std::vector<const Old*> kNone;
  look_for_others();
  if (!indexed_) {
    indexed_ = true;
    std::ranges::sort(owned_);
    for (const Old& clip : clips_) {
      if (std::ranges::binary_search(owned_, mark_of(clip.file))) continue;
      const std::string stamp = text_in(clip.header, "stamp");
      const std::pair<const char*, std::string> places[] = {{"size", size_in(stamp)},
                                                            {"stamp", stamp},
                                                            {"name", name_of(text_in(clip.header, "source"))},
                                                            {"content", text_in(clip.header, "content")}};
      for (const auto& [kind, value_of_it] : places)
        clips_with_[place_of(kind, clip.header, value_of_it)].push_back(&clip);
    }
  }
  const auto found = clips_with_.find(place_of(what, made, value));
  return found == clips_with_.end() ? kNone : found->second;
}

const CacheSearch::Old* CacheSearch::moved_entry(const CacheKey& key, const std::optional<Metadata>& own, bool read) {
  const auto content_now = [&](const CacheKey::Source& source) -> std::string {
    if (own && stamp_in(*own, source) == source.stamp) return content_in(*own, source);
    if (!read) return {};
    try {
      return contents_.of(source.path);
    } catch (const UserError&) {
      return {};  // decoding it tells
    }
  };
  const auto is_of = [&](const CacheKey::Source& source, const std::string& content) {
    return !content.empty() && (contents_.taken_for(source.path, content) || content_now(source) == content);
  };
  const CacheKey::Source& clip = key.sources.front();
  std::vector<std::string> contents = contents_.taken(clip.path);
  if (own || !clips_with("size", key.fields, size_in(clip.stamp)).empty()) contents.push_back(content_now(clip));
  for (const std::string& content : contents)
    for (const Old* entry : content.empty() ? std::vector<const Old*>() : clips_with("content", key.fields, content)) {
      const auto same = [&](const CacheKey::Source& source) {
        return source.role.empty() || is_of(source, content_in(entry->header, source));
      };
      if (files_in(entry->header, key) && std::ranges::all_of(key.sources, same)) return entry;
    }
  return nullptr;
}

const CacheSearch::Old* CacheSearch::trusted_entry(const CacheKey& key) {
  const auto could_be = [&](const Old& entry) {
    const auto files = files_in(entry.header, key);
    for (size_t i = 0; files && i < files->size(); ++i) {
      const CacheKey::Source& source = key.sources[i];
      const std::string stamp = stamp_in(entry.header, source);
      const bool named_so = name_of((*files)[i]) == name_of(source.path) && size_in(stamp) == size_in(source.stamp);
      if (!named_so && stamp != source.stamp) return false;
    }
    return files.has_value();
  };
  const CacheKey::Source& clip = key.sources.front();
  const Old* found = nullptr;
  for (const auto* entries :
       {&clips_with("stamp", key.fields, clip.stamp), &clips_with("name", key.fields, name_of(clip.path))})
    for (const Old* entry : *entries) {
      if (!could_be(*entry)) continue;
      const auto differs = [&](const CacheKey::Source& source) {
        return content_in(found->header, source) != content_in(entry->header, source);
      };
      if (found && std::ranges::any_of(key.sources, differs)) return nullptr;  // only reading would tell which it is
      found = entry;
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

CacheSearch::Found CacheSearch::find_at_its_path(const CacheKey& key, std::optional<Metadata>& own) {
  Found found;
  const auto take = [&](const Path& file, const Metadata& header) {
    if (const auto problem = header_problem(header, key, contents_))
      found.stale = file.string() + ": " + *problem;
    else
      found.entry = CacheEntry{file, without_checksums(header), key.is_text(), key.name()};
  };
  try {
    if ((own = header_of(folder_, key))) return take(key.file(folder_), *own), found;
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
  return found;
}

void CacheSearch::find(const CacheKeys& keys, const std::function<void(size_t, Found)>& take) {
  std::map<size_t, std::pair<Found, std::optional<Metadata>>>
      elsewhere;  // may be under another path: what is found at its own, and the header of the entry there
  for (size_t k = 0; k < keys.size(); ++k) {
    const CacheKey key = keys[k];
    std::optional<Metadata> own;
    Found found = find_at_its_path(key, own);
    if (found.entry) owned_.push_back(mark_of(found.entry->file));
    if (!found.entry && !key.is_text() && !found.unreadable)
      elsewhere.emplace(k, std::pair(std::move(found), std::move(own)));
    else
      take(k, std::move(found));
  }
  for (auto& [k, at_its_path] : elsewhere) {
    const CacheKey key = keys[k];
    auto& [found, own] = at_its_path;
    if (const Old* entry = moved_entry(key, own, !trusting_))
      found = {CacheEntry{entry->file, without_checksums(entry->header), false, key.name()}, "", false, true};
    take(k, std::move(found));
  }
}

std::vector<CacheSearch::Found> CacheSearch::find(const CacheKeys& keys) {
  std::vector<Found> all(keys.size());
  find(keys, [&](size_t k, Found found) { all[k] = std::move(found); });
  return all;
}

std::vector<Path> CacheSearch::changed(const CacheKeys& keys) {
  std::vector<Path> files;
  std::vector<size_t> elsewhere;
  for (size_t k = 0; k < keys.size(); ++k) {
    const CacheKey key = keys[k];
    if (key.is_text()) continue;
    try {
      const auto header = header_of(folder_, key);
      if (!header) {
        elsewhere.push_back(k);
        continue;
      }
      const std::vector<CacheKey::Source> differ = changed_files(*header, key);
      if (differ.empty()) owned_.push_back(mark_of(key.file(folder_)));
      for (const CacheKey::Source& source : differ)
        if (!contents_.taken_for(source.path, content_in(*header, source))) files.push_back(source.path);
    } catch (const UserError&) {
      continue;  // find() tells
    }
  }
  for (const size_t k : elsewhere) {
    const CacheKey key = keys[k];
    const std::string size = size_in(key.sources.front().stamp);
    if (clips_with("size", key.fields, size).empty() || moved_entry(key, {}, /*read=*/false)) continue;
    for (const CacheKey::Source& source : key.sources) files.push_back(source.path);
  }
  return files;
}

int64_t CacheSearch::trust(const CacheKeys& keys) {
  trusting_ = true;
  int64_t files = 0;
  const auto take = [&](const Metadata& header, const std::vector<CacheKey::Source>& sources) {
    for (const CacheKey::Source& source : sources) {
      const std::string content = content_in(header, source);
      if (contents_.taken_for(source.path, content)) continue;
      if (contents_.knows(source.path) && contents_.of(source.path) == content) continue;
      contents_.take_for(source.path, content);
      ++files;
    }
  };
  std::vector<size_t> elsewhere;
  for (size_t k = 0; k < keys.size(); ++k) {
    const CacheKey key = keys[k];
    try {
      if (const auto header = header_of(folder_, key)) {
        take(*header, changed_files(*header, key));
        owned_.push_back(mark_of(key.file(folder_)));
        continue;
      }
    } catch (const UserError&) {
      continue;
    }
    for (const Old* old : old_entries(key)) take(old->header, changed_files(old->header, key));
    if (!key.is_text()) elsewhere.push_back(k);
  }
  for (const size_t k : elsewhere) {
    const CacheKey key = keys[k];
    if (const Old* entry = trusted_entry(key)) take(entry->header, key.sources);
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
