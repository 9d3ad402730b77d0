// Kind "opensora_loss": noisy latents, targets, losses and gradients of 2.0 in fp32 and bf16, with frames that do not count,
// and of 1.3 with frames beside the noisy ones, with weights of frames, and with latents of the target's own. A mesh means
// nothing here.
#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/base/text.h"
#include "tessera/diffusion/given_frames.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/tools/verify/by_size.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using Weights = std::vector<double>;

/// Weights of frames where the pictures that are given at either end do not count. Videos that are given do.
Weights without_pictures(const Tensor& pattern) {
  const int64_t frames = pattern.size(0), last = frames - 1;
  const auto given = [&](int64_t f) { return pattern[f].item<double>() != 0; };
  bool inner = false;
  for (int64_t f = 1; f < last; ++f) inner = inner || given(f);
  const families::GivenPlaces places = families::places_of(families::kind_giving(given(0), given(last), inner));
  Weights weights(static_cast<size_t>(frames), 1);
  if (places.pictures && places.head) weights.front() = 0;
  if (places.pictures && places.tail) weights.back() = 0;
  const auto counted = static_cast<double>(std::ranges::count(weights, 1));
  for (double& weight : weights) weight *= static_cast<double>(frames) / counted;
  return weights;
}

struct MeanLoss {
  Tensor loss, gradient;
};

/// The mean over samples [N, rows, C], each with the weights of its frames.
MeanLoss mean_loss(const Tensor& prediction, const Tensor& target, const std::vector<Weights>& weights) {
  const int64_t samples = prediction.size(0);
  const double share = 1 / static_cast<double>(samples);
  const Tensor gradient = at::zeros_like(prediction);
  double loss = 0;
  for (int64_t i = 0; i < samples; ++i)
    loss += share * loss_of_rows(prediction[i].contiguous(), target[i].contiguous(), share, gradient[i],
                                 weights[static_cast<size_t>(i)]);
  return {at::scalar_tensor(loss, at::kFloat), gradient};
}

/// A dtype of 2.0's trainer. Here all but the timesteps is fp32, from inputs of that dtype: in bf16 the bits of targets
/// differ from the trainer's, so that losses and gradients are those of the recorded target there.
class SecondLoss {
 public:
  SecondLoss(CaseFile& file, const CaseContext& context, bool bf16)
      : file_(file), context_(context), bf16_(bf16), dtype_(bf16 ? "bf16." : "fp32.") {}

  void check() {
    const double shift = context_.config.at("v2_alpha").get<double>();
    const diffusion::Options options = by_size(shift, bf16_);
    const Tensor latent = input("latent"), noise = input("noise"), normal = file_.tensor("in.v2.normal"),
                 t = sigmas_of(options, normal);
    std::vector<Tensor> noisy, targets, noises;
    for (int64_t i = 0; i < latent.size(0); ++i) {
      noisy.push_back(models::to_rows(
          diffusion::add_noise(latent[i], noise[i], t[i].item<double>(), options.least_noise), kSizePatch));
      targets.push_back(models::to_rows(diffusion::velocity(latent[i], noise[i], options.least_noise), kSizePatch));
      noises.push_back(models::to_rows(noise[i], kSizePatch));
    }
    Tensor target = at::stack(targets);
    if (bf16_) {
      compare_rounded(file_, out("t"), t, sigmas_of(by_size(shift), normal));
      // its terms cancel: steps are those of the largest, as the rule is for each tensor
      file_.compare(out("x_t"), at::stack(noisy), [](double most) {
        return kSteps * bf16_steps(at::scalar_tensor(most, at::kDouble)).item<double>();
      });
      // a step of the noise, which was rounded before the latent was taken from it, and one of what is left
      file_.compare_each(out("target"), target, [&](const Tensor& expected) {
        return bf16_steps(at::stack(noises).to(at::kDouble)) + bf16_steps(expected);
      });
      if (file_.has(out("target"))) target = file_.tensor(out("target"));
    } else {
      file_.compare(out("t"), t, context_.bound("out"));
      file_.compare(out("x_t"), at::stack(noisy), context_.bound("out"));
      file_.compare(out("target"), target, context_.bound("out"));
    }
    check_losses(target);
  }

 private:
  static constexpr double kSteps = 2;  // of bf16

  std::string out(const char* what) const { return "out.v2." + dtype_ + what; }

  Tensor input(const char* name) const {
    const Tensor value = file_.tensor(std::string("in.v2.") + name);
    return bf16_ ? value.to(at::kBFloat16).to(at::kFloat) : value;
  }

  void compare_gradient(const char* what, const Tensor& gradient) {
    const std::string name = "grad_in.v2." + dtype_ + what;
    if (bf16_)
      compare_rounded(file_, name, gradient.to(at::kBFloat16).to(at::kFloat), gradient);
    else
      file_.compare(name, gradient, context_.bound("grad"));
  }

