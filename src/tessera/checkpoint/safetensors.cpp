#include "tessera/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {

namespace {

constexpr int64_t kPrefix = 8;               // the header's length, little endian
constexpr int64_t kMaxHeader = 100'000'000;  // the limit of the format's own library
constexpr std::string_view kDamaged = "the file is damaged or only partly copied: fetch it again";

[[noreturn]] void refuse_file(const std::string& what, std::string_view hint = kDamaged) {
  throw UserError(Exit::input, "safetensors.open", what, hint);
}

SafetensorsFile::Entry parse_entry(const std::string& name, const Json& value, const std::string& what) {
  SafetensorsFile::Entry entry;
  entry.name = name;
  std::string dtype = json_string(json_member(value, "dtype", what), what + ": dtype");
  std::optional<DType> known = parse_dtype(dtype);
  if (!known)
    refuse_file(what + ": unknown dtype " + shown(dtype) + ", expected one of " + dtype_names(),
                "convert the file to one of these");
  entry.dtype = *known;
  entry.shape = json_shape(json_member(value, "shape", what), what + ": shape");

  Shape offsets = json_shape(json_member(value, "data_offsets", what), what + ": data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    refuse_file(what + ": data_offsets " + shape_text(offsets) + ", expected [begin, end] with begin <= end");
  entry.begin = offsets[0], entry.end = offsets[1];

  std::optional<int64_t> bytes = byte_count(entry.shape, entry.dtype);
  if (!bytes) refuse_file(what + ": shape " + shape_text(entry.shape) + " has more than 2^63 bytes");
  if (entry.end - entry.begin != *bytes)
    refuse_file(what + ": data_offsets " + shape_text(offsets) + " hold " + std::to_string(entry.end - entry.begin) +
                " bytes, shape " + shape_text(entry.shape) + " of " + dtype + " needs " + std::to_string(*bytes));
  return entry;
}

/// Entries sorted by place must follow each other exactly, from 0 to the end of the file.
void check_tiling(const std::vector<SafetensorsFile::Entry>& entries, int64_t data_bytes, const std::string& file) {
  int64_t end = 0;
  for (const auto& entry : entries) {
    std::string what = file + ": tensor " + shown(entry.name);
    if (entry.end > data_bytes)
      refuse_file(what + " ends at byte " + std::to_string(entry.end) + " of the data, the file has only " +
                  std::to_string(data_bytes) + " (truncated?)");
    if (entry.begin < end)
      refuse_file(what + " begins at byte " + std::to_string(entry.begin) +
                  " and overlaps the tensor before it, which ends at " + std::to_string(end));
    if (entry.begin > end)
      refuse_file(what + " begins at byte " + std::to_string(entry.begin) + ", expected " + std::to_string(end) +
                  ": a hole in the data");
    end = entry.end;
  }
  if (end != data_bytes)
    refuse_file(file + ": " + std::to_string(data_bytes - end) + " bytes after the last tensor, expected none");
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const Path& path) {
  SafetensorsFile result(path);
  const ReadFile& file = result.file_;
  const std::string name = path.string();
  if (file.size() < kPrefix)
    refuse_file(name + ": truncated, " + std::to_string(file.size()) + " bytes, a safetensors file has at least " +
                std::to_string(kPrefix));

  char prefix[kPrefix];
  uint64_t header_bytes;
  file.read(0, kPrefix, prefix);
  std::memcpy(&header_bytes, prefix, kPrefix);
  if (header_bytes > static_cast<uint64_t>(kMaxHeader)) {
    const std::string other = what_else(file);
    refuse_file(name + ": header of " + std::to_string(header_bytes) + " bytes, at most " + std::to_string(kMaxHeader) +
                    " are allowed",
                other.empty() ? std::string(kDamaged) : "it is " + other);
  }
  if (static_cast<int64_t>(header_bytes) > file.size() - kPrefix)
    refuse_file(name + ": header of " + std::to_string(header_bytes) + " bytes, the file has only " +
                std::to_string(file.size() - kPrefix) + " after the length (truncated?)");

  std::string text(header_bytes, '\0');
  file.read(kPrefix, static_cast<int64_t>(header_bytes), text.data());
  const Json header = parse_json(text, name + ": header");
  if (!header.is_object()) refuse_file(name + ": header: expected an object of tensors");

  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      if (!value.is_object()) refuse_file(name + ": __metadata__: expected an object of strings");
      for (const auto& [k, v] : value.items())
        result.metadata_[k] = json_string(v, name + ": __metadata__ " + shown(k));
    } else {
      result.entries_.push_back(parse_entry(key, value, name + ": tensor " + shown(key)));
    }
  }
  std::stable_sort(result.entries_.begin(), result.entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);  // empty tensors before the one at their place
  });
  result.data_start_ = kPrefix + static_cast<int64_t>(header_bytes);
  check_tiling(result.entries_, file.size() - result.data_start_, name);
  for (size_t i = 0; i < result.entries_.size(); ++i) result.index_[result.entries_[i].name] = i;
  return result;
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const SafetensorsFile::Entry& SafetensorsFile::at(std::string_view name) const {
  if (const Entry* entry = find(name)) return *entry;
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  std::vector<std::string> near = nearest(name, names);
  throw UserError(Exit::input, "safetensors.read", path().string() + ": no tensor " + shown(name),
                  near.empty() ? "the file has no tensors" : "the nearest name in it is " + shown(near[0]));
}

