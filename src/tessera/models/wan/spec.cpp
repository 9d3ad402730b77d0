#include "tessera/models/wan/spec.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/models/common/camera_rays.h"
#include "tessera/models/common/patches.h"
#include "tessera/models/common/rotary.h"
#include "tessera/models/wan/network.h"
#include "tessera/models/wan/weight_form.h"
#include "tessera/net/passes.h"

namespace tessera::models::wan {

static_assert(kCameraChannels == kRayChannels);

using at::Tensor;

namespace {

/// [Note: references come last] The published models put a reference's tokens before the clip's, at time 0, and the clip
/// begins at time 1. Here they follow the clip, with the same times: nothing else tells the order of tokens, and targets and
/// predictions then begin with the sample.
///
/// Tokens of a reference picture: one frame of the sample's.
int64_t reference_tokens(const net::Sample& sample, const Config& c) {
  if (c.ref_dim == 0 || !sample.extra.count("reference")) return 0;
  return sample.x.size(2) * sample.x.size(3) / (c.patch[1] * c.patch[2]);
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

constexpr const char* kEncodedForAnother = "the data was encoded for another model: run prepare again";

/// An extra that the model requires.
const Tensor& extra(const net::Sample& sample, const std::string& name, at::IntArrayRef shape) {
  const auto found = sample.extra.find(name);
  check_input(found != sample.extra.end() && found->second.defined(), "wan.pack",
              "the sample has no " + name + ", which this model takes: expected " + shape_text(shape),
              kEncodedForAnother);
  check_input(found->second.sizes() == shape, "wan.pack",
              name + " " + shape_text(found->second.sizes()) + ": expected " + shape_text(shape), kEncodedForAnother);
  return found->second;
}

void check_sample(const net::Sample& sample, const Config& c) {
  const auto& x = sample.x;
  check_input(
      x.dim() == 4 && x.size(0) == c.out_dim, "wan.pack",
      "latent " + shape_text(x.sizes()) + ": expected [" + std::to_string(c.out_dim) + ", frames, height, width]",
      kEncodedForAnother);
  for (int axis = 0; axis < 3; ++axis)
    check_input(
        x.size(axis + 1) > 0 && x.size(axis + 1) % c.patch[axis] == 0, "wan.pack",
        "latent " + shape_text(x.sizes()) + ": frames, height and width must be multiples of " + shape_text(c.patch),
        "choose data.size so that height and width of the latent are even");
  const auto& context = sample.context;
  check_input(context.dim() == 2 && context.size(1) == c.text_dim && context.size(0) <= c.text_len, "wan.pack",
              "context " + shape_text(context.sizes()) + ": expected at most " + std::to_string(c.text_len) +
                  " rows of " + std::to_string(c.text_dim),
              "the text was encoded for another model: run prepare again");
}

/// The input of the patches: the noisy latent, with a clean first frame if there is one, then y.
Tensor whole_input(const net::Sample& sample, const Config& c) {
  Tensor x = sample.x;
  if (sample.extra.count("image_latent")) {
    check_input(c.type == Type::ti2v, "wan.pack", "a clean first frame for a model that is not ti2v",
                "leave sample.image and diffusion.image_share out");
    const Tensor& first = extra(sample, "image_latent", {x.size(0), 1, x.size(2), x.size(3)});
    x = at::cat({first, x.slice(1, 1)}, 1);
  }
  if (!c.takes_images()) return x;
  if (c.control_channels() == 0) return at::cat({x, extra(sample, "y", {c.y_dim(), x.size(1), x.size(2), x.size(3)})});
  // y as a whole, or its two parts by themselves, of which each may be absent: zeros
  const auto found = sample.extra.find("y");
  const bool whole = found != sample.extra.end() && found->second.dim() == 4 && found->second.size(0) == c.y_dim();
  std::vector<Tensor> parts = {x};
  const auto part = [&](const char* name, int64_t channels) {
    const std::array<int64_t, 4> shape = {channels, x.size(1), x.size(2), x.size(3)};
    parts.push_back(sample.extra.count(name) ? extra(sample, name, shape) : at::zeros(shape, x.options()));
  };
  if (!whole) part("control", c.control_channels());
  part("y", whole ? c.y_dim() : c.y_dim() - c.control_channels());
  return at::cat(parts);
}

/// The distinct timesteps of one sample's tokens, and the row of each token's.
struct Times {
  std::vector<double> t;
  Tensor rows;  // [L] int32
};

Times times_of(const net::Sample& sample, int64_t tokens, const Config& c) {
  Times times{{sample.t}, at::zeros({tokens}, at::kInt)};
  int32_t* rows = times.rows.mutable_data_ptr<int32_t>();
  if (sample.extra.count("t")) {  // one a token
    const Tensor all = extra(sample, "t", {tokens}).to(at::kDouble).contiguous();
    times.t.clear();
    for (int64_t i = 0; i < tokens; ++i) {
      const double t = all.const_data_ptr<double>()[i];
      const auto known = std::find(times.t.begin(), times.t.end(), t);
      rows[i] = static_cast<int32_t>(known - times.t.begin());
      if (known == times.t.end()) times.t.push_back(t);
    }
    return times;
  }
  if (c.type != Type::ti2v) return times;
  times.t.push_back(0);  // for the clean first frame; always there, so that samples need equal memory
  const int64_t frames = sample.x.size(1) / c.patch[0];
  if (sample.extra.count("image_latent")) std::fill(rows, rows + tokens / frames, 1);
  return times;
}

/// The rows of a clip's tokens and of a reference's, which have the timestep of the clip's last token.
Tensor with_reference(const Tensor& rows, int64_t more) {
  return more > 0 ? at::cat({rows, rows.slice(0, -1).expand({more})}) : rows;
}

/// Times are counted from the reference on, if there is one.
Grid grid_of(int64_t frames, int64_t h, int64_t w, bool reference) {
  Grid grid = clip_grid(frames, h, w);
  if (!reference) return grid;
  for (int64_t& time : grid.times) ++time;
  grid.times.push_back(0);
  return grid;
}

/// The inputs of VideoX-Fun's models, a row for each token of the batch.
class FunRows {
 public:
  FunRows(const Config& config, int64_t tokens)
      : c_(config),
        references_(rows(tokens, config.ref_dim)),
        is_reference_(rows(tokens, config.ref_dim > 0, 1)),
        rays_(rows(tokens, config.camera_dim * config.camera_scale * config.camera_scale)) {}

  /// The sample's tokens begin at `begin` and end with those of its reference, if it has one.
  void put(const net::Sample& sample, int64_t begin) {
    const auto s = sample.x.sizes();
    const int64_t end = begin + s[1] * s[2] * s[3] / c_.patch_size(), more = reference_tokens(sample, c_);
    if (more > 0) {
      const Tensor& picture = extra(sample, "reference", {c_.ref_dim, 1, s[2], s[3]});
      fill_rows(references_.slice(0, end, end + more), picture.to(at::kCPU), {1, c_.patch[1], c_.patch[2]});
      is_reference_.slice(0, end, end + more).fill_(1);
    }
    if (c_.camera_dim == 0) return;
    const Tensor own = rays_.slice(0, begin, end);
    const int64_t scale = c_.camera_scale;
    if (sample.extra.count("y_camera"))
      own.copy_(
          fold_rays(extra(sample, "y_camera", {c_.camera_dim, s[1], scale * s[2], scale * s[3]}), c_.patch, scale));
    else if (sample.extra.count("camera"))
      fill_rays(own, sample.extra.at("camera"), c_.patch, {s[1], s[2], s[3]}, scale);
  }

  void append_to(net::Batch& batch, at::Device device) {
    for (const Tensor& rows : {references_, is_reference_, rays_}) {
      if (!rows.defined()) continue;
      batch.token_inputs.push_back(static_cast<int>(batch.inputs.size()));
      batch.inputs.push_back(rows.to(device));
    }
  }

 private:
  /// Zeros; undefined where the model has no such input.
  Tensor rows(int64_t tokens, int64_t channels, int64_t cells) const {
    return channels > 0 ? at::zeros({tokens, channels * cells}, at::kFloat) : Tensor();
  }
  Tensor rows(int64_t tokens, int64_t channels) const { return rows(tokens, channels, c_.patch[1] * c_.patch[2]); }

  const Config& c_;
  Tensor references_, is_reference_, rays_;
};

}  // namespace

Wan::Wan(const Config& config) : FamilyDenoiser(config, denoiser_sizes(config), config.patch) {
  units_ = make_units(config);
}

net::Conditions Wan::conditions() const {
  net::Conditions wants;
  wants.first_image = config_.takes_images();
  wants.last_image = config_.type == Type::flf2v;
  wants.mask_channels = config_.mask_channels();
  if (config_.has_image_branch()) wants.image_extra = "clip_fea";
  wants.clip_dim = config_.image_dim;
  wants.clip_rows = config_.has_image_branch() ? config_.image_len : 0;
  wants.clean_first = config_.type == Type::ti2v;
  wants.control_dim = config_.control_channels();
  wants.reference_dim = config_.ref_dim;
  wants.camera_scale = config_.camera_dim > 0 ? config_.camera_scale : 0;
  return wants;
}

net::Sample Wan::blank(const std::array<int64_t, 4>& latent) const {
  net::Sample sample = FamilyDenoiser::blank(latent);
  if (config_.takes_images())
    sample.extra["y"] = at::zeros({config_.y_dim(), latent[1], latent[2], latent[3]}, at::kFloat);
  if (config_.has_image_branch())
    sample.extra["clip_fea"] = at::zeros({config_.image_rows(), config_.image_dim}, at::kFloat);
  if (config_.ref_dim > 0)
    sample.extra["reference"] = at::zeros({config_.ref_dim, 1, latent[2], latent[3]}, at::kFloat);
  if (config_.camera_dim == kCameraChannels)
    sample.extra["camera"] = at::ones({camera_frames(latent[1]), kCameraNumbers}, at::kFloat);
  return sample;
}

net::Batch Wan::pack(const std::vector<net::Sample>& samples) const {
  net::Batch batch;
  net::Tokens& tokens = batch.tokens;
  std::vector<Tensor> inputs, texts, images, rows, cos, sin;
  std::vector<double> t;
  bool any_given = false;
  tokens.spaces.resize(config_.has_image_branch() ? 2 : 1);
  tokens.offsets = {0};
  for (net::Space& space : tokens.spaces) space.offsets = {0};
  const auto add_rows = [](net::Space& space, int64_t rows) { space.offsets.push_back(space.offsets.back() + rows); };
  for (const net::Sample& sample : samples) {
    check_sample(sample, config_);
    const Tensor& x = sample.x;
    const auto& p = config_.patch;
    const int64_t more = reference_tokens(sample, config_);
    const Grid grid = grid_of(x.size(1) / p[0], x.size(2) / p[1], x.size(3) / p[2], more > 0);
    const Tensor clip = to_rows(whole_input(sample, config_), p);
    inputs.push_back(more > 0 ? at::constant_pad_nd(clip, {0, 0, 0, more}) : clip);
    const auto table = grid_rotary(grid, config_.head_dim());
    cos.push_back(table.first), sin.push_back(table.second);
    if (config_.camera_dim > 0)
      tokens.shapes.push_back({static_cast<int64_t>(grid.times.size()), x.size(2) / p[1], x.size(3) / p[2]});
    const Times times = times_of(sample, clip.size(0), config_);
    rows.push_back(with_reference(times.rows, more) + static_cast<int64_t>(t.size()));
    t.insert(t.end(), times.t.begin(), times.t.end());
    // Text is padded with zero rows, which are attended like any other: the released models were trained so.
    texts.push_back(at::constant_pad_nd(sample.context, {0, 0, 0, config_.text_len - sample.context.size(0)}));
    add_rows(tokens, inputs.back().size(0));
    add_rows(tokens.spaces[kText - 1], config_.text_len);
    if (config_.has_image_branch()) {
      images.push_back(extra(sample, "clip_fea", {config_.image_rows(), config_.image_dim}));
      add_rows(tokens.spaces[kImage - 1], config_.image_rows());
    }
    const int64_t end = tokens.offsets.back() - more, length = clip.size(0);
    const int64_t clean = sample.extra.count("image_latent") ? length / (x.size(1) / p[0]) : 0;
    any_given = any_given || clean + more > 0;
    batch.predicted.push_back({end - length + clean, end});
    batch.shapes.push_back({config_.out_dim, x.size(1), x.size(2), x.size(3)});
  }
  if (!any_given) batch.predicted.clear();  // all tokens are predictions
  const auto device = samples.at(0).x.device();
  tokens.rows = row_index(at::cat(rows), device);
  tokens.cos = at::cat(cos).to(device);
  tokens.sin = at::cat(sin).to(device);
  batch.inputs = {at::cat(inputs).to(at::kFloat), at::cat(texts).to(at::kFloat),
                  timestep_sinusoid(t, config_.freq_dim).to(device)};
  if (!images.empty()) batch.inputs.push_back(at::cat(images).to(at::kFloat));
  if (config_.has_extras()) {
    FunRows more(config_, tokens.offsets.back());
    for (size_t s = 0; s < samples.size(); ++s) more.put(samples[s], tokens.offsets[s]);
    more.append_to(batch, device);
  }
  return batch;
}

std::vector<Tensor> Wan::unpack(const Tensor& out, const net::Batch& batch) const {
  std::vector<Tensor> latents;
  for (size_t s = 0; s < batch.shapes.size(); ++s) {
    const int64_t begin = batch.tokens.offsets[s], end = begin + count_patches(batch.shapes[s], config_.patch);
    latents.push_back(from_output_rows(out.slice(0, begin, end), batch.shapes[s], config_.patch).to(at::kFloat));
  }
  return latents;
}

/// Time and its modulation do; captions and pictures do not. Not of models that follow other inputs beside.
std::vector<bool> Wan::moving_conditioning() const {
  if (config_.has_extras()) return {};
  std::vector<bool> moving = {true, true, false};
  if (config_.has_image_branch()) moving.push_back(false);
  return moving;
}

/// What is given stands still: channels behind the latent's, and a clean first frame with the time of its tokens.
std::vector<Tensor> Wan::pack_directions(const net::Batch& batch, const std::vector<net::Direction>& directions) const {
  const Tensor rows = at::zeros_like(batch.inputs[kLatentRows]);
  const int64_t times = config_.type == Type::ti2v ? 2 : 1;  // of a sample
  check_internal(batch.inputs[kTimeRows].size(0) == times * std::ssize(directions), "wan.pack_directions",
                 "timesteps of single tokens have no direction");
  std::vector<double> dt;
  for (size_t s = 0; s < directions.size(); ++s) {
    const auto [begin, end] = batch.predictions_of(s);
    const Tensor moved = to_rows(directions[s].x, config_.patch);
    rows.slice(0, begin, end).narrow(1, 0, moved.size(1)).copy_(moved.slice(0, moved.size(0) - (end - begin)));
    dt.push_back(directions[s].t);
    if (times > 1) dt.push_back(0);
  }
  std::vector<Tensor> tangents(batch.inputs.size());
  tangents[kLatentRows] = rows;
  tangents[kTimeRows] = sinusoid_tangent(batch.inputs[kTimeRows], dt);
  return tangents;
}

/// A student has nothing beside its teacher. It is one of text: pictures that are given have no place in its angles.
std::unique_ptr<net::Denoiser> Wan::teacher_form() const {
  return config_.type == Type::t2v && !config_.has_extras() ? std::make_unique<Wan>(config_) : nullptr;
}

int64_t Wan::token_count(const std::array<int64_t, 4>& latent) const {
  const int64_t reference =
      config_.ref_dim > 0 ? count_patches({latent[0], 1, latent[2], latent[3]}, {1, config_.patch[1], config_.patch[2]})
                          : 0;
  return reference + FamilyDenoiser::token_count(latent);
}

std::vector<std::map<std::string, Tensor>> Wan::unpack_input_grads(const std::vector<Tensor>& grads,
                                                                   const net::Batch& batch,
                                                                   const std::vector<net::Sample>& samples) const {
  std::vector<std::map<std::string, Tensor>> result;
  const net::Tokens& tokens = batch.tokens;
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto [channels, f, h, w] = batch.shapes[s];
    const int64_t begin = tokens.offsets[s], end = begin + count_patches(batch.shapes[s], config_.patch);
    const Tensor patch_grad = grads[kLatentRows].slice(0, begin, end);
    const Tensor whole = from_rows(patch_grad, {config_.in_dim, f, h, w}, config_.patch);
    const int64_t text = tokens.space(kText).offsets[s];
    auto& named = result.emplace_back();
    named["x"] = whole.slice(0, 0, channels);
    named["context"] = grads[1].slice(0, text, text + samples[s].context.size(0));
    if (config_.takes_images()) named["y"] = whole.slice(0, channels);
    if (config_.has_image_branch())
      named["clip_fea"] =
          grads[kMoreRows].slice(0, tokens.space(kImage).offsets[s], tokens.space(kImage).offsets[s + 1]);
    const size_t references = kMoreRows + (config_.has_image_branch() ? 1 : 0);
    if (end < tokens.offsets[s + 1])
      named["reference"] = from_rows(grads[references].slice(0, end, tokens.offsets[s + 1]), {config_.ref_dim, 1, h, w},
                                     {1, config_.patch[1], config_.patch[2]});
    if (config_.camera_dim > 0 && samples[s].extra.count("y_camera"))
      named["y_camera"] = unfold_rays(grads[references + (config_.ref_dim > 0 ? 2 : 0)].slice(0, begin, end),
                                      config_.patch, {f, h, w}, config_.camera_scale);
  }
  return result;
}

std::string Wan::foreign_name(const std::string& name, const std::string& naming) const {
  return naming == "diffusers" ? rename(diffusers_names(), name) : name;
}

Initial Wan::initial(const plan::ParamSpec& param) const {
  return initial_values(param, is_released(presets(), config_));
}

}  // namespace tessera::models::wan
