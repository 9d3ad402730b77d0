// Kind "losses": masked, Huber, preservation and guidance losses of six trainers with their gradients, and masks on the
// grid of latents. Kind "eval_loss": held-out losses of a recorded model. A mesh means nothing to either.
//
// Every loss is a sum of terms k e(d): k a weight of each value, d its difference to a target, e an error of
// ops/kernels.h. Its gradient with respect to the prediction is the sum of b k e'(d), b the derivative of d.
#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/diffusion/loss.h"
#include "tessera/tools/verify/by_size.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using diffusion::LossRule;
using ops::ErrorForm;
using ops::ErrorKind;

struct Term {
  Tensor d, k;                   ///< of shapes that go together
  std::vector<ErrorForm> forms;  ///< of each sample
  double by = 1;
};

struct Loss {
  double value = 0;
  std::vector<double> per_sample;  ///< sums, without the mean over samples
  Tensor gradient;
};

Loss loss_of(const std::vector<Term>& terms) {
  Loss loss;
  loss.gradient = at::zeros_like(terms.front().d, at::kDouble);
  const int64_t batch = loss.gradient.size(0), values = loss.gradient.numel() / batch;
  loss.per_sample.assign(static_cast<size_t>(batch), 0.0);
  for (const Term& term : terms) {
    const Tensor d = term.d.to(at::kDouble).contiguous(), k = term.k.to(at::kDouble).expand_as(d).contiguous();
    auto* gradient = loss.gradient.mutable_data_ptr<double>();
    for (int64_t i = 0; i < d.numel(); ++i) {
      const auto sample = static_cast<size_t>(i / values);
      const ops::ErrorValue one = ops::error_of(term.forms[sample], d.const_data_ptr<double>()[i]);
      const double weight = k.const_data_ptr<double>()[i];
      loss.per_sample[sample] += weight * one.error;
      gradient[i] += term.by * weight * one.slope;
    }
  }
  for (double& sample : loss.per_sample) loss.value += sample, sample *= static_cast<double>(batch);
  return loss;
}

ErrorForm form_of(ErrorKind kind, double c = 1) {
  ErrorForm form;
  form.weights = {};
  form[kind] = 1;
  form.c = c;
  return form;
}

/// The latents of a case's videos or pictures.
struct Latents {
  Latents(const CaseFile& file, const std::string& kind) {
    // In fp32, as the references subtract: near 0 the slope of an error depends on the rounding of its difference.
    const auto read = [&](const std::string& name) { return file.tensor("in." + kind + "." + name).to(at::kFloat); };
    pred = read("pred"), target = read("noise") - read("x"), prior = read("prior"), timesteps = read("timesteps");
    check_input(pred.dim() > 2 && pred.sizes() == target.sizes() && pred.size(0) == timesteps.size(0), "verify",
                file.label() + ": in." + kind + ".* have other shapes than one another");
  }
  int64_t batch() const { return pred.size(0); }
  /// 1 / the number of all values.
  Tensor mean() const { return at::full({1}, 1.0 / static_cast<double>(pred.numel()), at::kDouble); }
  /// A tensor with a number a sample, or with a grid of each, as it multiplies latents.
  Tensor along(const Tensor& of_samples) const {
    std::vector<int64_t> shape(static_cast<size_t>(pred.dim()), 1);
    shape[0] = of_samples.size(0);
    if (of_samples.dim() == 3) shape[shape.size() - 2] = of_samples.size(1), shape.back() = of_samples.size(2);
    return of_samples.view(shape);
  }
  std::vector<ErrorForm> all(const ErrorForm& form) const { return {static_cast<size_t>(batch()), form}; }

  Tensor pred, target, prior, timesteps;
};

/// Masks of whole pixels on the grid of latents, by the ways of resizing.
Tensor on_grid(const Tensor& pixels, const std::string& way, int64_t height, int64_t width) {
  if (way.starts_with("nearest")) return diffusion::on_grid(pixels.to(at::kHalf).to(at::kFloat), way, height, width);
  if (way == "area") return diffusion::on_grid(pixels, way, height, width);
  if (way == "bilinear_antialias")  // a factor of 1/8, whatever the autoencoder's is
    return diffusion::on_grid(pixels, "bilinear", pixels.size(1) / 8, pixels.size(2) / 8);
  check_input(way == "bicubic", "verify", "mask '" + way + "' is not known to this build");
  return at::upsample_bicubic2d(pixels.unsqueeze(1), {height, width}, /*align_corners=*/false).squeeze(1);
}

