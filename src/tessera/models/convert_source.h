#pragma once
// What a conversion of weights is asked for.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/training.h"
#include "tessera/models/registry.h"
#include "tessera/ops/tensor.h"
#include "tessera/torch_headers.h"

namespace tessera::models {

struct ConvertOptions {
  std::filesystem::path in;   ///< a file, an index.json, a model folder, or a folder of several parts
  std::filesystem::path out;  ///< a file where the name ends as one (.safetensors, .pth, .pt), otherwise a folder
  /// official, diffusers, comfyui; of a LoRA: diffusers, comfyui, kohya, diffsynth, peft; empty: names stay
  std::string to = {};
  std::string format = {};  ///< safetensors, pth; empty: what OUT's name or the layout says
  /// fp32, bf16, fp16 for floating tensors; fp8_scaled: linears of blocks in fp8, each with its scale; empty: as stored
  std::string dtype = {};
  /// Of tensors that the model has no parameter for: refuse, drop, keep (under their names).
  std::string extra_tensors = "refuse";
  int64_t shard_size = int64_t{5} << 30;          ///< bytes of a file in a folder, safetensors only
  bool averaged = false;                          ///< the moving average that a .pth holds beside the weights
  bool force = false;                             ///< replace a file at OUT
  std::vector<std::filesystem::path> merge = {};  ///< LoRAs that are added to the transformer
  std::vector<double> merge_scales = {};          ///< of each, or of all; empty: 1
  std::filesystem::path base = {};                ///< of a LoRA that gets other names: its model; empty: not needed
};

// Where a conversion reads from: weights of any form, or the parameters of a training checkpoint of any layout.
//
//   Source source = open_source("runs/demo/run/checkpoints/step-000100");
//   for (const TensorInfo& tensor : source.tensors) source.read(tensor, bytes);

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

// One tensor of a source in memory, and its way into another dtype.
//
//   at::Tensor bytes = read_bytes(source, info);
//   bytes = cast_bytes(bytes, info, DType::bf16);              // warns when fp16 cannot hold a value

/// All bytes of a tensor as stored, 1-D kByte.
at::Tensor read_bytes(const Source& source, const checkpoint::TensorInfo& info);

/// What read_bytes gave for `info`, in the dtype `to`; itself where that is its own.
at::Tensor cast_bytes(const at::Tensor& bytes, const checkpoint::TensorInfo& info, DType to);

}  // namespace tessera::models
