#include "tessera/models/wan/animate.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/models/wan/network.h"
#include "tessera/models/wan/vace.h"
#include "tessera/models/wan/weight_form.h"

namespace tessera::models::wan {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

using Json = nlohmann::ordered_json;

enum AnimateInput { kPoseRows = 4, kFollows, kFacePixels };  // after those of an image-to-video stem
constexpr size_t kFaceCond = 4;                              // of the shared conditioning, after that of network.cpp
constexpr double kFaceEps = 1e-6;
constexpr int64_t kLeastSide = 4;  // of the motion encoder's last convolution

std::vector<int64_t> frames_of(const net::Tokens& tokens, const AnimateConfig& c) {
  const std::vector<int64_t>& offsets = tokens.space(kFace).offsets;
  std::vector<int64_t> frames;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) frames.push_back((offsets[s + 1] - offsets[s]) / c.face_tokens());
  return frames;
}

class AnimateStem final : public FamilyUnit<AnimateConfig> {
 public:
  explicit AnimateStem(const AnimateConfig& config) : FamilyUnit(config, "stem", ""), stem_(make_stem(config.base)) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Flow out = stem_->forward(ctx, in);
    const auto& p = c_.base.patch;
    const Tensor pose = ctx.linear("pose_patch_embedding", in.stream[kPoseRows],
                                   {.out = c_.base.dim, .kernel = {p.begin(), p.end()}});  // [T, d]
    out.stream[0] = out.stream[0] + pose * in.stream[kFollows];  // [T, 1]: 0 for the reference picture
    out.cond.push_back(encode_faces(ctx, c_, in.stream[kFacePixels], frames_of(ctx.tokens(), c_)));
    return out;
  }
  std::vector<std::string_view> order() const override { return stem_->order(); }

 private:
  const std::unique_ptr<net::Unit> stem_;
};

/// Cross-attention of each frame's tokens to the face of that frame.
class FaceAdapter final : public FamilyUnit<AnimateConfig> {
 public:
  FaceAdapter(const AnimateConfig& config, int64_t index)
      : FamilyUnit(config, "face_adapter.fuser_blocks", "face_adapter", index) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const Tensor &x = in.stream[0], &face = in.cond[kFaceCond];  // [T, d], [rows, d]
    const int64_t heads = c_.base.num_heads;
    const Tensor none = at::zeros_like(in.cond[0]);  // no scale, no shift
    const Tensor y = ctx.norm("pre_norm", x, {.eps = kFaceEps, .shift = &none, .scale = &none});
    const Tensor centred = face - face.mean(1, /*keepdim=*/true);
    const Tensor f = centred * (centred.square().mean(1, /*keepdim=*/true) + kFaceEps).rsqrt();
    const net::Norm by_head{.kind = net::Norm::rms, .eps = kFaceEps, .heads = heads};
    const net::Linear of_face{.space = kFace, .split = kColumns};
    const Tensor q = ctx.norm("q_norm", ctx.linear("linear1_q", y, {.split = kColumns}), by_head);
    const Tensor k = ctx.norm("k_norm", ctx.linear("linear1_k", f, of_face), by_head, kFace);
    const Tensor v = ctx.linear("linear1_v", f, of_face);
    const Tensor seen = ctx.attention("face_attn", q, k, v, heads, ctx.tokens().segments.at(0));
    return {{ctx.residual("face", x, ctx.linear("linear2", seen, {.split = kRows}))}, {}};
  }
  std::vector<std::string_view> order() const override { return {"linear1_k", "linear1_v", "linear1_q"}; }
};

std::vector<std::unique_ptr<net::Unit>> make_animate_units(const AnimateConfig& c) {
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(std::make_unique<AnimateStem>(c));
  for (int64_t i = 0; i < c.base.num_layers; ++i) {
    units.push_back(make_block(c.base, i));
    if (i % kBlocksAnAdapter == 0) units.push_back(std::make_unique<FaceAdapter>(c, i / kBlocksAnAdapter));
  }
  units.push_back(make_head(c.base));
  net::Tokens tokens;  // a reference picture's and one frame's
  tokens.offsets = {0, 2};
  tokens.spaces.resize(kFace);
  tokens.spaces[kFace - 1].offsets = {0, 2 * c.face_tokens()};
  tokens.segments = {{.q = 0, .k = kFace}};
  const int64_t patch = c.base.patch_size();
  net::declare(units,
               {{net::sizes_of(2, patch * c.base.in_dim), net::sizes_of(1, c.base.text_dim),
                 net::sizes_of(1, c.base.freq_dim), net::sizes_of(c.base.image_rows(), c.base.image_dim),
                 net::sizes_of(2, patch * c.base.out_dim), net::sizes_of(2, 1),
                 at::empty({1, 3, c.face_size, c.face_size}, at::TensorOptions(at::kMeta).dtype(at::kFloat))},
                {}},
               tokens);
  return units;
}

