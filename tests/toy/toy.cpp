// A family of its own, as small as one can be that asks for everything: a joint sequence of text and video in two
// streams with weights of their own, joint attention, attention over time alone, linear attention and a convolution.
// A program that links this file has the family in its registry; nothing else knows of it.
//
//   auto model = models::make_denoiser({.family = "toy", .config_text = R"({"dim": 32, "num_heads": 4})"});
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/models/common/denoiser.h"
#include "tessera/models/known.h"

namespace tessera::toy {

using at::Tensor;
using net::Context;
using net::Flow;
using net::Norm;

namespace {

/// Row spaces: each sample's tokens are its text rows, then those of its video.
enum Space { kTokens, kText, kVideo };
enum Table { kTime };  // of Tokens::segments: each place of the video over its frames; text by sample
enum Cond { kModulation };
constexpr int64_t kChannels = 12, kFrequencies = 16, kPatch = 2;
constexpr int64_t kPatchSize = kChannels * kPatch * kPatch;
constexpr int kModulations = 6;
const net::Linear kByHeads{.split = models::kColumns};

struct Config {
  int64_t dim = 32, heads = 4, layers = 2, hidden = 48, text_dim = 24, text_len = 5;
};

class Stem final : public models::FamilyUnit<Config> {
 public:
  explicit Stem(const Config& c) : FamilyUnit(c, "stem", "stem.") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const Tensor &rows = in.stream[0], &sinusoid = in.stream[1];  // rows [T, widest], sinusoid [2 B, frequencies]
    const Tensor text = ctx.part(rows, kText).narrow(1, 0, c_.text_dim).contiguous();
    const Tensor video = ctx.part(rows, kVideo).narrow(1, 0, kPatchSize).contiguous();
    const Tensor x = ctx.join({{kText, ctx.linear("text", text, {.space = kText, .out = c_.dim})},
                               {kVideo, ctx.linear("patch", video, {.space = kVideo, .out = c_.dim})}});
    const Tensor e = ctx.linear("time.2", ctx.linear("time.0", sinusoid, {.out = c_.dim}),
                                {.act = net::Act::silu, .out = kModulations * c_.dim});
    return {{x}, {e.view({-1, kModulations, c_.dim})}};  // x [T, d]; e [2 B, 6, d]: a row of each sample's stream
  }
};

class Block final : public models::FamilyUnit<Config> {
 public:
  Block(const Config& c, int64_t index) : FamilyUnit(c, "blocks", "block", index) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // x [T, d]
    const auto m =
        (ctx.param("modulation", {1, kModulations, c_.dim}) + in.cond[kModulation]).unbind(1);  // m[6] of [2 B, d]
    const auto modulated = [](const Tensor& shift, const Tensor& scale) {
      return Norm{.shift = &shift, .scale = &scale};
    };
    x = ctx.residual("gate1", x, joint_attention(ctx, ctx.norm("norm1", x, modulated(m[0], m[1]))), &m[2]);
    x = ctx.residual("sum_time", x, attention_over_time(ctx, ctx.norm("norm2", x, {})));
    x = ctx.residual("sum_linear", x, linear_attention(ctx, ctx.norm("norm3", x, {})));
    x = ctx.residual("gate2", x, mixed(ctx, ctx.norm("norm4", x, modulated(m[3], m[4]))), &m[5]);
    return {{x}, {}};
  }
  std::string_view output_site() const override { return "gate2"; }

 private:
  /// Each stream has its own linears and norms; all rows of a sample meet.
  Tensor joint_attention(Context& ctx, const Tensor& y) const {
    const Tensor text = ctx.part(y, kText), video = ctx.part(y, kVideo);
    const auto both = [&](const std::string& what, bool norm) {
      const auto of = [&](const std::string& stream, const Tensor& rows, int space) {
        const Tensor z = ctx.linear("joint." + stream + what, rows, {.space = space, .split = models::kColumns});
        if (!norm) return z;
        return ctx.norm("joint." + stream + ".norm" + what, z, {.kind = Norm::rms, .heads = c_.heads}, space);
      };
      return ctx.join({{kText, of("text", text, kText)}, {kVideo, of("video", video, kVideo)}});
    };
    const Tensor q = ctx.rope("joint.rope_q", both(".q", true), c_.heads, net::RopeStyle::half_split);
    const Tensor turned = ctx.rope("joint.rope_k", both(".k", true), c_.heads, net::RopeStyle::half_split);
    const Tensor k = ctx.ahead("joint", turned);  // one of three, and not the first: the others are sent by attention
    const Tensor out = ctx.attention("joint", q, k, both(".v", false), c_.heads);
    return ctx.join(
        {{kText, ctx.linear("joint.text.o", ctx.part(out, kText), {.space = kText, .split = models::kRows})},
         {kVideo, ctx.linear("joint.video.o", ctx.part(out, kVideo), {.space = kVideo, .split = models::kRows})}});
  }

