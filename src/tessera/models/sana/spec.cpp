#include "tessera/models/sana/spec.h"

#include <numeric>

#include "tessera/base/check.h"
#include "tessera/models/common/patches.h"
#include "tessera/models/common/rotary.h"
#include "tessera/models/sana/files.h"
#include "tessera/net/passes.h"

namespace tessera::models::sana {

using at::Tensor;

namespace {

constexpr const char* kPrepareAgain = "the data was encoded for another model: run prepare again";
constexpr double kUsualGuidance = 4.5;  // of diffusers' SanaSprintPipeline

using Grid3 = std::array<int64_t, 3>;

/// Frames, rows and columns of a latent's tokens.
Grid3 grid_of(const Tensor& x, const Config& c) {
  return {x.size(1) / c.patch[0], x.size(2) / c.patch[1], x.size(3) / c.patch[2]};
}
int64_t count_of(const Grid3& grid) { return grid[0] * grid[1] * grid[2]; }

/// Of a timestep of 0 to 1000 what its sinusoid is made of.
double time_unit(const Config& c) { return c.has_guidance() ? c.timestep_scale / 1000 : c.timestep_scale; }

void check_sample(const net::Sample& sample, const Config& c) {
  const Tensor &x = sample.x, &text = sample.context;
  const bool one_frame = c.is_video() || x.dim() != 4 || x.size(1) == 1;
  check_input(x.dim() == 4 && x.size(0) == c.in_channels && one_frame, "sana.pack",
              "latent " + c10::str(x.sizes()) + ": expected [" + std::to_string(c.in_channels) +
                  (c.is_video() ? ", frames, height, width]" : ", 1, height, width]: this model makes pictures"),
              c.is_video() ? kPrepareAgain
                           : "set data.frames = 1, or run prepare again where the data was encoded for another model");
  for (int axis = 0; axis < 3; ++axis)
    check_input(x.size(axis + 1) > 0 && x.size(axis + 1) % c.patch[axis] == 0, "sana.pack",
                "latent " + c10::str(x.sizes()) + ": frames, height and width must be multiples of " +
                    c10::str(at::IntArrayRef(c.patch)),
                "choose data.size accordingly");
  check_input(text.dim() == 2 && text.size(1) == c.caption_dim && text.size(0) >= 1 && text.size(0) <= c.caption_len,
              "sana.pack",
              "context " + c10::str(text.sizes()) + ": expected 1 to " + std::to_string(c.caption_len) + " rows of " +
                  std::to_string(c.caption_dim),
              "the text was encoded for another model: run prepare again");
}

/// The distinct timesteps of a sample's frames, and which of them each frame has.
struct Times {
  std::vector<double> t;
  std::vector<int32_t> of_frame;
};

Times times_of(const net::Sample& sample, const Config& c) {
  const auto frames = static_cast<size_t>(grid_of(sample.x, c)[0]);
  Times times{{sample.t}, std::vector<int32_t>(frames, 0)};
  if (!c.is_video()) return times;
  if (const auto given = sample.extra.find("t"); given != sample.extra.end()) {
    check_input(given->second.numel() == static_cast<int64_t>(frames), "sana.pack",
                "t has " + std::to_string(given->second.numel()) + " timesteps, the latent " + std::to_string(frames) +
                    " frames");
    const Tensor all = given->second.to(at::kCPU, at::kDouble).contiguous();
    times.t.assign(all.const_data_ptr<double>(), all.const_data_ptr<double>() + frames);
    std::iota(times.of_frame.begin(), times.of_frame.end(), 0);
    return times;
  }
  times.t.push_back(0);  // of a clean first frame; always there, so that samples need equal memory
  if (sample.extra.count("image_latent")) times.of_frame[0] = 1;
  return times;
}

/// The frames at which a clip's chunks begin.
std::vector<int64_t> chunks_of(const Tensor& given, int64_t frames) {
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < given.numel(); ++i) {
    starts.push_back(given[i].item<int64_t>());
    check_input(i == 0 ? starts[0] == 0 : starts[i] > starts[i - 1] && starts[i] < frames, "sana.pack",
                "chunks begin at 0 and at later frames of the clip, of " + std::to_string(frames) + " latent frames");
  }
  return starts;
}

/// In units of the grid that the model was trained on.
void put_positions(const Tensor& rows, const Grid3& grid, const Config& c) {
  const auto base = static_cast<double>(c.sample_size / c.patch[1]);
  const auto unit = [&](int64_t count) { return base / static_cast<double>(count) / *c.interpolation_scale; };
  fill_positions(rows, grid, {unit(grid[1]), unit(grid[2])});
}

/// What packed() asks for.
struct Packing {
  explicit Packing(const Config& config) : c_(config) {}

