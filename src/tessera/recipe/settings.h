#pragma once
// The only list of a recipe's keys.
//
//   for (const Setting& setting : settings()) ... setting.key, setting.help ...
#include <vector>

#include "tessera/recipe/setting.h"

namespace tessera::recipe {

/// All rows, in the order of help and of resolved recipes.
const std::vector<Setting>& settings();
/// Of the tables of lists, data.set.N.repeats: keys of a set alone, then keys of data.* that a set may have for itself,
/// which are read as these. No value is there unless it was written.
const std::vector<Setting>& set_settings();

// a function for each table
std::vector<Setting> run_settings();
std::vector<Setting> model_settings();
std::vector<Setting> data_settings();
std::vector<Setting> train_settings();
std::vector<Setting> lora_settings();
std::vector<Setting> diffusion_settings();
std::vector<Setting> experts_settings();
std::vector<Setting> mesh_settings();
std::vector<Setting> plan_settings();
std::vector<Setting> checkpoint_settings();
std::vector<Setting> eval_settings();
std::vector<Setting> sample_settings();
std::vector<Setting> fault_settings();

}  // namespace tessera::recipe
