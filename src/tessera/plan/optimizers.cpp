#include "tessera/plan/optimizers.h"

#include <algorithm>
#include <array>

#include "tessera/base/names.h"

namespace tessera::plan {

namespace {

// In the order of the enumeration.
constexpr OptimizerRow kOptimizers[] = {
    {.optimizer = Optimizer::adamw,
     .name = "adamw",
     .first = true,
     .second = true,
     .what = "Adam with decoupled decay"},
    {.optimizer = Optimizer::lion, .name = "lion", .first = true, .what = "the sign of a momentum; one moment"},
    {.optimizer = Optimizer::adafactor,
     .name = "adafactor",
     .first_if_asked = true,
     .second = true,
     .factoring = Factoring::last_two,
     .size = true,
     .rounds = 2,
     .what = "second moments of rows and columns; a first moment with train.factored_beta1"},
    {.optimizer = Optimizer::came,
     .name = "came",
     .first = true,
     .second = true,
     .residual = true,
     .factoring = Factoring::matrices,
     .rounds = 3,
     .what = "Adafactor with momentum, guided by confidence"},
    {.optimizer = Optimizer::prodigy,
     .name = "prodigy",
     .first = true,
     .second = true,
     .distance = true,
     .what = "Adam with a step size that it finds itself; train.lr = 1"},
    {.optimizer = Optimizer::muon,
     .name = "muon",
     .first = true,
     .second = true,
     .whole = true,
     .what = "orthogonal steps of whole matrices; AdamW for all else"},
};

constexpr auto kOptimizerNames = [] {
  std::array<std::string_view, std::size(kOptimizers)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kOptimizers[i].name;
  return names;
}();

/// Adds a moment as one state, or as quantised codes with their scales.
void add_moment(std::vector<StateSpec>& states, const std::string& kind, Moments moments, int64_t numel) {
  if (moments == Moments::int8 && numel >= kLeastQuantised) {
    states.push_back({kind, DType::u8, 1});
    states.push_back({kind + std::string(kScaleSuffix), DType::f32, kFlatAlign});
  } else {
    states.push_back({kind, moments == Moments::bf16 ? DType::bf16 : DType::f32, 1});
  }
}

void add_factors(std::vector<StateSpec>& states, const std::string& kind, const Factors& factors) {
  states.push_back({kind + "_row", DType::f32, 1, factors.all_rows()});
  states.push_back({kind + "_col", DType::f32, 1, factors.all_columns()});
}

}  // namespace

Factors factors_of(Factoring factoring, const ParamSpec& param) {
  const std::vector<int64_t>& shape = param.shape;
  if (factoring == Factoring::none || shape.size() < 2) return {};
  if (factoring == Factoring::last_two) {
    const int64_t rows = shape[shape.size() - 2], columns = shape.back();
    return {param.numel() / (rows * columns), rows, columns};
  }
  const bool matrix = std::all_of(shape.begin() + 2, shape.end(), [](int64_t n) { return n == 1; });
  return matrix ? Factors{1, shape[0], shape[1]} : Factors{};
}

std::span<const OptimizerRow> optimizers() { return kOptimizers; }
const OptimizerRow& row(Optimizer optimizer) { return kOptimizers[static_cast<size_t>(optimizer)]; }
std::string_view name(Optimizer optimizer) { return row(optimizer).name; }
bool has_first_moment(const StateFormat& format) {
  const OptimizerRow& optimizer = row(format.optimizer);
  return optimizer.first || (optimizer.first_if_asked && format.first_moment);
}
Optimizer optimizer_of(std::string_view text, std::string_view where) {
  return named<Optimizer>(kOptimizerNames, text, where);
}

StatesOf states_of(StateFormat format, Factoring factoring) {
  return [format, factoring](const ParamSpec& param) {
    const OptimizerRow& optimizer = row(format.optimizer);
    const Factors factors = factors_of(factoring, param);
    std::vector<StateSpec> states;
    if (format.masters == Masters::split) states.push_back({std::string(kMasterLow), DType::i16, 1});
    if (has_first_moment(format)) add_moment(states, "exp_avg", format.moments, param.numel());
    const bool second = optimizer.second && !(optimizer.whole && param.whole);
    if (second && factors.any())
      add_factors(states, "exp_avg_sq", factors);
    else if (second)
      add_moment(states, "exp_avg_sq", optimizer.factoring == Factoring::none ? format.moments : Moments::fp32,
                 param.numel());
    if (optimizer.residual && factors.any()) add_factors(states, "exp_avg_res", factors);
    if (optimizer.distance) states.insert(states.end(), {{"s", DType::f32, 1}, {"p0", DType::f32, 1}});
    if (format.ema) states.push_back({std::string(kAverage), DType::f32, 1});
    return states;
  };
}

StatesOf states_of(StateFormat format) { return states_of(format, row(format.optimizer).factoring); }

// Round 0: sums over rows and columns, and the parameter's squares where they are needed; round 1: one sum over the tensor; round 2: rows and columns again.
int64_t sums(Optimizer optimizer, Factoring factoring, const ParamSpec& param, int round) {
  if (!param.trainable || row(optimizer).rounds <= round) return 0;
  if (round == 1) return 1;
  return factors_of(factoring, param).sums() + (round == 0 && row(optimizer).size ? 1 : 0);
}

double update_bytes(const StateFormat& format, DType grad) {
  const OptimizerRow& optimizer = row(format.optimizer);
  const auto gradient = static_cast<double>(size_of(grad));
  double bytes = gradient + 2 * bytes_per_parameter(format);
  const double first = format.moments == Moments::fp32 ? 4 : format.moments == Moments::bf16 ? 2 : 1;
  constexpr double kMaster = 4;
  if (optimizer.rounds > 0) bytes += 2 * gradient;  // by rows, and by columns
  if (optimizer.rounds > 0 && optimizer.size) bytes += format.masters == Masters::bf16 ? kMaster / 2 : kMaster;
  if (optimizer.rounds > 1) bytes += gradient;
  if (optimizer.rounds > 2) bytes += 2 * (gradient + first);
  if (optimizer.whole) bytes += 2 * static_cast<double>(size_of(format.matrices));
  return bytes;
}

std::vector<Axis> sum_axes(const Plan& plan, const Buffer& buffer) {
  std::vector<Axis> found;
  const auto add = [&](const std::vector<Axis>& axes) { found.insert(found.end(), axes.begin(), axes.end()); };
  if (buffer.shards > 1) add(plan.axes(buffer));
  if (buffer.partitions > 1) add(plan.outer_axes(buffer));
  if (!buffer.over_tp) found.push_back(Axis::tp);  // each of its ranks has other rows or columns
  std::vector<Axis> ordered;
  for (const Axis axis : kAllAxes)
    if (std::ranges::find(found, axis) != found.end()) ordered.push_back(axis);
  return ordered;
}

int64_t sums(const Plan& plan, const UnitSpec& unit, const Buffer& buffer, int round) {
  int64_t count = 0;
  const Optimizer optimizer = plan.states.optimizer;
  if (buffer.trainable)
    for (const int p : buffer.params) count += sums(optimizer, row(optimizer).factoring, unit.params[p], round);
  return count;
}

}  // namespace tessera::plan
