#include "tessera/data/cache.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "tessera/base/check.h"
#include "tessera/base/in_threads.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/crc32c.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/frame_folder.h"
#include "tessera/data/text/text.h"

namespace tessera::data {

namespace fs = std::filesystem;
using checkpoint::Json;

namespace {

struct Fingerprint {
  int64_t bytes = 0;
  uint32_t crc = 0;

  void add(const Path& path) {
    const OpenFile file(path);
    const int64_t count = file.size();
    std::vector<char> piece(static_cast<size_t>(std::min<int64_t>(count, 1 << 20)));
    for (int64_t at = 0; at < count;) {
      const int64_t now = std::min(count - at, static_cast<int64_t>(piece.size()));
      file.read(at, now, piece.data());
      crc = checkpoint::crc32c(piece.data(), static_cast<size_t>(now), crc);
      at += now;
    }
    bytes += count;
  }
};

}  // namespace

std::string file_content(const Path& path) {
  Fingerprint all;
  std::string of;
  if (fs::is_directory(path)) {
    const std::vector<Path> frames = frames_of(path);
    for (const Path& frame : frames) all.add(frame);
    of = std::to_string(frames.size()) + " frames, ";
  } else {
    all.add(path);
  }
  char digits[16];
  std::snprintf(digits, sizeof digits, "%08x", all.crc);
  return of + std::to_string(all.bytes) + " bytes, crc32c " + digits;
}

Contents::Contents(const Path& file) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const Json json = json_or_nothing(line);
    try {
      known_[json.at("source")] = {json.at("stamp"), json.at("content"), json.at("taken")};
    } catch (const Json::exception&) {
      continue;  // read again
    }
  }
}

const Contents::Known* Contents::find(const Path& path) const {
  const auto found = known_.find(path.string());
  return found != known_.end() && found->second.stamp == file_stamp(path) ? &found->second : nullptr;
}

Contents::Known& Contents::current(const Path& path) {
  Known& known = known_[path.string()];
  if (std::string stamp = file_stamp(path); known.stamp != stamp) known = {std::move(stamp), "", {}};
  return known;
}

bool Contents::knows(const Path& path) const {
  const Known* known = find(path);
  return known && !known->content.empty();
}

std::string Contents::of(const Path& path) const { return knows(path) ? find(path)->content : file_content(path); }

std::vector<std::string> Contents::taken(const Path& path) const {
  const Known* known = find(path);
  return known ? known->taken : std::vector<std::string>();
}

bool Contents::taken_for(const Path& path, const std::string& content) const {
  const Known* known = find(path);
  return known && std::ranges::find(known->taken, content) != known->taken.end();
}

void Contents::add(const Path& path, std::string content) { current(path).content = std::move(content); }

void Contents::take_for(const Path& path, std::string content) {
  auto& taken = current(path).taken;
  if (std::ranges::find(taken, content) == taken.end()) taken.push_back(std::move(content));
}

void Contents::write(const Path& file) const {
  std::string text;
  for (const auto& [source, known] : known_) {
    if (invalid_utf8(source) != std::string::npos) continue;  // JSON could not say its name
    text += checkpoint::dump_json(
                {{"source", source}, {"stamp", known.stamp}, {"content", known.content}, {"taken", known.taken}}) +
            "\n";
  }
  checkpoint::make_folder(file.parent_path(), "check data.cache");
  checkpoint::write_text(file, text);
}

void update_contents(const Path& file, std::vector<Path> paths, const std::function<void(int64_t)>& done) {
  Contents contents(file);
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  std::erase_if(paths, [&](const Path& path) { return contents.knows(path); });
  if (paths.empty()) return;

  std::mutex lock;
  int64_t looked = 0;
  for_each_in_threads(paths.size(), [&](size_t i) {
    std::string content;
    try {
      content = file_content(paths[i]);
    } catch (const Error&) {  // told by who asks for it
    }
    const std::lock_guard<std::mutex> guard(lock);
    if (!content.empty()) contents.add(paths[i], std::move(content));
    if (done) done(++looked);
  });
  contents.write(file);
}

namespace fs = std::filesystem;

using checkpoint::Metadata;
using checkpoint::SafetensorsFile;

