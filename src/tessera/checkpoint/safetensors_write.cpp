#include <algorithm>
#include <numeric>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

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
