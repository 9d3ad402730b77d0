// Masks of what counts in the loss: the same on every layout, over a stop, from the cache or not, in held-out loss, and as
// large as planned.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "planned_memory.h"
#include "program.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

Flags with(Flags flags, const Flags& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// Grey levels by place and frame.
template <class Level>
data::Frames painted(int frames, int height, int width, const Level& level) {
  data::Frames mask{.count = frames, .height = height, .width = width, .fps = 8, .rgb = {}};
  for (int f = 0; f < frames; ++f)
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x) mask.rgb.insert(mask.rgb.end(), 3, static_cast<uint8_t>(level(f, y, x)));
  return mask;
}
void write_png(const fs::path& file, const data::Frames& picture) {
  fs::create_directories(file.parent_path());
  const std::vector<uint8_t> bytes = data::write_png(picture, 0);
  std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

/// Three clips: the first has a picture of another size as its mask, the second a video, the third none.
const TinyRun& tiny() {
  static const TinyRun run("masks");
  static const bool written = [] {
    const fs::path masks = run.folder() / "masks", whole = run.folder() / "whole", none = run.folder() / "black";
    write_png(masks / "clip0.png", painted(1, 48, 48, [](int, int y, int x) { return x < 24 ? 255 : 3 * y; }));
    data::write_mp4(masks / "clip1.mp4", painted(8, 32, 32, [](int f, int y, int) { return y < 4 * f ? 230 : 20; }));
    for (const char* clip : {"clip0", "clip1", "clip2"}) {
      write_png(whole / (std::string(clip) + ".png"), painted(1, 32, 32, [](int, int, int) { return 255; }));
      write_png(none / (std::string(clip) + ".png"), painted(1, 32, 32, [](int, int, int) { return 0; }));
    }
    return true;
  }();
  EXPECT_TRUE(written);
  return run;
}
std::string folder(const char* name) { return (tiny().folder() / name).string(); }
Flags masked(const Flags& more = {}) { return with({"--data.mask_path", folder("masks")}, more); }

std::vector<double> trained(const std::string& name, const Flags& flags, int ranks = 1) {
  const Result r = tiny().train(ranks, name, with({"--run.steps", "3"}, flags));
  EXPECT_EQ(r.code, 0) << name << "\n" << r.output;
  return tiny().losses(name);
}

TEST(Masks, WeighTheSameOnEveryLayoutAndTakeThePlannedMemory) {
  const Flags flags = masked({"--diffusion.unmasked_probability", "0.3", "--diffusion.normalize_masked_area_loss",
                              "true", "--data.mask_min_value", "0.1", "--eval.path", folder("data"), "--eval.every",
                              "2", "--diffusion.loss", "mse=0.7,huber=0.3"});
  const std::vector<double> one = trained("one", flags);
  ASSERT_EQ(one.size(), 3u);
  expect_planned_peaks(tiny().metrics("one").back(), "one");
  // Of a micro-batch of one sample each rank of sp and cp has a part.
  for (const auto& [name, ranks, mesh, micro_batch] : {std::tuple("shard", 2, "dp_shard=2", "auto"),
                                                       {"tp", 2, "tp=2", "auto"},
                                                       {"pp", 2, "pp=2", "auto"},
                                                       {"sp", 2, "sp=2", "1"},
                                                       {"cp", 2, "cp=2", "1"},
                                                       {"three", 3, "dp_replicate=3", "auto"}}) {
    const std::vector<double> other =
        trained(name, with(flags, {"--mesh", mesh, "--train.micro_batch", micro_batch}), ranks);
    ASSERT_EQ(other.size(), one.size()) << mesh;
    EXPECT_NEAR(other[0], one[0], 2e-6 * one[0]) << mesh;
    for (size_t s = 1; s < one.size(); ++s) EXPECT_NEAR(other[s], one[s], 1e-4 * one[s]) << mesh;
    expect_planned_peaks(tiny().metrics(name).back(), name);
    const auto found = tiny().metrics(name, "eval"), expected = tiny().metrics("one", "eval");
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_NEAR(found[0]["loss"].get<double>(), expected[0]["loss"].get<double>(),
                2e-5 * expected[0]["loss"].get<double>());
  }
  const std::vector<double> plain =
      trained("plain", {"--eval.path", folder("data"), "--eval.every", "2", "--diffusion.loss", "mse=0.7,huber=0.3"});
  EXPECT_GT(std::abs(plain[0] - one[0]), 1e-3 * plain[0]);
  EXPECT_NE(tiny().metrics("plain", "eval")[0]["loss"], tiny().metrics("one", "eval")[0]["loss"]);
  const auto peak = [](const char* name) {
    return tiny().metrics(name).back()["ranks"][0]["predicted_peak_bytes"].get<int64_t>();
  };
  EXPECT_GT(peak("one"), peak("plain")) << "weights lie beside the targets";
}

TEST(Masks, GoOnToTheBitAndAreTheSameWithoutACache) {
  const Flags flags =
      masked({"--run.steps", "4", "--checkpoint.every", "2", "--diffusion.unmasked_probability", "0.4"});
  const std::vector<double> whole = trained("whole-run", flags);
  ASSERT_EQ(whole.size(), 4u);
  trained("parts", with(flags, {"--run.steps", "2"}));
  EXPECT_EQ(trained("parts", flags), whole);
  EXPECT_EQ(trained("online", with(flags, {"--data.cache", "online"})), whole);
}

TEST(Masks, OfWhiteChangeNothingAndOfBlackLeaveNothing) {
  const std::vector<double> plain = trained("without", {});
  EXPECT_EQ(trained("white", {"--data.mask_path", folder("whole")}), plain);
  EXPECT_EQ(trained("inverted", {"--data.mask_path", folder("black"), "--data.invert_mask", "true"}), plain);
  EXPECT_EQ(trained("unmasked", masked({"--diffusion.unmasked_probability", "1"})), plain);
  EXPECT_EQ(trained("lifted", masked({"--data.mask_min_value", "1"})), plain);
  EXPECT_EQ(trained("raised", masked({"--diffusion.unmasked_weight", "1"})), plain);
  for (const char* of_area : {"false", "true"})
    EXPECT_EQ(trained(std::string("black-") + of_area,
                      {"--data.mask_path", folder("black"), "--diffusion.normalize_masked_area_loss", of_area}),
              (std::vector<double>{0, 0, 0}));
  // A tenth everywhere is a tenth of the loss, and all of it where the area counts.
  const std::vector<double> tenth =
      trained("tenth", {"--data.mask_path", folder("black"), "--data.mask_min_value", "0.1"});
  EXPECT_NEAR(tenth[0], 0.1 * plain[0], 1e-7 * plain[0]);
  const std::vector<double> area = trained("area", {"--data.mask_path", folder("black"), "--data.mask_min_value", "0.1",
                                                    "--diffusion.normalize_masked_area_loss", "true"});
  EXPECT_NEAR(area[0], plain[0], 1e-6 * plain[0]);
}

TEST(Masks, ComeFromAFolderAColumnOrASuffixAlike) {
  const std::vector<double> of_folder = trained("folder", masked());
  const fs::path set = tiny().folder() / "set", data = tiny().folder() / "data";
  fs::create_directories(set);
  std::ofstream table(tiny().folder() / "table.jsonl");
  for (const char* clip : {"clip0", "clip1", "clip2"}) {
    for (const char* ending : {".mp4", ".txt"}) fs::copy(data / (clip + std::string(ending)), set);
    const fs::path mask =
        tiny().folder() / "masks" / (clip + std::string(clip == std::string("clip0") ? ".png" : ".mp4"));
    table << nlohmann::json{{"video", (data / (clip + std::string(".mp4"))).string()},
                            {"mask", fs::exists(mask) ? mask.string() : ""},
                            {"prompt", text_of((data / (clip + std::string(".txt"))).string())}}
          << "\n";
  }
  table.close();
  const std::string of_table = (tiny().folder() / "table.jsonl").string();
  EXPECT_EQ(trained("column", {"--data.path", of_table, "--data.mask_path", "column"}), of_folder);
  fs::copy(tiny().folder() / "masks" / "clip0.png", set / "clip0_wmask.png");
  const std::vector<double> first_alone =
      trained("suffix", {"--data.path", set.string(), "--data.mask_suffix", "_wmask.png"});
  EXPECT_NE(first_alone, of_folder);
  fs::remove(tiny().folder() / "masks" / "clip1.mp4");
  EXPECT_EQ(trained("folder-first", masked()), first_alone) << "the others train whole, and a mask is no clip";
}

/// Losses of a step by the place of the data set.
std::vector<double> of_sets(const std::string& run, size_t step) {
  std::vector<double> losses;
  const auto line = tiny().metrics(run).at(step);
  for (const auto& set : line.at("sets")) losses.push_back(set.contains("loss") ? set["loss"].get<double>() : -1);
  return losses;
}

TEST(Masks, SetsHaveTheirOwnAndTheRunNoticesOthersBesideNoCache) {
  const fs::path more = tiny().folder() / "more";
  fs::copy(tiny().folder() / "data", more);
  const Flags sets = {"--data.path",          "",
                      "--data.set.0.path",    folder("data"),
                      "--data.set.1.path",    more.string(),
                      "--train.global_batch", "6",
                      "--train.lr",           "0"};
  trained("sets-plain", sets);
  const std::vector<double> plain = of_sets("sets-plain", 0);
  ASSERT_GT(std::min(plain[0], plain[1]), 0);
  for (const auto& [name, flags] : std::vector<std::pair<std::string, Flags>>{
           {"cached", {}}, {"online", {"--data.cache", "online"}}, {"shard", {"--mesh", "dp_shard=2"}}}) {
    const Flags black = with(with(sets, {"--data.set.1.mask_path", folder("black")}), flags);
    const int ranks = name == "shard" ? 2 : 1;
    trained("sets-black-" + name, black, ranks);
    const std::vector<double> masked = of_sets("sets-black-" + name, 0);
    EXPECT_NEAR(masked[0], plain[0], 1e-6 * plain[0]) << "the other set has none";
    EXPECT_EQ(masked[1], 0) << name;
    if (name != "online") expect_planned_peaks(tiny().metrics("sets-black-" + name).back(), name);
    for (const auto& rank :
         tiny().metrics("sets-black-" + name).back().at("ranks"))  // encoders may be done before the peak
      EXPECT_LE(rank.at("peak_bytes"), rank.at("predicted_peak_bytes")) << name;
    trained("sets-lifted-" + name, with(black, {"--data.set.1.mask_min_value", "0.25"}), ranks);
    EXPECT_NEAR(of_sets("sets-lifted-" + name, 0)[1], 0.25 * plain[1], 1e-6 * plain[1]) << name;
    trained("sets-inverted-" + name, with(black, {"--data.set.1.invert_mask", "true"}), ranks);
    EXPECT_NEAR(of_sets("sets-inverted-" + name, 0)[1], plain[1], 1e-6 * plain[1]) << name;
  }
  // What [data] says holds for a set that says nothing.
  trained("sets-inherited", with(sets, {"--data.mask_path", folder("black"), "--data.set.0.mask_path", ""}));
  EXPECT_EQ(of_sets("sets-inherited", 0)[1], 0);
  EXPECT_NEAR(of_sets("sets-inherited", 0)[0], plain[0], 1e-6 * plain[0]);
  fs::create_directories(tiny().folder() / "empty");
  const Result none = tiny().train(1, "sets-none", with(sets, {"--data.set.1.mask_path", folder("empty")}));
  EXPECT_EQ(none.code, 3) << none.output;
  EXPECT_NE(none.output.find("no clip of the data set " + more.string() + " has a mask"), std::string::npos)
      << none.output;
}

TEST(Masks, ThatDoNothingAreRefusedOrTold) {
  fs::create_directories(tiny().folder() / "empty");
  write_png(tiny().folder() / "wide" / "clip0.png", painted(1, 32, 64, [](int, int, int) { return 255; }));
  for (const auto& [flags, code, text] :
       {std::tuple(Flags{"--data.mask_path", folder("empty")}, 3, "no clip of the data set has a mask"),
        {Flags{"--data.mask_path", folder("nowhere")}, 3, "there is no such folder"},
        {Flags{"--data.alpha_mask", "true"}, 3, "no clip of the data set is transparent"},
        {Flags{"--data.mask_path", folder("wide")}, 3, "proportions"},
        {masked({"--data.alpha_mask", "true"}), 2, "a clip has one mask"},
        {Flags{"--data.mask_suffix", "masks/a.png"}, 2, "no ending"}}) {
    const Result r = tiny().train(1, "refused", with({"--run.steps", "1"}, flags));
    EXPECT_EQ(r.code, code) << flags[1] << "\n" << r.output;
    EXPECT_NE(r.output.find(text), std::string::npos) << text << "\n" << r.output;
  }
  const Result idle =
      tiny().tessera({"plan", tiny().recipe(), "--data.invert_mask", "true", "--data.mask_min_value", "0.2",
                      "--data.mask_resize", "nearest", "--diffusion.unmasked_weight", "0.1",
                      "--diffusion.unmasked_probability", "0.1", "--diffusion.normalize_masked_area_loss", "true"});
  for (const char* key : {"data.invert_mask", "data.mask_min_value", "data.mask_resize", "diffusion.unmasked_weight",
                          "diffusion.unmasked_probability", "diffusion.normalize_masked_area_loss"})
    EXPECT_NE(idle.output.find(std::string(key) + " = "), std::string::npos) << key << "\n" << idle.output;
}

}  // namespace
}  // namespace tessera::testing
