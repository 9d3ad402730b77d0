// Kinds "sana_sprint_training" and "sana_sprint_ladd": a student with its frozen teacher and heads on the teacher's blocks,
// from recorded draws: the consistency loss, the adversarial phases, and a loop of both.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/diffusion/distillation.h"
#include "tessera/models/common/golden_case.h"
#include "tessera/models/registry.h"
#include "tessera/tools/verify/step_network.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using Outputs = StepNetwork::Outputs;
using Tensors = std::vector<Tensor>;

/// Settings of a run: its own, else those of all runs.
class OwnOrAll {
 public:
  OwnOrAll(const Settings& all, const Settings& own) : all_(all), own_(own) {}

  template <class T>
  T get(const char* part, const char* key, const T& absent) const {
    T value = absent;
    for (const Settings* of : {&all_, &own_})
      if (of->contains(part) && of->at(part).contains(key)) value = of->at(part).at(key).get<T>();
    return value;
  }
  double number(const char* part, const char* key, double absent) const { return get<double>(part, key, absent); }
  bool flag(const char* part, const char* key, bool absent) const { return get<bool>(part, key, absent); }

 private:
  const Settings &all_, &own_;
};

/// NVlabs' settings of a run. What a file leaves out has the default of their classes.
struct SprintRun {
  diffusion::TrigFlow flow;
  double mean = 0, std = 1, judged_mean = 0,
         judged_std = 1;      ///< of the draws of t, the student's and the discriminator's
  bool guided = false;        ///< the teacher's velocity is
  double guidance_scale = 1;  ///< of the number that the student embeds
  double logvar_scale = 1;
  double warmup = 10000;  ///< steps
  double consistency = 1, adversarial = 1;
  diffusion::AdversarialRule rule;
  bool misaligned = false, own_times = true, largest = false;
  double largest_time = 1.5708, largest_share = 0.5;
  int64_t accumulation = 1;
  double clip = 1;

  double drawn(double normal) const { return diffusion::drawn_angle(normal, mean, std); }
  double judged(double normal) const { return diffusion::drawn_angle(normal, judged_mean, judged_std); }
};

void check_known(bool known, const std::string& what) {
  check_input(known, "verify", what + " is not known to this build");
}

SprintRun read_run(const OwnOrAll& s, bool embeds_guidance) {
  SprintRun run;
  run.flow = {s.number("scheduler", "sigma_data", 1), s.number("scheduler", "timestep_norm_scale_factor", 1)};
  for (const char* key : {"weighting_scheme", "weighting_scheme_discriminator"}) {
    const auto scheme = s.get<std::string>("scheduler", key, "logit_normal_trigflow");
    check_known(scheme == "logit_normal_trigflow", std::string(key) + " \"" + scheme + "\" of a step");
  }
  s.get<std::vector<double>>("scheduler", "add_noise_timesteps", {});  // of another scheme
  run.mean = s.number("scheduler", "logit_mean", 0), run.std = s.number("scheduler", "logit_std", 1);
  run.judged_mean = s.number("scheduler", "logit_mean_discriminator", 0);
  run.judged_std = s.number("scheduler", "logit_std_discriminator", 1);
  run.guidance_scale = s.number("model", "cfg_embed_scale", 1);
  run.logvar_scale = s.number("model", "logvar_scale_factor", 1);
  const auto scales = s.get<std::vector<double>>("train", "scm_cfg_scale", {1.0});
  run.guided = embeds_guidance && !scales.empty() && scales[0] > 1;
  run.warmup = s.number("train", "tangent_warmup_steps", 10000);
  check_known(s.flag("train", "scm_loss", true), "scm_loss = false");
  run.consistency = s.number("train", "scm_lambda", 1), run.adversarial = s.number("train", "adv_lambda", 1);
  const auto loss = s.get<std::string>("train", "discriminator_loss", "cross entropy");
  check_known(loss == "hinge" || loss == "cross entropy", "discriminator_loss \"" + loss + "\"");
  const double r1 = s.number("train", "r1_penalty_weight", 1e-5);
  run.rule = {loss == "hinge", s.flag("train", "r1_penalty", false) ? r1 : 0};
  run.misaligned = s.flag("train", "misaligned_pairs_D", false);
  run.own_times = s.flag("train", "diff_timesteps_D", true);
  run.largest = s.flag("train", "train_largest_timestep", false);
  run.largest_time = s.number("train", "largest_timestep", 1.5708);
  run.largest_share = s.number("train", "largest_timestep_prob", 0.5);
  run.accumulation = s.get<int64_t>("train", "gradient_accumulation_steps", 1);
  run.clip = s.number("train", "gradient_clip", 1);
  return run;
}

