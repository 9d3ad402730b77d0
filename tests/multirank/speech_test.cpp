// Speech to video: the reference's outputs and gradients, training on clips with sound on two ranks, samples that have
// their sound and say how much it matters.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <tuple>

#include "need_goldens.h"
#include "program.h"
#include "sound.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

Arguments with(const Arguments& more) {
  Arguments all = kHearing;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

double mean_loss(const std::vector<nlohmann::json>& steps, size_t first, size_t count) {
  double sum = 0;
  for (size_t i = first; i < first + count; ++i) sum += steps.at(i).at("loss").get<double>();
  return sum / static_cast<double>(count);
}

std::map<std::string, std::vector<int64_t>> cached_shapes(const TinyRun& run) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& item : fs::recursive_directory_iterator(run.folder() / "cache")) {
    if (item.path().extension() != ".safetensors") continue;
    const auto file = checkpoint::SafetensorsFile::open(item.path());
    for (const auto& entry : file.entries()) shapes[entry.name] = entry.shape;
  }
  return shapes;
}

}  // namespace

TEST(Speech, TheReferenceIsMetOnAnyLayout) {
  TESSERA_NEED_GOLDENS();
  const fs::path goldens = TESSERA_GOLDENS;
  for (const char* mesh : {"dp_shard=1", "dp_shard=2", "dp_replicate=2", "sp=3", "cp=2"}) {
    const Result r = run_program(
        {TESSERA_BINARY, "verify", "--mesh", mesh, (goldens / "wan22_s2v").string(), (goldens / "wav2vec").string()},
        {{"OMP_NUM_THREADS", "1"}});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST(Speech, TrainsOnClipsWithSoundAndSamplesSayWhatItChanges) {
  const TinyRun run("speech");
  give_sound(run);
  const Result r = run.train(2, "run",
                             with({"--run.steps", "40", "--train.lr", "3e-3", "--sample.every", "20", "--sample.steps",
                                   "4", "--sample.prompts", "a square"}));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("audio, an image and text"), std::string::npos) << r.output;
  const auto steps = run.metrics("run");
  ASSERT_EQ(steps.size(), 40u);
  EXPECT_LT(mean_loss(steps, 30, 10), 0.9 * mean_loss(steps, 0, 10));
  EXPECT_EQ(cached_shapes(run).at("audio"), (std::vector<int64_t>{25, 4, 32}))
      << "two latent frames, one of them heard";

  const auto samples = run.metrics("run", "sample");
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_GT(samples.back().at("audio_effect").get<double>(), 0);
  const fs::path clip = samples.back().at("file").get<std::string>();
  EXPECT_TRUE(data::has_sound(clip)) << clip;
  EXPECT_NEAR(data::decode_sound(clip).seconds(), 1, 0.1);
}

TEST(Speech, ColumnsOfATableNameSoundPoseAndPicture) {
  const TinyRun run("speech");
  data::write_mp4(run.folder() / "data" / "voice.mp4", data::decode_clip(run.folder() / "data/clip0.mp4", {}),
                  hum(300, 1));
  const std::vector<uint8_t> picture = data::write_png(data::decode_clip(run.folder() / "data/clip1.mp4", {}), 0);
  std::ofstream(run.folder() / "data" / "face.png", std::ios::binary)
      .write(reinterpret_cast<const char*>(picture.data()), static_cast<std::streamsize>(picture.size()));
  std::ofstream(run.folder() / "data" / "metadata.csv")
      << "video,prompt,input_audio,s2v_pose_video,input_image\nclip0.mp4,a square,voice.mp4,clip2.mp4,face.png\n";
  const Result r =
      run.tessera({"prepare", run.recipe(), "--data.path", (run.folder() / "data").string(), kHearing[0], kHearing[1],
                   kHearing[2], kHearing[3], kHearing[4], kHearing[5], kHearing[6], kHearing[7]});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto shapes = cached_shapes(run);
  EXPECT_EQ(shapes.at("audio"), (std::vector<int64_t>{25, 4, 32}));
  EXPECT_EQ(shapes.at("pose"), (std::vector<int64_t>{12, 2, 4, 4}));
  EXPECT_EQ(shapes.at("image_latent"), (std::vector<int64_t>{12, 1, 4, 4}));
}

TEST(Speech, SamplesFollowTheSoundThatIsGiven) {
  const TinyRun run("speech");
  give_sound(run);
  ASSERT_EQ(run.train(1, "run", with({"--run.steps", "2"})).code, 0);
  data::write_mp4(run.folder() / "other.mp4", data::decode_clip(run.folder() / "data/clip0.mp4", {}), hum(900, 1));
  const std::string out = (run.folder() / "said.mp4").string();
  const Result r =
      run.tessera({"sample", run.out() + "/recipe.toml", "--prompt", "a square", "--sample.steps", "2",
                   "--sample.guidance", "3", "--sample.audio", (run.folder() / "other.mp4").string(), "--out", out});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("the audio changes the prediction by"), std::string::npos) << r.output;
  EXPECT_TRUE(data::has_sound(out));
}

