#include "tessera/train/mesh_checks.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/net/adapters.h"
#include "tessera/plan/token_shares.h"

namespace tessera::train {

namespace {

/// The product of some axes must divide a number of the model.
struct Divides {
  std::vector<Axis> axes;
  const char* what;  ///< "heads"
  int64_t (*of)(const net::Denoiser&);
  const char* why;
};

/// Greatest common divisor of the widths that tensor parallelism cuts; 1 for a model that says of none how.
int64_t cut_widths(const net::Denoiser& model) {
  int64_t divisor = 0;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params)
      if (param.split != plan::Split::none)
        divisor = std::gcd(divisor, param.shape[param.split == plan::Split::rows ? 0 : 1]);
  return std::max<int64_t>(divisor, 1);
}

const std::vector<Divides>& table() {
  static const std::vector<Divides> rules = {
      {{Axis::sp, Axis::tp},
       "heads",
       [](const net::Denoiser& m) { return m.heads(); },
       "each of these ranks takes as many heads; cp has no such bound"},
      {{Axis::tp},
       "features (their greatest common divisor)",
       cut_widths,
       "each of its ranks takes as many features of the linears that are cut"},
  };
  return rules;
}

/// "sp = 2 or sp = 4": the nearest divisors of `number` below and above `value`, for an axis whose rule also has `rest`
/// ranks on others.
std::string nearest_values(std::string_view axis, int64_t number, int64_t value, int64_t rest) {
  const auto fits = [&](int64_t v) { return number % (v * rest) == 0; };
  int64_t below = value, above = value;
  while (below > 0 && !fits(below)) --below;
  while (above <= number && !fits(above)) ++above;
  const auto text = [&](int64_t v) { return std::string(axis) + " = " + std::to_string(v); };
  if (below == 0) return "no value of " + std::string(axis) + " does";
  return above > number ? text(below) : text(below) + " or " + text(above);
}

void check(const Divides& rule, const Mesh& mesh, const net::Denoiser& model) {
  int64_t product = 1;
  std::string names;
  for (Axis axis : rule.axes) {
    product *= mesh[axis];
    if (mesh[axis] > 1)
      names += (names.empty() ? "" : " x ") + std::string(axis_name(axis)) + " = " + std::to_string(mesh[axis]);
  }
  const int64_t number = rule.of(model);
  if (number % product == 0) return;
  std::string hint;
  for (Axis axis : rule.axes)
    if (mesh[axis] > 1)
      hint += (hint.empty() ? "" : ", or ") + nearest_values(axis_name(axis), number, mesh[axis], product / mesh[axis]);
  throw UserError(Exit::usage, "mesh",
                  names + " does not divide the model's " + std::to_string(number) + " " + rule.what,
                  "use " + hint + ": " + rule.why);
}

/// DoRA divides by the lengths of the rows of W + s B A, and a rank of tp has a part of each row of what is cut by
/// columns.
void check_magnitudes(const Mesh& mesh, const net::Denoiser& model) {
  if (mesh[Axis::tp] == 1) return;
  for (const auto& unit : model.units()) {
    const auto& params = unit->spec().params;
    for (const plan::ParamSpec& param : params) {
      if (!param.name.ends_with(net::kLoraMagnitude)) continue;
      const std::string module = param.name.substr(0, param.name.size() - std::strlen(net::kLoraMagnitude));
      const auto weight = std::ranges::find(params, module + ".weight", &plan::ParamSpec::name);
      if (weight == params.end() || weight->split != plan::Split::columns) continue;
      throw UserError(
          Exit::usage, "mesh",
          "tp = " + std::to_string(mesh[Axis::tp]) + " cuts the rows of " + module +
              ", and DoRA (lora.dora) needs the length of each whole row",
          "use sp or cp in place of tp, or lora.targets without the linears that are cut so (of Wan: o, ffn.2)");
    }
  }
}

}  // namespace

void check_mesh(const Mesh& mesh, const net::Denoiser& model, const std::array<int64_t, 4>& latent) {
  for (const Divides& rule : table()) check(rule, mesh, model);
  check_magnitudes(mesh, model);
  if (const auto units = static_cast<int>(model.units().size()); mesh[Axis::pp] > units)
    throw UserError(Exit::usage, "mesh",
                    "pp = " + std::to_string(mesh[Axis::pp]) + " pipeline stages, and the model has " +
                        std::to_string(units) + " units; each stage needs one",
                    "use pp = " + std::to_string(units) + " or less");
  const int64_t ranks = plan::sequence_size(mesh), tokens = latent[0] > 0 ? model.token_count(latent) : ranks;
  if (tokens < ranks)
    throw UserError(Exit::usage, "mesh",
                    "cp x sp x tp = " + std::to_string(ranks) + " ranks share the tokens of a sample, and it has " +
                        std::to_string(tokens),
                    "use at most " + std::to_string(tokens) + " of them, or larger clips");
}

}  // namespace tessera::train
