#pragma once
// Reads and writes .safetensors. The reader trusts nothing in a file; the writer leaves a whole file or none.
//
//   SafetensorsFile file = SafetensorsFile::open("model.safetensors");
//   const SafetensorsFile::Entry& w = file.at("blocks.0.ffn.0.weight");
//   file.read_f32(w.name, 0, w.count(), values);                  // from any floating dtype
//   write_safetensors("out.safetensors", {{"w", DType::f32, {2, 2}, values}}, {{"format", "pt"}});
#include <functional>
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
    int64_t count() const { return (end - begin) / size_of(dtype); }
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

/// A tensor without its data.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  int64_t count() const { return *element_count(shape); }
  int64_t bytes() const { return *byte_count(shape, dtype); }
};

/// Writes a file piece by piece, for weights that memory does not hold at once:
///
///   SafetensorsWriter out("out.safetensors", infos);
///   for (const TensorInfo& tensor : out.tensors()) out.write(data_of(tensor), tensor.bytes());
///   out.commit();
///
/// Beside `path`, flushed and renamed (file.h); throws UserError (disk) when any of it fails.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const Path& path, std::vector<TensorInfo> tensors, const Metadata& metadata = {});

  const std::vector<TensorInfo>& tensors() const { return tensors_; }  ///< in the order in which their bytes must come
  void write(const void* data, int64_t bytes);                         ///< the next bytes, tensor after tensor
  void commit();

 private:
  std::vector<TensorInfo> tensors_;
  std::string header_;
  int64_t left_ = 0;
  DurableFile file_;
};

struct TensorData {
  std::string name;
  DType dtype;
  Shape shape;
  const void* data;                         ///< borrowed until write_safetensors returns; null: `fetch` has it
  std::function<const void*()> fetch = {};  ///< as Piece::fetch
};

/// The same in one call, for what is in memory.
void write_safetensors(const Path& path, const std::vector<TensorData>& tensors, const Metadata& metadata = {});

}  // namespace tessera::checkpoint
