// Kinds of the objective whose shift follows from a sample's size (Open-Sora 2.0): shifts, schedules, noisy latents,
// targets, losses and guidance. The mesh means nothing here. Of 1.2 shifts, noisy latents, losses and the sampler's
// path are compared, of 1.3 shifts, drawn timesteps, and losses with frames beside the noisy ones and without.
#include <cmath>

#include "tessera/diffusion/flow.h"
#include "tessera/diffusion/given_frames.h"
#include "tessera/diffusion/loss.h"
#include "tessera/diffusion/sampler.h"
#include "tessera/families/frames/given_frames.h"
#include "tessera/models/common/patches.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using diffusion::Options;

constexpr models::Patch kPatch = {1, 2, 2};

std::function<double(double)> relative(double bound) {
  return [bound](double largest) { return bound * largest; };
}

Tensor doubles(const std::vector<double>& values) { return at::tensor(at::ArrayRef<double>(values), at::kDouble); }

Options options_of(double shift, bool bf16 = false) {
  Options options;
  diffusion::parse_timesteps("by_size", options);
  options.shift = shift;
  options.rounds_to_bf16 = bf16;
  return options;
}

/// Sigmas of normal draws, fp32.
Tensor sigmas_of(const Options& options, const Tensor& normal) {
  std::vector<double> sigmas;
  for (int64_t i = 0; i < normal.numel(); ++i)
    sigmas.push_back(diffusion::draw_of(options, 1 / (1 + std::exp(-normal[i].item<double>()))).sigma);
  return doubles(sigmas).to(at::kFloat);
}

/// Sigmas in bf16 are equal, but for one step of bf16 where the fp32 value `exact` lies between two of them.
void compare_rounded(CaseFile& file, const std::string& name, const Tensor& computed, const Tensor& exact) {
  file.compare_each(name, computed, [&](const Tensor&) {
    const Tensor value = exact.to(at::kDouble);
    const Tensor step = at::exp2(at::floor(at::log2(value)) - 7);  // of its 8 bits
    const Tensor place = value / step;
    const Tensor edge = (place - at::floor(place) - 0.5).abs() < 1e-3;
    return at::where(edge, step, at::zeros_like(step));
  });
}

std::vector<double> schedule_of(int steps, double shift) {
  return diffusion::make_sampler("euler_by_size", steps, shift)->sigmas();
}

using VideoSize = std::array<int64_t, 3>;  // height, width and frames, in pixels

/// The shift of 1.2, whose autoencoder makes five latent frames of 17, and of 1.3, which counts those that begin no piece
/// and scales those of videos alone.
double shift_of_first(const VideoSize& size, double scale) {
  const auto [height, width, frames] = size;
  return scale * diffusion::area_shift(static_cast<double>(height * width), frames == 1 ? 1 : frames / 17 * 5);
}
double shift_of_second(const VideoSize& size, double scale) {
  const auto [height, width, frames] = size;
  const auto pixels = static_cast<double>(height * width);
  return frames == 1 ? diffusion::area_shift(pixels, 1) : scale * diffusion::area_shift(pixels, (frames - 1) / 4);
}

