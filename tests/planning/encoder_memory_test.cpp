// What the frozen encoders take: said before the run, measured while `prepare` runs, and nothing of it afterwards.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <tuple>

#include "need_goldens.h"
#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/data/video.h"
#include "tessera/engine/store/meter.h"
#include "tessera/job/codec.h"
#include "tessera/job/encoder_plan.h"
#include "tessera/job/job.h"
#include "tessera/models/registry.h"
#include "tessera/models/vae/wan.h"
#include "tessera/planning/encoders.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/run_plan.h"
#include "tessera/prepare/prepare.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::planning {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecipe = R"(
[model]
config = { dim = 64, num_heads = 2, num_layers = 1, ffn_dim = 128, in_dim = 16, out_dim = 16, freq_dim = 32, text_dim = 64, text_len = 16 }
[data]
size = [64, 96]
frames = 9
fps = 8
)";

class EncoderMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEED_GOLDENS();
    vae_ = fs::path(TESSERA_GOLDENS) / "wan21_vae";
    if (!data::has_video()) GTEST_SKIP() << "needs a build with FFmpeg";
    std::string pattern = (fs::temp_directory_path() / "tessera-encoders-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    fs::create_directories(folder_ / "data");
    for (const char* name : {"a", "b"}) {
      data::Frames clip{.count = 9, .height = 64, .width = 96, .fps = 8, .rgb = {}};
      for (size_t i = 0; i < clip.frame_bytes() * 9; ++i) clip.rgb.push_back(static_cast<uint8_t>(i / 97));
      data::write_mp4(folder_ / "data" / (std::string(name) + ".mp4"), clip);
      std::ofstream(folder_ / "data" / (std::string(name) + ".txt")) << "clip " << name;
    }
    std::ofstream(folder_ / "recipe.toml") << kRecipe;
    engine::Meter::install();
  }
  void TearDown() override { fs::remove_all(folder_); }

  recipe::Recipe recipe(const recipe::Overrides& more = {}) const {
    recipe::Overrides all = {{"data.path", (folder_ / "data").string()},
                             {"data.cache", (folder_ / "cache").string()},
                             {"data.vae", vae_.string()},
                             {"run.out", (folder_ / "run").string()}};
    all.insert(all.end(), more.begin(), more.end());
    return recipe::load_recipe((folder_ / "recipe.toml").string(), all);
  }

  fs::path vae_, folder_;
};

TEST_F(EncoderMemory, PrepareTakesWhatIsSaidAndLeavesNothing) {
  const recipe::Recipe r = recipe();
  const job::Job job = job::make_job(r);
  comm::Comm comm(comm::rendezvous_from_env(), Mesh{}, 60);
  const EncoderBytes said = encoder_bytes(r, job, Mesh{});
  const int64_t before = engine::Meter::live();
  engine::Meter::reset_peak();
  const prepare::PreparedData data = prepare::prepare(r, job, Mesh{}, comm, 0, {.prompts = false});
  const int64_t peak = engine::Meter::peak() - before;
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(engine::Meter::live(), before) << "neither encoder is on the device any more";
  EXPECT_LE(peak, said.prepare());
  EXPECT_GE(static_cast<double>(peak), 0.85 * static_cast<double>(said.prepare()));
  EXPECT_GT(said.text.held, 0);
  EXPECT_GT(said.codec_weights, 0);
}

/// The text encoder's units move to the host one by one, as far as the budget asks, and encode the same.
TEST_F(EncoderMemory, WeightsThatTheBudgetHasNoRoomForAreOnTheHostAndEncodeTheSame) {
  comm::Comm comm(comm::rendezvous_from_env(), Mesh{}, 60);
  const auto prepared = [&](const std::string& budget, EncoderBytes& said) {
    const recipe::Recipe r =
        recipe({{"plan.budget", budget}, {"data.cache", (folder_ / ("cache-" + budget)).string()}});
    const job::Job job = job::make_job(r);
    said = encoder_bytes(r, job, Mesh{});
    const int64_t before = engine::Meter::live();
    engine::Meter::reset_peak();
    const prepare::PreparedData data = prepare::prepare(r, job, Mesh{}, comm, 0, {.prompts = false});
    EXPECT_LE(engine::Meter::peak() - before, said.prepare()) << budget;
    EXPECT_EQ(engine::Meter::live(), before) << budget;
    return data.sample(0).context;
  };
  EncoderBytes whole, some, all;
  const at::Tensor expected = prepared("1GiB", whole);
  EXPECT_EQ(whole.text.host, 0);
  const int64_t held = whole.text.held;
  EXPECT_TRUE(prepared(std::to_string(held * 3 / 2), some).equal(expected));
  EXPECT_GT(some.text.host, 0);
  EXPECT_LE(some.text.held, held * 3 / 2 / 8 * 5);
  EXPECT_TRUE(prepared(std::to_string(held / 2), all).equal(expected));
  EXPECT_GT(all.text.host, some.text.host);
}

