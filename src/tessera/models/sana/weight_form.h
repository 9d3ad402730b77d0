#pragma once
// The files of Sana's denoisers: names in NVlabs' program and in diffusers, config.json, pipeline folders.
//
// Ours are the names of NVlabs' program, but that queries, keys and values, and the two halves of the feed-forward, are
// tensors of their own, which tensor parallelism can share: files hold them one after the other in one tensor
// (checkpoint/row_part.h).
//
//   Family{.weights = weight_forms(), .pipeline_files = pipeline_files};
#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/sana/config.h"

namespace tessera::models::sana {

/// Ours -> NVlabs' files.
const std::vector<NamePattern>& official_names();
/// Ours -> diffusers'; the classes of the three types differ in a few.
const std::vector<NamePattern>& diffusers_names(Type type);

/// One for each type: they differ in a few names.
std::vector<WeightForm> weight_forms();

std::map<std::string, std::string> pipeline_files(const PipelineParts& parts);

}  // namespace tessera::models::sana
