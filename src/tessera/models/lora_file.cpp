#include "tessera/models/lora_file.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/json.h"

namespace tessera::models {

using checkpoint::TensorInfo;
using models::LoraPart;

namespace {

std::vector<std::string> names_of(const Source& source) {
  std::vector<std::string> names;
  for (const auto& tensor : source.tensors) names.push_back(tensor.name);
  return names;
}

/// Where a module keeps a part; null for alpha, which is no tensor to it, and for factors.
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
    default:
      return nullptr;
  }
}

/// The module's name as the file has it: what alpha_pattern speaks of.
std::string stored_module(const TensorInfo& tensor, const models::LoraNames& names) {
  const std::string name = tensor.name.substr(names.prefix.size());
  return name.substr(0, std::min(name.find(".lora_"), name.rfind('.')));
}

/// The factors of one of the two matrices of LoHa or LoKr.
struct HalfParts {
  std::optional<LoraPart> whole;
  LoraPart a, b;
  std::optional<LoraPart> core;  ///< of Tucker's form, in which a and b are [r, ..] and the kernel's sizes are its
};
struct KindParts {
  const char* name;
  HalfParts first, second;
};
constexpr KindParts kLoHa = {"LoHa",
                             {{}, LoraPart::hada_w1_a, LoraPart::hada_w1_b, LoraPart::hada_t1},
                             {{}, LoraPart::hada_w2_a, LoraPart::hada_w2_b, LoraPart::hada_t2}};
constexpr KindParts kLoKr = {"LoKr",
                             {LoraPart::lokr_w1, LoraPart::lokr_w1_a, LoraPart::lokr_w1_b, {}},
                             {LoraPart::lokr_w2, LoraPart::lokr_w2_a, LoraPart::lokr_w2_b, LoraPart::lokr_t2}};

template <class Value>
const KindParts& kind_of(const std::map<LoraPart, Value>& factors) {
  return factors.rbegin()->first < LoraPart::lokr_w1 ? kLoHa : kLoKr;
}

template <class Value>
const Value* found(const std::map<LoraPart, Value>& factors, const std::optional<LoraPart>& part) {
  const auto it = part ? factors.find(*part) : factors.end();
  return it == factors.end() ? nullptr : &it->second;
}

constexpr double kMost = 1e12;  // elements of a weight, so that no size of a foreign file overflows

/// Of a matrix: its rows, the columns beside (a kernel's sizes among them), and its rank where it is a product.
struct HalfSizes {
  int64_t rows = 0, columns = 0, rank = 0;
};
using Factors = std::map<LoraPart, TensorInfo>;

/// Nothing where factors are missing, do not fit, or are too many.
std::optional<HalfSizes> sizes_of(const Factors& factors, const HalfParts& half) {
  const auto columns = [](const TensorInfo& t) { return t.shape[0] > 0 ? t.count() / t.shape[0] : 0; };
  const TensorInfo *whole = found(factors, half.whole), *a = found(factors, half.a), *b = found(factors, half.b),
                   *core = found(factors, half.core);
  for (const TensorInfo* t : {whole, a, b, core})
    if (t && (t->shape.size() < 2 || t->count() <= 0)) return std::nullopt;
  if (whole) return a || b || core ? std::nullopt : std::optional<HalfSizes>({whole->shape[0], columns(*whole), 0});
  if (!a || !b) return std::nullopt;
  if (!core) {
    if (columns(*a) != b->shape[0]) return std::nullopt;
    return HalfSizes{a->shape[0], columns(*b), b->shape[0]};
  }
  if (core->shape[0] != a->shape[0] || core->shape[1] != b->shape[0]) return std::nullopt;
  const int64_t kernel = core->count() / (core->shape[0] * core->shape[1]);
  if (static_cast<double>(columns(*b)) * static_cast<double>(kernel) > kMost) return std::nullopt;
  return HalfSizes{columns(*a), columns(*b) * kernel, b->shape[0]};
}