/// `prepare` is a phase of the run like its steps.
TEST(PrepareInTheBudget, IsRefusedWithTheBudgetThatFits) {
  constexpr int64_t kMiB = 1 << 20;
  const auto model = models::make_denoiser({.preset = "wan-tiny"});
  PlanRequest request;
  request.model = model.get();
  request.model_name = "tiny";
  request.latent = {4, 2, 4, 4};
  request.mesh = Mesh::parse("single");
  request.planner.global_batch = request.planner.micro_batch = 1;
  request.planner.budget = 64 * kMiB;
  request.run.steps = 1;
  request.encoders.text = {.held = 80 * kMiB, .work = 4 * kMiB};
  const auto held = [&] {
    Planned planned = make_plan(request);
    hold_prepare(request, planned);
    return planned;
  };
  EXPECT_TRUE(held().choice.fits) << "encoders that stay are part of the step";
  request.prepare_peak = [&](int64_t budget) { return budget < 75 * kMiB ? 75 * kMiB - 9 : 80 * kMiB; };
  const Planned refused = held();
  EXPECT_FALSE(refused.choice.fits);
  for (const char* part : {"takes 84.00 MiB a rank", "the budget is 64.00 MiB", "plan.budget = 80MiB"})
    EXPECT_NE(refused.choice.advice.find(part), std::string::npos) << part << ": " << refused.choice.advice;
  request.planner.budget = 84 * kMiB;
  EXPECT_TRUE(held().choice.fits);
  request.planner.budget = 64 * kMiB;
  request.encoders.texts = false;
  EXPECT_TRUE(held().choice.fits) << "texts that another program encoded take none";
}

/// `prepare` asks the same before it encodes anything.
TEST_F(EncoderMemory, PrepareIsRefusedWherePlanIsAndNotWhereNothingIsLeftToEncode) {
  const auto parts = [&](const std::string& budget) { return recipe::run_parts(recipe({{"plan.budget", budget}})); };
  const job::Job job = job::make_job(recipe());
  EXPECT_NO_THROW(require_prepare(parts("1GiB"), job, Mesh{}));
  try {
    require_prepare(parts("300KiB"), job, Mesh{});
    FAIL() << "it takes more";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::no_fit);
    EXPECT_NE(std::string(error.what()).find("It fits with plan.budget = "), std::string::npos) << error.what();
  }
  comm::Comm comm(comm::rendezvous_from_env(), Mesh{}, 60);
  int asked = 0;
  const auto prepared = [&] {
    prepare::prepare(recipe(), job, Mesh{}, comm, 0, {.prompts = false, .before_encoding = [&] { ++asked; }});
  };
  prepared();
  EXPECT_EQ(asked, 1);
  prepared();
  EXPECT_EQ(asked, 1) << "the cache has all";
  // A run whose data is prepared has what it needs.
  const std::vector<PartPlan> before = plan_parts(parts("300KiB"), job, Mesh{}, {0}),
                              after = plan_parts(parts("300KiB"), job, Mesh{}, {0}, /*prepared=*/true);
  EXPECT_NE(before[0].planned.choice.advice.find("prepare, which encodes"), std::string::npos)
      << before[0].planned.choice.advice;
  EXPECT_EQ(after[0].planned.choice.advice.find("prepare, which encodes"), std::string::npos);
}

