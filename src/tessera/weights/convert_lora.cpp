#include "tessera/weights/convert_lora.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/lora_settings.h"
#include "tessera/checkpoint/torch_write.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/weights/tensor_bytes.h"

namespace tessera::weights {

using checkpoint::LoraDescription;
using checkpoint::TensorInfo;
using models::LoraPart;

namespace {

namespace fs = std::filesystem;

struct NamingFacts {
  const char* naming;
  const char* file;  // the name its program looks for in a folder
  bool rslora;       // has a word for it
  bool alpha_in_header;
};
constexpr NamingFacts kFacts[] = {{"diffusers", "pytorch_lora_weights.safetensors", true, true},
                                  {"peft", "adapter_model.safetensors", true, true},
                                  {"comfyui", "lora.safetensors", false, false},
                                  {"kohya", "lora.safetensors", false, false},
                                  {"diffsynth", "lora.safetensors", false, false}};

const NamingFacts& facts_of(const std::string& naming) {
  for (const NamingFacts& facts : kFacts)
    if (naming == facts.naming) return facts;
  std::string list;
  for (const NamingFacts& facts : kFacts) list += std::string(list.empty() ? "" : ", ") + facts.naming;
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
  Planner(const LoraFile& lora, const std::string& naming, std::string dtype)
      : lora_(lora), naming_(naming), dtype_(std::move(dtype)), facts_(facts_of(naming)) {}

  LoraPlan run() {
    for (const LoraModule& module : lora_.modules()) describe(module);
    if (naming_ == "diffsynth") choose_folded();
    for (const LoraModule& module : lora_.modules()) add(module);
    if (!description_.modules.empty()) {
      description_.network = models::lora_network(lora_.modules().front().name);
      plan_.metadata = checkpoint::lora_metadata(description_, naming_, folded_);
      plan_.metadata.merge(checkpoint::lora_origin(lora_.source().metadata));
      if (naming_ == "peft") plan_.config_json = checkpoint::lora_config_json(description_, "") + "\n";
    }
    return std::move(plan_);
  }

 private:
  void describe(const LoraModule& module) {
    if (!module.low_rank()) return;
    description_.modules.push_back(
        {models::lora_module_name(module.name, naming_), module.rank, alpha_for(module, facts_.rslora)});
    description_.rslora = description_.rslora || (facts_.rslora && module.rslora);
    description_.dora = description_.dora || module.magnitude.has_value();
    description_.bias = description_.bias || module.up_bias.has_value();
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
    if (!module.low_rank()) return;
    const double alpha = alpha_for(module, facts_.rslora);
    const bool is_rank = alpha == static_cast<double>(module.rank);
    const bool folds = folded_ && foldable(module) && alpha == *folded_;
    add_part(module, LoraPart::down, module.down);
    add_part(module, LoraPart::up, module.up, module.up_factor * (folds ? module.scale() : 1));
    add_part(module, LoraPart::up_bias, module.up_bias, module.up_factor * (folds ? module.scale() : 1));
    add_part(module, LoraPart::magnitude, module.magnitude);
    if (naming_ != "kohya" && (facts_.alpha_in_header || folds || (is_rank && !folded_))) return;
    const DType dtype = alpha_dtype(alpha, wanted_dtype(dtype_, module.up->dtype));
    plan_.tensors.push_back(
        {{*models::lora_tensor_name(module.name, LoraPart::alpha, naming_), dtype, {}}, std::nullopt, 1, alpha});
  }

  void add_part(const LoraModule& module, LoraPart part, const std::optional<TensorInfo>& source, double factor = 1) {
    if (!source) return;
    const auto name = models::lora_tensor_name(module.name, part, naming_);
    if (!name)
      throw UserError(Exit::input, "convert",
                      lora_.path().string() + ": " + naming_ + " names have no place for " + source->name,
                      "choose another naming, or merge it into its base: tessera convert BASE OUT --merge LORA");
    TensorInfo info{*name, wanted_dtype(dtype_, source->dtype), source->shape};
    if (part == LoraPart::magnitude) info.shape = magnitude_shape(source->count());
    plan_.tensors.push_back({std::move(info), source, factor, 0});
  }
  /// [out] in peft's files, [out, 1] in ComfyUI's and kohya's.
  checkpoint::Shape magnitude_shape(int64_t count) const {
    return facts_.alpha_in_header ? checkpoint::Shape{count} : checkpoint::Shape{count, 1};
  }

  const LoraFile& lora_;
  const std::string naming_, dtype_;
  const NamingFacts& facts_;
  LoraDescription description_;
  std::optional<double> folded_;
  LoraPlan plan_;
};

at::Tensor bytes_of(const LoraFile& lora, const LoraTensor& tensor) {
  if (!tensor.source) return at::full({1}, tensor.number, at::kFloat).to(scalar_type(tensor.info.dtype));
  const at::Tensor stored = read_bytes(lora.source(), *tensor.source);
  if (tensor.factor == 1) return cast_bytes(stored, *tensor.source, tensor.info.dtype);
  const at::Tensor values = stored.view(scalar_type(tensor.source->dtype)).to(at::kFloat) * tensor.factor;
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

LoraPlan plan_lora(const LoraFile& lora, const std::string& naming, const std::string& dtype) {
  return Planner(lora, naming, dtype).run();
}

void write_lora(const LoraFile& lora, const LoraPlan& plan, const fs::path& file) {
  write_tensors(lora, plan, file);
  if (!plan.config_json.empty()) checkpoint::write_text(file.parent_path() / "adapter_config.json", plan.config_json);
}

void convert_lora(const ConvertOptions& options) {
  const LoraFile lora = LoraFile::open(options.in);
  const LoraPlan plan = plan_lora(lora, options.to, options.dtype);
  const bool single = checkpoint::is_weight_file(options.out);
  const fs::path file = single ? options.out : options.out / facts_of(options.to).file;
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

}  // namespace tessera::weights
