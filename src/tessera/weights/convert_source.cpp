#include "tessera/weights/convert_source.h"

#include <memory>

#include "tessera/checkpoint/training.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::weights {

namespace {

Source from_training(const std::filesystem::path& folder) {
  const auto saved = std::make_shared<checkpoint::TrainingCheckpoint>(folder);
  Source source{folder, {}, {}, {}, {}};
  for (const auto& tensor : saved->manifest().tensors)
    if (tensor.kind == "param") source.tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
  source.read = [saved](const checkpoint::TensorInfo& tensor, void* to) {
    saved->read({tensor.name, "param", tensor.dtype, tensor.shape}, to);
  };
  return source;
}

}  // namespace

Source open_source(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "manifest.json")) return from_training(path);
  const auto weights = std::make_shared<checkpoint::WeightSet>(checkpoint::open_weights(path));
  Source source{path, {}, weights->metadata(), {}, {}};
  for (const auto& file : weights->files()) {
    source.files.push_back(file.path());
    for (const auto& tensor : file.tensors())  // an index may name but some of a file's tensors
      if (weights->contains(tensor.name)) source.tensors.push_back(tensor);
  }
  source.read = [weights](const checkpoint::TensorInfo& tensor, void* to) {
    weights->read(tensor.name, 0, tensor.count(), to);
  };
  return source;
}

models::Shapes shapes_of(const std::vector<checkpoint::TensorInfo>& tensors) {
  models::Shapes shapes;
  for (const auto& tensor : tensors) shapes[tensor.name] = tensor.shape;
  return shapes;
}

}  // namespace tessera::weights
