#include "tessera/models/wan/network.h"

#include "tessera/models/common/denoiser.h"
#include "tessera/models/common/rotary.h"
#include "tessera/ops/activations.h"

namespace tessera::models::wan {

using at::Tensor;
using net::Act;
using net::Context;
using net::Flow;
using net::Norm;

namespace {

enum Cond { kTime, kModulation, kContext, kPicture };  // order of the shared conditioning
const net::Linear kByHeads{.split = kColumns}, kFromHeads{.split = kRows};
const net::Linear kOfText{.space = kText, .split = kColumns}, kOfImage{.space = kImage, .split = kColumns};
constexpr double kImageEps = 1e-5;  // LayerNorms of the image branch; elsewhere it is the config's

class Stem final : public FamilyUnit<Config> {
 public:
  explicit Stem(const Config& config) : FamilyUnit(config, "stem", "") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const Tensor &patches = in.stream[kLatentRows], &text = in.stream[kTextRows], &sinusoid = in.stream[kTimeRows];
    size_t next = kMoreRows;
    const Tensor* pictures = c_.has_image_branch() ? &in.stream[next++] : nullptr;
    Tensor x = ctx.linear("patch_embedding", patches,
                          {.out = c_.dim, .kernel = {c_.patch.begin(), c_.patch.end()}});  // x [T, d]
    const Tensor* references = c_.ref_dim > 0 ? &in.stream[next] : nullptr;
    if (references) next += 2;
    if (c_.camera_dim > 0) x = x + camera(ctx, in.stream[next]);
    if (references) {
      // every token is computed both ways, which costs less than the exchange that rows of their own would need
      const Tensor &is_reference = references[1], r = ctx.linear("ref_conv", *references, in_frame());
      x = x * (1 - is_reference) + r * is_reference;
    }
    Tensor context =
        ctx.linear("text_embedding.2", ctx.linear("text_embedding.0", text, {.space = kText, .out = c_.dim}),
                   {.act = Act::gelu_tanh, .space = kText});  // [B * n, d]
    Tensor e = ctx.linear("time_embedding.2",
                          at::silu(ctx.linear("time_embedding.0", sinusoid, {.out = c_.dim})));  // e [R, d]
    Tensor e0 =
        ctx.linear("time_projection.1", at::silu(e), {.out = 6 * c_.dim}).view({-1, 6, c_.dim});  // e0 [R, 6, d]
    if (!pictures) return {{x}, {e, e0, context}};
    return {{x}, {e, e0, context, image_embedding(ctx, *pictures)}};
  }
  std::vector<std::string_view> order() const override {
    return {"patch_embedding", "text_embedding", "img_emb", "time_", "ref_conv", "control_adapter"};
  }

 private:
  net::Linear in_frame() const { return {.out = c_.dim, .kernel = {c_.patch[1], c_.patch[2]}}; }

  /// The control adapter: rays of a token's pixels, then what its neighbours in the frame see. rays [T, ...] -> [T, d]
  Tensor camera(Context& ctx, const Tensor& rays) const {
    const std::string block = "control_adapter.residual_blocks.0.";
    const Tensor y = ctx.linear("control_adapter.conv", rays, in_frame());
    const auto near = [&](const std::string& site, const Tensor& z) {
      return ctx.linear(block + site, ctx.unfold(block + site + "_rows", z, {.kernel = {1, 3, 3}}),
                        {.out = c_.dim, .kernel = {3, 3}});
    };
    return y + near("conv2", ops::relu(near("conv1", y)));
  }

