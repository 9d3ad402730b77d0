#pragma once
// Reads and writes .safetensors. The reader trusts nothing in a file; the writer leaves a whole file or none.
//
//   SafetensorsFile file = SafetensorsFile::open("model.safetensors");
//   const SafetensorsFile::Entry& w = file.at("blocks.0.ffn.0.weight");
//   file.read_f32(w.name, 0, w.count(), values);                  // from any floating dtype
//   write_safetensors("out.safetensors", {{"w", DType::f32, {2, 2}, values}}, {{"format", "pt"}});
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/file.h"

namespace tessera::checkpoint {

using Metadata = std::map<std::string, std::string>;

/// An open file whose header has been checked in full: every entry lies inside the file, has exactly the bytes its
/// shape and dtype need, and the entries tile the data without overlap or hole (as the format's own library demands).
/// Anything else is a UserError (input) naming file, tensor, found and expected. Reading is safe from many threads.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
    int64_t begin, end;  ///< bytes, from the start of the data
    int64_t count() const { return (end - begin) / dtype_size(dtype); }
  };

  static SafetensorsFile open(const Path& path);

  const Path& path() const { return file_.path(); }
  const std::vector<Entry>& entries() const { return entries_; }  ///< in file order
  const Metadata& metadata() const { return metadata_; }
  const Entry* find(std::string_view name) const;  ///< nullptr when absent
  const Entry& at(std::string_view name) const;    ///< throws naming the nearest known one

  /// Elements [first, first + count) as stored.
  void read(std::string_view name, int64_t first, int64_t count, void* to) const;
  /// The same as fp32; refuses dtypes that are not floating.
  void read_f32(std::string_view name, int64_t first, int64_t count, float* to) const;
  /// All bytes of a tensor.
  std::vector<std::byte> bytes(std::string_view name) const;

 private:
  explicit SafetensorsFile(const Path& path) : file_(path) {}
  void read_range(const Entry& entry, int64_t first, int64_t count, void* to) const;

  ReadFile file_;
  int64_t data_start_ = 0;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
  Metadata metadata_;
};

struct TensorData {
  std::string name;
  DType dtype;
  Shape shape;
  const void* data;  ///< borrowed until write_safetensors returns
};

/// Writes beside `path`, flushes and renames (file.h); throws UserError (disk) when any of it fails.
void write_safetensors(const Path& path, const std::vector<TensorData>& tensors, const Metadata& metadata = {});

}  // namespace tessera::checkpoint