/// Captions of a batch by their masks.
struct Captions {
  Tensors rows, null_rows;  ///< of each sample; the teacher's caption of nothing under the same mask
  Captions repeated() const {
    Captions twice = *this;
    twice.rows.insert(twice.rows.end(), rows.begin(), rows.end());
    return twice;
  }
};

double norm_of(const std::map<std::string, Tensor>& gradients) {
  double squares = 0;
  for (const auto& [name, g] : gradients) squares += g.to(at::kDouble).square().sum().item<double>();
  return std::sqrt(squares);
}

void add_scaled(std::map<std::string, Tensor>& sum, const std::map<std::string, Tensor>& part, double scale) {
  for (const auto& [name, g] : part) {
    Tensor& there = sum[name];
    there = there.defined() ? there + g * scale : g * scale;
  }
}

Tensor number_of(double value) { return at::scalar_tensor(value, at::kFloat); }
Tensor numbers_of(const std::vector<double>& values) { return at::tensor(values, at::kDouble).to(at::kFloat); }

/// What a generator's phase gave.
struct GeneratorStep {
  diffusion::ConsistencyLoss consistency;
  std::vector<diffusion::ConsistencySample> samples;
  Tensors clean;  ///< x0 of the consistency pass, or of the pass for the heads
  double adversarial = 0, total = 0;
  std::vector<double> t_new, t_judged;
  Tensor logits;
  std::map<std::string, Tensor> gradients;  ///< of the student, by official names
};

/// And a discriminator's.
struct DiscriminatorStep {
  std::vector<double> t, t_fake, t_real;
  Tensors clean;
  diffusion::AdversarialLoss loss;
};

/// The networks of a case.
class SprintCase {
 public:
  explicit SprintCase(const CaseContext& context, CaseFile& file)
      : file_(file),
        training_(context.config.at("_training")),
        embeds_(part_flag("cfg_embed")),
        logvar_(part_flag("logvar")),
        student_(context, make(context, embeds_, logvar_), "model.safetensors"),
        teacher_(context, make(context, false, false), "teacher.safetensors") {}

  const Settings& training() const { return training_; }
  StepNetwork& student() { return student_; }
  SprintRun run_of(const Settings& own) const {
    if (own.contains("train") && own.at("train").size() == 0) own.read("train");
    return read_run({training_, own}, embeds_);
  }

  /// The names by which the case has a run's tensors: "in.G.".
  Captions captions(const std::string& text, const std::string& mask) const {
    const Tensor rows = file_.tensor(text), kept = file_.tensor(mask), nothing = file_.tensor("in.null_caption");
    Captions captions;
    for (int64_t s = 0; s < rows.size(0); ++s) {
      const Tensor places = at::nonzero(kept[s]).flatten();
      captions.rows.push_back(rows[s].index_select(0, places));
      captions.null_rows.push_back(nothing.index_select(0, places));
    }
    return captions;
  }

