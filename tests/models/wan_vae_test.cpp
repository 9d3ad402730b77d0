#include "tessera/models/vae/wan.h"

#include <ATen/Parallel.h>

#include "models/autoencoder_case.h"
#include "ops/byte_count.h"
#include "tessera/base/check.h"
#include "tessera/models/registry.h"

namespace tessera::models::wan_vae {

namespace {

std::unique_ptr<VideoVae> open_case(const std::string& name, const std::string& config = "config.json",
                                    const std::string& weights = "model.safetensors", const Tiling& tiling = {}) {
  const Golden golden(name);
  return make_vae(config.empty() ? "" : golden.text(config), config, source_of(golden.tensors(weights), weights),
                  tiling);
}

/// The tiny autoencoder of Wan 2.1's golden case.
class WanVaeTest : public ::testing::Test {
 protected:
  void SetUp() override { TESSERA_NEED_GOLDENS(); }

  static std::unique_ptr<VideoVae> open(const std::string& config = "config.json",
                                        const std::string& weights = "model.safetensors", const Tiling& tiling = {}) {
    return open_case("wan21_vae", config, weights, tiling);
  }
  static const WanVae& wan(const std::unique_ptr<VideoVae>& vae) { return dynamic_cast<const WanVae&>(*vae); }
};

/// Those of both golden cases.
class WanVaes : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { TESSERA_NEED_GOLDENS(); }
  static std::unique_ptr<VideoVae> open(const std::string& config = "config.json",
                                        const std::string& weights = "model.safetensors", const Tiling& tiling = {}) {
    return open_case(GetParam(), config, weights, tiling);
  }
};
INSTANTIATE_TEST_SUITE_P(Golden, WanVaes, ::testing::Values("wan21_vae", "wan22_vae"),
                         [](const auto& info) { return info.param; });

void expect_recorded(const std::string& name, const VideoVae& vae) {
  const Golden golden(name);
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

TEST_P(WanVaes, ClipsImagesAndLatentsAreAsRecorded) { expect_recorded(GetParam(), *open()); }

TEST_P(WanVaes, DiffusersNamesAndConfigMeanTheSame) {
  expect_recorded(GetParam(), *open("diffusers_config.json", "diffusers.safetensors"));
}

TEST_P(WanVaes, WeightsAloneTellTheSizes) {
  expect_recorded(GetParam(), *open("", "model.safetensors"));
  expect_recorded(GetParam(), *open("", "diffusers.safetensors"));
}

TEST_P(WanVaes, ChunksByHandAreTheWholeClipAndAnImageIsItsFirstFrame) {
  const auto opened = open();
  const auto& vae = dynamic_cast<const WanVae&>(*opened);
  const int64_t z = vae.config().z_dim;
  const Tensor video = Golden(GetParam()).tensors("case.safetensors").at("in.video");
  const Posterior whole = vae.posterior(video);
  FeatureCache cache;
  for (int64_t i = 0; i < whole.mean.size(1); ++i) {
    const Tensor chunk = i == 0 ? video.narrow(1, 0, 1) : video.narrow(1, 4 * i - 3, 4);
    const Tensor both = vae.encode_chunk(chunk, cache);
    expect_close(both.narrow(0, 0, z), whole.mean.narrow(1, i, 1), 0, "chunk " + std::to_string(i));
  }
  expect_close(vae.posterior(video.narrow(1, 0, 1)).mean, whole.mean.narrow(1, 0, 1), 0, "image");
  // two clips do not disturb each other: everything that is remembered is in the cache
  FeatureCache a, b, c;
  const Tensor latent = whole.mean;
  vae.decode_chunk(latent.narrow(1, 0, 1), a);
  const Tensor alone = vae.decode_chunk(latent.narrow(1, 1, 1), a);
  vae.decode_chunk(latent.narrow(1, 0, 1), c);
  vae.decode_chunk(latent.narrow(1, 2, 1), b);
  expect_close(vae.decode_chunk(latent.narrow(1, 1, 1), c), alone, 0, "second chunk");
}

TEST_P(WanVaes, BytesOfAClipAreItsNumbers) {
  const auto vae = open();
  const Tensor bytes = Golden(GetParam()).tensors("case.safetensors").at("in.video").add(1).mul(127.5).round();
  expect_close(vae->encode(bytes.clamp(0, 255).to(at::kByte)), vae->encode(bytes.clamp(0, 255).div(127.5).sub(1)), 0,
               "latent");
}

TEST_P(WanVaes, WeightsAreThereOnlyWhileTheyAreNeeded) {
  const Golden golden(GetParam());
  const auto tensors = std::make_shared<const TensorMap>(golden.tensors("model.safetensors"));
  WeightSource weights = source_of(*tensors, "");
  std::vector<std::weak_ptr<int>> given;  // a token in each tensor that was read, gone with it
  weights.read = [&given, tensors](const std::string& name) {
    const auto token = std::make_shared<int>(0);
    given.push_back(token);
    const Tensor kept = tensors->at(name).contiguous();
    return at::from_blob(
        kept.data_ptr(), kept.sizes(), [kept, token](void*) {}, at::kFloat);
  };
  const auto held = [&] {
    return std::count_if(given.begin(), given.end(), [](const auto& token) { return !token.expired(); });
  };
  const auto vae = make_vae(golden.text("config.json"), "", weights, {});
  EXPECT_TRUE(given.empty()) << "opening reads nothing";
  const std::string fingerprint = vae->fingerprint();
  EXPECT_EQ(held(), 0) << "a hash keeps nothing";
  const Tensor image = golden.tensors("case.safetensors").at("in.image");
  const Tensor latent = vae->encode(image);
  EXPECT_EQ(held(), static_cast<int64_t>(tensors->size()));
  vae->release();
  EXPECT_EQ(held(), 0);
  expect_close(vae->encode(image), latent, 0, "read again");
  EXPECT_EQ(vae->fingerprint(), fingerprint);
}

TEST_F(WanVaeTest, LaterFramesDoNotChangeEarlierOnes) {
  const auto vae = open();
  const TensorMap tensors = Golden("wan21_vae").tensors("case.safetensors");
  Tensor video = tensors.at("in.video").clone();
  const Tensor before = vae->encode(video);
  video.narrow(1, 5, 4).mul_(-1);
  const Tensor after = vae->encode(video);
  expect_close(after.narrow(1, 0, 2), before.narrow(1, 0, 2), 0, "frames before the change");
  EXPECT_GT((after - before).narrow(1, 2, 1).abs().max().item<double>(), 0.01);
}

TEST_F(WanVaeTest, NothingKeepsAGraph) {
  const auto vae = open();
  Tensor video = Golden("wan21_vae").tensors("case.safetensors").at("in.video").clone().requires_grad_();
  const Tensor latent = vae->encode(video);
  EXPECT_FALSE(latent.requires_grad());
  EXPECT_FALSE(vae->decode(latent.clone().requires_grad_()).requires_grad());
  EXPECT_FALSE(vae->posterior(video).log_variance.requires_grad());
}

TEST_F(WanVaeTest, ATileAsLargeAsThePictureIsThePicture) {
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

TEST_F(WanVaeTest, TilesComeCloseToTheWholePicture) {
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

TEST_F(WanVaeTest, WithoutAttentionTilesDifferOnlyNearTheirEdges) {
  const Golden golden("wan21_vae");
  TensorMap tensors = golden.tensors("model.safetensors");
  for (const char* site : {"encoder.middle.1.proj.weight", "encoder.middle.1.proj.bias", "decoder.middle.1.proj.weight",
                           "decoder.middle.1.proj.bias"})
    tensors[site] = at::zeros_like(tensors.at(site));
  const auto make = [&](const Tiling& tiling) {
    return make_vae(golden.text("config.json"), "", source_of(tensors, ""), tiling);
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
  const Tensor blended = blend_tiles({{8, 6}, {8, 6}}, 11, 15, 2, [&](const Span& y, const Span& x) {
    ++runs;
    return picture.narrow(2, y.begin * 2, y.length() * 2).narrow(3, x.begin * 2, x.length() * 2).clone();
  });
  EXPECT_EQ(runs, 6);
  expect_close(blended, picture, 1e-6, "picture");
}

/// Random weights, wide enough that convolutions run as they do at full size.
WanVae random_vae(Config config, const Tiling& tiling) {
  config.dim = config.decoder_dim = 16;
  const auto weights = std::make_shared<net::WeightMap>();
  for (const Parameter& p : parameters(config))
    (*weights)[p.name] = p.shape.size() < 4 || p.name.ends_with("gamma")
                             ? at::ones(p.shape, at::kFloat)
                             : at::randn(p.shape, at::kFloat) / std::sqrt(static_cast<double>(p.shape[1] * 9));
  return WanVae(
      config, [weights](const std::string& name) { return weights->find(name)->second; }, tiling);
}

/// What meta tensors take.
int64_t count_meta(const std::function<void()>& run) {
  const testing::ByteCount count(at::kMeta);
  run();
  return count.peak();
}

Tensor random_bytes(int64_t frames, int64_t height, int64_t width) {
  return at::randint(0, 256, {3, frames, height, width}, at::kByte);
}

class WanVaeMemory : public ::testing::Test {
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

TEST_F(WanVaeMemory, AChunkTakesWhatIsFoundOnMeta) {
  const int64_t height = 64, width = 96;
  for (const Config& config : {Config{}, wan22_config()}) {
    const WanVae vae = random_vae(config, {});
    const auto measure = [&](const ChunkBytes& said, const Tensor& first, const Tensor& next,
                             Tensor (WanVae::*run)(const Tensor&, FeatureCache&) const, const std::string& what) {
      FeatureCache cache;
      (vae.*run)(first, cache);
      (vae.*run)(next, cache);  // the first chunk that fills every entry
      EXPECT_EQ(cache.bytes(), said.cache) << what;
      const testing::ByteCount count(at::kCPU);
      (vae.*run)(next, cache);
      expect_bytes(count.peak(), said.work, what);
      EXPECT_EQ(count.live(), 0) << what << ": a chunk leaves nothing but the cache";
    };
    const std::string version = config.version();
    measure(vae.encode_chunk_bytes(height, width, count_meta), random_bytes(1, height, width),
            random_bytes(4, height, width), &WanVae::encode_chunk, version + ", encode");
    const int64_t cell = config.stride();
    const Tensor latent = at::randn({config.z_dim, 1, height / cell, width / cell});
    measure(vae.decode_chunk_bytes(height, width, count_meta), latent, latent, &WanVae::decode_chunk,
            version + ", decode");
  }
}

TEST_F(WanVaeMemory, AWholeClipTakesWhatIsSaidTiledOrNot) {
  const Tensor video = random_bytes(9, 64, 96);
  for (const Config& config : {Config{}, wan22_config()})
    for (const Tiling tiling : {Tiling{}, Tiling{.size = 64, .overlap = 16}}) {
      const WanVae vae = random_vae(config, tiling);
      const std::string what = std::string(config.version()) + ", " + std::to_string(tiling.size) + " pixels";
      const int64_t encode = vae.encode_bytes(9, 64, 96, count_meta), decode = vae.decode_bytes(9, 64, 96, count_meta);
      Tensor latent = vae.encode(video.narrow(1, 0, 1));  // weights are not counted
      {
        const testing::ByteCount count(at::kCPU);
        latent = vae.encode(video);
        expect_bytes(count.peak(), encode, "encode, " + what);
      }
      const testing::ByteCount count(at::kCPU);
      vae.decode(latent);
      expect_bytes(count.peak(), decode, "decode, " + what);
    }
}

/// The released autoencoder with weights that are all alike: no value matters here.
WanVae released(const Config& config, const Tiling& tiling = {}) {
  const auto shapes = std::make_shared<std::map<std::string, std::vector<int64_t>>>();
  for (const Parameter& p : parameters(config)) (*shapes)[p.name] = p.shape;
  return WanVae(
      config, [shapes](const std::string& name) { return at::full(shapes->at(name), 0.01, at::kFloat); }, tiling);
}

TEST_F(WanVaeMemory, AtRealWidthAShortClipTakesWhatIsSaid) {
  at::set_num_threads(threads_);  // tensors are made by this thread alone; others only compute
  const WanVae vae = released(Config{});
  const Tensor video = random_bytes(5, 32, 32);
  const int64_t encode = vae.encode_bytes(5, 32, 32, count_meta), decode = vae.decode_bytes(5, 32, 32, count_meta);
  vae.decode(at::zeros({16, 1, 1, 1}));  // weights are not counted
  Tensor latent;
  {
    const testing::ByteCount count(at::kCPU);
    latent = vae.encode(video);
    expect_bytes(count.peak(), encode, "encode");
  }
  const testing::ByteCount count(at::kCPU);
  vae.decode(latent);
  expect_bytes(count.peak(), decode, "decode");
}

/// What docs/long-clips.md states.
TEST(WanVae, LongClipsStayUnderTheStatedBounds) {
  struct Bound {
    const char* version;
    int64_t frames, height, width, tile;
    double encode, decode;  // GiB
  };
  constexpr Bound kBounds[] = {{"2.1", 81, 480, 832, 0, 4.2, 6.0},     {"2.1", 129, 720, 1280, 0, 9.6, 14.2},
                               {"2.1", 129, 720, 1280, 256, 0.8, 2.5}, {"2.2", 81, 480, 832, 0, 1.9, 5.8},
                               {"2.2", 129, 720, 1280, 0, 4.2, 13.7},  {"2.2", 129, 720, 1280, 256, 0.4, 2.4}};
  constexpr double kGiB = 1 << 30;
  for (const Bound& b : kBounds) {
    const WanVae vae =
        released(b.version == std::string("2.2") ? wan22_config() : Config{}, {.size = b.tile, .overlap = b.tile / 4});
    const int64_t encode = vae.encode_bytes(b.frames, b.height, b.width, count_meta);
    const int64_t decode = vae.decode_bytes(b.frames, b.height, b.width, count_meta);
    std::cout << "Wan " << b.version << ", " << b.frames << " x " << b.height << " x " << b.width << ", tile " << b.tile
              << ": encode " << static_cast<double>(encode) / kGiB << " GiB, decode "
              << static_cast<double>(decode) / kGiB << " GiB\n";
    EXPECT_LT(static_cast<double>(encode), b.encode * kGiB);
    EXPECT_LT(static_cast<double>(decode), b.decode * kGiB);
    const auto [c, f, h, w] = vae.latent_shape(2 * b.frames - 1, b.height, b.width);
    EXPECT_LE(vae.encode_bytes(2 * b.frames - 1, b.height, b.width, count_meta), encode + 4 * c * f * h * w * 4)
        << "twice the frames take no more but what they are encoded to";
  }
}

TEST(WanVae, ReleasedOnesHaveThePublishedSizes) {
  int64_t numel = 0;
  const auto all = parameters(Config{});
  for (const Parameter& p : all) numel += c10::multiply_integers(p.shape);
  EXPECT_EQ(numel, 126892531);
  EXPECT_EQ(all.size(), 194u);
  EXPECT_EQ(Config{}.stride(), 8);
  EXPECT_EQ(Config{}.time_stride(), 4);
  const auto two = parameters(wan22_config());
  numel = 0;
  for (const Parameter& p : two) numel += c10::multiply_integers(p.shape);
  EXPECT_EQ(numel, 704688668);
  EXPECT_EQ(two.size(), 196u);
  EXPECT_EQ(wan22_config().stride(), 16);
}

TEST_F(WanVaeTest, SizesThatDoNotFitAreRefusedWithTheNearest) {
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
  expect_error("[3, F, H, W]", [&] { vae->encode(at::zeros({1, 3, 32, 32})); });
  expect_error("[16, f, h, w]", [&] { vae->decode(at::zeros({48, 1, 4, 4})); });
  FeatureCache cache;
  expect_error("first frame alone", [&] { wan(vae).encode_chunk(at::zeros({3, 4, 32, 32}), cache); });
  EXPECT_THROW(open("config.json", "model.safetensors", {.size = 30, .overlap = 8}), UserError);
}

TEST_F(WanVaeTest, WeightsThatDoNotFitAreNamed) {
  const Golden golden("wan21_vae");
  const auto open_changed = [&](const std::function<void(TensorMap&)>& change, const std::string& config) {
    TensorMap tensors = golden.tensors("model.safetensors");
    change(tensors);
    make_vae(config, "config.json", source_of(tensors, "some.pth"), {});
  };
  const std::string config = golden.text("config.json");
  expect_error("decoder.head.2.bias",
               [&] { open_changed([](TensorMap& t) { t.erase("decoder.head.2.bias"); }, config); });
  expect_error("expected [8, 4, 3, 3, 3]", [&] {
    open_changed(
        [](TensorMap& t) {
          t["encoder.downsamples.3.residual.2.weight"] = at::zeros({8, 3, 3, 3, 3});
        },
        config);
  });
  expect_error("these are weights of Wan 2.2's autoencoder, config.json is that of Wan 2.1's", [&] {
    make_vae(config, "config.json", source_of(Golden("wan22_vae").tensors("model.safetensors"), "some.pth"), {});
  });
  expect_error("is_residual", [&] { parse_config(R"({"base_dim": 16, "is_residual": true})", "config.json"); });
  expect_error("needs 1, 2 or 4 times the channels",
               [&] { parse_config(R"({"dec_dim": 16, "dim_mult": [1, 3, 4, 4]})", "config.json"); });
  expect_error("the shortcut of the last level keeps the channels",
               [&] { parse_config(R"({"dec_dim": 16, "dim_mult": [1, 2, 4, 8]})", "config.json"); });
  expect_error("std", [&] { parse_config(R"({"z_dim": 1, "mean": [0], "std": [0]})", "config.json"); });
}

TEST_F(WanVaeTest, FingerprintsTellWeightsApart) {
  const Golden golden("wan21_vae");
  TensorMap tensors = golden.tensors("model.safetensors");
  const auto official = make_vae(golden.text("config.json"), "", source_of(tensors, ""), {})->fingerprint();
  EXPECT_EQ(official, open("diffusers_config.json", "diffusers.safetensors")->fingerprint()) << "same values";
  tensors["conv1.bias"] = tensors["conv1.bias"].clone().add_(1e-6);
  EXPECT_NE(official, make_vae(golden.text("config.json"), "", source_of(tensors, ""), {})->fingerprint());
}

}  // namespace tessera::models::wan_vae
