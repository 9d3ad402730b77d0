#include "tessera/data/files/tensor_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/torch_file.h"
#include "tessera/data/files/file_kinds.h"

namespace tessera::data {

namespace {

using checkpoint::TorchTree;

[[noreturn]] void refuse(const Path& path, const std::string& what) {
  throw UserError(Exit::input, "data.tensor", path.string() + ": " + what,
                  "save the tensor alone, of one sample: torch.save(tensor.clone(), PATH)");
}

/// The tensor that is the whole of the file: one of a dict or list has a name.
const checkpoint::TorchFile::Entry& only_tensor(const TorchTree& file) {
  const checkpoint::TorchFile::Entry& entry = file.entries().front();
  if (!entry.name.empty())
    refuse(file.path(), "holds a dict or list of " + std::to_string(file.entries().size()) +
                            (file.entries().size() == 1 ? " tensor" : " tensors") + ", expected one tensor");
  const DType types[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  if (std::ranges::find(types, entry.dtype) == std::end(types))
    refuse(file.path(),
           "numbers of type " + std::string(checkpoint::dtype_name(entry.dtype)) + ", expected fp32, fp16 or bf16");
  if (entry.count() < 1) refuse(file.path(), "a tensor without numbers, of " + checkpoint::shape_text(entry.shape));
  return entry;
}

}  // namespace

NpyShape tensor_shape(const Path& path) { return is_npy(path) ? npy_shape(path) : only_tensor(TorchTree(path)).shape; }

NpyArray read_tensor_file(const Path& path) {
  if (is_npy(path)) return read_npy(path);
  const TorchTree file(path);
  const checkpoint::TorchFile::Entry& entry = only_tensor(file);
  NpyArray array{entry.shape, std::vector<float>(static_cast<size_t>(entry.count()))};
  file.read_f32(entry, 0, entry.count(), array.values.data());
  if (!std::ranges::all_of(array.values, [](float value) { return std::isfinite(value); }))
    refuse(path, "holds a number that is not finite");
  return array;
}

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr int64_t kMostNpyHeader = int64_t{1} << 16, kMostValues = int64_t{1} << 31;

constexpr std::pair<std::string_view, DType> kTypes[] = {
    {"'<f2'", DType::f16}, {"'<f4'", DType::f32}, {"'<f8'", DType::f64}};

struct Header {
  NpyShape shape;
  DType type = DType::f32;
  int64_t data = 0, count = 1;
};

/// An .npy wherever it lies.
class NpyFile {
 public:
  explicit NpyFile(const Path& path) : path_(path), file_(path) {}

  Header header() const {
    const std::string head = bytes(0, 10);
    if (!head.starts_with(kMagic)) refuse("does not begin as an .npy file");
    const auto at = [](const std::string& text, size_t i) {
      return static_cast<int64_t>(static_cast<uint8_t>(text[i]));
    };
    const int64_t version = at(head, 6);
    if (version < 1 || version > 3) refuse("an .npy file of version " + std::to_string(version) + ", 1 to 3 are known");
    const int64_t place = version == 1 ? 10 : 12;
    int64_t length = at(head, 8) + 256 * at(head, 9);
    if (version > 1) {
      const std::string more = bytes(10, 2);
      length += (at(more, 0) + 256 * at(more, 1)) * 65536;
    }
    if (length > kMostNpyHeader) refuse("a header of " + std::to_string(length) + " bytes");
    Header header = parsed(bytes(place, length));
    header.data = place + length;
    for (const int64_t size : header.shape) {
      if (size < 1 || header.count > kMostValues / size) refuse("a shape of no or of too many numbers");
      header.count *= size;
    }
    const int64_t needed = header.data + header.count * size_of(header.type);
    if (needed != file_.size())
      refuse("has " + std::to_string(file_.size()) + " bytes, its header needs " + std::to_string(needed));
    return header;
  }

  std::vector<float> values(const Header& header) const {
    const std::string raw = bytes(header.data, header.count * size_of(header.type));
    std::vector<float> values(static_cast<size_t>(header.count));
    checkpoint::to_f32(header.type, raw.data(), header.count, values.data());
    if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
      refuse("holds a number that is not finite");
    return values;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(Exit::input, "data.npy", path_.string() + ": " + what,
                    "save latents with numpy.save as float16 or float32");
  }

  std::string bytes(int64_t begin, int64_t count) const {
    if (begin > file_.size() - count) refuse("ends at byte " + std::to_string(file_.size()) + " (cut short?)");
    std::string text(static_cast<size_t>(count), '\0');
    file_.read(begin, count, text.data());
    return text;
  }

  /// A Python dict, such as {'descr': '<f2', 'fortran_order': False, 'shape': (32, 16, 16), }.
  Header parsed(const std::string& text) const {
    const auto value_of = [&](const char* key) {
      const size_t at = text.find(std::string("'") + key + "':");
      if (at == std::string::npos) refuse(std::string("its header has no ") + key);
      return text.find_first_not_of(' ', at + std::strlen(key) + 3);
    };
    const auto starts = [&](size_t at, std::string_view word) {
      return at < text.size() && text.compare(at, word.size(), word) == 0;
    };
    Header header;
    const size_t type = value_of("descr");
    const auto known =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& row) { return starts(type, row.first); });
    if (known == std::end(kTypes))
      refuse("numbers of type " + checkpoint::shown(text.substr(std::min(type, text.size()), 12)) +
             ", expected '<f2', '<f4' or '<f8'");
    header.type = known->second;
    if (!starts(value_of("fortran_order"), "False"))
      refuse("columns first, expected rows first: numpy.ascontiguousarray");
    size_t at = value_of("shape");
    if (!starts(at, "(")) refuse("its shape is no tuple");
    for (++at;;) {
      while (at < text.size() && (text[at] == ' ' || text[at] == ',')) ++at;
      if (starts(at, ")")) break;
      int64_t size = 0;
      const auto [end, error] =
          std::from_chars(text.data() + std::min(at, text.size()), text.data() + text.size(), size);
      if (error != std::errc()) refuse("its shape is no tuple of whole numbers");
      header.shape.push_back(size);
      at = static_cast<size_t>(end - text.data());
    }
    return header;
  }

  Path path_;
  OpenFile file_;
};

}  // namespace

NpyShape npy_shape(const Path& path) { return NpyFile(path).header().shape; }

NpyArray read_npy(const Path& path) {
  const NpyFile file(path);
  const Header header = file.header();
  return {header.shape, file.values(header)};
}

NpyShape latent_shape(const NpyShape& array) {
  NpyShape shape = array;
  if (shape.size() > 3 && shape.front() == 1) shape.erase(shape.begin());
  if (shape.size() == 3) shape.insert(shape.begin() + 1, 1);
  return shape.size() == 4 ? shape : NpyShape{};
}

}  // namespace tessera::data
