#include "tessera/job/null_caption.h"

#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/families/registry.h"
#include "tessera/job/encoders.h"
#include "tessera/job/experts.h"
#include "tessera/models/convert_source.h"
#include "tessera/models/registry.h"

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
  const std::filesystem::path beside = models::official_only_beside(path);
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
  checkpoint::write_safetensors(models::official_only_beside(folder),
                                {{name, DType::f32, rows.sizes().vec(), rows.const_data_ptr()}}, {{"format", "pt"}});
}

namespace {

/// model.init = "load" without a path: sampling takes the weights from elsewhere.
bool is_random_base(const recipe::Recipe& recipe) {
  return recipe.model.init == "random" || (recipe.model.path.empty() && recipe.model.init != "load");
}

bool is_random_codec(const recipe::Recipe& recipe) {
  return std::ranges::count(models::autoencoder_presets(), recipe.data.vae) > 0;
}

/// An encoder that has no trained weights, and the key under which it was chosen; "auto" there was chosen by nobody.
struct Untrained {
  const char* key;
  std::string name, what, give;
  bool in_training = true;  ///< else samples alone use it: what it makes of the data set comes from files
};

std::vector<Untrained> untrained_encoders(const recipe::Recipe& recipe, bool looks) {
  std::vector<Untrained> found;
  const bool codes = encodes_clips(recipe), reads = encodes_texts(recipe);
  if (models::is_built_in_codec(recipe.data.vae))
    found.push_back({"data.vae", recipe.data.vae, recipe.data.vae + " is a wavelet without weights",
                     "data.vae = the released autoencoder's file or folder", codes});
  if (is_random_codec(recipe))
    found.push_back({"data.vae", recipe.data.vae, "autoencoder " + recipe.data.vae + " has random weights",
                     "data.vae = the released autoencoder's file or folder", codes});
  if (recipe.data.text_encoder_path.empty())
    found.push_back({"data.text_encoder", recipe.data.text_encoder,
                     "text encoder " + recipe.data.text_encoder + " has random weights",
                     "data.text_encoder_path = the released text encoder's file or folder, and data.tokenizer", reads});
  if (looks && recipe.data.image_encoder_path.empty())
    found.push_back({"data.image_encoder", families::names_in(&families::Family::image_encoders).front(),
                     "image encoder " + recipe.data.image_encoder + " has random weights",
                     "data.image_encoder_path = the released image encoder's file or folder"});
  return found;
}

}  // namespace

std::string random_parts(const recipe::Recipe& recipe, bool looks) {
  std::string text = is_random_base(recipe) ? "; the model has random weights" : "";
  const auto comes_later = [&](const std::string& key) {  // a plan has its size, and a run will have its weights
    return std::ranges::any_of(recipe.assumed, [&](const std::string& assumed) { return assumed.starts_with(key); });
  };
  for (const Untrained& encoder : untrained_encoders(recipe, looks))
    if (!comes_later(encoder.key))
      text += "; " + encoder.what + (encoder.in_training ? "" : ", which samples alone use");
  const auto is_lora = [](const std::string& key) { return key.find("lora") != key.npos; };
  if (!std::ranges::all_of(recipe.assumed, is_lora)) text += "; what is not here yet is planned by its release's sizes";
  return text;
}

void check_random_parts(const recipe::Recipe& recipe, const Experts& experts, bool looks) {
  if (is_random_base(recipe)) {
    if (recipe.lora.on && recipe.model.init != "random")
      throw UserError(
          Exit::usage, "model.path",
          "empty, and train.mode = \"lora\": adapters of a model with random weights learn nothing that "
          "fits another model",
          "give the weights of the base: model.path; or say that it shall be random: model.init = \"random\"");
    return;
  }
  const auto own = [](const Expert& expert) {
    return expert.path.empty() || checkpoint::is_own(checkpoint::open_weights(expert.path));
  };
  if (std::ranges::all_of(experts.list, own)) return;
  for (const Untrained& encoder : untrained_encoders(recipe, looks))
    if (encoder.in_training && recipe.values.at(encoder.key) == "auto")
      throw UserError(
          Exit::usage, encoder.key,
          encoder.what + ", and " + recipe.model.path +
              " was trained with another encoder: training with this one would destroy what it learned",
          "set " + encoder.give + "; or name it by hand to train so: " + encoder.key + " = \"" + encoder.name + "\"");
}

}  // namespace tessera::job
