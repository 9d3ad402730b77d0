// The autoencoder of a recipe with the tiles that the recipe asks for, or that its budget leads to.
#include "tessera/job/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tessera/base/check.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/engine/store/meter.h"
#include "tessera/job/job.h"
#include "tessera/models/vae/hunyuan.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::job {
namespace {

void expect_refused(const std::string& says, const std::function<void()>& act) {
  try {
    act();
    ADD_FAILURE() << "no error; expected one with '" << says << "'";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage) << error.what();
    EXPECT_NE((std::string(error.what()) + error.hint()).find(says), std::string::npos) << error.what();
  }
}

}  // namespace

TEST(Codec, TilesInTimeBoundTheMemoryOfOneThatCodesAllFramesAtOnceAndOthersRefuseThem) {
  engine::Meter::install();
  const auto encode = [](int64_t tile_frames, int64_t frames) {
    return codec_bytes(*open_codec("hunyuan-vae", 16, 0, tile_frames), frames, 64, 64).encode;
  };
  EXPECT_TRUE(tiles_in_time(*open_codec("hunyuan-vae", 16, 0, 0)));
  EXPECT_GT(encode(0, 129), 2 * encode(0, 33));
  EXPECT_LT(encode(16, 129), encode(0, 33));
  EXPECT_LT(encode(16, 257) - encode(16, 129), encode(16, 129) / 20) << "but for the latent";
  expect_refused("multiples of 4", [] { open_codec("hunyuan-vae", 16, 0, 18); });
  expect_refused("codes a clip in chunks of frames", [] { open_codec("wan2.1-vae", 16, 0, 64); });
  expect_refused("no use for tiles", [] { open_codec("haar", 12, 0, 64); });
}

TEST(Codec, TilesFollowFromTheBudgetFirstInTimeThenInSpace) {
  engine::Meter::install();
  const auto job = [](recipe::Overrides more) {
    recipe::Overrides all = {{"model.config.in_dim", "16"},
                             {"model.config.out_dim", "16"},
                             {"data.vae", "hunyuan-vae"},
                             {"data.size", "192,256"},
                             {"data.frames", "129"}};
    all.insert(all.end(), more.begin(), more.end());
    return make_job(recipe::load_recipe(TESSERA_SOURCE_DIR "/recipes/wan-tiny_demo_cpu.toml", all));
  };
  const auto most = [](const Job& of) {
    const CodecBytes bytes = codec_bytes(*of.codec, 129, 192, 256);
    return std::max(bytes.encode, bytes.decode);
  };
  const Job whole = job({});
  EXPECT_EQ(whole.vae_tile, 0);
  EXPECT_EQ(whole.vae_tile_frames, 0);
  const auto within = [&](int64_t bytes) { return recipe::Overrides{{"plan.budget", std::to_string(4 * bytes)}}; };
  const Job cut = job(within(most(whole) - 1));
  EXPECT_EQ(cut.vae_tile, 0);
  EXPECT_EQ(cut.vae_tile_frames, 64);
  const Job shorter = job(within(most(cut) - 1));
  EXPECT_EQ(shorter.vae_tile, 0);
  EXPECT_EQ(shorter.vae_tile_frames, 16);
  const Job smaller = job(within(most(shorter) - 1));
  EXPECT_GT(smaller.vae_tile, 0);
  EXPECT_LT(most(smaller), most(shorter));
  EXPECT_EQ(job({{"data.vae_tile_frames", "32"}}).vae_tile_frames, 32) << "by hand";
  const Job by_hand = job({{"data.vae_tile", "128"}, {"plan.budget", std::to_string(2 * most(whole))}});
  EXPECT_EQ(by_hand.vae_tile, 128);
  EXPECT_LE(most(by_hand), most(whole) / 2);
}

TEST(Codec, AReleasedModelFolderOpensByTheNameOfItsAutoencodersFile) {
  namespace vae = models::hunyuan_vae;
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(::testing::TempDir()) / "tessera_codec_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"latent_channels": 64})";  // the denoiser's, and not asked
  const auto write = [&](const char* file, std::vector<checkpoint::TensorInfo> tensors) {
    checkpoint::SafetensorsWriter out(folder / file, std::move(tensors));
    for (const checkpoint::TensorInfo& tensor : out.tensors()) {
      const std::vector<float> values(static_cast<size_t>(tensor.count()), 0.01F);
      out.write(values.data(), tensor.count() * static_cast<int64_t>(sizeof(float)));
    }
    out.commit();
  };
  vae::Config config;
  config.widths = {32, 32, 32, 32};
  config.layers = 1;
  std::vector<checkpoint::TensorInfo> tensors;
  for (const auto& p : vae::parameters(config)) tensors.push_back({p.name, DType::f32, p.shape});
  write("hunyuan_vae.safetensors", std::move(tensors));
  write("Open_Sora_v2.safetensors", {{"img_in.weight", DType::f32, {8, 8}}});
  const auto codec = open_codec(folder.string(), 16, 0, 0);
  EXPECT_TRUE(tiles_in_time(*codec));
  EXPECT_EQ(codec->latent_shape(9, 64, 96), (std::array<int64_t, 4>{16, 3, 8, 12}));
  EXPECT_TRUE(codec->encode(at::zeros({3, 1, 16, 16}, at::kByte)).isfinite().all().item<bool>());
  fs::remove_all(folder);
}

}  // namespace tessera::job
