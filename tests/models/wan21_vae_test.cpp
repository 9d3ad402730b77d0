#include "tessera/models/vae/wan21.h"

#include <ATen/Parallel.h>

#include "golden.h"
#include "ops/byte_count.h"
#include "tessera/base/check.h"

namespace tessera::models::wan21 {

namespace {

/// The tiny autoencoder of the golden case.
class Wan21VaeTest : public ::testing::Test {
 protected:
  void SetUp() override { TESSERA_NEED_GOLDENS(); }

  static WeightSource source(const TensorMap& tensors, const std::string& file) {
    WeightSource weights;
    weights.file = file;
    for (const auto& [name, tensor] : tensors) weights.names.push_back(name);
    weights.shape = [&](const std::string& name) { return tensors.at(name).sizes().vec(); };
    weights.read = [&](const std::string& name) { return tensors.at(name); };
    return weights;
  }
  static std::unique_ptr<VideoVae> open(const std::string& config = "config.json",
                                        const std::string& weights = "model.safetensors", const Tiling& tiling = {}) {
    const Golden golden("wan21_vae");
    const TensorMap tensors = golden.tensors(weights);
    return make_vae(config.empty() ? "" : golden.text(config), config, source(tensors, weights), tiling);
  }
  static const Wan21Vae& wan(const std::unique_ptr<VideoVae>& vae) { return dynamic_cast<const Wan21Vae&>(*vae); }
};

void expect_error(const std::string& text, const std::function<void()>& act, Exit code) {
  try {
    act();
    ADD_FAILURE() << "no error; expected one with '" << text << "'";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE((std::string(error.what()) + error.hint()).find(text), std::string::npos) << error.what();
  }
}
void expect_input_error(const std::string& text, const std::function<void()>& act) {
  expect_error(text, act, Exit::input);
}

void expect_recorded(const VideoVae& vae) {
  const Golden golden("wan21_vae");
  const TensorMap tensors = golden.tensors("case.safetensors");
  const double bound = golden.tolerance("out");
  for (const std::string what : {"video", "image"}) {
    const Posterior p = vae.posterior(tensors.at("in." + what));
    expect_close(p.mean, tensors.at("out." + what + "_mu"), bound, what + "_mu");
    expect_close(p.log_variance, tensors.at("out." + what + "_logvar"), bound, what + "_logvar");
    const Tensor latent = vae.encode(tensors.at("in." + what));
    expect_close(latent, tensors.at("out." + what + "_latent"), bound, what + "_latent");
    expect_close(vae.decode(latent), tensors.at("out." + what + "_decoded"), bound, what + "_decoded");
  }
  expect_close(vae.decode(tensors.at("in.z")), tensors.at("out.z_decoded"), bound, "z_decoded");
  expect_close(vae.latent_mean(), tensors.at("out.mean"), 1e-6, "mean");
  expect_close(vae.latent_std(), tensors.at("out.std"), 1e-6, "std");
}

}  // namespace

TEST_F(Wan21VaeTest, ClipsImagesAndLatentsAreAsRecorded) { expect_recorded(*open()); }

TEST_F(Wan21VaeTest, DiffusersNamesAndConfigMeanTheSame) {
  expect_recorded(*open("diffusers_config.json", "diffusers.safetensors"));
}

TEST_F(Wan21VaeTest, WeightsAloneTellTheSizes) {
  expect_recorded(*open("", "model.safetensors"));
  expect_recorded(*open("", "diffusers.safetensors"));
}

TEST_F(Wan21VaeTest, ChunksByHandAreTheWholeClipAndAnImageIsItsFirstFrame) {
  const auto vae = open();
  const Tensor video = Golden("wan21_vae").tensors("case.safetensors").at("in.video");
  const Posterior whole = vae->posterior(video);
  FeatureCache cache;
  for (int64_t i = 0; i < 3; ++i) {
    const Tensor chunk = i == 0 ? video.narrow(1, 0, 1) : video.narrow(1, 4 * i - 3, 4);
    const Tensor both = wan(vae).encode_chunk(chunk, cache);
    expect_close(both.narrow(0, 0, 16), whole.mean.narrow(1, i, 1), 0, "chunk " + std::to_string(i));
  }
  expect_close(vae->posterior(video.narrow(1, 0, 1)).mean, whole.mean.narrow(1, 0, 1), 0, "image");
  // two clips do not disturb each other: everything that is remembered is in the cache
  FeatureCache a, b;
  const Tensor latent = whole.mean;
  wan(vae).decode_chunk(latent.narrow(1, 0, 1), a);
  const Tensor alone = wan(vae).decode_chunk(latent.narrow(1, 1, 1), a);
  FeatureCache c;
  wan(vae).decode_chunk(latent.narrow(1, 0, 1), c);
  wan(vae).decode_chunk(latent.narrow(1, 2, 1), b);
  expect_close(wan(vae).decode_chunk(latent.narrow(1, 1, 1), c), alone, 0, "second chunk");
}

TEST_F(Wan21VaeTest, LaterFramesDoNotChangeEarlierOnes) {
  const auto vae = open();
  const TensorMap tensors = Golden("wan21_vae").tensors("case.safetensors");
  Tensor video = tensors.at("in.video").clone();
  const Tensor before = vae->encode(video);
  video.narrow(1, 5, 4).mul_(-1);
  const Tensor after = vae->encode(video);
  expect_close(after.narrow(1, 0, 2), before.narrow(1, 0, 2), 0, "frames before the change");
  EXPECT_GT((after - before).narrow(1, 2, 1).abs().max().item<double>(), 0.01);
}

TEST_F(Wan21VaeTest, NothingKeepsAGraph) {
  const auto vae = open();
  Tensor video = Golden("wan21_vae").tensors("case.safetensors").at("in.video").clone().requires_grad_();
  const Tensor latent = vae->encode(video);
  EXPECT_FALSE(latent.requires_grad());
  EXPECT_FALSE(vae->decode(latent.clone().requires_grad_()).requires_grad());
  EXPECT_FALSE(vae->posterior(video).log_variance.requires_grad());
}

TEST_F(Wan21VaeTest, ATileAsLargeAsThePictureIsThePicture) {
  const TensorMap tensors = Golden("wan21_vae").tensors("case.safetensors");
  const Tensor &video = tensors.at("in.video"), &z = tensors.at("in.z");
  const auto whole = open(), tiled = open("config.json", "model.safetensors", {.size = 48, .overlap = 16});
  expect_close(tiled->encode(video), whole->encode(video), 0, "encoded");
  expect_close(tiled->decode(z), whole->decode(z), 0, "decoded");
  EXPECT_NE(tiled->fingerprint(), whole->fingerprint()) << "tiles change latents, so caches must tell them apart";
}

/// A smooth picture with some detail, [3, 1, h, w].
Tensor picture(int64_t h, int64_t w) {
  const Tensor y = at::arange(h, at::kFloat).view({1, 1, h, 1}), x = at::arange(w, at::kFloat).view({1, 1, 1, w});
  const Tensor phase = at::tensor({0.0F, 0.4F, 0.9F}).view({3, 1, 1, 1});
  return 0.6 * at::sin(0.05 * x + 0.02 * y + phase) + 0.3 * at::cos(0.21 * y - 0.13 * x + phase);
}

double relative(const Tensor& a, const Tensor& b) {
  return ((a - b).square().mean() / b.square().mean()).sqrt().item<double>();
}

TEST_F(Wan21VaeTest, TilesComeCloseToTheWholePicture) {
  // Two things differ: near its edge a tile does not see what lies beyond, and its middle attends to itself alone.
  // Random weights attend to everything alike and pass on what trained ones damp, so this is about the worst case:
  // measured 0.03 and 0.12 of the size of the values.
  const auto whole = open(), tiled = open("config.json", "model.safetensors", {.size = 256, .overlap = 64});
  const Tensor pixels = picture(64, 448), latent = whole->encode(pixels);
  const double encoded = relative(tiled->encode(pixels), latent);
  const double decoded = relative(tiled->decode(latent), whole->decode(latent));
  std::cout << "tiles differ by " << encoded << " encoded, " << decoded << " decoded\n";
  EXPECT_GT(encoded, 0);
  EXPECT_LT(encoded, 0.1);
  EXPECT_LT(decoded, 0.2);
}

TEST_F(Wan21VaeTest, WithoutAttentionTilesDifferOnlyNearTheirEdges) {
  const Golden golden("wan21_vae");
  TensorMap tensors = golden.tensors("model.safetensors");
  for (const char* site : {"encoder.middle.1.proj.weight", "encoder.middle.1.proj.bias", "decoder.middle.1.proj.weight",
                           "decoder.middle.1.proj.bias"})
    tensors[site] = at::zeros_like(tensors.at(site));
  const auto make = [&](const Tiling& tiling) {
    return make_vae(golden.text("config.json"), "", source(tensors, ""), tiling);
  };
  const auto whole = make({}), tiled = make({.size = 256, .overlap = 64});
  const Tensor pixels = picture(64, 448), latent = whole->encode(pixels);  // tiles of columns 0..31 and 24..55
  const Tensor difference = (tiled->encode(pixels) - latent).abs();
  EXPECT_LT(difference.narrow(3, 0, 8).max().item<double>(), 1e-4) << "far from the seam";
  EXPECT_LT(difference.narrow(3, 48, 8).max().item<double>(), 1e-4) << "far from the seam";
  EXPECT_GT(difference.narrow(3, 24, 8).max().item<double>(), 1e-3) << "or nothing was tiled";
  const Tensor decoded = (tiled->decode(latent) - whole->decode(latent)).abs();
  EXPECT_LT(decoded.narrow(3, 0, 48).max().item<double>(), 1e-4);
  EXPECT_LT(decoded.narrow(3, 400, 48).max().item<double>(), 1e-4);
}

TEST(VaeTiles, SpansCoverTheSideAndShareWhatTheySay) {
  const auto spans = tile_spans(20, 8, 2);
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[1].begin, 6);
  EXPECT_EQ(spans[2].begin, 12);
  EXPECT_EQ(spans[2].end, 20);
  EXPECT_EQ(spans[0].shared_after, 2);
  EXPECT_EQ(tile_spans(21, 8, 2).back().begin, 13) << "the last one is moved back, not cut";
  EXPECT_EQ(tile_spans(5, 8, 2).size(), 1u);
  EXPECT_THROW(tile_spans(20, 8, 8), UserError);
}

