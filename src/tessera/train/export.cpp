#include "tessera/train/export.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/checkpoint/box.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/own_weights.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/train/host_work.h"

namespace tessera::train {

namespace {

/// A model folder in diffusers' form, a file for each unit.
class ModelFolder {
 public:
  ModelFolder(std::filesystem::path folder, size_t units) : folder_(std::move(folder)), units_(units) {
    checkpoint::make_folder(folder_, "check run.out");
  }

  /// fp32, under the parameters' own names.
  void add_unit(const net::Denoiser& model, const std::vector<checkpoint::TensorData>& own) {
    std::map<std::string, std::vector<float>> wholes;  // of parameters that files hold together
    std::vector<checkpoint::TensorData> tensors;
    for (checkpoint::TensorData tensor : own) {
      tensor.name = model.foreign_name(tensor.name, model.file_naming());
      const auto part = checkpoint::row_part(tensor.name);
      if (!part) {
        tensors.push_back(tensor);
        continue;
      }
      const checkpoint::Shape stored = checkpoint::stored_shape(*part, tensor.shape);
      std::vector<float>& whole = wholes[part->whole];
      const bool first = whole.empty();
      whole.resize(static_cast<size_t>(checkpoint::volume(checkpoint::whole_box(stored))));
      checkpoint::put_part(*part, stored, sizeof(float), tensor.data, whole.data());
      if (first) tensors.push_back({part->whole, tensor.dtype, stored, whole.data()});
    }
    char name[96];
    std::snprintf(name, sizeof name, "diffusion_pytorch_model-%05zu-of-%05zu.safetensors", ++written_, units_);
    checkpoint::write_safetensors(folder_ / name, tensors, checkpoint::own_metadata());
    for (const checkpoint::TensorData& tensor : tensors) {
      places_[tensor.name] = name;
      total_ += checkpoint::volume(checkpoint::whole_box(tensor.shape)) * 4;
    }
  }

  void finish(const std::string& config_json) const {
    const nlohmann::json index = {{"metadata", {{"total_size", total_}}}, {"weight_map", places_}};
    checkpoint::write_text(folder_ / "config.json", config_json);
    checkpoint::write_text(folder_ / "diffusion_pytorch_model.safetensors.index.json", index.dump(2) + "\n");
  }

 private:
  const std::filesystem::path folder_;
  const size_t units_;
  size_t written_ = 0;
  int64_t total_ = 0;
  std::map<std::string, std::string> places_;
};

}  // namespace

void export_model(const net::Denoiser& model, engine::Store& store, comm::Comm& comm, int rank,
                  const std::filesystem::path& folder) {
  HostWork work;
  std::optional<ModelFolder> written;
  if (rank == 0) work.run([&] { written.emplace(folder, static_cast<size_t>(store.units())); });
  for (int u = 0; u < store.units(); ++u) {
    std::vector<checkpoint::TensorData> tensors;
    engine::whole_unit(
        store, comm, u, /*gradients=*/false,
        [&](const plan::ParamSpec& param, const at::Tensor& value) {
          if (rank == 0) tensors.push_back({param.name, DType::f32, param.shape, value.const_data_ptr()});
        },
        [&] {
          if (rank == 0) work.run([&] { written->add_unit(model, tensors); });
        });
  }
  if (rank == 0) work.run([&] { written->finish(model.config_json()); });
  work.finish();
}

void export_saved(const net::Denoiser& model, const weights::Source& saved, const std::filesystem::path& folder) {
  ModelFolder written(folder, model.units().size());
  for (const auto& unit : model.units()) {
    std::vector<std::vector<float>> values;
    std::vector<checkpoint::TensorData> tensors;
    for (const plan::ParamSpec& param : unit->spec().params) {
      values.emplace_back(static_cast<size_t>(param.numel()));
      saved.read({param.name, DType::f32, param.shape}, values.back().data());
      tensors.push_back({param.name, DType::f32, param.shape, values.back().data()});
    }
    written.add_unit(model, tensors);
  }
  written.finish(model.config_json());
}

}  // namespace tessera::train
