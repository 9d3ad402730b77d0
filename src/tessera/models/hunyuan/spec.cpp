#include "tessera/models/hunyuan/spec.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/models/common/patches.h"
#include "tessera/models/common/rotary.h"
#include "tessera/models/hunyuan/files.h"
#include "tessera/net/passes.h"

namespace tessera::models::hunyuan {

using at::Tensor;

namespace {

constexpr Patch kPatch = {1, 1, 1};

/// Whether frames are given: a picture is looked at beside these alone.
bool is_given(const net::Sample& sample) { return extra_of(sample, "image_latent") || extra_of(sample, "cond"); }

const Tensor* picture_of(const net::Sample& sample) { return is_given(sample) ? extra_of(sample, "image") : nullptr; }

int64_t rows_of(const Tensor* rows) { return rows ? rows->size(0) : 0; }

void check_rows(const Tensor* rows, const char* what, int64_t least, int64_t most, int64_t width) {
  if (!rows) return;
  const bool fits = rows->dim() == 2 && rows->size(0) >= least && rows->size(0) <= most && rows->size(1) == width;
  check_input(fits, "hunyuan.pack",
              std::string(what) + " " + c10::str(rows->sizes()) + ": expected " + std::to_string(least) + " to " +
                  std::to_string(most) + " rows of " + std::to_string(width),
              "it was encoded for another model: run prepare again");
}

void check_sample(const net::Sample& sample, const Config& c) {
  const Tensor& x = sample.x;
  check_input(
      x.dim() == 4 && x.size(0) == c.channels && x.numel() > 0, "hunyuan.pack",
      "latent " + c10::str(x.sizes()) + ": expected [" + std::to_string(c.channels) + ", frames, height, width]",
      "the data was encoded for another model: run prepare again");
  check_rows(&sample.context, "context", 1, c.text_len, c.text_dim);
  check_rows(extra_of(sample, "glyphs"), "glyphs", 0, c.glyph_len, c.glyph_dim);
  check_rows(extra_of(sample, "image"), "image", 0, c.image_len, c.image_dim);
  const Tensor *image = extra_of(sample, "image_latent"), *cond = extra_of(sample, "cond");
  check_input(!image || image->sizes() == at::IntArrayRef{c.channels, 1, x.size(2), x.size(3)}, "hunyuan.pack",
              "a first latent frame of another size than the clip's");
  check_input(!cond || cond->sizes() == at::IntArrayRef{c.channels + 1, x.size(1), x.size(2), x.size(3)},
              "hunyuan.pack", "cond of another size than the latent: expected its mask and its channels");
  check_input(!c.meanflow || extra_of(sample, "t_r"), "hunyuan.pack",
              "a step-distilled model is told the next timestep, and the sample has none");
}

/// What packed() asks for.
struct Packing {
  explicit Packing(const Config& config) : c_(config) {}

  void add(const net::Sample& sample) {
    check_sample(sample, c_);
    net::Tokens& tokens = batch_.tokens;
    const auto add_rows = [&](int space, int64_t rows) {
      tokens.spaces[static_cast<size_t>(space) - 1].offsets.push_back(tokens.space(space).total() + rows);
    };
    const int64_t picture = rows_of(picture_of(sample)), glyphs = rows_of(extra_of(sample, "glyphs")),
                  caption = sample.context.size(0);
    add_rows(kPicture, picture), add_rows(kGlyphs, glyphs), add_rows(kCaption, caption);
    const int64_t begin = tokens.total(), video = begin + sample.x.numel() / c_.channels,
                  end = video + picture + glyphs + caption;
    add_rows(kVideo, video - begin), add_rows(kWords, end - video);
    tokens.spaces[kVideo - 1].shapes.push_back({sample.x.size(1), sample.x.size(2), sample.x.size(3)});
    tokens.spaces[kVideo - 1].ranges.push_back({begin, video});
    tokens.spaces[kWords - 1].ranges.push_back({video, end});
    tokens.offsets.push_back(end);
    batch_.shapes.push_back({sample.x.size(0), sample.x.size(1), sample.x.size(2), sample.x.size(3)});
    batch_.predicted.push_back({begin, video});
  }

  void allocate(at::Device device) {
    const auto fp32 = at::TensorOptions(at::kFloat).device(device);
    const net::Tokens& tokens = batch_.tokens;
    const int64_t total = tokens.total(), samples = static_cast<int64_t>(batch_.shapes.size());
    batch_.inputs.resize(c_.meanflow ? kNextTime + 1 : kTime + 1);
    batch_.inputs[kLatents] = at::zeros({total, c_.in_channels()}, fp32);
    batch_.inputs[kCaptionRows] = at::zeros({tokens.space(kCaption).total(), c_.text_dim}, fp32);
    batch_.inputs[kGlyphRows] = at::zeros({tokens.space(kGlyphs).total(), c_.glyph_dim}, fp32);
    batch_.inputs[kPictureRows] = at::zeros({tokens.space(kPicture).total(), c_.image_dim}, fp32);
    batch_.inputs[kCaptionMean] = at::zeros({samples, c_.text_dim}, fp32);
    // words have no position: they are not turned
    batch_.tokens.cos = at::ones({total, c_.head_dim() / 2}, fp32);
    batch_.tokens.sin = at::zeros({total, c_.head_dim() / 2}, fp32);
    modulation_rows_ = at::empty({total}, at::kInt);
    caption_rows_ = at::empty({tokens.space(kCaption).total()}, at::kInt);
  }

