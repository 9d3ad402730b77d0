#include "tessera/diffusion/distillation.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::diffusion {

using at::Tensor;

namespace {

/// By which NVlabs' draw divides. It is no sigma_data, whatever that is.
constexpr double kDrawnSigma = 0.5;
constexpr double kLeastNorm = 0.1;  // added to the norm of g before it divides
constexpr double kTimeScale = 1000;

double norm_of(const Tensor& x) { return std::sqrt(x.to(at::kDouble).square().sum().item<double>()); }

}  // namespace

double drawn_angle(double normal, double mean, double std) {
  return std::atan(std::exp(normal * std + mean) / kDrawnSigma);
}

Tensor TrigFlow::noisy(const Tensor& x0, const Tensor& noise, double t) const {
  return std::cos(t) * x0 + std::sin(t) * sigma_data * noise;
}

FlowCall TrigFlow::call(const Tensor& x_t, double t) const {
  FlowCall call;
  call.angle = t;
  call.s = std::sin(t) / (std::cos(t) + std::sin(t));
  call.q = std::hypot(call.s, 1 - call.s);
  call.scaled = x_t / sigma_data;
  call.z = call.scaled * call.q;
  call.time = timestep_norm == 1 ? std::trunc(kTimeScale * call.s) : kTimeScale * call.s / timestep_norm;
  return call;
}

FlowMove TrigFlow::move(const FlowCall& call, const Tensor& scaled, double angle) const {
  const double sum = std::cos(call.angle) + std::sin(call.angle);
  const double ds = angle / (sum * sum), dq = (2 * call.s - 1) / call.q * ds;
  return {.z = scaled * call.q + call.scaled * dq,
          .time = timestep_norm == 1 ? 0 : kTimeScale * ds / timestep_norm,
          .beside = (1 - 2 * call.s) * scaled - 2 * ds * call.scaled,
          .q_rate = dq,
          .q = call.q};
}

Tensor TrigFlow::clean(const Tensor& x_t, const Tensor& f, double t) const {
  return std::cos(t) * x_t + clean_by_output(t) * f;
}
double TrigFlow::clean_by_output(double t) const { return -std::sin(t) * sigma_data; }
double TrigFlow::weight(double t) const { return 1 / (std::tan(t) * sigma_data); }

ConsistencyLoss consistency_loss(const TrigFlow& flow, const std::vector<ConsistencySample>& samples, double r) {
  check_internal(!samples.empty(), "diffusion.consistency", "no samples");
  ConsistencyLoss result;
  const double share = 1 / static_cast<double>(samples.size());
  for (const ConsistencySample& sample : samples) {
    const double cos = std::cos(sample.t), sin = std::sin(sample.t), weight = flow.weight(sample.t);
    const Tensor path = flow.sigma_data * sample.f - sample.velocity;
    Tensor g = -cos * cos * path - r * (cos * sin * sample.x_t + flow.sigma_data * sample.tangent);
    const double norm = norm_of(g);
    g = g / (norm + kLeastNorm);
    const double square = g.to(at::kDouble).square().mean().item<double>();
    const double precision = weight * std::exp(-sample.logvar);
    result.loss += share * (precision * square + sample.logvar);
    result.without_logvar += share * weight * square;
    result.without_weight += share * square;
    result.g_norm += share * norm;
    result.weights.push_back(weight);
    result.at_f.push_back(g * (-2 * precision * share / static_cast<double>(g.numel())));
    result.at_logvar.push_back(share * (1 - precision * square));
    result.g.push_back(std::move(g));
  }
  return result;
}

namespace {

constexpr double kNormEps = 1e-5, kLeastLength = 1e-12, kSlope = 0.2;
constexpr int64_t kGroup = 8;  // most samples that a norm is over, about

Tensor unit(const Tensor& x) { return x / std::max(norm_of(x), kLeastLength); }

/// [B, D, N] with as many neighbours around, which go on at the other end.
Tensor circular(const Tensor& x, int64_t around) {
  if (around == 0) return x;
  const Tensor places = at::remainder(at::arange(-around, x.size(2) + around, at::kLong), x.size(2));
  return x.index_select(2, places.to(x.device()));
}

}  // namespace

