#include "tessera/job/codec.h"

#include <algorithm>
#include <functional>

#include "tessera/base/check.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/device/streams.h"
#include "tessera/engine/store/meter.h"
#include "tessera/families/registry.h"
#include "tessera/models/registry.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::job {

namespace fs = std::filesystem;

namespace {

/// Of every family's released autoencoders, without endings.
std::vector<std::string> released_names() {
  std::vector<std::string> names;
  for (const families::Family& family : families::all())
    for (const families::ReleasedFile& file : family.files)
      if (file.role == "vae" && !file.folder) names.push_back(file.official);
  return names;
}

std::string released_files() { return families::listed(released_names(), "or") + " (.safetensors or .pth)"; }

}  // namespace

std::unique_ptr<models::VideoVae> open_vae_as(const fs::path& path, const std::string& config,
                                              const std::string& config_file, const models::Tiling& tiling) {
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
  return models::make_vae(config, config_file, source, tiling);
}

std::unique_ptr<models::VideoVae> open_vae(const fs::path& path, const fs::path& config, const models::Tiling& tiling) {
  return open_vae_as(path, config.empty() ? std::string() : checkpoint::read_text(config), config.string(), tiling);
}

namespace {

template <class Act>
at::Tensor named(const char* what, const Act& act) {
  device::label(what);
  at::Tensor result = act();
  device::label("");
  return result;
}

}  // namespace

at::Tensor encode_frames(const net::VideoCodec& codec, const data::Frames& frames) {
  return named("encoding a clip", [&] {
    if (!dynamic_cast<const models::VideoVae*>(&codec)) return codec.encode(to_pixels(frames));
    const at::Tensor bytes = at::from_blob(const_cast<uint8_t*>(frames.rgb.data()),  // which are only read
                                           {frames.count, frames.height, frames.width, 3}, at::kByte);
    return codec.encode(bytes.permute({3, 0, 1, 2}));
  });
}

at::Tensor decode(const net::VideoCodec& codec, const at::Tensor& latent) {
  return named("decoding a sample", [&] { return codec.decode(latent); });
}

void release(const net::VideoCodec& codec) {
  if (const auto* vae = dynamic_cast<const models::VideoVae*>(&codec)) vae->release();
}

bool tiles_in_time(const net::VideoCodec& codec) {
  const auto* vae = dynamic_cast<const models::VideoVae*>(&codec);
  return vae && vae->tiles_in_time();
}

int64_t overlapping_piece(const net::VideoCodec& codec) {
  const auto* vae = dynamic_cast<const models::VideoVae*>(&codec);
  return vae ? vae->overlapping_piece() : 0;
}

namespace {

std::unique_ptr<models::VideoVae> open_tiled_vae(const std::string& name, const models::Tiling& tiling) {
  if (!fs::exists(name))
    if (std::unique_ptr<models::VideoVae> preset = models::make_preset_vae(name, tiling)) return preset;
  check_input(fs::exists(name), "data.vae", name + ": no such file or folder",
              "give " + released_files() + ", a diffusers vae folder, a model folder, or \"" +
                  families::standard().codec + "\"" + checkpoint::fetched_by(name));
  const checkpoint::ModelPart files = checkpoint::find_part(name, "vae");
  return open_vae(files.weights, files.config, tiling);
}

}  // namespace

std::unique_ptr<net::VideoCodec> open_codec(const std::string& name, int64_t channels, int64_t tile,
                                            int64_t tile_frames) {
  const bool built_in = models::is_built_in_codec(name);
  if (built_in && (tile > 0 || tile_frames > 0))
    throw UserError(
        Exit::usage, tile > 0 ? "data.vae_tile" : "data.vae_tile_frames",
        std::to_string(std::max(tile, tile_frames)) + " with data.vae = '" + name + "'",
        "an autoencoder without weights has no use for tiles: leave data.vae_tile and data.vae_tile_frames on auto");
  const std::vector<std::string> presets = models::autoencoder_presets();
  const bool preset = std::ranges::find(presets, name) != presets.end();
  const bool is_path = fs::exists(name) || name.find_first_of("/\\.") != std::string::npos;
  if (built_in || (!preset && !is_path)) return models::make_codec(name, channels);
  constexpr int64_t kUsual = models::Tiling::kUsual;
  std::unique_ptr<models::VideoVae> vae =
      open_tiled_vae(name, {.size = tile, .overlap = kUsual, .frames = tile_frames, .shared_frames = kUsual});
  if (tile_frames > 0 && !vae->tiles_in_time())
    throw UserError(Exit::usage, "data.vae_tile_frames",
                    std::to_string(tile_frames) + " with data.vae = '" + name +
                        "', which codes a clip in chunks of frames, or all of them at once as it was trained",
                    "leave data.vae_tile_frames on auto");
  return vae;
}

namespace {

int64_t count_meta(const std::function<void()>& run) {
  engine::Meter::MetaCount count;
  run();
  return count.peak();
}

}  // namespace

CodecBytes codec_bytes(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width) {
  CodecBytes bytes;
  bytes.clip = 3 * frames * height * width;
  const int64_t pixels = bytes.clip * static_cast<int64_t>(sizeof(float));
  if (const auto* vae = dynamic_cast<const models::VideoVae*>(&codec)) {
    bytes.weights = vae->weight_bytes();
    bytes.encode = vae->encode_bytes(frames, height, width, count_meta);
    bytes.decode = vae->decode_bytes(frames, height, width, count_meta);
  } else {  // the wavelet: pixels as numbers, in blocks (a picture stands for four), and back
    bytes.encode = pixels * (frames == 1 ? 6 : 3);
    bytes.decode = 2 * pixels;
  }
  return bytes;
}

plan::UnitWork codec_work(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width) {
  if (const auto* vae = dynamic_cast<const models::VideoVae*>(&codec)) return vae->encode_work(frames, height, width);
  // the wavelet: a product of every block of 4 x 8 x 8 pixels, cut out of the clip as numbers
  constexpr double kBlock = 3 * 4 * 8 * 8;
  const auto [channels, f, h, w] = codec.latent_shape(frames, height, width);
  const auto blocks = static_cast<double>(f * h * w);
  return {.products = {2 * kBlock * blocks * static_cast<double>(channels)},
          .streamed = 2 * sizeof(float) * kBlock * blocks,
          .operators = 1};
}

data::Frames to_frames(const at::Tensor& pixels, double fps) {
  data::Frames frames;
  frames.count = static_cast<int>(pixels.size(1));
  frames.height = static_cast<int>(pixels.size(2));
  frames.width = static_cast<int>(pixels.size(3));
  frames.fps = fps;
  frames.rgb.resize(frames.frame_bytes() * static_cast<size_t>(frames.count));
  for (int f = 0; f < frames.count; ++f) {  // one by one: a long clip is gigabytes
    const at::Tensor numbers = pixels.select(1, f).clamp(-1, 1).add_(1).mul_(127.5).round_();
    const at::Tensor bytes = numbers.to(at::kByte).permute({1, 2, 0}).contiguous();
    std::copy_n(bytes.const_data_ptr<uint8_t>(), frames.frame_bytes(), frames.frame(f));
  }
  return frames;
}

at::Tensor to_pixels(const data::Frames& frames) {
  at::Tensor bytes = at::empty({frames.count, frames.height, frames.width, 3}, at::kByte);
  std::copy(frames.rgb.begin(), frames.rgb.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes.to(at::kFloat).div_(127.5).sub_(1).permute({3, 0, 1, 2}).contiguous();
}

}  // namespace tessera::job
