// Open-Sora 2.0 through its two text encoders: captions are padded for the one and pooled by the other, cached or encoded
// anew, and both reach the model in training and in sampling, on any layout.
#include <filesystem>
#include <set>

#include "layout_table.h"
#include "need_goldens.h"
#include "opensora_run.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

constexpr int64_t kLength = 40, kWidth = 64, kPooled = 32;

class TwoTextEncoders : public OpenSoraRun {
 protected:
  /// The captions' entries of the cache.
  std::vector<fs::path> entries() const {
    std::vector<fs::path> files;
    for (const auto& item : fs::directory_iterator(run_.folder() / "cache/texts"))
      if (item.path().extension() == ".safetensors") files.push_back(item.path());
    return files;
  }
};

TEST_F(TwoTextEncoders, CachedCaptionsArePaddedAndPooled) {
  const Result r = run_.tessera({"prepare", run_.recipe(), "--data.size", "32,48"});
  ASSERT_EQ(r.code, 0) << r.output;
  ASSERT_EQ(entries().size(), 3u);
  std::vector<std::vector<float>> pooled;
  for (const fs::path& entry : entries()) {
    const auto file = checkpoint::SafetensorsFile::open(entry);
    ASSERT_NE(file.find("context"), nullptr);
    EXPECT_EQ(file.find("context")->shape, (checkpoint::Shape{kLength, kWidth})) << "the padding is encoded too";
    const auto* vector = file.find("pooled");
    ASSERT_NE(vector, nullptr);
    EXPECT_EQ(vector->shape, checkpoint::Shape{kPooled});
    const auto bytes = file.bytes(vector->name);
    pooled.emplace_back(reinterpret_cast<const float*>(bytes.data()),
                        reinterpret_cast<const float*>(bytes.data() + bytes.size()));
  }
  EXPECT_NE(pooled[0], pooled[1]) << "of other captions";
}

TEST_F(TwoTextEncoders, AnotherTokenizerMakesOtherEntries) {
  TESSERA_NEED_GOLDENS();
  const std::vector<std::string> prepare = {"prepare", run_.recipe(), "--data.size", "32,48"};
  ASSERT_EQ(run_.tessera(prepare).code, 0);
  auto with_tokenizer = prepare;
  with_tokenizer.insert(with_tokenizer.end(),
                        {"--data.tokenizer", (fs::path(TESSERA_GOLDENS) / "tokenizers/t5").string(),
                         "--data.pooled_encoder", "clip-text-demo"});
  const Result other = run_.tessera(with_tokenizer);
  EXPECT_EQ(other.code, 0) << other.output;
  EXPECT_EQ(entries().size(), 6u);
}

