// Exported models: as few files as their size asks for, read back by their official names.
#include "tessera/train/export.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "tessera/checkpoint/weights.h"
#include "tessera/models/registry.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

/// Each parameter's elements count up from a number of its own.
models::Source counting(const net::Denoiser& model) {
  models::Source source;
  std::map<std::string, float> first;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params)
      first[param.name] = static_cast<float>(first.size() * 1000);
  source.read = [first](const checkpoint::TensorInfo& tensor, void* to) {
    for (int64_t i = 0; i < tensor.count(); ++i)
      static_cast<float*>(to)[i] = first.at(tensor.name) + static_cast<float>(i % 999);
  };
  return source;
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

class Export : public ::testing::TestWithParam<const char*> {};
// the second one's files hold several parameters in a tensor
INSTANTIATE_TEST_SUITE_P(Models, Export, ::testing::Values("wan-tiny", "opensora2-tiny"));

TEST_P(Export, IsOneFileOrAsManyAsTheirBytesAskForAndLeavesNoneOfAnEarlierExport) {
  const auto model = models::make_denoiser({.preset = GetParam()});
  const models::Source source = counting(*model);
  const fs::path folder = fs::temp_directory_path() / ("tessera-export-" + std::to_string(::getpid()));
  const std::set<std::string> whole = {"config.json", "diffusion_pytorch_model.safetensors"};
  for (int64_t limit : {int64_t{1}, kExportedFileBytes, int64_t{1} << 16}) {
    SCOPED_TRACE(limit);
    export_saved(*model, source, folder, {}, limit);
    const std::set<std::string> files = files_in(folder);
    if (limit == kExportedFileBytes)
      EXPECT_EQ(files, whole);
    else
      EXPECT_TRUE(files.contains("diffusion_pytorch_model.safetensors.index.json") && files.size() > 3);
    if (limit == 1) EXPECT_EQ(files.size(), model->units().size() + 2) << "a unit is never cut";
    const checkpoint::WeightSet weights = checkpoint::open_weights(folder);
    for (const auto& unit : model->units())
      for (const plan::ParamSpec& param : unit->spec().params) {
        std::vector<float> wanted(static_cast<size_t>(param.numel())), found(wanted.size());
        source.read({param.name, DType::f32, param.shape}, wanted.data());
        weights.read_f32(model->foreign_name(param.name, model->file_naming()), 0, param.numel(), found.data());
        EXPECT_EQ(found, wanted) << param.name;
      }
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tessera::train