namespace {

constexpr const char* kPrepareHint = "run `tessera prepare RECIPE`";
constexpr const char* kFirstVersion = "1";

/// In a header, the state of one of a clip's files: "stamp", "content.first".
std::string field_of(const char* what, const std::string& role) { return role.empty() ? what : what + ("." + role); }

std::string value_of(const Metadata& header, const std::string& name) {
  const auto found = header.find(name);
  return found == header.end() ? "" : found->second;
}

bool is_first_version(const Metadata& header) { return value_of(header, "version") == kFirstVersion; }

std::optional<std::string> difference(const Metadata& found, const Metadata& expected) {
  for (const auto& [name, value] : expected) {
    const auto entry = found.find(name);
    if (entry == found.end()) return "stale: it does not say its " + name;
    if (entry->second != value) return "stale: " + name + " is '" + entry->second + "', expected '" + value + "'";
  }
  return std::nullopt;
}

/// Metadata of an entry: the checksum of a tensor's bytes, 8 hex digits.
std::string checksum_field(const std::string& tensor) { return "crc32c." + tensor; }

std::string checksum(const std::vector<float>& values) {
  char digits[16];
  std::snprintf(digits, sizeof digits, "%08x", checkpoint::crc32c(values.data(), values.size() * sizeof(float)));
  return digits;
}

CachedTensor read_tensor(const SafetensorsFile& file, const SafetensorsFile::Entry& entry) {
  CachedTensor tensor{entry.shape, std::vector<float>(static_cast<size_t>(entry.count()))};
  file.read_f32(entry.name, 0, entry.count(), tensor.values.data());
  const auto written = file.metadata().find(checksum_field(entry.name));
  if (written == file.metadata().end()) return tensor;  // an earlier version wrote it
  const std::string found = checksum(tensor.values);
  check_input(found == written->second, "data.cache",
              file.path().string() + ": damaged: the bytes of " + entry.name + " have checksum " + found + ", " +
                  written->second + " was written",
              std::string(kPrepareHint) + ", which makes it again");
  return tensor;
}

CachedTensor read_ranked(const SafetensorsFile& file, const char* name, size_t dims, const char* form) {
  const SafetensorsFile::Entry& entry = file.at(name);
  check_input(
      entry.shape.size() == dims && entry.count() > 0, "data.cache",
      file.path().string() + ": " + name + ": expected " + form + ", found " + checkpoint::shape_text(entry.shape),
      kPrepareHint);
  return read_tensor(file, entry);
}

/// Beside its embedding, where a text has them.
constexpr std::pair<const char*, CachedTensor CachedText::*> kOfTexts[] = {{"pooled", &CachedText::pooled},
                                                                           {"glyphs", &CachedText::glyphs}};

/// In entries of version 1, which are of both.
bool is_of_text(const std::string& tensor) { return tensor == "context" || tensor == "pooled"; }

/// The file, if it is still the one that was found.
SafetensorsFile open_again(const CacheEntry& entry) {
  check_input(checkpoint::await_file(entry.file), "data.cache", entry.name + ": " + entry.file.string() + ": missing",
              kPrepareHint);
  SafetensorsFile file = SafetensorsFile::open(entry.file);
  const auto problem = difference(file.metadata(), entry.header);
  check_input(!problem, "data.cache", entry.name + ": " + entry.file.string() + ": " + problem.value_or(""),
              kPrepareHint);
  return file;
}

void write(const Path& path, const std::vector<std::pair<std::string, const CachedTensor*>>& tensors, Metadata header) {
  std::vector<checkpoint::TensorData> data;
  for (const auto& [name, tensor] : tensors) {
    check_internal(
        checkpoint::element_count(tensor->shape) == static_cast<int64_t>(tensor->values.size()), "data.cache",
        name + ": " + std::to_string(tensor->values.size()) + " values for " + checkpoint::shape_text(tensor->shape));
    data.push_back({name, DType::f32, tensor->shape, tensor->values.data()});
    header[checksum_field(name)] = checksum(tensor->values);
  }
  checkpoint::make_folder(path.parent_path(), "check data.cache");
  checkpoint::write_safetensors(path, data, header);
}

void check_name(const Path& path) {
  check_input(invalid_utf8(path.string()) == std::string::npos, "data.cache", path.string() + ": the name is not UTF-8",
              "rename the file; a cache entry could not say what it was made from");
}

}  // namespace

std::string CacheKey::hash() const {
  std::string text;
  for (const auto& [name, value] : fields) text += name + '=' + std::to_string(value.size()) + ':' + value + ';';
  // two 64-bit hashes; were two keys ever to meet, the header would tell them apart
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(hash_text(text)),
                static_cast<unsigned long long>(hash_text("tessera cache " + text)));
  return digits;
}

