#include "tessera/models/convert_lora.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/lora_settings.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/torch_zip.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/families/lora_namings.h"
#include "tessera/families/registry.h"
#include "tessera/models/convert_source.h"
#include "tessera/models/known.h"
#include "tessera/models/merge_lora.h"

namespace tessera::models {

using checkpoint::LoraDescription;
using checkpoint::TensorInfo;
using models::LoraPart;

namespace {

namespace fs = std::filesystem;

const families::LoraForm& naming_form(const std::string& naming) {
  if (const families::LoraForm* form = families::lora_form(naming)) return *form;
  std::string list;
  for (const std::string& known : families::kLoraNamings) list += std::string(list.empty() ? "" : ", ") + known;
  throw UserError(Exit::usage, "convert", "'" + naming + "' is no naming of LoRA files", "known are " + list);
}

bool power_of_two(double value) {
  int exponent = 0;
  return value > 0 && std::frexp(value, &exponent) == 0.5;
}

/// A module's alpha under a naming that may have no word for rsLoRA.
double alpha_for(const LoraModule& module, bool rslora) {
  if (!module.rslora || rslora) return module.alpha;
  return module.scale() * static_cast<double>(module.rank);
}

DType wanted_dtype(const std::string& dtype, DType stored) {
  if (dtype.empty()) return stored;
  return dtype == "fp32" ? DType::f32 : dtype == "bf16" ? DType::bf16 : DType::f16;
}

/// The dtype of a module's alpha: that of its matrices, as musubi has it, if that holds the number.
DType alpha_dtype(double alpha, DType matrices) {
  const at::Tensor exact = at::scalar_tensor(alpha, at::kFloat);
  if (matrices != DType::bf16 && matrices != DType::f16) return DType::f32;
  return at::equal(exact.to(scalar_type(matrices)).to(at::kFloat), exact) ? matrices : DType::f32;
}

class Planner {
 public:
  Planner(const LoraFile& lora, const std::string& naming, std::string dtype, const OpenBase& open_base)
      : lora_(lora), naming_(naming), dtype_(std::move(dtype)), facts_(naming_form(naming)), open_base_(open_base) {}

  LoraPlan run() {
    lora_.check_usable();
    check_naming(lora_.form(), naming_, "convert");
    for (const LoraModule& module : lora_.modules()) describe(module);
    if (naming_ == "diffsynth") choose_folded();
    for (const LoraModule& module : lora_.modules()) add(module);
    if (based_)
      log::info(naming_ + " names: DoRA's magnitudes are " +
                (facts_.divides_by_base ? "written times |W| / |W + dW|, as ComfyUI divides by |W|"
                                        : "those of |W + dW| again; they were for ComfyUI, which divides by |W|"));
    if (!description_.modules.empty()) {
      description_.network = families::of(models::family_with(lora_.form())).lora_network;
      plan_.metadata = checkpoint::lora_metadata(description_, naming_, folded_);
      plan_.metadata.merge(checkpoint::lora_origin(lora_.source().metadata));
      if (naming_ == "peft") plan_.config_json = checkpoint::lora_config_json(description_, "") + "\n";
    }
    return std::move(plan_);
  }

 private:
  void describe(const LoraModule& module) {
    if (module.rows)
      throw UserError(Exit::input, "convert",
                      lora_.path().string() + ": " + module.stored +
                          " is several matrices here, which other names have no pair for",
                      "merge it into its base: tessera convert BASE OUT --merge LORA");
    if (!module.changes()) return;
    if (!module.factors.empty()) check_factors(module);
    description_.modules.push_back({models::lora_module_name(module.name, naming_, lora_.form()), module.rank,
                                    alpha_for(module, facts_.settings)});
    description_.rslora = description_.rslora || (facts_.settings && module.rslora);
    description_.dora = description_.dora || module.magnitude.has_value();
    description_.base_lengths =
        description_.base_lengths || (facts_.divides_by_base && module.magnitude && !module.input_axis);
    description_.bias = description_.bias || module.up_bias.has_value();
  }

  void check_factors(const LoraModule& module) {
    description_.kind = module.kind();
    if (naming_ != "peft" && naming_ != "diffsynth") return;
    throw UserError(Exit::usage, "convert",
                    lora_.path().string() + " is a " + module.kind() + ": " +
                        (naming_ == "peft" ? "peft's settings of one are not written"
                                           : "DiffSynth loads pairs of lora_A and lora_B alone"),
                    "choose comfyui or kohya, or merge it into its base: tessera convert BASE OUT --merge FILE");
  }

  /// The alpha that is folded into B: the first one whose scale is not 1.
  void choose_folded() {
    for (const LoraModule& module : lora_.modules())
      if (!folded_ && module.low_rank() && foldable(module) && module.scale() != 1) folded_ = alpha_for(module, false);
  }
  bool foldable(const LoraModule& module) const {
    const DType dtype = wanted_dtype(dtype_, module.up->dtype);
    return power_of_two(module.scale()) && (dtype == DType::f32 || dtype == DType::bf16);
  }

