#include "tessera/net/passes.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/ops/tangent.h"

namespace tessera::net {

namespace {

/// Which tensors of a list have a tangent: all of one list stand first, then the tangents in the same order.
class Beside {
 public:
  explicit Beside(std::vector<bool> moving) : moving_(std::move(moving)) {}

  /// The tensors of both, as tensors that move.
  std::vector<Tensor> joined(const std::vector<Tensor>& all) const {
    size_t next = moving_.size();
    check_internal(all.size() == next + static_cast<size_t>(std::ranges::count(moving_, true)), "net.passes",
                   "a unit gets " + std::to_string(all.size()) + " tensors");
    std::vector<Tensor> joined;
    for (size_t i = 0; i < moving_.size(); ++i)
      joined.push_back(moving_[i] ? ops::moving(all[i], all[next++]) : all[i]);
    return joined;
  }
  /// And back. What does not move although it may has a tangent of zeros.
  std::vector<Tensor> apart(const std::vector<Tensor>& joined) const {
    check_internal(joined.size() == moving_.size(), "net.passes", "a unit makes other tensors than it declares");
    std::vector<Tensor> values, tangents;
    for (size_t i = 0; i < joined.size(); ++i) {
      const auto [value, tangent] = ops::parts(joined[i]);
      check_internal(moving_[i] || !tangent.defined(), "net.passes", "a tensor moves that is said to stand still");
      values.push_back(value);
      if (moving_[i]) tangents.push_back(tangent.defined() ? tangent : at::zeros_like(value));
    }
    values.insert(values.end(), tangents.begin(), tangents.end());
    return values;
  }

 private:
  const std::vector<bool> moving_;
};

class MovingUnit final : public Unit {
 public:
  /// `inputs`: which of the stem's move; empty: a later unit, all of whose boundary tensors do.
  MovingUnit(const Unit& unit, std::vector<bool> inputs, std::vector<bool> conditioning, bool last)
      : Unit(unit.spec(), unit.prefix()),
        unit_(unit),
        inputs_(std::move(inputs)),
        conditioning_(std::move(conditioning)),
        last_(last) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const at::NoGradGuard no_graph;  // measuring asks for none, and turns none off
    const ops::ForwardMode mode;
    const Beside stream(inputs_.empty() ? std::vector<bool>(in.stream.size() / 2, true) : inputs_);
    const Flow out =
        unit_.forward(ctx, {stream.joined(in.stream), in.cond.empty() ? in.cond : conditioning_.joined(in.cond)});
    Flow apart;
    apart.stream = Beside(std::vector<bool>(out.stream.size(), true)).apart(out.stream);
    if (!out.cond.empty()) apart.cond = conditioning_.apart(out.cond);
    if (last_) apart.stream = {at::cat(apart.stream, 1)};
    return apart;
  }
  std::vector<std::string_view> order() const override { return unit_.order(); }

 private:
  const Unit& unit_;
  const std::vector<bool> inputs_;
  const Beside conditioning_;
  const bool last_;
};

[[noreturn]] void refuse_forward_mode() {
  throw UserError(Exit::usage, "net.passes", "this model has no forward mode",
                  "distil by consistency a model whose family has one");
}

/// Which of pack()'s inputs move: those of a sample without memory tell.
std::vector<bool> moving_inputs(const Denoiser& model) {
  if (model.moving_conditioning().empty()) refuse_forward_mode();
  const Sample blank = model.blank({model.in_channels(), 1, 8, 8});
  const Batch batch = model.pack({blank});
  std::vector<bool> moving;
  for (const Tensor& tangent : model.pack_directions(batch, {{blank.x, 1}})) moving.push_back(tangent.defined());
  return moving;
}

}  // namespace

std::vector<Tensor> Denoiser::pack_directions(const Batch&, const std::vector<Direction>&) const {
  refuse_forward_mode();
}

std::vector<std::unique_ptr<Unit>> forward_mode(const Denoiser& model) {
  const std::vector<bool> inputs = moving_inputs(model);
  std::vector<std::unique_ptr<Unit>> units;
  for (const auto& unit : model.units())
    units.push_back(std::make_unique<MovingUnit>(*unit, units.empty() ? inputs : std::vector<bool>(),
                                                 model.moving_conditioning(),
                                                 unit.get() == model.units().back().get()));
  return units;
}

Batch pack_moving(const Denoiser& model, const std::vector<Sample>& samples, const std::vector<Direction>& directions) {
  check_internal(samples.size() == directions.size(), "net.passes", "a direction for each sample");
  Batch batch = model.pack(samples);
  const std::vector<int> by_token = batch.token_inputs;
  const std::vector<Tensor> tangents = model.pack_directions(batch, directions);
  for (size_t i = 0; i < tangents.size(); ++i) {
    if (!tangents[i].defined()) continue;
    if (std::ranges::find(by_token, static_cast<int>(i)) != by_token.end())
      batch.token_inputs.push_back(static_cast<int>(batch.inputs.size()));
    batch.inputs.push_back(tangents[i]);
  }
  return batch;
}

