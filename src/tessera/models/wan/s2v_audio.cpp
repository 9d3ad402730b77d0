// The causal encoder that makes audio tokens of each latent frame from the hidden states of a speech model.
#include <numeric>

#include "tessera/models/wan/s2v_network.h"

namespace tessera::models::wan {

using at::Tensor;
using net::Context;

namespace {

constexpr double kSoundEps = 1e-6;
constexpr int64_t kSoundTaps = 3;

// [Note: padding before the clip] The first audio row is repeated in front of the clip, and the frames made from the
// repetitions are dropped, so that the convolutions see no edge. The reference repeats it 73 times and drops 19 frames.
// A frame depends on the 9 rows up to its last one, so 5 repetitions and 2 frames give the same result.
constexpr int64_t kLeadFrames = 2;
constexpr int64_t kLead = kAudioPerFrame * kLeadFrames - (kAudioPerFrame - 1);

int64_t rows(const Tensor& sequence) { return sequence.size(0); }

/// Applies work to all rows at once.
template <class Work>
Series together(const Series& series, const Work& work) {
  std::vector<int64_t> lengths;
  for (const Tensor& sequence : series) lengths.push_back(rows(sequence));
  const Tensor all = work(at::cat(series));
  const std::vector<Tensor> parts = all.split_with_sizes(lengths);
  return {parts.begin(), parts.end()};
}

}  // namespace

Series causal_convolution(Context& ctx, const std::string& site, const Series& series, int64_t out, int64_t stride) {
  Series windows;
  for (const Tensor& x : series) {
    const Tensor padded = at::cat({x.slice(0, 0, 1).expand({kSoundTaps - 1, -1}), x});
    std::vector<Tensor> taps;
    for (int64_t tap = 0; tap < kSoundTaps; ++tap) taps.push_back(padded.slice(0, tap, tap + rows(x), stride));
    windows.push_back(at::stack(taps, 2).flatten(1));  // [t, channels * taps], as the weight has them
  }
  return together(windows,
                  [&](const Tensor& all) { return ctx.linear(site, all, {.out = out, .kernel = {kSoundTaps}}); });
}

Series norm_silu(const Series& series) {
  return together(series, [](const Tensor& all) {
    const Tensor centred = all - all.mean(1, /*keepdim=*/true);
    return at::silu(centred * (centred.square().mean(1, /*keepdim=*/true) + kSoundEps).rsqrt());
  });
}

std::pair<Tensor, Tensor> encode_audio(Context& ctx, const S2vConfig& c, const Tensor& states,
                                       const std::vector<int64_t>& frames) {
  const std::string encoder = "casual_audio_encoder.encoder.";
  const Tensor weights =
      at::silu(ctx.param("casual_audio_encoder.weights", {1, kAudioLayers, 1, 1}).view({-1, 1}));  // [layers, 1]
  const Tensor mixed =
      (states.flatten(1) * weights).sum(0).div(weights.sum()).view(states[0].sizes());  // [4 * N, d_audio]

  Series sound;
  int64_t at = 0;
  for (const int64_t count : frames) {
    const Tensor clip = mixed.slice(0, at, at + kAudioPerFrame * count);
    at += kAudioPerFrame * count;
    sound.push_back(at::cat({clip.slice(0, 0, 1).expand({kLead, -1}), clip}));
  }
  // Local and global branches share all but their first convolution. Each head of the local one is a sequence.
  const int64_t d = c.base.dim;
  Series sequences;
  for (const Tensor& local : causal_convolution(ctx, encoder + "conv1_local.conv", sound, d / 4 * c.num_audio_token, 1))
    for (const Tensor& head : local.chunk(c.num_audio_token, 1)) sequences.push_back(head);
  for (const Tensor& global : causal_convolution(ctx, encoder + "conv1_global.conv", sound, d / 4, 1))
    sequences.push_back(global);
  sequences = norm_silu(sequences);
  sequences = norm_silu(causal_convolution(ctx, encoder + "conv2.conv", sequences, d / 2, 2));
  sequences = norm_silu(causal_convolution(ctx, encoder + "conv3.conv", sequences, d, 2));  // [kLeadFrames + f, d] each
  for (Tensor& sequence : sequences) sequence = sequence.slice(0, kLeadFrames);

  const auto heads = static_cast<size_t>(c.num_audio_token), clips = frames.size();
  const Tensor learned = ctx.param(encoder + "padding_tokens", {1, 1, 1, d}).view({1, -1});
  std::vector<Tensor> local, global;
  for (size_t clip = 0; clip < clips; ++clip) {
    Series tokens(sequences.begin() + static_cast<ptrdiff_t>(clip * heads),
                  sequences.begin() + static_cast<ptrdiff_t>((clip + 1) * heads));
    tokens.push_back(learned.expand({frames[clip], -1}));
    local.push_back(at::stack(tokens, 1).flatten(0, 1));  // [f * a, d]
    global.push_back(sequences[clips * heads + clip]);
  }
  return {at::cat(local), ctx.linear(encoder + "final_linear", at::cat(global))};
}

}  // namespace tessera::models::wan
