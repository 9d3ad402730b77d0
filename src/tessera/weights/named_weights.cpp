#include "tessera/weights/named_weights.h"

#include <algorithm>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/fp8_scale.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/models/common/adapted.h"
#include "tessera/models/identify.h"

namespace tessera::weights {

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
  for (const auto& unit : units)
    for (const auto& param : unit->spec().params) {
      if (name(param.name).empty()) continue;
      const auto& found = set_.at(name(param.name));
      if (found.shape == param.shape) continue;
      throw UserError(Exit::input, "weights.load",
                      set_.path().string() + ": " + param.name + ": expected " + checkpoint::shape_text(param.shape) +
                          ", file has " + checkpoint::shape_text(found.shape),
                      hint(param.name, found.shape));
    }
}

namespace {

/// How files that hold a whole pipeline begin the names of its other parts.
constexpr std::string_view kOtherParts[] = {"vae.",          "first_stage_model.", "text_encoders.",
                                            "text_encoder.", "cond_stage_model.",  "conditioner."};

bool of_another_part(std::string_view name) {
  return std::ranges::any_of(kOtherParts, [&](std::string_view part) { return name.starts_with(part); });
}

}  // namespace

void NamedWeights::check_unknown(const Units& units, const std::string& hint) const {
  std::set<std::string> known;
  const auto name = names();
  for (const auto& unit : units)
    for (const auto& param : unit->spec().params) known.insert(checkpoint::whole_name(name(param.name)));
  const models::Identity identity = models::identify(checkpoint::stored_shapes(set_));
  for (const std::string& stored : set_.names()) {
    if (known.count(stored) || !stored.starts_with(naming_.prefix) || of_another_part(stored) ||
        checkpoint::is_fp8_scale(stored) ||
        models::is_official_only(identity, std::string_view(stored).substr(naming_.prefix.size())))
      continue;
    throw UserError(Exit::input, "weights.load",
                    set_.path().string() + ": " + stored + " is no parameter of this model; the file looks like " +
                        models::identify(checkpoint::stored_shapes(set_)).model,
                    hint);
  }
}

}  // namespace tessera::weights