/// Timesteps for each row of sizes and each t, both in 0..1000.
Tensor area_timesteps(const std::vector<VideoSize>& sizes, const Tensor& t, double scale,
                      double (*shift_of)(const VideoSize& size, double scale) = shift_of_first) {
  std::vector<Tensor> rows;
  for (const VideoSize& size : sizes) {
    const double shift = shift_of(size, scale);
    std::vector<double> row;
    for (int64_t i = 0; i < t.numel(); ++i)
      row.push_back(1000 * diffusion::shift_sigma(t[i].item<double>() / 1000, shift));
    rows.push_back(doubles(row));
  }
  return at::stack(rows).to(at::kFloat);
}
/// Noisy latents and losses of 1.x, whose fake model sees `text` (a number a sample) beside them; frames with a mask of 0
/// are given without noise and do not count. An undefined mask gives none. `beside`: what the model adds of given frames,
/// [N, C, F, h, w] or undefined.
struct AreaLoss {
  Tensor noisy, losses;
};
AreaLoss area_loss(const Tensor& x0, const Tensor& noise, const Tensor& t, const Tensor& mask, const Tensor& text,
                   const Tensor& beside = {}) {
  std::vector<Tensor> noisy, losses;
  for (int64_t i = 0; i < t.numel(); ++i) {
    const double time = t[i].item<double>() / 1000;
    const int64_t frames = x0.size(2);
    Tensor x = diffusion::add_noise(x0[i], noise[i], time);
    std::vector<double> weights;
    for (int64_t f = 0; mask.defined() && f < frames; ++f) {
      const bool given = mask[i][f].item<int64_t>() == 0;
      weights.push_back(given ? 0 : static_cast<double>(frames) / static_cast<double>(mask[i].sum().item<int64_t>()));
      if (given) x.select(1, f).copy_(x0[i].select(1, f));
    }
    const auto rows = [](const Tensor& latent) {
      return models::to_rows(latent, {1, 1, 1}).to(at::kFloat).contiguous();
    };
    Tensor predicted = 0.3 * at::sin(x) + 0.1 * time + text[i].item<double>();
    if (beside.defined()) predicted = predicted + beside[i];
    const Tensor prediction = rows(-predicted);
    net::Batch batch;
    batch.tokens.offsets = {0, prediction.size(0)};
    losses.push_back(
        at::scalar_tensor(diffusion::sample_error(prediction, batch, 0, {rows(diffusion::velocity(x0[i], noise[i]))}, 1,
                                                  at::zeros_like(prediction), weights),
                          at::kFloat));
    noisy.push_back(x);
  }
  return {at::stack(noisy), at::stack(losses)};
}

std::vector<VideoSize> sizes_of(const Json& rows) {
  std::vector<VideoSize> sizes;
  for (const Json& row : rows) sizes.push_back(row.get<VideoSize>());
  return sizes;
}

/// 1.3 with frames beside the noisy ones, which count as the others: what each drop leaves, what the model reads, the loss.
void check_beside_loss(CaseFile& file, const CaseContext& context) {
  const Tensor x = file.tensor("in.v13.x"), y = file.tensor("in.v13.y"), null = file.tensor("in.v13.y_embedding");
  for (const auto& [name, run] : context.config.at("v13_runs").items()) {
    if (!run.at("mask_index").is_array() || run.at("mask_index").empty()) continue;
    if (run.at("x_cond_weight") != 1.0 || !run.at("uses").empty()) continue;
    const std::string out = "out.v13." + name + ".";
    const Tensor index = at::tensor(run.at("mask_index").get<std::vector<int64_t>>(), at::kLong);
    std::vector<families::Weighted> drops;
    for (const auto& [kind, weight] : context.config.at("v13_drop_condition").items())
      drops.push_back({kind, weight.get<double>()});
    const std::string drop = families::chosen(drops, run.at("drop_u").get<double>());
    if (Json(drop) != run.at("drop")) file.fail(out + "y: another choice of what is left out, " + drop);
    std::vector<Tensor> conds, texts, masks;
    for (int64_t i = 0; i < x.size(0); ++i) {
      const diffusion::BesideInput input = diffusion::beside_input(drop, x[i], index, y[i][0], null);
      conds.push_back(input.cond.defined() ? input.cond : at::zeros_like(x[i]));
      texts.push_back(input.context.unsqueeze(0));
      masks.push_back(at::zeros_like(x[i]).index_fill_(1, index, 1));
    }
    const Tensor cond = at::stack(conds), text = at::stack(texts);
    const AreaLoss found = area_loss(x, file.tensor("in.v13.noise"), file.tensor("in.v13.t"), {},
                                     0.02 * text.flatten(1).mean(1), 0.2 * cond + 0.05 * at::stack(masks));
    file.compare(out + "cond", cond, 0.0);
    file.compare(out + "y", text, 0.0);
    file.compare(out + "x_t", found.noisy, context.bound("out"));
    file.compare(out + "loss", found.losses, context.bound("out"));
    file.compare(out + "mean", found.losses.mean(), context.bound("out"));
  }
}

}  // namespace