TEST(VaeTiles, BlendingTilesOfAPictureGivesThePicture) {
  const Tensor picture = at::rand({2, 3, 22, 30});
  int runs = 0;
  const Tensor blended = blend_tiles({.size = 64, .overlap = 16}, 8, 11, 15, 2, [&](const Span& y, const Span& x) {
    ++runs;
    return picture.narrow(2, y.begin * 2, y.length() * 2).narrow(3, x.begin * 2, x.length() * 2).clone();
  });
  EXPECT_EQ(runs, 6);
  expect_close(blended, picture, 1e-6, "picture");
}

/// Random weights, wide enough that convolutions run as they do at full size.
Wan21Vae random_vae(const Tiling& tiling) {
  Config config;
  config.dim = 16;
  net::WeightMap weights;
  for (const Parameter& p : parameters(config))
    weights[p.name] = p.shape.size() < 4 || p.name.ends_with("gamma")
                          ? at::ones(p.shape, at::kFloat)
                          : at::randn(p.shape, at::kFloat) / std::sqrt(static_cast<double>(p.shape[1] * 9));
  return Wan21Vae(config, std::move(weights), tiling);
}

class Wan21VaeMemory : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }  // counting is of one thread
  void TearDown() override { at::set_num_threads(threads_); }
  const int threads_ = at::get_num_threads();
};

