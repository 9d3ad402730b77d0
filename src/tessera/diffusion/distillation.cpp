#include "tessera/diffusion/distillation.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::diffusion {

using at::Tensor;

namespace {

/// By which NVlabs' draw divides. It is no sigma_data, whatever that is.
constexpr double kDrawnSigma = 0.5;
constexpr double kLeastNorm = 0.1;  // added to the norm of g before it divides
constexpr double kTimeScale = 1000;

/// Of a tensor without memory, whose bytes are counted, 1.
double number_of(const Tensor& x) { return x.is_meta() ? 1 : x.item<double>(); }
double norm_of(const Tensor& x) { return std::sqrt(number_of(x.to(at::kDouble).square().sum())); }

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

/// [B, k, N]: beside each value of [B, D, N] its neighbours, which go on at the other end; k = D * (2 around + 1).
Tensor with_neighbours(const Tensor& x, int64_t around) {
  if (around == 0) return x;
  std::vector<Tensor> moved;
  // The meta device has no roll; a product takes the same memory.
  for (int64_t step = -around; step <= around; ++step) moved.push_back(x.is_meta() ? x * 1 : x.roll(-step, 2));
  return at::stack(moved, 2).flatten(1, 2);
}

}  // namespace

Discriminator::Discriminator(std::map<std::string, Tensor> values) : values_(std::move(values)) {
  while (values_.contains("heads." + std::to_string(heads_) + ".cls.weight_orig")) ++heads_;
  check_input(heads_ > 0, "diffusion.discriminator", "no head: heads.0.cls.weight_orig is not there");
  for (auto& [name, value] : values_) {
    const bool follows = name.ends_with("weight_u") || name.ends_with("weight_v");
    value = value.detach().requires_grad_(!follows);
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

void Discriminator::follow(size_t head) {
  const at::NoGradGuard still;
  for (const char* part : {"main.0.0", "main.1.fn.0", "cls"}) {
    const std::string name = "heads." + std::to_string(head) + "." + part;
    const Tensor matrix = value(name + ".weight_orig").flatten(1);
    Tensor &u = value(name + ".weight_u"), &v = value(name + ".weight_v");
    v = unit(at::mv(matrix.t(), u));
    u = unit(at::mv(matrix, v));
  }
}

void Discriminator::follow() {
  for (size_t h = 0; h < heads_; ++h) follow(h);
}

Tensor Discriminator::convolved(const std::string& name, const Tensor& x) {
  const Tensor& weight = value(name + ".weight_orig");
  const Tensor matrix = weight.flatten(1);
  const Tensor largest = (value(name + ".weight_u") * at::mv(matrix, value(name + ".weight_v"))).sum();
  return at::matmul(matrix / largest, with_neighbours(x, weight.size(2) / 2)).contiguous() +
         value(name + ".bias").view({-1, 1});
}

int64_t samples_of_group(int64_t samples) {
  const int64_t groups = (samples + kGroup - 1) / kGroup;
  check_input(samples % groups == 0, "diffusion.discriminator",
              std::to_string(samples) + " samples are no multiple of the " + std::to_string(groups) +
                  " groups that a head normalises",
              "choose another batch");
  return samples / groups;
}

/// Over samples and tokens, for each group of consecutive samples and each channel.
Tensor Discriminator::normed(const std::string& name, const Tensor& x) const {
  const int64_t groups = x.size(0) / samples_of_group(x.size(0));
  const Tensor grouped = x.view({groups, -1, x.size(1), x.size(2)}), mean = grouped.mean({1, 3}, /*keepdim=*/true),
               off = grouped - mean, variance = off.square().mean({1, 3}, /*keepdim=*/true);
  const auto channels = [&](const char* part) { return values_.at(name + part).view({1, -1, 1}); };
  return (off * at::rsqrt(variance + kNormEps)).view(x.sizes()) * channels(".weight") + channels(".bias");
}

Tensor Discriminator::logits_of_head(size_t head, const Tensor& feature, bool training) {
  if (training) follow(head);
  const std::string name = "heads." + std::to_string(head) + ".";
  const auto layer = [&](const std::string& at, const Tensor& x) {
    return at::leaky_relu(normed(name + at + ".1", convolved(name + at + ".0", x)), kSlope);
  };
  const Tensor first = layer("main.0", feature), both = (layer("main.1.fn", first) + first) / std::sqrt(2.0);
  return convolved(name + "cls", both).squeeze(1);
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

Tensor hinge(const Tensor& x) { return at::threshold(x, 0, 0); }

/// Adds the gradients of the part of a loss, and gives its value.
double add_part(AdversarialLoss& sum, const Discriminator& heads, const Tensor& part) {
  std::vector<Tensor> trained;
  const auto named = heads.parameters();
  for (const auto& [name, value] : named) trained.push_back(value);
  const std::vector<Tensor> found = gradients(part, trained);
  for (size_t i = 0; i < named.size(); ++i) {
    Tensor& there = sum.gradients[named[i].first];
    if (!there.defined()) there = at::zeros_like(trained[i]).detach();
    if (found[i].defined()) there = there + found[i].detach();
  }
  const double value = number_of(part);
  sum.loss += value;
  return value;
}

/// The same of logits that should be below zero; without the half of a hinge.
double add_errors(AdversarialLoss& sum, const Discriminator& heads, const Tensor& logits, const AdversarialRule& rule,
                  double share) {
  const double half = rule.hinge ? 0.5 : 1;
  const Tensor errors = rule.hinge ? hinge(1 + logits) : at::softplus(logits);
  return add_part(sum, heads, errors.mean() * (half * share)) / half;
}

}  // namespace

JudgedLoss generator_loss(Discriminator& heads, const std::vector<Tensor>& features, const AdversarialRule& rule) {
  const at::AutoGradMode graph(true);
  const std::vector<Tensor> leaves = with_gradients(features);
  const Tensor logits = heads.logits(leaves, /*training=*/false);
  const Tensor loss = rule.hinge ? -logits.mean() : at::softplus(-logits).mean();
  return {number_of(loss), logits.detach(), gradients(loss, leaves)};
}

void add_fakes(AdversarialLoss& loss, Discriminator& heads, const std::vector<Tensor>& features,
               const AdversarialRule& rule, double share) {
  const at::AutoGradMode graph(true);
  const Tensor logits = heads.logits(features, /*training=*/false);
  loss.logits_fake = logits.detach();
  loss.fake += add_errors(loss, heads, logits, rule, share);
}

void add_reals(AdversarialLoss& loss, Discriminator& heads, const std::vector<Tensor>& features,
               const AdversarialRule& rule, double share) {
  const at::AutoGradMode graph(true);
  const Tensor logits = heads.logits(features, /*training=*/false);
  loss.logits_real = logits.detach();
  loss.real += add_errors(loss, heads, -logits, rule, share);
}

/// Mean over samples of the squared gradients at the features, over the number of heads.
void add_penalty(AdversarialLoss& loss, Discriminator& heads, const std::vector<Tensor>& features,
                 const AdversarialRule& rule, double share) {
  const at::AutoGradMode graph(true);
  Tensor sum;
  for (size_t h = 0; h < heads.heads(); ++h) {
    const Tensor feature = features[h].detach().requires_grad_();
    const Tensor slope = gradients(heads.logits_of_head(h, feature, /*training=*/false).sum(), {feature}, true)[0];
    const Tensor squares = slope.square().sum({1, 2}).mean();
    sum = sum.defined() ? sum + squares : squares;
  }
  const double weight = rule.r1_weight * share / static_cast<double>(heads.heads());
  loss.r1 += add_part(loss, heads, sum * weight) / rule.r1_weight;
}

AdversarialLoss discriminator_loss(Discriminator& heads, const std::vector<Tensor>& fake,
                                   const std::vector<Tensor>& real, const AdversarialRule& rule) {
  AdversarialLoss result;
  heads.follow();
  add_fakes(result, heads, fake, rule, 1);
  heads.follow();
  add_reals(result, heads, real, rule, 1);
  if (rule.r1_weight <= 0) return result;
  heads.follow();
  add_penalty(result, heads, real, rule, 1);
  return result;
}

std::map<std::string, std::vector<int64_t>> head_shapes(size_t heads, int64_t width) {
  std::map<std::string, std::vector<int64_t>> shapes;
  constexpr int64_t kReach = 9;
  for (size_t h = 0; h < heads; ++h) {
    const std::string head = "heads." + std::to_string(h) + ".";
    for (const auto& [conv, out, reach] :
         {std::tuple("main.0.0", width, int64_t{1}), {"main.1.fn.0", width, kReach}, {"cls", int64_t{1}, int64_t{1}}}) {
      const std::string name = head + conv;
      shapes[name + ".weight_orig"] = {out, width, reach};
      shapes[name + ".weight_u"] = {out}, shapes[name + ".weight_v"] = {width * reach};
      shapes[name + ".bias"] = {out};
    }
    for (const char* norm : {"main.0.1", "main.1.fn.1"})
      shapes[head + norm + ".weight"] = shapes[head + norm + ".bias"] = {width};
  }
  return shapes;
}

std::map<std::string, Tensor> initial_heads(size_t heads, int64_t width, uint64_t seed) {
  std::map<std::string, Tensor> values;
  const auto shapes = head_shapes(heads, width);
  for (const auto& [name, shape] : shapes) {
    Tensor& value = values[name] = at::zeros(shape, at::kFloat);
    float* out = value.mutable_data_ptr<float>();
    const RandomKey key(seed, Purpose::init, hash_text("discriminator." + name));
    const std::string conv = name.substr(0, name.rfind('.') + 1);
    if (name.ends_with("weight_u") || name.ends_with("weight_v")) {
      key.normal(out, 0, static_cast<size_t>(value.numel()));
      value = unit(value);
    } else if (!shapes.contains(conv + "weight_orig")) {
      if (name.ends_with(".weight")) value.fill_(1);
    } else {
      const std::vector<int64_t>& weight = shapes.at(conv + "weight_orig");
      const double bound = 1 / std::sqrt(static_cast<double>(weight[1] * weight[2]));
      for (int64_t i = 0; i < value.numel(); ++i)
        out[i] = static_cast<float>(bound * (2 * key.uniform(static_cast<uint64_t>(i)) - 1));
    }
  }
  return values;
}

HeadsBytes heads_bytes(size_t heads, int64_t width, double states_per_value) {
  HeadsBytes bytes{.heads = heads};
  for (const auto& [name, shape] : head_shapes(heads, width)) {
    int64_t values = 1;
    for (const int64_t size : shape) values *= size;
    bytes.parameters += 4 * values;
    if (name.ends_with("weight_u") || name.ends_with("weight_v")) continue;
    bytes.gradients += 4 * values;
    bytes.states += static_cast<int64_t>(states_per_value * static_cast<double>(values));
  }
  return bytes;
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

int64_t drawn_exit(uint64_t seed, int64_t step, int64_t steps, int64_t chunk) {
  constexpr uint64_t kNoPlace = ~uint64_t{0};  // no sample has it
  const RandomKey key(seed, Purpose::timestep, static_cast<uint64_t>(step), kNoPlace);
  return static_cast<int64_t>(key.below(static_cast<uint64_t>(chunk), static_cast<uint64_t>(steps)));
}

PathRegression path_regression(const std::vector<Tensor>& path, const std::vector<double>& sigmas,
                               const std::vector<int64_t>& begins, const std::vector<int64_t>& picks) {
  const Tensor& clean = path.back();
  const int64_t frames = clean.size(1);
  PathRegression result{at::empty_like(clean), at::zeros_like(clean), {}, 0};
  int64_t counted = 0;
  for (size_t c = 0; c < begins.size(); ++c) {
    const int64_t first = begins[c], count = (c + 1 < begins.size() ? begins[c + 1] : frames) - first;
    const auto part = [&](const Tensor& of) { return of.narrow(1, first, count); };
    const auto pick = static_cast<size_t>(picks.at(c));
    const double sigma = sigmas.at(pick);
    part(result.x).copy_(part(path.at(pick)));
    if (sigma > 0) part(result.target).copy_((part(path[pick]) - part(clean)) / sigma), counted += count;
    result.sigmas.insert(result.sigmas.end(), static_cast<size_t>(count), sigma);
  }
  if (counted > 0) result.share = static_cast<double>(frames) / static_cast<double>(counted);
  return result;
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