  /// The consistency part: its values, and gradients of the student where `graded`.
  GeneratorStep consistency(const SprintRun& run, const std::string& in, const Captions& captions, double step,
                            bool graded) {
    const Tensors x0 = clean_latents(run, in), noise = each(in + "noise");
    const std::vector<double> t = drawn(run, in + "normal_t", /*judged=*/false), guidance = guidance_of(in, t.size());
    std::vector<diffusion::FlowCall> calls;
    GeneratorStep result;
    for (size_t s = 0; s < t.size(); ++s) {
      diffusion::ConsistencySample sample{.t = t[s], .x_t = run.flow.noisy(x0[s], noise[s], t[s])};
      calls.push_back(run.flow.call(sample.x_t, t[s]));
      result.samples.push_back(std::move(sample));
    }
    const Tensors velocity = velocities(run, calls, captions, guidance);
    std::vector<net::Direction> directions;
    std::vector<diffusion::FlowMove> moves;
    for (size_t s = 0; s < t.size(); ++s) {
      const double angle = std::cos(t[s]) * std::sin(t[s]);
      moves.push_back(run.flow.move(calls[s], velocity[s] * (angle / run.flow.sigma_data), angle));
      directions.push_back({moves[s].z.unsqueeze(1), moves[s].time * student_unit()});
    }
    const std::vector<net::Sample> samples = student_samples(run, calls, captions.rows, guidance);
    const std::vector<Outputs> said = student_.forward(samples), moving = student_.forward_mode(samples, directions);
    for (size_t s = 0; s < t.size(); ++s) {
      diffusion::ConsistencySample& sample = result.samples[s];
      const Tensor u = said[s].prediction.squeeze(1);
      sample.velocity = velocity[s];
      sample.f = calls[s].output(u);
      sample.tangent = moves[s].output(moving[s].tangent.squeeze(1), u);
      if (logvar_) sample.logvar = run.logvar_scale * said[s].beside.at(0);
      result.clean.push_back(run.flow.clean(sample.x_t, sample.f, t[s]));
    }
    const double r = std::min(1.0, step / run.warmup);
    result.consistency = diffusion::consistency_loss(run.flow, result.samples, r);
    if (!graded) return result;
    std::vector<Outputs> at;
    for (size_t s = 0; s < t.size(); ++s) {
      at.push_back({calls[s].at_u(result.consistency.at_f[s]).unsqueeze(1)});
      if (logvar_) at[s].beside = {run.logvar_scale * result.consistency.at_logvar[s]};
    }
    add_scaled(result.gradients, student_.backward(samples, at).parameters, 1);
    return result;
  }

  GeneratorStep generator(const SprintRun& run, const std::string& in, const Captions& captions, double step,
                          diffusion::Discriminator& heads) {
    GeneratorStep result = consistency(run, in, captions, step, /*graded=*/true);
    const std::vector<double> guidance = guidance_of(in, result.samples.size());
    std::vector<diffusion::FlowCall> calls;
    std::vector<double> t;
    if (run.largest) {
      const Tensors x0 = clean_latents(run, in), noise = each(in + "noise_new");
      t = result.t_new = with_largest(run, in, drawn(run, in + "normal_t_new", false));
      Tensors x_t;
      for (size_t s = 0; s < t.size(); ++s) {
        x_t.push_back(run.flow.noisy(x0[s], noise[s], t[s]));
        calls.push_back(run.flow.call(x_t[s], t[s]));
      }
      result.clean = cleaned(run, calls, x_t, captions.rows, guidance);
    } else {
      for (const diffusion::ConsistencySample& sample : result.samples) {
        calls.push_back(run.flow.call(sample.x_t, sample.t));
        t.push_back(sample.t);
      }
    }
    result.t_judged = drawn(run, in + "normal_t_disc", /*judged=*/true);
    const Judged judged = judge(run, result.clean, each(in + "noise_disc"), result.t_judged, captions.rows);
    const diffusion::JudgedLoss told = diffusion::generator_loss(heads, features(judged), run.rule);
    result.logits = told.logits, result.adversarial = told.loss;
    const double share = 1 / static_cast<double>(run.accumulation);
    result.total = share * (run.consistency * result.consistency.loss + run.adversarial * told.loss);
    std::vector<Tensor> at_rows;
    for (size_t s = 0; s < t.size(); ++s) {
      Tensors of_heads;
      for (const Tensor& at : told.at_features) of_heads.push_back(at[static_cast<int64_t>(s)].t());
      at_rows.push_back(at::cat(of_heads, 1).contiguous());
    }
    const std::vector<Tensor> at_z = teacher_.backward_from_features(judged.samples, blocks_, at_rows);
    std::vector<Outputs> at_u;
    for (size_t s = 0; s < t.size(); ++s) {
      const double by_clean =
          judged.calls[s].q / run.flow.sigma_data * std::cos(result.t_judged[s]) * run.flow.clean_by_output(t[s]);
      at_u.push_back({calls[s].at_u(at_z[s].squeeze(1) * by_clean).unsqueeze(1)});
      if (logvar_) at_u[s].beside = {0};
    }
    std::map<std::string, Tensor> total;
    add_scaled(total, result.gradients, share * run.consistency);
    add_scaled(total, student_.backward(student_samples(run, calls, captions.rows, guidance), at_u).parameters,
               share * run.adversarial);
    result.gradients = std::move(total);
    return result;
  }