Discriminator::Discriminator(std::map<std::string, Tensor> values) : values_(std::move(values)) {
  while (values_.contains("heads." + std::to_string(heads_) + ".cls.weight_orig")) ++heads_;
  check_input(heads_ > 0, "diffusion.discriminator", "no head: heads.0.cls.weight_orig is not there");
  for (auto& [name, value] : values_) {
    const bool follows = name.ends_with("weight_u") || name.ends_with("weight_v");
    value = value.detach().clone().requires_grad_(!follows);
  }
}

Tensor& Discriminator::value(const std::string& name) {
  const auto found = values_.find(name);
  check_input(found != values_.end(), "diffusion.discriminator", name + " is not among the heads' weights");
  return found->second;
}

std::vector<std::pair<std::string, Tensor>> Discriminator::parameters() const {
  std::vector<std::pair<std::string, Tensor>> trained;
  for (const auto& named : values_)
    if (named.second.requires_grad()) trained.push_back(named);
  return trained;
}

Tensor Discriminator::convolved(const std::string& name, const Tensor& x, bool training) {
  const Tensor& weight = value(name + ".weight_orig");
  Tensor &u = value(name + ".weight_u"), &v = value(name + ".weight_v");
  const Tensor matrix = weight.flatten(1);
  if (training) {
    const Tensor still = matrix.detach();
    v = unit(at::mv(still.t(), u));
    u = unit(at::mv(still, v));
  }
  const Tensor scaled = weight / at::dot(u, at::mv(matrix, v));
  return at::conv1d(circular(x, weight.size(2) / 2), scaled, value(name + ".bias"));
}

/// Over samples and tokens, for each group of consecutive samples and each channel.
Tensor Discriminator::normed(const std::string& name, const Tensor& x) const {
  const int64_t groups = (x.size(0) + kGroup - 1) / kGroup;
  check_input(x.size(0) % groups == 0, "diffusion.discriminator",
              std::to_string(x.size(0)) + " samples are no multiple of the " + std::to_string(groups) +
                  " groups that a head normalises",
              "choose another batch");
  const Tensor grouped = x.view({groups, -1, x.size(1), x.size(2)}), mean = grouped.mean({1, 3}, /*keepdim=*/true),
               off = grouped - mean, variance = off.square().mean({1, 3}, /*keepdim=*/true);
  const auto channels = [&](const char* part) { return values_.at(name + part).view({1, -1, 1}); };
  return (off * at::rsqrt(variance + kNormEps)).view(x.sizes()) * channels(".weight") + channels(".bias");
}

Tensor Discriminator::logits_of_head(size_t head, const Tensor& feature, bool training) {
  const std::string name = "heads." + std::to_string(head) + ".";
  const auto layer = [&](const std::string& at, const Tensor& x) {
    return at::leaky_relu(normed(name + at + ".1", convolved(name + at + ".0", x, training)), kSlope);
  };
  const Tensor first = layer("main.0", feature), both = (layer("main.1.fn", first) + first) / std::sqrt(2.0);
  return convolved(name + "cls", both, training).squeeze(1);
}

Tensor Discriminator::logits(const std::vector<Tensor>& features, bool training) {
  check_input(features.size() == heads_, "diffusion.discriminator",
              std::to_string(heads_) + " heads for the features of " + std::to_string(features.size()) + " blocks");
  std::vector<Tensor> all;
  for (size_t h = 0; h < heads_; ++h) all.push_back(logits_of_head(h, features[h], training));
  return at::cat(all, 1);
}

namespace {

std::vector<Tensor> with_gradients(const std::vector<Tensor>& features) {
  std::vector<Tensor> leaves;
  for (const Tensor& feature : features) leaves.push_back(feature.detach().requires_grad_());
  return leaves;
}

std::vector<Tensor> gradients(const Tensor& of, const std::vector<Tensor>& at, bool graph = false) {
  return torch::autograd::grad({of}, at, {}, /*retain_graph=*/graph, /*create_graph=*/graph, /*allow_unused=*/true);
}

/// Mean over samples of the squared gradients at the features, over the number of heads; with a graph to the parameters.
Tensor penalty(Discriminator& heads, const std::vector<Tensor>& features) {
  Tensor sum;
  for (size_t h = 0; h < heads.heads(); ++h) {
    const Tensor feature = features[h].detach().requires_grad_();
    const Tensor slope = gradients(heads.logits_of_head(h, feature, /*training=*/true).sum(), {feature}, true)[0];
    const Tensor squares = slope.square().sum({1, 2}).mean();
    sum = sum.defined() ? sum + squares : squares;
  }
  return sum / static_cast<double>(heads.heads());
}

}  // namespace

