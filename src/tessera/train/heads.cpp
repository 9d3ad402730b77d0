#include "tessera/train/heads.h"

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/engine/store/meter.h"
#include "tessera/optim/adamw.h"

namespace tessera::train {

using at::Tensor;

namespace {

constexpr const char* kPrefix = "discriminator.";
constexpr const char* kTurns = "turns";  // a field of Manifest::extra

}  // namespace

void Turns::end_step(bool updated) {
  if (!updated) return;
  ++taken_[now_];
  now_ = (now_ + 1) % networks_.size();
}

void Turns::write(checkpoint::Manifest& manifest) const {
  checkpoint::Json taken = checkpoint::Json::object();
  for (size_t n = 0; n < networks_.size(); ++n) taken[name(n)] = taken_[n];
  manifest.extra[kTurns] = {{"next", name(now_)}, {"taken", std::move(taken)}};
}

void Turns::resume(const checkpoint::Manifest& manifest) {
  const auto saved = manifest.extra.find(kTurns);
  check_input(
      saved != manifest.extra.end(), "run.resume",
      "the checkpoint of step " + std::to_string(manifest.step) + " does not say which network has the next step",
      "it is of a run with one trained network: resume with that recipe, or use another run.out");
  const checkpoint::Json& taken = saved->at("taken");
  bool found = false;
  for (size_t n = 0; n < networks_.size(); ++n) {
    check_input(taken.contains(name(n)), "run.resume",
                "the checkpoint has no network '" + name(n) + "', which the run trains",
                "resume with the recipe that it was saved by, or use another run.out");
    taken_[n] = taken.at(name(n)).get<int64_t>();
    if (saved->at("next") == name(n)) now_ = n, found = true;
  }
  check_input(found, "run.resume",
              "the checkpoint gives the next step to " + saved->at("next").dump() + ", a network that the run has not",
              "resume with the recipe that it was saved by, or use another run.out");
}

Heads::Heads(std::unique_ptr<const net::UnitUpdate> optimiser, const Rules& rules, Shape shape, at::Device device,
             comm::Group* peers)
    : rules_(rules),
      count_(shape.count),
      width_(shape.width),
      device_(device),
      peers_(peers),
      optimiser_(std::move(optimiser)) {
  const engine::Meter::Scope host(engine::Part::host);
  values_ = diffusion::initial_heads(count_, width_, rules.seed);
  int64_t all = 0;
  for (const auto& [name, value] : values_) {
    if (name.ends_with("weight_u") || name.ends_with("weight_v")) continue;
    Trained& trained = trained_[name];
    trained.spec.name = kPrefix + name, trained.spec.shape = value.sizes().vec();
    trained.specs = optimiser_->states(trained.spec);
    for (const plan::StateSpec& spec : trained.specs)
      trained.states.push_back(at::zeros({spec.values(0, value.numel()) * size_of(spec.type)}, at::kByte));
    trained.at = all, all += value.numel();
  }
  gradients_ = at::zeros({all}, at::kFloat);
}

int64_t Heads::owner(int64_t group, const Spread& spread) const {
  const int64_t groups = spread.samples / diffusion::samples_of_group(spread.samples);
  return peers_ ? group * peers_->size() / groups : 0;
}

std::vector<int64_t> Heads::between(size_t from, size_t to, const Spread& spread) const {
  std::vector<int64_t> samples;
  for (const int64_t i : spread.of_rank[from])
    if (owner(i / diffusion::samples_of_group(spread.samples), spread) == static_cast<int64_t>(to))
      samples.push_back(i);
  return samples;
}

std::vector<Tensor> Heads::exchanged(const Samples& leave, const Samples& come, int64_t tokens,
                                     const std::function<Tensor(int64_t)>& row) const {
  const int64_t columns = static_cast<int64_t>(count_) * width_;
  const auto none = [&](size_t rows) { return at::empty({static_cast<int64_t>(rows), tokens, columns}, at::kFloat); };
  std::vector<Tensor> out, in;
  for (size_t m = 0; m < leave.size(); ++m) {
    std::vector<Tensor> rows;
    for (const int64_t i : leave[m]) rows.push_back(row(i));
    out.push_back(rows.empty() ? none(0) : at::stack(rows));
    in.push_back(m == here() ? out.back() : none(come[m].size()));
  }
  if (peers_) peers_->all_to_all(out, in);
  return in;
}

Heads::Groups Heads::gathered(const Rows& own, const Spread& spread, int64_t tokens) const {
  const engine::Meter::Scope host(engine::Part::host);
  const int64_t size = diffusion::samples_of_group(spread.samples), columns = static_cast<int64_t>(count_) * width_;
  Samples leave, come;
  for (size_t m = 0; m < spread.of_rank.size(); ++m)
    leave.push_back(between(here(), m, spread)), come.push_back(between(m, here(), spread));
  const std::vector<Tensor> in = exchanged(leave, come, tokens, [&](int64_t i) { return own.at(i); });
  Groups groups;
  for (size_t m = 0; m < in.size(); ++m)
    for (size_t k = 0; k < come[m].size(); ++k) {
      const int64_t i = come[m][k];
      Tensor& group = groups[i / size];
      if (!group.defined()) group = at::empty({size, tokens, columns}, at::kFloat);
      group[i % size].copy_(in[m][static_cast<int64_t>(k)]);
    }
  return groups;
}

Heads::Rows Heads::scattered(const Groups& groups, const Spread& spread, int64_t tokens) const {
  const engine::Meter::Scope host(engine::Part::host);
  const int64_t size = diffusion::samples_of_group(spread.samples);
  Samples leave, come;
  for (size_t m = 0; m < spread.of_rank.size(); ++m)
    leave.push_back(between(m, here(), spread)), come.push_back(between(here(), m, spread));
  const std::vector<Tensor> in =
      exchanged(leave, come, tokens, [&](int64_t i) { return groups.at(i / size)[i % size]; });
  Rows rows;
  for (size_t m = 0; m < in.size(); ++m)
    for (size_t k = 0; k < come[m].size(); ++k) rows[come[m][k]] = in[m][static_cast<int64_t>(k)];
  return rows;
}

/// [samples, width, tokens] of each head.
std::vector<Tensor> Heads::features(const Tensor& group) const {
  std::vector<Tensor> all;
  for (size_t h = 0; h < count_; ++h)
    all.push_back(group.narrow(2, static_cast<int64_t>(h) * width_, width_).transpose(1, 2).contiguous().to(device_));
  return all;
}

diffusion::Discriminator Heads::on_device() const {
  std::map<std::string, Tensor> values;
  for (const auto& [name, value] : values_) values[name] = value.to(device_);
  return diffusion::Discriminator(std::move(values));
}

void Heads::sum(const Tensor& values) const {
  if (peers_) peers_->all_reduce(values);
}

Heads::Told Heads::tell(const Rows& own, const Spread& spread, int64_t tokens) {
  Groups groups = gathered(own, spread, tokens);
  diffusion::Discriminator heads = on_device();
  Tensor loss = at::zeros({1}, at::kFloat);
  for (auto& [number, group] : groups) {
    const double share = static_cast<double>(group.size(0)) / static_cast<double>(spread.samples);
    const diffusion::JudgedLoss told = diffusion::generator_loss(heads, features(group), rules_.loss);
    loss += share * told.loss;
    const engine::Meter::Scope host(engine::Part::host);
    std::vector<Tensor> at;
    for (const Tensor& gradient : told.at_features) at.push_back(gradient.transpose(1, 2).cpu());
    group = at::cat(at, 2) * share;
  }
  sum(loss);
  return {loss.item<double>(), scattered(groups, spread, tokens)};
}

Heads::Lesson Heads::learn(const Rows& fakes, const Spread& of_fakes, const Rows& reals, const Spread& of_reals,
                           int64_t tokens, double rate) {
  const Groups fake = gathered(fakes, of_fakes, tokens), real = gathered(reals, of_reals, tokens);
  diffusion::Discriminator heads = on_device();
  Lesson lesson;
  const auto each = [&](const Groups& groups, const Spread& spread, auto add) {
    heads.follow();
    for (const auto& [number, group] : groups)
      add(lesson.loss, heads, features(group), rules_.loss,
          static_cast<double>(group.size(0)) / static_cast<double>(spread.samples));
  };
  each(fake, of_fakes, diffusion::add_fakes);
  each(real, of_reals, diffusion::add_reals);
  if (rules_.loss.r1_weight > 0) each(real, of_reals, diffusion::add_penalty);

  const engine::Meter::Scope host(engine::Part::host);
  gradients_.zero_();
  for (const auto& [name, gradient] : lesson.loss.gradients)
    gradients_.narrow(0, trained_.at(name).at, gradient.numel()).copy_(gradient.flatten());
  lesson.loss.gradients.clear();
  lesson.loss.logits_fake = lesson.loss.logits_real = Tensor();
  sum(gradients_);
  diffusion::AdversarialLoss& loss = lesson.loss;
  const Tensor parts = at::tensor({loss.loss, loss.fake, loss.real, loss.r1}, at::kDouble).to(at::kFloat);
  sum(parts);
  loss.loss = parts[0].item<double>(), loss.fake = parts[1].item<double>();
  loss.real = parts[2].item<double>(), loss.r1 = parts[3].item<double>();
  lesson.norm = std::sqrt(gradients_.to(at::kDouble).square().sum().item<double>());
  lesson.finite = std::isfinite(lesson.norm) && std::isfinite(loss.loss);
  if (!lesson.finite) return lesson;
  for (auto& [name, value] : values_)
    if (name.ends_with("weight_u") || name.ends_with("weight_v")) value.copy_(heads.values().at(name).detach());
  update({.step = ++updates_, .lr = rate, .scale = optim::clip_coefficient(lesson.norm, rules_.clip_norm)});
  return lesson;
}

void Heads::update(const net::StepControl& control) {
  for (auto& [name, trained] : trained_) {
    Tensor& value = values_.at(name);
    net::Slice slice;
    slice.spec = &trained.spec, slice.tensor = hash_text(trained.spec.name), slice.numel = value.numel();
    slice.end = value.numel(), slice.param = value.mutable_data_ptr();
    slice.grad = gradients_.const_data_ptr<float>() + trained.at;
    slice.specs = &trained.specs;
    for (Tensor& state : trained.states) slice.states.push_back(state.mutable_data_ptr());
    std::vector<std::vector<float>> sums;
    for (int round = 0; round < optimiser_->rounds(); ++round) {
      std::vector<double> parts(static_cast<size_t>(optimiser_->sums(trained.spec, round)), 0.0);
      optimiser_->add_sums(slice, control, round, parts.data());
      sums.emplace_back(parts.begin(), parts.end());
      slice.sums.clear();
      for (std::vector<float>& of : sums) slice.sums.push_back(of.empty() ? nullptr : of.data());
      optimiser_->take_sums(slice, control, round);
    }
    optimiser_->update(slice, control);
  }
}

std::vector<checkpoint::Piece> Heads::pieces() const {
  std::vector<checkpoint::Piece> all;
  for (const auto& [name, value] : values_)
    all.push_back({checkpoint::resolved({kPrefix + name, "param", DType::f32, value.sizes().vec()}, "train.heads"),
                   value.const_data_ptr()});
  for (const auto& [name, trained] : trained_)
    for (size_t s = 0; s < trained.states.size(); ++s) {
      const plan::StateSpec& spec = trained.specs[s];
      const DType type = spec.type;
      all.push_back(
          {checkpoint::resolved({trained.spec.name, spec.kind, type, {trained.states[s].numel() / size_of(type)}},
                                "train.heads"),
           trained.states[s].const_data_ptr()});
    }
  return all;
}

void Heads::resume(checkpoint::TrainingCheckpoint& saved, int64_t updates) {
  for (auto& [name, value] : values_) {
    check_input(saved.contains(kPrefix + name, "param"), "run.resume",
                saved.path().string() + " has no " + kPrefix + name + ", a head of the discriminator",
                "use a checkpoint of a run with distill.method = \"scm_ladd\" and the same distill.head_blocks, or "
                "another run.out");
    saved.read({kPrefix + name, "param", DType::f32, value.sizes().vec()}, value.mutable_data_ptr());
  }
  for (auto& [name, trained] : trained_)
    for (size_t s = 0; s < trained.states.size(); ++s) {
      const DType type = trained.specs[s].type;
      saved.read({trained.spec.name, trained.specs[s].kind, type, {trained.states[s].numel() / size_of(type)}},
                 trained.states[s].mutable_data_ptr());
    }
  updates_ = updates;
}

}  // namespace tessera::train
