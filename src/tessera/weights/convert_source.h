#pragma once
// Where a conversion reads from: weights of any form, or the parameters of a training checkpoint of any layout.
//
//   Source source = open_source("runs/demo/run/checkpoints/step-000100");
//   for (const TensorInfo& tensor : source.tensors) source.read(tensor, bytes);
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/training.h"
#include "tessera/models/identify.h"

namespace tessera::weights {

struct Source {
  std::filesystem::path path;
  std::vector<checkpoint::TensorInfo> tensors;  ///< in file order
  checkpoint::Metadata metadata;
  std::vector<std::filesystem::path> files;
  std::function<void(const checkpoint::TensorInfo&, void*)> read;  ///< all bytes of one tensor
};

/// Parameters of a training checkpoint whose names begin with `prefix`, without it: fp32, whatever the masters are. What
/// the manifest says of adapters (rank, alpha, rsLoRA, DoRA) stands in the metadata as peft writes it.
Source open_training(std::shared_ptr<checkpoint::TrainingCheckpoint> saved, const std::string& prefix = {});

/// Weights in scaled fp8 are fp32 here, and their scales are no tensors. Throws UserError (input), see open_weights and TrainingCheckpoint.
/// `averaged`: see open_weights.
Source open_source(const std::filesystem::path& path, bool averaged = false);

/// The same with each part of a tensor that the model has a parameter for as a tensor of its own
/// (checkpoint/row_part.h).
Source divided(const Source& source, const models::Identity& identity);

/// What only the official files of a model hold, beside the weights in another naming: path/official_only.safetensors, or
/// NAME.official_only.safetensors beside the file NAME.safetensors.
std::filesystem::path official_only_beside(const std::filesystem::path& weights);
/// The tensors of both. Reads of `more` are told by their names, which `source` must not have.
Source together(const Source& source, const Source& more);

models::Shapes shapes_of(const std::vector<checkpoint::TensorInfo>& tensors);

}  // namespace tessera::weights