void SafetensorsFile::read_range(const Entry& entry, int64_t first, int64_t count, void* to) const {
  if (first < 0 || count < 0 || first > entry.count() - count)
    throw UserError(Exit::input, "safetensors.read",
                    path().string() + ": tensor " + shown(entry.name) + ": elements [" + std::to_string(first) + ", +" +
                        std::to_string(count) + ") wanted, it has " + std::to_string(entry.count()),
                    "this is the file of another model");
  int64_t size = size_of(entry.dtype);
  file_.read(data_start_ + entry.begin + first * size, count * size, to);
}

void SafetensorsFile::read(std::string_view name, int64_t first, int64_t count, void* to) const {
  read_range(at(name), first, count, to);
}

void SafetensorsFile::read_f32(std::string_view name, int64_t first, int64_t count, float* to) const {
  const Entry& entry = at(name);
  if (entry.dtype == DType::f32) return read_range(entry, first, count, to);
  if (!is_floating(entry.dtype))
    throw UserError(Exit::input, "safetensors.read",
                    path().string() + ": tensor " + shown(name) + ": expected a floating dtype, found " +
                        std::string(dtype_name(entry.dtype)));
  constexpr int64_t kChunk = 1 << 16;  // elements: a large tensor needs no second copy of itself
  std::vector<char> raw(static_cast<size_t>(std::clamp<int64_t>(count, 0, kChunk) * size_of(entry.dtype)));
  int64_t done = 0;
  do {  // at least once, so that a wrong range is refused also when it is empty
    int64_t now = std::min(kChunk, count - done);
    read_range(entry, first + done, now, raw.data());
    to_f32(entry.dtype, raw.data(), now, to + done);
    done += now;
  } while (done < count);
}

std::vector<std::byte> SafetensorsFile::bytes(std::string_view name) const {
  const Entry& entry = at(name);
  std::vector<std::byte> result(static_cast<size_t>(entry.end - entry.begin));
  read_range(entry, 0, entry.count(), result.data());
  return result;
}

namespace {

/// Wide dtypes first: every tensor then starts at a multiple of its element size, as readers that map the file need.
template <class Tensor>
std::vector<Tensor> wide_first(std::vector<Tensor> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return size_of(a.dtype) > size_of(b.dtype); });
  return tensors;
}

/// Length and text of the header.
std::string header_of(const std::vector<TensorInfo>& tensors, const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names = {"__metadata__"};
  int64_t end = 0;
  for (const TensorInfo& tensor : tensors) {
    std::optional<int64_t> bytes = byte_count(tensor.shape, tensor.dtype);
    std::string what = shown(tensor.name) + " " + shape_text(tensor.shape);
    check_internal(bytes.has_value(), "safetensors.write", what + ": not a shape");
    check_internal(names.insert(tensor.name).second, "safetensors.write", what + ": name used twice or reserved");
    header[tensor.name] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {end, end + *bytes}}};
    end += *bytes;
  }
  // metadata may hold file names, which need not be UTF-8; U+FFFD stands in for what is not
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)), ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const Path& path, std::vector<TensorInfo> tensors, const Metadata& metadata)
    : tensors_(wide_first(std::move(tensors))),
      header_(header_of(tensors_, metadata)),
      left_(std::accumulate(tensors_.begin(), tensors_.end(), int64_t{0},
                            [](int64_t sum, const TensorInfo& tensor) { return sum + tensor.bytes(); })),
      file_(path, static_cast<int64_t>(header_.size()) + left_) {
  file_.write(header_.data(), static_cast<int64_t>(header_.size()));
}

void SafetensorsWriter::write(const void* data, int64_t bytes) {
  check_internal(bytes <= left_, "safetensors.write", "more data than the header says");
  file_.write(data, bytes);
  left_ -= bytes;
}

void SafetensorsWriter::commit() {
  check_internal(left_ == 0, "safetensors.write", std::to_string(left_) + " bytes are missing");
  file_.commit();
}

void write_safetensors(const Path& path, const std::vector<TensorData>& tensors, const Metadata& metadata) {
  std::vector<TensorInfo> infos;
  for (const TensorData& tensor : tensors) {
    const std::optional<int64_t> bytes = byte_count(tensor.shape, tensor.dtype);
    check_internal(!bytes || *bytes == 0 || tensor.data || tensor.fetch, "safetensors.write",
                   shown(tensor.name) + ": no data");
    infos.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  SafetensorsWriter file(path, std::move(infos), metadata);
  for (const TensorData& tensor : wide_first(tensors))
    file.write(tensor.fetch ? tensor.fetch() : tensor.data, *byte_count(tensor.shape, tensor.dtype));
  file.commit();
}

}  // namespace tessera::checkpoint
