#include "tessera/models/stdit/spec.h"

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/models/common/patches.h"
#include "tessera/models/common/rotary.h"
#include "tessera/models/stdit/files.h"

namespace tessera::models::stdit {

using at::Tensor;

namespace {

using Grid3 = std::array<int64_t, 3>;

constexpr const char* kPrepareAgain = "the data was encoded for another model: run prepare again";
constexpr int64_t kPixels = 8;  // of height and width, of a latent value
constexpr double kUsualRate = 24, kPictureRate = 120;
constexpr int64_t kEdges = 4;  // a patch is cut by no edge of the latent, by the right one, the lower one, or both

double number_of(const net::Sample& sample, const char* name, double absent) {
  const Tensor* given = extra_of(sample, name);
  return given ? given->item<double>() : absent;
}

void check_extras(const net::Sample& sample, const Config& c) {
  const Tensor& x = sample.x;
  const auto check = [&](const char* name, at::IntArrayRef shape) {
    const Tensor* given = extra_of(sample, name);
    check_input(!given || given->sizes() == shape, "stdit.pack",
                std::string(name) + (given ? " " + c10::str(given->sizes()) : "") + ": expected " + c10::str(shape));
  };
  check("image_latent", {c.in_channels, 1, x.size(2), x.size(3)});
  check("x_mask", {x.size(1)});
  for (const char* name : {"cond", "cond_mask"}) {
    check(name, x.sizes());
    check_input(c.cond || !extra_of(sample, name), "stdit.pack",
                std::string(name) + ": 1.2 takes no frames beside the latent", "use a preset of 1.3");
  }
  check_input(extra_of(sample, "cond") ? extra_of(sample, "cond_mask") || extra_of(sample, "mask_index")
                                       : !extra_of(sample, "cond_mask"),
              "stdit.pack", "cond and cond_mask belong together", "give both or none, or mask_index beside cond");
  if (const Tensor* given = extra_of(sample, "mask_index"); given && given->numel() > 0)
    check_input(c.cond && extra_of(sample, "y_null") && given->min().item<int64_t>() >= 0 &&
                    given->max().item<int64_t>() < x.size(1),
                "stdit.pack",
                "mask_index: expected a model of 1.3, frames in 0 .. " + std::to_string(x.size(1) - 1) +
                    ", and y_null beside it");
}

void check_sample(const net::Sample& sample, const Config& c) {
  const Tensor &x = sample.x, &text = sample.context;
  check_input(
      x.dim() == 4 && x.size(0) == c.in_channels && x.numel() > 0, "stdit.pack",
      "latent " + c10::str(x.sizes()) + ": expected [" + std::to_string(c.in_channels) + ", frames, height, width]",
      kPrepareAgain);
  check_input(text.dim() == 2 && text.size(1) == c.caption_dim && text.size(0) >= 1 && text.size(0) <= c.caption_len,
              "stdit.pack",
              "context " + c10::str(text.sizes()) + ": expected 1 to " + std::to_string(c.caption_len) + " rows of " +
                  std::to_string(c.caption_dim),
              kPrepareAgain);
  check_extras(sample, c);
}

/// Which frames are given without noise.
std::vector<bool> given_frames(const net::Sample& sample) {
  std::vector<bool> given(static_cast<size_t>(sample.x.size(1)), false);
  if (const Tensor* mask = extra_of(sample, "x_mask"))
    for (size_t f = 0; f < given.size(); ++f) given[f] = (*mask)[static_cast<int64_t>(f)].item<double>() == 0;
  if (extra_of(sample, "image_latent")) given[0] = true;
  return given;
}

/// Frames that follow one another and read the same text.
struct TextRun {
  int64_t frames = 0;
  bool null = false;  ///< y_null, else the caption
};

std::vector<TextRun> text_runs(const net::Sample& sample) {
  const Tensor* index = extra_of(sample, "mask_index");
  if (!index || index->numel() == 0) return {{sample.x.size(1), false}};
  std::vector<bool> null(static_cast<size_t>(sample.x.size(1)), false);
  for (int64_t i = 0; i < index->numel(); ++i) null[static_cast<size_t>((*index)[i].item<int64_t>())] = true;
  std::vector<TextRun> runs;
  for (const bool is_null : null) {
    if (runs.empty() || runs.back().null != is_null) runs.push_back({0, is_null});
    ++runs.back().frames;
  }
  return runs;
}
const Tensor& text_of(const net::Sample& sample, const TextRun& run) {
  return run.null ? *extra_of(sample, "y_null") : sample.context;
}

/// What predictions are multiplied by, so that the mean square over all numbers of their rows is that over the latent's
/// own: others in the rows are zero.
double output_scale(at::IntArrayRef latent, const Config& c) {
  const Grid3 grid = grid_of(latent, c.patch);
  const auto all = static_cast<double>(grid[1] * grid[2] * c.places() * c.out_channels());
  return std::sqrt(all / static_cast<double>(latent[2] * latent[3] * c.predicted_channels()));
}

/// kept [edges, p * p * c_out]: what the head's outputs are multiplied by. They are data - noise.
void fill_kept(const Tensor& kept, at::IntArrayRef latent, const Config& c) {
  const Grid3 grid = grid_of(latent, c.patch);
  const Tensor places = kept.view({kEdges, c.patch, c.patch, c.out_channels()}).zero_();
  const int64_t lower = latent[2] - (grid[1] - 1) * c.patch, right = latent[3] - (grid[2] - 1) * c.patch;
  for (int64_t edge = 0; edge < kEdges; ++edge)
    places[edge]
        .slice(0, 0, edge / 2 ? lower : c.patch)
        .slice(1, 0, edge % 2 ? right : c.patch)
        .slice(2, 0, c.predicted_channels())
        .fill_(-output_scale(latent, c));
}

/// Rotary tables of a box of tokens, the same channels for each axis of `positions`: frames, rows, columns.
void fill_tables(const Tensor& cos, const Tensor& sin, const Grid3& grid,
                 const std::vector<std::vector<double>>& positions) {
  const int64_t channels = cos.size(1), share = channels / static_cast<int64_t>(positions.size());
  for (size_t axis = 0; axis < positions.size(); ++axis) {
    Angles angles(positions[axis], share);
    std::array<int64_t, 4> shape = {1, 1, 1, share};
    shape[axis] = grid[axis];
    const auto put = [&](const Tensor& table, const Tensor& values) {
      table.view({grid[0], grid[1], grid[2], channels})
          .narrow(3, static_cast<int64_t>(axis) * share, share)
          .copy_(values.view(shape));
    };
    put(cos, angles.cos());
    put(sin, angles.sin());
  }
}

/// 0, 1, .. again from each multiple of `window` on (0: from none), in units of `scale`.
std::vector<double> counted(int64_t count, int64_t window, double scale) {
  std::vector<double> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(static_cast<double>(window > 0 ? i % window : i) / scale);
  return positions;
}

/// What packed() asks for.
struct Packing {
  explicit Packing(const Config& config) : c_(config) {
    batch_.tokens.segments.resize(c_.cond ? kFramesToText + 1 : kFramesToText);
    if (c_.cond) batch_.tokens.segments[kFramesToText].k = kText;
  }