  void fill(const net::Sample& sample, size_t s) {
    net::Tokens& tokens = batch_.tokens;
    const auto [begin, end] = batch_.predicted[s];
    const Tensor rows = batch_.inputs[kLatents].slice(0, begin, end);
    fill_rows(rows.narrow(1, 0, c_.channels), sample.x, kPatch);
    fill_given(rows, sample);
    const auto copy = [&](StemInput input, int space, const Tensor* from) {
      const std::vector<int64_t>& at = tokens.space(space).offsets;
      if (from) copy_caption(batch_.inputs[input].slice(0, at[s], at[s + 1]), *from);
    };
    copy(kCaptionRows, kCaption, &sample.context);
    copy(kGlyphRows, kGlyphs, extra_of(sample, "glyphs"));
    copy(kPictureRows, kPicture, picture_of(sample));
    Tensor mean = batch_.inputs[kCaptionMean][static_cast<int64_t>(s)];
    if (!sample.context.is_meta()) at::mean_out(mean, sample.context.to(at::kFloat), {0});
    const std::array<int64_t, 4>& shape = batch_.shapes[s];
    fill_rotary(tokens.cos.slice(0, begin, end), tokens.sin.slice(0, begin, end),
                clip_grid(shape[1], shape[2], shape[3]), {c_.axes[0] / 2, c_.axes[1] / 2, c_.axes[2] / 2},
                static_cast<double>(c_.theta));
    const auto row = static_cast<int64_t>(s);
    modulation_rows_.slice(0, begin, end).fill_(2 * row);
    modulation_rows_.slice(0, end, tokens.offsets[s + 1]).fill_(2 * row + 1);
    const std::vector<int64_t>& caption = tokens.space(kCaption).offsets;
    caption_rows_.slice(0, caption[s], caption[s + 1]).fill_(row);
    t_.push_back(sample.t);
    if (c_.meanflow) next_t_.push_back(extra_of(sample, "t_r")->item<double>());
  }

  /// rows [tokens, 2 C + 1] of zeros: the given latent and the mask.
  void fill_given(const Tensor& rows, const net::Sample& sample) {
    const Tensor *cond = extra_of(sample, "cond"), *image = extra_of(sample, "image_latent");
    const int64_t channels = c_.channels;
    if (cond) {
      fill_rows(rows.narrow(1, channels, channels), cond->slice(0, 1), kPatch);
      fill_rows(rows.narrow(1, 2 * channels, 1), cond->slice(0, 0, 1), kPatch);
    } else if (image) {
      const Tensor first = rows.slice(0, 0, image->size(2) * image->size(3));
      fill_rows(first.narrow(1, channels, channels), *image, kPatch);
      first.narrow(1, 2 * channels, 1).fill_(1);
    }
  }

  void finish() {
    const at::Device device = batch_.inputs[kLatents].device();
    batch_.inputs[kTime] = program_sinusoid(t_, kFrequencies).to(device);
    if (c_.meanflow) batch_.inputs[kNextTime] = program_sinusoid(next_t_, kFrequencies).to(device);
    batch_.tokens.rows = row_index(modulation_rows_, device);
    batch_.tokens.spaces[kCaption - 1].rows = row_index(caption_rows_, device);
  }

