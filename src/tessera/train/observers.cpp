#include "tessera/train/observers.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/device/backend.h"
#include "tessera/device/driver_watch.h"
#include "tessera/plan/shares.h"
#include "tessera/train/stop_signal.h"

namespace tessera::train {

namespace {

constexpr double kWorthIt = 0.05;  // of a step; below, measurements would push samples to and fro

/// The lower one of an even number, so that of two ranks the faster is the measure; 0 for none.
double median(std::vector<double> values) {
  std::erase(values, 0.0);
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<long>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::string SlowRanks::Slow::text() const {
  char words[160];
  std::snprintf(words, sizeof words,
                "rank %d is slow: over the last %lld steps a sample took it %.4g s, %.2f times the others' %.4g s",
                rank, static_cast<long long>(steps), seconds, factor, others);
  return words;
}

SlowRanks::SlowRanks(const Mesh& mesh, SlowRankOptions options) : mesh_(mesh), options_(options) {}

void SlowRanks::step(const std::vector<double>& seconds) {
  if (options_.factor <= 0 || seconds.size() < 2 || std::ranges::all_of(seconds, [](double s) { return s == 0; }))
    return;  // nothing to look for, or the first step's report, which has no step behind it
  Row row{seconds, std::vector<double>(seconds.size(), 0.0)};
  for (int stage = 0; stage < mesh_[Axis::pp]; ++stage) {
    std::vector<double> peers;
    for (size_t r = 0; r < seconds.size(); ++r)
      if (mesh_.coordinate(static_cast<int>(r), Axis::pp) == stage) peers.push_back(seconds[r]);
    const double usual = median(peers);
    for (size_t r = 0; r < seconds.size(); ++r)
      if (usual > 0 && mesh_.coordinate(static_cast<int>(r), Axis::pp) == stage) row.factors[r] = seconds[r] / usual;
  }
  ++unseen_;
  window_.push_back(std::move(row));
  if (static_cast<int64_t>(window_.size()) > options_.steps) window_.pop_front();
}

double SlowRanks::median_factor(int rank) const {
  std::vector<double> factors;
  for (const Row& row : window_) factors.push_back(row.factors[static_cast<size_t>(rank)]);
  return median(std::move(factors));
}

std::vector<SlowRanks::Slow> SlowRanks::found() {
  std::vector<Slow> list;
  if (!measured()) return list;
  const int64_t steps = std::exchange(unseen_, 0);
  for (int rank = 0; rank < static_cast<int>(window_.front().seconds.size()); ++rank) {
    const double factor = median_factor(rank);
    if (factor < options_.factor && !states_.contains(rank)) continue;
    State& state = states_[rank];
    if (factor < options_.factor) {
      if (!state.slow) continue;
      state.calm =
          factor < recovered() ? state.calm + steps : 0;  // at the limit itself it would be named again and again
      const int64_t doublings = std::min<int64_t>(state.named - 1, 30);
      if (factor < recovered() && state.calm >= options_.steps * ((int64_t{1} << doublings) - 1)) state.slow = false;
      continue;
    }
    state.calm = 0;
    if (std::exchange(state.slow, true)) continue;
    ++state.named;
    std::vector<double> seconds;
    for (const Row& row : window_) seconds.push_back(row.seconds[static_cast<size_t>(rank)]);
    const double own = median(std::move(seconds));
    list.push_back({rank, factor, own, own / factor, options_.steps});
  }
  return list;
}

std::optional<std::vector<int64_t>> SlowRanks::better_shares(const plan::Plan& plan) {
  if (!measured() || options_.factor <= 0) return std::nullopt;
  // Ranks that share a sample are as slow as the slowest of them.
  std::vector<double> cost(static_cast<size_t>(mesh_.dp_size()), 0.0);
  for (int rank = 0; rank < mesh_.world(); ++rank) {
    double& seconds = cost[static_cast<size_t>(mesh_.dp_rank(rank))];
    seconds = std::max(seconds, median_factor(rank));
  }
  for (double& seconds : cost)
    if (seconds == 0) seconds = 1;  // it had no samples: nothing is known against it
  std::vector<int64_t> now = plan.shares;
  if (now.empty())
    for (int dp = 0; dp < mesh_.dp_size(); ++dp)
      now.push_back((dp + 1) * plan.global_batch / mesh_.dp_size() - dp * plan.global_batch / mesh_.dp_size());
  const std::vector<int64_t> better = plan::shares_by_cost(plan.global_batch, cost);
  if (plan::slowest(better, cost) > plan::slowest(now, cost) * (1 - kWorthIt)) return std::nullopt;
  window_.clear();
  return better;
}

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

StepMeter::StepMeter(Ranks& ranks, const Parts& parts, const ExpertSchedule& experts, engine::Engine& engine,
                     Loader& loader)
    : ranks_(ranks), parts_(parts), experts_(experts), engine_(engine), loader_(loader), span_began_(seconds_now()) {}

void StepMeter::before(const plan::Visit& visit) {
  began_ = seconds_now();
  flops_ = 0;
  by_set_ = {};
  fp8_.clear();
  if (visit.step == parts_.first_step() + 1) engine::Meter::reset_peak();  // peaks count from the end of the first step
}

void StepMeter::took(const diffusion::TrainingSamples& samples) {
  sample_bytes_ = 0;
  for (const auto& [place, sample] : samples) sample_bytes_ += diffusion::host_bytes(*sample);
}

engine::Report StepMeter::report(const ExpertPass& pass, const diffusion::FlowMatching& objective, size_t side) {
  const auto bucket = static_cast<size_t>(experts_.data().bucket(experts_.own_step()));
  flops_ += static_cast<double>(pass.data.places.size()) * parts_.sample_flops(bucket);
  return [this, last = pass.last, &objective, &numbers = engine_.numbers(side)] {
    return this->numbers(last, objective, numbers).pack();
  };
}

/// `last`: this is the last pass of the step, and reports the bytes that the step sent.
StepReport StepMeter::numbers(bool last, const diffusion::FlowMatching& objective, engine::StepNumbers& numbers) {
  StepReport r;
  r.loss = objective.loss();
  r.bad_sample = static_cast<double>(objective.bad_sample() + 1);
  r.stop = asking_signal();
  r.by_timestep = objective.by_timestep();
  for (size_t s = 0; s < objective.by_set().sums.size(); ++s)
    by_set_.add(s, objective.by_set().sums[s], objective.by_set().counts[s]);
  by_set_.twins += objective.by_set().twins, by_set_.twin_count += objective.by_set().twin_count;
  r.due = last && due && due() ? 1 : 0;
  r.read_meter();
  r.predicted = static_cast<double>(parts_.predicted().peak);
  r.host = static_cast<double>(engine_.host_bytes() + experts_.data().samples->host_encoder_bytes());
  r.samples = static_cast<double>(sample_bytes_);
  r.work = work_;
  const engine::CompressionError error = numbers.take_compression_error();
  if (error.count > 0) r.compression_error = error.sum / static_cast<double>(error.count);
  r.most_compression_error = error.most;
  const std::vector<double> eight_bits = numbers.take_fp8();
  fp8_.resize(std::max(fp8_.size(), eight_bits.size()));
  for (size_t i = 0; i < eight_bits.size(); ++i) fp8_[i] += eight_bits[i];
  const engine::Exposed waited = engine_.times().take_exposed();
  r.exposed_comm = waited.comm, r.exposed_copy = waited.copy, r.exposed_stages = waited.stages,
  r.exposed_dispatch = waited.dispatch;
  r.exposed_data = loader_.take_waited();
  for (const auto& [axis, bytes] : ranks_.comm.take_sent_bytes()) sent_[axis] += bytes;
  r.totals = engine_.store().take_totals();
  if (last) r.take(std::exchange(sent_, {}), engine_.times().take_busy());
  r.span = span_, r.flops = flops_;
  if (const auto gpu = device::driver() ? device::driver()->take() : std::nullopt)
    r.gpu_utilisation = gpu->utilisation, r.gpu_watts = gpu->watts, r.gpu_bytes = gpu->memory_bytes;
  return r;
}

/// Losses of sets have no place in the exchange at `norm`: there may be any number of them. All ranks together.
void StepMeter::add_by_set(report::StepMetrics& metrics) {
  const std::vector<std::string>& names = experts_.data().sets;
  const bool twins = experts_.data().times > 1;
  if (names.empty() && !twins) return;
  std::vector<double> own = by_set_.sums, all(2 * names.size() + 2);
  own.resize(names.size());
  own.insert(own.end(), by_set_.counts.begin(), by_set_.counts.end());
  own.resize(2 * names.size());
  own.insert(own.end(), {by_set_.twins, by_set_.twin_count});
  for (const auto& rank : ranks_.gather(own))
    for (size_t i = 0; i < all.size(); ++i) all[i] += rank[i];
  const auto mean = [&](double sum, double parts) -> report::StepMetrics::Bin {
    const int64_t count = std::llround(parts);  // a sample's parts on several ranks add up to it
    return {count > 0 ? sum / static_cast<double>(count) : 0, count};
  };
  for (size_t s = 0; s < names.size(); ++s) metrics.by_set.push_back({names[s], mean(all[s], all[names.size() + s])});
  if (twins) metrics.preserved = mean(all[all.size() - 2], all.back());
}

/// What products in 8 bits lost, over all ranks; these come here together, as a step counts on all of them or on none.
void StepMeter::add_fp8(report::StepMetrics& metrics) {
  if (fp8_.empty()) return;
  std::vector<double> all(fp8_.size());
  for (const auto& rank : ranks_.gather(fp8_))
    for (size_t i = 0; i < all.size(); ++i) all[i] += rank[i];
  const auto lost = [](const double* counts) {
    return report::StepMetrics::EightBits::Lost{counts[1] / std::max(counts[0], 1.0),
                                                counts[2] / std::max(counts[0], 1.0)};
  };
  for (int u = 0; u < engine_.store().units(); ++u) {
    const double* counts = all.data() + static_cast<size_t>(u) * ops::kFp8Counts;
    if (counts[0] > 0)
      metrics.fp8.push_back({engine_.store().spec(u).name, lost(counts), lost(counts + ops::kFp8Counts / 2)});
  }
}

void StepMeter::after(StepEnd& end) {
  const double now = seconds_now();
  span_ = now - std::exchange(span_began_, now);
  const double work = engine_.times().take_work();
  const int64_t own = experts_.own_samples();
  work_ = own > 0 ? work / static_cast<double>(own) : 0;
  report::StepMetrics& metrics = end.metrics;
  metrics.plan_hash = parts_.plan_hash();
  const engine::ExpertSwap::Moved moved = engine_.store().take_moved();
  metrics.moved = {moved.bytes, moved.seconds, moved.waited};
  metrics.samples = experts_.data().batch(experts_.own_step());
  const auto bucket = static_cast<size_t>(experts_.data().bucket(experts_.own_step()));
  metrics.tokens = metrics.samples * parts_.now().shapes.bucket_tokens[bucket];
  for (size_t r = 0; r < end.ranks.size(); ++r)
    metrics.ranks.push_back(
        rank_metrics(static_cast<int>(r), end.ranks[r], ranks_.mesh, parts_.predicted().by_part.temporaries));
  add_by_set(metrics);
  add_fp8(metrics);
  metrics.seconds = seconds_now() - began_;
  const plan::Machine& machine = parts_.planned().machine;
  if (const auto peak = peak_flops(machine, !device::here().is_cpu(), at::get_num_threads())) metrics.count_mfu(*peak);
}

void Instructions::after(StepEnd& end) {
  const int64_t step = end.visit.step;
  if (kept(step)) lines_ = times_.last_lines();
  if (step == parts_.first_step() + 1 && ranks_.first())
    log::info("plan " + parts_.plan_hash() + " as rank 0 executed it in step " + std::to_string(step) + ": " +
              times_.last_effect().text());
}

void Instructions::updated(int64_t step) {
  if (!kept(step)) return;
  const std::vector<std::string>& updates = times_.last_lines();
  lines_.insert(lines_.end(), updates.begin(), updates.end());
}

/// The first step takes its memory as it comes to it, up to the updates behind its norm; then only a larger batch needs
/// more.
Observer memory_requests(const Parts& parts, std::function<int64_t()> requests) {
  const auto seen = std::make_shared<int64_t>(0);
  return {[=](const plan::Visit&) { *seen = requests(); },
          [=, &parts](StepEnd& end) {
            const int64_t more = requests() - *seen, step = end.visit.step;
            if (step > parts.first_step() + 1 && more > 0)
              log::info("step " + std::to_string(step) + " allocated memory from the GPU's driver " +
                        std::to_string(more) +
                        " times, which may wait for the GPU: its batch was larger than any before");
          }};
}

Observer heartbeats(RankWatch& watch) {
  return {[&watch](const plan::Visit& visit) { watch.phase(visit.step, "waiting for samples"); },
          [&watch](StepEnd& end) { watch.phase(end.visit.step, "what follows a step"); }};
}

Observer history(const RunFolder& folder, const Parts& parts, report::Progress& progress) {
  return {.after = [&](StepEnd& end) {
    if (!folder.log()) return;
    if (end.skipped.empty())
      folder.log()->step(end.metrics);
    else
      folder.log()->skip(end.visit.step, end.skipped, end.metrics.loss_scale);
    progress.step(end.metrics, parts.predicted().peak);
  }};
}

Observer slow_ranks(const RunFolder& folder, const Mesh& mesh, const recipe::Recipe::Fault& settings,
                    std::function<const plan::Plan*()> plan,
                    std::function<void(int64_t step, const std::vector<int64_t>& shares)> give) {
  const auto slow = std::make_shared<SlowRanks>(mesh, SlowRankOptions{settings.slow_factor, settings.slow_steps});
  return {.after = [=, &folder](StepEnd& end) {
    std::vector<double> seconds;
    for (const StepReport& r : end.ranks) seconds.push_back(r.work);
    slow->step(seconds);
    for (const SlowRanks::Slow& found : slow->found()) {
      if (!folder.ranks.first()) continue;
      log::warn(found.text());
      folder.log()->fault(end.visit.step, "slow_rank", found.text(), found.rank);
    }
    const plan::Plan* now = plan();
    if (!now) return;
    if (const auto shares = slow->better_shares(*now)) give(end.visit.step, *shares);
  }};
}

}  // namespace tessera::train