  void check_losses(const Tensor& target) {
    const Tensor prediction = file_.tensor("in.v2." + dtype_ + "pred"), patterns = file_.tensor("in.v2.mask_patterns"),
                 chosen = file_.tensor("in.v2.mixed_pattern");
    const auto bound = bf16_ ? relative(1e-4) : context_.bound("out");
    const auto samples = static_cast<size_t>(prediction.size(0));
    const MeanLoss plain = mean_loss(prediction, target, std::vector<Weights>(samples));
    file_.compare(out("loss"), plain.loss, bound);
    compare_gradient("pred", plain.gradient);
    std::vector<Tensor> each;
    for (int64_t k = 0; k < patterns.size(0); ++k)
      each.push_back(mean_loss(prediction, target, std::vector<Weights>(samples, without_pictures(patterns[k]))).loss);
    file_.compare(out("loss_per_pattern"), at::stack(each), bound);
    std::vector<Weights> mixed;
    for (int64_t i = 0; i < chosen.numel(); ++i) mixed.push_back(without_pictures(patterns[chosen[i].item<int64_t>()]));
    const MeanLoss of_mixed = mean_loss(prediction, target, mixed);
    file_.compare(out("loss_mixed"), of_mixed.loss, bound);
    compare_gradient("mixed", of_mixed.gradient);
  }

  CaseFile& file_;
  const CaseContext& context_;
  const bool bf16_;
  const std::string dtype_;
};

/// Weights of frames of which those of `index` weigh `weight`, and the others so that the mean is 1.
Weights weights_beside(const Tensor& index, double weight, int64_t frames) {
  const auto given = static_cast<double>(index.numel()), all = static_cast<double>(frames);
  Weights weights(static_cast<size_t>(frames), (all - given * weight) / (all - given));
  for (int64_t i = 0; i < index.numel(); ++i) weights[static_cast<size_t>(index[i].item<int64_t>())] = weight;
  return weights;
}

/// What 1.3 may leave out of a batch, with weights; none where a case has no such runs.
std::vector<families::Weighted> drops_of(const Settings& config) {
  std::vector<families::Weighted> drops;
  if (!config.contains("v13_drop_condition")) return drops;
  const std::vector<std::string> known = families::drop_kinds();
  for (const auto& [kind, weight] : config.at("v13_drop_condition").items()) {
    check_input(std::ranges::find(known, kind) != known.end(), "verify",
                "config.json: v13_drop_condition." + printable(kind) + " is not known to this build");
    drops.push_back({kind, weight.get<double>()});
  }
  return drops;
}

/// A run of 1.3: what each drop leaves of given frames, what the model reads, the losses.
void check_third(CaseFile& file, const CaseContext& context, const std::string& name, const Settings& run) {
  const std::string out = "out.v13." + name + ".";
  const auto in = [&](const char* input) { return file.tensor(std::string("in.v13.") + input); };
  for (const char* of_given : {"x_cond_weight", "drop_u"}) run.read(of_given);  // of frames that a run may not have
  const auto used = run.at("uses").get<std::vector<std::string>>();
  const auto uses = [&](const char* input) { return std::ranges::find(used, input) != used.end(); };
  const Settings frames = run.at("mask_index");
  const Tensor index =
      at::tensor(frames.is_null() ? std::vector<int64_t>() : frames.get<std::vector<int64_t>>(), at::kLong);
  std::string drop = "keep";
  if (!run.at("drop").is_null()) {
    drop = families::chosen(drops_of(context.config), run.at("drop_u").get<double>());
    if (drop != run.at("drop").get<std::string>()) file.fail(out + "y: another choice of what is left out, " + drop);
  }
  AreaSamples samples{.x0 = in("x"), .noise = in("noise"), .t = in("t"), .text = {}};
  if (uses("mask")) samples.mask = in("frame_mask");
  if (uses("x_gt")) samples.wanted = in("x_gt");
  if (uses("noise_disable_threshold")) {  // beyond it the target's latents are those that are noised
    const Tensor beyond = samples.t > context.config.at("v13_noise_disable_threshold").get<double>();
    samples.x0 = at::where(beyond.view({-1, 1, 1, 1, 1}), samples.wanted, samples.x0);
  }
  const Tensor given = uses("x_noisy_ref") ? in("x_noisy_ref") : samples.x0, y = in("y"), null = in("y_embedding");
  std::vector<Tensor> conds, texts, masks;
  for (int64_t i = 0; i < given.size(0); ++i) {
    const diffusion::BesideInput input = diffusion::beside_input(drop, given[i], index, y[i][0], null);
    conds.push_back(input.cond.defined() ? input.cond : at::zeros_like(given[i]));
    texts.push_back(input.context.unsqueeze(0));
    masks.push_back(at::zeros_like(given[i]).index_fill_(1, index, 1));
  }
  const Tensor cond = at::stack(conds), text = at::stack(texts);
  samples.text = 0.02 * text.flatten(1).mean(1);
  samples.beside = 0.2 * cond + 0.05 * at::stack(masks);
  if (index.numel() > 0) samples.weights = weights_beside(index, run.at("x_cond_weight").get<double>(), given.size(2));
  const AreaLoss found = area_loss(samples);
  file.compare(out + "cond", cond, 0.0);
  file.compare(out + "y", text, 0.0);
  file.compare(out + "x_t", found.noisy, context.bound("out"));
  file.compare(out + "loss", found.losses, context.bound("out"));
  file.compare(out + "mean", found.losses.mean(), context.bound("out"));
}

}  // namespace

CaseResults verify_size_loss(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  const double least = by_size(1).least_noise;
  check_input(context.config.value("sigma_min", least) == least, "verify",
              context.name + ": config.json: sigma_min, this build has " + std::to_string(least));
  for (const char* not_everywhere : {"latent", "mask_patterns", "v13_noise_disable_threshold"})
    context.config.read(not_everywhere);  // what inputs say, and what runs may have
  drops_of(context.config);               // which no run may read
  for (const bool bf16 : {false, true}) SecondLoss(file, context, bf16).check();
  for (const auto& [name, run] : context.config.at("v13_runs").items()) check_third(file, context, name, run);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