  const Config& c_;
  net::Batch batch_;
  Tensor modulation_rows_, caption_rows_;
  std::vector<double> t_, next_t_;
};

}  // namespace

Hunyuan::Hunyuan(const Config& config)
    : FamilyDenoiser(config,
                     {.channels = config.channels,
                      .context_dim = config.text_dim,
                      .context_length = config.text_len,
                      .heads = config.num_heads},
                     kPatch) {
  units_ = make_units(config);
}

/// What is made of time. The rows of captions, which the time modulates, are among the tokens.
std::vector<bool> Hunyuan::moving_conditioning() const {
  if (config_.meanflow) return {};
  return {true};
}

std::vector<Tensor> Hunyuan::pack_directions(const net::Batch& batch,
                                             const std::vector<net::Direction>& directions) const {
  std::vector<Tensor> tangents(batch.inputs.size());
  tangents[kLatents] = at::zeros_like(batch.inputs[kLatents]);
  std::vector<double> dt;
  for (size_t s = 0; s < directions.size(); ++s) {
    const auto [begin, end] = batch.predicted[s];
    fill_rows(tangents[kLatents].slice(0, begin, end).narrow(1, 0, config_.channels), directions[s].x, kPatch);
    dt.push_back(directions[s].t);
  }
  tangents[kTime] = sinusoid_tangent(batch.inputs[kTime], dt);
  return tangents;
}

net::Conditions Hunyuan::conditions() const {
  net::Conditions wants;
  wants.clean_first = wants.clean_beside = wants.given_frames = true;
  if (config_.image_len > 0) {
    wants.image_extra = "image", wants.image_with_first = true;
    wants.clip_dim = config_.image_dim, wants.clip_rows = config_.image_len;
  }
  if (config_.glyph_len > 0) wants.glyph_dim = config_.glyph_dim, wants.glyph_rows = config_.glyph_len;
  return wants;
}

/// With the rows of a picture only where the first frame is given: plans of clips have both.
net::Sample Hunyuan::blank(const std::array<int64_t, 4>& latent) const {
  net::Sample sample = FamilyDenoiser::blank(latent);
  if (config_.glyph_len > 0) sample.extra["glyphs"] = at::zeros({config_.glyph_len, config_.glyph_dim}, at::kFloat);
  if (config_.image_len > 0 && latent[1] > 1) {
    sample.extra["image"] = at::zeros({config_.image_len, config_.image_dim}, at::kFloat);
    sample.extra["image_latent"] = at::zeros({latent[0], 1, latent[2], latent[3]}, at::kFloat);
  }
  if (config_.meanflow) sample.extra["t_r"] = at::zeros({1}, at::kFloat);
  return sample;
}

net::Batch Hunyuan::pack(const std::vector<net::Sample>& samples) const {
  return packed<Packing>(samples, config_, kPicture);
}

std::vector<std::map<std::string, Tensor>> Hunyuan::unpack_input_grads(const std::vector<Tensor>& grads,
                                                                       const net::Batch& batch,
                                                                       const std::vector<net::Sample>& samples) const {
  std::vector<std::map<std::string, Tensor>> result;
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto [begin, end] = batch.predicted[s];
    const auto row = static_cast<int64_t>(s);
    std::array<int64_t, 4> shape = batch.shapes[s];
    const Tensor rows = grads[kLatents].slice(0, begin, end);
    const auto columns = [&](int64_t first, int64_t count) {
      shape[0] = count;
      return from_rows(rows.narrow(1, first, count).contiguous(), shape, kPatch);
    };
    const auto of_space = [&](StemInput input, int space) {
      const std::vector<int64_t>& at = batch.tokens.space(space).offsets;
      return grads[input].slice(0, at[s], at[s + 1]);
    };
    const Tensor caption = of_space(kCaptionRows, kCaption);
    result.push_back(
        {{"x", columns(0, config_.channels)},
         {"cond", at::cat({columns(2 * config_.channels, 1), columns(config_.channels, config_.channels)})},
         {"context", caption + grads[kCaptionMean][row] / static_cast<double>(caption.size(0))},
         {"glyphs", of_space(kGlyphRows, kGlyphs)},
         {"image", of_space(kPictureRows, kPicture)}});
  }
  return result;
}

std::vector<Tensor> Hunyuan::unpack(const Tensor& out, const net::Batch& batch) const {
  std::vector<Tensor> latents;
  for (size_t s = 0; s < batch.shapes.size(); ++s)
    latents.push_back(
        from_rows(out.slice(0, batch.predicted[s][0], batch.predicted[s][1]), batch.shapes[s], kPatch).to(at::kFloat));
  return latents;
}

int64_t Hunyuan::token_count(const std::array<int64_t, 4>& latent) const {
  return count_patches(latent, kPatch) + config_.text_rows();
}

std::string Hunyuan::foreign_name(const std::string& name, const std::string& naming) const {
  return foreign_tensor(name, naming);
}

std::string Hunyuan::why_not_trained() const {
  return config_.meanflow
             ? "a step-distilled model jumps from one timestep to the next, which flow matching does not teach"
             : "";
}

/// PyTorch's of linears, of which biases are zero here; the table of kinds begins as zero.
Initial Hunyuan::initial(const plan::ParamSpec& param) const {
  const auto one_of = [&](std::initializer_list<const char*> ends) {
    return std::ranges::any_of(ends, [&](const char* end) { return param.name.ends_with(end); });
  };
  if (one_of({"_norm.weight", "norm1.weight", "norm2.weight", "layernorm.weight", "vision_in.proj.0.weight",
              "vision_in.proj.4.weight"}))
    return Initial::constant(1);
  if (one_of({".bias", "cond_type_embedding.weight"})) return Initial::constant(0);
  const auto out = static_cast<double>(param.shape[0]), in = static_cast<double>(param.numel()) / out;
  const bool embeds = std::ranges::any_of(std::array{"txt_in.", "time_in.", "time_r_in.", "byt5_in.", "vision_in."},
                                          [&](const char* site) { return param.name.starts_with(site); });
  if (embeds && !is_released(presets(), config_)) return Initial::embedding(in, out);
  return {Initial::Kind::uniform, 1 / std::sqrt(in)};
}

}  // namespace tessera::models::hunyuan
