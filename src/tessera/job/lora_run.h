#pragma once
// A run that trains adapters: from the recipe's [lora] to initial values, and to files that other programs read.
//
//   if (const auto rule = adapter_rule(recipe)) job.adapted = models::adapt(*job.model, *rule);
//   export_lora(recipe, {job.name, 1000, 40}, store, comm, rank, "run/model");
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/comm.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/models/common/adapted.h"
#include "tessera/models/lora_file.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

struct Job;

/// What [lora] says; nothing when train.mode is full.
std::optional<models::AdapterRule> adapter_rule(const recipe::Recipe& recipe);

/// Throws UserError (usage) for a naming of lora.export that cannot hold what the run trains, or that no program loads.
void check_exports(const recipe::Recipe& recipe, const net::Denoiser& model);

/// Values of adapters: those of the LoRA `from` (any naming; a module that it lacks, initial ones), or initial ones
/// where `from` is empty. A file of several ranks is filled up to its largest. Throws UserError (input) when it has
/// modules that are not adapted, another rank, or a magnitude where there is none. `form`: of the model's files.
engine::Fill adapter_values(const models::AdapterRule& rule, const std::vector<std::string>& modules,
                            const std::filesystem::path& from, const models::WeightForm* form);

/// Before the first step, when the weights are there: DoRA's magnitudes become the lengths of their rows, unless
/// lora.init has them. All ranks take part.
void start_adapters(const recipe::Recipe::Lora& lora, engine::Store& store, comm::Comm& comm);

/// What a file of adapters says of itself beside their sizes.
struct LoraFacts {
  std::string base;     ///< the model that they were trained on: a preset, or the path of its weights
  int64_t step = 0;     ///< steps that were taken
  int64_t samples = 0;  ///< of the data set
  const models::WeightForm* form = nullptr;  ///< of the model's files
  std::filesystem::path weights = {};        ///< of the base; empty: random ones
};
/// Writes the adapters into `folder`: pytorch_lora_weights.safetensors under diffusers' names, and a file for each
/// other naming of lora.export. All ranks take part; rank 0 writes.
void export_lora(const recipe::Recipe& recipe, const LoraFacts& facts, engine::Store& store, comm::Comm& comm, int rank,
                 const std::filesystem::path& folder);

/// The same from a file or a training checkpoint; one rank calls it.
void save_lora(const recipe::Recipe& recipe, const LoraFacts& facts, const models::LoraFile& lora,
               const std::filesystem::path& folder);

/// What a manifest says of adapters: rank, alpha, rslora, dora, and the modules as targets.
checkpoint::Json lora_json(const models::AdapterRule& rule, const std::vector<std::string>& modules);

// lora.init against the model, before anything is encoded.
//
//   check_lora_init(rule, job.adapted, *job.model, "style.safetensors");

/// Throws UserError (input) for a LoRA of another model, by names and sizes, or that the run's adapters do not fit.
void check_lora_init(const models::AdapterRule& rule, const std::vector<std::string>& modules,
                     const net::Denoiser& model, const std::filesystem::path& from);

}  // namespace tessera::job