/// A run on a GPU has a budget whether or not the recipe sets it; a plan for the GPU counts as that run does.
TEST(DefaultBudget, MovesUnitsOfEncodersAsTheSameBudgetDoesThatIsSet) {
  const auto planned = [](const recipe::Overrides& more) {
    recipe::Overrides all = {{"model.preset", "wan2.1-t2v-1.3b"},
                             {"data.vae", "haar"},
                             {"data.text_encoder", "umt5-xxl"},
                             {"data.frames", "16"},
                             {"data.size", "256,256"},
                             {"plan.compute_dtype", "fp32"},
                             {"plan.profile", "rtx4090"}};
    all.insert(all.end(), more.begin(), more.end());
    const recipe::Recipe recipe = recipe::load_recipe("", all);
    const job::Job job = job::make_job(recipe);
    return plan_request(recipe, job, job::shapes_of(recipe, *job.model, *job.codec), recipe.mesh, /*prompts=*/0);
  };
  const PlanRequest unset = planned({});
  EXPECT_GT(unset.encoders.text.host, 0);
  const PlanRequest set = planned({{"plan.budget", std::to_string(unset.planner.budget)}});
  EXPECT_EQ(unset.encoders.text.held, set.encoders.text.held);
  EXPECT_EQ(unset.encoders.text.host, set.encoders.text.host);
}

/// A plan before the download counts the weights as the release has them.
TEST(HeldEncoders, OfAFileThatIsNotThereAreHeldAsTheyWereReleased) {
  recipe::Recipe recipe;
  recipe.data.text_encoder_path = "/nowhere/text_encoder";
  recipe.plan.compute = DType::f32;
  for (const auto& [preset, dtype] :
       {std::pair("umt5-xxl", DType::bf16), {"gemma-2-2b", DType::bf16}, {"t5-v1_1-xxl", DType::f32}}) {
    recipe.data.text_encoder = preset;
    EXPECT_EQ(job::text_storage(recipe.data, recipe.plan).dtype, dtype) << preset;
    EXPECT_FALSE(job::text_storage(recipe.data, recipe.plan).rounded) << preset;
  }
  recipe.data.text_encoder = "umt5-xxl";
  recipe.data.text_encoder_path.clear();
  EXPECT_EQ(job::text_storage(recipe.data, recipe.plan).dtype, DType::f32)
      << "random weights are not those of the release";
}

TEST_F(EncoderMemory, ASecondTimeNothingIsReadAtAll) {
  const recipe::Recipe r = recipe();
  const job::Job job = job::make_job(r);
  comm::Comm comm(comm::rendezvous_from_env(), Mesh{}, 60);
  prepare::prepare(r, job, Mesh{}, comm, 0, {.prompts = false});
  const int64_t before = engine::Meter::live();
  engine::Meter::reset_peak();
  prepare::prepare(r, job, Mesh{}, comm, 0, {.prompts = false});
  EXPECT_LT(engine::Meter::peak() - before, encoder_bytes(r, job, Mesh{}).text.held / 2)
      << "all is cached: the text encoder stays where it is";
}

TEST_F(EncoderMemory, OnlineTheAutoencoderStaysForTheSteps) {
  const recipe::Recipe r = recipe({{"data.cache", "online"}});
  const job::Job job = job::make_job(r);
  comm::Comm comm(comm::rendezvous_from_env(), Mesh{}, 60);
  const int64_t before = engine::Meter::live();
  const prepare::PreparedData data = prepare::prepare(r, job, Mesh{}, comm, 0, {.prompts = false});
  EXPECT_EQ(engine::Meter::live(), before) << "nothing was encoded yet, and the text encoder is gone";
  engine::Meter::reset_peak();
  const prepare::PreparedSample sample = data.sample(0);
  const EncoderBytes said = encoder_bytes(r, job, Mesh{});
  EXPECT_LE(engine::Meter::peak() - before, said.codec_weights + said.encode + 1024);
  EXPECT_EQ(sample.latent.size(0), 16);
  const PlanRequest request = plan_request(r, job, job, Mesh{}, 0);
  EXPECT_GE(request.of_mesh, said.codec_weights + said.encode) << "each step has it beside its own";
}

TEST_F(EncoderMemory, TilesFollowFromTheBudgetOfTheRecipe) {
  EXPECT_EQ(job::make_job(recipe()).vae_tile, 0);
  const recipe::Recipe large = recipe({{"data.size", "512,512"}});
  const job::Job whole = job::make_job(large);
  const EncoderBytes bytes = encoder_bytes(large, whole, Mesh{});
  const int64_t most = std::max(bytes.encode, bytes.decode);
  EXPECT_EQ(job::make_job(recipe({{"data.size", "512,512"}, {"plan.budget", std::to_string(4 * most)}})).vae_tile, 0);
  const recipe::Recipe tight = recipe({{"data.size", "512,512"}, {"plan.budget", std::to_string(2 * most)}});
  const job::Job tiled = job::make_job(tight);
  EXPECT_EQ(tiled.vae_tile, 256);
  const EncoderBytes less = encoder_bytes(tight, tiled, Mesh{});
  EXPECT_LE(std::max(less.encode, less.decode), most / 2);
  EXPECT_EQ(job::make_job(recipe({{"data.size", "512,512"}, {"data.vae_tile", "128"}})).vae_tile, 128) << "by hand";
}

