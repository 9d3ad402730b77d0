#pragma once
// Adds LoRAs to the weights of their base, tensor after tensor.
//
//   LoraMerge merge({"style.safetensors"}, {0.8}, {models::form_of(*model), shapes, "Wan2.1-T2V-1.3B"});
//   w = merge.apply("blocks.0.self_attn.q.weight", w);         // W + 0.8 s B A
//
// DoRA gives W + strength (W' - W) with W' = m (W + s B A) / |W + s B A|, the length of each row brought to m; with
// magnitudes of the input axis that of each column, as LyCORIS and ComfyUI have it.
#include <set>

#include "tessera/models/lora_file.h"

namespace tessera::models {

/// |W| / |W + s B A| of each row, fp32: what DoRA's magnitudes are multiplied by where a program divides by |W|.
at::Tensor row_shrink(const LoraFile& file, const LoraModule& module, const at::Tensor& weight);

class LoraMerge {
 public:
  struct Base {
    const models::WeightForm* form;  ///< null: unknown
    models::Shapes official;
    std::string name;  ///< for messages
  };
  /// `strengths`: one for each file, or one for all, or none (1). Throws UserError: usage for another number of them,
  /// input for a file that is no LoRA, or has a module without a weight (or bias) of its size in the base.
  LoraMerge(const std::vector<std::filesystem::path>& files, std::vector<double> strengths, const Base& base);

  bool touches(const std::string& official) const;
  /// `values` fp32 of the tensor's shape; what is returned may share its memory.
  at::Tensor apply(const std::string& official, const at::Tensor& values) const;

 private:
  struct Entry {
    LoraFile file;
    double strength;
  };
  static void check_places(const LoraFile& file, const Base& base);

  std::vector<Entry> entries_;
  std::set<std::string> touched_;
};

}  // namespace tessera::models
