#include "tessera/job/codec.h"

#include "tessera/base/check.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/families/registry.h"
#include "tessera/job/pixels.h"
#include "tessera/models/registry.h"

namespace tessera::job {

namespace fs = std::filesystem;

namespace {

struct VaeFiles {
  fs::path weights, config;
};

fs::path config_beside(const fs::path& folder) {
  return fs::exists(folder / "config.json") ? folder / "config.json" : fs::path();
}

/// Of every family's released autoencoders, without endings.
std::vector<std::string> released_names() {
  std::vector<std::string> names;
  for (const families::Family& family : families::all())
    for (const families::ReleasedFile& file : family.files)
      if (file.role == "vae") names.push_back(file.official);
  return names;
}

std::string released_files() {
  std::vector<std::string> files = released_names();
  for (std::string& file : files) file += ".pth";
  return families::listed(files, "or");
}

/// The files of an autoencoder in a folder. A model folder's own config.json is its transformer's, so named files and
/// vae/ come first.
VaeFiles find_vae(const fs::path& path) {
  // a config.json beside a single file may be the transformer's: the sizes follow from the weights
  if (!fs::is_directory(path)) return {path, {}};
  if (fs::is_directory(path / "vae")) return {path / "vae", config_beside(path / "vae")};
  for (const std::string& name : released_names())
    for (const char* ending : {".safetensors", ".pth"})
      if (fs::exists(path / (name + ending))) return {path / (name + ending), {}};
  return {path, config_beside(path)};
}

}  // namespace

std::unique_ptr<models::VideoVae> open_vae(const fs::path& path, const fs::path& config, const models::Tiling& tiling) {
  const auto weights = std::make_shared<const checkpoint::WeightSet>(checkpoint::open_weights(path));
  models::WeightSource source;
  source.file = path.string();
  source.names = weights->names();
  source.shape = [weights](const std::string& name) { return weights->at(name).shape; };
  source.read = [weights](const std::string& name) {
    const auto& entry = weights->at(name);
    at::Tensor value = at::empty(entry.shape, at::kFloat);
    weights->read_f32(name, 0, value.numel(), value.mutable_data_ptr<float>());
    return value;
  };
  return models::make_vae(config.empty() ? std::string() : checkpoint::read_text(config), config.string(), source,
                          tiling);
}

at::Tensor encode_frames(const net::VideoCodec& codec, const data::Frames& frames) {
  if (!dynamic_cast<const models::VideoVae*>(&codec)) return codec.encode(to_pixels(frames));
  const at::Tensor bytes = at::from_blob(const_cast<uint8_t*>(frames.rgb.data()),  // which are only read
                                         {frames.count, frames.height, frames.width, 3}, at::kByte);
  return codec.encode(bytes.permute({3, 0, 1, 2}));
}

void release(const net::VideoCodec& codec) {
  if (const auto* vae = dynamic_cast<const models::VideoVae*>(&codec)) vae->release();
}

std::unique_ptr<net::VideoCodec> open_codec(const std::string& name, int64_t channels, int64_t tile) {
  const bool built_in = models::is_built_in_codec(name);
  if (built_in && tile > 0)
    throw UserError(Exit::usage, "data.vae_tile", std::to_string(tile) + " with data.vae = '" + name + "'",
                    "an autoencoder without weights has no use for tiles: leave data.vae_tile on auto");
  const models::Tiling tiling = {.size = tile, .overlap = models::Tiling::kUsual};
  if (!fs::exists(name))
    if (std::unique_ptr<models::VideoVae> preset = models::make_preset_vae(name, tiling)) return preset;
  const bool is_path = fs::exists(name) || name.find_first_of("/\\.") != std::string::npos;
  if (built_in || !is_path) return models::make_codec(name, channels);
  check_input(fs::exists(name), "data.vae", name + ": no such file or folder",
              "give " + released_files() + ", a diffusers vae folder, a model folder, or \"" +
                  families::standard().codec + "\"");
  const VaeFiles files = find_vae(name);
  return open_vae(files.weights, files.config, tiling);
}

}  // namespace tessera::job