at::Tensor matrix_of(const std::map<LoraPart, at::Tensor>& factors, const HalfParts& half) {
  if (const at::Tensor* whole = found(factors, half.whole)) return whole->flatten(1);
  const at::Tensor a = factors.at(half.a).flatten(1), b = factors.at(half.b).flatten(1);
  const at::Tensor* core = found(factors, half.core);
  if (!core) return at::matmul(a, b);
  const int64_t p = core->size(0), r = core->size(1);
  const at::Tensor left = at::matmul(a.t(), core->reshape({p, -1})).view({a.size(1), r, -1});  // [out, r, kernel]
  return at::matmul(left.transpose(1, 2), b).transpose(1, 2).reshape({a.size(1), -1});         // [out, in, kernel]
}

[[noreturn]] void refuse(const Source& source, const std::string& problem, const std::string& hint) {
  throw UserError(Exit::input, "lora", source.path.string() + ": " + problem, hint);
}

}  // namespace

double LoraModule::scale() const { return rank == 0 ? 1 : checkpoint::lora_scale(alpha, rank, rslora); }

const char* LoraModule::kind() const { return factors.empty() ? "LoRA" : kind_of(factors).name; }

int64_t LoraModule::rows_stored() const {
  if (low_rank()) return up->shape[0];
  const KindParts& kind = kind_of(factors);
  const HalfSizes first = *sizes_of(factors, kind.first), second = *sizes_of(factors, kind.second);
  return &kind == &kLoKr ? first.rows * second.rows : first.rows;
}

int64_t LoraModule::elements() const {
  if (low_rank()) return up->shape[0] * (down->count() / down->shape[0]);
  const KindParts& kind = kind_of(factors);
  const HalfSizes first = *sizes_of(factors, kind.first), second = *sizes_of(factors, kind.second);
  return rows_stored() * first.columns * (&kind == &kLoKr ? second.columns : 1);
}

at::Tensor weight_change(const std::map<LoraPart, at::Tensor>& factors) {
  const KindParts& kind = kind_of(factors);
  const at::Tensor first = matrix_of(factors, kind.first), second = matrix_of(factors, kind.second);
  return &kind == &kLoKr ? at::kron(first, second) : first * second;
}

at::Tensor LoraFile::change(const LoraModule& module) const {
  if (module.low_rank()) {
    const at::Tensor a = values(*module.down).flatten(1), b = rows_of(module, module.up).flatten(1);
    return at::matmul(b, a).mul_(module.scale() * module.up_factor);
  }
  std::map<LoraPart, at::Tensor> factors;
  for (const auto& [part, tensor] : module.factors) factors.emplace(part, values(tensor));
  const at::Tensor all = weight_change(factors).mul_(module.scale());
  if (!module.rows) return all;
  const int64_t part = all.size(0) / module.rows->count;
  return all.narrow(0, module.rows->first * part, module.rows->size() * part);
}

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
    refuse(file.source_,
           "is not a LoRA: no tensor is called lora_A, lora_B, lora_down or lora_up, hada_w1_a or lokr_w1",
           "tessera inspect " + path.string() + " says what it is");
  file.names_ = *names;
  std::map<std::string, size_t> index;
  for (const TensorInfo& tensor : file.source_.tensors) {
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
    if (key->part >= models::kFirstFactor) {
      const auto [other, is_first] = file.modules_[it->second].factors.emplace(key->part, tensor);
      if (!is_first)
        refuse(file.source_, other->second.name + " and " + tensor.name + " are the same part of " + key->module, "");
      continue;
    }
    auto& place = *place_of(file.modules_[it->second], key->part);
    if (place) refuse(file.source_, place->name + " and " + tensor.name + " are the same part of " + key->module, "");
    place = tensor;
  }
  for (LoraModule& module : file.modules_) {
    file.check(module);
    if (module.low_rank()) module.rank = module.down->shape[0];
    file.find_axis(module);
  }
  file.divide();
  file.read_alphas();
  return file;
}

