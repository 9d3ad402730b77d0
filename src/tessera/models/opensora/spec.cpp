#include "tessera/models/opensora/spec.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/models/common/patches.h"
#include "tessera/models/common/rotary.h"
#include "tessera/models/opensora/files.h"
#include "tessera/net/passes.h"

namespace tessera::models::opensora {

using at::Tensor;

namespace {

constexpr double kUsualGuidance = 4;  // what its trainer gives a model with the embedding

/// Frames, rows and columns of a latent's tokens.
std::array<int64_t, 3> grid_of(at::IntArrayRef latent, const Config& c) {
  return {latent[1], latent[2] / c.patch, latent[3] / c.patch};
}

void check_text(const net::Sample& sample, const Config& c) {
  const Tensor& text = sample.context;
  check_input(text.dim() == 2 && text.size(1) == c.context_dim && text.size(0) >= 1 && text.size(0) <= c.context_len,
              "opensora.pack",
              "context " + c10::str(text.sizes()) + ": expected 1 to " + std::to_string(c.context_len) + " rows of " +
                  std::to_string(c.context_dim),
              "the text was encoded for another model: run prepare again");
  if (const Tensor* pooled = extra_of(sample, "pooled"))
    check_input(pooled->numel() == c.pooled_dim, "opensora.pack",
                "pooled text " + c10::str(pooled->sizes()) + ": expected " + std::to_string(c.pooled_dim) + " numbers",
                "the text was encoded for another model: run prepare again");
}

void check_sample(const net::Sample& sample, const Config& c) {
  const Tensor& x = sample.x;
  const int64_t channels = c.latent_channels();
  check_input(x.dim() == 4 && x.size(0) == channels, "opensora.pack",
              "latent " + c10::str(x.sizes()) + ": expected [" + std::to_string(channels) + ", frames, height, width]",
              "the data was encoded for another model: run prepare again");
  check_input(x.size(1) > 0 && x.size(2) > 0 && x.size(3) > 0 && x.size(2) % c.patch == 0 && x.size(3) % c.patch == 0,
              "opensora.pack",
              "latent " + c10::str(x.sizes()) + ": height and width must be multiples of " + std::to_string(c.patch),
              "choose data.size accordingly");
  check_text(sample, c);
  const Tensor *image = extra_of(sample, "image_latent"), *cond = extra_of(sample, "cond");
  check_input(c.cond || (!image && !cond), "opensora.pack", "given frames for a model without cond_in",
              "leave sample.image and diffusion.image_share out, or set model.config.cond_embed");
  check_input(!image || image->sizes() == at::IntArrayRef{channels, 1, x.size(2), x.size(3)}, "opensora.pack",
              "a first latent frame of another size than the clip's");
  check_input(!cond || cond->sizes() == at::IntArrayRef{channels + 1, x.size(1), x.size(2), x.size(3)}, "opensora.pack",
              "cond of another size than the latent: expected its mask and its channels");
}

/// What packed() asks for.
struct Packing {
  explicit Packing(const Config& config) : c_(config) {}

  void add(const net::Sample& sample) {
    check_sample(sample, c_);
    net::Tokens& tokens = batch_.tokens;
    const auto [frames, h, w] = grid_of(sample.x.sizes(), c_);
    const int64_t begin = tokens.total(), video = begin + c_.context_len, end = video + frames * h * w;
    add_space(tokens.spaces[kVideo - 1], video, end);
    add_space(tokens.spaces[kText - 1], begin, video);
    tokens.offsets.push_back(end);
    batch_.shapes.push_back({sample.x.size(0), sample.x.size(1), sample.x.size(2), sample.x.size(3)});
    batch_.predicted.push_back({video, end});
  }
  static void add_space(net::Space& space, int64_t begin, int64_t end) {
    space.ranges.push_back({begin, end});
    space.offsets.push_back(space.total() + end - begin);
  }