/// VACE's: the pixels of a latent's place are channels.
Tensor as_channels(const Tensor& frames, int64_t latent_frames, int64_t stride) {
  const int64_t height = frames.size(1) / stride, width = frames.size(2) / stride;
  const Tensor channels = frames.view({frames.size(0), height, stride, width, stride})
                              .permute({2, 4, 0, 1, 3})
                              .reshape({stride * stride, frames.size(0), height, width});
  return at::_upsample_nearest_exact3d(channels.unsqueeze(0), {latent_frames, height, width}).squeeze(0);
}

class LossCase {
 public:
  LossCase(const CaseContext& context, CaseFile& file)
      : config_(context.config),
        file_(file),
        video_(file, "video"),
        image_(file, "image"),
        pixels_(file.tensor("in.mask_pixels").to(at::kFloat)) {
    check_input(config_.at("video").get<std::vector<int64_t>>() == video_.pred.sizes().vec(), "verify",
                file.label() + ": in.video.pred has another shape than config.json's video");
    const auto timesteps = config_.at("timesteps").get<std::vector<double>>();
    check_input(std::ssize(timesteps) == video_.batch(), "verify",
                file.label() + ": config.json has as many timesteps as there are samples");
    for (size_t i = 0; i < timesteps.size(); ++i)
      check_input(video_.timesteps[static_cast<int64_t>(i)].item<float>() == static_cast<float>(timesteps[i]), "verify",
                  file.label() + ": in.video.timesteps are others than config.json's timesteps");
  }

  void check() {
    check_grids();
    check_thresholds();
    for (const auto& [run, settings] : config_.at("runs").items()) check_run(run, settings);
    for (const auto& [run, settings] : config_.at("ot").items()) check_run("ot." + run, settings);
    // Of the whole loss of preservation the case has the value alone.
    const double plain = loss_of({weighted(video_, form_of(ErrorKind::mse))}).value;
    compare_loss("ai.preservation_total", plain + preservation_);
    // What runs read where they have it; the others say it again.
    for (const char* shared : {"mask_min_value", "inverted_mask_prior_multiplier", "preservation_multiplier",
                               "guidance_target", "guidance_list", "differential_guidance_scale", "cfg", "huber_delta",
                               "smooth_l1_beta", "huber_c", "huber_scale"})
      config_.read(shared);
  }

 private:
  int64_t height() const { return video_.pred.size(-2); }
  int64_t width() const { return video_.pred.size(-1); }
  Tensor grid(const std::string& way) const { return on_grid(pixels_, way, height(), width()).to(at::kDouble); }

  void check_grids() {
    const std::string prefix = "out.grid.";
    for (const std::string& name : file_.names(prefix)) {
      const std::string way = name.substr(prefix.size());
      file_.compare(name, on_grid(pixels_, way, height(), width()),
                    way.starts_with("nearest") ? 0
                    : way.starts_with("bi")    ? 2e-6
                                               : 1e-6);
    }
    const Tensor frames = file_.tensor("in.video_mask").to(at::kFloat);
    check_input(config_.at("frames") == frames.size(0), "verify", file_.label() + ": in.video_mask has other frames");
    file_.compare("out.video_grid.own_area",
                  diffusion::latent_mask(frames, "area", {1, video_.pred.size(2), height(), width()}), 1e-6);
    file_.compare("out.video_grid.vace", as_channels(frames, video_.pred.size(2), config_.at("stride")), 1e-6);
  }

  LossRule rule(const std::string& schedule, ErrorKind kind, double c, double scale) const {
    return {form_of(kind, c), diffusion::huber_schedule_of(schedule), scale};
  }

  void check_thresholds() {
    for (const std::string project : {"sd", "st"}) {
      const std::string prefix = "out." + project + ".threshold.";
      for (const std::string& name : file_.names(prefix)) {
        const double scale = project == "sd" ? config_.at("huber_scale").get<double>() : 1;
        const LossRule of = rule(name.substr(prefix.size()), ErrorKind::huber, config_.at("huber_c"), scale);
        std::vector<double> c;
        for (int64_t i = 0; i < image_.batch(); ++i) c.push_back(of.at(image_.timesteps[i].item<double>()).c);
        file_.compare(name, doubles(c).to(at::kFloat), relative(2e-6));
      }
    }
  }

