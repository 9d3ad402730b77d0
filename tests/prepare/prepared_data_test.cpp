// What a run is given of its data: how often each clip comes, and what a model takes beside it.
#include "prepare/prepare_test.h"
#include "tessera/prepare/conditioner.h"

namespace tessera::prepare {
namespace {

using PreparedDataTest = PrepareTest;

TEST_F(PreparedDataTest, EveryFolderComesAsOftenAsTheRecipeSays) {
  add_clip("more", "c");
  const std::string both = "[\"" + (folder_ / "data").string() + "\", \"" + (folder_ / "more").string() + "\"]";
  for (const int64_t repeats : {1, 3}) {
    const recipe::Recipe r = recipe({{"data.path", both}, {"data.repeats", std::to_string(repeats)}});
    const job::Job job = job::make_job(r);
    const PreparedData data = prepared(r, job);
    std::map<std::string, int64_t> times;
    for (int64_t i = 0; i < data.size(); ++i) ++times[std::filesystem::path(data.source(i)).stem()];
    EXPECT_EQ(times, (std::map<std::string, int64_t>{{"a", repeats}, {"b", repeats}, {"c", repeats}}));
  }
}

constexpr const char* kStdit = R"(
[model]
preset = "opensora1.3-tiny"
config = { in_channels = 12, caption_channels = 64, model_max_length = 5 }
[data]
size = [32, 32]
frames = 4
fps = 8
)";

/// At 8 frames a second so many black frames, then white ones.
void write_black_and_white(const data::Path& file, int black, int white) {
  data::Frames frames{.count = black + white, .height = 32, .width = 32, .fps = 8, .rgb = {}};
  frames.rgb.assign(frames.frame_bytes() * static_cast<size_t>(black), 0);
  frames.rgb.resize(frames.frame_bytes() * static_cast<size_t>(black + white), 255);
  data::write_mp4(file, frames);
}

/// data.fps = 0 takes each video at its own rate.
TEST_F(PreparedDataTest, AModelIsToldTheRateThatAClipIsTakenAt) {
  write("recipe.toml", kStdit);
  std::filesystem::create_directories(folder_ / "long");
  write_black_and_white(folder_ / "long/a.mp4", 8, 8);
  write("long/a.txt", "light");
  for (const auto& [fps, told] : {std::pair("0", 8.0F), {"4", 4.0F}}) {
    const recipe::Recipe r = recipe({{"data.path", (folder_ / "long").string()}, {"data.fps", fps}});
    const job::Job job = job::make_job(r);
    EXPECT_EQ(prepared(r, job).sample(0).extra.at("fps").item<float>(), told) << "data.fps = " << fps;
  }
}

/// A sample leads to a video, or goes on from one, which is longer than what is given of it.
TEST_F(PreparedDataTest, OfALongVideoTheEndThatTheConditionNamesIsGiven) {
  write("recipe.toml", kStdit);
  write_black_and_white(folder_ / "both.mp4", 16, 16);
  write_black_and_white(folder_ / "white.mp4", 0, 16);
  for (const std::string kind : {"v2v_head", "v2v_tail"}) {
    const std::string video = (folder_ / "both.mp4").string();
    const recipe::Recipe r = recipe({{"data.frames", "16"}, {"sample.condition", kind}, {"sample.video", video}});
    const job::Job job = job::make_job(r);
    comm::Comm comm(comm::rendezvous_from_env(), Mesh{}, 60);
    Conditioner conditioner(r, job, Mesh{}, comm, 0);
    const auto given = [&](const char* file) {
      Pictures pictures;
      pictures.video = folder_ / file;
      return conditioner.for_sampling(pictures, {}, 16).at("cond");
    };
    EXPECT_EQ(at::allclose(given("both.mp4"), given("white.mp4"), 0.05, 0.05), kind == "v2v_tail") << kind;
  }
}

/// 32 x 32 pixels of RGBA, red that does not show beside green that does.
constexpr const char* kHalfTransparent =
    "89504e470d0a1a0a0000000d4948445200000020000000200806000000737a7af4000000304944415478daedce2101000008"
    "03b047a37fa913028199985f9ae4229dde0808080808080808080808080808083c0716b9e57a5b5c6b32b30000000049454e"
    "44ae426082";

TEST_F(PreparedDataTest, TheMaskOfATransparentPictureIsWhatShowsAndAVideosHasItsFrames) {
  const std::string hex = kHalfTransparent;
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  write("half.png", bytes);
  const data::ClipSpec spec{.frames = 1, .height = 32, .width = 32};
  const at::Tensor mask = loss_mask({.alpha = true}, {folder_ / "half.png", {""}, "half.png"}, spec, {16, 1, 4, 4});
  EXPECT_TRUE(at::equal(mask.slice(2, 0, 2), at::zeros({1, 4, 2})));
  EXPECT_TRUE(at::equal(mask.slice(2, 2, 4), at::ones({1, 4, 2})));
  // The clip is cut out of its file at a place, and the video of its mask at the same.
  data::Frames clip{.count = 8, .height = 32, .width = 32, .fps = 8, .rgb = {}};
  for (int f = 0; f < 8; ++f)
    clip.rgb.insert(clip.rgb.end(), clip.frame_bytes(), static_cast<uint8_t>(f < 4 ? 20 : 235));
  data::write_mp4(folder_ / "a_mask.mp4", clip);
  data::write_mp4(folder_ / "a.mp4", clip);
  data::Item item{folder_ / "a.mp4", {""}, "a.mp4"};
  item.mask = folder_ / "a_mask.mp4";
  const at::Tensor early = loss_mask({.suffix = "_mask.mp4"}, item, {.frames = 4, .height = 32, .width = 32, .fps = 8},
                                     {16, 1, 4, 4}),
                   late = loss_mask({.suffix = "_mask.mp4"}, item,
                                    {.frames = 4, .height = 32, .width = 32, .fps = 8, .start = 0.5}, {16, 1, 4, 4});
  EXPECT_NEAR(early.mean().item<float>(), 20 / 255.0, 0.01);
  EXPECT_NEAR(late.mean().item<float>(), 235 / 255.0, 0.01);
}

TEST_F(PreparedDataTest, EachSetHasItsCaptionsShapesAndShare) {
  for (const char* name : {"c", "d", "e"}) add_clip("more", name);
  const recipe::Overrides sets = {{"data.path", ""},
                                  {"data.trigger", "sks"},
                                  {"data.set.0.path", (folder_ / "data").string()},
                                  {"data.set.1.path", (folder_ / "more").string()},
                                  {"data.set.1.repeats", "2.5"},
                                  {"data.set.1.trigger", ""},
                                  {"data.set.1.size", "16,32"},
                                  {"data.set.1.frames", "1"},
                                  {"data.set.1.fps", "4"},
                                  {"diffusion.caption_dropout", "0.1"}};
  const recipe::Recipe r = recipe(sets);
  const job::Job job = job::make_job(r);
  for (const char* cache : {"cache", "online"}) {
    recipe::Overrides more = sets;
    if (std::string(cache) == "online") more.emplace_back("data.cache", cache);
    const recipe::Recipe here = recipe(more);
    const PreparedData data = prepared(here, job);
    ASSERT_EQ(data.size(), 5);
    EXPECT_EQ(data.buckets(), (std::vector<int>{0, 0, 1, 1, 1}));
    EXPECT_EQ(data.sets().of_samples, (std::vector<int>{0, 0, 1, 1, 1}));
    EXPECT_EQ(data.sets().amounts, (std::vector<double>{2, 7.5}));
    EXPECT_EQ(data.frames(0).count, 4);
    EXPECT_EQ(data.frames(2).count, 1);
    EXPECT_EQ(data.frames(2).height, 16);
    const auto shape = job.codec->latent_shape(1, 16, 32);
    EXPECT_EQ(data.latent(2).sizes(), at::IntArrayRef(shape.data(), shape.size()));
    ASSERT_TRUE(data.null_caption(0).context.defined());
    EXPECT_FALSE(data.null_caption(0).context.equal(data.null_caption(1).context)) << "the trigger stays";
    const data::CachedTensor with = data.context(0), without = data.context(2);
    EXPECT_GT(with.shape[0], without.shape[0]) << "sks, clip a beside clip c";
  }
}

TEST_F(PreparedDataTest, WeightsOfSetsAreSharesOfAnEpochOfTheirSize) {
  add_clip("more", "c");
  const recipe::Recipe r = recipe({{"data.path", ""},
                                   {"data.set.0.path", (folder_ / "data").string()},
                                   {"data.set.0.weight", "1"},
                                   {"data.set.1.path", (folder_ / "more").string()},
                                   {"data.set.1.weight", "3"}});
  const job::Job job = job::make_job(r);
  EXPECT_EQ(prepared(r, job).sets().amounts, (std::vector<double>{0.75, 2.25}));
}

/// Three seconds at 8 frames a second with a tone that rises each second.
class HeardClips : public PrepareTest {
 protected:
  void SetUp() override {
    PrepareTest::SetUp();
    if (IsSkipped()) return;
    data::Frames clip{.count = 48, .height = 32, .width = 32, .fps = 8, .rgb = {}};
    for (size_t i = 0; i < clip.frame_bytes() * 48; ++i) clip.rgb.push_back(static_cast<uint8_t>(i / 1000));
    data::Sound sound{16000, {}};
    for (int i = 0; i < 6 * 16000; ++i)
      sound.samples.push_back(0.5f * std::sin(0.1f * static_cast<float>(i) * static_cast<float>(1 + i / 16000)));
    std::filesystem::remove_all(folder_ / "data");
    std::filesystem::create_directories(folder_ / "data");
    data::write_mp4(folder_ / "data/a.mp4", clip, sound);
    write("data/a.txt", "someone speaks");
    write("recipe.toml", R"(
[model]
preset = "wan-s2v-demo"
[data]
size = [32, 32]
frames = 16
fps = 8
clip_mode = "chunks"
)");
  }
};

TEST_F(HeardClips, AClipFromTheMiddleHearsWhatIsHeardThere) {
  const recipe::Recipe r = recipe();
  const job::Job job = job::make_job(r);
  const Listener listener(r.data, job);
  const data::Items items = read_items(r);
  ASSERT_EQ(items.size(), 1u);
  data::ClipSpec spec{.frames = 16, .height = 32, .width = 32, .fps = 8};
  const at::Tensor first = listener.extras(items[0], spec).at("audio");
  for (const double start : {1.0, 2.0}) {
    spec.start = start;
    const at::Tensor heard = listener.extras(items[0], spec).at("audio");
    const at::Tensor there =
        listener.extras(data::decode_sound(items[0].path, {.rate = 16000, .start = start}), 16).at("audio");
    EXPECT_TRUE(at::allclose(heard, there, 1e-4, 1e-4)) << start;
    EXPECT_FALSE(at::allclose(heard, first, 1e-2, 1e-2)) << start;
  }
}

TEST_F(HeardClips, ClipsThatAreEncodedBesideTheStepsAreHeardAsThoseOfACache) {
  const recipe::Recipe cached = recipe(), online = recipe({{"data.cache", "online"}});
  const job::Job job = job::make_job(cached);
  const PreparedData stored = prepared(cached, job), beside = prepared(online, job);
  ASSERT_EQ(stored.size(), beside.size());
  ASSERT_GT(stored.size(), 1);
  for (int64_t i = 0; i < stored.size(); ++i) {
    const auto a = stored.sample(i).extra, b = beside.sample(i).extra;
    ASSERT_TRUE(a.contains("audio") && b.contains("audio")) << i;
    EXPECT_TRUE(a.at("audio").equal(b.at("audio"))) << i;
  }
}

}  // namespace
}  // namespace tessera::prepare