  Tensor attention_over_time(Context& ctx, const Tensor& y) const {
    const Norm turned{.kind = Norm::rms, .rope = c_.heads, .split = models::kColumns};
    const Tensor q = ctx.ahead("time", ctx.norm("time.norm_q", ctx.linear("time.q", y, kByHeads), turned));
    const Tensor k = ctx.ahead("time", ctx.norm("time.norm_k", ctx.linear("time.k", y, kByHeads), turned));
    const Tensor v = ctx.linear("time.v", y, kByHeads);
    const Tensor out = ctx.attention("time", q, k, v, c_.heads, ctx.tokens().segments.at(kTime));
    return ctx.linear("time.o", out, {.split = models::kRows});
  }

  Tensor linear_attention(Context& ctx, const Tensor& y) const {
    const Tensor q = at::softplus(ctx.linear("linear.q", y, kByHeads)),
                 k = at::softplus(ctx.linear("linear.k", y, kByHeads));
    const Tensor v = ctx.linear("linear.v", y, kByHeads);
    const Tensor turned_q = ctx.rope("linear.rope_q", q, c_.heads, net::RopeStyle::interleaved);
    const Tensor turned_k = ctx.rope("linear.rope_k", k, c_.heads, net::RopeStyle::interleaved);
    const Tensor out = ctx.linear_attention("linear", q, k, v, c_.heads, 1e-3, {&turned_q, &turned_k});
    return ctx.linear("linear.o", out, {.split = models::kRows});
  }

  /// A feed-forward whose video rows see their neighbours; text rows pass it by.
  Tensor mixed(Context& ctx, const Tensor& y) const {
    const Tensor video = ctx.part(y, kVideo), text = ctx.part(y, kText);
    const net::Linear wide{.space = kVideo, .out = c_.hidden, .split = models::kColumns};
    const Tensor up = ctx.linear("ffn.up", video, wide), gate = ctx.linear("ffn.gate", video, wide);  // [rows, hidden]
    const Tensor near = ctx.conv("ffn.conv", up, {.kernel = {3, 3, 3}, .split = models::kColumns}, kVideo);
    const Tensor z =
        ctx.linear("ffn.down", near,
                   {.act = net::Act::silu_glu, .space = kVideo, .gate = &gate, .out = c_.dim, .split = models::kRows});
    return ctx.join({{kText, text}, {kVideo, z}});
  }
};

class Head final : public models::FamilyUnit<Config> {
 public:
  explicit Head(const Config& c) : FamilyUnit(c, "head", "head.") {}
  Flow forward(Context& ctx, const Flow& in) const override {
    return {{ctx.linear("out", ctx.norm("norm", in.stream[0], {}), {.out = kPatchSize})}, {}};
  }
};

/// x [C, F, H, W] into the first columns of rows [F * H / 2 * W / 2, C * 4 and maybe more]
void put_patches(const Tensor& rows, const Tensor& x) {
  const int64_t f = x.size(1), h = x.size(2) / kPatch, w = x.size(3) / kPatch;
  rows.narrow(1, 0, kPatchSize)
      .view({f, h, w, kChannels, kPatch, kPatch})
      .copy_(x.reshape({kChannels, f, h, kPatch, w, kPatch}).permute({1, 2, 4, 0, 3, 5}));
}
Tensor from_patches(const Tensor& rows, const std::array<int64_t, 4>& shape) {
  const int64_t f = shape[1], h = shape[2] / kPatch, w = shape[3] / kPatch;
  return rows.reshape({f, h, w, kChannels, kPatch, kPatch})
      .permute({3, 0, 1, 4, 2, 5})
      .reshape({kChannels, f, h * kPatch, w * kPatch});
}

