#include "tessera/models/wan/s2v_network.h"

#include "tessera/models/common/denoiser.h"

namespace tessera::models::wan {

using at::Tensor;
using net::Context;
using net::Flow;
using net::Tokens;

namespace {

enum StemInput { kPatches, kCaption, kSinusoid, kPose, kParts, kSoundStates, kOrder, kMotion };  // of the stem
enum SoundCond { kLocal = 3, kGlobal };  // of the shared conditioning, after that of network.cpp
constexpr double kAdainEps = 1e-5;       // the reference takes this norm from a library with another default

std::vector<int64_t> clip_frames(const Tokens& tokens) {
  std::vector<int64_t> frames;
  for (const auto& shape : tokens.space(kClip).shapes) frames.push_back(shape[0]);
  return frames;
}

class S2vStem final : public FamilyUnit<S2vConfig> {
 public:
  explicit S2vStem(const S2vConfig& config) : FamilyUnit(config, "stem", "") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const int64_t d = c_.base.dim;
    const auto patches_of = [&](std::string_view site, const Tensor& rows, const Patch& patch) {
      return ctx.linear(site, rows, {.out = d, .kernel = {patch.begin(), patch.end()}});
    };
    const Tensor patches =
        patches_of("patch_embedding", in.stream[kPatches], c_.base.patch);  // [T, d]; of motion not yet
    const Tensor pose = patches_of("cond_encoder", in.stream[kPose], c_.base.patch);
    const Tensor& parts = in.stream[kParts];  // [T] int64
    const Tensor noisy = (parts.slice(0, 0, pose.size(0)) == kNoisy).to(at::kFloat).unsqueeze(1);
    std::vector<Tensor> pieces = {patches + pose * noisy};
    for (size_t i = kMotion; i < in.stream.size(); ++i)
      pieces.push_back(patches_of(kMotionBuckets[i - kMotion].site, in.stream[i], kMotionBuckets[i - kMotion].kernel));
    Tensor x = pieces.size() > 1 ? at::cat(pieces) : pieces[0];
    x = x + ctx.embedding("trainable_cond_mask", parts, {kMotionPart + 1, d});
    if (in.stream.size() > kOrder) x = x.gather(0, in.stream[kOrder].unsqueeze(1).expand_as(x));
    // Motion patches are none of the token_inputs (net::Batch), so every rank has all of them and takes its share here.
    const Tokens& tokens = ctx.tokens();
    if (in.stream.size() > kOrder && tokens.cut()) x = x.slice(0, tokens.begin, tokens.end);

    const Tensor context =
        ctx.linear("text_embedding.2", ctx.linear("text_embedding.0", in.stream[kCaption], {.space = kText, .out = d}),
                   {.act = net::Act::gelu_tanh, .space = kText});
    const Tensor e =
        ctx.linear("time_embedding.2", at::silu(ctx.linear("time_embedding.0", in.stream[kSinusoid], {.out = d})));
    const Tensor e0 = ctx.linear("time_projection.1", at::silu(e), {.out = 6 * d}).view({-1, 6, d});
    const auto [local, global] = encode_audio(ctx, c_, in.stream[kSoundStates], clip_frames(ctx.tokens()));
    return {{x}, {e, e0, context, local, global}};
  }
  std::vector<std::string_view> order() const override {
    return {"patch_embedding",
            "text_embedding",
            "time_",
            "cond_encoder",
            "frame_packer",
            "trainable_cond_mask",
            "casual_audio_encoder.weights",
            "casual_audio_encoder.encoder.conv",
            "casual_audio_encoder.encoder.final"};
  }
};

/// Cross-attention of the noisy clip's tokens to their frame's audio.
class Injector final : public FamilyUnit<S2vConfig> {
 public:
  Injector(const S2vConfig& config, size_t index)
      : FamilyUnit(config, "injector." + std::to_string(index),
                   "audio_injector."),  // each a kind: sites have its number
        site_("injector." + std::to_string(index)),
        adain_("injector_adain_layers." + std::to_string(index) + ".linear") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const Tensor& x = in.stream[0];  // [T, d]
    const auto ranges = ctx.tokens().row_ranges(kClip);
    if (ranges.empty()) return {{x}, {}};  // this rank has no token of a noisy clip
    std::vector<Tensor> clips;
    for (const auto& [begin, end] : ranges) clips.push_back(x.slice(0, begin, end));
    const Tensor heard = listen(ctx, clips.size() == 1 ? clips[0] : at::cat(clips), in.cond);

    std::vector<Tensor> pieces;
    int64_t done = 0, at = 0;
    for (size_t s = 0; s < ranges.size(); ++s) {
      const auto [begin, end] = ranges[s];
      if (done < begin) pieces.push_back(x.slice(0, done, begin));
      pieces.push_back(clips[s] + heard.slice(0, at, at + end - begin));
      at += end - begin, done = end;
    }
    if (done < x.size(0)) pieces.push_back(x.slice(0, done));
    return {{pieces.size() == 1 ? pieces[0] : at::cat(pieces)}, {}};
  }
  std::vector<std::string_view> order() const override { return {adain_, q_, k_, v_}; }