  void add(const net::Sample& sample) {
    check_sample(sample, c_);
    net::Tokens& tokens = batch_.tokens;
    const Grid3 grid = grid_of(sample.x, c_);
    const int64_t begin = tokens.total(), end = begin + count_of(grid);
    const bool clean = sample.extra.count("image_latent") > 0;
    check_input(!clean || c_.is_video(), "sana.pack", "a clean first frame for a model of pictures",
                "leave sample.image and diffusion.image_share out");
    any_clean_ = any_clean_ || clean;
    tokens.offsets.push_back(end);
    tokens.shapes.push_back(grid);
    const auto chunks = sample.extra.find("chunks");
    check_input(tokens.chunks.size() == (chunks == sample.extra.end() ? 0 : tokens.shapes.size() - 1), "sana.pack",
                "some samples of a micro-batch have chunks and some have none");
    if (chunks != sample.extra.end()) tokens.chunks.push_back(chunks_of(chunks->second, grid[0]));
    tokens.spaces[kText - 1].offsets.push_back(tokens.spaces[kText - 1].total() + sample.context.size(0));
    batch_.shapes.push_back({c_.out_channels, sample.x.size(1), sample.x.size(2), sample.x.size(3)});
    batch_.predicted.push_back({begin + (clean ? grid[1] * grid[2] : 0), end});
  }

  void allocate(at::Device device) {
    const auto fp32 = at::TensorOptions(at::kFloat).device(device);
    const int64_t total = batch_.tokens.total();
    batch_.inputs = {at::empty({total, c_.in_channels * c_.patch_size()}, fp32),
                     at::empty({batch_.tokens.spaces[kText - 1].total(), c_.caption_dim}, fp32), Tensor()};
    if (c_.has_guidance()) batch_.inputs.emplace_back();
    if (c_.interpolation_scale) {
      batch_.token_inputs.push_back(static_cast<int>(batch_.inputs.size()));
      batch_.inputs.push_back(at::empty({total, c_.dim()}, fp32));
    }
    time_rows_ = at::empty({total}, at::kInt);
    if (!c_.is_video()) return;
    batch_.tokens.cos = at::empty({total, c_.head_dim / 2}, fp32);
    batch_.tokens.sin = at::empty({total, c_.head_dim / 2}, fp32);
  }

  void fill(const net::Sample& sample, size_t s) {
    net::Tokens& tokens = batch_.tokens;
    const net::Space& text = tokens.space(kText);
    const int64_t begin = tokens.offsets[s], end = tokens.offsets[s + 1];
    const auto here = [&](const Tensor& rows) { return rows.slice(0, begin, end); };
    const Grid3 grid = tokens.shapes[s];
    fill_rows(here(batch_.inputs[0]), sample.x, c_.patch);
    if (const auto image = sample.extra.find("image_latent"); image != sample.extra.end())
      fill_rows(batch_.inputs[0].slice(0, begin, begin + grid[1] * grid[2]), image->second, c_.patch);
    copy_caption(batch_.inputs[1].slice(0, text.offsets[s], text.offsets[s + 1]), sample.context);
    if (c_.interpolation_scale) put_positions(here(batch_.inputs.back()), grid, c_);
    if (c_.is_video()) {
      Grid positions = clip_grid(grid[0], grid[1], grid[2]);
      if (const auto first = sample.extra.find("first_frame"); first != sample.extra.end())
        for (int64_t& time : positions.times) time += first->second.item<int64_t>();
      fill_rotary(here(tokens.cos), here(tokens.sin), positions);
    }
    const Times times = times_of(sample, c_);
    const auto first = static_cast<int64_t>(t_.size());
    for (int64_t f = 0; f < grid[0]; ++f) {
      const int64_t at = begin + f * grid[1] * grid[2];
      time_rows_.slice(0, at, at + grid[1] * grid[2]).fill_(first + times.of_frame[static_cast<size_t>(f)]);
    }
    t_.insert(t_.end(), times.t.begin(), times.t.end());
    const auto given = sample.extra.find("guidance");
    const double guidance = given == sample.extra.end() ? kUsualGuidance : given->second.item<double>();
    guidance_.resize(t_.size(), guidance * c_.guidance_scale);
  }

  void finish() {
    const at::Device device = batch_.inputs[0].device();
    for (double& t : t_) t *= time_unit(c_);
    if (c_.has_guidance()) batch_.inputs[3] = timestep_sinusoid(guidance_, kFrequencies).to(device);
    batch_.inputs[2] = timestep_sinusoid(t_, kFrequencies).to(device);
    batch_.tokens.rows = row_index(time_rows_, device);
    if (!any_clean_) batch_.predicted.clear();  // all tokens are predictions
  }

  const Config& c_;
  net::Batch batch_;
  Tensor time_rows_;
  std::vector<double> t_, guidance_;
  bool any_clean_ = false;
};

}  // namespace

