#include "tessera/models/wan/vace.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/models/wan/network.h"
#include "tessera/models/wan/weight_form.h"

namespace tessera::models::wan {

using at::Tensor;
using net::Context;
using net::Flow;

namespace {

using Json = nlohmann::ordered_json;

enum VaceInput { kVaceRows = 3, kScales };  // after those of a text-to-video stem
enum VaceStream { kMain, kVace };           // between units
constexpr size_t kScaleCond = 3;            // of the shared conditioning, after that of network.cpp
constexpr int64_t kMostReferences = 4;      // of a sample; what VideoX-Fun's trainer takes
constexpr int64_t kCell = 64;               // pixels of a latent's cell: channels of the mask

/// Also makes the second stream: its first block's projection is here, since it reads the patches before the first block.
class VaceStem final : public FamilyUnit<VaceConfig> {
 public:
  explicit VaceStem(const VaceConfig& config) : FamilyUnit(config, "stem", ""), stem_(make_stem(config.base)) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Flow out = stem_->forward(ctx, in);
    const auto& p = c_.base.patch;
    const Tensor c = ctx.linear("vace_patch_embedding", in.stream[kVaceRows],
                                {.out = c_.base.dim, .kernel = {p.begin(), p.end()}});  // [T, d]
    const Tensor projected = ctx.linear("vace_blocks.0.before_proj", c);
    out.stream.push_back(ctx.residual("vace_sum", out.stream[kMain], projected));
    if (in.stream.size() > kScales) out.cond.push_back(in.stream[kScales]);  // [R, vace blocks]
    return out;
  }
  std::vector<std::string_view> order() const override { return stem_->order(); }

 private:
  const std::unique_ptr<net::Unit> stem_;
};

/// A block of the second stream, and what it adds to the first. After the last one there is no second stream.
class VaceBlock final : public FamilyUnit<VaceConfig> {
 public:
  VaceBlock(const VaceConfig& config, int64_t index, bool last)
      : FamilyUnit(config, "vace_blocks", last ? "last_vace_block" : "vace_block", index),
        block_(make_block(config.base, index)),
        index_(index),
        last_(last) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const Tensor c = block_->forward(ctx, {{in.stream[kVace]}, in.cond}).stream[0];
    const Tensor hint = ctx.linear("after_proj", c);
    Tensor factor;  // [R, d]
    if (in.cond.size() > kScaleCond)
      factor = in.cond[kScaleCond].slice(1, index_, index_ + 1).expand({-1, c_.base.dim}).contiguous();
    const Tensor x = ctx.residual("hint", in.stream[kMain], hint, factor.defined() ? &factor : nullptr);
    return last_ ? Flow{{x}, {}} : Flow{{x, c}, {}};
  }
  std::vector<std::string_view> order() const override { return block_->order(); }

 private:
  const std::unique_ptr<net::Unit> block_;
  const int64_t index_;
  const bool last_;
};

std::vector<std::unique_ptr<net::Unit>> make_vace_units(const VaceConfig& c) {
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(std::make_unique<VaceStem>(c));
  size_t made = 0;
  for (int64_t i = 0; i < c.base.num_layers; ++i) {
    const bool alone = made == c.layers.size();  // no second stream passes it by
    units.push_back(make_block(c.base, i, alone ? "block" : "block_beside_vace"));
    if (alone || c.layers[made] != i) continue;
    const bool last = made + 1 == c.layers.size();
    units.push_back(std::make_unique<VaceBlock>(c, static_cast<int64_t>(made++), last));
  }
  units.push_back(make_head(c.base));
  net::Tokens tokens;
  tokens.spaces.resize(kText);
  const int64_t patch = c.base.patch_size();
  net::declare(units,
               {{net::sizes_of(1, patch * c.base.in_dim), net::sizes_of(1, c.base.text_dim),
                 net::sizes_of(1, c.base.freq_dim), net::sizes_of(1, patch * c.vace_dim)},
                {}},
               tokens);
  return units;
}

