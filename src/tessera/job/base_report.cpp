#include "tessera/job/base_report.h"

#include <cmath>
#include <cstdio>

#include "tessera/base/units.h"

namespace tessera::job {

namespace {

/// Calls each(param) for those that are stored in fewer bits.
template <typename Each>
void each_stored(const plan::ModelSpec& model, const Each& each) {
  for (const plan::UnitSpec& unit : model.units)
    for (const plan::ParamSpec& param : unit.params)
      if (!param.trainable && param.stored != DType::f32) each(param);
}

double share(const engine::Rounding& r) { return r.squares > 0 ? std::sqrt(r.difference / r.squares) : 0; }

std::string in_percent(double part) {
  char text[24];
  std::snprintf(text, sizeof text, "%.2g %%", 100 * part);
  return text;
}

}  // namespace

std::optional<BaseFacts> base_facts(const plan::ModelSpec& model) {
  BaseFacts facts;
  each_stored(model, [&](const plan::ParamSpec& param) {
    facts.form = param.stored;
    ++facts.linears;
    facts.bytes += plan::stored_bytes(param.stored, param.numel());
    facts.fp32_bytes += 4 * param.numel();
  });
  if (facts.linears == 0) return std::nullopt;
  return facts;
}

std::string describe(const BaseFacts& facts) {
  return std::to_string(facts.linears) + " frozen linears in " + std::string(name(facts.form)) + ": " +
         format_bytes(facts.bytes) + ", " + format_bytes(facts.fp32_bytes) + " in fp32";
}

BaseError base_error(const plan::ModelSpec& model, const engine::Roundings& mine, comm::Comm& comm) {
  std::vector<double> sums;  // two for each parameter, in the order of the model: the same on every rank
  each_stored(model, [&](const plan::ParamSpec& param) {
    const auto found = mine.find(param.name);
    const engine::Rounding here = found == mine.end() ? engine::Rounding() : found->second;
    sums.insert(sums.end(), {here.squares, here.difference});
  });
  const auto ranks = comm.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles(sums);
  BaseError error;
  engine::Rounding whole;
  size_t at = 0;
  each_stored(model, [&](const plan::ParamSpec& param) {
    engine::Rounding one;
    for (const auto& rank : ranks) one.squares += rank[at], one.difference += rank[at + 1];
    at += 2;
    whole.squares += one.squares, whole.difference += one.difference;
    if (share(one) <= error.worst) return;
    error.worst = share(one);
    error.worst_linear = param.name.substr(0, param.name.rfind('.'));
  });
  error.all = share(whole);
  return error;
}

std::string describe(const BaseError& error) {
  std::string text = "it is off by " + in_percent(error.all) + " of its weights";
  if (error.worst > 0) text += ", at most by " + in_percent(error.worst) + ", in " + error.worst_linear;
  return text;
}

}  // namespace tessera::job