/// Sides as keys of a table of channels.
std::vector<int64_t> parse_channels(const ConfigReader& json, int64_t size) {
  static const std::map<int64_t, int64_t> released = {{4, 512},   {8, 512},  {16, 512}, {32, 512}, {64, 256},
                                                      {128, 128}, {256, 64}, {512, 32}, {1024, 16}};
  constexpr const char* kKey = "motion_encoder_channel_sizes";
  const bool given = json.has(kKey);
  const ConfigReader table = json.inner(kKey);
  table.without_effect({"4", "8", "16", "32", "64", "128", "256", "512", "1024"});  // sides that its faces do not have
  std::vector<int64_t> channels;
  for (int64_t side = size; side >= kLeastSide; side /= 2) {
    const auto known = released.find(side);
    const std::string key = std::to_string(side);
    if (!given && known == released.end()) json.fail("motion_encoder_size " + std::to_string(size) + " is not known");
    channels.push_back(given ? table.size(key.c_str()) : known->second);
  }
  return channels;
}

AnimateConfig released_animate() {
  return {.base = preset_with("wan2.1-i2v-14b-480p"), .channels = {32, 64, 128, 256, 512, 512, 512, 512}};
}

/// A clip of `wanted` frames; of an autoencoder whose clips are not a frame longer than four for each latent frame, those
/// nearest to the middle of their shares.
Tensor of_length(const Tensor& clip, int64_t wanted) {
  if (clip.size(1) == wanted) return clip;
  std::vector<int64_t> nearest;
  for (int64_t i = 0; i < wanted; ++i) nearest.push_back((2 * i + 1) * clip.size(1) / (2 * wanted));
  return clip.index_select(1, at::tensor(nearest, at::kLong));
}

/// Small enough for a unit test.
AnimateConfig tiny_animate() {
  AnimateConfig c{.base = preset_with("wan-tiny-i2v", 5), .channels = {}};
  c.motion_dim = 10, c.face_size = 8, c.channels = {3, 4}, c.style_dim = 6, c.directions = 4;
  c.face_hidden = 6, c.face_heads = 2;
  return c;
}

}  // namespace

bool is_animate_config(std::string_view text) {
  return says(text, "animate", {"WanAnimateModel", "WanAnimateTransformer3DModel"}, "motion_encoder_dim");
}

AnimateConfig parse_animate_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.expect("use_img_emb", true);
  json.expect("inject_face_latents_blocks", kBlocksAnAdapter);
  AnimateConfig c{.base = parse_base(text, file, "i2v", {{"image_dim", kClipDim}}), .channels = {}};
  json.expect("latent_channels", c.base.out_dim);
  c.motion_dim = json.size("motion_encoder_dim", c.motion_dim);
  c.face_size = json.size("motion_encoder_size", c.face_size);
  if (c.face_size < kLeastSide || (c.face_size & (c.face_size - 1)) != 0)
    json.fail("motion_encoder_size " + std::to_string(c.face_size) + " is no power of two from 4 on");
  c.channels = parse_channels(json, c.face_size);
  c.style_dim = json.size("motion_style_dim", c.style_dim);
  c.directions = json.size("motion_dim", c.directions);
  c.face_hidden = json.size("face_encoder_hidden_dim", c.face_hidden);
  c.face_heads = json.size("face_encoder_num_heads", c.face_heads);
  c.frames_at_once = json.size("motion_encoder_batch_size", c.frames_at_once);
  if (c.base.num_layers % kBlocksAnAdapter != 0)
    json.fail("num_layers " + std::to_string(c.base.num_layers) + " is no multiple of " +
              std::to_string(kBlocksAnAdapter) + ", the blocks of a face adapter");
  if (c.directions > c.motion_dim)
    json.fail("motion_dim " + std::to_string(c.directions) + " is more than motion_encoder_dim " +
              std::to_string(c.motion_dim) + ": so many directions cannot be orthogonal");
  return c;
}