TEST_F(TwoTextEncoders, TrainTheSameOnEveryLayoutCachedOrNot) {
  const Flags drops = {"--diffusion.caption_dropout", "0.3", "--diffusion.pooled_dropout", "0.3"};
  Result r = train(1, "one", drops);
  ASSERT_EQ(r.code, 0) << r.output;
  Flags online = drops;
  online.insert(online.end(), {"--data.cache", "online"});
  r = train(1, "online", online);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(run_.losses("one"), run_.losses("online")) << "what is stored is what is encoded";
  for (const char* mesh : {"dp_shard=2", "cp=2", "tp=2"}) {
    Flags flags = drops;
    flags.insert(flags.end(), {"--mesh", mesh});
    r = train(2, mesh, flags);
    ASSERT_EQ(r.code, 0) << r.output;
    expect_same_curve(run_.metrics("one"), run_.metrics(mesh), 6);
  }
  r = train(1, "all", {});
  ASSERT_EQ(r.code, 0) << r.output;
  r = train(1, "without", {"--diffusion.pooled_dropout", "1"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(run_.losses("all"), run_.losses("without")) << "the pooled caption is an input of the model";
}

/// Entries of clips in the cache, and what they hold besides the latent.
std::vector<std::set<std::string>> clip_entries(const fs::path& cache) {
  std::vector<std::set<std::string>> all;
  for (const auto& item : fs::directory_iterator(cache)) {
    if (item.path().extension() != ".safetensors") continue;
    auto& names = all.emplace_back();
    const auto file = checkpoint::SafetensorsFile::open(item.path());
    for (const auto& entry : file.entries())
      if (entry.name != "latent") names.insert(entry.name);
  }
  return all;
}

TEST_F(TwoTextEncoders, GivenFramesAreDrawnAlikeOnEveryLayoutCachedOrNotAndGoOn) {
  const Flags given = {"--diffusion.conditions", "t2v=1,i2v_head=2,i2v_tail=1,i2v_loop=1"};
  const auto with = [&](Flags more) {
    more.insert(more.end(), given.begin(), given.end());
    return more;
  };
  Result r = train(1, "one", given);
  ASSERT_EQ(r.code, 0) << r.output;
  for (const auto& names : clip_entries(run_.folder() / "cache"))
    EXPECT_EQ(names, (std::set<std::string>{"given.0-1", "given.7-8"}))
        << "the first frame and the last, by themselves";
  for (const auto& step : run_.metrics("one"))
    for (const auto& rank : step.at("ranks"))
      ASSERT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>());
  r = train(1, "online", with({"--data.cache", "online"}));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(run_.losses("one"), run_.losses("online"));
  for (const char* line : {"dp_shard=2", "cp=2", "sp=2", "tp=2", "pp=2"}) {
    r = train(2, line, with({"--mesh", line}));
    ASSERT_EQ(r.code, 0) << r.output;
    expect_same_curve(run_.metrics("one"), run_.metrics(line), 6);
  }
  r = train(1, "plain", {"--diffusion.conditions", "t2v=1"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(run_.losses("plain"), run_.losses("one"));
  ASSERT_EQ(train(1, "parts", with({"--run.steps", "3"})).code, 0);
  r = train(2, "parts", with({"--mesh", "tp=2"}));
  ASSERT_EQ(r.code, 0) << r.output;
  expect_same_curve(run_.metrics("one"), run_.metrics("parts"), 6);
  r = train(1, "parts", {"--diffusion.conditions", "t2v=1,i2v_head=9", "--run.steps", "8"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("diffusion.conditions"), std::string::npos) << r.output;
}

TEST_F(TwoTextEncoders, VideosAreContinuedWhereClipsAreLongEnoughAndSamplesHaveTheFramesThatTheyAreGiven) {
  const Flags longer = {"--data.frames",          "36",        "--data.fps", "40", "--run.steps", "3",
                        "--diffusion.conditions", "v2v_head=1"};
  Result r = train(1, "run", longer);
  ASSERT_EQ(r.code, 0) << r.output;
  for (const auto& names : clip_entries(run_.folder() / "cache"))
    EXPECT_TRUE(names.empty()) << "under this autoencoder they are slices of the clip's latent";
  r = train(1, "short", {"--diffusion.conditions", "v2v_head=1"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("are too short for each of them"), std::string::npos) << r.output;
  const auto sample = [&](const std::string& name, const Flags& more) {
    Flags line = {
        "sample",    run_.recipe(),         "--prompt",       "a square", "--out",       run_.out(name) + ".mp4",
        "--weights", run_.out() + "/model", "--sample.steps", "2",        "--data.size", "32,48"};
    line.insert(line.end(), more.begin(), more.end());
    return run_.tessera(line);
  };
  const std::string clip = (run_.folder() / "data/clip0.mp4").string();
  const Flags video = {"--sample.video", clip, "--data.frames", "36", "--data.fps", "40"};
  r = sample("goes-on", video);
  EXPECT_EQ(r.code, 0) << r.output;
  Flags both = video;
  both.insert(both.end(), {"--sample.image", "clip"});
  r = sample("both", both);
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("sample.condition = \"v2v_head\" takes none"), std::string::npos) << r.output;
  r = sample("loop", {"--sample.image", "clip", "--sample.last_image", "clip"});
  EXPECT_EQ(r.code, 0) << r.output;
  r = sample("tail", {"--sample.last_image", "clip", "--sample.condition", "i2v_tail"});
  EXPECT_EQ(r.code, 0) << r.output;
  r = sample("longer", {"--sample.video", clip});
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("v2v_head gives 8 of the sample's 2 latent frames"), std::string::npos) << r.output;
}

TEST(FrameMasks, TrainTheSameOnEveryLayoutAndGoOn) {
  const TinyRun run("stdit-masks", TESSERA_BINARY, R"(preset = "opensora1.2-tiny"
config = { in_channels = 48, caption_channels = 64, model_max_length = 40 })");
  const auto train = [&](int ranks, const std::string& name, Flags more) {
    const Flags masks = {"--data.size",
                         "32,48",
                         "--data.frames",
                         "16",
                         "--data.fps",
                         "16",
                         "--diffusion.timesteps",
                         "by_area",
                         "--diffusion.mask_ratios",
                         "random=0.3,image_head=0.2,image_tail=0.2,quarter_head_tail=0.2"};
    more.insert(more.begin(), masks.begin(), masks.end());
    return run.train(ranks, name, more, 300);
  };
  Result r = train(1, "one", {});
  ASSERT_EQ(r.code, 0) << r.output;
  for (const char* line : {"dp_shard=2", "cp=2", "sp=2", "tp=2", "pp=2"}) {
    r = train(2, line, {"--mesh", line});
    ASSERT_EQ(r.code, 0) << r.output;
    expect_same_curve(run.metrics("one"), run.metrics(line), 6);
    for (const auto& step : run.metrics(line))
      for (const auto& rank : step.at("ranks"))
        ASSERT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>()) << line;
  }
  ASSERT_EQ(train(1, "parts", {"--run.steps", "3"}).code, 0);
  r = train(2, "parts", {"--mesh", "cp=2"});
  ASSERT_EQ(r.code, 0) << r.output;
  expect_same_curve(run.metrics("one"), run.metrics("parts"), 6);
  r = run.train(
      1, "none",
      {"--data.size", "32,48", "--data.frames", "16", "--data.fps", "16", "--diffusion.conditions", "i2v_head=1"}, 300);
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("diffusion.mask_ratios gives it frames without noise"), std::string::npos) << r.output;
}

class FramesBeside : public ::testing::Test {
 protected:
  Result train(int ranks, const std::string& name, Flags more) const {
    const Flags shape = {"--data.size", "32,48", "--data.frames",         "16",
                         "--data.fps",  "16",    "--diffusion.timesteps", "by_area"};
    more.insert(more.begin(), shape.begin(), shape.end());
    return run_.train(ranks, name, more, 300);
  }
  void expect_planned(const std::string& name) const {
    for (const auto& step : run_.metrics(name))
      for (const auto& rank : step.at("ranks"))
        ASSERT_LE(rank.at("peak_bytes").get<int64_t>(), rank.at("predicted_peak_bytes").get<int64_t>()) << name;
  }

  const TinyRun run_{"stdit-beside", TESSERA_BINARY, R"(preset = "opensora1.3-tiny"
config = { in_channels = 48, caption_channels = 64, model_max_length = 40 })"};
  const Flags drawn_ = {"--diffusion.mask_types",      "none=1,i2v_head=1,i2v_loop=2,v2v_head_noisy=2,other=1",
                        "--diffusion.drop_condition",  "cond=1,text=1,null=1,keep=3",
                        "--diffusion.caption_dropout", "0.2"};
};

TEST_F(FramesBeside, AreDrawnAlikeOnEveryLayoutCachedOrNotAndGoOn) {
  const auto with = [&](Flags more) {
    more.insert(more.end(), drawn_.begin(), drawn_.end());
    return more;
  };
  Result r = train(1, "one", drawn_);
  ASSERT_EQ(r.code, 0) << r.output;
  expect_planned("one");
  for (const auto& names : clip_entries(run_.folder() / "cache"))
    EXPECT_EQ(names, std::set<std::string>{"given.noisy"}) << "the whole clip with some noise on its pixels";
  r = train(1, "online", with({"--data.cache", "online"}));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(run_.losses("one"), run_.losses("online"));
  expect_planned("online");
  for (const char* line : {"dp_shard=2", "cp=2", "sp=2", "tp=2", "pp=2"}) {
    r = train(2, line, with({"--mesh", line}));
    ASSERT_EQ(r.code, 0) << r.output;
    expect_same_curve(run_.metrics("one"), run_.metrics(line), 6);
    expect_planned(line);
  }
  ASSERT_EQ(train(1, "parts", with({"--run.steps", "3"})).code, 0);
  r = train(2, "parts", with({"--mesh", "sp=2"}));
  ASSERT_EQ(r.code, 0) << r.output;
  expect_same_curve(run_.metrics("one"), run_.metrics("parts"), 6);
  r = train(1, "parts", {"--diffusion.mask_types", "none=1", "--run.steps", "8"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("diffusion.mask_types"), std::string::npos) << r.output;
}

TEST_F(FramesBeside, EachKindChangesTheRunAndSamplesAreGivenThem) {
  const auto trained = [&](const std::string& name, const std::string& types, const Flags& more = {}) {
    Flags flags = {"--diffusion.mask_types", types, "--run.steps", "2"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Result r = train(1, name, flags);
    EXPECT_EQ(r.code, 0) << r.output;
    expect_planned(name);
    return run_.losses(name);
  };
  const std::vector<std::vector<double>> all = {
      trained("none", "none=1"),
      trained("loop", "i2v_loop=1"),
      trained("half", "v2v_head=1"),
      trained("noisy", "v2v_head_noisy=1"),
      trained("text", "v2v_head=1", {"--diffusion.drop_condition", "text=1"}),
      trained("cond", "v2v_head=1", {"--diffusion.drop_condition", "cond=1"})};
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i][1], all[j][1]) << i << " and " << j;
  // captions as long as the plan's: what frames read in their place is counted
  for (const char* types : {"none=1", "i2v_loop=1"}) {
    const std::string name = std::string("longest-") + types;
    trained(name, types, {"--model.config.model_max_length", "2"});
    for (const auto& step : run_.metrics(name))
      for (const auto& rank : step.at("ranks"))
        EXPECT_GE(rank.at("peak_bytes").get<double>(), 0.98 * rank.at("predicted_peak_bytes").get<double>()) << name;
  }
  const Flags samples = {"--sample.every",    "2", "--sample.steps",          "2", "--sample.prompts", "a square",
                         "--sample.guidance", "4", "--sample.image_guidance", "2", "--sample.image",   "clip"};
  trained("sampled", "i2v_head=1,i2v_loop=1", samples);
  EXPECT_EQ(run_.metrics("sampled", "sample").size(), 1U);
  const auto sample = [&](const std::string& name, const Flags& more) {
    Flags line = {"sample",         run_.recipe(),
                  "--prompt",       "a square",
                  "--out",          run_.out(name) + ".mp4",
                  "--weights",      run_.out("sampled") + "/model",
                  "--sample.steps", "2",
                  "--data.size",    "32,48",
                  "--data.frames",  "16",
                  "--data.fps",     "16"};
    line.insert(line.end(), more.begin(), more.end());
    return run_.tessera(line);
  };
  const std::string clip = (run_.folder() / "data/clip0.mp4").string();
  Result r = sample("goes-on", {"--sample.video", clip});
  EXPECT_EQ(r.code, 0) << r.output;
  r = sample("loops", {"--sample.image", "clip", "--sample.last_image", "clip", "--sample.condition", "i2v_loop"});
  EXPECT_EQ(r.code, 0) << r.output;
  r = sample("easy", {"--sample.video", clip, "--sample.condition", "v2v_head_easy"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("the model is given half of a video"), std::string::npos) << r.output;
  r = sample("written", {"--sample.video", clip, "--sample.negative_prompt", "noise"});
  EXPECT_EQ(r.code, 2) << r.output;
  r = train(1, "wrong", {"--diffusion.conditions", "i2v_head=1"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("diffusion.mask_types gives it frames beside them"), std::string::npos) << r.output;
  r = train(1, "wrong", {"--model.preset", "opensora1.2-tiny", "--diffusion.mask_types", "i2v_head=1"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("diffusion.mask_ratios gives it frames without noise"), std::string::npos) << r.output;
}

TEST_F(TwoTextEncoders, EncodeTrainAndSampleFromAnEmptyCacheOnEveryAxis) {
  const auto from_nothing = [&](int ranks, const std::string& name, const Flags& more) {
    const fs::path cache = run_.folder() / ("cache-" + name);
    Flags flags = {"--data.cache",
                   cache.string(),
                   "--run.steps",
                   "4",
                   "--sample.every",
                   "2",
                   "--sample.steps",
                   "2",
                   "--sample.prompts",
                   "x",
                   "--sample.image",
                   "clip",
                   "--sample.sampler",
                   "euler_by_size",
                   "--sample.guidance",
                   "4",
                   "--sample.image_guidance",
                   "2"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Result r = train(ranks, name, flags);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(run_.metrics(name, "sample").size(), 2u);
  };
  ASSERT_NO_FATAL_FAILURE(from_nothing(1, "one", {}));
  for (const char* line : {"dp_shard=2", "dp_replicate=2", "cp=2", "tp=2", "pp=2 --train.micro_batch 1",
                           "pp=2 --train.micro_batch 2", "pp=2 --train.micro_batch 4"}) {
    SCOPED_TRACE(line);
    const Layout layout = layout_of(line);
    ASSERT_NO_FATAL_FAILURE(from_nothing(layout.ranks, line, layout.flags));
    expect_same_curve(run_.metrics("one"), run_.metrics(line), 4);
  }
}

TEST_F(TwoTextEncoders, AreUsedWhereSamplesAreMade) {
  Result r = train(2, "run",
                   {"--sample.every", "6", "--sample.steps", "3", "--sample.guidance", "4", "--sample.sampler",
                    "euler_by_size", "--sample.image", "clip", "--sample.image_guidance", "2"});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto sample = [&](const std::string& name, const Flags& more) {
    Flags line = {"sample",         run_.recipe(),
                  "--prompt",       "a square that moves, number 0",
                  "--out",          run_.out(name) + ".mp4",
                  "--sample.steps", "3",
                  "--data.size",    "32,48"};
    line.insert(line.end(), more.begin(), more.end());
    const Result made = run_.tessera(line);
    EXPECT_EQ(made.code, 0) << made.output;
    return text_of(run_.out(name) + ".mp4");
  };
  const std::string plain = sample("plain", {});
  EXPECT_FALSE(plain.empty());
  EXPECT_EQ(sample("own", {"--weights", run_.out() + "/model"}), plain)
      << "a model that a run of ours exported is sampled with the encoders of that run";
  EXPECT_NE(sample("guided", {"--sample.guidance", "5"}), plain);
  EXPECT_EQ(sample("negative", {"--sample.guidance", "5", "--sample.alternate_guidance", "true"}),
            sample("guided", {"--sample.guidance", "5"}))
      << "it begins with the eleventh step";
}

TEST_F(TwoTextEncoders, WithRandomWeightsAreRefusedForWeightsOfOtherPrograms) {
  Result r = train(1, "run", {});
  ASSERT_EQ(r.code, 0) << r.output;
  const fs::path model = run_.out() + "/model", released = run_.folder() / "released";
  fs::copy(model, released, fs::copy_options::recursive);
  for (const auto& item : fs::directory_iterator(released)) {
    if (item.path().extension() != ".safetensors") continue;
    const auto file = checkpoint::SafetensorsFile::open(item.path());
    std::vector<std::vector<std::byte>> bytes;
    std::vector<checkpoint::TensorData> tensors;
    for (const auto& entry : file.entries()) {
      bytes.push_back(file.bytes(entry.name));
      tensors.push_back({entry.name, entry.dtype, entry.shape, nullptr});
    }
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = bytes[i].data();
    checkpoint::write_safetensors(item.path(), tensors, {{"format", "pt"}});  // without the mark of our runs
  }
  const auto expect_refused = [](const Result& refused) {
    EXPECT_EQ(refused.code, 2) << refused.output;
    EXPECT_NE(refused.output.find("data.text_encoder_path is empty"), std::string::npos) << refused.output;
  };
  expect_refused(train(1, "from", {"--model.path", released.string()}));
  expect_refused(run_.tessera(
      {"sample", run_.recipe(), "--prompt", "a square", "--weights", released.string(), "--data.size", "32,48"}));
  r = train(1, "on", {"--model.path", model.string()});
  EXPECT_EQ(r.code, 0) << r.output;
  r = train(1, "anew", {"--model.path", released.string(), "--model.init", "random"});
  EXPECT_EQ(r.code, 0) << r.output;
}

}  // namespace
}  // namespace tessera::testing
