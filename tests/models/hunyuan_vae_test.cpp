#include <set>

#include "matrix.h"
#include "models/autoencoder_case.h"
#include "models/vae_bytes.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"
#include "tessera/models/vae/hunyuan.h"
#include "tessera/models/vae/layer_runner.h"

namespace tessera::models::hunyuan_vae {

namespace {

std::unique_ptr<VideoVae> open(const std::string& name, const Tiling& tiling = {}) {
  const Golden golden(name);
  const std::string file = "model.safetensors";
  return make_vae(golden.text("config.json"), "config.json", source_of(golden.tensors(file), file), tiling);
}

/// per tensor: max|a - ref| <= rtol_of_max * max|ref| + atol
void expect_recorded(const Tensor& actual, const TensorMap& recorded, const std::string& name) {
  const Tensor& expected = recorded.at(name);
  expect_close(actual, expected, 1e-4 * expected.abs().max().item<double>() + 1e-6, name);
}

Tensor batched(const Tensor& batch, const std::function<Tensor(const Tensor&)>& one) {
  std::vector<Tensor> all;
  for (int64_t i = 0; i < batch.size(0); ++i) all.push_back(one(batch.select(0, i)));
  return at::stack(all);
}

Tensor moments(const VideoVae& vae, const Tensor& clips) {
  return batched(clips, [&](const Tensor& clip) {
    const Posterior p = vae.posterior(clip);
    return at::cat({p.mean, p.log_variance});
  });
}
/// Of unscaled latents.
Tensor decoded(const VideoVae& vae, const Tensor& latents) {
  return batched(latents, [&](const Tensor& z) { return vae.decode(z * 0.476986); });
}

class HunyuanVaeTest : public ::testing::Test {
 protected:
  void SetUp() override { TESSERA_NEED_GOLDENS(); }
};

}  // namespace

TEST_F(HunyuanVaeTest, MomentsAndClipsAreAsRecorded) {
  const TensorMap recorded = Golden("hunyuan_vae").tensors("case.safetensors");
  const auto vae = open("hunyuan_vae");
  const Tensor video = recorded.at("in.video"), both = moments(*vae, video);
  expect_recorded(both, recorded, "out.moments");
  expect_recorded(both.narrow(1, 0, 4), recorded, "out.mean");
  expect_recorded((both.narrow(1, 4, 4).clamp(-30, 20) * 0.5).exp(), recorded, "out.std");
  expect_recorded(moments(*vae, video.narrow(2, 0, 1)), recorded, "out.image_moments");
  expect_recorded(decoded(*vae, recorded.at("in.z")), recorded, "out.decoded");
}

TEST_F(HunyuanVaeTest, ConvolutionsOfAFrameAtATimeGiveTheSame) {
  const TensorMap recorded = Golden("hunyuan_vae").tensors("case.safetensors");
  const TensorMap tensors = Golden("hunyuan_vae").tensors("model.safetensors");
  const at::NoGradGuard no_grad;
  const auto vae = open("hunyuan_vae");
  const Config& config = dynamic_cast<const HunyuanVae&>(*vae).config();
  const WeightsOnDemand weights(parameters(config), [&](const std::string& name) { return tensors.at(name); });
  const auto run = [&](const std::vector<Layer>& layers, const char* in) {
    return LayerRunner(weights, /*works=*/false, /*chunk=*/1).run(layers, recorded.at(in)[0]).unsqueeze(0);
  };
  expect_recorded(run(encoder_layers(config), "in.video"), recorded, "out.moments");
  expect_recorded(run(decoder_layers(config), "in.z"), recorded, "out.decoded");
}

TEST_F(HunyuanVaeTest, LatentsOfADenoiserAreScaledAndBytesAreNumbers) {
  const auto vae = open("hunyuan_vae");
  const Tensor video = Golden("hunyuan_vae").tensors("case.safetensors").at("in.video")[0];
  const Tensor latent = vae->encode(video), mean = vae->posterior(video).mean;
  expect_close(latent, mean * 0.476986, 1e-6, "scaled");
  expect_close(latent, (mean - vae->latent_mean().view({-1, 1, 1, 1})) / vae->latent_std().view({-1, 1, 1, 1}), 1e-5,
               "as mean and std say");
  const Tensor bytes = video.add(1).mul(127.5).round().clamp(0, 255).to(at::kByte);
  expect_close(vae->encode(bytes), vae->encode(bytes.to(at::kFloat).div(127.5).sub(1)), 0, "bytes");
}

TEST_F(HunyuanVaeTest, TilesOfDiffusersAreAsRecorded) {
  const TensorMap recorded = Golden("hunyuan_vae_tiled").tensors("case.safetensors");
  const Tiling time = {.frames = 16, .shared_frames = 4};
  const Tiling both = {.size = 32, .overlap = 8, .frames = 16, .shared_frames = 4};
  const auto tiled = open("hunyuan_vae_tiled", both), framewise = open("hunyuan_vae_tiled", time),
             whole = open("hunyuan_vae_tiled");
  expect_recorded(moments(*tiled, recorded.at("in.video")), recorded, "out.moments");
  expect_recorded(decoded(*tiled, recorded.at("in.z")), recorded, "out.decoded");
  expect_recorded(moments(*tiled, recorded.at("in.image")), recorded, "out.image_moments");
  expect_recorded(decoded(*tiled, recorded.at("in.image_z")), recorded, "out.image_decoded");
  expect_recorded(moments(*framewise, recorded.at("in.small_video")), recorded, "out.framewise_moments");
  expect_recorded(decoded(*framewise, recorded.at("in.small_z")), recorded, "out.framewise_decoded");
  expect_recorded(moments(*whole, recorded.at("in.video")), recorded, "out.untiled_moments");
  expect_recorded(decoded(*whole, recorded.at("in.small_z")), recorded, "out.untiled_decoded");
  std::set<std::string> names = {tiled->fingerprint(), framewise->fingerprint(), whole->fingerprint()};
  EXPECT_EQ(names.size(), 3u) << "tiles change latents, so caches must tell them apart";
}

TEST_F(HunyuanVaeTest, TilesOfOpenSoraAreAsRecorded) {
  const Golden golden("opensora_vae_tiling");
  const TensorMap recorded = golden.tensors("case.safetensors");
  const auto config = nlohmann::json::parse(golden.text("config.json"));
  for (const auto& [name, given] : config.at("cases").items()) {
    Tiling tiling;
    if (given.at("spatial")) tiling.size = config.at("sample_size"), tiling.overlap = Tiling::kUsual;
    if (given.at("temporal")) tiling.frames = config.at("sample_tsize"), tiling.shared_frames = Tiling::kUsual;
    const auto vae = open("opensora_vae_tiling", tiling);
    const Tensor video = recorded.at("in." + given.at("video").get<std::string>());
    const Tensor latent = recorded.at("in." + given.at("latent").get<std::string>());
    expect_recorded(moments(*vae, video), recorded, "out." + name + ".moments");
    expect_recorded(batched(video, [&](const Tensor& clip) { return vae->encode(clip); }), recorded,
                    "out." + name + ".z");
    expect_recorded(batched(latent, [&](const Tensor& z) { return vae->decode(z); }), recorded,
                    "out." + name + ".decoded");
  }
}

TEST_F(HunyuanVaeTest, ItsFileIsKnownWithItsConfigAndWhatDoesNotFitIsNamed) {
  const Golden golden("hunyuan_vae");
  const TensorMap tensors = golden.tensors("model.safetensors");
  Shapes shapes;
  for (const auto& [name, tensor] : tensors) shapes[name] = tensor.sizes().vec();
  const Identity what = identify(shapes);
  EXPECT_EQ(what.model, "hunyuan-vae");
  const auto made =
      nlohmann::json::parse(config_for("diffusers", what, shapes, golden.text("config.json"), "config.json"));
  const auto wanted = nlohmann::json::parse(golden.text("config.json"));
  for (const auto& [key, value] : wanted.items()) EXPECT_EQ(made.value(key, nlohmann::json()), value) << key;

  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(golden.text("config.json"));
    config[key] = value;
    return make_vae(config.dump(), "config.json", source_of(tensors, "m"), {});
  };
  expect_error("layers_per_block", [&] { with("layers_per_block", 2); });
  expect_error("block_out_channels", [&] { with("block_out_channels", {8, 8, 8, 16}); });
  expect_error("mid_block_add_attention", [&] { with("mid_block_add_attention", false); });
  expect_error("temporal_compression_ratio", [&] { with("temporal_compression_ratio", 8); });
  expect_error("do not divide into 32", [&] { make_vae("", "", source_of(tensors, "alone.safetensors"), {}); });
  TensorMap cut = tensors;
  cut.erase("decoder.mid_block.attentions.0.to_out.0.bias");
  expect_error("decoder.mid_block.attentions.0.to_out.0.bias",
               [&] { make_vae(golden.text("config.json"), "config.json", source_of(cut, "cut.safetensors"), {}); });
  EXPECT_THROW(open("hunyuan_vae")->latent_shape(8, 64, 64), UserError);
  EXPECT_THROW(open("hunyuan_vae", {.size = 36, .overlap = 8}), UserError);
  EXPECT_THROW(open("hunyuan_vae", {.frames = 18, .shared_frames = 4}), UserError);
}

