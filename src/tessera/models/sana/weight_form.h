#pragma once
// The files of Sana's denoisers: names in NVlabs' program and in diffusers, config.json, pipeline folders.
//
//   Family{.weights = weight_forms(), .pipeline_files = pipeline_files};
#include "tessera/models/common/pipeline.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models::sana {

/// One for each type: they differ in a few names.
std::vector<WeightForm> weight_forms();

std::map<std::string, std::string> pipeline_files(const PipelineParts& parts);

}  // namespace tessera::models::sana
