// Kind "sampling_opensora": schedules, noisy latents and losses, and paths with guidance, of 2.0, 1.2 and 1.3. A mesh means
// nothing here.
#include "tessera/base/check.h"
#include "tessera/diffusion/sampler.h"
#include "tessera/tools/verify/by_size.h"

namespace tessera::tools {

using at::Tensor;
using diffusion::Options;

namespace {

void check_training(CaseFile& file, const CaseContext& context) {
  const Settings given = context.config.at("v2_train");
  const double least = by_size(1).least_noise;
  check_input(given.value("sigma_min", least) == least, "verify",
              context.name + ": config.json: v2_train.sigma_min, this build has " + std::to_string(least));
  const Options options = diffusion::of_size(
      by_size(1), {16, given.at("latent_frames").get<int64_t>(), 1, given.at("latent_h*w").get<int64_t>()});
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
  const auto sizes = video_sizes(context.config.at("hwf"));
  for (const int scale : {1, 2}) {
    const std::string name = ".transform_scale" + std::to_string(scale);
    file.compare("out.v12" + name, area_timesteps(sizes, file.tensor("in.t"), scale), relative(1e-6));
    file.compare("out.v13" + name, area_timesteps(sizes, file.tensor("in.t"), scale, shift_of_second), relative(1e-6));
  }
  const Tensor t = file.tensor("in.rf.t"), x0 = file.tensor("in.rf.x_start"), noise = file.tensor("in.rf.noise");
  for (const auto& [suffix, mask] : {std::pair<std::string, Tensor>("", {}), {"_masked", file.tensor("in.rf.mask")}}) {
    const AreaLoss found = area_loss({.x0 = x0, .noise = noise, .t = t, .text = at::zeros({t.numel()}), .mask = mask});
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
Settings guided_size(const Settings& config) {
  for (const auto& [key, value] : config.items())
    if (key.ends_with("_schedule")) return value;
  return {};
}

/// A model that was distilled has its guidance as an input, and neither text nor given frames.
void check_distilled(CaseFile& file, int steps, double shift) {
  constexpr double kGuidance = 4;
  const auto sampler = diffusion::make_sampler("euler_by_size", steps, shift);
  Tensor x = file.tensor("in.v2.img");
  for (int i = 0; i < steps; ++i)
    x = sampler->step(i, x, velocity(x, sampler->timesteps()[static_cast<size_t>(i)] / 1000, kGuidance));
  file.compare("out.v2.distilled", x, 1e-4);
}

void check_guidance(CaseFile& file, const CaseContext& context) {
  const std::string out = guidance_prefix(file);
  if (out.empty()) return;
  const Settings size = guided_size(context.config);
  const int steps = context.config.at("steps").get<int>();
  const double guidance = context.config.at("v2_guidance").get<double>(),
               image = context.config.at("v2_guidance_img").get<double>();
  const double shift = diffusion::size_shift(size.at(0).get<double>(), size.at(1).get<int64_t>());
  file.compare(out + "timesteps", doubles(size_schedule(steps, shift)), relative(1e-6));
  const Tensor given = file.tensor("in.v2.masked_ref")[0];  // [C, F, h, w]
  const Tensor cond = models::to_rows(at::cat({file.tensor("in.v2.masks")[0], given}), kSizePatch).mean(1, true);
  const Tensor texts = file.tensor("in.v2.txt").mean({1, 2}), start = file.tensor("in.v2.img")[0];
  const auto latent = [&](const Tensor& rows) { return models::from_rows(rows, given.sizes(), kSizePatch); };
  const auto denoised = [&](const diffusion::TwoGuidances& scales) {
    const auto sampler = diffusion::make_sampler("euler_by_size", steps, shift);
    Tensor x = latent(start);
    for (int i = 0; i < steps; ++i) {
      const Tensor plain =
          velocity(models::to_rows(x, kSizePatch), sampler->timesteps()[static_cast<size_t>(i)] / 1000, guidance);
      const auto branch = [&](int64_t text, bool with_image) {
        const Tensor rows = plain + texts[text].item<double>() * 0.2;
        return latent(with_image ? rows + cond * 0.05 : rows);
      };
      x = sampler->step(i, x, diffusion::guided(branch(2, false), branch(1, true), branch(0, true), scales, i, steps));
    }
    return models::to_rows(x, kSizePatch).unsqueeze(0);
  };
  file.compare(out + "plain", denoised({guidance, image}), 1e-3);
  file.compare(out + "osci", denoised({guidance, image, true}), 1e-3);
  file.compare(out + "osci_scale", denoised({guidance, image, true, true}), 1e-3);
  check_distilled(file, steps, shift);
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
  const Settings schedules = context.config.at("v2_schedules");
  for (size_t k = 0; k < schedules.size(); ++k) {
    const Settings row = schedules.at(k);
    row.read();  // a shift stands in place of what it would follow from
    const double shift = row.at(2).is_null() ? diffusion::size_shift(row.at(0).get<double>(), row.at(1).get<int64_t>())
                                             : row.at(2).get<double>();
    file.compare("out.v2.schedule" + std::to_string(k), doubles(size_schedule(steps, shift)), relative(1e-6));
  }
  file.compare("out.v2.schedule_noshift", doubles(size_schedule(steps, 1)), relative(1e-6));
  check_area(file, context);
  check_training(file, context);
  check_guidance(file, context);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
