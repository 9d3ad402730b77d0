#pragma once
// Sizes of wav2vec 2.0.
//
//   wav2vec::Config config = wav2vec::parse_config(text, "wav2vec2-large-xlsr-53/config.json");
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::models::wav2vec {

struct Config {
  int64_t hidden_size = 1024;
  int64_t num_layers = 24;
  int64_t num_heads = 16;
  int64_t ffn_dim = 4096;
  std::vector<int64_t> conv_dim = std::vector<int64_t>(7, 512);
  std::vector<int64_t> conv_kernel = {10, 3, 3, 3, 3, 2, 2};
  std::vector<int64_t> conv_stride = {5, 2, 2, 2, 2, 2, 2};
  int64_t position_kernel = 128, position_groups = 16;
  double eps = 1e-5;

  int64_t states() const { return num_layers + 1; }
  /// The least number of samples that gives a row.
  int64_t shortest() const;
  bool operator==(const Config&) const = default;
};

/// transformers' config.json. Throws UserError (input) naming file and field, also for the base models' layout (group
/// norm, norms after the layers), which is another network.
Config parse_config(std::string_view json, const std::string& file);

}  // namespace tessera::models::wav2vec
