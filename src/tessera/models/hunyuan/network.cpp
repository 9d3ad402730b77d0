#include "tessera/models/common/two_streams.h"
#include "tessera/models/hunyuan/spec.h"

namespace tessera::models::hunyuan {

using at::Tensor;
using net::Act;
using net::Context;
using net::Flow;

namespace {

constexpr double kPlainEps = 1e-5;  // of the norms that the reference leaves at its library's default
enum Kind { kOfCaption, kOfGlyphs, kOfPicture, kKinds };  // rows of the table of kinds

TwoStreams two_streams(const Config& c) {
  const auto stream = [](int space, const std::string& name) {
    const std::string attn = name + "_attn_";
    return Stream{.space = space,
                  .modulation = name + "_mod.linear",
                  .q = attn + "q",
                  .k = attn + "k",
                  .v = attn + "v",
                  .q_norm = attn + "q_norm",
                  .k_norm = attn + "k_norm",
                  .out = attn + "proj",
                  .up = name + "_mlp.fc1",
                  .down = name + "_mlp.fc2"};
  };
  return {.heads = c.num_heads,
          .width = c.hidden_size,
          .mlp_dim = c.mlp_dim(),
          .rope = net::RopeStyle::interleaved,
          .video = stream(kVideo, "img"),
          .text = stream(kWords, "txt")};
}

class Stem final : public FamilyUnit<Config> {
 public:
  explicit Stem(const Config& config) : FamilyUnit(config, "stem", "") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const Tensor video = ctx.linear("img_in.proj", ctx.part(in.stream[kLatents], kVideo),
                                    {.space = kVideo, .out = c_.hidden_size, .kernel = {1, 1, 1}});
    Tensor vec = two_linears(ctx, "time_in.mlp.0", "time_in.mlp.2", in.stream[kTime]);  // vec [B, d]
    if (c_.meanflow) vec = vec + two_linears(ctx, "time_r_in.mlp.0", "time_r_in.mlp.2", in.stream[kNextTime]);
    const Tensor x = ctx.join({{kVideo, video}, {kWords, words(ctx, in)}});  // x [T, d]
    return {{x}, {vec}};
  }

 private:
  Tensor two_linears(Context& ctx, const std::string& first, const std::string& second, const Tensor& rows) const {
    return ctx.linear(second, ctx.linear(first, rows, {.out = c_.hidden_size}), {.act = Act::silu});
  }

  /// This rank's rows of all words.
  Tensor words(Context& ctx, const Flow& in) const {
    const Tensor kinds = ctx.param("cond_type_embedding.weight", {kKinds, c_.hidden_size});
    const Tensor caption = refined(ctx, in) + kinds[kOfCaption], glyphs = glyphs_of(ctx, in) + kinds[kOfGlyphs],
                 picture = picture_of(ctx, in) + kinds[kOfPicture];
    const net::Tokens& tokens = ctx.tokens();
    std::vector<Tensor> all;
    for (size_t s = 0; s + 1 < tokens.offsets.size(); ++s)
      for (const auto& [space, rows] : {std::pair(kPicture, picture), {kGlyphs, glyphs}, {kCaption, caption}}) {
        const std::vector<int64_t>& at = tokens.space(space).offsets;
        all.push_back(rows.slice(0, at[s], at[s + 1]));  // maybe none
      }
    const net::Space& here = tokens.space(kWords);
    return at::cat(all).slice(0, here.begin, here.begin + here.count());
  }

