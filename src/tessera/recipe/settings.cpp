#include "tessera/recipe/settings.h"

namespace tessera::recipe {

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = [] {
    std::vector<Setting> rows;
    for (auto* table : {run_settings, model_settings, data_settings, train_settings, lora_settings, diffusion_settings,
                        experts_settings, mesh_settings, plan_settings, checkpoint_settings, eval_settings,
                        sample_settings, fault_settings})
      for (Setting& row : table()) rows.push_back(std::move(row));
    return rows;
  }();
  return all;
}

}  // namespace tessera::recipe
