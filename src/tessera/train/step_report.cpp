#include "tessera/train/step_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tessera/base/check.h"
#include "tessera/checkpoint/training.h"
#include "tessera/comm/stop_signals.h"
#include "tessera/engine/signatures.h"
#include "tessera/optim/adamw.h"
#include "tessera/plan/token_shares.h"

namespace tessera::train {

namespace {

/// Calls `visit` on every number of a report, in the order of the exchange.
template <class Report, class Visit>
void each_number(Report& r, Visit&& visit) {
  for (auto* field : {&r.loss,
                      &r.bad_sample,
                      &r.stop,
                      &r.peak,
                      &r.persistent,
                      &r.predicted,
                      &r.reserved,
                      &r.host,
                      &r.samples,
                      &r.work,
                      &r.compression_error,
                      &r.most_compression_error,
                      &r.exposed_comm,
                      &r.exposed_copy,
                      &r.exposed_stages,
                      &r.exposed_data,
                      &r.exposed_dispatch,
                      &r.span,
                      &r.flops,
                      &r.due,
                      &r.gpu_utilisation,
                      &r.gpu_watts,
                      &r.gpu_bytes,
                      &r.dealt})
    visit(*field);
  for (auto* bins : {&r.by_timestep.sums, &r.by_timestep.counts})
    for (auto& bin : *bins) visit(bin);
  for (auto& total : r.totals) visit(total);
  for (auto& bytes : r.sent) visit(bytes);
  for (auto& bytes : r.at_peak) visit(bytes);
  for (auto& seconds : r.busy) visit(seconds);
}

static_assert(24 + 2 * diffusion::LossByTimestep::kBins + std::tuple_size_v<net::Totals> + kAxes + engine::kParts +
                      plan::kLaneCount <
                  plan::kControlDoubles,
              "the exchange has no room for a report");

int64_t whole(double value) { return static_cast<int64_t>(value); }

}  // namespace

std::vector<double> StepReport::pack() const {
  std::vector<double> values;
  each_number(*this, [&](double value) { values.push_back(value); });
  return values;
}

StepReport StepReport::unpack(const std::vector<double>& values) {
  StepReport report;
  size_t i = 0;
  each_number(report, [&](double& value) { value = values[i++]; });
  return report;
}

void StepReport::read_meter() {
  using engine::Meter, engine::Part;
  peak = static_cast<double>(Meter::peak());
  persistent =
      static_cast<double>(Meter::live(Part::parameters) + Meter::live(Part::gradients) + Meter::live(Part::states));
  reserved = static_cast<double>(Meter::reserved());
  std::ranges::transform(Meter::at_peak(), at_peak.begin(), [](int64_t bytes) { return static_cast<double>(bytes); });
}

void StepReport::take(const std::map<std::string, int64_t>& sent, const std::map<std::string, double>& lanes) {
  for (const auto& [axis, bytes] : sent) {
    if (axis == kDeal) dealt += static_cast<double>(bytes);
    for (size_t a = 0; a < kAxes; ++a)
      if (axis.substr(0, axis.find('+')) == axis_name(kAllAxes[a])) this->sent[a] += static_cast<double>(bytes);
  }
  for (int lane = 0; lane < plan::kLaneCount; ++lane)
    if (const auto found = lanes.find(std::string(name(static_cast<plan::Lane>(lane)))); found != lanes.end())
      busy[static_cast<size_t>(lane)] = found->second;
}

report::RankMetrics rank_metrics(int rank, const StepReport& report, const Mesh& mesh, int64_t temporaries) {
  const auto part = [&](engine::Part p) { return whole(report.at_peak[static_cast<size_t>(p)]); };
  report::RankMetrics m;
  m.rank = rank;
  m.bytes.parameters = part(engine::Part::parameters);
  m.bytes.gradients = part(engine::Part::gradients);
  m.bytes.states = part(engine::Part::states);
  m.bytes.slots = part(engine::Part::slots);
  m.bytes.temporaries = std::min(part(engine::Part::compute), temporaries);
  m.bytes.activations = part(engine::Part::compute) - m.bytes.temporaries;
  m.bytes.host = whole(report.host);
  m.samples_bytes = whole(report.samples);
  m.peak_bytes = whole(report.peak);
  m.persistent_bytes = whole(report.persistent);
  m.predicted_peak_bytes = whole(report.predicted);
  m.reserved_bytes = whole(report.reserved);
  m.sample_seconds = report.work;
  m.model_flops = report.flops;
  m.exposed = {report.exposed_comm, report.exposed_copy, report.exposed_stages, report.exposed_data,
               report.exposed_dispatch};
  if (report.gpu_bytes > 0) m.driver = {report.gpu_utilisation, report.gpu_watts, whole(report.gpu_bytes)};
  if (report.compression_error >= 0) m.compression_error = {report.compression_error, report.most_compression_error};
  for (size_t a = 0; a < kAxes; ++a)
    if (mesh[kAllAxes[a]] > 1) m.sent_bytes[std::string(axis_name(kAllAxes[a]))] = whole(report.sent[a]);
  if (report.dealt > 0) m.sent_bytes[kDeal] = whole(report.dealt);
  for (int lane = 0; lane < plan::kLaneCount; ++lane)
    if (const double seconds = report.busy[static_cast<size_t>(lane)]; seconds > 0) {
      const std::string name(plan::name(static_cast<plan::Lane>(lane)));
      m.busy[name] = seconds;
      if (report.span > 0) m.utilisation[name] = seconds / report.span;
    }
  return m;
}

double ModelFlops::of_sample(const std::array<int64_t, 4>& latent, const plan::Plan& plan, int rank) {
  const auto [found, added] = by_unit_.try_emplace(latent);
  std::vector<double>& by_unit = found->second;
  if (added) {
    const plan::WorkTable work = engine::count_work(model_.units(), model_.pack({model_.blank(latent)}));
    for (const auto& unit : model_.units()) {
      const plan::UnitWork& of_unit = work.at(unit->spec().kind);
      by_unit.push_back(of_unit.forward_flops() + of_unit.backward_flops());
    }
  }
  double flops = 0;
  for (size_t unit = 0; unit < by_unit.size(); ++unit)
    if (plan.owns(rank, static_cast<int>(unit))) flops += by_unit[unit];
  return flops / plan::sequence_size(plan.mesh);
}

std::optional<double> peak_flops(const plan::Machine& machine, bool on_gpu, int threads) {
  const bool stand_in = machine.profile == plan::find_profile("cpu");
  const auto rate = machine.profile.device.gemm.find(machine.dtype);
  if ((stand_in && on_gpu) || rate == machine.profile.device.gemm.end() || rate->second.top <= 0) return std::nullopt;
  return rate->second.top * (stand_in ? threads : 1);
}

namespace {

constexpr double kLeastScale = 1.0 / 16384;  // what overflows at this scale is beyond fp16 by itself
constexpr const char *kScaleKey = "loss_scale", *kStepsKey = "loss_scale_steps";

std::string scale_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// A number that is none has no sign either: printf gives it one.
double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

std::string six_digits(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

/// What a step that is not finite says of itself; `bad`: data-set index of a sample, -1 for none.
std::string not_finite(const Decision& d, int64_t bad, const DecisionRules& rules) {
  return "loss " + six_digits(d.loss) + ", gradient norm " + six_digits(d.norm) +
         (bad >= 0 ? ", sample " + rules.source(bad) : ", every sample's own loss was finite");
}

}  // namespace

LossScale::LossScale(const plan::Plan& plan, const recipe::Recipe::Train& train) {
  if (plan.compute != DType::f16 && plan.reduce != DType::f16) return;
  scaler_.emplace(optim::GradScalerOptions{.init_scale = static_cast<float>(train.loss_scale),
                                           .growth_interval = train.loss_scale_window});
}

std::optional<double> LossScale::scale() const {
  return scaler_ ? std::optional<double>(scaler_->scale()) : std::nullopt;
}

std::string LossScale::end_step(int64_t step, bool finite, const std::function<std::string()>& kept) {
  if (!scaler_) return "";
  const double used = scaler_->scale();
  if (scaler_->update(finite)) return "";
  const std::string why = "gradients overflowed fp16 at loss scale " + scale_text(used);
  if (scaler_->scale() < kLeastScale)
    throw UserError(Exit::not_finite, "train", "step " + std::to_string(step) + ": " + why,
                    "they are too large for fp16 at any scale: lower train.lr, or compute and reduce in bf16" +
                        (kept ? "; " + kept() : std::string()));
  return why + ", from now on it is " + scale_text(scaler_->scale());
}

void LossScale::save(checkpoint::Manifest& manifest) const {
  if (!scaler_) return;
  manifest.extra[kScaleKey] = scaler_->scale();
  manifest.extra[kStepsKey] = scaler_->growth_tracker();
}

void LossScale::restore(const checkpoint::Manifest& manifest) {
  if (!scaler_ || !manifest.extra.contains(kScaleKey)) return;
  scaler_->restore({manifest.extra.value(kScaleKey, scaler_->scale()), manifest.extra.value(kStepsKey, int64_t{0})});
}

Decision decide(double norm, const std::vector<std::vector<double>>& ranks, const DecisionRules& rules,
                LossScale& loss_scale) {
  Decision d;
  int64_t bad = -1;
  for (const auto& row : ranks) {
    const StepReport& report = d.ranks.emplace_back(StepReport::unpack(row));
    d.loss += report.loss;
    for (size_t b = 0; b < diffusion::LossByTimestep::kBins; ++b) {
      d.by_timestep.sums[b] += report.by_timestep.sums[b];
      d.by_timestep.counts[b] += report.by_timestep.counts[b];
    }
    d.due = d.due || report.due != 0;
    if (report.bad_sample > 0 && bad < 0) bad = static_cast<int64_t>(report.bad_sample) - 1;
    if (const int signal = static_cast<int>(report.stop); signal == comm::kSaveSignal)
      d.save = true;
    else if (signal > 0)
      d.stop = signal;
  }
  d.rate = rules.rate;
  d.loss_scale = loss_scale.scale();
  d.loss = without_sign_of_nan(d.loss);
  d.norm = without_sign_of_nan(norm / d.loss_scale.value_or(1));
  const bool finite = std::isfinite(d.loss) && std::isfinite(d.norm);
  // Of a loss that is not finite no scale is the cause.
  if (std::isfinite(d.loss)) d.skipped = loss_scale.end_step(rules.step, finite, rules.kept);
  d.overflow = !d.skipped.empty();
  if (d.overflow) return d;
  if (!finite) {
    d.skipped = not_finite(d, bad, rules);
    if (rules.skip_not_finite) return d;
    throw UserError(Exit::not_finite, "train", "step " + std::to_string(rules.step) + ": " + d.skipped,
                    (bad >= 0 ? "look at that sample, lower train.lr, " : "lower train.lr, ") +
                        std::string("or set run.on_nan = \"skip\"") + (rules.kept ? "; " + rules.kept() : ""));
  }
  if (rules.updated) return d;
  d.control = net::StepControl{rules.count_update(), rules.rate,
                               optim::clip_coefficient(d.norm, rules.clip_norm) / d.loss_scale.value_or(1)};
  return d;
}

}  // namespace tessera::train
