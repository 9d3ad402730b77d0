#include "tessera/models/vae/hunyuan15.h"

#include <set>

#include "matrix.h"
#include "models/autoencoder_case.h"
#include "models/vae_bytes.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"

namespace tessera::models::hunyuan15_vae {

namespace {

std::unique_ptr<VideoVae> open(const std::string& name, const Tiling& tiling = {}, bool original = false) {
  const Golden golden(name);
  const std::string file = original ? "original.safetensors" : "model.safetensors";
  const std::string config = original ? "original_config.json" : "config.json";
  return make_vae(golden.text(config), config, source_of(golden.tensors(file), file), tiling);
}

/// per tensor: max|a - ref| <= rtol_of_max * max|ref| + atol
void expect_recorded(const Tensor& actual, const TensorMap& recorded, const std::string& name) {
  const Tensor& expected = recorded.at(name);
  expect_close(actual, expected, 1e-4 * expected.abs().max().item<double>() + 1e-6, name);
}

Tensor moments(const VideoVae& vae, const Tensor& clips) {
  const Posterior p = vae.posterior(clips[0]);
  return at::cat({p.mean, p.log_variance}).unsqueeze(0);
}
Tensor decoded(const VideoVae& vae, const Tensor& latents) { return vae.decode(latents[0]).unsqueeze(0); }

class Hunyuan15VaeTest : public ::testing::Test {
 protected:
  void SetUp() override { TESSERA_NEED_GOLDENS(); }
};

}  // namespace

TEST_F(Hunyuan15VaeTest, ClipsAndLatentsAreAsRecordedUnderBothNamings) {
  const TensorMap recorded = Golden("hunyuan15_vae").tensors("case.safetensors");
  for (const bool original : {false, true}) {
    const auto vae = open("hunyuan15_vae", {}, original);
    const Tensor video = recorded.at("in.video"), both = moments(*vae, video);
    expect_recorded(both, recorded, "out.moments");
    expect_recorded(vae->encode(video[0]).unsqueeze(0), recorded, "out.latent");
    expect_recorded(moments(*vae, video.narrow(2, 0, 1)), recorded, "out.first_frame_moments");
    expect_recorded(moments(*vae, recorded.at("in.image")), recorded, "out.image_moments");
    expect_recorded(vae->encode(recorded.at("in.image")[0]).unsqueeze(0), recorded, "out.image_latent");
    expect_recorded(decoded(*vae, recorded.at("in.latent")), recorded, "out.decoded");
    expect_recorded(decoded(*vae, recorded.at("in.image_latent")), recorded, "out.image_decoded");
  }
  EXPECT_EQ(open("hunyuan15_vae")->fingerprint(), open("hunyuan15_vae", {}, true)->fingerprint());
}

TEST_F(Hunyuan15VaeTest, TilesAreAsRecorded) {
  const TensorMap recorded = Golden("hunyuan15_vae_tiled").tensors("case.safetensors");
  const auto tiled = open("hunyuan15_vae_tiled", {.size = 64, .overlap = 16}), whole = open("hunyuan15_vae_tiled");
  expect_recorded(moments(*tiled, recorded.at("in.video")), recorded, "out.moments");
  expect_recorded(decoded(*tiled, recorded.at("in.latent")), recorded, "out.decoded");
  expect_recorded(moments(*tiled, recorded.at("in.image")), recorded, "out.image_moments");
  expect_recorded(decoded(*tiled, recorded.at("in.image_latent")), recorded, "out.image_decoded");
  expect_recorded(moments(*whole, recorded.at("in.video")), recorded, "out.untiled_moments");
  expect_recorded(decoded(*whole, recorded.at("in.image_latent")), recorded, "out.untiled_image_decoded");
  EXPECT_NE(tiled->fingerprint(), whole->fingerprint()) << "tiles change latents, so caches must tell them apart";
}

TEST_F(Hunyuan15VaeTest, ConvolutionsOfAFrameAtATimeGiveTheSame) {
  const TensorMap recorded = Golden("hunyuan15_vae").tensors("case.safetensors");
  const TensorMap tensors = Golden("hunyuan15_vae").tensors("original.safetensors");
  const at::NoGradGuard no_grad;
  const auto vae = open("hunyuan15_vae");
  const Config& config = dynamic_cast<const Hunyuan15Vae&>(*vae).config();
  const WeightsOnDemand weights(parameters(config), [&](const std::string& name) { return tensors.at(name); });
  const auto run = [&](const std::vector<Layer>& layers, const Tensor& in) {
    return LayerRunner(weights, /*works=*/false, /*chunk=*/1).run(layers, in).unsqueeze(0);
  };
  expect_recorded(run(encoder_layers(config), recorded.at("in.video")[0]), recorded, "out.moments");
  expect_recorded(run(decoder_layers(config), recorded.at("in.latent")[0] / config.scaling_factor), recorded,
                  "out.decoded");
}

TEST_F(Hunyuan15VaeTest, ItsFilesAreKnownWithTheirConfigsAndWhatDoesNotFitIsNamed) {
  const Golden golden("hunyuan15_vae");
  const TensorMap tensors = golden.tensors("model.safetensors");
  Shapes stored;
  for (const auto& [name, tensor] : tensors) stored[name] = tensor.sizes().vec();
  const Identity what = identify(stored);
  EXPECT_EQ(what.model, "hunyuan15-vae");
  EXPECT_EQ(what.naming, "diffusers");
  const Shapes ours = official_shapes(what, stored);
  Shapes original;
  for (const auto& [name, tensor] : golden.tensors("original.safetensors")) original[name] = tensor.sizes().vec();
  EXPECT_EQ(ours, original) << "every name both ways";
  for (const auto& [name, shape] : stored) EXPECT_EQ(what.foreign(*what.official(name), "diffusers"), name);
  EXPECT_EQ(identify(original).naming, "official");
  for (const auto& [naming, file] : {std::pair("diffusers", "config.json"), {"official", "original_config.json"}}) {
    const auto made = nlohmann::json::parse(config_for(naming, what, ours, golden.text(file), file));
    EXPECT_EQ(made, nlohmann::json::parse(golden.text(file))) << naming;
  }

  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(golden.text("config.json"));
    config[key] = value;
    return make_vae(config.dump(), "config.json", source_of(tensors, "m"), {});
  };
  expect_error("layers_per_block", [&] { with("layers_per_block", 3); });
  expect_error("block_out_channels", [&] { with("block_out_channels", {4, 4, 8, 8, 16}); });
  expect_error("spatial_compression_ratio", [&] { with("spatial_compression_ratio", 8); });
  expect_error("ffactor_temporal", [&] { with("ffactor_temporal", 8); });
  expect_error("downsample_match_channel", [&] { with("downsample_match_channel", false); });
  expect_error("scaling factor", [&] { with("scaling_factor", 0); });
  expect_close(with("shift_factor", 0.5)->latent_mean(), at::full({2}, 0.5), 0, "a shift is taken off");
  TensorMap cut = tensors;
  cut.erase("decoder.mid_block.attentions.0.to_k.bias");
  expect_error("decoder.mid_block.attentions.0.to_k.bias",
               [&] { make_vae(golden.text("config.json"), "config.json", source_of(cut, "cut.safetensors"), {}); });
  EXPECT_THROW(open("hunyuan15_vae")->latent_shape(8, 64, 64), UserError);
  EXPECT_THROW(open("hunyuan15_vae")->latent_shape(9, 72, 64), UserError);
  EXPECT_THROW(open("hunyuan15_vae", {.size = 40, .overlap = 8}), UserError);
}