class Model final : public net::Denoiser {
 public:
  explicit Model(const Config& c)
      : Denoiser({.channels = kChannels, .context_dim = c.text_dim, .context_length = c.text_len, .heads = c.heads}),
        c_(c) {
    units_.push_back(std::make_unique<Stem>(c));
    for (int64_t i = 0; i < c.layers; ++i) units_.push_back(std::make_unique<Block>(c, i));
    units_.push_back(std::make_unique<Head>(c));
    const net::Batch least = pack({blank({kChannels, 1, kPatch, kPatch})});
    net::declare(units_, {least.inputs, {}}, least.tokens);
  }

  /// Straight into what is kept: packing is part of a step's memory.
  net::Batch pack(const std::vector<net::Sample>& samples) const override {
    net::Batch batch;
    net::Tokens& tokens = batch.tokens;
    tokens.offsets = {0};
    tokens.spaces.resize(kVideo);
    for (net::Space& space : tokens.spaces) space.offsets = {0};
    tokens.segments = {{.q = kTokens, .k = kTokens}};
    for (const net::Sample& sample : samples) add_sample(batch, sample);

    const int64_t total = tokens.total(), streams = 2 * static_cast<int64_t>(samples.size());
    batch.inputs = {at::zeros({total, std::max(c_.text_dim, kPatchSize)}, at::kFloat),
                    at::empty({streams, kFrequencies}, at::kFloat)};
    tokens.segments[kTime].order = at::empty({total}, at::kLong);
    const Tensor modulation_rows = at::empty({total}, at::kInt);
    for (size_t s = 0; s < samples.size(); ++s) fill_sample(batch, modulation_rows, s, samples[s]);
    tokens.rows = ops::RowIndex(modulation_rows);
    tokens.sin =
        at::outer(at::arange(total, at::kFloat) * 0.3, 1 / (1 + at::arange(c_.dim / c_.heads / 2, at::kFloat)));
    tokens.cos = tokens.sin.cos();
    tokens.sin.sin_();
    return batch;
  }

