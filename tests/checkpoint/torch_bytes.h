#pragma once
// Writes pickles by hand, as torch.save would: tests need ones that our own writer never makes.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/torch_zip.h"

namespace tessera::checkpoint {

using std::string_literals::operator""s;

class PickleMaker {
 public:
  using Items = std::vector<std::pair<std::string, std::string>>;  ///< key, instructions that make the value

  /// The outermost value.
  void dict(const Items& items) { bytes_ = "\x80\x02" + inner(items) + "."; }
  /// The outermost value is that of these instructions: of torch.save(tensor, PATH).
  void value(const std::string& code) { bytes_ = "\x80\x02" + code + "."; }
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

/// The bytes of an archive with these members.
inline std::string zip_bytes(const std::vector<std::pair<std::string, std::string>>& members) {
  const Path path = std::filesystem::temp_directory_path() / ("tessera-zip-bytes-" + std::to_string(::getpid()));
  ZipWriter zip(path, 4096);
  for (const auto& [name, bytes] : members) zip.add(name, bytes.data(), static_cast<int64_t>(bytes.size()));
  zip.commit();
  std::string bytes = read_text(path);
  std::filesystem::remove(path);
  return bytes;
}

/// Of torch.save's file with this pickle and one fp32 storage, "0".
inline std::string torch_file_bytes(const PickleMaker& pickle, const std::vector<float>& values) {
  return zip_bytes({{"archive/data.pkl", pickle.bytes()},
                    {"archive/data/0", {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}}});
}

/// The file of torch.save of one fp32 tensor.
inline void write_one_tensor(const Path& path, const std::vector<int64_t>& shape, const std::vector<float>& values) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];
  const auto count = static_cast<int64_t>(values.size());
  PickleMaker pickle;
  pickle.value(PickleMaker::tensor("0", count, 0, shape, strides));
  ZipWriter zip(path, 0);
  zip.add("archive/data.pkl", pickle.bytes().data(), static_cast<int64_t>(pickle.bytes().size()));
  zip.add("archive/byteorder", "little", 6);
  zip.add("archive/data/0", values.data(), count * static_cast<int64_t>(sizeof(float)));
  zip.commit();
}

}  // namespace tessera::checkpoint
