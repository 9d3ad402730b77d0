#pragma once
// Where a conversion reads from: weights of any form, or the parameters of a training checkpoint of any layout.
//
//   Source source = open_source("runs/demo/run/checkpoints/step-000100");
//   for (const TensorInfo& tensor : source.tensors) source.read(tensor, bytes);
#include <filesystem>
#include <functional>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/models/identify.h"

namespace tessera::weights {

struct Source {
  std::filesystem::path path;
  std::vector<checkpoint::TensorInfo> tensors;  ///< in file order
  checkpoint::Metadata metadata;
  std::vector<std::filesystem::path> files;
  std::function<void(const checkpoint::TensorInfo&, void*)> read;  ///< all bytes of one tensor
};

/// Throws UserError (input), see open_weights and TrainingCheckpoint.
Source open_source(const std::filesystem::path& path);

models::Shapes shapes_of(const std::vector<checkpoint::TensorInfo>& tensors);

}  // namespace tessera::weights
