#include "tessera/models/merge_lora.h"

#include "tessera/base/check.h"
#include "tessera/checkpoint/dtype.h"

namespace tessera::models {

namespace {

constexpr std::string_view kWeight = ".weight", kBias = ".bias";

std::string module_of(const std::string& tensor, std::string_view ending) {
  return tensor.ends_with(ending) ? tensor.substr(0, tensor.size() - ending.size()) : "";
}

/// Lengths of the rows [out, 1, ...], of a convolution's filters; no row is divided by zero.
at::Tensor lengths(const at::Tensor& w) {
  std::vector<int64_t> shape(static_cast<size_t>(w.dim()), 1);
  shape[0] = w.size(0);
  return w.flatten(1).norm(2, 1).clamp_min(1e-30).view(shape);
}

at::Tensor merge_weight(const LoraFile& file, const LoraModule& module, double strength, const at::Tensor& w) {
  at::Tensor result = w;
  if (module.changes()) {
    const at::Tensor delta = file.change(module).view_as(w);
    if (module.magnitude) {
      at::Tensor adapted = w + delta;
      const at::Tensor m = file.rows_of(module, module.magnitude).flatten();
      const at::Tensor by = module.input_axis     ? lengths(adapted.transpose(0, 1)).transpose(0, 1)
                            : module.base_lengths ? lengths(w)
                                                  : lengths(adapted);
      result = w + strength * (adapted.mul_(m.view_as(by) / by) - w);
    } else {
      result = w + strength * delta;
    }
  }
  if (module.diff) result = result + strength * file.rows_of(module, module.diff).reshape(w.sizes());
  return result;
}

at::Tensor merge_bias(const LoraFile& file, const LoraModule& module, double strength, const at::Tensor& bias) {
  at::Tensor result = bias;
  if (module.up_bias)
    result = result +
             strength * module.scale() * module.up_factor * file.rows_of(module, module.up_bias).reshape(bias.sizes());
  if (module.diff_bias) result = result + strength * file.rows_of(module, module.diff_bias).reshape(bias.sizes());
  return result;
}

}  // namespace

at::Tensor row_shrink(const LoraFile& file, const LoraModule& module, const at::Tensor& weight) {
  return (lengths(weight) / lengths(weight + file.change(module).view_as(weight))).flatten();
}

LoraMerge::LoraMerge(const std::vector<std::filesystem::path>& files, std::vector<double> strengths, const Base& base) {
  if (strengths.empty()) strengths = {1};
  if (strengths.size() == 1) strengths.resize(files.size(), strengths[0]);
  if (strengths.size() != files.size())
    throw UserError(Exit::usage, "merge",
                    std::to_string(strengths.size()) + " scales for " + std::to_string(files.size()) + " LoRAs",
                    "give one for all or one for each");
  for (size_t i = 0; i < files.size(); ++i) {
    entries_.push_back({LoraFile::open(files[i], base.form), strengths[i]});
    const LoraFile& file = entries_.back().file;
    file.check_usable();
    check_places(file, base);
    for (const LoraModule& module : file.modules()) {
      if (module.changes() || module.diff) touched_.insert(module.name + std::string(kWeight));
      if (module.up_bias || module.diff_bias) touched_.insert(module.name + std::string(kBias));
    }
  }
}

bool LoraMerge::touches(const std::string& official) const { return touched_.count(official) > 0; }

void LoraMerge::check_places(const LoraFile& lora, const Base& base) {
  const std::string file = lora.path().string();
  const auto does_not_fit = [&](const LoraModule& module, const std::string& problem,
                                const models::Shapes::mapped_type& w) {
    throw UserError(
        Exit::input, "merge",
        file + ": " + module.name + ": " + problem + " the weight " + checkpoint::shape_text(w) + " of " + base.name,
        "it belongs to a model of another size");
  };
  for (const LoraModule& module : lora.modules()) {
    const bool wants_bias = module.up_bias || module.diff_bias;
    for (const auto ending : {kWeight, kBias}) {
      const std::string name = module.name + std::string(ending);
      if (base.official.count(name) > 0 || (ending == kBias && !wants_bias)) continue;
      throw UserError(Exit::input, "merge", file + ": " + base.name + " has no " + name,
                      "it belongs to another model: tessera inspect says what both are");
    }
    const auto& w = base.official.at(module.name + std::string(kWeight));
    const int64_t all = checkpoint::element_count(w).value_or(0), out = w.empty() ? 0 : w[0];
    const auto own = [&](int64_t stored) {  // of a number for all rows that the file has as one
      return module.rows ? stored / module.rows->count * module.rows->size() : stored;
    };
    if (module.diff && own(module.diff->count()) != all)
      does_not_fit(module, "the difference " + checkpoint::shape_text(module.diff->shape) + " does not fit", w);
    for (const auto* bias : {&module.up_bias, &module.diff_bias})
      if (*bias && own((*bias)->count()) != out)
        does_not_fit(module, "the bias " + checkpoint::shape_text((*bias)->shape) + " does not fit", w);
    if (!module.changes()) continue;
    const int64_t rows = module.rows_stored();
    if (w.size() >= 2 && out == own(rows) && own(module.elements()) == all) continue;
    const std::string of = module.low_rank()
                               ? "A " + checkpoint::shape_text(module.down->shape) + " and B " +
                                     checkpoint::shape_text(module.up->shape) + " do not fit"
                               : std::string("the ") + module.kind() + "'s factors make " + std::to_string(rows) +
                                     " rows of " + std::to_string(module.elements() / rows) + ", and do not fit";
    does_not_fit(module, of, w);
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

}  // namespace tessera::models
