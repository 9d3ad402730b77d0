#include "tessera/diffusion/flow_matching.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "tessera/ops/kernels.h"
#include "tessera/plan/shares.h"
#include "tessera/plan/token_shares.h"

namespace tessera::diffusion {

int64_t spare_place(const plan::Plan& plan, int64_t batch, int dp_rank, int64_t micro) {
  return std::min(plan::slice_of(plan, batch, dp_rank, micro).first, batch - 1);
}

size_t LossByTimestep::bin(double t) { return static_cast<size_t>(std::clamp<double>(t / 1000 * kBins, 0, kBins - 1)); }

void LossBySet::add(size_t set, double loss, double count) {
  sums.resize(std::max(sums.size(), set + 1)), counts.resize(sums.size());
  sums[set] += loss, counts[set] += count;
}

void FlowMatching::begin(PassData pass) {
  pass_ = std::move(pass);
  by_weight_.assign(pass_.weighed ? pass_.places.size() : 0, 0.0);
  losses_.clear();
  products_.clear();
  micros_.clear();
  loss_ = 0;
  by_timestep_ = {}, by_set_ = {};
  bad_sample_ = -1;
}

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
  net::Batch batch = pack({begin, begin + slice.count}, m);
  if (pass_.histories) batch.tokens.history = pass_.histories->at(static_cast<size_t>(micro));
  return batch;
}

net::Batch FlowMatching::inputs(int micro) const {
  const int dp_rank = pass_.plan->mesh.dp_rank(rank_);
  const auto slice = this->slice(micro);
  Micro unused;
  if (slice.count == 0) return pack({spare_place(*pass_.plan, batch_samples(), dp_rank, micro)}, unused);
  const auto begin = pass_.places.begin() + (slice.first - first_sample());
  return pack({begin, begin + slice.count}, unused);
}

net::Batch FlowMatching::asked_inputs(int micro, Asked asked, std::vector<int64_t>& places) const {
  const auto slice = this->slice(micro);
  const auto begin = pass_.places.begin() + (slice.first - first_sample());
  places.clear();
  std::copy_if(begin, begin + slice.count, std::back_inserter(places), [&](int64_t place) {
    const TrainingSample& sample = *pass_.samples->at(place);
    return asked == Asked::base ? sample.from_base : sample.unguided.has_value();
  });
  std::vector<int64_t> packed = places;
  if (packed.empty())
    packed = {slice.count > 0 ? *begin
                              : spare_place(*pass_.plan, batch_samples(), pass_.plan->mesh.dp_rank(rank_), micro)};
  Micro unused;
  return pack(packed, unused, asked);
}

at::Tensor FlowMatching::asked_target(Asked asked, int64_t place, const at::Tensor& predicted) const {
  if (asked == Asked::base) return predicted;
  const TrainingSample& sample = *pass_.samples->at(place);
  const at::Tensor rows = model_.pack_target(sample.velocity);  // tokens that stand behind the clip's have none
  return guided_target(rows, predicted.narrow(0, 0, rows.size(0)).cpu(), sample.guidance, sample.zero_guidance);
}

namespace {

/// In the rows of the sample's target. A model may multiply its targets by a number, which is no weight.
at::Tensor packed_weights(const net::Denoiser& model, const TrainingSample& sample) {
  if (!sample.weights.defined()) return {};
  const at::Tensor rows = model.pack_target(sample.weights.unsqueeze(0).expand(sample.velocity.sizes()));
  const double most = sample.weights.max().item<double>(), packed = rows.max().item<double>();
  return packed == most ? rows : rows.mul_(most / packed);
}

}  // namespace

/// The velocity, or what was made of a prediction, of which tokens that stand behind the clip's are none.
at::Tensor FlowMatching::target_rows(int64_t place, const TrainingSample& sample) const {
  at::Tensor rows = model_.pack_target(sample.velocity);
  if (!pass_.targets) return rows;
  const auto made = pass_.targets->find(place);
  return made == pass_.targets->end() ? rows : made->second.narrow(0, 0, rows.size(0));
}