  Tensor image_embedding(Context& ctx, const Tensor& features) const {  // [B * m, d_image] -> [B * m, d]
    Tensor y = features;
    if (c_.type == Type::flf2v)  // learned positions for the two images
      y = (y.view({-1, c_.image_rows(), c_.image_dim}) +
           ctx.param("img_emb.emb_pos", {1, c_.image_rows(), c_.image_dim}))
              .flatten(0, 1);
    const net::Norm norm{.eps = kImageEps};
    y = ctx.linear("img_emb.proj.1", ctx.norm("img_emb.proj.0", y, norm, kImage), {.space = kImage});
    // the exact GELU, here alone
    y = ctx.linear("img_emb.proj.3", y, {.act = Act::gelu, .space = kImage, .out = c_.dim});
    return ctx.norm("img_emb.proj.4", y, norm, kImage);
  }
};

class Block final : public FamilyUnit<Config> {
 public:
  Block(const Config& config, int64_t index, const std::string& kind) : FamilyUnit(config, "blocks", kind, index) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // x [T, d]
    const auto m = ctx.param_plus("modulation", {1, 6, c_.dim}, in.cond[kModulation])
                       .unbind(1);  // m[6] of [R, d]: shift, scale, gate, twice

    const auto modulated = [&](const Tensor& shift, const Tensor& scale) {
      return Norm{.eps = c_.eps, .shift = &shift, .scale = &scale};
    };
    Tensor y = ctx.norm("norm1", x, modulated(m[0], m[1]));  // y [T, d]
    KeysAndValues text;
    x = ctx.residual("gate1", x, self_attention(ctx, y, in.cond[kContext], text), &m[2]);
    y = ctx.norm("norm3", x, {.eps = c_.eps});
    x = ctx.residual("sum", x, cross_attention(ctx, y, text, in.cond));
    y = ctx.norm("norm2", x, modulated(m[3], m[4]));
    y = ctx.linear("ffn.2", ctx.linear("ffn.0", y, {.out = c_.ffn_dim, .split = kColumns}),
                   {.act = Act::gelu_tanh, .out = c_.dim, .split = kRows});  // through [T, ffn]
    Flow out = {in.stream, {}};
    out.stream[0] = ctx.residual("gate2", x, y, &m[5]);
    return out;
  }
  std::string_view output_site() const override { return "gate2"; }
  std::vector<std::string_view> order() const override {
    return {"modulation",        "self_attn.q",          "self_attn.k",
            "self_attn.v",       "self_attn.",           "norm3",
            "cross_attn.q",      "cross_attn.k.",        "cross_attn.v.",
            "cross_attn.norm_q", "cross_attn.norm_k.",   "cross_attn.k_img",
            "cross_attn.v_img",  "cross_attn.norm_k_img"};
  }

 private:
  struct KeysAndValues {
    Tensor k, v;  // [B * n, d]
  };

  /// Also makes the text's keys and values, which read nothing of the video: while v travels to other ranks, and its gradient
  /// back.
  Tensor self_attention(Context& ctx, const Tensor& y, const Tensor& context, KeysAndValues& text) const {
    const Norm turned{.kind = Norm::rms, .eps = c_.eps, .rope = c_.num_heads, .split = kColumns};
    const Tensor q =
        ctx.ahead("self_attn", ctx.norm("self_attn.norm_q", ctx.linear("self_attn.q", y, kByHeads), turned));
    const Tensor k =
        ctx.ahead("self_attn", ctx.norm("self_attn.norm_k", ctx.linear("self_attn.k", y, kByHeads), turned));
    const Tensor v = ctx.ahead("self_attn", ctx.linear("self_attn.v", y, kByHeads));
    text.k = ctx.norm("cross_attn.norm_k", ctx.linear("cross_attn.k", context, kOfText),
                      {.kind = Norm::rms, .eps = c_.eps, .split = kColumns}, kText);
    text.v = ctx.linear("cross_attn.v", context, kOfText);
    return ctx.linear("self_attn.o", ctx.attention("self_attn", q, k, v, c_.num_heads), kFromHeads);
  }

  Tensor cross_attention(Context& ctx, const Tensor& y, const KeysAndValues& text,
                         const std::vector<Tensor>& cond) const {
    const Norm norm{.kind = Norm::rms, .eps = c_.eps, .split = kColumns};
    const Tensor q = ctx.norm("cross_attn.norm_q", ctx.linear("cross_attn.q", y, kByHeads), norm);  // [T, d]
    Tensor out = ctx.attention("cross_attn", q, text.k, text.v, c_.num_heads, {.k = kText});
    if (c_.has_image_branch()) out = ctx.residual("cross_attn_sum", out, image_attention(ctx, q, cond[kPicture]));
    return ctx.linear("cross_attn.o", out, kFromHeads);
  }

