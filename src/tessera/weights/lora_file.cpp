#include "tessera/weights/lora_file.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/json.h"

namespace tessera::weights {

using checkpoint::TensorInfo;
using models::LoraPart;

namespace {

std::vector<std::string> names_of(const Source& source) {
  std::vector<std::string> names;
  for (const auto& tensor : source.tensors) names.push_back(tensor.name);
  return names;
}

/// Where a module keeps a part; null for alpha, which is no tensor to it.
std::optional<TensorInfo>* place_of(LoraModule& module, LoraPart part) {
  switch (part) {
    case LoraPart::down:
      return &module.down;
    case LoraPart::up:
      return &module.up;
    case LoraPart::up_bias:
      return &module.up_bias;
    case LoraPart::magnitude:
      return &module.magnitude;
    case LoraPart::diff:
      return &module.diff;
    case LoraPart::diff_bias:
      return &module.diff_bias;
    case LoraPart::alpha:
      break;
  }
  return nullptr;
}

/// The module's name as the file has it: what alpha_pattern speaks of.
std::string stored_module(const TensorInfo& tensor, const models::LoraNames& names) {
  const std::string name = tensor.name.substr(names.prefix.size());
  return name.substr(0, std::min(name.find(".lora_"), name.rfind('.')));
}

[[noreturn]] void refuse(const Source& source, const std::string& problem, const std::string& hint) {
  throw UserError(Exit::input, "lora", source.path.string() + ": " + problem, hint);
}

}  // namespace

double LoraModule::scale() const { return rank == 0 ? 1 : checkpoint::lora_scale(alpha, rank, rslora); }

bool is_lora(const Source& source) {
  return std::any_of(source.tensors.begin(), source.tensors.end(),
                     [](const TensorInfo& tensor) { return models::is_adapter_tensor(tensor.name); });
}

LoraFile LoraFile::open(const std::filesystem::path& path, const models::WeightForm* base) {
  return of(open_source(path), base);
}

LoraFile LoraFile::of(Source source, const models::WeightForm* base) {
  LoraFile file;
  file.source_ = std::move(source);
  const std::filesystem::path& path = file.source_.path;
  const auto names = models::detect_lora_names(names_of(file.source_), base);
  if (!names)
    refuse(file.source_, "is not a LoRA: no tensor is called lora_A, lora_B, lora_down or lora_up",
           "tessera inspect " + path.string() + " says what it is");
  file.names_ = *names;
  std::map<std::string, size_t> index;
  for (const TensorInfo& tensor : file.source_.tensors) {
    if (const auto kind = models::foreign_adapter_kind(tensor.name); !kind.empty())
      refuse(file.source_, "is a " + std::string(kind) + " (" + checkpoint::shown(tensor.name) + "), no LoRA",
             "merge it into its base with the program that made it");
    const auto key = file.names_.parse(tensor.name);
    if (!key)
      refuse(file.source_,
             checkpoint::shown(tensor.name) + " is no part of a LoRA with " + file.naming() +
                 " names whose module is known",
             "remove it from the file, or merge with the program that made it");
    if (key->part == LoraPart::alpha) {
      check_input(tensor.count() == 1 && is_floating(tensor.dtype), "lora",
                  path.string() + ": " + tensor.name + ": expected one number");
      file.alphas_[key->module] = tensor;
      continue;
    }
    const auto [it, is_new] = index.emplace(key->module, file.modules_.size());
    if (is_new) {
      file.modules_.emplace_back();
      file.modules_.back().name = key->module;
      file.modules_.back().stored = stored_module(tensor, file.names_);
    }
    auto& place = *place_of(file.modules_[it->second], key->part);
    if (place) refuse(file.source_, place->name + " and " + tensor.name + " are the same part of " + key->module, "");
    place = tensor;
  }
  for (LoraModule& module : file.modules_) {
    file.check(module);
    module.rank = module.low_rank() ? module.down->shape[0] : 0;
    file.find_axis(module);
  }
  file.divide();
  file.read_alphas();
  return file;
}

void LoraFile::check(const LoraModule& module) const {
  if (module.down.has_value() != module.up.has_value())
    refuse(source_, "module " + module.name + " has " + (module.down ? "A but no B" : "B but no A"),
           "the file is not whole: download or save it again");
  for (const auto* part :
       {&module.down, &module.up, &module.up_bias, &module.magnitude, &module.diff, &module.diff_bias})
    if (*part && !is_floating((*part)->dtype))
      refuse(source_,
             (*part)->name + " is " + std::string(checkpoint::dtype_name((*part)->dtype)) + ", expected floats", "");
  if (!module.down) return;
  const auto &a = module.down->shape, &b = module.up->shape;
  if (a.size() < 2 || b.size() < 2 || a[0] != b[1] || a[0] == 0)
    refuse(source_,
           module.name + ": A " + checkpoint::shape_text(a) + " and B " + checkpoint::shape_text(b) +
               " do not fit, expected [r, in] and [out, r]",
           "");
}

/// A magnitude has a number for each row, but for dora_scale of another first size: numbers for the columns.
void LoraFile::find_axis(LoraModule& module) const {
  if (!module.magnitude) return;
  const TensorInfo& m = *module.magnitude;
  if (!module.low_rank())
    refuse(source_, m.name + " is a magnitude without A and B", "the file is not whole: download or save it again");
  const int64_t out = module.up->shape[0], in = module.down->shape[1];
  if (m.count() == out && (!m.name.ends_with(".dora_scale") || m.shape.size() < 2 || m.shape[0] == out)) return;
  if (m.count() != in || !m.name.ends_with(".dora_scale"))
    refuse(source_,
           m.name + " is " + checkpoint::shape_text(m.shape) + ", expected " + std::to_string(out) +
               " numbers, one for each row",
           "the file is not whole: download or save it again");
  module.input_axis = true;
}

/// In place of a module that is several of ours, these.
void LoraFile::divide() {
  std::vector<LoraModule> all;
  for (LoraModule& module : modules_) {
    const auto pieces = models::lora_pieces(form(), module.name);
    for (const models::LoraPiece& piece : pieces) {
      if (module.input_axis)
        refuse(source_,
               module.name + " is several matrices here, and a magnitude for each input is one of all their rows",
               "merge it with the program that made it");
      LoraModule& own = all.emplace_back(module);
      own.name = piece.module, own.rows = piece.rows;
      if (const auto alpha = alphas_.find(module.name); alpha != alphas_.end())
        alphas_.emplace(own.name, checkpoint::TensorInfo(alpha->second));
    }
    if (pieces.empty()) all.push_back(std::move(module));
  }
  modules_ = std::move(all);
}

void LoraFile::check_usable() const {
  if (!settings_.not_plain.empty())
    refuse(source_, "is " + settings_.not_plain,
           "merge it with peft, or save it there as a plain LoRA (save_pretrained with "
           "path_initial_model_for_weight_conversion)");
  if (!names_.rivals.empty())
    refuse(source_,
           "its modules, such as " + modules_.front().stored + ", are those of several models (" + names_.rivals +
               "), and mean other weights in each",
           "name the base: tessera convert BASE OUT --merge LORA, or --base BASE beside --to");
}

void LoraFile::read_alphas() {
  const bool alone = std::filesystem::is_directory(source_.path);
  settings_ = checkpoint::read_lora_settings(source_.metadata, alone ? source_.path : source_.path.parent_path(),
                                             source_.path.string());
  const checkpoint::LoraSettings& settings = settings_;
  for (LoraModule& module : modules_) {
    if (!module.low_rank()) continue;
    const auto rank = static_cast<double>(module.rank);
    module.rslora = settings.rslora;
    module.base_lengths = settings.base_lengths && module.magnitude && !module.input_axis;
    std::optional<double> alpha;
    if (const auto tensor = alphas_.find(module.name); tensor != alphas_.end()) {
      alpha = values(tensor->second).item<double>();
    } else if (settings.folded_alpha && *settings.folded_alpha != 0) {
      alpha = settings.folded_alpha;
      module.up_factor = rank / *alpha;
    } else {
      alpha = settings.alpha_of(module.stored);
    }
    has_alpha_ = has_alpha_ || alpha.has_value();
    module.alpha = alpha.value_or(rank);
    check_input(std::isfinite(module.alpha), "lora",
                source_.path.string() + ": alpha of " + module.name + " is no number");
  }
}

const LoraModule* LoraFile::find(const std::string& module) const {
  for (const LoraModule& m : modules_)
    if (m.name == module) return &m;
  return nullptr;
}

at::Tensor LoraFile::values(const TensorInfo& tensor) const {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
  source_.read(tensor, bytes.data());
  at::Tensor result = at::empty(tensor.shape, at::kFloat);
  checkpoint::to_f32(tensor.dtype, bytes.data(), tensor.count(), result.mutable_data_ptr<float>());
  return result;
}

at::Tensor LoraFile::rows_of(const LoraModule& module, const std::optional<TensorInfo>& tensor) const {
  at::Tensor all = values(*tensor);
  if (!module.rows) return all;
  if (tensor->name.find("magnitude") != std::string::npos || all.size(0) == 1) all = all.flatten();
  const int64_t part = all.size(0) / module.rows->count;
  return all.narrow(0, module.rows->first * part, module.rows->size() * part);
}

}  // namespace tessera::weights
