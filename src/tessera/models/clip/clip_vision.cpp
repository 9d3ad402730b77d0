#include "tessera/models/clip/clip_vision.h"

#include "tessera/base/check.h"
#include "tessera/models/common/initial.h"

namespace tessera::models::clip {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

plan::UnitSpec frozen(std::string name, std::string kind, const std::string& prefix,
                      const std::vector<std::pair<std::string, std::vector<int64_t>>>& params) {
  plan::UnitSpec spec{.name = std::move(name), .kind = std::move(kind), .params = {}, .cost = {}};
  for (const auto& [site, shape] : params)
    spec.params.push_back({.name = prefix + site, .shape = shape, .trainable = false});
  return spec;
}

class Embedding final : public net::Unit {
 public:
  explicit Embedding(const Config& c)
      : Unit(frozen("embedding", "embedding", "visual.",
                    {{"patch_embedding.weight", {c.dim, 3, c.patch, c.patch}},
                     {"cls_embedding", {1, 1, c.dim}},
                     {"pos_embedding", {1, c.rows(), c.dim}},
                     {"pre_norm.weight", {c.dim}},
                     {"pre_norm.bias", {c.dim}}}),
             "visual."),
        c_(c) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const Tensor patches = ctx.linear("patch_embedding", in.stream[0]).view({-1, c_.rows() - 1, c_.dim});
    const Tensor first = ctx.param("cls_embedding").expand({patches.size(0), 1, c_.dim});
    const Tensor x = at::cat({first, patches}, 1) + ctx.param("pos_embedding");  // [B, rows, dim]
    return {{ctx.norm("pre_norm", x.view({-1, c_.dim}), {.eps = c_.eps})}, {}};  // [B * rows, dim]
  }

 private:
  const Config c_;
};

class Block final : public net::Unit {
 public:
  Block(const Config& c, int64_t index) : Block(c, "transformer." + std::to_string(index)) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // x [B * rows, dim]
    const auto qkv = ctx.linear("attn.to_qkv", ctx.norm("norm1", x, {.eps = c_.eps})).chunk(3, 1);
    const Tensor y = ctx.attention("attn", qkv[0].contiguous(), qkv[1].contiguous(), qkv[2].contiguous(), c_.num_heads);
    x = x + ctx.linear("attn.proj", y);
    const Tensor hidden = at::gelu(ctx.linear("mlp.0", ctx.norm("norm2", x, {.eps = c_.eps})));  // the exact GELU
    return {{x + ctx.linear("mlp.2", hidden)}, {}};
  }

 private:
  Block(const Config& c, const std::string& name) : Unit(describe(c, name), "visual." + name + "."), c_(c) {}

  static plan::UnitSpec describe(const Config& c, const std::string& name) {
    return frozen(name, "block", "visual." + name + ".",
                  {{"norm1.weight", {c.dim}},
                   {"norm1.bias", {c.dim}},
                   {"attn.to_qkv.weight", {3 * c.dim, c.dim}},
                   {"attn.to_qkv.bias", {3 * c.dim}},
                   {"attn.proj.weight", {c.dim, c.dim}},
                   {"attn.proj.bias", {c.dim}},
                   {"norm2.weight", {c.dim}},
                   {"norm2.bias", {c.dim}},
                   {"mlp.0.weight", {c.mlp_dim, c.dim}},
                   {"mlp.0.bias", {c.mlp_dim}},
                   {"mlp.2.weight", {c.dim, c.mlp_dim}},
                   {"mlp.2.bias", {c.dim}}});
  }

  const Config c_;
};

Tensor per_colour(const std::array<double, 3>& values) {
  return at::tensor({values[0], values[1], values[2]}, at::kFloat).view({3, 1, 1});
}

}  // namespace

ClipVision::ClipVision(const Config& config, bool last_block) : config_(config) {
  units_.push_back(std::make_unique<Embedding>(config));
  const int64_t blocks = config.num_layers - (last_block ? 0 : 1);
  for (int64_t i = 0; i < blocks; ++i) units_.push_back(std::make_unique<Block>(config, i));
}

Tensor ClipVision::preprocess(const Tensor& picture) const {
  check_internal(picture.dim() == 3 && picture.size(0) == 3, "models.clip", "a picture is [3, H, W]");
  const int64_t side = config_.image_size;
  const Tensor square = at::upsample_bicubic2d(picture.to(at::kFloat).unsqueeze(0), {side, side},
                                               /*align_corners=*/false, std::nullopt, std::nullopt);
  return (square[0] * 0.5 + 0.5 - per_colour(config_.mean)) / per_colour(config_.deviation);
}

net::Batch ClipVision::pack(const std::vector<Tensor>& pixels) const {
  net::Batch batch;
  batch.token_inputs = {};  // the tower is small: ranks do not share its tokens
  batch.tokens.offsets = {0};
  std::vector<Tensor> all;
  const int64_t n = config_.side(), p = config_.patch;
  for (const Tensor& picture : pixels) {
    all.push_back(picture.reshape({3, n, p, n, p}).permute({1, 3, 0, 2, 4}).reshape({n * n, 3 * p * p}));
    batch.tokens.offsets.push_back(batch.tokens.offsets.back() + rows());
  }
  batch.inputs = {at::cat(all).to(at::kFloat)};
  return batch;
}

std::string ClipVision::fingerprint() const {
  const Config& c = config_;
  std::string text = "clip";
  for (const int64_t size : {c.image_size, c.patch, c.dim, c.mlp_dim, c.num_heads, c.num_layers})
    text += "-" + std::to_string(size);
  return text;
}

void ClipVision::initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count,
                            float* out) const {
  const std::string_view name = param.name;
  Initial initial = Initial::normal(1 / std::sqrt(static_cast<double>(config_.dim)));
  if (name.ends_with(".bias")) initial = Initial::constant(0);
  if (name.find("norm") != name.npos && name.ends_with(".weight")) initial = Initial::constant(1);
  draw_initial(initial, seed, param.name, first, count, out);
}

}  // namespace tessera::models::clip
