#include "tessera/train/step_report.h"

#include <algorithm>

#include "tessera/engine/signatures.h"
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

}  // namespace tessera::train
