#include "tessera/models/convert_source.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/box.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/lora_settings.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/ops/bf16.h"
#include "tessera/plan/states.h"

namespace tessera::models {

namespace {

/// Masters that are saved in two halves are joined.
void read_masters(checkpoint::TrainingCheckpoint& saved, const std::string& name, const checkpoint::Shape& shape,
                  float* to) {
  const std::string low_kind(plan::kMasterLow);
  if (!saved.contains(name, low_kind)) return saved.read_f32({name, "param", DType::f32, shape}, to);
  const int64_t count = checkpoint::volume(checkpoint::whole_box(shape));
  std::vector<uint16_t> high(static_cast<size_t>(count)), low(high.size());
  saved.read({name, "param", DType::bf16, shape}, high.data());
  saved.read({name, low_kind, DType::i16, shape}, low.data());
  ops::join_fp32(to, high.data(), low.data(), count);
}

bool is_scaled(const checkpoint::WeightSet& weights, const std::string& name) {
  if (size_of(weights.at(name).dtype) != 1) return false;
  return std::ranges::any_of(checkpoint::fp8_scale_names(name),
                             [&](const std::string& scale) { return weights.contains(scale); });
}

/// The kind of state that is the result of the run: its parameters, unless the manifest names another.
std::string result_kind(const checkpoint::Manifest& manifest) {
  const auto found = manifest.extra.find("result");
  return found != manifest.extra.end() && found->is_string() ? found->get<std::string>() : "param";
}

/// Adapters as lora_settings.h reads them; else the mark of a run's weights.
checkpoint::Metadata metadata_of(const checkpoint::Manifest& manifest) {
  const auto found = manifest.extra.find("lora");
  if (found == manifest.extra.end() || !found->is_object()) return checkpoint::own_metadata();
  checkpoint::LoraDescription description{
      .modules = {}, .rslora = found->value("rslora", false), .dora = found->value("dora", false)};
  const auto own = [&](const char* list, const std::string& module, const char* usual, double least) {
    const auto values = found->find(list);
    if (values != found->end() && values->contains(module)) return values->at(module).template get<double>();
    return found->value(usual, least);
  };
  if (const std::string kind = found->value("kind", ""); !kind.empty())
    description.kind = kind == "loha" ? "LoHa" : "LoKr";
  for (const auto& module : found->value("targets", std::vector<std::string>()))
    description.modules.push_back(
        {module, static_cast<int64_t>(own("ranks", module, "rank", 1)), own("alphas", module, "alpha", 1)});
  if (description.modules.empty()) return checkpoint::own_metadata();  // from before manifests said it
  return checkpoint::lora_metadata(description, "peft", std::nullopt);
}

}  // namespace

Source open_training(std::shared_ptr<checkpoint::TrainingCheckpoint> saved, const std::string& prefix) {
  const std::filesystem::path folder = saved->path();
  Source source{folder, {}, metadata_of(saved->manifest()), {folder / "manifest.json"}, {}};
  for (const auto& tensor : saved->manifest().tensors)
    if (tensor.kind == "param" && tensor.name.starts_with(prefix))
      source.tensors.push_back({tensor.name.substr(prefix.size()), DType::f32, tensor.shape});
  const std::string result = result_kind(saved->manifest());
  source.read = [saved, prefix, result](const checkpoint::TensorInfo& tensor, void* to) {
    if (result != "param" && saved->contains(prefix + tensor.name, result))  // what is frozen has none
      return saved->read_f32({prefix + tensor.name, result, DType::f32, tensor.shape}, static_cast<float*>(to));
    read_masters(*saved, prefix + tensor.name, tensor.shape, static_cast<float*>(to));
  };
  return source;
}

Source open_source(const std::filesystem::path& path, bool averaged) {
  if (std::filesystem::exists(path / "manifest.json"))
    return open_training(std::make_shared<checkpoint::TrainingCheckpoint>(path));
  const auto weights = std::make_shared<checkpoint::WeightSet>(checkpoint::open_weights(path, averaged));
  Source source{path, {}, weights->metadata(), {}, {}};
  for (const auto& file : weights->files()) {
    source.files.push_back(file.path());
    for (auto tensor : file.tensors()) {
      if (!weights->contains(tensor.name)) continue;  // an index may name but some of a file's tensors
      if (checkpoint::is_fp8_scale(tensor.name)) continue;
      if (is_scaled(*weights, tensor.name)) tensor.dtype = DType::f32;
      source.tensors.push_back(tensor);
    }
  }
  source.read = [weights](const checkpoint::TensorInfo& tensor, void* to) {
    if (!is_scaled(*weights, tensor.name))
      weights->read(tensor.name, 0, tensor.count(), to);
    else
      weights->read_f32(tensor.name, 0, tensor.count(), static_cast<float*>(to));
  };
  return source;
}

Source divided(const Source& source, const models::Identity& identity) {
  struct Part {
    checkpoint::TensorInfo whole;
    checkpoint::RowPart place;
  };
  auto parts = std::make_shared<std::map<std::string, Part>>();
  Source result{source.path, {}, source.metadata, source.files, {}};
  for (const checkpoint::TensorInfo& info : source.tensors) {
    const std::vector<std::string> names = identity.parts(info.name);
    if (names.empty()) result.tensors.push_back(info);
    for (const std::string& name : names) {
      const checkpoint::RowPart place = *checkpoint::row_part(name);
      const auto shape = checkpoint::part_shape(place, info.shape);
      check_input(shape.has_value(), "convert",
                  source.path.string() + ": " + info.name + " should hold " + std::to_string(place.count) +
                      " tensors, one after the other",
                  "is the file of another model?");
      parts->emplace(name, Part{info, place});
      result.tensors.push_back({name, info.dtype, *shape});
    }
  }
  result.read = [parts, read = source.read](const checkpoint::TensorInfo& info, void* to) {
    const auto found = parts->find(info.name);
    if (found == parts->end()) return read(info, to);
    const auto& [whole, place] = found->second;
    std::vector<std::byte> bytes(static_cast<size_t>(whole.bytes()));
    read(whole, bytes.data());
    const size_t element = size_of(whole.dtype);
    checkpoint::read_part(
        place, whole.shape, element, 0, info.count(),
        [&](int64_t begin, int64_t count, void* into) {
          std::memcpy(into, bytes.data() + static_cast<size_t>(begin) * element, static_cast<size_t>(count) * element);
        },
        to);
  };
  return result;
}

std::filesystem::path official_only_beside(const std::filesystem::path& weights) {
  constexpr const char* kName = "official_only.safetensors";
  if (!std::filesystem::is_directory(weights)) return std::filesystem::path(weights).replace_extension(kName);
  return std::filesystem::exists(weights / "transformer" / kName) ? weights / "transformer" / kName : weights / kName;
}

Source together(const Source& source, const Source& more) {
  Source result = source;
  auto names = std::make_shared<std::set<std::string>>();
  for (const checkpoint::TensorInfo& info : more.tensors) {
    names->insert(info.name);
    result.tensors.push_back(info);
  }
  result.files.insert(result.files.end(), more.files.begin(), more.files.end());
  result.read = [names, one = source.read, other = more.read](const checkpoint::TensorInfo& info, void* to) {
    (names->count(info.name) ? other : one)(info, to);
  };
  return result;
}

models::Shapes shapes_of(const std::vector<checkpoint::TensorInfo>& tensors) {
  models::Shapes shapes;
  for (const auto& tensor : tensors) shapes[tensor.name] = tensor.shape;
  return shapes;
}

at::Tensor read_bytes(const Source& source, const checkpoint::TensorInfo& info) {
  at::Tensor bytes = at::empty({info.bytes()}, at::kByte);
  source.read(info, bytes.mutable_data_ptr());
  return bytes;
}

at::Tensor cast_bytes(const at::Tensor& bytes, const checkpoint::TensorInfo& info, DType to) {
  if (info.dtype == to) return bytes;
  const at::Tensor values = bytes.view(scalar_type(info.dtype));
  at::Tensor result = values.to(scalar_type(to));
  const auto infinite = [](const at::Tensor& x) { return x.to(at::kFloat).isinf().any().item<bool>(); };
  if (to == DType::f16 && infinite(result) && !infinite(values))
    log::warn("convert: " + info.name + " has values beyond fp16 (65504), they are infinite now: use --dtype bf16");
  return result;
}

}  // namespace tessera::models