net::Batch FlowMatching::pack(const std::vector<int64_t>& places, Micro& m, Asked asked) const {
  std::vector<net::Sample> samples;
  const bool has_loss = pass_.plan->owns(rank_, static_cast<int>(pass_.plan->units.size()) - 1);
  for (const int64_t place : places) {
    const TrainingSample& sample = *pass_.samples->at(place);
    if (has_loss) m.targets.push_back({target_rows(place, sample), 0, packed_weights(model_, sample)});
    m.samples.push_back(&sample);
    m.weights.push_back(sample.weight * (pass_.learned ? pass_.learned->at(place).weight : 1));
    m.frame_weights.push_back(sample.frame_weights);
    m.indices.push_back(sample.index);
    m.forms.push_back(sample.form);
    m.t.push_back(sample.input.t);
    m.sets.push_back(sample.set);
    samples.push_back(asked == Asked::unguided && sample.unguided ? *sample.unguided : sample.input);
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
    const auto mine = [&](const at::Tensor& all) {
      return all.defined() ? all.slice(0, row(here.begin), row(here.end)) : at::Tensor();
    };
    targets[s] = {mine(targets[s].rows), row(here.begin), mine(targets[s].weights)};
  }
}

FlowMatching::PendingLoss FlowMatching::pending(const net::Batch& batch, const Micro& m, size_t s) const {
  const auto [first, last] = batch.predictions_of(s);
  const auto [begin, end] = rows_here(batch, s);
  const double part = last > first ? static_cast<double>(end - begin) / static_cast<double>(last - first) : 0;
  return {share(m, s),       0, m.indices[s], LossByTimestep::bin(m.t[s]), part, m.sets[s], !m.samples[s]->from_base,
          m.samples[s]->twin};
}

at::Tensor FlowMatching::gradient(const at::Tensor& prediction, const net::Batch& batch, int micro) {
  const Micro m = std::move(micros_.extract(micro).mapped());
  const bool all_count =
      batch.predicted.empty() && std::ranges::all_of(m.frame_weights, [](const auto& f) { return f.empty(); });
  at::Tensor gradient = all_count ? at::empty_like(prediction) : at::zeros_like(prediction);
  const at::Tensor answer = with_sums(prediction, batch, m);
  for (size_t s = 0; s < m.targets.size(); ++s) {
    losses_.push_back(pending(batch, m, s));
    const ops::SampleError error = this->error(answer, batch, m, s, gradient);
    losses_.back().read = error.number.defined(), losses_.back().unit = error.unit;
    losses_.back().number = error.number;
    if (pass_.weighed) weigh(prediction, batch, s, m.first + static_cast<int64_t>(s), gradient);
    if (pass_.learned) learn_beside(batch, m, s, gradient);
  }
  return gradient;
}

/// Of a sample's prediction, whose gradient it writes.
ops::SampleError FlowMatching::error(const at::Tensor& answer, const net::Batch& batch, const Micro& m, size_t s,
                                     at::Tensor& gradient) const {
  if (!pass_.learned || !pass_.learned->at(static_cast<int64_t>(batch.tokens.samples[s])).told)
    return sample_error(answer, batch, s, m.targets[s], share(m, s) * pass_.gradient_scale, gradient,
                        m.frame_weights[s], m.forms[s]);
  const auto [begin, end] = rows_here(batch, s);
  const int64_t first = begin + batch.tokens.begin - batch.tokens.offsets[s] - m.targets[s].first;
  if (begin < end)
    gradient.narrow(0, begin, end - begin)
        .copy_(m.targets[s].rows.narrow(0, first, end - begin))
        .mul_(pass_.gradient_scale);
  return {};
}