Path CacheKey::file(const Path& folder) const {
  return (is_text() ? folder / "texts" : folder) / (hash() + ".safetensors");
}

std::string CacheKey::name() const {
  return is_text() ? "caption '" + value_of(fields, "caption") + "'" : value_of(fields, "source");
}

CacheKey clip_key(const ClipKey& clip) {
  CacheKey key;
  std::string preprocessing = clip.preprocessing, before = clip.preprocessing;
  const auto add = [&key](const std::string& role, const Path& path) {
    check_name(path);
    key.sources.push_back({role, path, file_stamp(path)});
  };
  add("", clip.source);
  for (const auto& [role, path] : clip.files) {
    add(role, path);
    preprocessing += " " + role + "=" + path.string();
    before += " " + role + "=" + path.string() + "@" + key.sources.back().stamp;
  }
  key.fields = {{"source", clip.source.string()},
                {"encoder", clip.encoder},
                {"shape", clip.shape},
                {"preprocessing", preprocessing},
                {"version", std::to_string(kCacheVersion)}};
  if (!clip.encoder_before.empty())
    key.before = {{"source", clip.source.string()},
                  {"encoder", clip.encoder_before},
                  {"shape", clip.shape},
                  {"preprocessing", before},
                  {"version", kFirstVersion}};
  return key;
}

CacheKey text_key(const std::string& caption, const std::string& encoder, const std::string& encoder_before) {
  CacheKey key;
  key.fields = {{"caption", caption}, {"encoder", encoder}, {"version", std::to_string(kCacheVersion)}};
  if (!encoder_before.empty())
    key.before = {{"caption", caption}, {"encoder", encoder_before}, {"version", kFirstVersion}};
  return key;
}

namespace {

/// A text of which many records have the first `shared` bytes.
void add_text(Records& records, RecordWriter& out, std::string_view text, size_t shared = 0) {
  out.number(records.number_of(text.substr(0, shared)));
  out.text(text.substr(shared));
}
std::string read_text(const Records& records, RecordReader& in) {
  const std::string& shared = records.text_of(in.number());
  return shared + std::string(in.text());
}

/// Of a path, its folder; of the stamp of an archive's member, the stamp of the archive.
size_t folder_of(std::string_view path) { return path.rfind('/') + 1; }  // npos + 1 is 0
size_t archive_of(std::string_view stamp) {
  const size_t at = stamp.rfind(", from byte ");
  return at == stamp.npos ? 0 : at;
}

void add_fields(Records& records, RecordWriter& out, const Metadata& fields) {
  out.number(fields.size());
  for (const auto& [name, value] : fields) {
    const bool alike = name == "encoder" || name == "shape" || name == "version" ||
                       (name == "preprocessing" && value.find('/') == value.npos);  // of no other files of its row
    out.number(records.number_of(name));
    add_text(records, out, value,
             alike                       ? value.size()
             : name == "source"          ? folder_of(value)
             : name.starts_with("stamp") ? archive_of(value)
                                         : 0);
  }
}

Metadata read_fields(const Records& records, RecordReader& in) {
  Metadata fields;
  for (uint64_t left = in.number(); left > 0; --left) {
    const std::string& name = records.text_of(in.number());
    fields.emplace_hint(fields.end(), name, read_text(records, in));
  }
  return fields;
}

}  // namespace

void CacheKeys::push_back(const CacheKey& key) {
  RecordWriter out;
  add_fields(records_, out, key.fields), add_fields(records_, out, key.before);
  out.number(key.sources.size());
  for (const CacheKey::Source& source : key.sources) {
    out.number(records_.number_of(source.role));
    add_text(records_, out, source.path.native(), folder_of(source.path.native()));
    add_text(records_, out, source.stamp, archive_of(source.stamp));
  }
  records_.push_back(out);
}

CacheKey CacheKeys::operator[](size_t index) const {
  RecordReader in = records_[index];
  CacheKey key;
  key.fields = read_fields(records_, in), key.before = read_fields(records_, in);
  for (uint64_t left = in.number(); left > 0; --left) {
    CacheKey::Source& source = key.sources.emplace_back();
    source.role = records_.text_of(in.number());
    source.path = read_text(records_, in), source.stamp = read_text(records_, in);
  }
  return key;
}

