#pragma once
// Files of adapters under the names of other programs: how a naming is written, and which families have files under it.
// models/lora_names.h has what a module is called there.
//
//   lora_form("kohya")->flat;                        // '_' for '.' in the names of modules
//   lora_route("sana", "peft").modules;              // LoraModules::diffusers
//   lora_route("sana", "kohya").programs;            // why there is none
#include <string>
#include <string_view>
#include <vector>

namespace tessera::families {

inline const std::vector<std::string> kLoraNamings = {"diffusers", "comfyui", "kohya", "diffsynth", "peft"};

/// A naming as it is written. An ending is empty where the naming has no such tensor.
struct LoraForm {
  std::string_view naming, prefix;
  std::string_view file;  ///< what its program looks for in a folder
  bool flat;              ///< '_' for '.' in modules
  bool settings;          ///< alpha, rsLoRA and DoRA stand in the header or in adapter_config.json
  /// Its program brings a row of W + s B A to `magnitude` by dividing by the length of W's row, not of the sum's.
  bool divides_by_base;
  std::string_view down, up, up_bias, alpha, magnitude, diff, diff_bias;
};
/// Null for what is none of kLoraNamings.
const LoraForm* lora_form(std::string_view naming);

/// By which names a family's modules go in files of a naming.
enum class LoraModules { official, diffusers, none };

struct LoraRoute {
  std::string_view family, naming;
  LoraModules modules;
  std::string_view programs;  ///< that load such a file; of `none`: why it would be of no use
};
/// A family that is not in the table has official names under all namings but diffusers'.
LoraRoute lora_route(std::string_view family, std::string_view naming);
const std::vector<LoraRoute>& lora_routes();

}  // namespace tessera::families
