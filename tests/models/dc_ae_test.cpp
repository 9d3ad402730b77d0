#include "tessera/models/vae/dc_ae.h"

#include "models/autoencoder_case.h"
#include "models/vae_bytes.h"
#include "tessera/base/check.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"
#include "tessera/models/vae/dc_ae_config.h"

namespace tessera::models::dc_ae {

namespace {

std::unique_ptr<VideoVae> open(const std::string& name, const std::string& file = "model.safetensors",
                               const Tiling& tiling = {}, const std::string& config = "config.json") {
  const Golden golden(name);
  return make_vae(config.empty() ? "" : golden.text(config), config, source_of(golden.tensors(file), file), tiling);
}

/// per tensor: max|a - ref| <= rtol_of_max * max|ref| + atol
void expect_recorded(const Tensor& actual, const TensorMap& recorded, const std::string& name) {
  const Tensor& expected = recorded.at(name);
  expect_close(actual, expected, 1e-4 * expected.abs().max().item<double>() + 1e-6, name);
}

/// A batch of pictures [B, 3, H, W] is a clip of frames that are coded alone.
Tensor as_clip(const Tensor& pictures) { return pictures.transpose(0, 1); }

Tensor latents(const VideoVae& vae, const Tensor& pictures) { return as_clip(vae.posterior(as_clip(pictures)).mean); }

Tensor pictures(const VideoVae& vae, const Tensor& unscaled) {
  return as_clip(vae.decode(as_clip(unscaled) * dynamic_cast<const DcAe&>(vae).config().scaling_factor));
}

class DcAeTest : public ::testing::Test {
 protected:
  void SetUp() override { TESSERA_NEED_GOLDENS(); }
};

}  // namespace

TEST_F(DcAeTest, PicturesAndLatentsAreAsRecordedUnderBothNamings) {
  const TensorMap recorded = Golden("dc_ae").tensors("case.safetensors");
  for (const char* file : {"model.safetensors", "original.safetensors"})
    for (const char* config : {"config.json", ""}) {
      const auto vae = open("dc_ae", file, {}, config);
      expect_recorded(latents(*vae, recorded.at("in.image")), recorded, "out.latent");
      expect_recorded(pictures(*vae, recorded.at("in.z")), recorded, "out.decoded");
    }
}

TEST_F(DcAeTest, TilesAreAsRecorded) {
  const TensorMap recorded = Golden("dc_ae_tiled").tensors("case.safetensors");
  const auto tiled = open("dc_ae_tiled", "model.safetensors", {.size = 96, .overlap = 32}), whole = open("dc_ae_tiled");
  for (const std::string size : {"", "_wide"}) {
    expect_recorded(latents(*tiled, recorded.at("in.image" + size)), recorded, "out.latent" + size);
    expect_recorded(pictures(*tiled, recorded.at("in.z" + size)), recorded, "out.decoded" + size);
  }
  expect_recorded(latents(*whole, recorded.at("in.image")), recorded, "out.latent_untiled");
  expect_recorded(pictures(*whole, recorded.at("in.z_wide")), recorded, "out.decoded_wide_untiled");
  EXPECT_NE(tiled->fingerprint(), whole->fingerprint()) << "tiles change latents, so caches must tell them apart";
}

TEST_F(DcAeTest, LatentsOfADenoiserAreScaledAndDecodeUndoesIt) {
  const auto vae = open("dc_ae");
  const Tensor image = Golden("dc_ae").tensors("case.safetensors").at("in.image").narrow(0, 0, 1).transpose(0, 1);
  const Tensor latent = vae->encode(image), unscaled = vae->posterior(image).mean;
  expect_close(latent, unscaled * 0.41407, 1e-6, "scaled");
  expect_close(latent, (unscaled - vae->latent_mean().view({-1, 1, 1, 1})) / vae->latent_std().view({-1, 1, 1, 1}),
               1e-5, "as mean and std say");
  EXPECT_FALSE(vae->posterior(image).log_variance.defined());
  const Tensor bytes = image.add(1).mul(127.5).round().clamp(0, 255).to(at::kByte);
  expect_close(vae->encode(bytes), vae->encode(bytes.to(at::kFloat).div(127.5).sub(1)), 0, "bytes are numbers");
}

TEST_F(DcAeTest, BothFilesAreKnownAndOneFingerprintNamesTheirWeights) {
  const Golden golden("dc_ae");
  const auto shapes = [&](const char* file) {
    Shapes all;
    for (const auto& [name, tensor] : golden.tensors(file)) all[name] = tensor.sizes().vec();
    return all;
  };
  const Identity one = identify(shapes("model.safetensors")), other = identify(shapes("original.safetensors"));
  EXPECT_EQ(one.model + "|" + one.variant, "dc-ae-f32c32|diffusers");
  EXPECT_EQ(other.model + "|" + other.variant, "dc-ae-f32c32|efficientvit");
  EXPECT_EQ(open("dc_ae")->fingerprint(), open("dc_ae", "original.safetensors")->fingerprint());
  const auto made = nlohmann::json::parse(config_for("diffusers", one, shapes("model.safetensors"), "{}", "none"));
  const auto wanted = nlohmann::json::parse(golden.text("config.json"));
  for (const auto& [key, value] : wanted.items()) EXPECT_EQ(made.value(key, nlohmann::json()), value) << key;
}

TEST_F(DcAeTest, WhatIsMissingOrOfAnotherKindIsNamed) {
  const Golden golden("dc_ae");
  TensorMap tensors = golden.tensors("model.safetensors");
  tensors.erase("decoder.up_blocks.3.1.attn.norm_out.bias");
  expect_error("decoder.up_blocks.3.1.attn.norm_out.bias",
               [&] { make_vae("", "", source_of(tensors, "cut.safetensors"), {}); });
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(golden.text("config.json"));
    config[key] = value;
    return make_vae(config.dump(), "config.json", source_of(golden.tensors("model.safetensors"), "m"), {});
  };
  expect_error("upsample_block_type", [&] { with("upsample_block_type", "pixel_shuffle"); });
  expect_error("encoder_layers_per_block", [&] { with("encoder_layers_per_block", {1, 1, 1, 1, 2, 2}); });
  expect_error("decoder_norm_types", [&] { with("decoder_norm_types", {"batch_norm"}); });
  EXPECT_NO_THROW(with("decoder_norm_types", std::vector<std::string>(6, "rms_norm")));
  EXPECT_THROW(open("dc_ae")->latent_shape(1, 48, 64), UserError);
  EXPECT_THROW(open("dc_ae", "model.safetensors", {.size = 80, .overlap = 16}), UserError);
}

