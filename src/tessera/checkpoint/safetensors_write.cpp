#include <algorithm>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

void write_safetensors(const Path& path, const std::vector<TensorData>& tensors, const Metadata& metadata) {
  // Wide dtypes first: every tensor then starts at a multiple of its element size, as readers that map the file need.
  std::vector<const TensorData*> order;
  for (const TensorData& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](auto* a, auto* b) { return dtype_size(a->dtype) > dtype_size(b->dtype); });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names = {"__metadata__"};
  int64_t end = 0;
  for (const TensorData* tensor : order) {
    std::optional<int64_t> bytes = byte_count(tensor->shape, tensor->dtype);
    std::string what = shown(tensor->name) + " " + shape_text(tensor->shape);
    check_internal(bytes.has_value(), "safetensors.write", what + ": not a shape");
    check_internal(*bytes == 0 || tensor->data, "safetensors.write", what + ": no data");
    check_internal(names.insert(tensor->name).second, "safetensors.write", what + ": name used twice or reserved");
    header[tensor->name] = {
        {"dtype", dtype_name(tensor->dtype)}, {"shape", tensor->shape}, {"data_offsets", {end, end + *bytes}}};
    end += *bytes;
  }

  // metadata may hold file names, which need not be UTF-8; U+FFFD stands in for what is not
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)), ' ');
  const uint64_t header_bytes = text.size();

  DurableFile file(path, 8 + static_cast<int64_t>(header_bytes) + end);
  file.write(&header_bytes, 8);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  for (const TensorData* tensor : order) file.write(tensor->data, *byte_count(tensor->shape, tensor->dtype));
  file.commit();
}

}  // namespace tessera::checkpoint
