#pragma once
// manifest.json of a training checkpoint: which tensors there are, and in which file each part of them lies.
//
//   Manifest manifest = load_manifest("checkpoints/step-000100");
//   manifest.step, manifest.cursor, manifest.find("blocks.0.ffn.0.weight", "exp_avg")->shape;
//
// A part is a box of the tensor (what tensor parallelism cuts) and a flat row-major range within it (what sharding
// cuts). The parts of a tensor tile it exactly; this is checked when a manifest is written and when it is read.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/checkpoint/box.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {

struct Part {
  std::string file, key;  ///< file in the checkpoint's folder, tensor in that file
  Box box;
  int64_t begin = 0, end = 0;  ///< elements of the box
  uint32_t crc32c = 0;         ///< of the part's bytes
};

struct TensorRecord {
  std::string name, kind;  ///< kind: param, master_low, exp_avg, ...
  DType dtype = DType::f32;
  Shape shape;
  std::vector<Part> parts;
};

struct Manifest {
  int64_t step = 0;
  Mesh mesh;
  int64_t epoch = 0, cursor = 0;  ///< the data order's place
  Json sets;                      ///< of each [[data.set]], the caller's; null where there is none
  uint64_t seed = 0;
  double schedule_lr = 0;
  Json experts;                 ///< the caller's; null when there is one denoiser
  Json extra = Json::object();  ///< further top-level fields of the caller
  std::vector<TensorRecord> tensors;

  const TensorRecord* find(const std::string& name, const std::string& kind) const;  ///< linear; nullptr when absent
};

Json to_json(const Manifest& manifest);
Json to_json(const std::vector<TensorRecord>& tensors);
/// Both throw UserError (input); `what` opens the message.
Manifest parse_manifest(const Json& json, const std::string& what);
std::vector<TensorRecord> parse_tensors(const Json& json, const std::string& what);

/// What is wrong with a tensor's parts (hole, overlap, outside), or nothing.
std::optional<std::string> tiling_problem(const TensorRecord& tensor);

/// Reads and checks folder/manifest.json; a folder without one is not a checkpoint.
Manifest load_manifest(const Path& folder);

}  // namespace tessera::checkpoint