  void compare_loss(const std::string& name, double value) {
    file_.compare("out." + name, at::scalar_tensor(value, at::kDouble).to(at::kFloat), relative(2e-6));
  }

  void check_run(const std::string& run, const Settings& settings) {
    try {
      const std::string project = run.substr(0, run.find('.'));
      const std::vector<Term> terms = project == "dp"          ? dp_terms(settings)
                                      : project == "musubi_pr" ? musubi_terms(settings)
                                      : project == "ai"        ? ai_terms(run, settings)
                                      : project == "ot"        ? ot_terms(settings)
                                      : project == "st"        ? kohya_terms(run, settings, /*scales=*/false)
                                      : project == "sd"        ? kohya_terms(run, settings, /*scales=*/true)
                                                               : std::vector<Term>();
      check_input(!terms.empty(), "verify", "losses of '" + project + "' are not known to this build");
      const Loss loss = loss_of(terms);
      compare_loss(run, loss.value);
      if (run == "ai.preservation_part") preservation_ = loss.value;
      // Some runs have no gradient.
      if (file_.has("grad." + run)) file_.compare("grad." + run, loss.gradient.to(at::kFloat), relative(2e-6));
      if (file_.has("out." + run + ".per_sample"))
        file_.compare("out." + run + ".per_sample", doubles(loss.per_sample).to(at::kFloat), relative(2e-6));
    } catch (const UserError& error) {
      settings.json();
      file_.refuse_run(run, error.what());
      file_.leave_out("out." + run, error.what());
      file_.leave_out("grad." + run, error.what());
    }
  }

  /// What a key of the run says; the case's own where the run has none.
  double number(const Settings& run, const char* key) const {
    return run.contains(key) ? run.at(key).get<double>() : config_.at(key).get<double>();
  }

  /// The plain mean of a form's errors, ai-toolkit's with a weight of each data set.
  Term weighted(const Latents& of, const ErrorForm& form) const {
    return {of.pred - of.target, of.mean() * of.along(numbers("loss_multiplier", of)), of.all(form)};
  }
  Tensor numbers(const char* key, const Latents& of) const {
    const auto list = config_.at(key).get<std::vector<double>>();
    check_input(std::ssize(list) == of.batch(), "verify", std::string(key) + " has a number for each sample");
    return doubles(list);
  }

  std::vector<Term> dp_terms(const Settings& run) const {
    ErrorForm form = form_of(ErrorKind::mse);
    if (run.contains("smooth_l1_beta")) form = form_of(ErrorKind::true_smooth_l1, run.at("smooth_l1_beta"));
    if (run.contains("huber_delta")) form = form_of(ErrorKind::true_huber, run.at("huber_delta"));
    Term term{video_.pred - video_.target, video_.mean(), video_.all(form)};
    if (run.contains("mask")) term.k = term.k * video_.along(grid(run.at("mask")));
    if (run.contains("cfg")) {
      const double cfg = run.at("cfg");
      const Tensor without = file_.tensor("in.video.uncond_pred").to(at::kDouble);
      term.d = (video_.pred + (cfg - 1) * without) / cfg - video_.target;
      term.by = 1 / cfg;
    }
    return {term};
  }

  std::vector<Term> musubi_terms(const Settings& run) const {
    const Tensor mask = video_.along(grid(run.at("mask"))).expand_as(video_.pred);
    return {{video_.pred - video_.target, mask / mask.sum(), video_.all(form_of(ErrorKind::mse))}};
  }

  /// Where ai-toolkit's masks are m, 1 the mean over the batch.
  Tensor ai_mask(const Settings& run) const {
    const double least = number(run, "mask_min_value");  // lifted before it is rounded to 16 bits
    const Tensor mask = on_grid(least + (1 - least) * pixels_, run.at("mask"), height(), width());
    return video_.along(diffusion::mask_weights(mask, {.of_area = true}).to(at::kDouble));
  }

