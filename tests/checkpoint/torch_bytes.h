#pragma once
// Writes pickles by hand, as torch.save would: tests need ones that our own writer never makes.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/torch_zip.h"

namespace tessera::checkpoint {

using std::string_literals::operator""s;

class PickleMaker {
 public:
  using Items = std::vector<std::pair<std::string, std::string>>;  ///< key, instructions that make the value

  /// The outermost value.
  void dict(const Items& items) { bytes_ = "\x80\x02" + inner(items) + "."; }
  const std::string& bytes() const { return bytes_; }

  static std::string inner(const Items& items) {
    std::string code = "}(";
    for (const auto& [key, value] : items) code += text(key) + value;
    return code + "u";
  }
  static std::string integer(int64_t value) { return "\x8a\x08" + raw(value); }
  static std::string text(const std::string& value) { return "X" + raw(static_cast<uint32_t>(value.size())) + value; }

  /// A view of fp32 storage `key`, said to have `elements`.
  static std::string tensor(const std::string& key, int64_t elements, int64_t offset, const std::vector<int64_t>& shape,
                            const std::vector<int64_t>& strides) {
    return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" + text(key) +
           text("cpu") + integer(elements) + "tQ" + integer(offset) + tuple(shape) + tuple(strides) +
           "\x89"
           "ccollections\nOrderedDict\n)RtR";
  }

 private:
  static std::string tuple(const std::vector<int64_t>& values) {
    std::string code = "(";
    for (const int64_t value : values) code += integer(value);
    return code + "t";
  }
  template <class T>
  static std::string raw(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string bytes_;
};

}  // namespace tessera::checkpoint