TEST(HunyuanVae, TheReleasedOneHasThePublishedSizes) {
  int64_t encoder = 0, all = 0;
  const auto parameters_of_all = parameters(Config{});
  for (const Parameter& p : parameters_of_all) {
    all += c10::multiply_integers(p.shape);
    if (p.name.starts_with("encoder.")) encoder += c10::multiply_integers(p.shape);
  }
  EXPECT_EQ(all, 246478803);
  EXPECT_EQ(parameters_of_all.size(), 248u);
  EXPECT_NEAR(static_cast<double>(encoder) / 1e6, 100.3, 0.05);
  const HunyuanVae vae(Config{}, {}, {.size = 256, .overlap = quarter_of_tile<kStride>(256)});
  EXPECT_EQ(vae.latent_shape(129, 256, 256), (std::array<int64_t, 4>{16, 33, 32, 32}));
  EXPECT_EQ(quarter_of_tile<kStride>(256), 64);
}

TEST(StitchedFrames, TilesOfAClipGiveTheClip) {
  const Tensor clip = at::rand({3, 1 + 9 * 2, 2, 3});
  std::vector<int64_t> lengths;
  const Tensor stitched = stitch_frames({4, 3}, 9, 2, [&](const Part& groups) {
    lengths.push_back(groups.length);
    return clip.narrow(1, groups.begin * 2, 1 + groups.length * 2).clone();
  });
  EXPECT_EQ(lengths, (std::vector<int64_t>{4, 4, 3})) << "one at every multiple of the stride";
  expect_close(stitched, clip, 1e-6, "clip");
}

