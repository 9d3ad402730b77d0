#pragma once
// Wan's transformers as files: how they are known, which release or preset they are, their config.json, and what makes a
// folder of them a pipeline of diffusers.
//
//   WeightForm form = weight_form();
#include <filesystem>
#include <set>

#include "tessera/models/common/names.h"
#include "tessera/models/common/pipeline.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models::wan {

WeightForm weight_form();

/// Official name -> name in diffusers' WanTransformer3DModel.
const std::vector<NamePattern>& diffusers_names();

/// Our name -> that of the official files, where they hold several parameters in one tensor.
const std::vector<NamePattern>& official_names();

/// model_index.json, the scheduler's and the image processor's configs.
std::map<std::string, std::string> pipeline_files(const PipelineParts& parts);

}  // namespace tessera::models::wan
