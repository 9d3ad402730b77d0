#include "tessera/models/encoders/umt5.h"

#include "tessera/base/check.h"
#include "tessera/models/common/initial.h"
#include "tessera/models/common/names.h"
#include "tessera/models/encoders/prompts.h"
#include "tessera/net/declare.h"

namespace tessera::models::umt5 {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

/// Where layers share a table of positions, that of the first goes to all of them beside the key mask.
constexpr const char* kSharedPositions = "blocks.0.pos_embedding.embedding.weight";

class Embedding final : public net::Unit {
 public:
  explicit Embedding(const Config& c) : Unit({.name = "token_embedding", .kind = "embedding"}, ""), c_(c) {}
  Flow forward(Context& ctx, const Flow& in) const override {
    net::Flow out{{ctx.embedding("token_embedding", in.stream[0], {c_.vocab_size, c_.dim})}, {}};
    if (c_.shared_positions) out.cond.push_back(ctx.param(kSharedPositions, {c_.num_buckets, c_.num_heads}));
    if (in.stream.size() > 1) out.cond.push_back(in.stream[1]);  // the key mask, for all blocks
    return out;
  }

 private:
  const Config c_;
};

class Block final : public net::Unit {
 public:
  Block(const Config& c, int64_t index) : Unit({.name = "blocks." + std::to_string(index), .kind = "block"}), c_(c) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // x [T, dim]
    const net::Norm norm{.kind = net::Norm::rms, .eps = c_.eps};
    x = x + attention(ctx, ctx.norm("norm1", x, norm), in.cond);
    const Tensor y = ctx.norm("norm2", x, norm);
    const Tensor gate = at::gelu(linear(ctx, "ffn.gate.0", y, c_.dim_ffn), "tanh");  // [T, ffn]
    return {{x + linear(ctx, "ffn.fc2", linear(ctx, "ffn.fc1", y, c_.dim_ffn) * gate, c_.dim)}, {}};
  }

 private:
  static Tensor linear(Context& ctx, const char* site, const Tensor& x, int64_t out) {
    return ctx.linear(site, x, {.out = out, .bias = false});
  }

  /// The bias of each pair of n tokens, [n * n, heads].
  Tensor positions(Context& ctx, int64_t n, const std::vector<Tensor>& cond, const Tensor& y) const {
    const Tensor buckets = relative_buckets(n, c_, y);
    if (!c_.shared_positions) return ctx.embedding("pos_embedding.embedding", buckets, {c_.num_buckets, c_.num_heads});
    if (y.is_meta()) return at::empty({n * n, c_.num_heads}, cond[0].options());
    return cond[0].index_select(0, buckets);
  }

  Tensor attention(Context& ctx, const Tensor& y, const std::vector<Tensor>& cond) const {
    const Tensor mask = cond.size() > (c_.shared_positions ? 1 : 0) ? cond.back() : Tensor();
    const Tensor q = linear(ctx, "attn.q", y, c_.dim_attn), k = linear(ctx, "attn.k", y, c_.dim_attn),
                 v = linear(ctx, "attn.v", y, c_.dim_attn);  // [T, inner]
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
    return linear(ctx, "attn.o", prompts.size() == 1 ? prompts[0] : at::cat(prompts), c_.dim);
  }

  const Config c_;
};