  DiscriminatorStep discriminator(const SprintRun& run, const std::string& in, const Captions& captions,
                                  diffusion::Discriminator& heads) {
    DiscriminatorStep result;
    const Tensors x0 = clean_latents(run, in), noise = each(in + (run.largest ? "noise_new" : "noise"));
    result.t = drawn(run, in + "normal_t", false);
    if (run.largest) result.t = with_largest(run, in, result.t);
    Tensors x_t;
    std::vector<diffusion::FlowCall> calls;
    for (size_t s = 0; s < x0.size(); ++s) {
      x_t.push_back(run.flow.noisy(x0[s], noise[s], result.t[s]));
      calls.push_back(run.flow.call(x_t[s], result.t[s]));
    }
    result.clean = cleaned(run, calls, x_t, captions.rows, guidance_of(in, x0.size()));
    result.t_fake = drawn(run, in + "normal_t_fake", true);
    result.t_real = run.own_times ? drawn(run, in + "normal_t_real", true) : result.t_fake;
    const Judged real = judge(run, x0, each(in + "noise_real"), result.t_real, captions.rows);
    Tensors fakes = result.clean, fake_noise = each(in + "noise_fake");
    Captions prompts = captions;
    if (run.misaligned && x0.size() > 1) {
      for (size_t s = 0; s < x0.size(); ++s) fakes.push_back(x0[(s + x0.size() - 1) % x0.size()]);
      for (const Tensor& n : each(in + "noise_shifted")) fake_noise.push_back(n);
      for (const double t : drawn(run, in + "normal_t_shifted", true)) result.t_fake.push_back(t);
      prompts = captions.repeated();
    }
    const Judged fake = judge(run, fakes, fake_noise, result.t_fake, prompts.rows);
    const Tensors of_fake = features(fake), of_real = features(real);
    result.loss = diffusion::discriminator_loss(heads, of_fake, of_real, run.rule);
    return result;
  }

  /// The blocks that have a head, and these.
  diffusion::Discriminator heads(const CaseContext& context) {
    const bool several = training_.at("model").value("ladd_multi_scale", true);
    const auto count = std::ranges::count(teacher_.model().units(), std::string("block"),
                                          [](const auto& unit) { return unit->spec().kind; });
    const auto listed = training_.at("model").value("head_block_ids", std::vector<int64_t>{2, 8, 14, 20, 27});
    blocks_ = several ? std::set<int64_t>(listed.begin(), listed.end()) : std::set<int64_t>{count - 1};
    const checkpoint::WeightSet weights = checkpoint::open_weights(context.folder / "heads.safetensors");
    std::map<std::string, Tensor> all;
    for (const std::string& name : weights.names()) {
      const Tensor value = at::empty(weights.at(name).shape, at::kFloat);
      weights.read_f32(name, 0, value.numel(), value.mutable_data_ptr<float>());
      all[name] = value;
    }
    diffusion::Discriminator heads(std::move(all));
    check_input(heads.heads() == blocks_.size(), "verify",
                file_.label() + ": " + std::to_string(heads.heads()) + " heads for " + std::to_string(blocks_.size()) +
                    " blocks");
    return heads;
  }

  /// Gradients of the student by the names of the case.
  std::map<std::string, Tensor> stored(const std::map<std::string, Tensor>& ours) {
    const std::vector<std::pair<std::string, Tensor>> list(ours.begin(), ours.end());
    std::map<std::string, Tensor> named;
    for (auto& [name, value] : models::stored_together(
             list, [&](const std::string& name) { return student_.model().foreign_name(name, "diffusers"); }))
      named[name] = value;
    return named;
  }

 private:
  /// Inputs of the teacher for its features.
  struct Judged {
    std::vector<net::Sample> samples;
    std::vector<diffusion::FlowCall> calls;
  };