  void allocate(at::Device device) {
    const auto fp32 = at::TensorOptions(at::kFloat).device(device);
    const int64_t total = batch_.tokens.total(), samples = static_cast<int64_t>(batch_.shapes.size());
    std::vector<Tensor>& inputs = batch_.inputs;
    inputs = {at::zeros({total, c_.in_channels}, fp32)};
    if (c_.cond) {
      batch_.token_inputs.push_back(static_cast<int>(inputs.size()));
      inputs.push_back(at::zeros({total, c_.cond_channels()}, fp32));
    }
    inputs.push_back(at::zeros({batch_.tokens.space(kText).total(), c_.context_dim}, fp32));
    inputs.emplace_back();  // sinusoids: finish()
    if (c_.guidance) inputs.emplace_back();
    inputs.push_back(at::zeros({samples, c_.pooled_dim}, fp32));
    // text has no position: it is not turned
    batch_.tokens.cos = at::ones({total, c_.head_dim() / 2}, fp32);
    batch_.tokens.sin = at::zeros({total, c_.head_dim() / 2}, fp32);
    modulation_rows_ = at::empty({total}, at::kInt);
  }

  void fill(const net::Sample& sample, size_t s) {
    net::Tokens& tokens = batch_.tokens;
    const net::Space& text = tokens.space(kText);
    const auto [begin, end] = batch_.predicted[s];
    const auto [frames, h, w] = grid_of(sample.x.sizes(), c_);
    fill_rows(batch_.inputs[0].slice(0, begin, end), sample.x, c_.patches());
    if (c_.cond) fill_cond(batch_.inputs[1].slice(0, begin, end), sample, h * w);
    copy_caption(text_rows().narrow(0, text.offsets[s], sample.context.size(0)), sample.context);
    if (const Tensor* pooled = extra_of(sample, "pooled"))
      batch_.inputs.back()[static_cast<int64_t>(s)].copy_(pooled->reshape({-1}));
    fill_rotary(tokens.cos.slice(0, begin, end), tokens.sin.slice(0, begin, end), clip_grid(frames, h, w),
                {c_.axes[0] / 2, c_.axes[1] / 2, c_.axes[2] / 2});
    const auto row = static_cast<int64_t>(2 * s);
    modulation_rows_.slice(0, begin, end).fill_(row);
    modulation_rows_.slice(0, tokens.offsets[s], begin).fill_(row + 1);
    t_.push_back(sample.t);
    const Tensor* guidance = extra_of(sample, "guidance");
    guidance_.push_back(1000 * (guidance ? guidance->item<double>() : kUsualGuidance));
  }

  /// rows [tokens, (1 + C) * patch], zeros; `per_frame` of them a frame.
  void fill_cond(const Tensor& rows, const net::Sample& sample, int64_t per_frame) {
    if (const Tensor* cond = extra_of(sample, "cond")) return fill_rows(rows, *cond, c_.patches());
    const Tensor* image = extra_of(sample, "image_latent");
    if (!image) return;
    const int64_t places = c_.patch * c_.patch;
    const Tensor first = rows.slice(0, 0, per_frame);
    first.narrow(1, 0, places).fill_(1);
    fill_rows(first.narrow(1, places, c_.in_channels), *image, c_.patches());
  }

  void finish() {
    const at::Device device = batch_.inputs[0].device();
    size_t next = c_.cond ? 3 : 2;
    batch_.inputs[next++] = program_sinusoid(t_, kFrequencies).to(device);
    if (c_.guidance) batch_.inputs[next++] = program_sinusoid(guidance_, kFrequencies).to(device);
    batch_.tokens.rows = row_index(modulation_rows_, device);
  }

  Tensor& text_rows() { return batch_.inputs[c_.cond ? 2 : 1]; }