  net::Space& text() { return batch_.tokens.spaces[kText - 1]; }
  net::Space& same() { return batch_.tokens.spaces[kSameTokens - 1]; }

  void add(const net::Sample& sample) {
    check_sample(sample, c_);
    net::Tokens& tokens = batch_.tokens;
    const Grid3 grid = grid_of(sample.x.sizes(), c_.patch);
    const int64_t begin = tokens.total(), in_frame = grid[1] * grid[2], end = begin + grid[0] * in_frame;
    add_text(sample, begin, in_frame);
    for (int64_t at = begin; at < end; at += in_frame)
      tokens.segments[kWithinFrames].ranges.push_back({at, at + in_frame, at, at + in_frame});
    tokens.offsets.push_back(end);
    tokens.shapes.push_back(grid);
    same().offsets.push_back(end);
    same().ranges.push_back({begin, end});
    const bool clean = extra_of(sample, "image_latent");
    any_clean_ = any_clean_ || clean;
    batch_.shapes.push_back({c_.predicted_channels(), sample.x.size(1), sample.x.size(2), sample.x.size(3)});
    batch_.predicted.push_back({begin + (clean ? in_frame : 0), end});
  }

  void add_text(const net::Sample& sample, int64_t token, int64_t in_frame) {
    int64_t row = text().total();
    for (const TextRun& run : text_runs(sample)) {
      const int64_t rows = text_of(sample, run).size(0), tokens = run.frames * in_frame;
      if (c_.cond) batch_.tokens.segments[kFramesToText].ranges.push_back({token, token + tokens, row, row + rows});
      token += tokens, row += rows;
    }
    text().offsets.push_back(row);
  }