  /// Two blocks in which the rows of a caption attend to each other, modulated by the time and by the mean of its rows.
  Tensor refined(Context& ctx, const Flow& in) const {
    const net::Linear of_rows{.space = kCaption, .out = c_.hidden_size};
    const net::Segments by_caption{.q = kCaption, .k = kCaption};
    const std::string root = "txt_in.";
    const Tensor c =
        two_linears(ctx, root + "t_embedder.mlp.0", root + "t_embedder.mlp.2", in.stream[kTime]) +
        two_linears(ctx, root + "c_embedder.linear_1", root + "c_embedder.linear_2", in.stream[kCaptionMean]);
    Tensor x = ctx.linear(root + "input_embedder", in.stream[kCaptionRows], of_rows);  // x [n, d]
    for (int64_t i = 0; i < kRefiners; ++i) {
      const std::string block = root + "individual_token_refiner.blocks." + std::to_string(i) + ".";
      const auto gates =
          ctx.linear(block + "adaLN_modulation.1", c, {.act = Act::silu, .out = 2 * c_.hidden_size}).chunk(2, 1);
      const Tensor attention_gate = gates[0].contiguous(), mlp_gate = gates[1].contiguous();  // [B, d]
      const Tensor y = ctx.norm(block + "norm1", x, {}, kCaption);
      const auto projected = [&](const char* what) { return ctx.linear(block + "self_attn_" + what, y, of_rows); };
      const Tensor q = projected("q"), k = projected("k"), v = projected("v");
      const Tensor heard = ctx.attention(block + "attn", q, k, v, c_.num_heads, by_caption);
      x = ctx.residual(block + "gate1", x, ctx.linear(block + "self_attn_proj", heard, of_rows), &attention_gate,
                       kCaption);
      const Tensor wide = ctx.linear(block + "mlp.fc1", ctx.norm(block + "norm2", x, {}, kCaption),
                                     {.space = kCaption, .out = c_.mlp_dim()});
      const Tensor fed =
          ctx.linear(block + "mlp.fc2", wide, {.act = Act::silu, .space = kCaption, .out = c_.hidden_size});
      x = ctx.residual(block + "gate2", x, fed, &mlp_gate, kCaption);
    }
    return x;
  }

  Tensor glyphs_of(Context& ctx, const Flow& in) const {
    const auto linear = [&](const char* site, const Tensor& x, int64_t out, Act act) {
      return ctx.linear(site, x, {.act = act, .space = kGlyphs, .out = out});
    };
    Tensor y = ctx.norm("byt5_in.layernorm", in.stream[kGlyphRows], {.eps = kPlainEps}, kGlyphs);
    y = linear("byt5_in.fc1", y, c_.glyph_hidden, Act::none);
    y = linear("byt5_in.fc2", y, c_.glyph_hidden, Act::gelu);
    return linear("byt5_in.fc3", y, c_.hidden_size, Act::gelu);
  }

  Tensor picture_of(Context& ctx, const Flow& in) const {
    Tensor y = ctx.norm("vision_in.proj.0", in.stream[kPictureRows], {.eps = kPlainEps}, kPicture);
    y = ctx.linear("vision_in.proj.1", y, {.space = kPicture});
    y = ctx.linear("vision_in.proj.3", y, {.act = Act::gelu, .space = kPicture, .out = c_.hidden_size});
    return ctx.norm("vision_in.proj.4", y, {.eps = kPlainEps}, kPicture);
  }
};

}  // namespace

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config) {
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(std::make_unique<Stem>(config));
  for (int64_t i = 0; i < config.depth; ++i) units.push_back(std::make_unique<TwoStreamBlock>(two_streams(config), i));
  units.push_back(std::make_unique<TwoStreamHead>(config.channels));
  // a video token, then one of a caption
  net::Tokens tokens;
  tokens.offsets = {0, 2};
  tokens.spaces.resize(kPicture);
  tokens.spaces[kVideo - 1].ranges = {{0, 1}};
  tokens.spaces[kWords - 1].ranges = {{1, 2}};
  tokens.spaces[kWords - 1].offsets = tokens.spaces[kCaption - 1].offsets = {0, 1};
  tokens.spaces[kGlyphs - 1].offsets = tokens.spaces[kPicture - 1].offsets = {0, 0};
  net::Flow inputs{
      {net::sizes_of(2, config.in_channels()), net::sizes_of(1, config.text_dim), net::sizes_of(0, config.glyph_dim),
       net::sizes_of(0, config.image_dim), net::sizes_of(1, config.text_dim), net::sizes_of(1, kFrequencies)},
      {}};
  if (config.meanflow) inputs.stream.push_back(net::sizes_of(1, kFrequencies));
  net::declare(units, std::move(inputs), tokens);
  return units;
}

}  // namespace tessera::models::hunyuan
