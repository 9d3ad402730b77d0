#include <set>

#include "matrix.h"
#include "models/autoencoder_case.h"
#include "models/vae_bytes.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"
#include "tessera/models/vae/layer_runner.h"
#include "tessera/models/vae/opensora12.h"
#include "tessera/models/vae/opensora13.h"

namespace tessera::models {

namespace {

using opensora12_vae::OpenSoraVae12;
using opensora13_vae::OpenSoraVae13;

std::unique_ptr<VideoVae> open(const std::string& name, const Tiling& tiling = {},
                               const nlohmann::json& changed = nlohmann::json::object()) {
  const Golden golden(name);
  auto config = nlohmann::json::parse(golden.text("config.json"));
  config.update(changed);
  const std::string file = "model.safetensors";
  return make_vae(config.dump(), "config.json", source_of(golden.tensors(file), file), tiling);
}

/// per tensor: max|a - ref| <= rtol_of_max * max|ref| + atol
void expect_recorded(const Tensor& actual, const Tensor& expected, const std::string& name) {
  expect_close(actual, expected, 1e-4 * expected.abs().max().item<double>() + 1e-6, name);
}

Tensor clip_of(int64_t frames, int64_t height, int64_t width) {
  return at::randint(0, 256, {3, frames, height, width}, at::kByte);
}

class OpenSoraVaes : public ::testing::Test {
 protected:
  void SetUp() override { TESSERA_NEED_GOLDENS(); }
};

}  // namespace

/// `tessera verify` compares the whole cases, with noise; here are the paths that it does not take.
TEST_F(OpenSoraVaes, WithoutNoiseLatentsAreMeansOfBothStages) {
  const auto vae = open("opensora_vae12");
  const auto& stages = dynamic_cast<const TwoStageVae&>(*vae);
  const TensorMap recorded = Golden("opensora_vae12").tensors("case.safetensors");
  const Tensor video = recorded.at("in.batch.video")[0];  // 17 frames
  const Tensor pictures = stages.picture_moments(video).narrow(0, 0, 4);
  expect_recorded(pictures.transpose(0, 1), recorded.at("out.batch.moments_2d").narrow(0, 0, 17).narrow(1, 0, 4),
                  "pictures");
  const Tensor in_time = stages.time_moments(pictures * 0.18215);
  expect_close(vae->posterior(video).mean, in_time.narrow(0, 0, 4), 1e-5, "mean");
  expect_close(vae->posterior(video).log_variance, in_time.narrow(0, 4, 4), 1e-5, "log variance");
  const Tensor shift = at::tensor({-0.1, 0.34, 0.27, 0.98}).view({4, 1, 1, 1}).to(at::kFloat);
  const Tensor scale = at::tensor({3.85, 2.32, 2.33, 3.06}).view({4, 1, 1, 1}).to(at::kFloat);
  expect_close(vae->encode(video), (in_time.narrow(0, 0, 4) - shift) / scale, 1e-5, "scaled");
  const Tensor latent = recorded.at("in.batch.latent");
  expect_recorded(vae->decode(latent[1]), recorded.at("out.batch.decoded")[1], "decoded");
  expect_recorded(vae->decode(recorded.at("in.image.latent")[0]), recorded.at("out.image.decoded")[0], "picture");
}

TEST_F(OpenSoraVaes, ClipsComeBackWithTheFramesThatTheyHad) {
  const auto first = open("opensora_vae12"), second = open("opensora_vae13"),
             apart = open("opensora_vae13", {}, {{"temporal_overlap", false}});
  const auto frames_back = [](const VideoVae& vae, int64_t frames) {
    const Tensor latent = vae.encode(clip_of(frames, 8, 16));
    EXPECT_EQ(latent.sizes(), at::IntArrayRef(vae.latent_shape(frames, 8, 16))) << frames;
    return vae.decode(latent).size(1);
  };
  for (const int64_t frames : {1, 8, 16, 17, 21, 33, 34, 51}) EXPECT_EQ(frames_back(*first, frames), frames);
  for (const int64_t frames : {1, 5, 9, 13, 17, 21}) EXPECT_EQ(frames_back(*second, frames), frames);
  for (const int64_t frames : {1, 9, 10, 14, 18}) EXPECT_EQ(frames_back(*apart, frames), frames);
  EXPECT_EQ(first->latent_shape(51, 240, 432), (std::array<int64_t, 4>{4, 15, 30, 54}));
  const auto refused = [](const VideoVae& vae, int64_t frames, const std::string& nearest) {
    expect_error(
        nearest + " x 8 x 16", [&] { vae.latent_shape(frames, 8, 16); }, Exit::usage);
  };
  refused(*first, 4, "1");  // whose latent is that of a picture
  refused(*first, 49, "46");
  refused(*second, 16, "13");
  refused(*apart, 13, "10");
}

TEST_F(OpenSoraVaes, FilesAreKnownWithTheirConfigsAndWhatDoesNotFitIsNamed) {
  for (const std::string name : {"opensora_vae12", "opensora_vae13"}) {
    const Golden golden(name);
    const TensorMap tensors = golden.tensors("model.safetensors");
    Shapes shapes;
    for (const auto& [tensor, value] : tensors) shapes[tensor] = value.sizes().vec();
    const Identity what = identify(shapes);
    EXPECT_EQ(what.model, name == "opensora_vae12" ? "opensora1.2-vae" : "opensora1.3-vae");
    const std::string config = config_for("official", what, shapes, golden.text("config.json"), "config.json");
    const auto again = make_vae(config, "made.json", source_of(tensors, "m"), {});
    EXPECT_EQ(again->fingerprint(), open(name)->fingerprint()) << config;
    expect_error("no class", [&] { config_for("diffusers", what, shapes, "", "config.json"); });
    expect_error("do not divide into 32", [&] { make_vae("", "", source_of(tensors, "alone.safetensors"), {}); });
    TensorMap cut = tensors;
    const std::string lost =
        name == "opensora_vae12" ? "temporal_vae.decoder.norm1.bias" : "decoder.mid.attn_1.v.conv.bias";
    cut.erase(lost);
    expect_error(lost, [&] { make_vae(golden.text("config.json"), "config.json", source_of(cut, "cut.st"), {}); });
    EXPECT_THROW(open(name)->latent_shape(17, 7, 64), UserError);
    EXPECT_THROW(open(name, {.size = 36, .overlap = 8}), UserError);
    EXPECT_NE(open(name, {.size = 64, .overlap = 16})->fingerprint(), open(name)->fingerprint());
  }
  expect_error("layers_per_block", [] { open("opensora_vae12", {}, {{"vae_2d", {{"layers_per_block", 2}}}}); });
  expect_error("temporal_downsample", [] {
    open("opensora_vae12", {}, {{"vae_temporal", {{"temporal_downsample", {true, false}}}}});
  });
  expect_error("ch_mult", [] { open("opensora_vae13", {}, {{"encoder", {{"ch_mult", {1, 2, 4, 4}}}}}); });
  expect_error("micro_frame_size", [] { open("opensora_vae13", {}, {{"micro_frame_size", 16}}); });
  expect_error("video_9frames", [] { open("opensora_vae13", {}, {{"normalization", "video_9frames"}}); });
}

/// Each layer halves what it is given: the first autoencoder rounds down three times, the second once and up twice.
TEST_F(OpenSoraVaes, SidesThatAreNoMultiplesOf8HaveTheCellsThatTheLayersMake) {
  const auto first = open("opensora_vae12"), second = open("opensora_vae13");
  for (const int64_t side : {8, 9, 13, 15, 16, 21, 23, 30, 35}) {
    for (const VideoVae* vae : {first.get(), second.get()}) {
      const Tensor clip = clip_of(vae == first.get() ? 1 : 5, side, 16);
      EXPECT_EQ(vae->encode(clip).sizes(), at::IntArrayRef(vae->latent_shape(clip.size(1), side, 16))) << side;
    }
    EXPECT_EQ(first->latent_shape(1, side, 16)[2], side / 8);
  }
  EXPECT_EQ(second->latent_shape(1, 294, 784)[2], 37);
  EXPECT_EQ(second->latent_shape(1, 294, 784)[3], 98);
  const Tensor clip = clip_of(1, 21, 16), other = clip.clone();
  other.slice(2, 20, 21).bitwise_xor_(0x80);
  EXPECT_FALSE(at::equal(first->encode(clip), first->encode(other))) << "rows below the last whole cell count";
}

TEST_F(OpenSoraVaes, TheLastTilesHaveWhatIsLeftOfThePicture) {
  for (const std::string name : {"opensora_vae12", "opensora_vae13"}) {
    const auto tiled = open(name, {.size = 32, .overlap = 16}), whole = open(name);
    for (const int64_t side : {32, 37, 61, 69, 71}) {
      const Tensor clip = clip_of(1, side, 40);
      EXPECT_EQ(tiled->encode(clip).sizes(), whole->encode(clip).sizes()) << name << " " << side;
    }
  }
}

/// What a file stores counts more than its config.json: its code loads it last.
TEST_F(OpenSoraVaes, ScalesOfTheFileAreTaken) {
  const Golden golden("opensora_vae12");
  TensorMap tensors = golden.tensors("model.safetensors");
  tensors.at("shift") = at::full({1, 4, 1, 1, 1}, 0.5, at::kFloat);
  const auto vae = make_vae(golden.text("config.json"), "config.json", source_of(tensors, "m"), {});
  EXPECT_EQ(vae->latent_mean()[3].item<float>(), 0.5F);
  EXPECT_NEAR(vae->latent_std()[3].item<float>(), 3.06, 1e-6);
  tensors.at("scale") = at::ones({3}, at::kFloat);
  expect_error("'scale'", [&] { make_vae(golden.text("config.json"), "config.json", source_of(tensors, "m"), {}); });
}

TEST(OpenSoraVae, ReleasedOnesHaveThePublishedSizes) {
  int64_t pictures = 0, time = 0;
  for (const Parameter& p : opensora12_vae::parameters({}))
    (p.name.starts_with("spatial") ? pictures : time) += c10::multiply_integers(p.shape);
  EXPECT_EQ(pictures, 83653863) << "that of Stable Diffusion XL";
  EXPECT_NEAR(static_cast<double>(pictures + time) / 1e6, 384, 10);
  std::cout << "1.2: " << pictures + time << " parameters\n";
  int64_t all = 0;
  for (const Parameter& p : opensora13_vae::parameters({})) all += c10::multiply_integers(p.shape);
  std::cout << "1.3: " << all << " parameters\n";
  const OpenSoraVae13 vae({}, {}, {});
  EXPECT_EQ(vae.latent_shape(113, 360, 640), (std::array<int64_t, 4>{16, 35, 45, 80}));
  EXPECT_EQ(vae.latent_shape(1, 512, 512), (std::array<int64_t, 4>{16, 1, 64, 64}));
}

namespace {

/// Widths at which convolutions run as they do at full size; no value matters here.
template <class Vae, class Config>
Vae sized(const Config& config, const std::vector<Parameter>& parameters, const Tiling& tiling) {
  return {config, random_weights(parameters), tiling};
}

/// With tiles down to 15 % below what is said: the rows that tiles share are counted for two whole rows of tiles, of pictures
/// that are hardly larger than a tile.
void expect_bytes_of(const VideoVae& vae, const ClipSize& size) {
  const double least = vae.fingerprint().find("tiles") == std::string::npos ? 0.9 : 0.85;
  expect_bytes(vae, size, std::to_string(size.frames) + " frames, " + vae.fingerprint(), least);
}

class OpenSoraVaeMemory : public OneThread {};

}  // namespace

TEST_F(OpenSoraVaeMemory, PiecesTakeWhatIsSaidTiledOrNot) {
  opensora12_vae::Config first;
  first.widths = {32, 32, 64, 64}, first.layers = 1;
  first.time_widths = {32, 32, 64, 64}, first.time_layers = 1;
  opensora13_vae::Config second;
  second.widths = {32, 32, 64, 64}, second.layers = 1, second.piece = 9;
  const Tiling tilings[] = {{}, {.size = 64, .overlap = 16}};
  testing::MatrixPart part("memory of Open-Sora 1's autoencoders", 2);
  for (const int drawn : part) {
    const Tiling& tiling = tilings[drawn];
    const auto vae12 = sized<OpenSoraVae12>(first, opensora12_vae::parameters(first), tiling);
    const auto vae13 = sized<OpenSoraVae13>(second, opensora13_vae::parameters(second), tiling);
    // pictures that are hardly larger than a tile share most of their rows
    const int64_t height = tiling.size > 0 ? 96 : 64, width = tiling.size > 0 ? 128 : 96;
    for (const int64_t frames : {1, 34}) expect_bytes_of(vae12, {frames, height, width});
    for (const int64_t frames : {1, 17}) expect_bytes_of(vae13, {frames, 64, 96});
    expect_bytes_of(vae12, {1, 103, 125});
    expect_bytes_of(vae13, {1, 101, 125});
  }
}

/// Pieces in time bound the memory of long clips, tiles that of large frames.
TEST(OpenSoraVae, MemoryDoesNotGrowWithTheClipButByItsPixels) {
  constexpr double kGiB = 1 << 30;
  const auto show = [](const char* name, const VideoVae& vae, int64_t frames, int64_t height, int64_t width) {
    const auto there = static_cast<double>(vae.encode_bytes(frames, height, width, count_meta)) / kGiB;
    const auto back = static_cast<double>(vae.decode_bytes(frames, height, width, count_meta)) / kGiB;
    std::cout << name << ", " << frames << " x " << height << " x " << width << ": encode " << there << " GiB, decode "
              << back << " GiB\n";
    return std::pair(there, back);
  };
  for (const int64_t tile : {0, 256}) {
    const Tiling tiling = {.size = tile, .overlap = tile / 4};
    const OpenSoraVae12 first({}, {}, tiling);
    const OpenSoraVae13 second({}, {}, tiling);
    const auto short12 = show("1.2", first, 51, 720, 1280), long12 = show("1.2", first, 408, 720, 1280);
    const auto short13 = show("1.3", second, 17, 720, 1280), long13 = show("1.3", second, 113, 720, 1280);
    const double tiles = tile == 0 ? 1 : 3;  // their results and those blended are of all frames
    const auto pixels = [](int64_t frames) { return 4.0 * 3 * static_cast<double>(frames * 720 * 1280) / kGiB; };
    EXPECT_LT(long12.first - short12.first, 0.1);
    EXPECT_LT(long13.first - short13.first, 0.2);
    EXPECT_LT(long12.second - short12.second, tiles * pixels(408 - 51) + 0.1);
    EXPECT_LT(long13.second - short13.second, tiles * pixels(113 - 17) + 0.2);
  }
}

}  // namespace tessera::models