  void allocate(at::Device device) {
    const auto fp32 = at::TensorOptions(at::kFloat).device(device);
    const int64_t total = batch_.tokens.total(), samples = static_cast<int64_t>(batch_.shapes.size());
    std::vector<Tensor>& inputs = batch_.inputs;
    inputs.resize(c_.cond ? kHasGiven + 1 : kKeptPlaces + 1);
    const auto patches = [&] { return at::zeros({total, c_.in_channels * c_.places()}, fp32); };
    inputs[kPatches] = patches();
    inputs[kPositions] = at::empty({total, c_.hidden_size}, fp32);
    inputs[kTexts] = at::empty({text().total(), c_.caption_dim}, fp32);
    inputs[kKeptPlaces] = at::empty({samples * kEdges, c_.places() * c_.out_channels()}, fp32);
    batch_.token_inputs = {kPatches, kPositions};
    if (c_.cond) {
      inputs[kGivenPatches] = patches(), inputs[kMaskPatches] = patches();
      inputs[kHasGiven] = at::zeros({2 * samples, 1}, fp32);
      batch_.token_inputs.push_back(kGivenPatches), batch_.token_inputs.push_back(kMaskPatches);
    }
    for (net::Space* space : {static_cast<net::Space*>(&batch_.tokens), &same()}) {
      if (space == &same() && !c_.spatial_rope) continue;
      space->cos = at::empty({total, c_.head_dim() / 2}, fp32);
      space->sin = at::empty({total, c_.head_dim() / 2}, fp32);
    }
    time_rows_ = at::empty({total}, at::kInt);
    edge_rows_ = at::empty({total}, at::kInt);
    order_ = at::empty({total}, at::kLong);
  }

  void fill(const net::Sample& sample, size_t s) {
    net::Tokens& tokens = batch_.tokens;
    const int64_t begin = tokens.offsets[s], end = tokens.offsets[s + 1], index = static_cast<int64_t>(s);
    const auto here = [&](const Tensor& rows) { return rows.slice(0, begin, end); };
    const Grid3 grid = tokens.shapes[s];
    fill_latents(sample, here, grid, index);
    int64_t row = text().offsets[s];
    for (const TextRun& run : text_runs(sample)) {
      const Tensor& words = text_of(sample, run);
      copy_caption(batch_.inputs[kTexts].narrow(0, row, words.size(0)), words);
      row += words.size(0);
    }
    fill_kept(batch_.inputs[kKeptPlaces].narrow(0, kEdges * index, kEdges), sample.x.sizes(), c_);
    fill_places(sample, here, grid);
    fill_rows(sample, here, grid, index);
    add_order(begin, grid);
    t_.insert(t_.end(), {sample.t, 0});
    const double rate = number_of(sample, "fps", sample.x.size(1) == 1 ? kPictureRate : kUsualRate);
    rates_.insert(rates_.end(), {rate, rate});
  }

  template <class Here>
  void fill_latents(const net::Sample& sample, const Here& here, const Grid3& grid, int64_t s) {
    fill_input(here(batch_.inputs[kPatches]), sample.x, c_.patch);
    if (const Tensor* image = extra_of(sample, "image_latent"))
      fill_input(here(batch_.inputs[kPatches]).slice(0, 0, grid[1] * grid[2]), *image, c_.patch);
    if (c_.cond) fill_given(sample, here, grid, s);
  }

  template <class Here>
  void fill_given(const net::Sample& sample, const Here& here, const Grid3& grid, int64_t s) {
    const Tensor *cond = extra_of(sample, "cond"), *mask = extra_of(sample, "cond_mask"),
                 *index = extra_of(sample, "mask_index");
    if (!cond && !index) return;
    batch_.inputs[kHasGiven].narrow(0, 2 * s, 2).fill_(1);
    if (cond) fill_input(here(batch_.inputs[kGivenPatches]), *cond, c_.patch);
    const Tensor masks = here(batch_.inputs[kMaskPatches]);
    if (mask) return fill_input(masks, *mask, c_.patch);
    static float one = 1;  // no tensor's memory
    const Tensor ones =
        at::from_blob(&one, {c_.in_channels, 1, sample.x.size(2), sample.x.size(3)}, {0, 0, 0, 0}, at::kFloat);
    const int64_t in_frame = grid[1] * grid[2];
    for (int64_t i = 0; i < index->numel(); ++i)
      fill_input(masks.narrow(0, (*index)[i].item<int64_t>() * in_frame, in_frame), ones, c_.patch);
  }