  std::vector<Term> ai_terms(const std::string& name, const Settings& run) const {
    if (run.value("diff_output_preservation", false)) {
      const Tensor second = file_.tensor("in.video.preservation_pred").to(at::kDouble);
      return {{second - video_.prior, video_.mean() * number(run, "diff_output_preservation_multiplier"),
               video_.all(form_of(ErrorKind::mse))}};
    }
    const std::string type = run.value("loss_type", std::string("mse"));
    check_input(type == "mse" || type == "mae" || type == "pseudo_huber", "verify",
                "loss_type '" + type + "' is not known to this build");
    Term term = weighted(video_, type == "mae"            ? form_of(ErrorKind::mae)
                                 : type == "pseudo_huber" ? form_of(ErrorKind::pseudo_huber, 0.01)
                                                          : form_of(ErrorKind::mse));
    if (name == "ai.prior_as_target") term.d = video_.pred - video_.prior;
    if (run.contains("do_guidance_loss")) guide(run, term);
    if (run.contains("mask")) term.k = term.k * ai_mask(run);
    if (!run.value("inverted_mask_prior", false)) return {term};
    run.read("prior mask");  // in words
    const Tensor inverse = 1 - on_grid(pixels_, "bicubic", height(), width()).to(at::kDouble)[0];
    const double times = number(run, "inverted_mask_prior_multiplier");
    return {term,
            {video_.pred - video_.prior, video_.mean() * times * inverse / inverse.mean(),
             video_.all(form_of(ErrorKind::mse))}};
  }

  /// The target is moved away from the prediction of no prompt. Differential guidance does nothing by itself.
  void guide(const Settings& run, Term& term) const {
    std::vector<double> scales(static_cast<size_t>(video_.batch()));
    const Settings target = run.at("guidance_loss_target");
    if (target.is_array())
      scales = target.get<std::vector<double>>();
    else
      std::ranges::fill(scales, target.get<double>());
    check_input(std::ssize(scales) == video_.batch(), "verify", "guidance_loss_target has a number for each sample");
    const std::string schedule = run.at("guidance_loss_schedule");
    check_input(schedule == "constant" || schedule == "sigma", "verify",
                "guidance_loss_schedule '" + schedule + "' is not known to this build");
    const bool zero = run.at("do_guidance_loss_cfg_zero"), moves = run.at("do_differential_guidance");
    const double difference = run.at("differential_guidance_scale");
    if (!run.at("do_guidance_loss").get<bool>()) return;
    const Tensor without = file_.tensor("in.video.uncond_pred").to(at::kDouble),
                 targets = video_.target.to(at::kDouble);
    std::vector<Tensor> moved;
    for (int64_t i = 0; i < video_.batch(); ++i) {
      const double at = scales[static_cast<size_t>(i)];
      const diffusion::Guidance guidance{at, at, schedule == "sigma"};
      moved.push_back(
          diffusion::guided_target(targets[i], without[i], guidance.at(0, video_.timesteps[i].item<double>()), zero));
    }
    term.d = video_.pred - at::stack(moved);
    if (moves) term.d = term.d * difference;
  }

  /// sd-scripts and SimpleTuner, which has no scale of its thresholds.
  std::vector<Term> kohya_terms(const std::string& name, const Settings& run, bool scales) const {
    constexpr std::pair<const char*, ErrorKind> kTypes[] = {{"l2", ErrorKind::mse},
                                                            {"l1", ErrorKind::mae},
                                                            {"huber", ErrorKind::huber},
                                                            {"smooth_l1", ErrorKind::smooth_l1}};
    const Latents& of = name.find("video") == name.npos ? image_ : video_;
    const std::string type = run.at("loss_type");
    const auto row = std::ranges::find(kTypes, type, [](const auto& r) { return std::string(r.first); });
    check_input(row != std::end(kTypes), "verify", "loss_type '" + type + "' is not known to this build");
    const std::string schedule = run.value("huber_schedule", std::string("constant"));
    check_input(!scales || schedule != "snr", "verify", "huber_schedule 'snr' fails on flow models in sd-scripts");
    const double scale = scales && run.contains("huber_scale") ? run.at("huber_scale").get<double>() : 1;
    const LossRule rule = this->rule(schedule, row->second, number(run, "huber_c"), scale);
    Term term{of.pred - of.target, of.mean(), {}};
    for (int64_t i = 0; i < of.batch(); ++i) term.forms.push_back(rule.at(of.timesteps[i].item<double>()));
    if (run.contains("mask")) term.k = term.k * of.along(grid(run.at("mask")));
    if (run.contains("sample weight")) {
      const Settings weight = run.at("sample weight");
      if (weight.is_array())
        term.k = term.k * of.along(doubles(weight.get<std::vector<double>>()));
      else
        term.k = term.k * weight.get<double>();
    }
    return {term};
  }

