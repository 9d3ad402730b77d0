#include "tessera/models/text/umt5.h"

#include "tessera/base/check.h"
#include "tessera/models/common/initial.h"
#include "tessera/models/common/names.h"
#include "tessera/models/text/frozen_unit.h"
#include "tessera/models/text/prompts.h"
#include "tessera/models/text/umt5_names.h"

namespace tessera::models::umt5 {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

/// Where layers share a table of positions, that of the first goes to all of them beside the key mask.
constexpr const char* kSharedPositions = "blocks.0.pos_embedding.embedding.weight";

class Embedding final : public net::Unit {
 public:
  explicit Embedding(const Config& c) : Unit(describe(c), ""), shared_(c.shared_positions) {}
  Flow forward(Context& ctx, const Flow& in) const override {
    net::Flow out{{ctx.embedding("token_embedding", in.stream[0])}, {}};
    if (shared_) out.cond.push_back(ctx.param(kSharedPositions));
    if (in.stream.size() > 1) out.cond.push_back(in.stream[1]);  // the key mask, for all blocks
    return out;
  }

 private:
  static plan::UnitSpec describe(const Config& c) {
    plan::UnitSpec spec =
        frozen_unit("token_embedding", "embedding", "", {{"token_embedding.weight", {c.vocab_size, c.dim}}});
    if (!c.shared_positions) return spec;
    return frozen_unit(
        "token_embedding", "embedding", "",
        {{"token_embedding.weight", {c.vocab_size, c.dim}}, {kSharedPositions, {c.num_buckets, c.num_heads}}});
  }

  const bool shared_;
};

class Block final : public net::Unit {
 public:
  Block(const Config& c, int64_t index) : Unit(describe(c, index)), c_(c) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // x [T, dim]
    const net::Norm norm{.kind = net::Norm::rms, .eps = c_.eps};
    x = x + attention(ctx, ctx.norm("norm1", x, norm), in.cond);
    const Tensor y = ctx.norm("norm2", x, norm);
    const Tensor gate = at::gelu(ctx.linear("ffn.gate.0", y), "tanh");  // [T, ffn]
    return {{x + ctx.linear("ffn.fc2", ctx.linear("ffn.fc1", y) * gate)}, {}};
  }

 private:
  static plan::UnitSpec describe(const Config& c, int64_t index) {
    const std::string name = "blocks." + std::to_string(index);
    std::vector<std::pair<std::string, std::vector<int64_t>>> params = {{"norm1.weight", {c.dim}},
                                                                        {"attn.q.weight", {c.dim_attn, c.dim}},
                                                                        {"attn.k.weight", {c.dim_attn, c.dim}},
                                                                        {"attn.v.weight", {c.dim_attn, c.dim}}};
    if (!c.shared_positions) params.push_back({"pos_embedding.embedding.weight", {c.num_buckets, c.num_heads}});
    params.insert(params.end(), {{"attn.o.weight", {c.dim, c.dim_attn}},
                                 {"norm2.weight", {c.dim}},
                                 {"ffn.gate.0.weight", {c.dim_ffn, c.dim}},
                                 {"ffn.fc1.weight", {c.dim_ffn, c.dim}},
                                 {"ffn.fc2.weight", {c.dim, c.dim_ffn}}});
    return frozen_unit(name, "block", name + ".", params);
  }

  /// The bias of each pair of n tokens, [n * n, heads].
  Tensor positions(Context& ctx, int64_t n, const std::vector<Tensor>& cond, const Tensor& y) const {
    const Tensor buckets = relative_buckets(n, c_, y);
    if (!c_.shared_positions) return ctx.embedding("pos_embedding.embedding", buckets);
    if (y.is_meta()) return at::empty({n * n, c_.num_heads}, cond[0].options());
    return cond[0].index_select(0, buckets);
  }

  Tensor attention(Context& ctx, const Tensor& y, const std::vector<Tensor>& cond) const {
    const Tensor mask = cond.size() > (c_.shared_positions ? 1 : 0) ? cond.back() : Tensor();
    const Tensor q = ctx.linear("attn.q", y), k = ctx.linear("attn.k", y), v = ctx.linear("attn.v", y);  // [T, inner]
    const auto& at_ = ctx.tokens().offsets;
    std::vector<Tensor> prompts;
    for (size_t s = 0; s + 1 < at_.size(); ++s) {
      const int64_t n = at_[s + 1] - at_[s];
      const auto cut = [&](const Tensor& x) { return x.narrow(0, at_[s], n); };
      Tensor bias = positions(ctx, n, cond, y).t().reshape({c_.num_heads, n, n});
      // as in the reference, the least finite number replaces the bias: it is not added, and not infinite
      if (mask.defined()) bias = bias.masked_fill(cut(mask).eq(0), std::numeric_limits<float>::lowest());
      prompts.push_back(ctx.attention("attn", cut(q), cut(k), cut(v), c_.num_heads, {}, {.bias = &bias}));
    }
    return ctx.linear("attn.o", prompts.size() == 1 ? prompts[0] : at::cat(prompts));
  }

  const Config c_;
};