RecordWriter CacheEntries::written(const std::optional<CacheEntry>& entry) {
  RecordWriter out;
  out.number(!entry ? 0 : entry->is_text ? 2 : 1);
  if (!entry) return out;
  add_text(records_, out, entry->file.native(), folder_of(entry->file.native()));
  add_fields(records_, out, entry->header);
  add_text(records_, out, entry->name, entry->is_text ? 0 : folder_of(entry->name));
  return out;
}

void CacheEntries::push_back(const std::optional<CacheEntry>& entry) { records_.push_back(written(entry)); }

std::optional<CacheEntry> CacheEntries::operator[](size_t index) const {
  RecordReader in = records_[index];
  const uint64_t kind = in.number();
  if (kind == 0) return std::nullopt;
  CacheEntry entry;
  entry.file = read_text(records_, in), entry.header = read_fields(records_, in);
  entry.is_text = kind == 2, entry.name = read_text(records_, in);
  return entry;
}

CacheEntry CacheEntries::at(size_t index) const {
  check_internal(index < size() && has(index), "data.cache", "entry " + std::to_string(index) + " is not there");
  return *(*this)[index];
}

std::vector<CacheKey::Source> changed_files(const Metadata& header, const CacheKey& key) {
  std::vector<CacheKey::Source> changed;
  for (const CacheKey::Source& source : key.sources) {
    if (is_first_version(header) && !source.role.empty()) continue;  // its stamp stands in `preprocessing`
    if (value_of(header, field_of("stamp", source.role)) != source.stamp) changed.push_back(source);
  }
  return changed;
}

std::string content_in(const Metadata& header, const CacheKey::Source& source) {
  return is_first_version(header) ? "as of " + value_of(header, "stamp")
                                  : value_of(header, field_of("content", source.role));
}

std::optional<std::string> header_problem(const Metadata& header, const CacheKey& key, const Contents& contents) {
  if (const auto differs = difference(header, is_first_version(header) ? key.before : key.fields)) return differs;
  for (const CacheKey::Source& source : changed_files(header, key)) {
    const std::string content = content_in(header, source);
    const bool known = !is_first_version(header);  // what the content was
    if (known ? contents.is(source.path, content) : contents.taken_for(source.path, content)) continue;
    const std::string field = field_of("stamp", source.role);
    return "stale: " + field + " is '" + value_of(header, field) + "', expected '" + source.stamp + "'" +
           (known ? "; content is '" + content + "', expected '" + contents.of(source.path) + "'" : "");
  }
  return std::nullopt;
}

void write_clip(const Path& folder, const CacheKey& key, const CachedClip& clip, const Contents& contents) {
  std::vector<std::pair<std::string, const CachedTensor*>> tensors = {{"latent", &clip.latent}};
  for (const auto& [name, tensor] : clip.extras) tensors.emplace_back(name, &tensor);
  Metadata header = key.fields;
  for (const CacheKey::Source& source : key.sources) {
    header[field_of("stamp", source.role)] = source.stamp;
    header[field_of("content", source.role)] = contents.of(source.path);
  }
  write(key.file(folder), tensors, std::move(header));
}

void write_caption(const Path& folder, const CacheKey& key, const CachedText& text) {
  std::vector<std::pair<std::string, const CachedTensor*>> tensors = {{"context", &text.context}};
  for (const auto& [name, member] : kOfTexts)
    if (!(text.*member).shape.empty()) tensors.emplace_back(name, &(text.*member));
  write(key.file(folder), tensors, key.fields);
}

CachedClip read_clip(const CacheEntry& entry) {
  const SafetensorsFile file = open_again(entry);
  CachedClip clip{read_ranked(file, "latent", 4, "[C, f, h, w]"), {}};
  for (const SafetensorsFile::Entry& tensor : file.entries())
    if (tensor.name != "latent" && !is_of_text(tensor.name)) clip.extras[tensor.name] = read_tensor(file, tensor);
  return clip;
}

CachedText read_caption(const CacheEntry& entry) {
  const SafetensorsFile file = open_again(entry);
  CachedText text{read_ranked(file, "context", 2, "[n, D]")};
  for (const auto& [name, member] : kOfTexts)
    if (const SafetensorsFile::Entry* found = file.find(name)) text.*member = read_tensor(file, *found);
  return text;
}

std::optional<std::string> damage(const CacheEntry& entry) {
  try {
    if (entry.is_text)
      read_caption(entry);
    else
      read_clip(entry);
    return std::nullopt;
  } catch (const UserError& error) {
    if (error.code() != Exit::input) throw;
    return error.what();
  }
}

}  // namespace tessera::data