 private:
  Tensor listen(Context& ctx, const Tensor& x, const std::vector<Tensor>& cond) const {  // x [noisy, d]
    const int64_t heads = c_.base.num_heads;
    const auto m = ctx.linear(adain_, at::silu(cond[kGlobal]), {.out = 2 * c_.base.dim})
                       .view({-1, 2, c_.base.dim})
                       .unbind(1);  // shift, scale [N, d]
    const net::Norm norm{.kind = net::Norm::rms, .eps = c_.base.eps};
    const net::Linear of_clip{.space = kClip}, of_sound{.space = kSound};
    const Tensor y = ctx.norm("audio_norm", x, {.eps = kAdainEps, .shift = &m[0], .scale = &m[1]}, kClip);
    const Tensor q = ctx.norm(site_ + ".norm_q", ctx.linear(q_, y, of_clip), norm, kClip);
    const Tensor k = ctx.norm(site_ + ".norm_k", ctx.linear(k_, cond[kLocal], of_sound), norm, kSound);
    const Tensor v = ctx.linear(v_, cond[kLocal], of_sound);  // k, v [N * a, d]
    const Tensor out = ctx.attention("audio_attn", q, k, v, heads, ctx.tokens().segments.at(0));
    return ctx.linear(site_ + ".o", out, of_clip);
  }

  const std::string site_, adain_, q_ = site_ + ".q", k_ = site_ + ".k", v_ = site_ + ".v";
};

/// With a token of a noisy clip and one of each motion bucket.
void declare_s2v(const std::vector<std::unique_ptr<net::Unit>>& units, const S2vConfig& c) {
  constexpr int64_t kCount = 1 + static_cast<int64_t>(kMotionBuckets.size());
  const at::TensorOptions meta = at::TensorOptions(at::kMeta);
  const int64_t patch = c.base.patch_size();
  net::Flow inputs{
      {net::sizes_of(1, patch * c.base.in_dim), net::sizes_of(1, c.base.text_dim), net::sizes_of(1, c.base.freq_dim),
       net::sizes_of(1, patch * c.cond_dim), at::empty({kCount}, meta.dtype(at::kLong)),
       at::empty({kAudioLayers, kAudioPerFrame, c.audio_dim}, meta.dtype(at::kFloat)),
       at::empty({kCount}, meta.dtype(at::kLong))},
      {}};
  for (const auto& [site, kernel, begin, end] : kMotionBuckets)
    inputs.stream.push_back(net::sizes_of(1, c.base.in_dim * kernel[0] * kernel[1] * kernel[2]));
  net::Tokens tokens;
  tokens.offsets = {0, kCount};
  tokens.spaces.resize(kSound);
  tokens.spaces[kClip - 1].ranges = {{0, 1}};
  tokens.spaces[kClip - 1].shapes = {{1, 1, 1}};
  tokens.segments = {{.q = kClip, .k = kSound}};
  net::declare(units, std::move(inputs), tokens);
}

}  // namespace

std::vector<std::unique_ptr<net::Unit>> make_s2v_units(const S2vConfig& config) {
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(std::make_unique<S2vStem>(config));
  size_t injector = 0;
  for (int64_t i = 0; i < config.base.num_layers; ++i) {
    units.push_back(make_block(config.base, i));
    if (injector < config.inject_after.size() && config.inject_after[injector] == i)
      units.push_back(std::make_unique<Injector>(config, injector++));
  }
  units.push_back(make_head(config.base));
  declare_s2v(units, config);
  return units;
}

using at::Tensor;

namespace {

/// `count` positions spread evenly from `first` to `last`, rounded towards zero: a coarse token has the position of one
/// of the fine tokens that it covers.
std::vector<int64_t> spread(int64_t first, int64_t last, int64_t count) {
  std::vector<int64_t> positions;
  const double step = count > 1 ? static_cast<double>(last - first) / static_cast<double>(count - 1) : 0;
  for (int64_t i = 0; i < count; ++i)
    positions.push_back(i > 0 && i + 1 == count
                            ? last
                            : static_cast<int64_t>(static_cast<double>(first) + static_cast<double>(i) * step));
  return positions;
}

}  // namespace

Grid reference_grid(int64_t h, int64_t w) {
  Grid grid = clip_grid(1, h, w);
  grid.times = {kReferenceTime};
  return grid;
}

std::vector<Grid> motion_grids(int64_t h, int64_t w) {
  std::vector<Grid> grids;
  const Patch& finest = kMotionBuckets.front().kernel;
  for (const MotionBucket& bucket : kMotionBuckets) {
    // From the oldest to the newest frame of the bucket; the magnitude is what is rounded.
    std::vector<int64_t> times = spread(bucket.end, bucket.begin + 1, (bucket.end - bucket.begin) / bucket.kernel[0]);
    for (int64_t& time : times) time = -time;
    grids.push_back({std::move(times), spread(0, h - 1, h * finest[1] / bucket.kernel[1]),
                     spread(0, w - 1, w * finest[2] / bucket.kernel[2])});
  }
  return grids;
}

Tensor padded_motion(const Tensor& motion) {
  const int64_t missing = kMotionFrames - motion.size(1);
  if (missing <= 0) return motion.slice(1, -missing);
  return at::constant_pad_nd(motion, {0, 0, 0, 0, missing, 0});
}

Tensor bucket_frames(const Tensor& padded, const MotionBucket& bucket) {
  return padded.slice(1, kMotionFrames - bucket.end, kMotionFrames - bucket.begin);
}

}  // namespace tessera::models::wan
