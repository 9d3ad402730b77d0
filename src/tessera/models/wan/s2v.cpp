#include "tessera/models/wan/s2v.h"

#include "tessera/base/check.h"
#include "tessera/models/common/rotary.h"
#include "tessera/models/wan/network.h"
#include "tessera/models/wan/s2v_network.h"
#include "tessera/models/wan/weight_form.h"

namespace tessera::models::wan {

using at::Tensor;

namespace {

constexpr const char* kPrepareAgain = "the data was encoded for another model or clip: run prepare again";

void check_s2v_sample(const net::Sample& sample, const S2vConfig& c) {
  const Tensor& x = sample.x;
  check_input(x.dim() == 4 && x.size(0) == c.base.in_dim && x.size(1) > 1, "wan.pack",
              "latent " + c10::str(x.sizes()) + ": expected [" + std::to_string(c.base.in_dim) +
                  ", 1 + frames, height, width], a picture and at least one frame",
              "raise data.frames, or run prepare again where the data was encoded for another model");
  const int64_t step = sample.extra.count("motion") ? kMotionBuckets.back().kernel[1] : c.base.patch[1];
  check_input(x.size(2) > 0 && x.size(3) > 0 && x.size(2) % step == 0 && x.size(3) % step == 0, "wan.pack",
              "latent " + c10::str(x.sizes()) + ": height and width must be multiples of " + std::to_string(step),
              "choose data.size accordingly: a cell of the latent is 8 pixels of most autoencoders");
  const auto& context = sample.context;
  check_input(context.dim() == 2 && context.size(1) == c.base.text_dim && context.size(0) <= c.base.text_len,
              "wan.pack",
              "context " + c10::str(context.sizes()) + ": expected at most " + std::to_string(c.base.text_len) +
                  " rows of " + std::to_string(c.base.text_dim),
              kPrepareAgain);
}

/// An extra of the sample, zeros when it has none.
Tensor extra_or_zeros(const net::Sample& sample, const std::string& name, at::IntArrayRef shape) {
  const auto found = sample.extra.find(name);
  if (found == sample.extra.end()) return at::zeros(shape, sample.x.options().dtype(at::kFloat));
  check_input(found->second.sizes() == shape, "wan.pack",
              name + " " + c10::str(found->second.sizes()) + ": expected " + c10::str(shape), kPrepareAgain);
  return found->second.to(at::kFloat);
}

Tensor with_picture(const net::Sample& sample) {
  if (!sample.extra.count("image_latent")) return sample.x;
  const Tensor picture =
      extra_or_zeros(sample, "image_latent", {sample.x.size(0), 1, sample.x.size(2), sample.x.size(3)});
  return at::cat({picture, sample.x.slice(1, 1)}, 1);
}

/// Collects the parts of the packed tensors, sample by sample.
class Packing {
 public:
  explicit Packing(const S2vConfig& config) : c_(config) {}

  void add(const net::Sample& sample) {
    check_s2v_sample(sample, c_);
    const auto& p = c_.base.patch;
    const int64_t frames = sample.x.size(1) - 1, h = sample.x.size(2) / p[1], w = sample.x.size(3) / p[2];
    const int64_t begin = tokens_.offsets.back(), picture = begin + h * w, end = picture + frames * h * w;
    patches_.push_back(to_rows(with_picture(sample), p));
    pose_.push_back(to_rows(
        extra_or_zeros(sample, "pose", {c_.cond_dim, sample.x.size(1), sample.x.size(2), sample.x.size(3)}), p));
    sound_.push_back(extra_or_zeros(sample, "audio", {kAudioLayers, kAudioPerFrame * frames, c_.audio_dim}));
    // Text is padded with zero rows, which are attended like any other: the released models were trained so.
    texts_.push_back(at::constant_pad_nd(sample.context, {0, 0, 0, c_.base.text_len - sample.context.size(0)}));
    parts_.push_back(at::full({h * w}, kReference, at::kLong));
    parts_.push_back(at::full({frames * h * w}, kNoisy, at::kLong));
    add_rotary(reference_grid(h, w));
    add_rotary(clip_grid(frames, h, w));
    own_tokens_.push_back(end - begin);

    add_frames(picture, frames, h, w);
    rows_.push_back(at::full({h * w}, -1, at::kInt));  // t = 0, the last row: how many there are is not known yet
    rows_.push_back(at::full({frames * h * w}, static_cast<int64_t>(t_.size()), at::kInt));
    predicted_.push_back({picture, end});
    tokens_.offsets.push_back(end + add_motion(sample, h, w));
    space(kText).offsets.push_back(space(kText).total() + c_.base.text_len);
    t_.push_back(sample.t);
    shapes_.push_back({c_.base.out_dim, sample.x.size(1), sample.x.size(2), sample.x.size(3)});
  }

