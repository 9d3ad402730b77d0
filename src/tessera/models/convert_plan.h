#pragma once
// What a conversion will write, decided before a byte is: files with their tensors, configs, copies.
//
//   ConvertPlan plan = plan_conversion(options);
//   plan.bytes;                                                // of all tensors, to compare with the disk
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/models/convert_source.h"
#include "tessera/models/registry.h"

namespace tessera::models {

namespace fs = std::filesystem;

struct ConvertedTensor {
  std::vector<checkpoint::TensorInfo> sources;  ///< in the input: one tensor, or those that are parts of `out`
  checkpoint::TensorInfo out;
  std::vector<checkpoint::RowPart> parts = {};  ///< which part each of the sources is; none: the tensor itself
  /// Of scaled fp8: the weight in fp32 of which `out` holds the codes or, in fp32, the scale.
  std::optional<checkpoint::TensorInfo> quantised = {};
};

struct ConvertedFile {
  fs::path path;  ///< relative to OUT, of a single file to its folder; empty: OUT is the file
  std::string format;
  std::vector<ConvertedTensor> tensors;
};

struct ConvertedPart {
  std::string role;
  Source source;
  models::Identity identity;
  std::vector<ConvertedFile> files;
  std::vector<std::string> left_out;  ///< tensors that have no place in the model
};

struct ConvertPlan {
  std::vector<ConvertedPart> parts;
  std::map<fs::path, std::string> texts;              ///< config.json and the like, relative to OUT
  std::vector<std::pair<fs::path, fs::path>> copies;  ///< folders or files as they are: from, relative to OUT
  std::vector<std::string> warnings;
  bool single_file = false;
  int64_t bytes = 0, tensors = 0;
};

ConvertPlan plan_conversion(const ConvertOptions& options);

// CLIP's image tower between the official names and transformers': queries, keys and values are one tensor here, three
// there, so a source is regrouped before it is converted.
//
//   Source source = regroup_clip(open_source("models_clip.pth"), identity, "diffusers", left_out);

/// The same values under the names of `to` ("official", else transformers'). `left_out` receives the tensors that have
/// no place there: the text tower, and of the official file the projection of the class token.
Source regroup_clip(const Source& source, const models::Identity& identity, const std::string& to,
                    std::vector<std::string>& left_out);

}  // namespace tessera::models