  /// Positions: added ones, and the angles of both kinds of blocks.
  template <class Here>
  void fill_places(const net::Sample& sample, const Here& here, const Grid3& grid) {
    const double height = number_of(sample, "height", static_cast<double>(kPixels * sample.x.size(2))),
                 width = number_of(sample, "width", static_cast<double>(kPixels * sample.x.size(3)));
    const double scale = std::sqrt(height * width) / static_cast<double>(c_.input_sq_size);
    const double base = std::round(std::sqrt(static_cast<double>(grid[1] * grid[2])));
    const auto unit = [&](int64_t count) { return base / static_cast<double>(count) / scale; };
    fill_positions(here(batch_.inputs[kPositions]), grid, {unit(grid[1]), unit(grid[2])});
    const Tensor cos = here(batch_.tokens.cos), sin = here(batch_.tokens.sin);
    if (!c_.window) return fill_tables(cos, sin, grid, {counted(grid[0], 0, 1)});
    const auto [rows, columns, frames] = *c_.window;
    fill_tables(cos, sin, grid,
                {counted(grid[0], frames, 1), counted(grid[1], rows, scale), counted(grid[2], columns, scale)});
    if (c_.spatial_rope)
      fill_tables(here(same().cos), here(same().sin), grid,
                  {std::vector<double>(static_cast<size_t>(grid[0]), 0), counted(grid[1], 0, scale),
                   counted(grid[2], 0, scale)});
  }

  /// Modulation rows by frame, and the rows of `kept` by place.
  template <class Here>
  void fill_rows(const net::Sample& sample, const Here& here, const Grid3& grid, int64_t s) {
    const std::vector<bool> given = given_frames(sample);
    const Tensor times = here(time_rows_).view({grid[0], -1});
    for (int64_t f = 0; f < grid[0]; ++f) times[f].fill_(2 * s + (given[static_cast<size_t>(f)] ? 1 : 0));
    const Tensor edges = here(edge_rows_).view({grid[0], grid[1], grid[2]}).fill_(kEdges * s);
    if (sample.x.size(2) % c_.patch != 0) edges.select(1, grid[1] - 1).add_(2);
    if (sample.x.size(3) % c_.patch != 0) edges.select(2, grid[2] - 1).add_(1);
  }

  /// The tokens window by window, each of them frame by frame.
  void add_order(int64_t begin, const Grid3& grid) {
    const std::array<int64_t, 3> window = c_.window.value_or(std::array<int64_t, 3>{1, 1, 0});
    const auto side = [&](size_t axis, int64_t all) { return window[axis] > 0 ? window[axis] : all; };
    const int64_t rows = side(0, grid[1]), columns = side(1, grid[2]), frames = side(2, grid[0]);
    auto* order = order_.mutable_data_ptr<int64_t>();
    int64_t next = begin;
    auto& ranges = batch_.tokens.segments[kOverFrames].ranges;
    for (int64_t r = 0; r < grid[1]; r += rows)
      for (int64_t column = 0; column < grid[2]; column += columns)
        for (int64_t f = 0; f < grid[0]; f += frames) {
          const int64_t first = next;
          for (int64_t i = f; i < std::min(f + frames, grid[0]); ++i)
            for (int64_t j = r; j < std::min(r + rows, grid[1]); ++j)
              for (int64_t k = column; k < std::min(column + columns, grid[2]); ++k)
                order[next++] = begin + (i * grid[1] + j) * grid[2] + k;
          ranges.push_back({first, next, first, next});
        }
  }

  void finish() {
    const at::Device device = batch_.inputs[kPatches].device();
    batch_.inputs[kTimes] = timestep_sinusoid(t_, kFrequencies).to(device);
    batch_.inputs[kRates] = timestep_sinusoid(rates_, kFrequencies).to(device);
    batch_.tokens.rows = row_index(time_rows_, device);
    same().rows = row_index(edge_rows_, device);
    batch_.tokens.segments[kOverFrames].order = order_.to(device);
    if (!any_clean_) batch_.predicted.clear();  // all tokens are predictions
  }