namespace {

/// Widths at which convolutions run as they do at full size; no value matters here.
HunyuanVae sized(const Config& config, const Tiling& tiling) {
  return {config, random_weights(parameters(config)), tiling};
}

class HunyuanVaeMemory : public OneThread {};

}  // namespace

TEST_F(HunyuanVaeMemory, AClipTakesWhatIsSaidTiledOrNotInChunksOrNot) {
  struct Case {
    std::vector<int64_t> widths;
    int64_t frames, height, width;
    Tiling tiling;
  };
  const Case cases[] = {{{32, 32, 64, 64}, 5, 64, 96, {}},
                        {{32, 32, 64, 64}, 5, 96, 128, {.size = 64, .overlap = 16}},
                        {{32, 32, 64, 64}, 25, 32, 48, {.frames = 16, .shared_frames = 4}},
                        {{32, 32, 64, 64}, 13, 48, 64, {.size = 32, .overlap = 8, .frames = 8, .shared_frames = 4}},
                        {{32, 32, 32, 32}, 9, 160, 192, {}}};  // convolutions in several chunks
  testing::MatrixPart part("memory of HunyuanVideo's autoencoder", static_cast<int>(std::size(cases)));
  for (const int drawn : part) {
    const auto& [widths, frames, height, width, tiling] = cases[drawn];
    Config config;
    config.widths = widths;
    config.layers = 1;
    const HunyuanVae vae = sized(config, tiling);
    const std::string what = std::to_string(frames) + " frames of " + std::to_string(height) + " x " +
                             std::to_string(width) + ", tiles of " + std::to_string(tiling.size) + " and " +
                             std::to_string(tiling.frames);
    expect_bytes(vae, {frames, height, width}, what);
  }
}

/// What docs/long-clips.md states.
TEST(HunyuanVae, TilesBoundTheMemoryOfLongClips) {
  constexpr double kGiB = 1 << 30;
  struct Bound {
    int64_t height, width, tile, frames;
    double encode, decode;  // GiB
  };
  for (const auto& [height, width, tile, frames, encode, decode] :
       {Bound{256, 256, 0, 0, 8.4, 12.5}, Bound{768, 768, 0, 0, 75, 112}, Bound{768, 768, 256, 0, 8.5, 13.6},
        Bound{768, 768, 256, 64, 4.4, 8}, Bound{768, 768, 256, 16, 1.3, 3}}) {
    const HunyuanVae vae(
        Config{}, {},
        {.size = tile, .overlap = quarter_of_tile<kStride>(tile), .frames = frames, .shared_frames = frames / 4});
    const auto there = static_cast<double>(vae.encode_bytes(129, height, width, count_meta)) / kGiB;
    const auto back = static_cast<double>(vae.decode_bytes(129, height, width, count_meta)) / kGiB;
    std::cout << "129 x " << height << " x " << width << ", tiles of " << tile << " and " << frames << ": encode "
              << there << " GiB, decode " << back << " GiB\n";
    EXPECT_LT(there, encode);
    EXPECT_LT(back, decode);
  }
}

}  // namespace tessera::models::hunyuan_vae