  std::vector<Term> ot_terms(const Settings& run) const {
    const bool video = run.at("video");
    const Latents& of = video ? video_ : image_;
    ErrorForm form;
    form.weights = {};
    form[ErrorKind::mse] = run.at("mse_strength"), form[ErrorKind::mae] = run.at("mae_strength");
    form[ErrorKind::log_cosh] = run.at("log_cosh_strength"), form[ErrorKind::true_huber] = run.at("huber_strength");
    form.c = run.at("huber_delta");
    check_input(run.at("vb_loss_strength") == 0.0, "verify", "vb_loss_strength is not known to this build");
    const std::string weighting = run.at("loss_weight_fn");
    check_input(weighting == "CONSTANT" || weighting == "SIGMA", "verify",
                "loss_weight_fn '" + weighting + "' is not known to this build");
    Tensor each = of.mean() * of.along(numbers("sample_weights", of));
    if (weighting == "SIGMA") each = each * of.along(of.timesteps / 1000);
    const bool masked = run.at("masked_training"), normal = run.at("normalize_masked_area_loss"),
               prior = run.at("prior");
    const double least = run.at("unmasked_weight"), preserved = run.at("masked_prior_preservation_weight");
    Term term{of.pred - of.target, each, of.all(form)};
    if (!masked) return {term};
    const Tensor mask = of.along(diffusion::mask_weights(grid("bilinear_antialias"), {.unmasked = least}));
    // The mean over dimensions 1 to 3, which leaves the columns of a video apart, as OneTrainer has it.
    const auto area = [&](const Tensor& m) {
      return normal ? m.mean({1, 2, 3}, /*keepdim=*/true) : at::ones({1}, at::kDouble);
    };
    term.k = each * mask / area(mask);
    if (!prior || preserved == 0) return {term};
    return {term, {of.pred - of.prior, each * preserved * (1 - mask) / area(1 - mask), of.all(form)}};
  }

  const Settings& config_;
  CaseFile& file_;
  const Latents video_, image_;
  const Tensor pixels_;
  double preservation_ = 0;
};

}  // namespace

