#include "tessera/weights/extra_tensors.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/fp8_scale.h"
#include "tessera/checkpoint/json.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::weights {

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

}  // namespace tessera::weights