/// The pictures of a sample, one after the other.
std::vector<std::string> pictures(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(folder)) files.push_back(item.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> contents;
  for (const fs::path& file : files) contents.push_back(text_of(file));
  return contents;
}

bool begins_with(const std::vector<std::string>& all, const std::vector<std::string>& first) {
  return first.size() <= all.size() && std::equal(first.begin(), first.end(), all.begin());
}

TEST(Speech, SamplesGoOnClipByClipForAsLongAsTheSoundLasts) {
  const TinyRun run("long-speech");
  give_sound(run);
  std::ofstream(run.folder() / "data" / "metadata.csv")
      << "video,prompt,s2v_pose_video\nclip0.mp4,a square,clip1.mp4\nclip2.mp4,another,clip0.mp4\n";
  const Arguments size = {"--data.size", "64,64"};  // 8 x 8 cells, which motion is packed in
  Arguments trained = with({"--run.steps", "3", "--train.lr", "3e-2"});
  trained.insert(trained.end(), size.begin(), size.end());
  ASSERT_EQ(run.train(1, "run", trained).code, 0);
  data::Sound voice = hum(300, 2), other = voice;
  for (size_t i = 20000; i < other.samples.size(); ++i) other.samples[i] = -other.samples[i] * 0.3F;  // from 1.25 s on
  const data::Frames clip = data::decode_clip(run.folder() / "data/clip0.mp4", {});
  data::Frames poses = clip;  // twice as long
  poses.rgb.insert(poses.rgb.end(), clip.rgb.begin(), clip.rgb.end());
  poses.count *= 2;
  data::write_mp4(run.folder() / "voice.mp4", poses, voice);
  data::write_mp4(run.folder() / "other.mp4", poses, other);
  const auto sample = [&](const std::string& name, const std::string& sound, const Arguments& more, int ranks = 1) {
    const fs::path out = run.folder() / name;
    Arguments line = {
        "sample",         run.out() + "/recipe.toml",      "--prompt", "a square", "--sample.steps", "2",
        "--sample.audio", (run.folder() / sound).string(), "--format", "frames",   "--out",          out.string()};
    if (ranks > 1) line.insert(line.begin(), {"launch", "-n", std::to_string(ranks)});
    line.insert(line.end(), more.begin(), more.end());
    const Result r = run.tessera(line);
    EXPECT_EQ(r.code, 0) << r.output;
    return pictures(out);
  };
  // a clip has 8 frames at 8 a second, of which 4 are the picture's; each further one adds 4
  const auto one = sample("one", "voice.mp4", {}), all = sample("all", "voice.mp4", {"--sample.clips", "auto"});
  ASSERT_EQ(one.size(), 8u);
  ASSERT_EQ(all.size(), 20u) << "2 seconds of sound, the first 3/8 of them before the picture's end";
  // not EXPECT_EQ, which would print pictures
  EXPECT_TRUE(begins_with(all, one));
  EXPECT_TRUE(sample("four", "voice.mp4", {"--sample.clips", "4"}) == all);
  EXPECT_TRUE(sample("ranks", "voice.mp4", {"--sample.clips", "4"}, 2) == all);
  const auto changed = sample("changed", "other.mp4", {"--sample.clips", "4"});
  EXPECT_TRUE(begins_with(changed, one)) << "what is said later changes nothing before";
  EXPECT_TRUE(changed != all);
  EXPECT_TRUE(sample("posed", "voice.mp4", {"--sample.pose", "clip"}) != one);
  const auto two =
      sample("two", "voice.mp4", {"--sample.clips", "2", "--sample.pose", (run.folder() / "voice.mp4").string()});
  EXPECT_EQ(two.size(), 12u);
  EXPECT_FALSE(begins_with(all, two)) << "poses of a file change what is made";
  const auto refused = [&](const Arguments& more, const std::string& why) {
    Arguments line = {"sample", run.out() + "/recipe.toml", "--prompt", "a square"};
    line.insert(line.end(), more.begin(), more.end());
    const Result r = run.tessera(line);
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find(why), std::string::npos) << r.output;
  };
  refused({"--sample.clips", "0"}, "sample.clips = 0");
  refused({"--sample.clips", "2", "--data.size", "32,32"}, "multiples of 64 pixels");
  refused({"--sample.pose", "clip", "--data.path", (run.folder() / "data/clip0.mp4").string()}, "names no pose video");
}