class FinalNorm final : public net::Unit {
 public:
  explicit FinalNorm(const Config& c) : Unit({.name = "norm", .kind = "norm"}, ""), eps_(c.eps) {}
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

const std::vector<std::pair<std::string, Config>>& byt5_presets() {
  static const std::vector<std::pair<std::string, Config>> table = {
      {"byt5-glyph",
       {.vocab_size = 1510,
        .dim = 1472,
        .dim_attn = 384,
        .dim_ffn = 3584,
        .num_heads = 6,
        .num_layers = 12,
        .shared_positions = true}},
      {"byt5-demo",
       {.vocab_size = 384,
        .dim = 32,
        .dim_attn = 16,
        .dim_ffn = 48,
        .num_heads = 2,
        .num_layers = 2,
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
  net::declare_frozen(units_, {{net::id_without_memory()}, {}}, 1);
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
  return naming == "hf-encoder" ? to_foreign(encoder_names(), name) : rename(hf_names(), name);
}

void Umt5::initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) const {
  const bool norm =
      param.name.ends_with("norm1.weight") || param.name.ends_with("norm2.weight") || param.name == "norm.weight";
  draw_initial(norm ? Initial::constant(1) : Initial::normal(deviation(param.name, config_)), seed, param.name, first,
               count, out);
}

const std::vector<NamePattern>& hf_names() {
  static const std::vector<NamePattern> table = {
      {"token_embedding.weight", "shared.weight"},
      {"norm.weight", "encoder.final_layer_norm.weight"},
      {"blocks.#.norm1.*", "encoder.block.#.layer.0.layer_norm.*"},
      {"blocks.#.pos_embedding.embedding.*", "encoder.block.#.layer.0.SelfAttention.relative_attention_bias.*"},
      {"blocks.#.attn.*", "encoder.block.#.layer.0.SelfAttention.*"},
      {"blocks.#.norm2.*", "encoder.block.#.layer.1.layer_norm.*"},
      {"blocks.#.ffn.gate.0.*", "encoder.block.#.layer.1.DenseReluDense.wi_0.*"},
      {"blocks.#.ffn.fc1.*", "encoder.block.#.layer.1.DenseReluDense.wi_1.*"},
      {"blocks.#.ffn.fc2.*", "encoder.block.#.layer.1.DenseReluDense.wo.*"},
  };
  return table;
}

const KeyMap& encoder_names() {
  static const KeyMap map = {hf_names(), {{"shared.weight", "embed_tokens.weight"}, {"encoder.*", "*"}}};
  return map;
}

namespace {

using Json = nlohmann::ordered_json;

std::string model_of(const Shapes& official, bool shared_positions) {
  std::vector<std::pair<std::string, Config>> known = shared_positions ? t5_presets() : presets();
  if (shared_positions) known.insert(known.end(), byt5_presets().begin(), byt5_presets().end());
  for (const auto& [name, config] : known)
    if (config.vocab_size == size_of(official, "token_embedding.weight", 0) &&
        config.dim == size_of(official, "token_embedding.weight", 1) && config.num_layers == count_blocks(official))
      return name;
  return shared_positions ? "t5" : "umt5";
}

Json config_json(const ConfigSource& source) {
  const auto& [diffusers, identity, size, given, file] = source;
  Json out;
  const int64_t heads = size("blocks.0.pos_embedding.embedding.weight", 1);
  const int64_t attention = size("blocks.0.attn.q.weight", 0), layers = count_blocks(size.shapes);
  out = given.base(diffusers ? "d_model" : "dim_attn");
  out["vocab_size"] = size("token_embedding.weight", 0);
  if (!diffusers) {
    out.update(Json{{"_class_name", "T5Encoder"},
                    {"dim", size("token_embedding.weight", 1)},
                    {"dim_attn", attention},
                    {"dim_ffn", size("blocks.0.ffn.fc1.weight", 0)},
                    {"num_heads", heads},
                    {"num_layers", layers},
                    {"num_buckets", size("blocks.0.pos_embedding.embedding.weight", 0)},
                    {"shared_pos", false},
                    {"dropout", given.get<double>("dropout", "dropout_rate", 0.1)}});
    return out;
  }
  out.update(Json{
      {"_class_name", "UMT5EncoderModel"},
      {"architectures", {"UMT5EncoderModel"}},
      {"model_type", "umt5"},
      {"d_model", size("token_embedding.weight", 1)},
      {"d_kv", attention / heads},
      {"d_ff", size("blocks.0.ffn.fc1.weight", 0)},
      {"num_layers", layers},
      {"num_heads", heads},
      {"relative_attention_num_buckets", size("blocks.0.pos_embedding.embedding.weight", 0)},
      {"relative_attention_max_distance", given.get<int64_t>("relative_attention_max_distance", "max_distance", 128)},
      {"dropout_rate", given.get<double>("dropout", "dropout_rate", 0.1)},
      {"layer_norm_epsilon", given.get<double>("eps", "layer_norm_epsilon", 1e-6)},
      {"feed_forward_proj", "gated-gelu"},
      {"dense_act_fn", "gelu_new"},
      {"is_gated_act", true},
      {"is_encoder_decoder", true},
      {"pad_token_id", 0},
      {"eos_token_id", 1},
      {"decoder_start_token_id", 0},
      {"tie_word_embeddings", false},
      {"scalable_attention", true}});
  return out;
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::text_encoder,
          .title = "UMT5",
          .model = "umt5",
          .variant = {},
          .marks = {"blocks.0.ffn.gate.0.weight", "blocks.0.attn.q.weight", "norm.weight",
                    "blocks.1.pos_embedding.embedding.weight"},
          .names = {.diffusers = {hf_names()},
                    // of transformers; the same tensor as shared.weight
                    .tied = {{"encoder.embed_tokens.weight", "token_embedding.weight"}},
                    .comfyui_as_diffusers = true},
          .refine = [](const Shapes& official, Identity& identity) { identity.model = model_of(official, false); },
          .config = config_json,
          .config_marks = {"dim_attn", "d_model"}};
}

/// T5 has no other program's config but transformers', whose fields UMT5 has as well.
WeightForm t5_weight_form() {
  WeightForm form = weight_form();
  form.title = "T5", form.model = "t5";
  form.names.official = encoder_names();
  form.marks.pop_back();
  form.refine = [](const Shapes& official, Identity& identity) { identity.model = model_of(official, true); };
  form.config = [](const ConfigSource& source) {
    ConfigSource ours = source;
    ours.diffusers = true;
    Json out = config_json(ours);
    out["_class_name"] = "T5EncoderModel", out["architectures"] = {"T5EncoderModel"}, out["model_type"] = "t5";
    out.erase("scalable_attention");
    return out;
  };
  return form;
}

namespace {

std::unique_ptr<net::TextEncoder> from_preset(const std::string& preset) {
  return std::make_unique<Umt5>(find_named(presets(), "text encoder", preset));
}

std::unique_ptr<net::TextEncoder> from_json(const std::string& json, const std::string& file) {
  return std::make_unique<Umt5>(parse_config(json, file));
}

const Umt5& as_umt5(const net::TextEncoder& encoder) { return dynamic_cast<const Umt5&>(encoder); }

net::Batch pack_case(const net::TextEncoder& encoder, const CaseTensors& file) {
  return as_umt5(encoder).pack_padded(file.tensor("in.ids"), file.tensor("in.mask"));
}

/// `hidden` [B * L, dim]; beside it the bias of block 0 for L tokens, [heads, L, L].
NamedTensors case_results(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden,
                          const std::function<Tensor(const std::string& name)>& parameter) {
  const Tensor ids = file.tensor("in.ids");
  const int64_t n = ids.size(1);
  const Tensor table = parameter("blocks.0.pos_embedding.embedding.weight");
  const Tensor bias =
      at::embedding(table, relative_buckets(n, as_umt5(encoder).config(), table)).t().reshape({-1, n, n});
  return {{"out.hidden", hidden.reshape({ids.size(0), n, encoder.dim()})},
          {"out.pos_bias_block0", bias.select(1, 0)},
          {"out.pos_bias_block0_last_row", bias.select(1, n - 1)}};
}

std::unique_ptr<net::TextEncoder> from_t5_preset(const std::string& preset) {
  return std::make_unique<Umt5>(find_named(t5_presets(), "text encoder", preset));
}

/// The prompts twice: with their mask, and as Open-Sora encodes them, whose padding takes part.
net::Batch pack_t5_case(const net::TextEncoder& encoder, const CaseTensors& file) {
  const Tensor ids = file.tensor("in.input_ids"), mask = file.tensor("in.attention_mask");
  return as_umt5(encoder).pack_padded(at::cat({ids, ids}), at::cat({mask, at::ones_like(mask)}));
}

Tensor both_of(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden) {
  const Tensor ids = file.tensor("in.input_ids");
  return hidden.reshape({2, ids.size(0), ids.size(1), encoder.dim()});
}

NamedTensors t5_case_results(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden,
                             const std::function<Tensor(const std::string& name)>&) {
  const Tensor both = both_of(encoder, file, hidden);
  return {{"out.last_hidden_state", both[0]}, {"out.last_hidden_state_nomask", both[1]}};
}

}  // namespace

TextEncoderMake t5_text_encoder() {
  return {.presets = [] { return names_of(t5_presets()); },
          .from_preset = from_t5_preset,
          .from_json = from_json,
          .weights = t5_weight_form(),
          .verify = {.kind = "t5",
                     .pack = pack_t5_case,
                     .results = t5_case_results,
                     .state = [](const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& rows) {
                       return both_of(encoder, file, rows)[0];
                     }}};
}

TextEncoderMake byt5_text_encoder() {
  return {.presets = [] { return names_of(byt5_presets()); },
          .from_preset = [](const std::string& preset) -> std::unique_ptr<net::TextEncoder> {
            return std::make_unique<Umt5>(find_named(byt5_presets(), "text encoder", preset));
          },
          .from_json = from_json,
          .weights = t5_weight_form(),
          .verify = {.kind = "byt5",
                     .pack = pack_masked,
                     .results = [](const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden,
                                   const std::function<Tensor(const std::string& name)>&) -> NamedTensors {
                       return {{"out.last_hidden_state", masked_rows(encoder, file, hidden)}};
                     },
                     .state = masked_rows}};
}

TextEncoderMake text_encoder() {
  return {.presets = [] { return names_of(presets()); },
          .from_preset = from_preset,
          .from_json = from_json,
          .weights = weight_form(),
          .verify = {.kind = "umt5",
                     .pack = pack_case,
                     .results = case_results,
                     .state =
                         [](const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& rows) {
                           const Tensor ids = file.tensor("in.ids");
                           return rows.reshape({ids.size(0), ids.size(1), encoder.dim()});
                         }},
          .in_bf16 = {"umt5-xxl"}};
}

}  // namespace tessera::models::umt5
