#include "tessera/train/export.h"

#include <nlohmann/json.hpp>

#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/engine/store/transfer.h"

namespace tessera::train {

void export_model(const net::Denoiser& model, engine::Store& store, comm::Comm& comm, int rank,
                  const std::filesystem::path& folder) {
  if (rank == 0) checkpoint::make_folder(folder, "check run.out");
  nlohmann::json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", nlohmann::json::object()}};
  int64_t total = 0;
  for (int u = 0; u < store.units(); ++u) {
    char name[64];
    std::snprintf(name, sizeof name, "diffusion_pytorch_model-%05d-of-%05d.safetensors", u + 1, store.units());
    std::vector<checkpoint::TensorData> tensors;
    engine::whole_unit(
        store, comm, u, /*gradients=*/false,
        [&](const plan::ParamSpec& param, const at::Tensor& value) {
          if (rank != 0) return;
          tensors.push_back({param.name, DType::f32, param.shape, value.const_data_ptr()});
          index["weight_map"][param.name] = name;
          total += param.numel() * 4;
        },
        [&] {
          if (rank == 0) checkpoint::write_safetensors(folder / name, tensors, {{"format", "pt"}});
        });
  }
  if (rank != 0) return;
  index["metadata"]["total_size"] = total;
  checkpoint::write_text(folder / "config.json", model.config_json());
  checkpoint::write_text(folder / "diffusion_pytorch_model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace tessera::train