TEST(Hunyuan15Vae, TheReleasedOneHasThePublishedSizes) {
  int64_t encoder = 0, all = 0;
  const auto parameters_of_all = parameters(Config{});
  for (const Parameter& p : parameters_of_all) {
    all += c10::multiply_integers(p.shape);
    if (p.name.starts_with("encoder.")) encoder += c10::multiply_integers(p.shape);
  }
  EXPECT_EQ(all, 1260634115);
  EXPECT_EQ(encoder, 389324544);
  EXPECT_EQ(parameters_of_all.size(), 218u);
  const Hunyuan15Vae vae(Config{}, {}, {.size = 256, .overlap = 32});
  EXPECT_EQ(vae.latent_shape(121, 480, 848), (std::array<int64_t, 4>{32, 31, 30, 53}));
  EXPECT_EQ(autoencoder().usual_overlap(256), 32);
  EXPECT_EQ(autoencoder().usual_overlap(128), 32);
}

/// Levels without halving, channels that change within one, another compression of time.
TEST(Hunyuan15Vae, OtherSizesFollowFromTheShapes) {
  for (const Config& config :
       {Config{.widths = {4, 8, 8}, .layers = 1, .latent_channels = 2, .stride = 4, .time_stride = 2},
        Config{.widths = {4, 8, 16}, .layers = 1, .latent_channels = 4, .stride = 2, .time_stride = 2},
        Config{.widths = {8, 16, 16, 16}, .layers = 1, .latent_channels = 2, .stride = 8, .time_stride = 8}}) {
    TensorMap tensors;
    for (const Parameter& p : parameters(config)) tensors[p.name] = random_tensor(p.name, p.shape);
    const auto vae = make_vae("", "", source_of(tensors, "other.safetensors"), {});
    const Config& found = dynamic_cast<const Hunyuan15Vae&>(*vae).config();
    EXPECT_EQ(found.widths, config.widths);
    EXPECT_EQ(found.layers, config.layers);
    EXPECT_EQ(found.stride, config.stride);
    EXPECT_EQ(found.time_stride, config.time_stride);
    const Tensor clip = at::rand({3, 1 + 2 * config.time_stride, 16, 32}) * 2 - 1;
    const Tensor latent = vae->encode(clip);
    EXPECT_EQ(latent.sizes(), (at::IntArrayRef{config.latent_channels, 3, 16 / config.stride, 32 / config.stride}));
    EXPECT_EQ(vae->decode(latent).sizes(), clip.sizes());
    expect_close(vae->encode(clip.narrow(1, 0, 1)), latent.narrow(1, 0, 1), 1e-5, "causal");
  }
}

namespace {

class Hunyuan15VaeMemory : public OneThread {};

}  // namespace

TEST_F(Hunyuan15VaeMemory, AClipTakesWhatIsSaidTiledOrNotInChunksOrNot) {
  struct Case {
    int64_t frames, height, width;
    Tiling tiling;
  };
  const Case cases[] = {{5, 64, 96, {}}, {5, 96, 128, {.size = 64, .overlap = 16}}, {9, 160, 192, {}}};
  testing::MatrixPart part("memory of HunyuanVideo-1.5's autoencoder", static_cast<int>(std::size(cases)));
  for (const int drawn : part) {
    const auto& [frames, height, width, tiling] = cases[drawn];
    const Config config{.widths = {32, 32, 64, 64, 64}, .layers = 1, .latent_channels = 8};
    const Hunyuan15Vae vae(config, random_weights(parameters(config)), tiling);
    expect_bytes(vae, {frames, height, width},
                 std::to_string(frames) + " frames of " + std::to_string(height) + " x " + std::to_string(width));
  }
}

}  // namespace tessera::models::hunyuan15_vae