class FinalNorm final : public net::Unit {
 public:
  explicit FinalNorm(const Config& c)
      : Unit(frozen_unit("norm", "norm", "", {{"norm.weight", {c.dim}}}), ""), eps_(c.eps) {}
  Flow forward(Context& ctx, const Flow& in) const override {
    return {{ctx.norm("norm", in.stream[0], {.kind = net::Norm::rms, .eps = eps_})}, {}};
  }

 private:
  const double eps_;
};

/// T5's initialisation: these standard deviations give outputs of about unit size without scaling the attention.
double deviation(std::string_view name, const Config& c) {
  const auto root = [](int64_t n) { return 1 / std::sqrt(static_cast<double>(n)); };
  if (name == "token_embedding.weight") return 1;
  if (name.ends_with("attn.q.weight")) return root(c.dim * (c.dim_attn / c.num_heads));
  if (name.ends_with("attn.o.weight")) return root(c.dim_attn);
  if (name.ends_with("fc2.weight")) return root(c.dim_ffn);
  if (name.ends_with("embedding.embedding.weight")) return root(2 * c.num_buckets * c.num_heads);
  return root(c.dim);
}

}  // namespace

const std::vector<std::pair<std::string, Config>>& presets() {
  static const std::vector<std::pair<std::string, Config>> table = {
      {"umt5-xxl", {}},
      {"umt5-demo", {.vocab_size = 1024, .dim = 64, .dim_attn = 64, .dim_ffn = 128, .num_heads = 4, .num_layers = 3}},
  };
  return table;
}

const std::vector<std::pair<std::string, Config>>& t5_presets() {
  static const std::vector<std::pair<std::string, Config>> table = {
      {"t5-v1_1-xxl", {.vocab_size = 32128, .shared_positions = true}},
      {"t5-demo",
       {.vocab_size = 1024,
        .dim = 64,
        .dim_attn = 64,
        .dim_ffn = 128,
        .num_heads = 4,
        .num_layers = 3,
        .shared_positions = true}},
  };
  return table;
}

Tensor relative_buckets(int64_t n, const Config& c, const Tensor& like) {
  // Half of the buckets are for keys after the query. In each half, one half is for exact small distances, the other
  // one is logarithmic.
  const int64_t half = c.num_buckets / 2, exact = half / 2;
  if (like.is_meta()) {  // the operators below do not all support meta tensors: allocates the bytes of their peak
    const Tensor temporaries = at::empty({6 * n * n}, like.options().dtype(at::kLong));
    return at::empty({n * n}, temporaries.options());
  }
  const Tensor place = at::arange(n, at::kLong);
  const Tensor offset = place.unsqueeze(0) - place.unsqueeze(1);  // [query, key]: key - query
  const Tensor distance = offset.abs();
  // fp32 and truncation as in the reference: the change points depend on it. Distance 0 is taken by `exact` below.
  const Tensor ratio = at::log(distance.clamp_min(1).to(at::kFloat) / exact) /
                       std::log(static_cast<double>(c.max_distance) / static_cast<double>(exact));
  const Tensor far = (exact + (ratio * (half - exact)).to(at::kLong)).clamp_max(half - 1);
  return ((offset > 0).to(at::kLong) * half + at::where(distance < exact, distance, far)).flatten().to(like.device());
}

Umt5::Umt5(const Config& config) : config_(config) {
  units_.push_back(std::make_unique<Embedding>(config));
  for (int64_t i = 0; i < config.num_layers; ++i) units_.push_back(std::make_unique<Block>(config, i));
  units_.push_back(std::make_unique<FinalNorm>(config));
}

net::Batch Umt5::pack(const std::vector<std::vector<int64_t>>& prompts) const {
  return pack_prompts(prompts, config_.vocab_size, "umt5.pack");
}

net::Batch Umt5::pack_padded(const Tensor& ids, const Tensor& mask) const {
  check_input(ids.dim() == 2 && ids.sizes() == mask.sizes() && ids.numel() > 0, "umt5.pack",
              "ids and mask are not of one shape [B, L]", "give a mask for every token");
  std::vector<std::vector<int64_t>> prompts;
  const Tensor rows = ids.to(at::kLong).contiguous();
  for (int64_t b = 0; b < rows.size(0); ++b) {
    const int64_t* row = rows.const_data_ptr<int64_t>() + b * rows.size(1);
    prompts.emplace_back(row, row + rows.size(1));
  }
  net::Batch batch = pack(prompts);
  batch.inputs.push_back(mask.to(at::kLong).flatten().contiguous());
  return batch;
}

std::string Umt5::fingerprint() const {
  const Config& c = config_;
  std::string text = c.shared_positions ? "t5" : "umt5";
  for (const int64_t size : {c.vocab_size, c.dim, c.dim_attn, c.dim_ffn, c.num_heads, c.num_layers})
    text += "-" + std::to_string(size);
  return text;
}

std::string Umt5::foreign_name(const std::string& name, const std::string& naming) const {
  if (naming == "official") return name;
  if (naming == "hf-embed-tokens" && name == "token_embedding.weight") return "encoder.embed_tokens.weight";
  return rename(hf_names(), name);
}

void Umt5::initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const {
  const bool norm =
      param.name.ends_with("norm1.weight") || param.name.ends_with("norm2.weight") || param.name == "norm.weight";
  draw_initial(norm ? Initial::constant(1) : Initial::normal(deviation(param.name, config_)), seed, param.name, first,
               count, out);
}

}  // namespace tessera::models::umt5
