#include "tessera/data/cache.h"

#include <cstdio>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/crc32c.h"
#include "tessera/data/probes.h"
#include "tessera/data/text/text.h"

namespace tessera::data {

namespace fs = std::filesystem;

using checkpoint::Metadata;
using checkpoint::SafetensorsFile;

namespace {

constexpr const char* kPrepareHint = "run `tessera prepare RECIPE`";

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

}  // namespace

Metadata CacheKey::metadata() const {
  return {{"source", source},
          {"stamp", stamp},
          {"caption", caption},
          {"encoder", encoder},
          {"shape", shape},
          {"preprocessing", preprocessing},
          {"version", std::to_string(kCacheVersion)}};
}

std::string CacheKey::hash() const {
  std::string text;
  for (const auto& [name, value] : metadata())
    if (name != "stamp") text += name + '=' + std::to_string(value.size()) + ':' + value + ';';
  // two 64-bit hashes; were two keys ever to meet, the metadata would tell them apart
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(hash_text(text)),
                static_cast<unsigned long long>(hash_text("tessera cache " + text)));
  return digits;
}

Path CacheKey::file(const Path& folder) const { return folder / (hash() + ".safetensors"); }

CacheKey cache_key(const Path& source, std::string caption, std::string encoder, std::string shape,
                   std::string preprocessing) {
  std::string stamp = file_stamp(source);
  check_input(invalid_utf8(source.string()) == std::string::npos, "data.cache",
              source.string() + ": the name is not UTF-8",
              "rename the file; a cache entry could not say what it was made from");
  return {source.string(),    std::move(stamp), std::move(caption),
          std::move(encoder), std::move(shape), std::move(preprocessing)};
}

std::optional<std::string> cache_problem(const Path& folder, const CacheKey& key) {
  const Path path = key.file(folder);
  if (!fs::exists(path)) return "missing";
  try {
    return difference(SafetensorsFile::open(path).metadata(), key.metadata());
  } catch (const UserError& error) {
    return std::string("unreadable: ") + error.what();
  }
}

std::optional<std::string> cache_damage(const Path& folder, const CacheKey& key) {
  try {
    const SafetensorsFile file = SafetensorsFile::open(key.file(folder));
    for (const SafetensorsFile::Entry& entry : file.entries()) read_tensor(file, entry);
    return std::nullopt;
  } catch (const UserError& error) {
    if (error.code() != Exit::input) throw;
    return error.what();
  }
}

void write_cached(const Path& folder, const CacheKey& key, const CachedSample& sample) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw UserError(Exit::disk, "data.cache", folder.string() + ": " + failed.message(), "check data.cache");
  std::vector<checkpoint::TensorData> tensors;
  Metadata metadata = key.metadata();
  const auto add = [&](const std::string& name, const CachedTensor& tensor) {
    check_internal(
        checkpoint::element_count(tensor.shape) == static_cast<int64_t>(tensor.values.size()), "data.cache",
        name + ": " + std::to_string(tensor.values.size()) + " values for " + checkpoint::shape_text(tensor.shape));
    tensors.push_back({name, DType::f32, tensor.shape, tensor.values.data()});
    metadata[checksum_field(name)] = checksum(tensor.values);
  };
  add("latent", sample.latent);
  add("context", sample.context);
  for (const auto& [name, tensor] : sample.extras) add(name, tensor);
  write_safetensors(key.file(folder), tensors, metadata);
}

CacheReader::CacheReader(Path folder, std::vector<CacheKey> keys) : folder_(std::move(folder)), keys_(std::move(keys)) {
  int64_t wrong = 0;
  std::string first;
  for (const CacheKey& key : keys_) {
    const auto problem = cache_problem(folder_, key);
    if (problem && wrong++ == 0) first = key.source + ": " + key.file(folder_).string() + ": " + *problem;
  }
  check_input(
      wrong == 0, "data.cache",
      std::to_string(wrong) + " of " + std::to_string(keys_.size()) + " samples are not prepared; first: " + first,
      kPrepareHint);
}

CachedSample CacheReader::load(int64_t index) const {
  const CacheKey& key = keys_.at(static_cast<size_t>(index));
  const Path path = key.file(folder_);
  check_input(fs::exists(path), "data.cache", key.source + ": " + path.string() + ": missing", kPrepareHint);
  const SafetensorsFile file = SafetensorsFile::open(path);
  const auto problem = difference(file.metadata(), key.metadata());
  check_input(!problem, "data.cache", key.source + ": " + path.string() + ": " + problem.value_or(""), kPrepareHint);

  CachedSample sample;
  sample.source = key.source;
  sample.latent = read_ranked(file, "latent", 4, "[C, f, h, w]");
  sample.context = read_ranked(file, "context", 2, "[n, D]");
  for (const SafetensorsFile::Entry& entry : file.entries())
    if (entry.name != "latent" && entry.name != "context") sample.extras[entry.name] = read_tensor(file, entry);
  return sample;
}

}  // namespace tessera::data
