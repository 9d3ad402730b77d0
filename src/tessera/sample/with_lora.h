#pragma once
// LoRA files of any program over the weights that a sample is made from.
//
//   const std::vector<LoraStrength> loras = parse_loras("style.safetensors:0.8,light.safetensors");
//   add_loras(loras, job, store, comm);
//   auto weights = std::make_unique<SamplerWeights>(recipe.sample, job, store, comm);   // of a run, until it goes
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/comm.h"
#include "tessera/engine/store/average.h"
#include "tessera/job/job.h"

namespace tessera::sample {

using recipe::LoraStrength;

/// Of --lora: files by comma, each with ":STRENGTH" or without. Throws UserError (usage).
std::vector<LoraStrength> parse_loras(const std::string& text);

/// "0,0.5,1". Throws UserError (usage) for what is no list of numbers.
std::vector<double> parse_strengths(const std::string& text);

/// Adds them to the weights in the store, unit after unit: W + strength (W' - W). All ranks take part. Throws UserError
/// (input) for a file that is no LoRA, or of another model. `one_each`, as sample.lora is meant: where there are as many
/// files as experts, each expert has its own, in their order.
void add_loras(const std::vector<LoraStrength>& loras, const job::Job& job, engine::Store& store, comm::Comm& comm,
               bool one_each = false);

/// Whether those of sample.lora are LoRAs of this model, before a run begins that will need them. Throws as add_loras().
void check_loras(const std::vector<LoraStrength>& loras, const job::Job& job);

/// The weights that samples of a run are made from: their average where sample.weights says so, with sample.lora in them.
/// When it goes the trained weights are back, with the same bits: what was there lies in host memory meanwhile
/// (planning::RankShare::kept_weights). Between steps; while it lives no step may run and nothing is saved. All ranks take
/// part.
class SamplerWeights {
 public:
  SamplerWeights(const recipe::Recipe::Sample& sample, const job::Job& job, engine::Store& store, comm::Comm& comm);
  ~SamplerWeights() noexcept(false);
  SamplerWeights(const SamplerWeights&) = delete;

 private:
  struct Kept;
  const job::Job& job_;
  engine::Store& store_;
  engine::AveragedWeights averaged_;
  std::vector<std::unique_ptr<Kept>> kept_;  // by expert; empty without LoRAs
};

}  // namespace tessera::sample