std::vector<int64_t> every(int64_t step, int64_t layers) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < layers; i += step) all.push_back(i);
  return all;
}

}  // namespace

bool is_vace_config(std::string_view text) {
  return says(text, "vace", {"VaceWanModel", "WanVACETransformer3DModel"}, "vace_layers");
}

VaceConfig parse_vace_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  VaceConfig c{.base = parse_base(text, file, "t2v"),
               .layers = {}};  // what releases have here says nothing of the blocks
  c.vace_dim = json.size(json.has("vace_in_channels") ? "vace_in_channels" : "vace_in_dim", c.vace_dim);
  c.layers =
      json.has("vace_layers") ? block_numbers(json, "vace_layers", c.base.num_layers) : every(2, c.base.num_layers);
  if (c.layers.front() != 0)
    json.fail("vace_layers begins with " + std::to_string(c.layers.front()) +
              ": the second stream begins beside block 0");
  return c;
}

std::string to_json(const VaceConfig& c) {
  Json json = base_json(c.base, "vace", "VaceWanModel");
  json["vace_layers"] = c.layers;
  json["vace_in_dim"] = c.vace_dim;
  return json.dump(2) + "\n";
}

const std::vector<std::pair<std::string, VaceConfig>>& vace_presets() {
  const auto of = [](std::string_view preset, std::vector<int64_t> layers, int64_t num_layers = 0) {
    const Config base = preset_with(preset, num_layers);
    return VaceConfig{base, std::move(layers), 2 * base.in_dim + kCell};
  };
  static const std::vector<std::pair<std::string, VaceConfig>> table = {
      {"wan2.1-vace-1.3b", of("wan2.1-t2v-1.3b", every(2, 30))},
      {"wan2.1-vace-14b", of("wan2.1-t2v-14b", every(5, 40))},
      {"wan2.2-vace-fun-a14b", of("wan2.2-t2v-a14b", every(5, 40))},  // each of the two experts
      // latents of the built-in wavelet, text of umt5-demo
      {"wan-vace-demo", of("wan-demo", {0, 2, 4})},
      {"wan-vace-tiny", of("wan-tiny", {0, 2}, 4)}};
  return table;
}

Vace::Vace(const VaceConfig& config)
    : FamilyDenoiser(config, denoiser_sizes(config.base), config.base.patch), base_(config.base) {
  units_ = make_vace_units(config);
}

net::Batch Vace::pack(const std::vector<net::Sample>& samples) const {
  net::Batch batch = base_.pack(samples);
  const int64_t blocks = static_cast<int64_t>(config_.layers.size());
  const Tensor rows = at::empty({batch.tokens.total(), config_.base.patch_size() * config_.vace_dim},
                                samples.at(0).x.options().dtype(at::kFloat));
  const Tensor scales = at::ones({batch.inputs[2].size(0), blocks}, at::kFloat);
  bool any_scale = false;
  for (size_t s = 0; s < samples.size(); ++s) {
    const net::Sample& sample = samples[s];
    const auto x = sample.x.sizes();
    const auto context = sample.extra.find("vace_context"), scale = sample.extra.find("vace_scale");
    const std::vector<int64_t> wanted = {config_.vace_dim, x[1], x[2], x[3]};
    const bool there = context != sample.extra.end();
    check_input(there && context->second.sizes() == wanted, "wan.pack",
                "vace_context " + (there ? c10::str(context->second.sizes()) : "is missing") + ": expected " +
                    c10::str(at::IntArrayRef(wanted)),
                "the data was encoded for another model: run prepare again");
    fill_rows(rows.slice(0, batch.tokens.offsets[s], batch.tokens.offsets[s + 1]), context->second, config_.base.patch);
    if (scale == sample.extra.end()) continue;
    const int64_t factors = scale->second.numel();
    check_input((factors == blocks || factors == 1) && scales.size(0) == static_cast<int64_t>(samples.size()),
                "wan.pack",
                "vace_scale " + c10::str(scale->second.sizes()) + ": expected " + std::to_string(blocks) +
                    " factors, and one timestep a sample");
    scales[static_cast<int64_t>(s)].copy_(scale->second.view({factors}));
    any_scale = true;
  }
  batch.inputs.push_back(rows);
  if (any_scale) batch.inputs.push_back(scales.to(rows.device()));
  batch.token_inputs = {0, kVaceRows};
  return batch;
}