  void add(const LoraModule& module) {
    add_part(module, LoraPart::diff, module.diff);
    add_part(module, LoraPart::diff_bias, module.diff_bias);
    for (const auto& [part, tensor] : module.factors) add_part(module, part, tensor);
    if (!module.factors.empty()) {
      add_magnitude(module);
      return add_alpha(module, alpha_for(module, false), module.factors.begin()->second.dtype);
    }
    if (!module.low_rank()) return;
    const double alpha = alpha_for(module, facts_.settings);
    const bool is_rank = alpha == static_cast<double>(module.rank);
    const bool folds = folded_ && foldable(module) && alpha == *folded_;
    add_part(module, LoraPart::down, module.down);
    add_part(module, LoraPart::up, module.up, module.up_factor * (folds ? module.scale() : 1));
    add_part(module, LoraPart::up_bias, module.up_bias, module.up_factor * (folds ? module.scale() : 1));
    add_magnitude(module);
    if (naming_ != "kohya" && (facts_.settings || folds || (is_rank && !folded_))) return;
    add_alpha(module, alpha, module.up->dtype);
  }

  void add_alpha(const LoraModule& module, double alpha, DType matrices) {
    const DType dtype = alpha_dtype(alpha, wanted_dtype(dtype_, matrices));
    plan_.tensors.push_back(
        {{models::alpha_name(module.name, naming_, lora_.form()), dtype, {}}, std::nullopt, 1, alpha});
  }

  void add_magnitude(const LoraModule& module) {
    if (!module.magnitude) return;
    if (module.input_axis && !facts_.divides_by_base)
      throw UserError(Exit::input, "convert",
                      lora_.path().string() + ": " + module.magnitude->name + " has a number for each input, " +
                          naming_ + " names have a place for one of each row alone",
                      "convert it to comfyui or kohya, or merge it: tessera convert BASE OUT --merge LORA");
    add_part(module, LoraPart::magnitude, module.magnitude);
    if (module.input_axis || module.base_lengths == facts_.divides_by_base) return;
    const at::Tensor shrink = row_shrink(lora_, module, open_base_().weight(module.name));
    based_ = true;
    plan_.tensors.back().info.dtype = wanted_dtype(dtype_, DType::f32);  // in 16 bits the ratio would be rounded away
    plan_.tensors.back().by_row = facts_.divides_by_base ? shrink : shrink.reciprocal();
  }

  void add_part(const LoraModule& module, LoraPart part, const std::optional<TensorInfo>& source, double factor = 1) {
    if (!source) return;
    const auto name = models::lora_tensor_name(module.name, part, naming_, lora_.form());
    if (!name)
      throw UserError(Exit::input, "convert",
                      lora_.path().string() + ": " + naming_ + " names have no place for " + source->name,
                      "choose another naming, or merge it into its base: tessera convert BASE OUT --merge LORA");
    TensorInfo info{*name, wanted_dtype(dtype_, source->dtype), source->shape};
    if (part == LoraPart::magnitude && !module.input_axis && (module.low_rank() || source->shape.size() <= 2))
      info.shape = magnitude_shape(module, source->count());
    plan_.tensors.push_back({std::move(info), source, factor, 0, {}});
  }
  /// Of a linear [out] in peft's files, [out, 1] in ComfyUI's and kohya's; of a convolution [1, out, 1, 1] and
  /// [out, 1, 1, 1].
  checkpoint::Shape magnitude_shape(const LoraModule& module, int64_t count) const {
    const size_t dims = module.low_rank() ? module.down->shape.size() : 2;
    checkpoint::Shape shape(dims, 1);
    shape[facts_.settings ? 1 : 0] = count;
    return facts_.settings && dims == 2 ? checkpoint::Shape{count} : shape;
  }