std::string to_json(const AnimateConfig& c) {
  Json json = base_json(c.base, "animate", "WanAnimateModel");
  json["use_img_emb"] = true;
  json["motion_encoder_dim"] = c.motion_dim;
  json["motion_encoder_size"] = c.face_size;
  Json channels = Json::object();
  for (size_t i = c.channels.size(), side = kLeastSide; i-- > 0; side *= 2)
    channels[std::to_string(side)] = c.channels[i];
  json["motion_encoder_channel_sizes"] = channels;
  json["motion_style_dim"] = c.style_dim;
  json["motion_dim"] = c.directions;
  json["face_encoder_hidden_dim"] = c.face_hidden;
  json["face_encoder_num_heads"] = c.face_heads;
  json["motion_encoder_batch_size"] = c.frames_at_once;
  return json.dump(2) + "\n";
}

const std::vector<std::pair<std::string, AnimateConfig>>& animate_presets() {
  static const std::vector<std::pair<std::string, AnimateConfig>> table = {{"wan2.2-animate-14b", released_animate()},
                                                                           {"wan-animate-tiny", tiny_animate()}};
  return table;
}

Animate::Animate(const AnimateConfig& config)
    : FamilyDenoiser(config, denoiser_sizes(config.base), config.base.patch), base_(config.base) {
  units_ = make_animate_units(config);
}

net::Conditions Animate::conditions() const {
  const net::Conditions base = base_.conditions();
  net::Conditions wants;
  wants.guides = {"pose", "face", "guide", "guide_mask"};
  wants.references = 1;
  wants.always_reference = true;
  wants.face_size = config_.face_size;
  wants.goes_on = true;
  wants.image_extra = base.image_extra, wants.clip_dim = base.clip_dim, wants.clip_rows = base.clip_rows;
  return wants;
}

/// With black around it.
Tensor Animate::seen(const net::Guides& guides) const {
  check_input(!guides.references.empty(), "wan.animate", "the sample has no reference picture",
              "name one: column reference_image, or --sample.reference FILE");
  return letterboxed(guides.references.front(), guides.height, guides.width, /*around=*/-1).select(1, 0);
}

std::map<std::string, Tensor> Animate::guide(const net::VideoCodec& codec, const net::Guides& guides) const {
  const auto clip = [&](const char* name) {
    const auto found = guides.clips.find(name);
    return found == guides.clips.end() ? Tensor() : found->second;
  };
  const Tensor pose = clip("pose"), face = clip("face");
  for (const auto& [there, what, column] :
       {std::tuple(pose.defined(), "poses", "animate_pose_video"), {face.defined(), "a face", "animate_face_video"}})
    check_input(there, "wan.animate", std::string("the sample has no video of ") + what + ", which this model follows",
                std::string("add a column ") + column + " to the table, or give --sample." +
                    (what == std::string("poses") ? "pose" : "face") + " FILE");
  AnimateSource source{.reference = seen(guides).unsqueeze(1),
                       .background = clip("guide"),
                       .made = clip("guide_mask"),
                       .before = guides.before,
                       .nearest = guides.sampled};
  if (!source.background.defined()) source.background = at::zeros_like(pose);
  source.made =
      source.made.defined() ? ((source.made.slice(0, 0, 1) + 1) / 2).clamp(0, 1) : at::ones_like(pose.slice(0, 0, 1));
  const Tensor y = animate_y(codec, source);
  return {{"y", y},
          {"pose_latents", codec.encode(pose).contiguous()},
          {"face", of_length(face, face_frames(y.size(1))).contiguous()}};
}

Tensor Animate::with_references(const Tensor& latent, const std::map<std::string, Tensor>& extra) const {
  const auto y = extra.find("y");
  const int64_t before = y == extra.end() ? 0 : y->second.size(1) - latent.size(1);
  if (before <= 0) return latent;
  const int64_t channels = latent.size(0);
  return at::cat({y->second.slice(0, -channels).slice(1, 0, before), latent}, 1);
}

