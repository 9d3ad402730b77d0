#include "matrix.h"
#include "tessera/models/vae/dc_ae.h"

#include "models/autoencoder_case.h"
#include "models/vae_bytes.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"
#include "tessera/models/vae/layer_runner.h"

namespace tessera::models::dc_ae_video {

namespace {

std::unique_ptr<VideoVae> open(const Tiling& tiling = {}, const nlohmann::json& changed = nlohmann::json::object()) {
  const Golden golden("opensora_dc_ae");
  auto config = nlohmann::json::parse(golden.text("config.json"));
  config.update(changed);
  return make_vae(config.dump(), "config.json", source_of(golden.tensors("model.safetensors"), "model.safetensors"),
                  tiling);
}

Tensor clip_of(int64_t frames, int64_t height, int64_t width) {
  return at::randint(0, 256, {3, frames, height, width}, at::kByte);
}

class DcAeVideoTest : public ::testing::Test {
 protected:
  void SetUp() override { TESSERA_NEED_GOLDENS(); }
};

class DcAeVideoMemory : public OneThread {};

/// Sizes at which convolutions run as they do at full size; no value matters here.
DcAeVideo sized(const Tiling& tiling) {
  Config config;
  for (Stage& stage : config.stages) stage.width /= 4, stage.encoder_depth = stage.decoder_depth = 1;
  config.latent_channels = 32;
  return {config, random_weights(parameters(config)), tiling};
}

}  // namespace

/// `tessera verify` compares the whole case; here is what it does not say.
TEST_F(DcAeVideoTest, ClipsComeBackWithTheFramesThatTheyHad) {
  const auto vae = open(), tiled = open({.frames = 16, .shared_frames = 4});
  const auto frames_back = [](const VideoVae& vae, int64_t frames) {
    const Tensor latent = vae.encode(clip_of(frames, 32, 64));
    EXPECT_EQ(latent.sizes(), at::IntArrayRef(vae.latent_shape(frames, 32, 64))) << frames;
    return vae.decode(latent).size(1);
  };
  for (const int64_t frames : {1, 8, 12, 20}) EXPECT_EQ(frames_back(*vae, frames), frames);
  // tiles of four latent frames begin at every third one
  for (const int64_t frames : {16, 20, 24, 32}) EXPECT_EQ(frames_back(*tiled, frames), frames);
  const auto refused = [](const VideoVae& vae, int64_t frames, const std::string& nearest) {
    expect_error(
        nearest + " x 32 x 64", [&] { vae.latent_shape(frames, 32, 64); }, Exit::usage);
  };
  refused(*vae, 4, "1");
  refused(*vae, 11, "8");
  refused(*tiled, 28, "24");  // the last tile would be one latent frame
  EXPECT_EQ(tiled->decode(at::zeros({8, 7, 1, 1})).size(1), 25) << "which is decoded to one frame, as in its code";
}

TEST_F(DcAeVideoTest, LatentsAreDividedByTheScale) {
  const auto vae = open();
  const Tensor clip = clip_of(8, 32, 32), unscaled = vae->posterior(clip).mean;
  expect_close(vae->encode(clip), unscaled / 0.493, 1e-5, "encode");
  EXPECT_FALSE(vae->posterior(clip).log_variance.defined());
  expect_close(vae->latent_std(), at::full({8}, 0.493, at::kFloat), 1e-6, "deviation");
}

TEST_F(DcAeVideoTest, ConvolutionsOfAFrameAtATimeGiveTheSame) {
  const Golden golden("opensora_dc_ae");
  const TensorMap tensors = golden.tensors("model.safetensors"), recorded = golden.tensors("case.safetensors");
  const at::NoGradGuard no_grad;
  const auto vae = open();
  const Config& config = dynamic_cast<const DcAeVideo&>(*vae).config();
  const Tensor video = recorded.at("in.video")[0], latent = recorded.at("in.zvideo")[0] * 0.493;
  const WeightsOnDemand weights(parameters(config), [&](const std::string& name) { return tensors.at(name); });
  const auto run = [&](const std::vector<Layer>& layers, const Tensor& x, int64_t chunk) {
    return LayerRunner(weights, /*works=*/false, chunk).run(layers, x);
  };
  expect_close(run(encoder_layers(config), video, 1), run(encoder_layers(config), video, kMapChunk), 1e-5, "encode");
  expect_close(run(decoder_layers(config), latent, 1), run(decoder_layers(config), latent, kMapChunk), 1e-5, "decode");
}

TEST_F(DcAeVideoTest, ItsFileIsKnownWithItsConfigAndWhatDoesNotFitIsNamed) {
  const Golden golden("opensora_dc_ae");
  const TensorMap tensors = golden.tensors("model.safetensors");
  Shapes shapes;
  for (const auto& [tensor, value] : tensors) shapes[tensor] = value.sizes().vec();
  const Identity what = identify(shapes);
  EXPECT_EQ(what.model, "dc-ae-f32t4c128") << "not the one of pictures, whose names are alike";
  const std::string config = config_for("official", what, shapes, golden.text("config.json"), "config.json");
  EXPECT_EQ(make_vae(config, "made.json", source_of(tensors, "m"), {})->fingerprint(), open()->fingerprint());
  EXPECT_EQ(make_vae("", "", source_of(tensors, "m"), {})->fingerprint(), open()->fingerprint())
      << "time is halved as in the release";
  expect_error("no class", [&] { config_for("diffusers", what, shapes, "", "config.json"); });
  expect_error("width_list", [] { open({}, {{"width_list", {4, 4, 8, 8, 8, 8}}}); });
  expect_error("time_compression_ratio", [] {
    open({}, {{"temporal_downsample", {true, true, true, false, false, false}}});
  });
  expect_error("temporal_downsample", [] { open({}, {{"temporal_downsample", {true, false}}}); });
  TensorMap cut = tensors;
  cut.erase("decoder.stages.4.op_list.1.local_module.main.point_conv.norm.bias");
  expect_error("decoder.stages.4.op_list.1.local_module.main.point_conv.norm.bias",
               [&] { make_vae(golden.text("config.json"), "config.json", source_of(cut, "cut.st"), {}); });
  EXPECT_THROW(open({.size = 80, .overlap = 32}), UserError);
  EXPECT_THROW(open({.frames = 18, .shared_frames = 4}), UserError);
}

TEST(DcAeVideo, TheReleasedOneHasThePublishedSizes) {
  int64_t all = 0, encoder = 0;
  const auto released = parameters({});
  for (const Parameter& p : released) {
    all += c10::multiply_integers(p.shape);
    if (p.name.starts_with("encoder.")) encoder += c10::multiply_integers(p.shape);
  }
  EXPECT_EQ(all, 459462147);
  EXPECT_EQ(released.size(), 339u);
  EXPECT_NEAR(static_cast<double>(encoder) / 1e6, 220.4, 0.05);
}

TEST_F(DcAeVideoMemory, TakesWhatIsSaidTiledOrNot) {
  const Tiling tilings[] = {
      {}, {.size = 64, .overlap = 32}, {.size = 64, .overlap = 32, .frames = 12, .shared_frames = 4}};
  const std::pair<int64_t, int64_t> clips[] = {{1, 128}, {16, 64}};  // frames, height
  testing::MatrixPart part("memory of the video DC-AE", 6);
  for (const int drawn : part) {
    const DcAeVideo vae = sized(tilings[drawn / 2]);
    const auto& [frames, height] = clips[drawn % 2];
    expect_bytes(vae, {frames, height, 96}, std::to_string(frames) + " frames, " + vae.fingerprint());
  }
}

}  // namespace tessera::models::dc_ae_video