TEST(DcAe, TheReleasedOneHasThePublishedSizes) {
  int64_t numel = 0;
  const auto all = parameters(Config{});
  for (const Parameter& p : all) numel += c10::multiply_integers(p.shape);
  EXPECT_EQ(numel, 312250275);
  EXPECT_EQ(all.size(), 375u);
  EXPECT_EQ(Config{}.stride(), 32);
  EXPECT_EQ(autoencoder().usual_overlap(512), 64);
  const StoredRows rows = in_efficientvit("decoder.up_blocks.4.2.attn.to_v.weight");
  EXPECT_EQ(rows.name, "decoder.stages.4.op_list.2.context_module.main.qkv.conv.weight");
  EXPECT_EQ(rows.part, 2);
}

TEST(StitchedTiles, TilesOfAPictureGiveThePicture) {
  const Tensor picture = at::rand({3, 26, 34});
  int runs = 0;
  const Tensor stitched = stitch_tiles({{6, 4}, {5, 3}}, 13, 17, 2, [&](const Part& y, const Part& x) {
    ++runs;
    return picture.narrow(1, y.begin * 2, y.length * 2).narrow(2, x.begin * 2, x.length * 2).clone();
  });
  EXPECT_EQ(runs, 4 * 6) << "one at every multiple of the stride, also where it lies in the overlap alone";
  expect_close(stitched, picture, 1e-6, "picture");
  const TileGrid tiles = {{6, 4}, {5, 3}};
  EXPECT_FALSE(applies(tiles, 6, 5));
  EXPECT_TRUE(applies(tiles, 7, 2));
  EXPECT_TRUE(applies(tiles, 2, 6));
}

namespace {

/// Widths at which convolutions run as they do at full size; no value matters here.
DcAe sized(int64_t scale, const Tiling& tiling) {
  Config config;
  for (auto* half : {&config.encoder, &config.decoder})
    for (Stage& stage : *half) stage.width /= scale, stage.depth = 1;
  const auto shapes = std::make_shared<std::map<std::string, std::vector<int64_t>>>();
  for (const Parameter& p : parameters(config)) (*shapes)[p.name] = p.shape;
  return DcAe(
      config, [shapes](const std::string& name) { return at::full(shapes->at(name), 0.01, at::kFloat); }, tiling);
}

class DcAeMemory : public OneThread {};

}  // namespace

TEST_F(DcAeMemory, APictureTakesWhatIsSaidTiledOrNot) {
  struct Case {
    int64_t scale, frames, height, width;
    Tiling tiling;
  };
  const Case cases[] = {{4, 1, 128, 192, {}},
                        {4, 3, 128, 192, {.size = 96, .overlap = 32}},
                        {4, 1, 320, 64, {.size = 128, .overlap = 64}},
                        {1, 1, 64, 64, {}}};
  for (const auto& [scale, frames, height, width, tiling] : cases) {
    const DcAe vae = sized(scale, tiling);
    const std::string what = std::to_string(height) + " x " + std::to_string(width) + ", widths / " +
                             std::to_string(scale) + ", tiles of " + std::to_string(tiling.size);
    expect_bytes(vae, {frames, height, width}, what);
  }
}

/// What docs/long-clips.md states.
TEST(DcAe, TilesBoundTheMemoryOfLargePictures) {
  constexpr double kGiB = 1 << 30;
  struct Bound {
    int64_t side, tile;
    double encode, decode;  // GiB
  };
  for (const auto& [side, tile, encode, decode] : {Bound{1024, 0, 1.55, 1.8}, Bound{4096, 512, 0.4, 0.85}}) {
    const DcAe vae(Config{}, {}, {.size = tile, .overlap = autoencoder().usual_overlap(tile)});
    const auto found = static_cast<double>(vae.encode_bytes(1, side, side, count_meta)) / kGiB;
    const auto back = static_cast<double>(vae.decode_bytes(1, side, side, count_meta)) / kGiB;
    std::cout << side << " x " << side << ", tile " << tile << ": encode " << found << " GiB, decode " << back
              << " GiB\n";
    EXPECT_LT(found, encode);
    EXPECT_LT(back, decode);
  }
}

}  // namespace tessera::models::dc_ae