net::Conditions Vace::conditions() const {
  net::Conditions wants;
  wants.guides = {"guide", "guide_mask"};
  wants.references = kMostReferences;
  return wants;
}

std::map<std::string, Tensor> Vace::guide(const net::VideoCodec& codec, const net::Guides& guides) const {
  const auto clip = [&](const char* name) {
    const auto found = guides.clips.find(name);
    return found == guides.clips.end() ? Tensor() : found->second;
  };
  VaceSource source{.video = clip("guide"), .mask = clip("guide_mask"), .shown = {}, .references = {}};
  const bool none = !source.video.defined();
  if (none) source.video = at::zeros({3, guides.frames, guides.height, guides.width}, at::kFloat);
  // the first channel of a picture, 1 is white; without a clip all is to be generated
  source.mask = none || !source.mask.defined() ? at::ones_like(source.video).slice(0, 0, 1)
                                               : ((source.mask.slice(0, 0, 1) + 1) / 2).clamp(0, 1);
  source.shown = source.mask;
  if (const Tensor split = clip("guide_split"); split.defined())  // parts the pixels, and is not shown
    source.mask = ((split.slice(0, 0, 1) + 1) / 2).clamp(0, 1);
  for (const Tensor& picture : guides.references)
    source.references.push_back(letterboxed(picture, guides.height, guides.width));
  const Tensor context = vace_context(codec, source);
  check_input(context.size(0) == config_.vace_dim, "wan.vace",
              "the autoencoder makes a context of " + std::to_string(context.size(0)) + " channels, the model takes " +
                  std::to_string(config_.vace_dim),
              "does data.vae belong to this model? Else set model.config.vace_in_dim to that number");
  return {{"vace_context", context}};
}

Tensor Vace::with_references(const Tensor& latent, const std::map<std::string, Tensor>& extra) const {
  const auto context = extra.find("vace_context");
  const int64_t before = context == extra.end() ? 0 : context->second.size(1) - latent.size(1);
  if (before <= 0) return latent;  // fewer frames than the latent has are refused where they are packed
  return at::cat({context->second.slice(0, 0, latent.size(0)).slice(1, 0, before), latent}, 1);
}

net::Sample Vace::blank(const std::array<int64_t, 4>& latent) const {
  net::Sample sample = FamilyDenoiser::blank(latent);
  sample.extra["vace_context"] = at::zeros({config_.vace_dim, latent[1], latent[2], latent[3]}, at::kFloat);
  return sample;
}

std::vector<std::map<std::string, Tensor>> Vace::unpack_input_grads(const std::vector<Tensor>& grads,
                                                                    const net::Batch& batch,
                                                                    const std::vector<net::Sample>& samples) const {
  auto result = base_.unpack_input_grads(grads, batch, samples);
  for (size_t s = 0; s < samples.size(); ++s)
    result[s]["vace_context"] =
        from_rows(grads[kVaceRows].slice(0, batch.tokens.offsets[s], batch.tokens.offsets[s + 1]),
                  samples[s].extra.at("vace_context").sizes(), config_.base.patch);
  return result;
}

std::string Vace::foreign_name(const std::string& name, const std::string& naming) const {
  return naming == "diffusers" ? rename(diffusers_names(), name) : name;
}

/// As in the official code: the second stream has no effect at first.
Initial Vace::initial(const plan::ParamSpec& param) const {
  if (param.name.ends_with("before_proj.weight") || param.name.ends_with("after_proj.weight"))
    return Initial::constant(0);
  return initial_values(param, is_released(vace_presets(), config_));
}

}  // namespace tessera::models::wan