net::Batch Animate::pack(const std::vector<net::Sample>& samples) const {
  net::Batch batch = base_.pack(samples);
  net::Tokens& tokens = batch.tokens;
  const auto options = samples.at(0).x.options().dtype(at::kFloat);
  const int64_t side = config_.face_size, total = tokens.total();
  const Tensor poses = at::empty({total, config_.base.patch_size() * config_.base.out_dim}, options);
  const Tensor follows = at::ones({total, 1}, options);
  tokens.spaces.resize(kFace);
  net::Space& faces_of = tokens.spaces[kFace - 1];
  faces_of.offsets = {0};
  tokens.segments = {{.q = 0, .k = kFace}};
  std::vector<Tensor> faces;
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto x = samples[s].x.sizes();
    const auto given = [&](const char* name, const std::vector<int64_t>& shape) {
      const auto found = samples[s].extra.find(name);
      const bool there = found != samples[s].extra.end();
      check_input(there && found->second.sizes() == shape, "wan.pack",
                  std::string(name) + " " + (there ? c10::str(found->second.sizes()) : "is missing") + ": expected " +
                      c10::str(at::IntArrayRef(shape)),
                  "the data was encoded for another model: run prepare again");
      return found->second;
    };
    check_input(x[1] > 1, "wan.pack", "latent " + c10::str(x) + ": expected a picture and at least one frame",
                "raise data.frames");
    const int64_t begin = tokens.offsets[s], of_frame = (tokens.offsets[s + 1] - begin) / x[1];
    fill_rows(poses.slice(0, begin + of_frame, tokens.offsets[s + 1]),
              given("pose_latents", {x[0], x[1] - 1, x[2], x[3]}), config_.base.patch);
    poses.slice(0, begin, begin + of_frame).zero_();
    follows.slice(0, begin, begin + of_frame).zero_();
    faces.push_back(given("face", {3, face_frames(x[1]), side, side}).transpose(0, 1));
    int64_t face = faces_of.offsets.back();
    for (int64_t f = 0; f < x[1]; ++f, face += config_.face_tokens())
      tokens.segments[0].ranges.push_back(
          {begin + f * of_frame, begin + (f + 1) * of_frame, face, face + config_.face_tokens()});
    faces_of.offsets.push_back(face);
  }
  batch.inputs.insert(batch.inputs.end(), {poses, follows, at::cat(faces).to(at::kFloat).contiguous()});
  batch.token_inputs = {0, kPoseRows, kFollows};
  return batch;
}

net::Sample Animate::blank(const std::array<int64_t, 4>& latent) const {
  net::Sample sample = base_.blank(latent);
  sample.extra["pose_latents"] =
      at::zeros({latent[0], std::max<int64_t>(latent[1] - 1, 0), latent[2], latent[3]}, at::kFloat);
  sample.extra["face"] =
      at::zeros({3, face_frames(std::max<int64_t>(latent[1], 2)), config_.face_size, config_.face_size}, at::kFloat);
  return sample;
}

std::vector<std::map<std::string, Tensor>> Animate::unpack_input_grads(const std::vector<Tensor>& grads,
                                                                       const net::Batch& batch,
                                                                       const std::vector<net::Sample>& samples) const {
  auto result = base_.unpack_input_grads(grads, batch, samples);
  int64_t face = 0;
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto x = samples[s].x.sizes();
    const Tensor rows = grads[kPoseRows].slice(0, batch.tokens.offsets[s], batch.tokens.offsets[s + 1]);
    result[s]["pose_latents"] = from_rows(rows, x, config_.base.patch).slice(1, 1);
    result[s]["face"] = grads[kFacePixels].slice(0, face, face + face_frames(x[1])).transpose(0, 1);
    face += face_frames(x[1]);
  }
  return result;
}

std::string Animate::foreign_name(const std::string& name, const std::string& naming) const {
  if (naming == "diffusers") return rename(animate_diffusers_names(std::ssize(config_.channels) - 1), name);
  return naming == "official" ? rename(official_names(), name) : name;
}

/// As in the official code: the adapters' last linear is zero, so that faces change nothing at first.
Initial Animate::initial(const plan::ParamSpec& param) const {
  const std::string_view name = param.name;
  if (name.ends_with("linear2.weight") || name.ends_with(".padding_tokens")) return Initial::constant(0);
  if (name.starts_with("motion_encoder.") && !name.ends_with(".bias")) return Initial::normal(1);
  return initial_values(param, is_released(animate_presets(), config_));
}

}  // namespace tessera::models::wan