  bool part_flag(const char* key) const {
    return training_.contains("model") && training_.at("model").value(key, false);
  }
  /// The student has what its flags say, its scales are those of the steps; the teacher has none.
  static std::unique_ptr<net::Denoiser> make(const CaseContext& context, bool guidance, bool logvar) {
    StepNetwork::described(context);  // its fields are those of a file; what follows replaces some of them
    Json config = Json::parse(context.config.text());
    config["guidance_embeds"] = guidance, config["logvar"] = logvar;
    config["guidance_embeds_scale"] = 1, config["timestep_scale"] = 1;
    return models::make_denoiser({.config_text = config.dump()});
  }
  /// A network that embeds guidance takes times of 0..1 as 0..1000.
  double student_unit() const { return embeds_ ? 1000 : 1; }

  Tensors each(const std::string& name) const { return file_.tensor(name).unbind(0); }
  std::vector<double> values(const std::string& name) const {
    const Tensor all = file_.tensor(name).to(at::kDouble).contiguous();
    return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
  }
  /// The drawn strengths of guidance; a case whose student embeds none may lack them.
  std::vector<double> guidance_of(const std::string& in, size_t samples) const {
    const std::string name = in + "cfg_scale";
    return embeds_ || file_.has(name) ? values(name) : std::vector<double>(samples, 1);
  }
  std::vector<double> drawn(const SprintRun& run, const std::string& name, bool judged) const {
    std::vector<double> t = values(name);
    for (double& each : t) each = judged ? run.judged(each) : run.drawn(each);
    return t;
  }
  std::vector<double> with_largest(const SprintRun& run, const std::string& in, std::vector<double> t) const {
    const std::vector<double> uniform = values(in + "uniform_largest");
    for (size_t s = 0; s < t.size(); ++s)
      if (uniform[s] < run.largest_share) t[s] = static_cast<float>(run.largest_time);
    return t;
  }
  Tensors clean_latents(const SprintRun& run, const std::string& in) const {
    Tensors x0 = each(in + "latents");
    for (Tensor& x : x0) x = x * run.flow.sigma_data;
    return x0;
  }

  static net::Sample sample_of(const diffusion::FlowCall& call, const Tensor& caption, double unit) {
    net::Sample sample;
    sample.x = call.z.unsqueeze(1);
    sample.t = call.time * unit;
    sample.context = caption;
    return sample;
  }
  std::vector<net::Sample> student_samples(const SprintRun& run, const std::vector<diffusion::FlowCall>& calls,
                                           const Tensors& captions, const std::vector<double>& guidance) const {
    std::vector<net::Sample> samples;
    for (size_t s = 0; s < calls.size(); ++s) {
      samples.push_back(sample_of(calls[s], captions[s], student_unit()));
      if (embeds_) samples[s].extra["guidance"] = at::tensor({guidance[s] * run.guidance_scale}, at::kDouble);
    }
    return samples;
  }

  /// dx_t / dt of the teacher, guided where the run is.
  Tensors velocities(const SprintRun& run, const std::vector<diffusion::FlowCall>& calls, const Captions& captions,
                     const std::vector<double>& guidance) const {
    std::vector<net::Sample> samples;
    for (const Tensors* rows : {&captions.null_rows, &captions.rows})
      for (size_t s = 0; s < calls.size() && (run.guided || rows == &captions.rows); ++s)
        samples.push_back(sample_of(calls[s], (*rows)[s], 1));
    const std::vector<Outputs> said = teacher_.forward(samples);
    const size_t prompted = said.size() - calls.size();
    Tensors velocity;
    for (size_t s = 0; s < calls.size(); ++s) {
      Tensor f = calls[s].output(said[prompted + s].prediction.squeeze(1));
      if (run.guided) {
        const Tensor without = calls[s].output(said[s].prediction.squeeze(1));
        f = without + guidance[s] * (f - without);
      }
      velocity.push_back(run.flow.sigma_data * f);
    }
    return velocity;
  }

  /// x0 as the student predicts it.
  Tensors cleaned(const SprintRun& run, const std::vector<diffusion::FlowCall>& calls, const Tensors& x_t,
                  const Tensors& captions, const std::vector<double>& guidance) const {
    const std::vector<Outputs> said = student_.forward(student_samples(run, calls, captions, guidance));
    Tensors clean;
    for (size_t s = 0; s < calls.size(); ++s)
      clean.push_back(run.flow.clean(x_t[s], calls[s].output(said[s].prediction.squeeze(1)), calls[s].angle));
    return clean;
  }