  const Config& c_;
  net::Batch batch_;
  Tensor time_rows_, edge_rows_, order_;
  std::vector<double> t_, rates_;
  bool any_clean_ = false;
};

}  // namespace

Stdit::Stdit(const Config& config)
    : FamilyDenoiser(config,
                     {.channels = config.in_channels,
                      .context_dim = config.caption_dim,
                      .context_length = config.caption_len,
                      .heads = config.num_heads},
                     {1, config.patch, config.patch}) {
  units_ = make_units(config);
}

net::Conditions Stdit::conditions() const {
  net::Conditions wants;
  wants.clean_first = wants.frame_masks = true;
  wants.given_frames = config_.cond;
  return wants;
}

net::Sample Stdit::blank(const std::array<int64_t, 4>& latent) const {
  net::Sample sample = FamilyDenoiser::blank(latent);
  const auto number = [](double value) { return at::full({1}, value, at::kFloat); };
  sample.extra = {{"height", number(static_cast<double>(kPixels * latent[2]))},
                  {"width", number(static_cast<double>(kPixels * latent[3]))},
                  {"fps", number(latent[1] == 1 ? kPictureRate : kUsualRate)}};
  return sample;
}

net::Batch Stdit::pack(const std::vector<net::Sample>& samples) const {
  return packed<Packing>(samples, config_, kSameTokens);
}

std::vector<std::map<std::string, Tensor>> Stdit::unpack_input_grads(const std::vector<Tensor>& grads,
                                                                     const net::Batch& batch,
                                                                     const std::vector<net::Sample>& samples) const {
  std::vector<std::map<std::string, Tensor>> result;
  for (size_t s = 0; s < samples.size(); ++s) {
    const net::Sample& sample = samples[s];
    const auto latent = [&](int input) {
      return from_input(grads[input].slice(0, batch.tokens.offsets[s], batch.tokens.offsets[s + 1]), sample.x.sizes(),
                        config_.patch);
    };
    auto& named = result.emplace_back();
    named["x"] = latent(kPatches);
    if (extra_of(sample, "cond")) named["cond"] = latent(kGivenPatches), named["cond_mask"] = latent(kMaskPatches);
    int64_t row = batch.tokens.space(kText).offsets[s];
    for (const TextRun& run : text_runs(sample)) {  // a text that several runs read gets the sum
      const Tensor part = grads[kTexts].narrow(0, row, text_of(sample, run).size(0));
      Tensor& sum = named[run.null ? "y_null" : "context"];
      sum = sum.defined() ? sum + part : part;
      row += part.size(0);
    }
  }
  return result;
}

std::vector<Tensor> Stdit::unpack(const Tensor& out, const net::Batch& batch) const {
  std::vector<Tensor> latents;
  for (size_t s = 0; s < batch.shapes.size(); ++s) {
    const Tensor rows = out.slice(0, batch.tokens.offsets[s], batch.tokens.offsets[s + 1]);
    latents.push_back(from_output(rows, batch.shapes[s], config_.patch).div_(output_scale(batch.shapes[s], config_)));
  }
  return latents;
}

Tensor Stdit::pack_target(const Tensor& target) const {
  const Tensor rows =
      at::zeros({count_of(grid_of(target.sizes(), config_.patch)), config_.places() * config_.out_channels()},
                target.options().dtype(at::kFloat));
  fill_output(rows, target, config_.patch);
  return rows.mul_(output_scale(target.sizes(), config_));
}

int64_t Stdit::token_count(const std::array<int64_t, 4>& latent) const {
  return count_of(grid_of(latent, config_.patch));
}

std::string Stdit::foreign_name(const std::string& name, const std::string& naming) const {
  return naming == "tessera" ? name : rename(official_names(), name);
}

/// Its program's: Xavier for linears, 1 / sqrt(D) for the tables; zero for what the temporal blocks add to the picture
/// model, for the frame rate and for given frames.
Initial Stdit::initial(const plan::ParamSpec& param) const {
  const std::string_view name = param.name;
  const auto begins = [&](std::string_view text) { return name.starts_with(text); };
  if (name.ends_with("_norm.weight")) return Initial::constant(1);
  if (name.ends_with("scale_shift_table"))
    return Initial::normal(1 / std::sqrt(static_cast<double>(param.shape.back())));
  const auto out = static_cast<double>(param.shape.front()), in = static_cast<double>(param.numel()) / out;
  if (begins("x_embedder_cond") || begins("fps_embedder.mlp.2.")) return Initial::constant(0);
  if (begins("temporal_blocks.") && (name.ends_with(".proj.weight") || name.ends_with(".fc2.weight")))
    return Initial::constant(0);
  if (name.ends_with(".bias")) return Initial::constant(0);
  if (!is_released(presets(), config_) && (begins("t_embedder.") || begins("fps_embedder.") || begins("y_embedder.")))
    return Initial::embedding(in, out);
  if (begins("fps_embedder.")) return Initial::normal(0.02);
  if (begins("x_embedder.")) return {Initial::Kind::uniform, 1 / std::sqrt(in)};  // PyTorch's own, of convolutions
  return Initial::xavier(in, out);
}

using at::Tensor;

namespace {

int64_t patches_along(int64_t size, int64_t patch) { return (size + patch - 1) / patch; }

/// Visits each place of a patch with its values in the latent and in `rows` [f, h, w, ...], [C, F, n, m] of both.
/// `at_place` takes a place out of the rows: [f, h, w, channels].
template <class AtPlace, class Visit>
void for_each_place(const Tensor& rows, const Tensor& latent, int64_t patch, const AtPlace& at_place,
                    const Visit& visit) {
  for (int64_t i = 0; i < patch; ++i)
    for (int64_t j = 0; j < patch; ++j) {
      const Tensor ours = latent.slice(2, i, latent.size(2), patch).slice(3, j, latent.size(3), patch);
      const Tensor theirs = at_place(rows, i, j)
                                .slice(1, 0, ours.size(2))
                                .slice(2, 0, ours.size(3))
                                .slice(3, 0, ours.size(0))
                                .permute({3, 0, 1, 2});
      visit(ours, theirs);
    }
}

/// [f, h, w, C, p, p]
Tensor input_view(const Tensor& rows, at::IntArrayRef latent, int64_t patch) {
  const auto [f, h, w] = grid_of(latent, patch);
  return rows.view({f, h, w, latent[0], patch, patch});
}
Tensor input_place(const Tensor& rows, int64_t i, int64_t j) { return rows.select(4, i).select(4, j); }

/// [f, h, w, p, p, C or more]
Tensor output_view(const Tensor& rows, at::IntArrayRef latent, int64_t patch) {
  const auto [f, h, w] = grid_of(latent, patch);
  return rows.view({f, h, w, patch, patch, -1});
}
Tensor output_place(const Tensor& rows, int64_t i, int64_t j) { return rows.select(3, i).select(3, j); }

}  // namespace

std::array<int64_t, 3> grid_of(at::IntArrayRef latent, int64_t patch) {
  return {latent[1], patches_along(latent[2], patch), patches_along(latent[3], patch)};
}

void fill_input(const Tensor& rows, const Tensor& latent, int64_t patch) {
  for_each_place(input_view(rows, latent.sizes(), patch), latent, patch, input_place,
                 [](const Tensor& ours, const Tensor& theirs) { theirs.copy_(ours); });
}

Tensor from_input(const Tensor& rows, at::IntArrayRef shape, int64_t patch) {
  const Tensor latent = at::empty(shape, rows.options());
  for_each_place(input_view(rows, shape, patch), latent, patch, input_place,
                 [](const Tensor& ours, const Tensor& theirs) { ours.copy_(theirs); });
  return latent;
}

void fill_output(const Tensor& rows, const Tensor& latent, int64_t patch) {
  for_each_place(output_view(rows, latent.sizes(), patch), latent, patch, output_place,
                 [](const Tensor& ours, const Tensor& theirs) { theirs.copy_(ours); });
}

Tensor from_output(const Tensor& rows, at::IntArrayRef shape, int64_t patch) {
  const Tensor latent = at::empty(shape, rows.options().dtype(at::kFloat));
  for_each_place(output_view(rows, shape, patch), latent, patch, output_place,
                 [](const Tensor& ours, const Tensor& theirs) { ours.copy_(theirs); });
  return latent;
}

}  // namespace tessera::models::stdit
