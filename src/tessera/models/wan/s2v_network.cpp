#include "tessera/models/wan/s2v_network.h"

#include "tessera/models/common/denoiser.h"
#include "tessera/models/wan/s2v_parameters.h"
#include "tessera/models/wan/s2v_tokens.h"

namespace tessera::models::wan {

using at::Tensor;
using net::Context;
using net::Flow;
using net::Tokens;

namespace {

enum StemInput { kPatches, kCaption, kSinusoid, kPose, kParts, kSoundStates, kOrder, kMotion };  // of the stem
enum SoundCond { kLocal = 3, kGlobal };  // of the shared conditioning, after that of network.cpp
const net::Linear kOfCaption{.space = kText};
constexpr double kAdainEps = 1e-5;  // the reference takes this norm from a library with another default

std::vector<int64_t> clip_frames(const Tokens& tokens) {
  std::vector<int64_t> frames;
  for (const auto& shape : tokens.space(kClip).shapes) frames.push_back(shape[0]);
  return frames;
}

class S2vStem final : public FamilyUnit<S2vConfig> {
 public:
  explicit S2vStem(const S2vConfig& config) : FamilyUnit(config, s2v_stem_spec(config), "") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const Tensor patches = ctx.linear("patch_embedding", in.stream[kPatches]);  // [T, d]; of motion not yet
    const Tensor pose = ctx.linear("cond_encoder", in.stream[kPose]);
    const Tensor& parts = in.stream[kParts];  // [T] int64
    const Tensor noisy = (parts.slice(0, 0, pose.size(0)) == kNoisy).to(at::kFloat).unsqueeze(1);
    std::vector<Tensor> pieces = {patches + pose * noisy};
    for (size_t i = kMotion; i < in.stream.size(); ++i)
      pieces.push_back(ctx.linear(kMotionBuckets[i - kMotion].site, in.stream[i]));
    Tensor x = pieces.size() > 1 ? at::cat(pieces) : pieces[0];
    x = x + ctx.embedding("trainable_cond_mask", parts);
    if (in.stream.size() > kOrder) x = x.gather(0, in.stream[kOrder].unsqueeze(1).expand_as(x));
    // Motion patches are none of the token_inputs (net::Batch), so every rank has all of them and takes its share here.
    const Tokens& tokens = ctx.tokens();
    if (in.stream.size() > kOrder && tokens.cut()) x = x.slice(0, tokens.begin, tokens.end);

    const Tensor context =
        ctx.linear("text_embedding.2", ctx.linear("text_embedding.0", in.stream[kCaption], kOfCaption),
                   {.act = net::Act::gelu_tanh, .space = kText});
    const Tensor e = ctx.linear("time_embedding.2", at::silu(ctx.linear("time_embedding.0", in.stream[kSinusoid])));
    const Tensor e0 = ctx.linear("time_projection.1", at::silu(e)).view({-1, 6, c_.base.dim});
    const auto [local, global] = encode_audio(ctx, c_, in.stream[kSoundStates], clip_frames(ctx.tokens()));
    return {{x}, {e, e0, context, local, global}};
  }
};

/// Cross-attention of the noisy clip's tokens to their frame's audio.
class Injector final : public FamilyUnit<S2vConfig> {
 public:
  Injector(const S2vConfig& config, size_t index)
      : FamilyUnit(config, injector_spec(config, index), "audio_injector."),
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

 private:
  Tensor listen(Context& ctx, const Tensor& x, const std::vector<Tensor>& cond) const {  // x [noisy, d]
    const int64_t heads = c_.base.num_heads;
    const auto m =
        ctx.linear(adain_, at::silu(cond[kGlobal])).view({-1, 2, c_.base.dim}).unbind(1);  // shift, scale [N, d]
    const net::Norm norm{.kind = net::Norm::rms, .eps = c_.base.eps};
    const net::Linear of_clip{.space = kClip}, of_sound{.space = kSound};
    const Tensor y = ctx.norm("audio_norm", x, {.eps = kAdainEps, .shift = &m[0], .scale = &m[1]}, kClip);
    const Tensor q = ctx.norm(site_ + ".norm_q", ctx.linear(site_ + ".q", y, of_clip), norm, kClip);
    const Tensor k = ctx.norm(site_ + ".norm_k", ctx.linear(site_ + ".k", cond[kLocal], of_sound), norm, kSound);
    const Tensor v = ctx.linear(site_ + ".v", cond[kLocal], of_sound);  // k, v [N * a, d]
    const Tensor out = ctx.attention("audio_attn", q, k, v, heads, ctx.tokens().segments.at(0));
    return ctx.linear(site_ + ".o", out, of_clip);
  }

  const std::string site_, adain_;
};

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
  return units;
}

}  // namespace tessera::models::wan