TEST(Speech, LearnsByLoraOnAnyLayoutItsInjectorsAmongTheRest) {
  const TinyRun run("speech-lora");
  give_sound(run);
  ASSERT_EQ(run.train(1, "base", with({"--run.steps", "5", "--train.lr", "1e-2"})).code, 0);
  const Arguments lora = {"--model.path", run.out("base") + "/model",
                          "--train.mode", "lora",
                          "--lora.rank",  "4",
                          "--train.lr",   "1e-2",
                          "--run.steps",  "4"};
  std::vector<std::vector<nlohmann::json>> curves;
  for (const std::string mesh : {"sp=1", "sp=2", "cp=2", "tp=2"}) {
    Arguments flags = lora;
    flags.insert(flags.end(), {"--mesh", mesh, "--train.micro_batch", "2", "--lora.dropout", "0.2"});
    const Result r = run.train(mesh.back() - '0', mesh, flags);
    ASSERT_EQ(r.code, 0) << r.output;
    curves.push_back(run.metrics(mesh));
    for (size_t i = 0; i < curves[0].size(); ++i)
      EXPECT_NEAR(curves.back()[i].at("loss").get<double>(), curves[0][i].at("loss").get<double>(), 2e-6)
          << mesh << ", step " << i + 1;
  }
  EXPECT_GT(curves[0].back().at("grad_norm").get<double>(), 0);
  const auto file = checkpoint::SafetensorsFile::open(run.out("sp=1") + "/model/pytorch_lora_weights.safetensors");
  EXPECT_TRUE(std::any_of(file.entries().begin(), file.entries().end(), [](const auto& entry) {
    return entry.name.find("audio_injector.injector.0.q.lora_B") != std::string::npos;
  }));
}

TEST(Speech, APlanThatDoesNotFitSaysSoAndTheLargestClipIsFound) {
  const TinyRun run("speech");
  give_sound(run);
  const Result small = run.train(1, "run", with({"--plan.budget", "1MiB"}));
  EXPECT_EQ(small.code, 4) << small.output;
  Arguments largest = with({"--largest", "frames", "--plan.budget", "16MiB"});
  largest.insert(largest.begin(), {"plan", run.recipe()});
  const Result r = run.tessera(largest);
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("largest frames"), std::string::npos) << r.output;
}

TEST(Speech, AClipWithoutSoundIsNamedBeforeTraining) {
  const TinyRun run("speech");
  const Result r = run.train(1, "run", with({"--run.steps", "1"}));
  EXPECT_EQ(r.code, 3) << r.output;
  for (const char* text : {"clip0.mp4", "no audio track", "column audio"})
    EXPECT_NE(r.output.find(text), std::string::npos) << r.output;
  const Result silent = run.tessera({"train", run.recipe(), "--sample.audio", "a.wav", "--sample.every", "1"});
  EXPECT_EQ(silent.code, 2) << silent.output;
  EXPECT_NE(silent.output.find("has no audio input"), std::string::npos) << silent.output;
}

}  // namespace tessera::testing
