#include "tessera/data/files/tensor_file.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
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

}  // namespace tessera::data
