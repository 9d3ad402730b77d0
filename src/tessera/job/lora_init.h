#pragma once
// lora.init against the model, before anything is encoded.
//
//   check_lora_init(rule, job.adapted, *job.model, "style.safetensors");
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/common/adapted.h"
#include "tessera/net/model.h"

namespace tessera::job {

/// Throws UserError (input) for a LoRA of another model, by names and sizes, or that the run's adapters do not fit.
void check_lora_init(const models::AdapterRule& rule, const std::vector<std::string>& modules,
                     const net::Denoiser& model, const std::filesystem::path& from);

}  // namespace tessera::job