  const Config& c_;
  net::Batch batch_;
  Tensor modulation_rows_;
  std::vector<double> t_, guidance_;
};

}  // namespace

OpenSora::OpenSora(const Config& config)
    : FamilyDenoiser(config,
                     {.channels = config.latent_channels(),
                      .context_dim = config.context_dim,
                      .context_length = config.context_len,
                      .heads = config.num_heads},
                     config.patches()) {
  units_ = make_units(config);
}

net::Conditions OpenSora::conditions() const {
  net::Conditions wants;
  wants.clean_first = wants.clean_beside = wants.given_frames = config_.cond;
  wants.padded_text = true;
  wants.pooled_dim = config_.pooled_dim;
  return wants;
}

net::Batch OpenSora::pack(const std::vector<net::Sample>& samples) const {
  return packed<Packing>(samples, config_, kText);
}

/// What is made of time, guidance and the pooled caption together.
std::vector<bool> OpenSora::moving_conditioning() const { return {true}; }

std::vector<Tensor> OpenSora::pack_directions(const net::Batch& batch,
                                              const std::vector<net::Direction>& directions) const {
  const size_t time = config_.cond ? 3 : 2;
  std::vector<Tensor> tangents(batch.inputs.size());
  tangents[0] = at::zeros_like(batch.inputs[0]);
  std::vector<double> dt;
  for (size_t s = 0; s < directions.size(); ++s) {
    const auto [begin, end] = batch.predicted[s];
    fill_rows(tangents[0].slice(0, begin, end), directions[s].x, config_.patches());
    dt.push_back(directions[s].t);
  }
  tangents[time] = sinusoid_tangent(batch.inputs[time], dt);
  return tangents;
}

std::vector<std::map<std::string, Tensor>> OpenSora::unpack_input_grads(const std::vector<Tensor>& grads,
                                                                        const net::Batch& batch,
                                                                        const std::vector<net::Sample>& samples) const {
  std::vector<std::map<std::string, Tensor>> result;
  const std::vector<int64_t>& text = batch.tokens.space(kText).offsets;
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto [begin, end] = batch.predicted[s];
    std::array<int64_t, 4> shape = batch.shapes[s];
    const auto& latent = grads[0];
    result.push_back({{"x", from_rows(latent.slice(0, begin, end), shape, config_.patches())},
                      {"context", grads[config_.cond ? 2 : 1].narrow(0, text[s], samples[s].context.size(0))},
                      {"pooled", grads.back()[static_cast<int64_t>(s)]}});
    ++shape[0];  // the mask
    if (config_.cond) result.back()["cond"] = from_rows(grads[1].slice(0, begin, end), shape, config_.patches());
  }
  return result;
}

std::vector<Tensor> OpenSora::unpack(const Tensor& out, const net::Batch& batch) const {
  std::vector<Tensor> latents;
  for (size_t s = 0; s < batch.shapes.size(); ++s)
    latents.push_back(
        from_rows(out.slice(0, batch.predicted[s][0], batch.predicted[s][1]), batch.shapes[s], config_.patches())
            .to(at::kFloat));
  return latents;
}

/// As the output has it: text rows first.
Tensor OpenSora::pack_target(const Tensor& target) const {
  const int64_t tokens = token_count({0, target.size(1), target.size(2), target.size(3)});
  const Tensor rows = at::zeros({tokens, config_.in_channels}, target.options().dtype(at::kFloat));
  fill_rows(rows.slice(0, config_.context_len), target, config_.patches());
  return rows;
}

int64_t OpenSora::token_count(const std::array<int64_t, 4>& latent) const {
  return latent[1] * latent[2] * latent[3] / (config_.patch * config_.patch) + config_.context_len;
}

std::string OpenSora::foreign_name(const std::string& name, const std::string& naming) const {
  const int64_t head = config_.head_dim(), ratio = config_.mlp_ratio;
  if (naming == "diffusers") return rename(diffusers_names(head, ratio), name);
  if (naming == "tessera") return name;
  FileForm form{config_.fused, config_.neighbours ? head : 0, ratio};
  if (naming == "fused") form = {true, head, ratio};
  if (naming == "unfused") form = {false, 0, ratio};
  return rename(program_names(form), name);
}

/// PyTorch's of linears, of which biases are zero here; what takes given frames begins as zero.
Initial OpenSora::initial(const plan::ParamSpec& param) const {
  if (param.name.ends_with("_norm.weight")) return Initial::constant(1);
  if (param.name.ends_with(".bias") || param.name.starts_with("cond_in.")) return Initial::constant(0);
  const auto out = static_cast<double>(param.shape.front()), in = static_cast<double>(param.shape.back());
  const bool embeds = std::ranges::any_of(std::array{"txt_in.", "time_in.", "vector_in.", "guidance_in."},
                                          [&](const char* site) { return param.name.starts_with(site); });
  if (embeds && !is_released(presets(), config_)) return Initial::embedding(in, out);
  return {Initial::Kind::uniform, 1 / std::sqrt(in)};
}

}  // namespace tessera::models::opensora
