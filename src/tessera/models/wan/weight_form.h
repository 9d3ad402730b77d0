#pragma once
// Wan's transformers as files: how they are known, which release or preset they are, their config.json, and what makes a
// folder of them a pipeline of diffusers.
//
//   WeightForm form = weight_form();
#include <filesystem>
#include <set>

#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models::wan {

WeightForm weight_form();

/// Of Animate models: blocks of the transformer for each adapter of faces, and faces that are encoded at once.
inline constexpr int64_t kBlocksAnAdapter = 5, kFacesAtOnce = 8;

/// Official name -> name in diffusers' WanTransformer3DModel and its kin.
const std::vector<NamePattern>& diffusers_names();
/// Of an Animate model whose faces are halved so often: the convolution after the last has a name of its own there.
const std::vector<NamePattern>& animate_diffusers_names(int64_t halvings);

/// Our name -> that of the official files, where they hold several parameters in one tensor.
const std::vector<NamePattern>& official_names();

/// model_index.json, the scheduler's and the image processor's configs.
std::map<std::string, std::string> pipeline_files(const PipelineParts& parts);

}  // namespace tessera::models::wan