void LoraFile::check(LoraModule& module) const {
  if (module.down.has_value() != module.up.has_value())
    refuse(source_, "module " + module.name + " has " + (module.down ? "A but no B" : "B but no A"),
           "the file is not whole: download or save it again");
  for (const auto* part :
       {&module.down, &module.up, &module.up_bias, &module.magnitude, &module.diff, &module.diff_bias})
    if (*part && !is_floating((*part)->dtype))
      refuse(source_,
             (*part)->name + " is " + std::string(checkpoint::dtype_name((*part)->dtype)) + ", expected floats", "");
  if (!module.factors.empty()) return check_factors(module);
  if (!module.down) return;
  const auto &a = module.down->shape, &b = module.up->shape;
  if (a.size() < 2 || b.size() < 2 || a[0] != b[1] || a[0] == 0 ||
      static_cast<double>(b[0]) * static_cast<double>(module.down->count() / a[0]) > kMost)
    refuse(source_,
           module.name + ": A " + checkpoint::shape_text(a) + " and B " + checkpoint::shape_text(b) +
               " do not fit, expected [r, in] and [out, r]",
           "");
}

/// The rank is that of the second matrix where it is a product, as ComfyUI has it, else of the first.
void LoraFile::check_factors(LoraModule& module) const {
  const KindParts& kind = kind_of(module.factors);
  for (const auto& [part, tensor] : module.factors) {
    if (!is_floating(tensor.dtype))
      refuse(source_, tensor.name + " is " + std::string(checkpoint::dtype_name(tensor.dtype)) + ", expected floats",
             "");
    if (&kind == &kLoKr && part < LoraPart::lokr_w1)
      refuse(source_, module.name + " has factors of a LoHa and of a LoKr", "the file is not whole: download it again");
  }
  if (module.down || module.up_bias)
    refuse(source_, module.name + " has A and B beside factors of a " + kind.name, "the file is not whole");
  const auto first = sizes_of(module.factors, kind.first), second = sizes_of(module.factors, kind.second);
  std::string list;
  for (const auto& [part, tensor] : module.factors)
    list += (list.empty() ? "" : ", ") + tensor.name + " " + checkpoint::shape_text(tensor.shape);
  const auto size = [](const HalfSizes& half) {
    return static_cast<double>(half.rows) * static_cast<double>(half.columns);
  };
  if (!first || !second || size(*first) > kMost || size(*second) > kMost ||
      (&kind == &kLoKr && size(*first) * size(*second) > kMost) ||
      (&kind == &kLoHa && (first->rows != second->rows || first->columns != second->columns)))
    refuse(source_, module.name + ": these make no " + kind.name + ": " + list,
           "the file is not whole: download or save it again");
  module.rank = second->rank > 0 ? second->rank : first->rank;
}

/// A magnitude has a number for each row, but for dora_scale of another first size: numbers for the columns.
void LoraFile::find_axis(LoraModule& module) const {
  if (!module.magnitude) return;
  const TensorInfo& m = *module.magnitude;
  if (!module.changes())
    refuse(source_, m.name + " is a magnitude without A and B", "the file is not whole: download or save it again");
  const int64_t out = module.rows_stored(), in = module.low_rank() ? module.down->shape[1] : module.elements() / out;
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
    if (!module.changes()) continue;
    const auto rank = static_cast<double>(module.rank);
    module.rslora = settings.rslora;
    module.base_lengths = settings.base_lengths && module.magnitude && !module.input_axis;
    std::optional<double> alpha;
    if (const auto tensor = alphas_.find(module.name); tensor != alphas_.end()) {
      alpha = values(tensor->second).item<double>();
      if (!module.factors.empty() && module.rank == 0 && !std::isfinite(*alpha)) alpha = 1;  // it does not count there
    } else if (module.low_rank() && settings.folded_alpha && *settings.folded_alpha != 0) {
      alpha = settings.folded_alpha;
      module.up_factor = rank / *alpha;
    } else if (module.low_rank() || settings.of_factors) {  // what kohya's header says of factors is not read
      alpha = settings.alpha_of(module.stored);
    }
    has_alpha_ = has_alpha_ || alpha.has_value();
    module.alpha = alpha.value_or(std::max(rank, 1.0));
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

}  // namespace tessera::models
