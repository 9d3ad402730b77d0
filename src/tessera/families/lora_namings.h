#pragma once
// The namings of LoRA files that are read and written; models/lora_names.h has what each calls a tensor.
#include <string>
#include <vector>

namespace tessera::families {

inline const std::vector<std::string> kLoraNamings = {"diffusers", "comfyui", "kohya", "diffsynth", "peft"};

}  // namespace tessera::families