namespace {

plan::UnitSpec frozen_spec(const Unit& unit) {
  plan::UnitSpec spec = unit.spec();
  for (plan::ParamSpec& param : spec.params) param.trainable = false;
  return spec;
}

class FrozenUnit final : public Unit {
 public:
  FrozenUnit(const Unit& unit, DType compute) : Unit(described(unit, compute), unit.prefix()), unit_(unit) {}

  Flow forward(Context& ctx, const Flow& in) const override { return unit_.forward(ctx, in); }
  std::vector<std::string_view> order() const override { return unit_.order(); }
  std::string_view output_site() const override { return unit_.output_site(); }

 private:
  static plan::UnitSpec described(const Unit& unit, DType compute) {
    plan::UnitSpec spec = frozen_spec(unit);
    for (plan::ParamSpec& param : spec.params)
      if (spec.narrow && compute == DType::bf16 && param.stored == DType::f32) param.stored = DType::bf16;
    return spec;
  }

  const Unit& unit_;
};

/// A frozen unit that is not run: it hands on what it gets.
class PassingUnit final : public Unit {
 public:
  explicit PassingUnit(const Unit& unit) : Unit(described(unit), unit.prefix()) {}

  Flow forward(Context&, const Flow& in) const override {
    Flow out;
    for (const Tensor& t : in.stream) out.stream.push_back(t.view_as(t));
    return out;
  }

 private:
  static plan::UnitSpec described(const Unit& unit) {
    plan::UnitSpec spec = frozen_spec(unit);
    spec.kind += ", passed";
    return spec;
  }
};

/// A block that carries on what blocks before it have returned, and adds its own where it is one of them.
class CarryingUnit final : public Unit {
 public:
  /// `carried`: how many features come with its input.
  CarryingUnit(const Unit& unit, size_t carried, bool adds, bool last, bool frozen)
      : Unit(described(unit, carried, adds, last, frozen), unit.prefix()),
        unit_(unit),
        carried_(carried),
        adds_(adds),
        last_(last) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const auto carried = in.stream.end() - static_cast<std::ptrdiff_t>(carried_);
    std::vector<Tensor> features(carried, in.stream.end());
    Flow out = unit_.forward(ctx, {{in.stream.begin(), carried}, in.cond});
    if (adds_) features.push_back(out.stream.at(0));
    if (last_) return {{features.size() == 1 ? features[0] : at::cat(features, 1)}, std::move(out.cond)};
    out.stream.insert(out.stream.end(), features.begin(), features.end());
    return out;
  }
  std::vector<std::string_view> order() const override { return unit_.order(); }

 private:
  /// Units of one kind have boundary tensors of the same shapes.
  static plan::UnitSpec described(const Unit& unit, size_t carried, bool adds, bool last, bool frozen) {
    plan::UnitSpec spec = frozen ? frozen_spec(unit) : unit.spec();
    spec.kind += " carrying " + std::to_string(carried) + (last ? ", the last" : adds ? " and its own" : "");
    return spec;
  }

  const Unit& unit_;
  const size_t carried_;
  const bool adds_, last_;
};

}  // namespace

namespace {

std::vector<std::unique_ptr<Unit>> carrying(const Denoiser& model, const std::set<int64_t>& blocks, bool frozen) {
  const auto& all = model.units();
  const auto count = std::ranges::count(all, std::string("block"), [](const auto& unit) { return unit->spec().kind; });
  if (blocks.empty() || *blocks.begin() < 0 || *blocks.rbegin() >= count)
    throw UserError(Exit::usage, "net.features",
                    blocks.empty()
                        ? "no block whose features are wanted"
                        : "block " + std::to_string(*blocks.begin() < 0 ? *blocks.begin() : *blocks.rbegin()) +
                              " of a model with blocks 0 to " + std::to_string(count - 1),
                    "name blocks that the teacher has");
  std::vector<std::unique_ptr<Unit>> units;
  size_t carried = 0;
  int64_t block = 0;
  for (const auto& unit : all) {
    const bool of_kind = unit->spec().kind == "block", adds = of_kind && blocks.contains(block);
    const bool last = adds && block == *blocks.rbegin();
    units.push_back(std::make_unique<CarryingUnit>(*unit, carried, adds, last, frozen));
    if (last) break;
    carried += adds, block += of_kind;
  }
  return units;
}

}  // namespace

std::vector<std::unique_ptr<Unit>> up_to_blocks(const Denoiser& model, const std::set<int64_t>& blocks) {
  return carrying(model, blocks, /*frozen=*/false);
}

std::vector<std::unique_ptr<Unit>> frozen_up_to_blocks(const Denoiser& model, const std::set<int64_t>& blocks) {
  std::vector<std::unique_ptr<Unit>> units = carrying(model, blocks, /*frozen=*/true);
  for (size_t u = units.size(); u < model.units().size(); ++u)
    units.push_back(std::make_unique<PassingUnit>(*model.units()[u]));
  return units;
}

std::vector<std::unique_ptr<Unit>> frozen(const Denoiser& model, DType compute) {
  std::vector<std::unique_ptr<Unit>> units;
  for (const auto& unit : model.units()) units.push_back(std::make_unique<FrozenUnit>(*unit, compute));
  return units;
}

}  // namespace tessera::net
