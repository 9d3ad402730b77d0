#include "tessera/job/null_caption.h"

#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/job/experts.h"
#include "tessera/models/identify.h"
#include "tessera/weights/convert_source.h"

namespace tessera::job {

namespace {

/// Of one file or folder of weights; undefined where it has no tensor of that name.
at::Tensor read_rows(const std::string& path, const std::string& name, int64_t width) {
  const checkpoint::WeightSet set = checkpoint::open_weights(path);
  if (std::ranges::count(set.names(), name) == 0) return {};
  const checkpoint::TensorInfo& info = set.at(name);
  check_input(info.shape.size() == 2 && info.shape[0] > 0 && info.shape[1] == width, "job.null_caption",
              set.path().string() + ": " + name + ": expected rows of " + std::to_string(width) + ", file has " +
                  checkpoint::shape_text(info.shape),
              "set model.config to the sizes of these weights");
  const at::Tensor rows = at::empty(info.shape, at::kFloat);
  set.read_f32(name, 0, info.count(), rows.mutable_data_ptr<float>());
  return rows;
}

/// A learned null caption and its name in official files.
struct Named {
  std::string name;
  at::Tensor rows;
};

Named find_null_caption(const recipe::Recipe& recipe, const net::Denoiser& model) {
  const std::string path = find_experts(recipe).list.front().path;  // experts of one release have one caption encoder
  if (path.empty() || recipe.model.init == "random") return {};
  const models::Identity identity = models::identify(checkpoint::stored_shapes(checkpoint::open_weights(path)));
  if (!identity.form || identity.form->null_caption.empty()) return {};
  const std::string& name = identity.form->null_caption;
  if (at::Tensor rows = read_rows(path, identity.prefix + name, model.context_dim()); rows.defined())
    return {name, rows};
  const std::filesystem::path beside = weights::official_only_beside(path);
  if (!std::filesystem::exists(beside)) return {};
  return {name, read_rows(beside.string(), name, model.context_dim())};
}

}  // namespace

at::Tensor learned_null_caption(const recipe::Recipe& recipe, const net::Denoiser& model) {
  return find_null_caption(recipe, model).rows;
}

void save_null_caption(const recipe::Recipe& recipe, const net::Denoiser& model, const std::filesystem::path& folder) {
  const auto [name, rows] = find_null_caption(recipe, model);
  if (!rows.defined()) return;
  checkpoint::write_safetensors(weights::official_only_beside(folder),
                                {{name, DType::f32, rows.sizes().vec(), rows.const_data_ptr()}}, {{"format", "pt"}});
}

}  // namespace tessera::job
