#include "tessera/diffusion/flow_matching.h"

#include <algorithm>
#include <cmath>

#include "tessera/ops/kernels.h"
#include "tessera/plan/shares.h"
#include "tessera/plan/token_shares.h"

namespace tessera::diffusion {

int64_t spare_place(const plan::Plan& plan, int64_t batch, int dp_rank, int64_t micro) {
  return std::min(plan::slice_of(plan, batch, dp_rank, micro).first, batch - 1);
}

void FlowMatching::begin(PassData pass) {
  pass_ = std::move(pass);
  by_weight_.assign(pass_.weighed ? pass_.places.size() : 0, 0.0);
  losses_.clear();
  sums_.clear(), products_.clear(), weighed_there_.clear();
  micros_.clear();
  loss_ = 0;
  bad_sample_ = -1;
}

namespace {

/// [1] of fp64, a MiB of fp32 at a time: what the plan counts for a loss has no room for more.
at::Tensor sum_of_products(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kAtOnce = 1 << 18;
  const at::Tensor x = a.reshape(-1), y = b.reshape(-1);
  at::Tensor sum = at::zeros({1}, a.options().dtype(at::kDouble));
  for (int64_t at = 0; at < x.numel(); at += kAtOnce) {
    const int64_t count = std::min(kAtOnce, x.numel() - at);
    sum.add_(at::sum(x.narrow(0, at, count) * y.narrow(0, at, count), at::kDouble));
  }
  return sum;
}

}  // namespace

/// Index of this dp rank's first sample in the plan's slices.
int64_t FlowMatching::first_sample() const { return slice(0).first; }

plan::Plan::Slice FlowMatching::slice(int64_t micro) const {
  return plan::slice_of(*pass_.plan, batch_samples(), pass_.plan->mesh.dp_rank(rank_), micro);
}

net::Batch FlowMatching::batch(int micro) {
  const auto slice = this->slice(micro);
  Micro& m = micros_[micro];
  m.first = slice.first - first_sample();
  const auto begin = pass_.places.begin() + m.first;
  return pack({begin, begin + slice.count}, m);
}

net::Batch FlowMatching::inputs(int micro) const {
  const int dp_rank = pass_.plan->mesh.dp_rank(rank_);
  const auto slice = this->slice(micro);
  Micro unused;
  if (slice.count == 0) return pack({spare_place(*pass_.plan, batch_samples(), dp_rank, micro)}, unused);
  const auto begin = pass_.places.begin() + (slice.first - first_sample());
  return pack({begin, begin + slice.count}, unused);
}

net::Batch FlowMatching::pack(const std::vector<int64_t>& places, Micro& m) const {
  std::vector<net::Sample> samples;
  const bool has_loss = pass_.plan->owns(rank_, static_cast<int>(pass_.plan->units.size()) - 1);
  for (const int64_t place : places) {
    const TrainingSample& sample = *pass_.samples->at(place);
    if (has_loss) m.targets.push_back({model_.pack_target(sample.velocity)});
    m.weights.push_back(sample.weight);
    m.frame_weights.push_back(sample.frame_weights);
    m.indices.push_back(sample.index);
    samples.push_back(sample.input);
  }
  net::Batch batch = model_.pack(samples);
  batch.tokens.samples.assign(places.begin(), places.end());
  batch.tokens.step = static_cast<uint64_t>(pass_.step);
  if (plan::sequence_size(pass_.plan->mesh) > 1) cut_targets(m.targets, batch.tokens);
  return batch;
}

/// Keeps this rank's rows alone, which the executor copies (Objective::compared).
void FlowMatching::cut_targets(std::vector<Target>& targets, const net::Tokens& tokens) const {
  const plan::TokenRange here = plan::token_share(tokens.total(), pass_.plan->mesh, rank_);
  for (size_t s = 0; s < targets.size(); ++s) {
    const auto row = [&, rows = targets[s].rows.size(0)](int64_t token) {
      return std::clamp<int64_t>(token - tokens.offsets[s], 0, rows);
    };
    targets[s] = {targets[s].rows.slice(0, row(here.begin), row(here.end)), row(here.begin)};
  }
}

at::Tensor FlowMatching::gradient(const at::Tensor& prediction, const net::Batch& batch, int micro) {
  const Micro m = std::move(micros_.extract(micro).mapped());
  const bool all_count =
      batch.predicted.empty() && std::ranges::all_of(m.frame_weights, [](const auto& f) { return f.empty(); });
  at::Tensor gradient = all_count ? at::empty_like(prediction) : at::zeros_like(prediction);
  const at::Tensor answer = with_sums(prediction, batch, m);
  const bool there = &ops::kernels(prediction) == &ops::aten_kernels();
  for (size_t s = 0; s < m.targets.size(); ++s) {
    if (there) {
      compare_there(answer, batch, s, m, gradient);
    } else {
      const double error = sample_error(answer, batch, s, m.targets[s], share(m, s) * pass_.gradient_scale, gradient,
                                        m.frame_weights[s]);
      losses_.push_back({error, share(m, s), m.indices[s]});
    }
    if (pass_.weighed) weigh(prediction, batch, s, m.first + static_cast<int64_t>(s), gradient);
  }
  return gradient;
}

void FlowMatching::compare_there(const at::Tensor& answer, const net::Batch& batch, size_t s, const Micro& m,
                                 const at::Tensor& gradient) {
  double first = 0;  // what makes the sum of squares of the first run the sample's error
  for (const Compared& rows : diffusion::compared(batch, s, m.targets[s], m.frame_weights[s])) {
    const at::Tensor part = answer.narrow(0, rows.begin, rows.count);
    const at::Tensor sum = at::empty({1}, answer.options().dtype(at::kDouble));
    sum_squared_error(part, m.targets[s].rows.narrow(0, rows.at, rows.count),
                      share(m, s) * pass_.gradient_scale * rows.part, gradient.narrow(0, rows.begin, rows.count), sum);
    const double mean = rows.part / static_cast<double>(part.numel());
    if (first > 0) {
      sums_.back().add_(sum, mean / first);
      continue;
    }
    first = mean;
    losses_.push_back({0, share(m, s), m.indices[s], mean});
    sums_.push_back(sum);
  }
}

std::vector<at::Tensor*> FlowMatching::compared(int micro) {
  std::vector<at::Tensor*> all;
  for (Target& target : micros_.at(micro).targets) all.push_back(&target.rows);
  return all;
}

at::Tensor FlowMatching::numbers() {
  std::vector<at::Tensor> all = sums_;
  all.insert(all.end(), products_.begin(), products_.end());
  return all.empty() ? at::Tensor() : at::cat(all);
}

void FlowMatching::read(std::span<const double> numbers) {
  size_t next = 0;
  for (PendingLoss& b : losses_)
    if (b.mean > 0) b.error = numbers[next++] * b.mean;
  for (const int64_t own : weighed_there_)
    by_weight_[static_cast<size_t>(own)] = numbers[next++] / pass_.gradient_scale;
  sums_.clear(), products_.clear(), weighed_there_.clear();
  for (const PendingLoss& b : losses_) {
    if (!std::isfinite(b.error) && bad_sample_ < 0) bad_sample_ = b.index;
    if (pass_.counts) loss_ += b.error * b.share;
  }
  losses_.clear();
}

/// The prediction that the loss uses: the expert's own, or the weighted sum if several experts predict together.
at::Tensor FlowMatching::with_sums(const at::Tensor& prediction, const net::Batch& batch, const Micro& micro) const {
  if (!pass_.sums) return prediction;
  at::Tensor answer = prediction.clone();
  for (size_t s = 0; s < micro.targets.size(); ++s) {
    const auto [begin, end] = rows_here(batch, s);
    if (begin >= end) continue;
    const at::Tensor& sum = pass_.sums->at(static_cast<int64_t>(batch.tokens.samples[s]));
    const int64_t at = begin + batch.tokens.begin - batch.predictions_of(s)[0];
    answer.narrow(0, begin, end - begin).copy_(sum.narrow(0, at, end - begin));
  }
  return answer;
}

/// Records the gate's gradient for a sample, and scales the gradient to that of the expert's own prediction.
void FlowMatching::weigh(const at::Tensor& prediction, const net::Batch& batch, size_t s, int64_t own,
                         at::Tensor& gradient) {
  const auto [begin, end] = rows_here(batch, s);
  if (begin >= end) return;
  at::Tensor rows = gradient.narrow(0, begin, end - begin);
  const at::Tensor own_rows = prediction.narrow(0, begin, end - begin);
  if (&ops::kernels(prediction) == &ops::aten_kernels()) {
    weighed_there_.push_back(own);
    products_.push_back(sum_of_products(rows, own_rows));
  } else {
    const float *g = rows.const_data_ptr<float>(), *f = own_rows.const_data_ptr<float>();
    double sum = 0;
    for (int64_t i = 0; i < rows.numel(); ++i) sum += static_cast<double>(g[i]) * f[i];
    by_weight_[static_cast<size_t>(own)] = sum / pass_.gradient_scale;
  }
  if (!pass_.weights.empty()) rows.mul_(pass_.weights[static_cast<size_t>(own)]);
}

}  // namespace tessera::diffusion