JudgedLoss generator_loss(Discriminator& heads, const std::vector<Tensor>& features, const AdversarialRule& rule) {
  const at::AutoGradMode graph(true);
  const std::vector<Tensor> leaves = with_gradients(features);
  const Tensor logits = heads.logits(leaves, /*training=*/false);
  const Tensor loss = rule.hinge ? -logits.mean() : at::softplus(-logits).mean();
  return {loss.item<double>(), logits.detach(), gradients(loss, leaves)};
}

AdversarialLoss discriminator_loss(Discriminator& heads, const std::vector<Tensor>& fake,
                                   const std::vector<Tensor>& real, const AdversarialRule& rule) {
  const at::AutoGradMode graph(true);
  AdversarialLoss result;
  const Tensor of_fake = heads.logits(fake, /*training=*/true), of_real = heads.logits(real, /*training=*/true);
  const Tensor fakes = (rule.hinge ? at::relu(1 + of_fake) : at::softplus(of_fake)).mean(),
               reals = (rule.hinge ? at::relu(1 - of_real) : at::softplus(-of_real)).mean();
  Tensor loss = (fakes + reals) * (rule.hinge ? 0.5 : 1);
  if (rule.r1_weight > 0) {
    const Tensor r1 = penalty(heads, real);
    result.r1 = r1.item<double>();
    loss = loss + rule.r1_weight * r1;
  }
  result.loss = loss.item<double>(), result.real = reals.item<double>(), result.fake = fakes.item<double>();
  result.logits_fake = of_fake.detach(), result.logits_real = of_real.detach();
  std::vector<Tensor> trained;
  const auto named = heads.parameters();
  for (const auto& [name, value] : named) trained.push_back(value);
  const std::vector<Tensor> found = gradients(loss, trained);
  for (size_t i = 0; i < named.size(); ++i)
    result.gradients[named[i].first] = found[i].defined() ? found[i].detach() : at::zeros_like(trained[i]).detach();
  return result;
}

std::vector<double> shifted_sigmas(double shift) {
  std::vector<double> sigmas;
  for (int k = 1000; k > 0; --k) sigmas.push_back(shift * k / 1000 / (1 + (shift - 1) * k / 1000));
  return sigmas;
}

double nearest_sigma(const std::vector<double>& sigmas, double t) {
  double nearest = sigmas.front();
  for (const double sigma : sigmas)
    if (std::abs(kTimeScale * sigma - t) < std::abs(kTimeScale * nearest - t)) nearest = sigma;
  return nearest;
}

int64_t drawn_exit(uint64_t seed, int64_t step, int64_t steps) {
  constexpr uint64_t kNoPlace = ~uint64_t{0};  // no sample has it
  const RandomKey key(seed, Purpose::timestep, static_cast<uint64_t>(step), kNoPlace);
  return static_cast<int64_t>(key.below(0, static_cast<uint64_t>(steps)));
}

MatchingLoss matching_loss(const Tensor& x, const Tensor& fake, const Tensor& real, const Tensor& mask) {
  const Tensor wide = x.to(at::kDouble), to = real.to(at::kDouble);
  MatchingLoss result;
  result.d = at::nan_to_num((fake.to(at::kDouble) - to) / (wide - to).abs().mean());
  const Tensor counted = mask.defined() ? mask.to(at::kDouble) : at::ones_like(wide);
  const double count = counted.sum().item<double>();
  check_input(count > 0, "diffusion.matching", "no frame counts in the loss", "let the mask have a frame");
  result.loss = (0.5 * result.d.square() * counted).sum().item<double>() / count;
  result.at_x = (result.d * counted / count).to(x.scalar_type());
  return result;
}

}  // namespace tessera::diffusion
