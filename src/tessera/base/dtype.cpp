#include "tessera/base/dtype.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/base/names.h"

namespace tessera {

namespace {

struct DTypeRow {
  std::string_view name;
  int64_t size;
  bool floating;
};
// in the order of DType
constexpr DTypeRow kDTypes[] = {{"fp64", 8, true},   {"fp32", 4, true},     {"fp16", 2, true},   {"bf16", 2, true},
                                {"fp8", 1, true},    {"fp8_e5m2", 1, true}, {"int64", 8, false}, {"int32", 4, false},
                                {"int16", 2, false}, {"int8", 1, false},    {"uint8", 1, false}, {"bool", 1, false}};
const DTypeRow& dtype_row(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t size_of(DType dtype) { return dtype_row(dtype).size; }
std::string_view name(DType dtype) { return dtype_row(dtype).name; }
bool is_floating(DType dtype) { return dtype_row(dtype).floating; }

DType dtype_of(std::string_view text, std::string_view where, std::span<const DType> among) {
  std::vector<std::string> known;
  for (const DType dtype : among) {
    if (name(dtype) == text) return dtype;
    known.emplace_back(name(dtype));
  }
  unknown_name(where, text, known);
}

}  // namespace tessera