/// Within a tenth below what was said, never above.
void expect_bytes(int64_t measured, int64_t said, const std::string& what) {
  EXPECT_LE(measured, said) << what;
  EXPECT_GE(static_cast<double>(measured), 0.9 * static_cast<double>(said)) << what;
}

TEST_F(Wan21VaeMemory, AChunkTakesWhatTheFormulaSays) {
  const int64_t height = 64, width = 96;
  const Wan21Vae vae = random_vae({});
  const auto measure = [&](const ChunkBytes& said, const Tensor& first, const Tensor& next,
                           Tensor (Wan21Vae::*run)(const Tensor&, FeatureCache&) const, const std::string& what) {
    FeatureCache cache;
    (vae.*run)(first, cache);
    (vae.*run)(next, cache);  // the first chunk that fills every entry
    EXPECT_EQ(cache.bytes(), said.cache) << what;
    const testing::ByteCount count(at::kCPU);
    (vae.*run)(next, cache);
    expect_bytes(count.peak(), said.work, what);
    EXPECT_EQ(count.live(), 0) << what << ": a chunk leaves nothing but the cache";
  };
  measure(vae.encode_chunk_bytes(height, width), at::randn({3, 1, height, width}), at::randn({3, 4, height, width}),
          &Wan21Vae::encode_chunk, "encode");
  const Tensor latent = at::randn({16, 1, height / 8, width / 8});
  measure(vae.decode_chunk_bytes(height, width), latent, latent, &Wan21Vae::decode_chunk, "decode");
}

