#include "tessera/models/named_weights.h"

#include <algorithm>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/models/common/adapted.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"

namespace tessera::models {

NamedWeights::NamedWeights(const std::string& path, const Units& units, models::ForeignName foreign,
                           const std::vector<std::string>& namings)
    : set_(checkpoint::open_weights(path)), foreign_(std::move(foreign)) {
  std::vector<std::string> official;
  for (const auto& unit : units)
    for (const auto& param : unit->spec().params)
      if (!models::is_adapter_parameter(param.name)) official.push_back(param.name);
  naming_ = models::detect_naming(official, foreign_, namings, set_.names(), path);
}

std::function<std::string(const std::string&)> NamedWeights::names() const {
  return [this](const std::string& name) {
    return models::is_adapter_parameter(name) ? "" : naming_.prefix + foreign_(name, naming_.naming);
  };
}

void NamedWeights::check(
    const Units& units, const std::function<std::string(const std::string&, const std::vector<int64_t>&)>& hint) const {
  const auto name = names();
  const models::WeightForm* form = models::identify(checkpoint::stored_shapes(set_)).form;
  for (const auto& unit : units)
    for (const auto& param : unit->spec().params) {
      if (name(param.name).empty()) continue;
      const auto& found = set_.at(name(param.name));
      if (found.shape == models::shape_under(form, param.name, naming_.naming, param.shape)) continue;
      throw UserError(Exit::input, "weights.load",
                      set_.path().string() + ": " + param.name + ": expected " + checkpoint::shape_text(param.shape) +
                          ", file has " + checkpoint::shape_text(found.shape),
                      hint(param.name, found.shape));
    }
}

void NamedWeights::check_unknown(const Units& units, const std::string& hint) const {
  std::set<std::string> known;
  const auto name = names();
  for (const auto& unit : units)
    for (const auto& param : unit->spec().params) known.insert(checkpoint::whole_name(name(param.name)));
  const models::Identity identity = models::identify(checkpoint::stored_shapes(set_));
  const ExtraTensors extra = extra_tensors(set_.names(), identity, [&](const std::string& stored) {
    return known.count(stored) > 0 || !stored.starts_with(naming_.prefix);
  });
  if (!extra.unknown.empty()) refuse_extra("weights.load", set_.path().string(), extra, identity, hint);
}

namespace {

/// How files that hold a whole pipeline begin the names of its other parts.
constexpr std::string_view kOtherParts[] = {"vae.",          "first_stage_model.", "text_encoders.",
                                            "text_encoder.", "cond_stage_model.",  "conditioner."};

bool of_another_part(std::string_view name) {
  return std::ranges::any_of(kOtherParts, [&](std::string_view part) { return name.starts_with(part); });
}

std::string_view without_prefix(std::string_view stored, const models::Identity& identity) {
  return stored.starts_with(identity.prefix) ? stored.substr(identity.prefix.size()) : stored;
}

}  // namespace

ExtraTensors extra_tensors(const std::vector<std::string>& stored, const models::Identity& identity,
                           const std::function<bool(const std::string& stored)>& is_parameter) {
  ExtraTensors extra;
  for (const std::string& name : stored) {
    if (of_another_part(name))
      extra.other_parts.push_back(name);
    else if (!is_parameter(name) && !checkpoint::is_fp8_scale(name) &&
             !models::is_official_only(identity, without_prefix(name, identity)))
      extra.unknown.push_back(name);
  }
  return extra;
}

void refuse_extra(const std::string& where, const std::string& path, const ExtraTensors& extra,
                  const models::Identity& identity, const std::string& hint) {
  const std::string& first = extra.unknown.front();
  const size_t more = extra.unknown.size() - 1;
  throw UserError(Exit::input, where,
                  path + ": " + checkpoint::shown(first) + (more > 0 ? " and " + std::to_string(more) + " more" : "") +
                      (more > 0 ? " are no parameters" : " is no parameter") + " of this model; the file looks like " +
                      identity.model + " with something more",
                  hint);
}

}  // namespace tessera::models