Sana::Sana(const Config& config)
    : FamilyDenoiser(config,
                     {.channels = config.in_channels,
                      .context_dim = config.caption_dim,
                      .context_length = config.caption_len,
                      // what divides this divides the heads of both attentions
                      .heads = std::gcd(config.num_heads, config.cross_heads)},
                     config.patch) {
  units_ = make_units(config);
}

net::Conditions Sana::conditions() const {
  net::Conditions wants;
  wants.clean_first = wants.chunks_in_time = config_.is_video();
  return wants;
}

net::Batch Sana::pack(const std::vector<net::Sample>& samples) const {
  return packed<Packing>(samples, config_, kText);
}

std::vector<std::map<std::string, Tensor>> Sana::unpack_input_grads(const std::vector<Tensor>& grads,
                                                                    const net::Batch& batch,
                                                                    const std::vector<net::Sample>& samples) const {
  std::vector<std::map<std::string, Tensor>> result;
  const std::vector<int64_t>&tokens = batch.tokens.offsets, &text = batch.tokens.space(kText).offsets;
  for (size_t s = 0; s < samples.size(); ++s)
    result.push_back({{"x", from_rows(grads[0].slice(0, tokens[s], tokens[s + 1]), batch.shapes[s], config_.patch)},
                      {"context", grads[1].slice(0, text[s], text[s + 1])}});
  return result;
}

std::vector<Tensor> Sana::unpack(const Tensor& out, const net::Batch& batch) const {
  return FamilyDenoiser::unpack(out.slice(1, 0, out.size(1) - numbers_beside()), batch);
}

Tensor Sana::pack_target(const Tensor& target) const {
  const Tensor rows = FamilyDenoiser::pack_target(target);
  return numbers_beside() > 0 ? at::constant_pad_nd(rows, {0, numbers_beside()}) : rows;
}

/// Time, its modulation and what is made of time do; captions do not.
std::vector<bool> Sana::moving_conditioning() const {
  if (config_.is_video()) return {};
  std::vector<bool> moving = {true, true, false};
  if (config_.logvar) moving.push_back(true);
  return moving;
}

std::vector<Tensor> Sana::pack_directions(const net::Batch& batch,
                                          const std::vector<net::Direction>& directions) const {
  const Tensor patches = at::empty_like(batch.inputs[0]);
  std::vector<double> dt;
  for (size_t s = 0; s < directions.size(); ++s) {
    fill_rows(patches.slice(0, batch.tokens.offsets[s], batch.tokens.offsets[s + 1]), directions[s].x, config_.patch);
    dt.push_back(directions[s].t * time_unit(config_));
  }
  std::vector<Tensor> tangents(batch.inputs.size());
  tangents[0] = patches;
  tangents[2] = sinusoid_tangent(batch.inputs[2], dt);
  return tangents;
}

std::unique_ptr<net::Denoiser> Sana::teacher_form() const {
  if (config_.is_video()) return nullptr;
  Config teacher = config_;
  teacher.timestep_scale = time_unit(config_);
  teacher.type = Type::image, teacher.logvar = false, teacher.guidance_scale = Config().guidance_scale;
  return std::make_unique<Sana>(teacher);
}

std::string Sana::foreign_name(const std::string& name, const std::string& naming) const {
  if (naming == "diffusers") return rename(diffusers_names(config_.type), name);
  return naming == "official" ? rename(official_names(), name) : name;
}

std::string Sana::why_not_trained() const {
  if (!config_.has_guidance()) return {};
  return "SANA-Sprint is trained by distillation: set distill.method = \"scm\" and distill.teacher";
}

/// Those of NVlabs' program: Xavier for linears, 1 / sqrt(D) for the tables, N(0, 0.02) for the embeddings. The last only
/// where the sizes are those of a release; else Initial::embedding.
Initial Sana::initial(const plan::ParamSpec& param) const {
  const std::string_view name = param.name;
  const auto has = [&](std::string_view text) { return name.find(text) != name.npos; };
  if (name.ends_with(".bias") || has(".t_conv.")) return Initial::constant(0);
  if (name.ends_with("scale_shift_table"))
    return Initial::normal(1 / std::sqrt(static_cast<double>(param.shape.back())));
  if (name == "attention_y_norm.weight") return Initial::constant(0.01);
  if (has("_norm.")) return Initial::constant(1);
  const auto out = static_cast<double>(param.shape.front()), in = static_cast<double>(param.numel()) / out;
  if (name == "logvar_linear.weight" || name == "cfg_embedder.mlp.2.weight")
    return Initial::constant(0);  // samples weigh alike at first, and guidance says nothing
  if (has("_embedder.mlp.") || has(".y_proj.") || name.starts_with("t_block."))
    return is_released(presets(), config_) ? Initial::normal(0.02) : Initial::embedding(in, out);
  if (has("_conv.")) return {Initial::Kind::uniform, 1 / std::sqrt(in)};  // PyTorch's own, of convolutions
  return Initial::xavier(in, out);
}

}  // namespace tessera::models::sana
