#pragma once
// LoRA files of any program over the weights that a sample is made from.
//
//   const std::vector<LoraStrength> loras = parse_loras("style.safetensors:0.8,light.safetensors");
//   add_loras(loras, job, store, comm);
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/comm/comm.h"
#include "tessera/job/job.h"

namespace tessera::sample {

struct LoraStrength {
  std::filesystem::path file;  ///< or a folder: of two experts the one that holds theirs, by their names
  double strength = 1;
};

/// Files by comma, each with ":STRENGTH" or without. Throws UserError (usage).
std::vector<LoraStrength> parse_loras(const std::string& text);

/// "0,0.5,1". Throws UserError (usage) for what is no list of numbers.
std::vector<double> parse_strengths(const std::string& text);

/// Adds them to the weights in the store, unit after unit: W + strength (W' - W). All ranks take part. Throws UserError
/// (input) for a file that is no LoRA, or of another model.
void add_loras(const std::vector<LoraStrength>& loras, const job::Job& job, engine::Store& store, comm::Comm& comm);

}  // namespace tessera::sample