  const LoraFile& lora_;
  const std::string naming_, dtype_;
  const families::LoraForm& facts_;
  const OpenBase& open_base_;
  LoraDescription description_;
  std::optional<double> folded_;
  bool based_ = false;  // the base was read
  LoraPlan plan_;
};

at::Tensor bytes_of(const LoraFile& lora, const LoraTensor& tensor) {
  if (!tensor.source) return at::full({1}, tensor.number, at::kFloat).to(scalar_type(tensor.info.dtype));
  const at::Tensor stored = read_bytes(lora.source(), *tensor.source);
  if (tensor.factor == 1 && !tensor.by_row.defined()) return cast_bytes(stored, *tensor.source, tensor.info.dtype);
  at::Tensor values = stored.view(scalar_type(tensor.source->dtype)).to(at::kFloat) * tensor.factor;
  if (tensor.by_row.defined()) values = values * tensor.by_row;
  return values.to(scalar_type(tensor.info.dtype));
}

void write_tensors(const LoraFile& lora, const LoraPlan& plan, const fs::path& file) {
  std::map<std::string, const LoraTensor*> by_name;
  std::vector<TensorInfo> infos;
  for (const LoraTensor& tensor : plan.tensors) {
    by_name[tensor.info.name] = &tensor;
    infos.push_back(tensor.info);
  }
  check_input(by_name.size() == infos.size(), "convert", lora.path().string() + ": two tensors would have one name");
  if (file.extension() != ".safetensors") {
    checkpoint::TorchWriter writer(file, infos);
    for (const LoraTensor& tensor : plan.tensors) writer.write(bytes_of(lora, tensor).const_data_ptr());
    return writer.commit();
  }
  checkpoint::SafetensorsWriter writer(file, infos, plan.metadata);
  for (const TensorInfo& info : writer.tensors())
    writer.write(bytes_of(lora, *by_name.at(info.name)).const_data_ptr(), info.bytes());
  writer.commit();
}

}  // namespace

LoraBase::LoraBase(const fs::path& path) {
  const checkpoint::ModelFolder folder = checkpoint::find_parts(path);
  const fs::path* found = nullptr;
  for (const checkpoint::ModelPart& part : folder.parts) {
    if (!part.role.starts_with("transformer") && part.role != "model") continue;
    if (found)
      throw UserError(Exit::usage, "convert", path.string() + " has two experts, a LoRA belongs to one",
                      "name " + found->string() + " or " + part.weights.string());
    found = &part.weights;
  }
  check_input(found, "convert", path.string() + " holds no transformer");
  const Source stored = open_source(*found);
  identity_ = models::identify(shapes_of(stored.tensors));
  if (identity_.kind != models::ModelKind::denoiser)
    throw UserError(Exit::input, "convert", found->string() + " is no transformer that is known",
                    "tessera inspect says what it is; name the model that the LoRA was trained on");
  source_ = divided(stored, identity_);
}

at::Tensor LoraBase::weight(const std::string& module) const {
  for (const TensorInfo& tensor : source_.tensors)
    if (identity_.official(tensor.name) == module + ".weight")
      return cast_bytes(read_bytes(source_, tensor), tensor, DType::f32).view(at::kFloat).view(tensor.shape);
  throw UserError(Exit::input, "convert", source_.path.string() + " has no " + module + ".weight",
                  "name the model that the LoRA was trained on");
}

void check_naming(const models::WeightForm* form, const std::string& naming, const char* place) {
  const families::LoraRoute route = families::lora_route(models::family_with(form), naming);
  if (route.modules != families::LoraModules::none) return;
  std::string list;
  for (const std::string& known : families::kLoraNamings)
    if (families::lora_route(route.family, known).modules != families::LoraModules::none)
      list += (list.empty() ? "" : " or ") + known;
  throw UserError(
      Exit::usage, place,
      "no program loads adapters of " + form->title + " under " + naming + " names: " + std::string(route.programs),
      "choose " + list + ", or merge them into the base: tessera convert BASE OUT --merge LORA");
}

LoraPlan plan_lora(const LoraFile& lora, const std::string& naming, const std::string& dtype,
                   const OpenBase& open_base) {
  return Planner(lora, naming, dtype, open_base).run();
}

void write_lora(const LoraFile& lora, const LoraPlan& plan, const fs::path& file) {
  write_tensors(lora, plan, file);
  if (!plan.config_json.empty()) checkpoint::write_text(file.parent_path() / "adapter_config.json", plan.config_json);
}

void convert_lora(const ConvertOptions& options) {
  std::optional<LoraBase> base;
  if (!options.base.empty()) base.emplace(options.base);
  const LoraFile lora = LoraFile::open(options.in, base ? base->form() : nullptr);
  const LoraPlan plan = plan_lora(lora, options.to, options.dtype, [&]() -> const LoraBase& {
    if (base) return *base;
    const fs::path noted = lora.settings().base_model;  // by peft, where it was trained
    std::error_code ignored;
    if (noted.empty() || !fs::exists(noted, ignored))
      throw UserError(Exit::usage, "convert",
                      options.in.string() +
                          " is a DoRA: ComfyUI divides by the lengths of the base's rows, others by those "
                          "of the adapted ones, and only the base tells their ratio",
                      "name it: --base BASE");
    return base.emplace(noted);
  });
  const bool single = checkpoint::is_weight_file(options.out);
  const fs::path file = single ? options.out : options.out / fs::path(naming_form(options.to).file);
  std::error_code error;
  if (fs::equivalent(lora.source().files.at(0), file, error))
    throw UserError(Exit::usage, "convert", file.string() + " is the input itself", "choose another OUT");
  if (fs::exists(file, error) && !options.force)
    throw UserError(Exit::usage, "convert", file.string() + " is there already",
                    "choose another OUT, or replace it with --force");
  if (file.has_parent_path()) fs::create_directories(file.parent_path(), error);
  if (error)
    throw UserError(Exit::disk, "convert", file.parent_path().string() + ": cannot be made: " + error.message(),
                    "check the path");
  checkpoint::remove_dead_partials_of(file);
  write_lora(lora, plan, file);
  log::info("convert: " + file.string() + ": " + std::to_string(lora.modules().size()) + " modules, from " +
            lora.naming() + " to " + options.to + " names" +
            (lora.has_alpha() ? "" : "; the file does not say alpha, it is taken to be the rank"));
}

}  // namespace tessera::models