TEST_F(Wan21VaeMemory, AWholeClipTakesWhatIsSaidTiledOrNot) {
  const Tensor video = at::randn({3, 9, 64, 96});
  for (const Tiling tiling : {Tiling{}, Tiling{.size = 64, .overlap = 16}}) {
    const Wan21Vae vae = random_vae(tiling);
    const std::string what = std::to_string(tiling.size) + " pixels";
    Tensor latent;
    {
      const testing::ByteCount count(at::kCPU);
      latent = vae.encode(video);
      expect_bytes(count.peak(), vae.encode_bytes(9, 64, 96), "encode, " + what);
    }
    const testing::ByteCount count(at::kCPU);
    vae.decode(latent);
    expect_bytes(count.peak(), vae.decode_bytes(9, 64, 96), "decode, " + what);
  }
}

TEST(Wan21Vae, TheReleasedOneHasThePublishedSize) {
  int64_t numel = 0;
  const auto all = parameters(Config{});
  for (const Parameter& p : all) numel += c10::multiply_integers(p.shape);
  EXPECT_EQ(numel, 126892531);
  EXPECT_EQ(all.size(), 194u);
  EXPECT_EQ(Config{}.stride(), 8);
  EXPECT_EQ(Config{}.time_stride(), 4);
}

TEST_F(Wan21VaeTest, SizesThatDoNotFitAreRefusedWithTheNearest) {
  const auto vae = open();
  EXPECT_EQ(vae->latent_shape(81, 480, 832), (std::array<int64_t, 4>{16, 21, 60, 104}));
  expect_error(
      "17 x 64 x 96", [&] { vae->latent_shape(20, 64, 100); }, Exit::usage);
  expect_error(
      "1 + 4n frames",
      [&] {
        vae->encode(at::zeros({3, 4, 32, 32}));
      },
      Exit::usage);
  expect_input_error("[3, F, H, W]", [&] { vae->encode(at::zeros({1, 3, 32, 32})); });
  expect_input_error("[16, f, h, w]", [&] { vae->decode(at::zeros({48, 1, 4, 4})); });
  FeatureCache cache;
  expect_input_error("first frame alone", [&] { wan(vae).encode_chunk(at::zeros({3, 4, 32, 32}), cache); });
  EXPECT_THROW(open("config.json", "model.safetensors", {.size = 30, .overlap = 8}), UserError);
}

TEST_F(Wan21VaeTest, WeightsThatDoNotFitAreNamed) {
  const Golden golden("wan21_vae");
  const auto open_changed = [&](const std::function<void(TensorMap&)>& change, const std::string& config) {
    TensorMap tensors = golden.tensors("model.safetensors");
    change(tensors);
    make_vae(config, "config.json", source(tensors, "some.pth"), {});
  };
  const std::string config = golden.text("config.json");
  expect_input_error("decoder.head.2.bias",
                     [&] { open_changed([](TensorMap& t) { t.erase("decoder.head.2.bias"); }, config); });
  expect_input_error("expected [8, 4, 3, 3, 3]", [&] {
    open_changed(
        [](TensorMap& t) {
          t["encoder.downsamples.3.residual.2.weight"] = at::zeros({8, 3, 3, 3, 3});
        },
        config);
  });
  expect_input_error("Wan 2.2", [&] {
    open_changed(
        [](TensorMap& t) {
          t["encoder.downsamples.0.downsamples.0.residual.2.weight"] = at::zeros({4, 4, 3, 3, 3});
        },
        "");
  });
  expect_input_error("Wan 2.2", [&] { parse_config(Golden("wan22_vae").text("config.json"), "config.json"); });
  expect_input_error("Wan 2.2",
                     [&] { parse_config(Golden("wan22_vae").text("diffusers_config.json"), "config.json"); });
  expect_input_error("std", [&] { parse_config(R"({"z_dim": 1, "mean": [0], "std": [0]})", "config.json"); });
}

TEST_F(Wan21VaeTest, FingerprintsTellWeightsApart) {
  const Golden golden("wan21_vae");
  TensorMap tensors = golden.tensors("model.safetensors");
  const auto official = make_vae(golden.text("config.json"), "", source(tensors, ""), {})->fingerprint();
  EXPECT_EQ(official, open("diffusers_config.json", "diffusers.safetensors")->fingerprint()) << "same values";
  tensors["conv1.bias"] = tensors["conv1.bias"].clone().add_(1e-6);
  EXPECT_NE(official, make_vae(golden.text("config.json"), "", source(tensors, ""), {})->fingerprint());
}

}  // namespace tessera::models::wan21
