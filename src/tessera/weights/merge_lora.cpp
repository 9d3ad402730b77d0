#include "tessera/weights/merge_lora.h"

#include "tessera/base/check.h"
#include "tessera/checkpoint/dtype.h"

namespace tessera::weights {

namespace {

constexpr std::string_view kWeight = ".weight", kBias = ".bias";

std::string module_of(const std::string& tensor, std::string_view ending) {
  return tensor.ends_with(ending) ? tensor.substr(0, tensor.size() - ending.size()) : "";
}

at::Tensor merge_weight(const LoraFile& file, const LoraModule& module, double strength, const at::Tensor& w) {
  at::Tensor result = w;
  if (module.low_rank()) {
    const at::Tensor a = file.values(*module.down).flatten(1), b = file.values(*module.up).flatten(1);
    const at::Tensor delta = at::matmul(b, a).mul_(module.scale() * module.up_factor).view_as(w);
    if (module.magnitude) {
      const at::Tensor adapted = (w + delta).flatten(1);  // [out, in]
      const at::Tensor gain = file.values(*module.magnitude).flatten() / adapted.norm(2, 1);
      result = w + strength * ((adapted * gain.unsqueeze(1)).view_as(w) - w);
    } else {
      result = w + strength * delta;
    }
  }
  if (module.diff) result = result + strength * file.values(*module.diff).view_as(w);
  return result;
}

at::Tensor merge_bias(const LoraFile& file, const LoraModule& module, double strength, const at::Tensor& bias) {
  at::Tensor result = bias;
  if (module.up_bias)
    result = result + strength * module.scale() * module.up_factor * file.values(*module.up_bias).view_as(bias);
  if (module.diff_bias) result = result + strength * file.values(*module.diff_bias).view_as(bias);
  return result;
}

}  // namespace

LoraMerge::LoraMerge(const std::vector<std::filesystem::path>& files, std::vector<double> strengths) {
  if (strengths.empty()) strengths = {1};
  if (strengths.size() == 1) strengths.resize(files.size(), strengths[0]);
  if (strengths.size() != files.size())
    throw UserError(Exit::usage, "merge",
                    std::to_string(strengths.size()) + " scales for " + std::to_string(files.size()) + " LoRAs",
                    "give one for all or one for each");
  for (size_t i = 0; i < files.size(); ++i) {
    entries_.push_back({LoraFile::open(files[i]), strengths[i]});
    for (const LoraModule& module : entries_.back().file.modules()) {
      if (module.low_rank() || module.diff) touched_.insert(module.name + std::string(kWeight));
      if (module.up_bias || module.diff_bias) touched_.insert(module.name + std::string(kBias));
    }
  }
}

bool LoraMerge::touches(const std::string& official) const { return touched_.count(official) > 0; }

void LoraMerge::check_places(const models::Shapes& official, const std::string& base) const {
  for (const Entry& entry : entries_) {
    const std::string file = entry.file.path().string();
    for (const LoraModule& module : entry.file.modules()) {
      const bool wants_bias = module.up_bias || module.diff_bias;
      for (const auto ending : {kWeight, kBias}) {
        const std::string name = module.name + std::string(ending);
        if (official.count(name) > 0 || (ending == kBias && !wants_bias)) continue;
        throw UserError(Exit::input, "merge", file + ": " + base + " has no " + name,
                        "it belongs to another model: tessera inspect says what both are");
      }
      if (!module.low_rank()) continue;
      const auto& w = official.at(module.name + std::string(kWeight));
      int64_t in = 1, a_in = 1;
      for (size_t d = 1; d < w.size(); ++d) in *= w[d];
      for (size_t d = 1; d < module.down->shape.size(); ++d) a_in *= module.down->shape[d];
      if (w[0] == module.up->shape[0] && in == a_in) continue;
      throw UserError(Exit::input, "merge",
                      file + ": " + module.name + ": A " + checkpoint::shape_text(module.down->shape) + " and B " +
                          checkpoint::shape_text(module.up->shape) + " do not fit the weight " +
                          checkpoint::shape_text(w) + " of " + base,
                      "it belongs to a model of another size");
    }
  }
}

at::Tensor LoraMerge::apply(const std::string& official, const at::Tensor& values) const {
  at::Tensor result = values;
  const std::string of_weight = module_of(official, kWeight), of_bias = module_of(official, kBias);
  for (const Entry& entry : entries_) {
    if (const LoraModule* module = entry.file.find(of_weight))
      result = merge_weight(entry.file, *module, entry.strength, result);
    if (const LoraModule* module = entry.file.find(of_bias))
      result = merge_bias(entry.file, *module, entry.strength, result);
  }
  return result;
}

}  // namespace tessera::weights