  net::Batch batch(at::Device device) {
    net::Batch batch;
    t_.push_back(0);
    const auto to_device = [&](const Tensor& t) { return t.to(device); };
    Tensor rows = at::cat(rows_);
    rows.masked_fill_(rows < 0, static_cast<int64_t>(t_.size()) - 1);
    tokens_.rows = row_index(rows, device);
    tokens_.cos = to_device(at::cat(cos_)), tokens_.sin = to_device(at::cat(sin_));
    space(kClip).rows = row_index(at::cat(frame_rows_), device);
    batch.inputs = {at::cat(patches_).to(at::kFloat),
                    at::cat(texts_).to(at::kFloat),
                    to_device(timestep_sinusoid(t_, c_.base.freq_dim)),
                    at::cat(pose_),
                    Tensor(),
                    at::cat(sound_, 1)};
    batch.token_inputs = {0, 3, 4};
    if (has_motion_) {
      const Tensor order = token_order();
      parts_.push_back(at::full({order.size(0) - batch.inputs[0].size(0)}, kMotionPart, at::kLong));
      batch.inputs.push_back(to_device(order));
      for (const auto& bucket : motion_) batch.inputs.push_back(at::cat(bucket).to(at::kFloat));
      batch.token_inputs.clear();
    }
    batch.inputs[4] = to_device(at::cat(parts_));
    batch.tokens = std::move(tokens_);
    batch.shapes = std::move(shapes_);
    batch.predicted = std::move(predicted_);
    return batch;
  }

 private:
  void add_rotary(const Grid& grid) {
    const auto [cos, sin] = grid_rotary(grid, c_.base.head_dim());
    cos_.push_back(cos), sin_.push_back(sin);
  }

  net::Space& space(int index) { return tokens_.spaces[static_cast<size_t>(index) - 1]; }

  /// Adds the tokens of a clip from `begin` on, and each frame's audio.
  void add_frames(int64_t begin, int64_t frames, int64_t h, int64_t w) {
    auto& segments = tokens_.segments[0].ranges;
    int64_t token = space(kClip).total(), sound = space(kSound).total();
    for (int64_t f = 0; f < frames; ++f) {
      frame_rows_.push_back(at::full({h * w}, static_cast<int64_t>(segments.size()), at::kInt));
      segments.push_back({token, token + h * w, sound, sound + c_.audio_tokens()});
      token += h * w, sound += c_.audio_tokens();
    }
    space(kClip).ranges.push_back({begin, begin + frames * h * w});
    space(kClip).shapes.push_back({frames, h, w});
    space(kClip).offsets.push_back(token), space(kSound).offsets.push_back(sound);
  }

