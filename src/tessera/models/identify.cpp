#include "tessera/models/identify.h"

#include <algorithm>
#include <set>

#include "tessera/checkpoint/row_part.h"
#include "tessera/models/known.h"
#include "tessera/models/lora_names.h"

namespace tessera::models {

namespace {

std::string naming_of(const std::string& naming, const std::string& prefix) {
  if (naming != "official" || prefix.empty()) return naming;
  if (prefix == "pipe.dit.") return "diffsynth";
  return prefix.ends_with("diffusion_model.") ? "comfyui" : "official";
}

std::optional<Identity> lora_identity(const Shapes& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, shape] : tensors) names.push_back(name);
  const auto lora = detect_lora_names(names);
  if (!lora) return std::nullopt;
  Identity result;
  result.kind = ModelKind::lora;
  result.model = "lora";
  result.naming = lora->naming;
  result.prefix = lora->prefix;
  return result;
}

}  // namespace

Identity identify(const Shapes& tensors) {
  if (const auto lora = lora_identity(tensors)) return *lora;
  for (const WeightForm* form : weight_forms()) {
    const KeyMap ours;
    for (const auto& [naming, map] : {std::pair("official", &form->names.official),
                                      {"diffusers", &form->names.diffusers},
                                      {"fused", &form->names.fused},
                                      {"tessera", &ours}}) {
      if (naming == std::string_view("fused") && map->empty()) continue;
      for (const std::string& prefix : kOptionalPrefixes) {
        const bool found = std::all_of(form->marks.begin(), form->marks.end(), [&](const std::string& mark) {
          const std::string theirs = to_foreign(*map, mark);
          const auto tensor = tensors.find(prefix + checkpoint::whole_name(theirs));
          const bool first = form->mark_dims > 0 && &mark == &form->marks.front();
          return tensor != tensors.end() && (!first || tensor->second.size() == form->mark_dims);
        });
        if (!found) continue;
        Identity result{form->kind, form->model, form->variant, "", prefix, &form->names, form};
        result.naming = naming_of(naming, prefix);
        if (result.naming == "official" && form->names.ours_are_diffusers) result.naming = "diffusers";
        if (form->refine) form->refine(official_shapes(result, tensors), result);
        return result;
      }
    }
  }
  return {};
}

const Family& family_of(const Identity& identity) {
  for (const Family& family : families())
    for (const WeightForm& form : family.weights)
      if (&form == identity.form) return family;
  return families().front();
}

const WeightForm* form_of(const net::Denoiser& model) {
  std::set<std::string> params;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params) params.insert(param.name);
  for (const Family& family : families())
    for (const WeightForm& form : family.weights)
      if (std::ranges::all_of(form.marks, [&](const std::string& mark) { return params.contains(mark); })) return &form;
  return nullptr;
}

}  // namespace tessera::models
