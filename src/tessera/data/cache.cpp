#include "tessera/data/cache.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "tessera/base/check.h"
#include "tessera/base/hash.h"
#include "tessera/base/in_threads.h"
#include "tessera/base/random.h"
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
      crc = crc32c(piece.data(), static_cast<size_t>(now), crc);
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
      const std::string source = json.at("source");
      put(source, {json.at("stamp"), json.at("content"), json.at("taken")});
    } catch (const Json::exception&) {
      continue;  // read again
    }
  }
}

void Contents::put(const Path& path, const Known& known) {
  RecordWriter out;
  out.text(known.stamp), out.text(known.content), out.number(known.taken.size());
  for (const std::string& content : known.taken) out.text(content);
  known_.put(path.native(), out);
}

Contents::Known Contents::read(RecordReader in) {
  Known known;
  known.stamp = in.text(), known.content = in.text();
  known.taken.resize(in.number());
  for (std::string& content : known.taken) content = in.text();
  return known;
}

std::optional<Contents::Known> Contents::find(const Path& path) const {
  const auto found = known_.find(path.native());
  if (!found) return std::nullopt;
  Known known = read(*found);
  if (known.stamp != file_stamp(path)) return std::nullopt;
  return known;
}

Contents::Known Contents::current(const Path& path) const {
  const auto known = find(path);
  return known ? *known : Known{file_stamp(path), "", {}};
}

bool Contents::knows(const Path& path) const {
  const auto known = find(path);
  return known && !known->content.empty();
}

std::string Contents::of(const Path& path) const {
  const auto known = find(path);
  return known && !known->content.empty() ? known->content : file_content(path);
}

std::vector<std::string> Contents::taken(const Path& path) const {
  const auto known = find(path);
  return known ? known->taken : std::vector<std::string>();
}

bool Contents::taken_for(const Path& path, const std::string& content) const {
  const auto known = find(path);
  return known && std::ranges::find(known->taken, content) != known->taken.end();
}

void Contents::add(const Path& path, std::string content) {
  Known known = current(path);
  known.content = std::move(content);
  put(path, known);
}

void Contents::take_for(const Path& path, std::string content) {
  Known known = current(path);
  if (std::ranges::find(known.taken, content) != known.taken.end()) return;
  known.taken.push_back(std::move(content));
  put(path, known);
}

void Contents::write(const Path& file) const {
  std::string text;
  known_.each_by_name([&](const std::string& source, RecordReader record) {
    if (invalid_utf8(source) != std::string::npos) return;  // JSON could not say its name
    const Known known = read(record);
    text += checkpoint::dump_json(
                {{"source", source}, {"stamp", known.stamp}, {"content", known.content}, {"taken", known.taken}}) +
            "\n";
  });
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
  std::snprintf(digits, sizeof digits, "%08x", crc32c(values.data(), values.size() * sizeof(float)));
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

/// What is kept of a header in 64 bits, never 0: a hash of its fields but for checksums, or where the last bit is 0 of those
/// that a key has.
constexpr uint64_t kWhole = 1, kOfFields = 2;
uint64_t header_digest(const Metadata& header, uint64_t kind) {
  std::string text;
  for (const auto& [name, value] : header)
    if (!name.starts_with("crc32c.") && (kind == kWhole || !(name.starts_with("stamp") || name.starts_with("content"))))
      text += name + '=' + std::to_string(value.size()) + ':' + value + ';';
  return (hash_text(text) & ~uint64_t{3}) | kind;
}

std::optional<std::string> difference(const Metadata& found, const CacheEntry& entry) {
  if (entry.digest == 0) return difference(found, entry.header);
  if (header_digest(found, entry.digest & 3) == entry.digest) return std::nullopt;
  return "stale: its header is not the one that was found at the start: it was replaced since";
}

/// The file, if it is still the one that was found.
SafetensorsFile open_again(const CacheEntry& entry) {
  check_input(checkpoint::await_file(entry.file), "data.cache", entry.name + ": " + entry.file.string() + ": missing",
              kPrepareHint);
  SafetensorsFile file = SafetensorsFile::open(entry.file);
  const auto problem = difference(file.metadata(), entry);
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

namespace {

/// Two 64-bit hashes; were two keys ever to meet, the header would tell them apart.
std::pair<uint64_t, uint64_t> hashes_of(const CacheKey& key) {
  std::string text;
  for (const auto& [name, value] : key.fields) text += name + '=' + std::to_string(value.size()) + ':' + value + ';';
  return {hash_text(text), hash_text("tessera cache " + text)};
}

std::string digits_of(uint64_t first, uint64_t second) {
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(first),
                static_cast<unsigned long long>(second));
  return digits;
}

Path file_of(const Path& folder, bool is_text, const std::string& hash) {
  return (is_text ? folder / "texts" : folder) / (hash + ".safetensors");
}

}  // namespace

std::string CacheKey::hash() const {
  const auto [first, second] = hashes_of(*this);
  return digits_of(first, second);
}

Path CacheKey::file(const Path& folder) const { return file_of(folder, is_text(), hash()); }

std::string CacheKey::name() const {
  return is_text() ? "caption '" + value_of(fields, "caption") + "'" : value_of(fields, "source");
}

CacheKey clip_key(const ClipKey& clip, bool with_stamps) {
  CacheKey key;
  std::string preprocessing = clip.preprocessing, before = clip.preprocessing;
  const auto add = [&](const std::string& role, const Path& path) {
    check_name(path);
    key.sources.push_back({role, path, with_stamps ? file_stamp(path) : ""});
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
  if (!clip.encoder_before.empty() && with_stamps)
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

std::pair<size_t, bool> CacheEntries::add(const CacheKey& key) {
  const auto [first, second] = hashes_of(key);
  const auto is = [&, first = first, second = second](uint32_t number) {
    return places_[number].hash[0] == first && places_[number].hash[1] == second;
  };
  if (const int64_t number = numbers_.find(first, is); number >= 0) return {static_cast<size_t>(number), false};
  check_internal(places_.size() < ~uint32_t{0}, "data.cache", "too many entries");
  places_.push_back({{first, second}});
  numbers_.add(first, [this](uint32_t number) { return places_[number].hash[0]; });
  return {places_.size() - 1, true};
}

void CacheEntries::set(size_t index, const std::optional<CacheEntry>& entry, bool of_fields) {
  Place& place = places_[index];
  elsewhere_.erase(index);
  place.digest = 0;
  if (!entry) return;
  place.digest = entry->digest != 0 ? entry->digest : header_digest(entry->header, of_fields ? kOfFields : kWhole);
  if (entry->file != file_of(folder_, texts_, hash(index))) elsewhere_.emplace(index, entry->file);
}

std::string CacheEntries::hash(size_t index) const { return digits_of(places_[index].hash[0], places_[index].hash[1]); }

std::optional<CacheEntry> CacheEntries::operator[](size_t index) const {
  const Place& place = places_[index];
  if (place.digest == 0) return std::nullopt;
  const auto file = elsewhere_.find(index);
  return CacheEntry{
      file != elsewhere_.end() ? file->second : file_of(folder_, texts_, hash(index)), {}, texts_, "", place.digest};
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