TEST_F(EncoderMemory, DecodingCountsBetweenStepsAndNotInThem) {
  const recipe::Recipe without = recipe(), with = recipe({{"sample.every", "1"}, {"data.size", "256,256"}});
  const job::Job job = job::make_job(with);
  EXPECT_EQ(plan_request(without, job, job::shapes_of(without, *job.model, *job.codec), Mesh{}, 0).between_steps, 0);
  PlanRequest request = plan_request(with, job, job, Mesh{}, 1);
  const EncoderBytes said = encoder_bytes(with, job, Mesh{});
  EXPECT_GE(request.between_steps, said.decoding());
  EXPECT_LT(request.resident, said.decode) << "not as if it were always there";
  const Planned planned = make_plan(request);
  const plan::MemoryCurve memory = planned.memory(0);
  EXPECT_EQ(memory.at_name, "what is done between steps") << "here a small model beside a large picture";
  EXPECT_EQ(memory.peak, memory.persistent + memory.by_part.slots + memory.by_part.activations + request.between_steps);
  request.between_steps = 0;
  EXPECT_LT(make_plan(request).memory(0).peak, memory.peak);
}

/// The released autoencoder of Wan 2.1 with random weights, written to a file as large as the released one.
fs::path write_released_vae(const fs::path& file) {
  namespace vae = models::wan_vae;
  std::vector<checkpoint::TensorInfo> tensors;
  for (const auto& p : vae::parameters(vae::Config{})) tensors.push_back({p.name, DType::f32, p.shape});
  checkpoint::SafetensorsWriter out(file, std::move(tensors));
  std::vector<float> some(1 << 20);
  RandomKey(1, Purpose::test).normal(some.data(), 0, some.size());
  for (float& value : some) value *= 0.01F;
  for (const checkpoint::TensorInfo& tensor : out.tensors())
    for (int64_t left = tensor.count(); left > 0; left -= static_cast<int64_t>(some.size()))
      out.write(some.data(), std::min<int64_t>(left, static_cast<int64_t>(some.size())) * 4);
  out.commit();
  return file;
}

/// docs/long-clips.md: at the released width, a short clip in small tiles; what a chunk and a tile take is all that a
/// long clip takes.
TEST_F(EncoderMemory, PreparingAtTheReleasedWidthTakesWhatThePlanSays) {
  const fs::path weights = write_released_vae(folder_ / "Wan2.1_VAE.safetensors");
  const recipe::Overrides how = {{"data.vae", weights.string()},
                                 {"data.vae_tile", "64"},
                                 {"data.size", "64,96"},
                                 {"data.frames", "5"},
                                 {"data.path", (folder_ / "data" / "a.mp4").string()}};
  const recipe::Recipe r = recipe(how);
  const job::Job job = job::make_job(r);
  comm::Comm comm(comm::rendezvous_from_env(), Mesh{}, 60);
  const EncoderBytes said = encoder_bytes(r, job, Mesh{});
  EXPECT_GT(said.codec_weights, 500'000'000);
  const int64_t before = engine::Meter::live();
  engine::Meter::reset_peak();
  const prepare::PreparedData data = prepare::prepare(r, job, Mesh{}, comm, 0, {.prompts = false});
  const int64_t peak = engine::Meter::peak() - before;
  std::cout << "prepare at the released width, 5 x 64 x 96 in tiles of 64: " << peak << " bytes at its peak, "
            << said.prepare() << " said, " << said.codec_weights << " of them weights\n";
  EXPECT_LE(peak, said.prepare());
  EXPECT_GE(static_cast<double>(peak - said.codec_weights), 0.85 * static_cast<double>(said.encode));
  EXPECT_EQ(engine::Meter::live(), before);
  // the same tiles on the long clips of the page: but for the latent itself no more
  for (const auto& [frames, height, width] : {std::tuple{81, 480, 832}, {129, 720, 1280}}) {
    const job::CodecBytes large = job::codec_bytes(*job.codec, frames, height, width);
    EXPECT_LE(large.encode,
              said.encode + 8 * 4 * c10::multiply_integers(job.codec->latent_shape(frames, height, width)))
        << frames << " x " << height << " x " << width;
  }
}

}  // namespace
}  // namespace tessera::planning