CaseResults verify_size_timesteps(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  const auto integers = [](const Tensor& row) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < row.numel(); ++i) values.push_back(row[i].item<int64_t>());
    return values;
  };
  std::vector<double> hunyuan;
  for (const std::string codec : {"hunyuan", "dc_ae"}) {
    const Tensor sizes = file.tensor("in.v2." + codec + ".latent_thw");
    std::vector<double> shifts;
    for (int64_t i = 0; i < sizes.size(0); ++i) {
      const auto thw = integers(sizes[i]);
      shifts.push_back(diffusion::of_size(options_of(1), {16, thw[0], thw[1], thw[2]}).shift);
    }
    file.compare("out.v2." + codec + ".alpha", doubles(shifts), relative(1e-12));
    if (hunyuan.empty()) hunyuan = shifts;
  }
  std::vector<Tensor> exact, rounded, moved;
  const Tensor normal = file.tensor("in.v2.normal");
  for (const double shift : hunyuan) {
    exact.push_back(sigmas_of(options_of(shift), normal));
    rounded.push_back(sigmas_of(options_of(shift, true), normal));
  }
  file.compare("out.v2.t", at::stack(exact), context.bound("out"));
  compare_rounded(file, "out.v2.t_bf16", at::stack(rounded), file.tensor("out.v2.t"));
  const Tensor shifts = file.tensor("in.shift.alpha"), t = file.tensor("in.shift.t");
  for (int64_t a = 0; a < shifts.numel(); ++a) {
    std::vector<double> row;
    for (int64_t i = 0; i < t.numel(); ++i)
      row.push_back(diffusion::shift_sigma(t[i].item<double>(), shifts[a].item<double>()));
    moved.push_back(doubles(row));
  }
  file.compare("out.shift.t", at::stack(moved), context.bound("out"));
  const std::vector<VideoSize> by_area = sizes_of(context.config.at("hwf"));
  for (const auto& [scale, name] : {std::pair(1.0, "scale1.0"), {2.5, "scale2.5"}}) {
    const Tensor given = file.tensor("in.v1.t");
    file.compare(std::string("out.v12.fp32.") + name, area_timesteps(by_area, given, scale), context.bound("out"));
    file.compare(std::string("out.v13.fp32.") + name, area_timesteps(by_area, given, scale, shift_of_second),
                 context.bound("out"));
  }
  if (file.has("in.v13.sample.logit_normal")) {  // of the last size
    Options drawn;
    diffusion::parse_timesteps("by_area", drawn);
    drawn.shift = shift_of_second(by_area.back(), 1);
    const Tensor draws = 1 / (1 + at::exp(-file.tensor("in.v13.sample.logit_normal").to(at::kDouble)));
    std::vector<double> times;
    for (int64_t i = 0; i < draws.numel(); ++i) times.push_back(diffusion::draw_of(drawn, draws[i].item<double>()).t);
    file.compare("out.v13.sample.logit_normal", doubles(times).to(at::kFloat), context.bound("out"));
  }
  const int steps = context.config.at("steps").get<int>();
  const Tensor rows = file.tensor("in.v2.sample.row_seq_frames");
  std::vector<double> of_rows;
  std::vector<Tensor> schedules;
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const auto row = integers(rows[i]);
    of_rows.push_back(diffusion::size_shift(static_cast<double>(row[1]), row[2]));
    schedules.push_back(doubles(schedule_of(steps, of_rows.back())));
  }
  file.compare("out.v2.sample.alpha", doubles(of_rows), relative(1e-12));
  file.compare("out.v2.sample.schedule", at::stack(schedules), relative(1e-6));
  file.compare("out.v2.sample.schedule_alpha5", doubles(schedule_of(steps, 5)), relative(1e-6));
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