  net::Sample blank(const std::array<int64_t, 4>& latent) const override {
    return {.x = at::zeros(latent, at::kFloat),
            .t = 500,
            .context = at::zeros({1, c_.text_dim}, at::kFloat),
            .target = {},
            .extra = {}};
  }
  std::vector<std::map<std::string, Tensor>> unpack_input_grads(
      const std::vector<Tensor>& grads, const net::Batch& batch,
      const std::vector<net::Sample>& samples) const override {
    std::vector<std::map<std::string, Tensor>> result;
    for (size_t s = 0; s < samples.size(); ++s) {
      const auto [begin, end] = batch.predicted[s];
      const Tensor video = grads[0].slice(0, begin, end).slice(1, 0, kPatchSize);
      result.push_back({{"x", from_patches(video, batch.shapes[s])}});
    }
    return result;
  }
  std::vector<Tensor> unpack(const Tensor& out, const net::Batch& batch) const override {
    std::vector<Tensor> latents;
    for (size_t s = 0; s < batch.shapes.size(); ++s)
      latents.push_back(from_patches(out.slice(0, batch.predicted[s][0], batch.predicted[s][1]), batch.shapes[s]));
    return latents;
  }
  /// As the output has it: text rows first.
  Tensor pack_target(const Tensor& target) const override {
    const Tensor rows = at::zeros({token_count({0, target.size(1), target.size(2), target.size(3)}), kPatchSize});
    put_patches(rows.slice(0, c_.text_len), target);
    return rows;
  }
  int64_t token_count(const std::array<int64_t, 4>& latent) const override {
    return c_.text_len + latent[1] * latent[2] * latent[3] / (kPatch * kPatch);
  }
  std::string foreign_name(const std::string& name, const std::string&) const override { return name; }
  void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count,
                  float* out) const override {
    const bool norm = param.name.find("norm") != std::string::npos && param.name.ends_with(".weight");
    const double fan_in = static_cast<double>(param.numel()) / static_cast<double>(param.shape[0]);
    models::draw_initial(norm ? models::Initial::constant(1) : models::Initial::normal(1 / std::sqrt(fan_in)), seed,
                         param.name, first, count, out);
  }
  std::string config_json() const override {
    return nlohmann::json{{"dim", c_.dim},        {"num_heads", c_.heads},   {"num_layers", c_.layers},
                          {"ffn_dim", c_.hidden}, {"text_dim", c_.text_dim}, {"text_len", c_.text_len}}
        .dump();
  }

 private:
  /// Where the rows of one more sample lie.
  void add_sample(net::Batch& batch, const net::Sample& sample) const {
    net::Tokens& tokens = batch.tokens;
    const std::array<int64_t, 3> grid = {sample.x.size(1), sample.x.size(2) / kPatch, sample.x.size(3) / kPatch};
    const int64_t begin = tokens.total(), video = begin + c_.text_len, n = grid[0] * grid[1] * grid[2];
    add_space(tokens.spaces[kText - 1], begin, c_.text_len);
    add_space(tokens.spaces[kVideo - 1], video, n);
    tokens.spaces[kVideo - 1].shapes.push_back(grid);
    add_segments(tokens.segments[kTime], begin, grid);
    tokens.offsets.push_back(video + n);
    batch.shapes.push_back({kChannels, sample.x.size(1), sample.x.size(2), sample.x.size(3)});
    batch.predicted.push_back({video, video + n});
  }

  void fill_sample(net::Batch& batch, const Tensor& modulation_rows, size_t s, const net::Sample& sample) const {
    const auto [video, end] = batch.predicted[s];
    const int64_t begin = batch.tokens.offsets[s], stream = 2 * static_cast<int64_t>(s);
    const Tensor &rows = batch.inputs[0], &order = batch.tokens.segments[kTime].order;
    models::copy_caption(rows.slice(0, begin, begin + sample.context.size(0)).narrow(1, 0, c_.text_dim),
                         sample.context);
    put_patches(rows.slice(0, video, end), sample.x);
    for (int64_t i = 0; i < 2; ++i)
      batch.inputs[1][stream + i].copy_(at::cos(at::arange(kFrequencies, at::kFloat) * (sample.t / 100 + i)));
    modulation_rows.slice(0, begin, video).fill_(stream);
    modulation_rows.slice(0, video, end).fill_(stream + 1);
    order.slice(0, begin, video).copy_(at::arange(begin, video, at::kLong));
    const int64_t frames = sample.x.size(1);  // each place of the video over its frames
    order.slice(0, video, end).view({-1, frames}).copy_(at::arange(video, end, at::kLong).view({frames, -1}).t());
  }

  static void add_space(net::Space& space, int64_t begin, int64_t rows) {
    space.ranges.push_back({begin, begin + rows});
    space.offsets.push_back(space.total() + rows);
  }
  void add_segments(net::Segments& table, int64_t begin, const std::array<int64_t, 3>& grid) const {
    const auto add = [&](int64_t rows) {
      table.ranges.push_back({begin, begin + rows, begin, begin + rows});
      begin += rows;
    };
    add(c_.text_len);
    for (int64_t place = 0; place < grid[1] * grid[2]; ++place) add(grid[0]);
  }

  const Config c_;
};

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file,
                                         const std::map<std::string, std::vector<int64_t>>&) {
  const models::ConfigReader fields(json, file);
  Config c;
  c.dim = fields.size("dim", c.dim), c.heads = fields.size("num_heads", c.heads);
  c.layers = fields.size("num_layers", c.layers), c.hidden = fields.size("ffn_dim", c.hidden);
  c.text_dim = fields.size("text_dim", c.text_dim), c.text_len = fields.size("text_len", c.text_len);
  return std::make_unique<Model>(c);
}

const bool registered = [] {
  models::add_family(
      {"toy", [] { return std::vector<std::string>{"toy"}; },
       [](const std::string&) -> std::unique_ptr<net::Denoiser> { return std::make_unique<Model>(Config{}); },
       from_json});
  return true;
}();

}  // namespace
}  // namespace tessera::toy
