#pragma once
// Adds LoRAs to the weights of their base, tensor after tensor.
//
//   LoraMerge merge({"style.safetensors"}, {0.8});
//   merge.check_places(shapes_of_the_base, "Wan2.1-T2V-1.3B");
//   w = merge.apply("blocks.0.self_attn.q.weight", w);         // W + 0.8 s B A
//
// DoRA gives W + strength (W' - W) with W' = m (W + s B A) / |W + s B A|, the length of each row brought to m.
#include <set>

#include "tessera/weights/lora_file.h"

namespace tessera::weights {

class LoraMerge {
 public:
  /// `strengths`: one for each file, or one for all, or none (1). Throws UserError: usage for another number of them,
  /// input for a file that is no LoRA.
  LoraMerge(const std::vector<std::filesystem::path>& files, std::vector<double> strengths);

  /// Throws UserError (input) when a module has no weight (or bias) of its size in the base: a LoRA of another model.
  void check_places(const models::Shapes& official, const std::string& base) const;

  bool touches(const std::string& official) const;
  /// `values` fp32 of the tensor's shape; what is returned may share its memory.
  at::Tensor apply(const std::string& official, const at::Tensor& values) const;

 private:
  struct Entry {
    LoraFile file;
    double strength;
  };
  std::vector<Entry> entries_;
  std::set<std::string> touched_;
};

}  // namespace tessera::weights