  /// Cross-attention to the image features, with its own keys and values and a softmax beside that of the text.
  Tensor image_attention(Context& ctx, const Tensor& q, const Tensor& image) const {
    const Tensor k = ctx.norm("cross_attn.norm_k_img", ctx.linear("cross_attn.k_img", image, kOfImage),
                              {.kind = Norm::rms, .eps = c_.eps, .split = kColumns}, kImage);  // [B * m, d]
    return ctx.attention("cross_attn_img", q, k, ctx.linear("cross_attn.v_img", image, kOfImage), c_.num_heads,
                         {.k = kImage});
  }
};

class Head final : public FamilyUnit<Config> {
 public:
  explicit Head(const Config& config) : FamilyUnit(config, "head", "head.") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const auto s = (ctx.param("modulation", {1, 2, c_.dim}) + in.cond[kTime].unsqueeze(1))
                       .unbind(1);  // s[2] of [R, d]: shift, scale
    const Tensor y = ctx.norm("norm", in.stream[0], {.eps = c_.eps, .shift = &s[0], .scale = &s[1]});  // y [T, d]
    return {{ctx.linear("head", y, {.out = c_.patch_size() * c_.out_dim})}, {}};                       // [T, 4 * c_out]
  }
};

}  // namespace

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config) {
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(make_stem(config));
  for (int64_t i = 0; i < config.num_layers; ++i) units.push_back(make_block(config, i));
  units.push_back(make_head(config));
  net::Tokens tokens;
  tokens.spaces.resize(kImage);
  std::vector<Tensor> inputs = {net::sizes_of(1, config.patch_size() * config.in_dim),
                                net::sizes_of(1, config.text_dim), net::sizes_of(1, config.freq_dim)};
  if (config.has_image_branch()) inputs.push_back(net::sizes_of(config.image_rows(), config.image_dim));
  const int64_t cells = config.patch[1] * config.patch[2];
  if (config.ref_dim > 0)
    inputs.push_back(net::sizes_of(1, cells * config.ref_dim)), inputs.push_back(net::sizes_of(1, 1));
  if (config.camera_dim > 0)
    inputs.push_back(net::sizes_of(1, cells * config.camera_dim * config.camera_scale * config.camera_scale));
  net::declare(units, {std::move(inputs), {}}, tokens);
  return units;
}

std::unique_ptr<net::Unit> make_stem(const Config& config) { return std::make_unique<Stem>(config); }
std::unique_ptr<net::Unit> make_block(const Config& config, int64_t index, const std::string& kind) {
  return std::make_unique<Block>(config, index, kind);
}
std::unique_ptr<net::Unit> make_head(const Config& config) { return std::make_unique<Head>(config); }

Initial initial_values(const plan::ParamSpec& param, bool released) {
  const std::string_view name = param.name;
  if (name.ends_with(".bias") || name == "head.head.weight" || name == "img_emb.emb_pos") return Initial::constant(0);
  if (name.ends_with("modulation")) return Initial::normal(1 / std::sqrt(static_cast<double>(param.shape.back())));
  const auto out = static_cast<double>(param.shape.front()), in = static_cast<double>(param.numel()) / out;
  if (name.starts_with("text_embedding") || name.starts_with("time_embedding"))
    return released ? Initial::normal(0.02) : Initial::embedding(in, out);
  const bool image_norm = name == "img_emb.proj.0.weight" || name == "img_emb.proj.4.weight";
  if (name.find("norm") != name.npos || image_norm) return Initial::constant(1);
  return Initial::xavier(in, out);
}

std::pair<Tensor, Tensor> rotary_tables(int64_t f, int64_t h, int64_t w, int64_t head_dim) {
  return grid_rotary(clip_grid(f, h, w), head_dim);
}

}  // namespace tessera::models::wan