  static Judged judge(const SprintRun& run, const Tensors& x0, const Tensors& noise, const std::vector<double>& t,
                      const Tensors& captions) {
    Judged judged;
    for (size_t s = 0; s < x0.size(); ++s) {
      judged.calls.push_back(run.flow.call(run.flow.noisy(x0[s], noise[s], t[s]), t[s]));
      judged.samples.push_back(sample_of(judged.calls[s], captions[s], 1));
    }
    return judged;
  }
  /// Of each head, [B, D, N].
  Tensors features(const Judged& judged) const {
    const Tensor all = at::stack(teacher_.features(judged.samples, blocks_));  // [B, N, heads * D]
    Tensors of_heads;
    for (const Tensor& one : all.chunk(static_cast<int64_t>(blocks_.size()), 2))
      of_heads.push_back(one.transpose(1, 2).contiguous());
    return of_heads;
  }

  CaseFile& file_;
  const Settings training_;
  const bool embeds_, logvar_;
  StepNetwork student_, teacher_;
  std::set<int64_t> blocks_;
};

/// Times of draws alone.
void check_draws(const CaseContext& context, const SprintCase& sprint, CaseFile& file) {
  if (!file.has("in.draws.normal")) return;
  const SprintRun run = sprint.run_of(Settings(Json::object()));
  const Tensor normal = file.tensor("in.draws.normal").to(at::kDouble), index = file.tensor("in.draws.index");
  check_input(context.config.contains("_draws"), "verify", file.label() + ": config.json has no _draws");
  const auto table = context.config.at("_draws").at("add_noise_timesteps").get<std::vector<double>>();
  constexpr double kLargest = 1.5708;  // where the list has one entry, whatever that is
  std::vector<double> generator, judged, listed;
  for (int64_t i = 0; i < normal.numel(); ++i) {
    generator.push_back(run.drawn(normal[i].item<double>()));
    judged.push_back(run.judged(normal[i].item<double>()));
    listed.push_back(table.at(static_cast<size_t>(index[i].item<int64_t>())));
  }
  const auto bound = context.bound("out");
  file.compare("out.draws.t_generator", numbers_of(generator), bound);
  file.compare("out.draws.t_discriminator", numbers_of(judged), bound);
  file.compare("out.draws.t_ladd", numbers_of(listed), bound);
  file.compare("out.draws.t_denoise",
               numbers_of(table.size() == 1 ? std::vector<double>(listed.size(), kLargest) : listed), bound);
  file.compare("out.draws.t_denoise_one", numbers_of(std::vector<double>(listed.size(), kLargest)), bound);
}

/// The allowed difference of a gradient: of what is zero in exact arithmetic the case has the rounding.
std::function<double(double)> gradient_bound(const CaseContext& context, const std::string& name) {
  const auto zero =
      context.description.json.value("grads_that_are_zero_in_exact_arithmetic", std::vector<std::string>());
  const bool rounding = std::ranges::find(zero, name) != zero.end();
  return [bound = context.bound("grad"), rounding](double most) {
    return rounding ? std::max(bound(most), 4 * most) : bound(most);
  };
}

void compare_times(CaseFile& file, const std::string& name, const std::vector<double>& t, const CaseContext& context) {
  if (file.has(name)) file.compare(name, numbers_of(t), context.bound("out"));
}

}  // namespace