CaseResults verify_losses(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  LossCase(context, file).check();
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

namespace {

/// A case's losses: v(x, t, c) = a sin(x) + b t x + e c with t in 0..1, of latents [N, ...] and a number c of each.
struct RecordedModel {
  std::vector<double> net;
  Tensor differences(const Tensor& latents, const Tensor& noise, double t, const Tensor& cond) const {
    std::vector<int64_t> shape(static_cast<size_t>(latents.dim()), 1);
    shape[0] = cond.numel();
    const Tensor x = diffusion::add_noise(latents, noise, t);
    return net.at(0) * at::sin(x) + net.at(1) * t * x + net.at(2) * cond.view(shape) -
           diffusion::velocity(latents, noise);
  }
};

Tensor errors_of(const Tensor& differences, const ops::ErrorForm& form) {
  const Tensor d = differences.contiguous(), errors = at::empty_like(d);
  for (int64_t i = 0; i < d.numel(); ++i)
    errors.mutable_data_ptr<double>()[i] = ops::error_of(form, d.const_data_ptr<double>()[i]).error;
  return errors;
}

/// What diffusion-pipe's losses are, by its keys.
ops::ErrorForm pipe_form(const Settings& loss) {
  ops::ErrorForm form;
  const auto take = [&](const char* key, ops::ErrorKind kind) {
    if (!loss.contains(key)) return;
    form.weights = {};
    form[kind] = 1, form.c = loss.at(key);
  };
  take("smooth_l1_beta", ops::ErrorKind::true_smooth_l1);
  take("huber_delta", ops::ErrorKind::true_huber);
  return form;
}

void check_set(CaseFile& file, const CaseContext& context, const std::string& name, const Settings& set,
               const RecordedModel& model) {
  const Settings& config = context.config;
  const auto shape = set.at("shape").get<std::vector<int64_t>>();
  const int64_t items = set.at("items"), batch = set.at("batch"), used = items - items % batch;
  const auto read = [&](const char* what) { return file.tensor("in." + name + "." + what).to(at::kDouble); };
  const Tensor latents = read("latents"), cond = read("cond"), noise = read("noise");
  check_input(latents.size(0) == items && latents[0].sizes() == at::IntArrayRef(shape) && noise.size(1) == used,
              "verify", file.label() + ": in." + name + ".* have other shapes than the set");
  Tensor mask;
  if (set.at("mask").get<bool>()) {
    const Tensor half = file.tensor("in." + name + ".mask").to(at::kHalf).to(at::kFloat).unsqueeze(1);
    mask = at::_upsample_nearest_exact2d(half, {shape[shape.size() - 2], shape.back()}).to(at::kDouble);
    if (shape.size() == 4) mask = mask.unsqueeze(2);
  }
  const ops::ErrorForm form = pipe_form(config.at("loss"));
  const std::vector<double> table = pipe_timesteps(config.at("model"), shape[shape.size() - 2], shape.back());
  std::vector<double> losses, timesteps;
  const auto quantiles = config.at("quantiles").get<std::vector<float>>();
  check_input(noise.size(0) == std::ssize(quantiles), "verify",
              file.label() + ": in." + name + ".noise has other quantiles");
  for (size_t q = 0; q < quantiles.size(); ++q) {
    const auto place = static_cast<size_t>(quantiles[q] * static_cast<float>(table.size()));
    const double t = table.at(std::min(place, table.size() - 1));
    timesteps.insert(timesteps.end(), static_cast<size_t>(used), 1000 * t);
    double sum = 0;
    for (int64_t first = 0; first < used; first += batch) {
      const auto part = [&](const Tensor& of) { return of.slice(0, first, first + batch); };
      Tensor error =
          errors_of(model.differences(part(latents), part(noise[static_cast<int64_t>(q)]), t, part(cond)), form);
      if (mask.defined()) error = error * part(mask);
      sum += error.mean().item<double>();
    }
    losses.push_back(sum / static_cast<double>(used / batch));
  }
  double mean = 0;
  for (const double loss : losses) mean += loss / static_cast<double>(losses.size());
  file.compare("out." + name + ".timesteps", doubles(timesteps).view({std::ssize(quantiles), used}).to(at::kFloat),
               2e-3);
  file.compare_each("out." + name + ".loss_quantile", doubles(losses).to(at::kFloat),
                    [](const Tensor& expected) { return expected.abs() * 2e-6; });
  file.compare("out." + name + ".loss", at::scalar_tensor(mean, at::kDouble).to(at::kFloat), relative(2e-6));
}

}  // namespace

CaseResults verify_eval_loss(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  const Settings& config = context.config;
  const RecordedModel model{config.at("net").get<std::vector<double>>()};
  config.read("rank");  // whose noise the case has
  for (const auto& [name, set] : config.at("sets").items()) check_set(file, context, name, set, model);
  const auto sigmas = config.at("sigmas").get<std::vector<double>>();
  const size_t pictures = config.at("ai_shapes").size();
  double sum = 0;
  for (size_t i = 0; i < pictures; ++i) {
    const auto read = [&](const char* what) {
      return file.tensor("in.ai." + std::to_string(i) + "." + what).to(at::kDouble);
    };
    const auto shape = config.at("ai_shapes").at(i).get<std::vector<int64_t>>();
    check_input(read("latents")[0].sizes() == at::IntArrayRef(shape), "verify",
                file.label() + ": in.ai.* have other shapes than ai_shapes");
    for (const double sigma : sigmas)
      sum +=
          errors_of(model.differences(read("latents"), read("noise"), sigma, read("cond")), {}).mean().item<double>();
  }
  if (pictures > 0)
    file.compare("out.ai.loss", at::scalar_tensor(sum / static_cast<double>(pictures * sigmas.size()), at::kDouble),
                 relative(2e-6));
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