CaseResults verify_size_loss(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  const double shift = context.config.at("v2_alpha").get<double>();
  const Tensor latent = file.tensor("in.v2.latent"), noise = file.tensor("in.v2.noise"),
               normal = file.tensor("in.v2.normal");
  for (const bool bf16 : {false, true}) {
    const std::string dtype = bf16 ? "bf16." : "fp32.", out = "out.v2." + dtype;
    const Options options = options_of(shift, bf16);
    const Tensor t = sigmas_of(options, normal), prediction = file.tensor("in.v2." + dtype + "pred");
    const int64_t samples = latent.size(0);
    std::vector<Tensor> noisy, targets;
    Tensor gradient = at::zeros_like(prediction);
    double loss = 0;
    for (int64_t i = 0; i < samples; ++i) {
      noisy.push_back(
          models::to_rows(diffusion::add_noise(latent[i], noise[i], t[i].item<double>(), options.least_noise), kPatch));
      targets.push_back(
          models::to_rows(diffusion::velocity(latent[i], noise[i], options.least_noise), kPatch).contiguous());
      loss += diffusion::mean_squared_error(prediction[i].contiguous(), targets.back(),
                                            1.0 / static_cast<double>(samples), gradient[i]) /
              static_cast<double>(samples);
    }
    const Tensor mean = at::scalar_tensor(loss, at::kDouble).to(at::kFloat);
    if (bf16) {  // all but the timesteps is fp32 here: targets have bits that the trainer's have not
      compare_rounded(file, out + "t", t, file.tensor("out.v2.fp32.t"));
      continue;
    }
    file.compare(out + "t", t, context.bound("out"));
    file.compare(out + "x_t", at::stack(noisy), context.bound("out"));
    file.compare(out + "target", at::stack(targets), context.bound("out"));
    file.compare(out + "loss", mean, context.bound("out"));
    file.compare("grad_in.v2." + dtype + "pred", gradient, context.bound("grad"));
  }
  // 1.3 without frames beside the noisy ones, with and without a mask
  const Tensor text = 0.02 * file.tensor("in.v13.y").flatten(1).mean(1);
  const std::string none = families::kind_giving(false, false, false);
  for (const auto& [run, mask] :
       {std::pair<std::string, Tensor>(none, {}), {none + "_mask", file.tensor("in.v13.frame_mask")}}) {
    const AreaLoss found =
        area_loss(file.tensor("in.v13.x"), file.tensor("in.v13.noise"), file.tensor("in.v13.t"), mask, text);
    file.compare("out.v13." + run + ".x_t", found.noisy, context.bound("out"));
    file.compare("out.v13." + run + ".loss", found.losses, context.bound("out"));
    file.compare("out.v13." + run + ".mean", found.losses.mean(), context.bound("out"));
  }
  check_beside_loss(file, context);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

namespace {

void check_training(CaseFile& file, const CaseContext& context) {
  const Json& given = context.config.at("v2_train");
  const Options options = diffusion::of_size(
      options_of(1), {16, given.at("latent_frames").get<int64_t>(), 1, given.at("latent_h*w").get<int64_t>()});
  file.compare("out.v2.train.shift_alpha", at::scalar_tensor(options.shift, at::kDouble), relative(1e-6));
  const Tensor t = sigmas_of(options, file.tensor("in.v2.train.normal")), x0 = file.tensor("in.v2.train.x0"),
               noise = file.tensor("in.v2.train.x1");
  file.compare("out.v2.train.t", t, 1e-4);
  std::vector<Tensor> noisy, targets;
  for (int64_t i = 0; i < t.numel(); ++i) {
    noisy.push_back(diffusion::add_noise(x0[i], noise[i], t[i].item<double>(), options.least_noise));
    targets.push_back(diffusion::velocity(x0[i], noise[i], options.least_noise));
  }
  file.compare("out.v2.train.x_t", at::stack(noisy), 1e-4);
  file.compare("out.v2.train.target", at::stack(targets), 1e-4);
}

/// 1.2: timesteps, noisy latents, and a path with guidance. Its model predicts data - noise, in time 0..1000.
void check_area(CaseFile& file, const CaseContext& context) {
  const auto sizes = sizes_of(context.config.at("hwf"));
  for (const int scale : {1, 2}) {
    const std::string name = ".transform_scale" + std::to_string(scale);
    file.compare("out.v12" + name, area_timesteps(sizes, file.tensor("in.t"), scale), relative(1e-6));
    file.compare("out.v13" + name, area_timesteps(sizes, file.tensor("in.t"), scale, shift_of_second), relative(1e-6));
  }
  const Tensor t = file.tensor("in.rf.t"), x0 = file.tensor("in.rf.x_start"), noise = file.tensor("in.rf.noise");
  for (const auto& [suffix, mask] : {std::pair<std::string, Tensor>("", {}), {"_masked", file.tensor("in.rf.mask")}}) {
    const AreaLoss found = area_loss(x0, noise, t, mask, at::zeros({t.numel()}));
    file.compare("out.rf.x_t" + suffix, found.noisy, 1e-4);
    file.compare("out.rf.loss" + suffix, found.losses, 1e-4);
  }
  const int steps = context.config.at("steps").get<int>();
  const auto sampler = diffusion::make_sampler("euler_by_area", steps, shift_of_first(sizes.back(), 1));
  const std::vector<double> times = sampler->timesteps();
  file.compare("out.v12.timesteps", doubles(times), relative(1e-6));
  const double guidance = context.config.at("v12_cfg_scale").get<double>();
  Tensor x = file.tensor("in.v12.z");
  for (int i = 0; i < steps; ++i) {
    const auto branch = [&](double text) {
      return -(at::sin(x) * 0.3 + 0.1 * times[static_cast<size_t>(i)] / 1000 + 0.2 * text);
    };
    x = sampler->step(i, x, diffusion::guided(branch(-0.4), branch(0.7), guidance));
  }
  file.compare("out.v12.sample", x, 1e-4);
}

/// The recorded model, of packed tokens [N, C * 4].
Tensor velocity(const Tensor& rows, double t, double guidance) {
  return at::sin(rows).mul(0.3).add(0.1 * t + 0.01 * guidance);
}

/// The case's names for guidance towards text and given frames begin alike; this is the beginning.
std::string guidance_prefix(const CaseFile& file) {
  const std::string end = "osci_scale";
  for (const std::string& name : file.names("out.v2."))
    if (name.ends_with("." + end)) return name.substr(0, name.size() - end.size());
  return {};
}

/// Tokens a frame and frames of the video that is guided.
Json guided_size(const Json& config) {
  for (const auto& [key, value] : config.items())
    if (key.ends_with("_schedule")) return value;
  return {};
}

void check_guidance(CaseFile& file, const CaseContext& context) {
  const std::string out = guidance_prefix(file);
  if (out.empty()) return;
  const Json size = guided_size(context.config);
  const int steps = context.config.at("steps").get<int>();
  const double guidance = context.config.at("v2_guidance").get<double>(),
               image = context.config.at("v2_guidance_img").get<double>();
  const double shift = diffusion::size_shift(size.at(0).get<double>(), size.at(1).get<int64_t>());
  file.compare(out + "timesteps", doubles(schedule_of(steps, shift)), relative(1e-6));
  const Tensor given = file.tensor("in.v2.masked_ref")[0];  // [C, F, h, w]
  const Tensor cond = models::to_rows(at::cat({file.tensor("in.v2.masks")[0], given}), kPatch).mean(1, true);
  const Tensor texts = file.tensor("in.v2.txt").mean({1, 2}), start = file.tensor("in.v2.img")[0];
  const auto latent = [&](const Tensor& rows) { return models::from_rows(rows, given.sizes(), kPatch); };
  const auto denoised = [&](const diffusion::TwoGuidances& scales) {
    const auto sampler = diffusion::make_sampler("euler_by_size", steps, shift);
    Tensor x = latent(start);
    for (int i = 0; i < steps; ++i) {
      const Tensor plain =
          velocity(models::to_rows(x, kPatch), sampler->timesteps()[static_cast<size_t>(i)] / 1000, guidance);
      const auto branch = [&](int64_t text, bool with_image) {
        const Tensor rows = plain + texts[text].item<double>() * 0.2;
        return latent(with_image ? rows + cond * 0.05 : rows);
      };
      x = sampler->step(i, x, diffusion::guided(branch(2, false), branch(1, true), branch(0, true), scales, i, steps));
    }
    return models::to_rows(x, kPatch).unsqueeze(0);
  };
  file.compare(out + "plain", denoised({guidance, image}), 1e-3);
  file.compare(out + "osci", denoised({guidance, image, true}), 1e-3);
  file.compare(out + "osci_scale", denoised({guidance, image, true, true}), 1e-3);
}

}  // namespace

CaseResults verify_size_sampling(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  const int steps = context.config.at("steps").get<int>();
  std::vector<double> lines;
  const Tensor lengths = file.tensor("in.v2.seq_len");
  for (int64_t i = 0; i < lengths.numel(); ++i)
    lines.push_back(diffusion::size_shift(lengths[i].item<double>(), /*frames=*/1));
  file.compare("out.v2.lin", doubles(lines), relative(1e-6));
  const Json& schedules = context.config.at("v2_schedules");
  for (size_t k = 0; k < schedules.size(); ++k) {
    const Json& row = schedules[k];
    const double shift = row.at(2).is_null() ? diffusion::size_shift(row.at(0).get<double>(), row.at(1).get<int64_t>())
                                             : row.at(2).get<double>();
    file.compare("out.v2.schedule" + std::to_string(k), doubles(schedule_of(steps, shift)), relative(1e-6));
  }
  file.compare("out.v2.schedule_noshift", doubles(schedule_of(steps, 1)), relative(1e-6));
  check_area(file, context);
  check_training(file, context);
  check_guidance(file, context);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