CaseResults verify_sprint_training(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  SprintCase sprint(context, file);
  check_draws(context, sprint, file);
  const auto bound = context.bound("out");
  const Captions captions = sprint.captions("in.text", "in.text_mask");
  for (const auto& [name, own] : sprint.training().at("runs").items()) {
    const SprintRun run = sprint.run_of(own);
    const std::string out = "out." + name + ".", grad = "grad." + name + ".";
    const bool graded = !file.names(grad).empty();
    const double step = own.at("global_step");
    const GeneratorStep made = sprint.consistency(run, "in." + name + ".", captions, step, graded);
    const diffusion::ConsistencyLoss& loss = made.consistency;
    const auto stacked = [&](const auto& of) {
      Tensors all;
      for (const auto& sample : made.samples) all.push_back(of(sample));
      return at::stack(all).to(at::kFloat);
    };
    using Sample = diffusion::ConsistencySample;
    file.compare(out + "t", stacked([](const Sample& s) { return at::scalar_tensor(s.t, at::kDouble); }), bound);
    file.compare(out + "x_t", stacked([](const Sample& s) { return s.x_t; }), bound);
    file.compare(out + "dxdt", stacked([](const Sample& s) { return s.velocity; }), bound);
    file.compare(out + "F", stacked([](const Sample& s) { return s.f; }), bound);
    file.compare(out + "tangent", stacked([](const Sample& s) { return s.tangent; }), bound);
    if (file.has(out + "logvar"))
      file.compare(out + "logvar", stacked([](const Sample& s) { return at::scalar_tensor(s.logvar, at::kDouble); }),
                   bound);
    file.compare(out + "g", at::stack(loss.g), bound);
    file.compare(out + "g_norm", number_of(loss.g_norm), bound);
    file.compare(out + "weight", numbers_of(loss.weights), bound);
    file.compare(out + "r", number_of(std::min(1.0, step / run.warmup)), bound);
    file.compare(out + "loss", number_of(loss.loss), bound);
    file.compare(out + "loss_no_logvar", number_of(loss.without_logvar), bound);
    file.compare(out + "loss_no_weight", number_of(loss.without_weight), bound);
    file.compare(out + "x0_pred", at::stack(made.clean), bound);
    if (!graded) continue;
    for (const auto& [parameter, value] : sprint.stored(made.gradients))
      file.compare(grad + parameter, value, gradient_bound(context, parameter));
  }
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

namespace {

void check_generator(const CaseContext& context, SprintCase& sprint, CaseFile& file, const std::string& name,
                     const Settings& own, const Captions& captions) {
  diffusion::Discriminator heads = sprint.heads(context);
  const SprintRun run = sprint.run_of(own);
  const GeneratorStep made = sprint.generator(run, "in." + name + ".", captions, own.at("global_step"), heads);
  const std::string out = "out." + name + ".", grad = "grad." + name + ".";
  const auto bound = context.bound("out");
  Tensors tangents;
  std::vector<double> t;
  for (const diffusion::ConsistencySample& sample : made.samples)
    tangents.push_back(sample.tangent), t.push_back(sample.t);
  compare_times(file, out + "t", t, context);
  compare_times(file, out + "t_new", made.t_new, context);
  compare_times(file, out + "t_disc", made.t_judged, context);
  file.compare(out + "tangent", at::stack(tangents), bound);
  file.compare(out + "x0_pred", at::stack(made.clean), bound);
  file.compare(out + "logits", made.logits, bound);
  file.compare(out + "loss", number_of(made.consistency.loss), bound);
  file.compare(out + "adv_loss", number_of(made.adversarial), bound);
  file.compare(out + "total_loss", number_of(made.total), bound);
  file.compare(out + "grad_norm", number_of(norm_of(made.gradients)), bound);
  if (file.names(grad).empty()) return;
  for (const auto& [parameter, value] : sprint.stored(made.gradients))
    file.compare(grad + parameter, value, gradient_bound(context, parameter));
}

void check_discriminator(const CaseContext& context, SprintCase& sprint, CaseFile& file, const std::string& name,
                         const Settings& own, const Captions& captions) {
  diffusion::Discriminator heads = sprint.heads(context);
  const SprintRun run = sprint.run_of(own);
  own.read("global_step");  // says nothing here
  const DiscriminatorStep made = sprint.discriminator(run, "in." + name + ".", captions, heads);
  const std::string out = "out." + name + ".", grad = "grad." + name + ".";
  const auto bound = context.bound("out");
  compare_times(file, out + "t_gen", made.t, context);
  compare_times(file, out + "t_fake", made.t_fake, context);
  compare_times(file, out + "t_real", made.t_real, context);
  file.compare(out + "x0_pred", at::stack(made.clean), bound);
  file.compare(out + "logits_fake", made.loss.logits_fake, bound);
  file.compare(out + "logits_real", made.loss.logits_real, bound);
  file.compare(out + "loss_real", number_of(made.loss.real), bound);
  file.compare(out + "loss_gen", number_of(made.loss.fake), bound);
  file.compare(out + "loss", number_of(made.loss.loss), bound);
  file.compare(out + "grad_norm", number_of(norm_of(made.loss.gradients)), bound);
  if (run.rule.r1_weight > 0) file.compare(out + "r1", number_of(made.loss.r1), bound);
  for (const auto& [buffer, value] : heads.values())
    if (!value.requires_grad()) file.compare(out + "state." + buffer, value, bound);
  if (file.names(grad).empty()) return;
  for (const auto& [parameter, value] : made.loss.gradients)
    file.compare(grad + parameter, value, gradient_bound(context, parameter));
}

/// Phases in turn, each of some micro-batches, with plain steps.
void check_loop(const CaseContext& context, SprintCase& sprint, CaseFile& file) {
  if (!sprint.training().contains("loop")) return;
  const Settings loop = sprint.training().at("loop");
  const SprintRun run = sprint.run_of(loop);
  diffusion::Discriminator heads = sprint.heads(context);
  const double rate = loop.at("lr");
  int64_t step = loop.at("global_step");
  const int64_t micros = loop.at("micro_batches"), batch = loop.at("batch");
  const auto size = loop.at("latent").get<std::vector<int64_t>>();
  std::vector<int64_t> phases, steps;
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> gradients;
  bool generator = true;
  int64_t taken = 0;
  for (int64_t i = 0; i < micros; ++i) {
    const std::string in = "in.loop." + std::to_string(i) + ".";
    const auto shape = file.tensor(in + "latents").sizes();
    check_input(shape[0] == batch && shape.slice(2) == at::IntArrayRef(size), "verify",
                file.label() + ": " + in + "latents have another shape than _training.loop says");
    const Captions captions = sprint.captions(in + "text", in + "text_mask");
    phases.push_back(generator ? 0 : 1);
    if (generator) {
      const GeneratorStep made = sprint.generator(run, in, captions, static_cast<double>(step), heads);
      losses.push_back(made.total);
      add_scaled(gradients, made.gradients, 1);
    } else {
      const DiscriminatorStep made = sprint.discriminator(run, in, captions, heads);
      const double share = 1 / static_cast<double>(run.accumulation);
      losses.push_back(share * made.loss.loss);
      add_scaled(gradients, made.loss.gradients, share);
    }
    norms.push_back(0);
    if (++taken == run.accumulation) {
      const double norm = norm_of(gradients);
      norms.back() = norm;
      taken = 0;
      if (std::isfinite(norm)) {  // else the step is left out, and the phase stays
        const double scale = std::min(1.0, run.clip / (norm + 1e-6));
        const at::NoGradGuard no_graph;
        auto& values = generator ? sprint.student().weights() : heads.values();
        for (const auto& [name, g] : gradients) values.at(name).sub_(g * (rate * scale));
        ++step;
        generator = !generator;
      }
      gradients.clear();
    }
    steps.push_back(step);
  }
  const auto bound = context.bound("out");
  file.compare("out.loop.phase", at::tensor(phases, at::kLong), 0.0);
  file.compare("out.loop.global_step", at::tensor(steps, at::kLong), 0.0);
  file.compare("out.loop.loss", numbers_of(losses), bound);
  file.compare("out.loop.grad_norm", numbers_of(norms), bound);
  for (const auto& [name, value] : heads.values()) {
    const std::string state = "out.loop.state." + name;
    if (file.has(state)) file.compare(state, value.detach(), bound);
  }
  for (const auto& [name, value] : sprint.stored(sprint.student().weights())) {
    const std::string parameter = "out.loop.param." + name;
    if (file.has(parameter)) file.compare(parameter, value, bound);
  }
}

}  // namespace

CaseResults verify_sprint_ladd(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  SprintCase sprint(context, file);
  const Captions captions = sprint.captions("in.text", "in.text_mask");
  for (const auto& [name, own] : sprint.training().at("runs").items())
    if (file.has("out." + name + ".logits"))
      check_generator(context, sprint, file, name, own, captions);
    else
      check_discriminator(context, sprint, file, name, own, captions);
  if (file.has("in.groups.feature")) {
    diffusion::Discriminator heads = sprint.heads(context);
    const Tensor feature = file.tensor("in.groups.feature");
    const at::NoGradGuard no_graph;
    file.compare("out.groups.logits", heads.logits_of_head(0, feature, /*training=*/false), context.bound("out"));
    file.compare("out.groups.logits_training", heads.logits_of_head(0, feature, /*training=*/true),
                 context.bound("out"));
  }
  check_loop(context, sprint, file);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
