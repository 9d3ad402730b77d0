#include "tessera/models/wan/spec.h"

#include "tessera/base/check.h"
#include "tessera/models/wan/network.h"
#include "tessera/models/wan/parameters.h"

namespace tessera::models::wan {

using at::Tensor;

namespace {

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

/// A latent cut into patches: [C, f, pt, h, ph, w, pw].
Tensor patches(const Tensor& latent, const std::array<int64_t, 3>& p) {
  return latent.reshape(
      {latent.size(0), latent.size(1) / p[0], p[0], latent.size(2) / p[1], p[1], latent.size(3) / p[2], p[2]});
}

// Inputs have the channel slowest in a token, as the convolution's weight has; outputs have it fastest.
Tensor to_input(const Tensor& latent, const std::array<int64_t, 3>& p) {
  return patches(latent, p).permute({1, 3, 5, 0, 2, 4, 6}).flatten(3).flatten(0, 2);  // [L, C * 4]
}
Tensor from_input(const Tensor& tokens, at::IntArrayRef s, const std::array<int64_t, 3>& p) {
  return tokens.reshape({s[1] / p[0], s[2] / p[1], s[3] / p[2], s[0], p[0], p[1], p[2]})
      .permute({3, 0, 4, 1, 5, 2, 6})
      .reshape(s);
}
Tensor to_output(const Tensor& latent, const std::array<int64_t, 3>& p) {
  return patches(latent, p).permute({1, 3, 5, 2, 4, 6, 0}).flatten(3).flatten(0, 2);  // [L, 4 * C]
}
Tensor from_output(const Tensor& tokens, at::IntArrayRef s, const std::array<int64_t, 3>& p) {
  return tokens.reshape({s[1] / p[0], s[2] / p[1], s[3] / p[2], p[0], p[1], p[2], s[0]})
      .permute({6, 0, 3, 1, 4, 2, 5})
      .reshape(s);
}

void check_sample(const net::Sample& sample, const Config& c) {
  const auto& x = sample.x;
  check_input(
      x.dim() == 4 && x.size(0) == c.in_dim, "wan.pack",
      "latent " + shape_text(x.sizes()) + ": expected [" + std::to_string(c.in_dim) + ", frames, height, width]",
      "the data was encoded for another model: run prepare again");
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

}  // namespace

Wan::Wan(const Config& config) : config_(config), units_(make_units(config)) {}

net::Batch Wan::pack(const std::vector<net::Sample>& samples) const {
  net::Batch batch;
  net::Tokens& tokens = batch.tokens;
  std::vector<Tensor> inputs, texts, rows, cos, sin;
  std::vector<double> t;
  tokens.offsets = tokens.context_offsets = {0};
  for (const net::Sample& sample : samples) {
    check_sample(sample, config_);
    const Tensor& x = sample.x;
    const auto& p = config_.patch;
    const auto index = static_cast<int64_t>(t.size());
    inputs.push_back(to_input(x, p));
    const auto table = rotary_tables(x.size(1) / p[0], x.size(2) / p[1], x.size(3) / p[2], config_.head_dim());
    cos.push_back(table.first), sin.push_back(table.second);
    rows.push_back(at::full({inputs.back().size(0)}, index, at::kInt));
    // Text is padded with zero rows, which are attended like any other: the released models were trained so.
    texts.push_back(at::constant_pad_nd(sample.context, {0, 0, 0, config_.text_len - sample.context.size(0)}));
    t.push_back(sample.t);
    tokens.offsets.push_back(tokens.offsets.back() + inputs.back().size(0));
    tokens.context_offsets.push_back(tokens.context_offsets.back() + config_.text_len);
    batch.shapes.push_back({config_.out_dim, x.size(1), x.size(2), x.size(3)});
  }
  const auto device = samples.at(0).x.device();
  tokens.rows = at::cat(rows).to(device);
  tokens.cos = at::cat(cos).to(device);
  tokens.sin = at::cat(sin).to(device);
  batch.inputs = {at::cat(inputs).to(at::kFloat), at::cat(texts).to(at::kFloat),
                  timestep_sinusoid(t, config_.freq_dim).to(device)};
  return batch;
}

std::vector<std::pair<Tensor, Tensor>> Wan::unpack_input_grads(const std::vector<Tensor>& grads,
                                                               const net::Batch& batch,
                                                               const std::vector<net::Sample>& samples) const {
  std::vector<std::pair<Tensor, Tensor>> result;
  for (size_t s = 0; s < samples.size(); ++s) {
    const Tensor patch_grad = grads[0].slice(0, batch.tokens.offsets[s], batch.tokens.offsets[s + 1]);
    const int64_t text = batch.tokens.context_offsets[s];
    result.emplace_back(from_input(patch_grad, samples[s].x.sizes(), config_.patch),
                        grads[1].slice(0, text, text + samples[s].context.size(0)));
  }
  return result;
}

std::vector<Tensor> Wan::unpack(const Tensor& out, const net::Batch& batch) const {
  std::vector<Tensor> latents;
  for (size_t s = 0; s < batch.shapes.size(); ++s) {
    const Tensor tokens = out.slice(0, batch.tokens.offsets[s], batch.tokens.offsets[s + 1]);
    latents.push_back(from_output(tokens, batch.shapes[s], config_.patch).to(at::kFloat));
  }
  return latents;
}

Tensor Wan::pack_target(const Tensor& target) const { return to_output(target, config_.patch); }

int64_t Wan::token_count(const std::array<int64_t, 4>& latent) const {
  return latent[1] * latent[2] * latent[3] / config_.patch_size();
}

std::string Wan::foreign_name(const std::string& name, const std::string& naming) const {
  return naming == "diffusers" ? rename(diffusers_names(), name) : name;
}

void Wan::initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const {
  draw_initial(initial_values(param), seed, param.name, first, count, out);
}

}  // namespace tessera::models::wan
