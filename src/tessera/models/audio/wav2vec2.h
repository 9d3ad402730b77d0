#pragma once
// wav2vec 2.0 in the layout of wav2vec2-large-xlsr-53: sound to the hidden states of every layer, 50 a second.
//
//   Wav2Vec2 encoder(parse_config(text, file), read);
//   std::vector<Tensor> states = encoder.hidden_states(wave);       // wave [N] at 16 kHz; states [T, dim], layers + 1
//
// Names of parameters are those of transformers, without "wav2vec2." in front. Forward only, in fp32.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/net/audio_encoder.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::wav2vec {

using at::Tensor;

inline constexpr int kSampleRate = 16000;  ///< Hz that the model was trained with

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
  /// Fewest samples that give a row.
  int64_t shortest() const;
  bool operator==(const Config&) const = default;
};

/// transformers' config.json. Throws UserError (input) naming file and field, also for the base models' layout (group
/// norm, norms after the layers), whose states would mean something else.
Config parse_config(std::string_view json, const std::string& file);
const std::vector<std::pair<std::string, Config>>& presets();

inline net::AudioSizes sizes_of(const Config& config) {
  return {.dim = config.hidden_size, .layers = config.states(), .sample_rate = kSampleRate};
}

/// Name and shape of every tensor that is used.
std::vector<std::pair<std::string, std::vector<int64_t>>> parameters(const Config& config);

/// A tensor of a file by its name in transformers, with "wav2vec2." in front; undefined where there is none.
using Reader = std::function<Tensor(const std::string& name)>;

class Wav2Vec2 final : public net::AudioEncoder {
 public:
  /// Either naming of the positional convolution's weight norm. Throws UserError (input) naming what is missing or has
  /// another shape; `file` is for the message.
  Wav2Vec2(Config config, const Reader& read, const std::string& file);
  /// Random weights, the same for a seed: for runs without pretrained ones.
  Wav2Vec2(Config config, uint64_t seed);

  /// Zero mean and unit variance, as the model was trained with.
  static Tensor normalise(const Tensor& wave);
  /// The states of a wave [N]: the encoder's input, then each layer's output, the last after the final norm. Throws
  /// UserError (input) for a wave too short for a row.
  std::vector<Tensor> hidden_states(const Tensor& wave) const;
  Tensor rows(const Tensor& wave, double fps, int64_t count) const override;  ///< picked from those (speech_rows.h)

  /// The parts, of a normalised wave: features [T, conv_dim]; what the layers make of them before the final norm.
  Tensor features(const Tensor& normalised) const;
  std::vector<Tensor> encode(const Tensor& features) const;
  Tensor final_norm(const Tensor& state) const;

  net::AudioSizes sizes() const override { return sizes_of(config_); }
  const Config& config() const { return config_; }
  int64_t bytes() const;  ///< of its weights

 private:
  Tensor layer(const std::string& site, const Tensor& x) const;
  Tensor attention(const std::string& site, const Tensor& x) const;
  Tensor linear(const std::string& site, const Tensor& x) const;
  Tensor norm(const std::string& site, const Tensor& x) const;
  const Tensor& at(const std::string& name) const { return weights_.at(name); }

  const Config config_;
  net::WeightMap weights_;
};

}  // namespace tessera::models::wav2vec