std::optional<std::string> FlowMatching::given(int micro) {
  if (pass_.weighed || pass_.learned || pass_.sums) return std::nullopt;
  const Micro& m = micros_.at(micro);
  std::string text;
  const auto add = [&](double number) {
    char words[32];
    std::snprintf(words, sizeof words, "%a ", number);  // to the bit
    text += words;
  };
  for (size_t s = 0; s < m.weights.size(); ++s) {
    add(share(m, s) * pass_.gradient_scale), add(m.forms[s].c);
    for (const double weight : m.forms[s].weights) add(weight);
    for (const double weight : m.frame_weights[s]) add(weight);
    if (s >= m.targets.size()) continue;
    add(static_cast<double>(m.targets[s].first)), add(m.targets[s].weights.defined());
    for (const int64_t size : m.targets[s].rows.sizes()) add(static_cast<double>(size));
  }
  return text;
}

void FlowMatching::repeat(const net::Batch& batch, int micro) {
  const Micro m = std::move(micros_.extract(micro).mapped());
  for (size_t s = 0; s < m.targets.size(); ++s) {
    losses_.push_back(pending(batch, m, s));
    const std::vector<WeighedRows> rows = weighed_rows(batch, s, m.frame_weights[s]);
    if (rows.empty()) continue;
    losses_.back().read = true;  // as the first rows of a sample set it (ops/aten/elementwise.cpp)
    losses_.back().unit = rows[0].part / static_cast<double>(rows[0].count * m.targets[s].rows.size(1));
  }
}

std::vector<at::Tensor*> FlowMatching::compared(int micro) {
  std::vector<at::Tensor*> all;
  for (Target& target : micros_.at(micro).targets) {
    all.push_back(&target.rows);
    if (target.weights.defined()) all.push_back(&target.weights);
  }
  return all;
}

at::Tensor FlowMatching::numbers() {
  std::vector<at::Tensor> all;
  for (const PendingLoss& b : losses_)
    if (b.number.defined()) all.push_back(b.number);
  for (const auto& [own, product] : products_) all.push_back(product);
  return all.empty() ? at::Tensor() : at::cat(all);
}

void FlowMatching::read(std::span<const double> numbers) {
  auto next = numbers.begin();
  for (const PendingLoss& b : losses_) {
    const double error = b.read ? *next++ * b.unit : 0;
    if (!std::isfinite(error) && bad_sample_ < 0) bad_sample_ = b.index;
    if (!pass_.counts) continue;
    loss_ += error * b.share + b.beside;
    if (b.of_noise) by_timestep_.sums[b.bin] += error, by_timestep_.counts[b.bin] += b.part;
    if (b.twin)
      by_set_.twins += error, by_set_.twin_count += b.part;
    else
      by_set_.add(static_cast<size_t>(b.set), error, b.part);
  }
  for (const auto& [own, product] : products_) by_weight_[static_cast<size_t>(own)] = *next++ / pass_.gradient_scale;
  losses_.clear(), products_.clear();
}

/// The numbers beside a prediction are the same in all its rows, each of which has a part of their gradient.
void FlowMatching::learn_beside(const net::Batch& batch, const Micro& m, size_t s, at::Tensor& gradient) {
  const Learned& learned = pass_.learned->at(static_cast<int64_t>(batch.tokens.samples[s]));
  const auto [first, last] = batch.predictions_of(s);
  const auto [begin, end] = rows_here(batch, s);
  if (begin >= end) return;
  const double own = m.samples[s]->weight / static_cast<double>(batch_samples()),
               all = static_cast<double>(last - first);
  losses_.back().beside = own * learned.beside * static_cast<double>(end - begin) / all;
  if (learned.told || model_.numbers_beside() == 0) return;
  gradient.narrow(0, begin, end - begin)
      .narrow(1, gradient.size(1) - model_.numbers_beside(), model_.numbers_beside())
      .fill_(own * learned.at_beside * pass_.gradient_scale / all);
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
  products_.emplace_back(own, ops::kernels(rows).dot(rows, own_rows));
  if (!pass_.weights.empty()) rows.mul_(pass_.weights[static_cast<size_t>(own)]);
}

}  // namespace tessera::diffusion
