#pragma once
// wav2vec 2.0 in the layout of wav2vec2-large-xlsr-53: audio to the hidden states of every layer, 50 a second.
//
//   Wav2Vec2 encoder(parse_config(text, file), read);
//   std::vector<Tensor> states = encoder.hidden_states(wave);       // wave [N] at 16 kHz; states [T, dim], layers + 1
//
// Names of parameters are those of transformers, without "wav2vec2." in front. Forward only, in fp32.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/common/family.h"
#include "tessera/models/encoders/configs.h"
#include "tessera/net/encoders.h"
#include "tessera/net/plain_context.h"
#include "tessera/ops/tensor.h"

namespace tessera::models::wav2vec {

using at::Tensor;

inline constexpr int kSampleRate = 16000;  ///< Hz that the model was trained with

const std::vector<std::pair<std::string, Config>>& presets();

inline net::AudioSizes sizes_of(const Config& config) {
  return {.dim = config.hidden_size, .layers = config.states(), .sample_rate = kSampleRate};
}

/// Name and shape of every tensor that the encoder uses.
std::vector<std::pair<std::string, std::vector<int64_t>>> parameters(const Config& config);

/// A tensor of a file by its name in transformers, with "wav2vec2." in front; undefined where there is none.
using Reader = std::function<Tensor(const std::string& name)>;

class Wav2Vec2 final : public net::AudioEncoder {
 public:
  /// Accepts either naming of the positional convolution's weight norm. Throws UserError (input) naming a tensor that
  /// is missing or has another shape; `file` is for the message.
  Wav2Vec2(Config config, const Reader& read, const std::string& file);
  /// Random weights, the same for a seed: for runs without pretrained ones.
  Wav2Vec2(Config config, uint64_t seed);

  /// Scales a wave to zero mean and unit variance, as in the model's training.
  static Tensor normalise(const Tensor& wave);
  /// Hidden states of a wave [N]: the encoder's input, then each layer's output, the last after the final norm. Throws
  /// UserError (input) for a wave too short for a row.
  std::vector<Tensor> hidden_states(const Tensor& wave) const;
  Tensor rows(const Tensor& wave, double fps, int64_t count) const override;  ///< picked from them (speech_rows.h)

  /// The two halves of hidden_states(): features [T, conv_dim] of a normalised wave, and the layers' states before the
  /// final norm.
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

AudioEncoderMake audio_encoder();

}  // namespace tessera::models::wav2vec

namespace tessera::models {

// From hidden states at 50 a second to the audio rows that a speech-to-video denoiser takes.
//
//   Tensor steady = to_rate(at::stack(states));                  // [layers, T, dim] -> [layers, T * 30 / 50, dim]
//   Tensor rows = pick_rows(steady, 16, 80);                     // row k: the one nearest to k / 16 seconds

inline constexpr double kStateRate = 50;   ///< hidden states a second
inline constexpr double kSteadyRate = 30;  ///< rows a second after resampling, from which rows are picked

/// Linear interpolation over time, end to end. states [layers, T, dim].
at::Tensor to_rate(const at::Tensor& states, double from = kStateRate, double to = kSteadyRate);

/// The resampled rows nearest to k / fps seconds, k = 0 .. count - 1; none is after the end of that time span.
std::vector<int64_t> nearest_rows(double fps, int64_t count);

/// These rows, [layers, count, dim * (2 around + 1)], with zeros after the end of the audio. Each row is joined with
/// `around` rows before and after it, int(30 / fps) apart; beyond its ends the audio's first or last row is repeated.
at::Tensor pick_rows(const at::Tensor& steady, double fps, int64_t count, int64_t around = 0);

/// The number of clips of `frames` frames that the reference makes of resampled rows: one more than fit whole.
int64_t clips_of(int64_t steady_rows, double fps, int64_t frames);

}  // namespace tessera::models