  /// Adds the frames before the clip and returns the number of their tokens.
  int64_t add_motion(const net::Sample& sample, int64_t h, int64_t w) {
    const auto found = sample.extra.find("motion");
    const bool given = found != sample.extra.end();
    check_internal(t_.empty() || given == has_motion_, "wan.pack", "only some samples of a batch have motion latents");
    has_motion_ = given;
    if (!given) return 0;
    const Tensor& motion = found->second;
    check_input(
        motion.dim() == 4 && motion.size(0) == sample.x.size(0) && motion.size(2) == sample.x.size(2) &&
            motion.size(3) == sample.x.size(3),
        "wan.pack",
        "motion " + c10::str(motion.sizes()) + ": expected a latent of the size of " + c10::str(sample.x.sizes()),
        kPrepareAgain);
    const Tensor padded = padded_motion(motion);
    const std::vector<Grid> grids = motion_grids(h, w);
    int64_t count = 0;
    for (size_t b = 0; b < kMotionBuckets.size(); ++b) {
      motion_[b].push_back(to_rows(bucket_frames(padded, kMotionBuckets[b]), kMotionBuckets[b].kernel));
      add_rotary(grids[b]);
      count += grids[b].count();
    }
    rows_.push_back(at::full({count}, -1, at::kInt));
    return count;
  }

  /// The position of each token in the stem's rows: first all samples' own tokens, then bucket by bucket their motion.
  Tensor token_order() const {
    std::vector<int64_t> next = {0};  // of the own tokens, then of each bucket
    int64_t own = 0;
    for (const int64_t count : own_tokens_) own += count;
    next.push_back(own);
    for (size_t b = 0; b + 1 < motion_.size(); ++b) {
      int64_t count = 0;
      for (const Tensor& rows : motion_[b]) count += rows.size(0);
      next.push_back(next.back() + count);
    }
    std::vector<Tensor> order;
    const auto take = [&](size_t from, int64_t count) {
      order.push_back(at::arange(next[from], next[from] + count, at::kLong));
      next[from] += count;
    };
    for (size_t s = 0; s < own_tokens_.size(); ++s) {
      take(0, own_tokens_[s]);
      for (size_t b = 0; b < motion_.size(); ++b) take(b + 1, motion_[b][s].size(0));
    }
    return at::cat(order);
  }

  const S2vConfig& c_;
  net::Tokens tokens_ = first_offsets();
  std::vector<Tensor> patches_, pose_, sound_, texts_, parts_, rows_, frame_rows_, cos_, sin_;
  std::array<std::vector<Tensor>, kMotionBuckets.size()> motion_;  // patches, by bucket and sample
  std::vector<int64_t> own_tokens_;                                // of each sample, without motion
  std::vector<double> t_;
  std::vector<std::array<int64_t, 4>> shapes_;
  std::vector<std::array<int64_t, 2>> predicted_;
  bool has_motion_ = false;

  static net::Tokens first_offsets() {
    net::Tokens tokens;
    tokens.spaces.resize(kSound);
    tokens.offsets = {0};
    for (net::Space& space : tokens.spaces) space.offsets = {0};
    tokens.segments = {{.q = kClip, .k = kSound}};
    return tokens;
  }
};

}  // namespace

S2v::S2v(const S2vConfig& config) : FamilyDenoiser(config, denoiser_sizes(config.base), config.base.patch) {
  units_ = make_s2v_units(config);
}

net::Conditions S2v::conditions() const {
  net::Conditions wants;
  wants.clean_first = wants.always_clean = true;
  wants.audio_dim = config_.audio_dim;
  wants.audio_layers = kAudioLayers;
  wants.audio_rows = kAudioPerFrame;
  wants.pose_dim = config_.cond_dim;
  return wants;
}

net::Sample S2v::blank(const std::array<int64_t, 4>& latent) const {
  net::Sample sample = FamilyDenoiser::blank(latent);
  sample.extra["audio"] =
      at::zeros({kAudioLayers, kAudioPerFrame * std::max<int64_t>(latent[1] - 1, 0), config_.audio_dim}, at::kFloat);
  return sample;
}

net::Batch S2v::pack(const std::vector<net::Sample>& samples) const {
  Packing packing(config_);
  for (const net::Sample& sample : samples) packing.add(sample);
  return packing.batch(samples.at(0).x.device());
}

std::vector<std::map<std::string, Tensor>> S2v::unpack_input_grads(const std::vector<Tensor>& grads,
                                                                   const net::Batch& batch,
                                                                   const std::vector<net::Sample>& samples) const {
  std::vector<std::map<std::string, Tensor>> result;
  int64_t own = 0, sound = 0;
  std::array<int64_t, kMotionBuckets.size()> motion{};
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto [channels, frames, h, w] = batch.shapes[s];
    const auto& p = config_.base.patch;
    const int64_t count = token_count(batch.shapes[s]), text = batch.tokens.space(kText).offsets[s];
    const int64_t heard = kAudioPerFrame * (frames - 1);
    auto& named = result.emplace_back();
    named["x"] = from_rows(grads[0].slice(0, own, own + count), {channels, frames, h, w}, p);
    named["context"] = grads[1].slice(0, text, text + samples[s].context.size(0));
    named["pose"] = from_rows(grads[3].slice(0, own, own + count), {config_.cond_dim, frames, h, w}, p);
    named["audio"] = grads[5].slice(1, sound, sound + heard);
    own += count, sound += heard;
    if (!samples[s].extra.count("motion")) continue;
    std::vector<Tensor> remembered;  // oldest first
    for (size_t b = 0; b < kMotionBuckets.size(); ++b) {
      const MotionBucket& bucket = kMotionBuckets[b];
      const int64_t rows =
          (bucket.end - bucket.begin) / bucket.kernel[0] * (h / bucket.kernel[1]) * (w / bucket.kernel[2]);
      remembered.insert(remembered.begin(), from_rows(grads[7 + b].slice(0, motion[b], motion[b] + rows),
                                                      {channels, bucket.end - bucket.begin, h, w}, bucket.kernel));
      motion[b] += rows;
    }
    const int64_t given = samples[s].extra.at("motion").size(1);
    const Tensor all = at::cat(remembered, 1);
    named["motion"] = given <= kMotionFrames ? all.slice(1, kMotionFrames - given)
                                             : at::constant_pad_nd(all, {0, 0, 0, 0, given - kMotionFrames, 0});
  }
  return result;
}

std::vector<Tensor> S2v::unpack(const Tensor& out, const net::Batch& batch) const {
  std::vector<Tensor> latents;
  for (size_t s = 0; s < batch.shapes.size(); ++s) {
    const auto [begin, end] = batch.predicted[s];
    auto shape = batch.shapes[s];
    --shape[1];
    const Tensor clip = from_output_rows(out.slice(0, begin, end), shape, config_.base.patch).to(at::kFloat);
    latents.push_back(at::constant_pad_nd(clip, {0, 0, 0, 0, 1, 0}));
  }
  return latents;
}

std::string S2v::foreign_name(const std::string& name, const std::string& naming) const {
  return naming == "diffusers" ? rename(diffusers_names(), name) : name;
}

/// As in the official code with zero_init: audio, pose and mask have no effect at first.
Initial S2v::initial(const plan::ParamSpec& param) const {
  const std::string_view name = param.name;
  const bool output = name.starts_with("audio_injector.injector.") && name.ends_with(".o.weight");
  if (output || name.starts_with("audio_injector.injector_adain_layers.") || name.starts_with("cond_encoder.") ||
      name.starts_with("trainable_cond_mask.") || name.ends_with(".padding_tokens"))
    return Initial::constant(0);
  if (name == "casual_audio_encoder.weights") return Initial::constant(0.01);
  if (name.ends_with(".conv.weight")) {  // xavier of a convolution counts its taps on both sides
    const auto taps = static_cast<double>(param.shape[2]);
    return Initial::xavier(static_cast<double>(param.shape[1]) * taps, static_cast<double>(param.shape[0]) * taps);
  }
  return initial_values(param, is_released(s2v_presets(), config_));
}

}  // namespace tessera::models::wan
