// `tessera prepare` and what follows from it: killed and started again, stale entries, faulty rows, several shapes.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <set>

#include "matrix.h"
#include "multirank/processes.h"
#include "program.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/cache.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kClips = 1000, kKills = 40;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::trunc | std::ios::binary) << text;
}

/// A square that moves, `kind` says how and in which colours.
data::Frames moving(int frames, int height, int width, int kind) {
  data::Frames clip{.count = frames, .height = height, .width = width, .fps = 8, .rgb = {}};
  for (int f = 0; f < frames; ++f)
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        for (int c = 0; c < 3; ++c) {
          const bool inside = std::abs(x - (2 + (kind + 2 * f) % width)) < 4 && std::abs(y - kind % height) < 5;
          clip.rgb.push_back(static_cast<uint8_t>(inside ? 220 - 40 * ((c + kind) % 3) : 30 + 3 * y + 10 * c));
        }
  return clip;
}

/// Every file below the folder and its bytes.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[fs::relative(entry.path(), folder).string()] = text_of(entry.path());
  return files;
}

/// Of clips; those of captions are in its texts/.
size_t entries(const fs::path& folder) {
  std::error_code none;
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder, none)) count += entry.path().extension() == ".safetensors";
  return count;
}

void expect_text(const Result& r, const std::vector<std::string>& words) {
  for (const auto& word : words)
    EXPECT_NE(r.output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << r.output;
}

class Prepare : public ::testing::Test {
 protected:
  Prepare() : run_("prepare") {}

  fs::path data() const { return run_.folder() / "data"; }
  fs::path cache() const { return run_.folder() / "cache"; }
  Result prepare(int ranks, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"launch", "-n", std::to_string(ranks), "prepare", run_.recipe()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_.tessera(arguments);
  }

  const TinyRun run_;
};

/// A thousand clips: 20 different ones, each copied under 50 names.
fs::path thousand_clips(const fs::path& folder) {
  std::string table = "video,prompt\n";
  for (int i = 0; i < kClips; ++i) {
    const std::string name = "clip" + std::to_string(i) + ".mp4";
    if (i < 20) {
      fs::create_directories(folder);
      data::write_mp4(folder / name, moving(4, 16, 16, 7 * i));
    } else {
      fs::copy_file(folder / ("clip" + std::to_string(i % 20) + ".mp4"), folder / name);
    }
    table += name + ",a square that moves in way " + std::to_string(i % 20) + " number " + std::to_string(i) + "\n";
  }
  write(folder / "metadata.csv", table);
  return folder;
}

TEST_F(Prepare, AThousandClipsKilledAtRandomGiveTheCacheOfAnUndisturbedRun) {
  const fs::path clips = thousand_clips(run_.folder() / "many");
  const auto flags = [&](const std::string& cache) {
    return std::vector<std::string>{
        "--data.path", clips.string(), "--data.cache", (run_.folder() / cache).string(), "--data.frames",
        "4",           "--data.size",  "16,16"};
  };
  const Result undisturbed = prepare(2, flags("whole"));
  ASSERT_EQ(undisturbed.code, 0) << undisturbed.output;
  expect_text(undisturbed, {"1000 of 1000", "free", "1000 samples ready"});
  const auto whole = contents(run_.folder() / "whole");
  ASSERT_EQ(entries(run_.folder() / "whole"), static_cast<size_t>(kClips));
  ASSERT_EQ(entries(run_.folder() / "whole/texts"), static_cast<size_t>(kClips));

  const fs::path broken = run_.folder() / "broken";
  const std::string log = (run_.folder() / "log.txt").string();
  std::mt19937 random(5);
  int within = 0;
  MatrixPart part("prepare kills", kKills);
  for (const int i : part) {
    if (entries(broken) == kClips) fs::remove_all(broken);
    const size_t before = entries(broken);
    const int ranks = 1 + i % 3;
    std::vector<std::string> argv = {TESSERA_BINARY, "launch", "-n", std::to_string(ranks), "prepare", run_.recipe()};
    for (const auto& flag : flags("broken")) argv.push_back(flag);
    const pid_t launcher = start_program(argv, log, {{"OMP_NUM_THREADS", "1"}});
    // Any moment: before, at or between entries; by number, because time says little on a busy machine.
    const size_t until = before + std::uniform_int_distribution<size_t>(0, 400)(random);
    int code = -1;
    while (code < 0 && entries(broken) < until) code = wait_program(launcher, 0.005);
    if (code < 0) {
      const std::vector<pid_t> all = children(launcher);
      kill(i % 2 == 0 || all.empty() ? launcher : all[static_cast<size_t>(i) % all.size()], SIGKILL);
      code = wait_program(launcher, 30);
      EXPECT_TRUE(gone(all, 10));
    }
    within += entries(broken) > 0 && entries(broken) < kClips;
    ASSERT_TRUE(code == 0 || code == 5 || code == 128 + SIGKILL) << code << "\n" << text_of(log);
  }
  EXPECT_GT(within, 0) << "no kill came while samples were encoded: nothing was tested";
  const Result last = prepare(2, flags("broken"));
  ASSERT_EQ(last.code, 0) << last.output;
  const auto mended = contents(broken);
  EXPECT_EQ(mended.size(), whole.size()) << "also no partial file is left";
  for (const auto& [name, bytes] : whole) {
    ASSERT_TRUE(mended.contains(name)) << name;
    EXPECT_TRUE(mended.at(name) == bytes) << name << " differs";
  }
}

TEST_F(Prepare, AStaleEntryIsRefusedNamingWhatDiffersAndRebuiltOnRequest) {
  ASSERT_EQ(prepare(1).code, 0);
  data::write_mp4(data() / "clip1.mp4", moving(8, 32, 32, 3));
  for (const char* command : {"prepare", "train"}) {
    const Result refused = run_.tessera({command, run_.recipe()});
    EXPECT_EQ(refused.code, 3) << refused.output;
    expect_text(refused, {"1 of 3 entries", "clip1.mp4", "stale: stamp is", "--rebuild"});
  }
  EXPECT_EQ(prepare(2, {"--rebuild"}).code, 0);
  EXPECT_EQ(run_.train(1, "run").code, 0);

  // Another encoder, shape or preprocessing has entries of its own: nothing is mixed up, nothing is lost.
  ASSERT_EQ(entries(cache()), 3u);
  EXPECT_EQ(prepare(1, {"--data.size", "16,32"}).code, 0);
  EXPECT_EQ(prepare(1, {"--data.fps", "4", "--data.frames", "4"}).code, 0);
  EXPECT_EQ(entries(cache()), 9u);
  const Result again = prepare(1);
  EXPECT_EQ(again.output.find("encoding"), std::string::npos) << again.output;

  // A damaged entry is refused by the recipe that trains on it, and encoded again by its `prepare`.
  const fs::path victim = [&] {
    for (const auto& entry : fs::directory_iterator(cache()))
      if (entry.path().extension() == ".safetensors") return entry.path();
    return fs::path();
  }();
  const std::string whole = text_of(victim);
  const std::vector<std::vector<std::string>> recipes = {
      {}, {"--data.size", "16,32"}, {"--data.fps", "4", "--data.frames", "4"}};
  fs::resize_file(victim, fs::file_size(victim) - 9);
  int refused = 0;
  for (const auto& recipe : recipes) {
    std::vector<std::string> line = {"train", run_.recipe(), "--run.out", run_.out("damaged"), "--run.steps", "1"};
    line.insert(line.end(), recipe.begin(), recipe.end());
    const Result r = run_.tessera(line);
    if (r.code == 3) ++refused, expect_text(r, {victim.filename().string()});
  }
  EXPECT_EQ(refused, 1) << "the entry belongs to one of the three recipes";
  for (const auto& recipe : recipes) EXPECT_EQ(prepare(1, recipe).code, 0);
  EXPECT_TRUE(text_of(victim) == whole);
}

TEST_F(Prepare, FaultyRowsAreAllToldAndTrainingAsksBeforeItLeavesThemOut) {
  const fs::path cut = data() / "cut.mp4";
  fs::copy_file(data() / "clip1.mp4", cut);
  fs::resize_file(cut, fs::file_size(cut) * 2 / 3);  // its header is whole: found while decoding
  write(data() / "metadata.csv",
        "video,prompt\nclip0.mp4,one\ngone.mp4,two\ncut.mp4,three\nclip2.mp4,four\nclip1.mp4,\n");
  const Result told = prepare(2);
  EXPECT_EQ(told.code, 0) << told.output;
  expect_text(told, {"3 rows have problems", "metadata.csv: row 3", "gone.mp4: no such file", "metadata.csv: row 4",
                     "cut.mp4", "metadata.csv: row 6", "2 samples ready", "data.allow_bad"});
  const Result strict = prepare(2, {"--strict"});
  EXPECT_EQ(strict.code, 3) << strict.output;
  expect_text(strict, {"row 3", "gone.mp4"});
  EXPECT_EQ(strict.output.find("row 6"), std::string::npos) << strict.output;

  const Result refused = run_.train(2, "run");
  EXPECT_EQ(refused.code, 3) << refused.output;
  expect_text(refused, {"row 3", "row 6", "data.allow_bad"});
  const Result allowed = run_.train(2, "run", {"--data.allow_bad", "3"});
  EXPECT_EQ(allowed.code, 0) << allowed.output;
  expect_text(allowed, {"left out: 3 rows have problems"});
}

TEST_F(Prepare, SeveralShapesTrainTheSameOnEveryLayout) {
  data::write_mp4(data() / "wide.mp4", moving(8, 16, 64, 5));
  write(data() / "wide.txt", "a wide one");
  for (int i = 0; i < 2; ++i) {
    const auto png = data::write_png(moving(1, 32, 32, 9 + i), 0);
    const std::string stem = "still" + std::to_string(i);
    write(data() / (stem + ".png"), std::string(png.begin(), png.end()));
    write(data() / (stem + ".txt"), "a still one");
  }
  const std::vector<std::string> flags = {"--data.buckets", "8x32x32,8x16x64,1x32x32", "--run.steps", "12"};
  const Result empty = run_.train(2, "empty", {"--data.buckets", "8x32x32,8x16x64,4x16x64,1x32x32"});
  EXPECT_EQ(empty.code, 3) << empty.output;
  expect_text(empty, {"no clip is of the shape 4x16x64", "8x16x64: 1 clip", "4x16x64: 0 clips", "data.buckets"});
  for (const int ranks : {1, 2}) {
    const std::string name = "ranks" + std::to_string(ranks);
    const Result r = run_.train(ranks, name, flags);
    ASSERT_EQ(r.code, 0) << r.output;
    expect_text(r, {"8x32x32: 3 clips", "8x16x64: 1 clip", "1x32x32: 2 clips"});
    std::map<int64_t, int> shapes;  // by tokens of the global batch of 4
    for (const auto& step : run_.metrics(name)) {
      ++shapes[step["tokens"].get<int64_t>()];
      if (step["step"] == 1) continue;  // peaks count from the end of the first step
      for (const auto& rank : step["ranks"])
        EXPECT_LE(rank["peak_bytes"].get<int64_t>(), rank["predicted_peak_bytes"].get<int64_t>());
    }
    EXPECT_EQ(shapes.size(), 2u) << "8x32x32 and 8x16x64 have as many tokens, stills fewer";
    EXPECT_EQ(shapes.begin()->second, 4) << "two of six clips are stills";
  }
  const auto one = run_.losses("ranks1"), two = run_.losses("ranks2");
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-5 * one[i]) << i;

  // Stopped after five steps and resumed it is the same run.
  std::vector<std::string> five = flags;
  five.back() = "5";
  ASSERT_EQ(run_.train(1, "parts", five).code, 0);
  ASSERT_EQ(run_.train(1, "parts", flags).code, 0);
  EXPECT_EQ(run_.losses("parts"), one);

  // Each third step but the first is of stills, on another layout that went on behind the fifth too.
  const auto turns = [&](const char* steps) -> std::vector<std::string> {
    return {"--data.buckets", "8x32x32,8x16x64,1x32x32", "--data.images_every", "3", "--run.steps", steps};
  };
  ASSERT_EQ(run_.train(1, "turns", turns("12")).code, 0);
  ASSERT_EQ(run_.train(2, "turned", turns("5")).code, 0);
  ASSERT_EQ(run_.train(1, "turned", turns("12")).code, 0);
  const auto stills = run_.metrics("turns"), went_on = run_.metrics("turned");
  ASSERT_EQ(stills.size(), went_on.size());
  const auto tokens = [](const auto& step) { return step.at("tokens").template get<int64_t>(); };
  for (size_t i = 0; i < stills.size(); ++i) {
    EXPECT_EQ(tokens(stills[i]) < tokens(stills[0]), i > 0 && i % 3 == 0) << i;
    EXPECT_NEAR(stills[i].at("loss").get<double>(), went_on[i].at("loss").get<double>(),
                1e-5 * stills[i].at("loss").get<double>())
        << i;
  }
}

TEST_F(Prepare, OnlineIsTheSameTrainingWithoutACache) {
  ASSERT_EQ(run_.train(2, "cached", {"--data.clip_mode", "chunks", "--data.frames", "4"}).code, 0);
  fs::remove_all(cache());
  const Result online =
      run_.train(2, "online", {"--data.clip_mode", "chunks", "--data.frames", "4", "--data.cache", "online"});
  ASSERT_EQ(online.code, 0) << online.output;
  EXPECT_EQ(run_.losses("online"), run_.losses("cached"));
  EXPECT_FALSE(fs::exists(cache()));
  EXPECT_FALSE(fs::exists("online"));
}

TEST_F(Prepare, SeveralFoldersTrainAsTheOneThatHoldsTheirClips) {
  const fs::path all = run_.folder() / "all";
  std::string table = "video,prompt\n";
  for (const auto& [name, kind] : {std::pair("b/clip0", 3), {"a, of 2026/clip0", 8}, {"a, of 2026/clip1", 11}}) {
    fs::create_directories((all / name).parent_path());
    data::write_mp4(all / (name + std::string(".mp4")), moving(8, 32, 32, kind));
    write(all / (name + std::string(".txt")), "a square " + std::to_string(kind));
    table += "\"" + std::string(name) + ".mp4\",a square " + std::to_string(kind) + "\n";
  }
  const std::string a = (all / "a, of 2026").string(), b = (all / "b").string();
  std::string recipe = text_of(run_.recipe());
  const size_t path = recipe.find("path = "), end = recipe.find('\n', path);
  recipe.replace(path, end - path, "path = [\"" + b + "\", \"" + a + "\"]");
  write(run_.recipe(), recipe);
  const Result r = prepare(2);
  ASSERT_EQ(r.code, 0) << r.output;
  expect_text(r, {"3 rows", b + " 1, " + a + " 2"});
  EXPECT_EQ(entries(cache()), 3u) << "clips of one name in two folders are two clips";
  ASSERT_EQ(run_.train(2, "folders", {"--run.steps", "5"}).code, 0);
  const std::string resolved = text_of(run_.out("folders") + "/recipe.toml");
  EXPECT_NE(resolved.find("path = [\"" + b + "\", \"" + a + "\"]"), std::string::npos) << resolved;
  write(all / "metadata.csv", table);
  ASSERT_EQ(run_.train(2, "one", {"--run.steps", "5", "--data.path", all.string()}).code, 0);
  EXPECT_EQ(run_.losses("folders"), run_.losses("one"));

  const Result refused = prepare(1, {"--data.metadata", (all / "metadata.csv").string()});
  EXPECT_EQ(refused.code, 2);
  expect_text(refused, {"data.path names 2 folders beside data.metadata"});
  fs::remove_all(a);
  const Result missing = prepare(1);
  EXPECT_EQ(missing.code, 3);
  expect_text(missing, {a + ": no such folder"});
}

TEST_F(Prepare, EachEpochDrawsOneOfSeveralCaptions) {
  write(data() / "metadata.jsonl", R"({"video":"clip0.mp4","prompt":["a square","a bright square","it moves"]})");
  const Result r = prepare(1);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(entries(cache()), 1u);
  EXPECT_EQ(entries(cache() / "texts"), 3u);
  expect_text(r, {"1 of 1 clips", "3 of 3 captions"});
  EXPECT_EQ(run_.train(2, "run").code, 0);
}

TEST_F(Prepare, ACorrectedCaptionEncodesTextAlone) {
  // A tokenizer that is made of the captions would change with them.
  ASSERT_EQ(prepare(1).code, 0);
  const auto before = contents(cache());
  const std::string tokenizer = [&] {
    for (const auto& [name, bytes] : before)
      if (name.starts_with("tokenizer-")) return (cache() / name).string();
    return std::string();
  }();
  ASSERT_EQ(prepare(1, {"--data.tokenizer", tokenizer}).code, 0);
  write(data() / "clip1.txt", "a square that moves, corrected");
  const Result r = prepare(2, {"--data.tokenizer", tokenizer});
  ASSERT_EQ(r.code, 0) << r.output;
  expect_text(r, {"0 of 3 clips and 1 of 3 captions"});
  const auto after = contents(cache());
  EXPECT_EQ(after.size(), before.size() + 1);
  for (const auto& [name, bytes] : before) EXPECT_TRUE(after.at(name) == bytes) << name;

  const Result pruned = prepare(1, {"--data.tokenizer", tokenizer, "--prune"});
  expect_text(pruned, {"removed 1 entries"});
  EXPECT_EQ(entries(cache() / "texts"), 3u);
  EXPECT_EQ(entries(cache()), 3u);
  EXPECT_EQ(run_.train(2, "run", {"--data.tokenizer", tokenizer}).code, 0);

  fs::remove(data() / "clip2.mp4");
  write(data() / "metadata.csv", "video,prompt\nclip0.mp4,one\nclip2.mp4,two\n");
  const Result kept = prepare(1, {"--prune"});
  EXPECT_EQ(kept.code, 0) << kept.output;
  expect_text(kept, {"nothing was removed, because 1 rows were left out"});
  EXPECT_EQ(entries(cache()), 3u);
}

TEST_F(Prepare, TouchedClipsAreNotEncodedAgainAndTrustDoesNotLook) {
  ASSERT_EQ(prepare(1).code, 0);
  const auto before = contents(cache());
  const auto touch = [&](const char* name) {
    fs::last_write_time(data() / name, fs::last_write_time(data() / name) + std::chrono::hours(2));
  };
  touch("clip0.mp4"), touch("clip2.mp4");
  for (const int ranks : {1, 2}) {
    const Result r = prepare(ranks);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(r.output.find("encoding"), std::string::npos) << r.output;
  }
  EXPECT_EQ(run_.train(2, "touched").code, 0);
  for (const auto& [name, bytes] : before)
    if (name != "probes.jsonl") EXPECT_TRUE(contents(cache()).at(name) == bytes) << name;

  data::write_mp4(data() / "clip1.mp4", moving(8, 32, 32, 3));
  EXPECT_EQ(prepare(1).code, 3);
  const Result trusted = prepare(2, {"--trust"});
  EXPECT_EQ(trusted.code, 0) << trusted.output;
  expect_text(trusted, {"--trust: used the entries of 1 files whose size, time or path has changed",
                        "without comparing their content"});
  EXPECT_EQ(trusted.output.find("encoding"), std::string::npos) << trusted.output;
  EXPECT_EQ(run_.train(2, "trusted").code, 0) << "it is written down";
}

TEST_F(Prepare, ALengthThatNoVideoHasIsToldAndTheOthersTrain) {
  const std::vector<std::string> lengths = {"--data.buckets", "4x32x32,8x32x32,12x32x32"};
  const Result one_each = prepare(1, lengths);
  EXPECT_EQ(one_each.code, 3) << one_each.output;
  expect_text(one_each, {"no clip is of the shape"});
  std::vector<std::string> every = lengths;
  every.insert(every.end(), {"--data.clip_lengths", "every"});
  const Result r = prepare(2, every);
  ASSERT_EQ(r.code, 0) << r.output;
  expect_text(r, {"4x32x32: 3 clips", "8x32x32: 3 clips", "12x32x32: 0 clips", "6 of 6 clips"});
  every.insert(every.end(), {"--run.steps", "4", "--sample.every", "4", "--sample.steps", "2"});
  const Result trained = run_.train(2, "run", every);
  EXPECT_EQ(trained.code, 0) << trained.output;
  EXPECT_EQ(run_.metrics("run").size(), 4u);
}

TEST_F(Prepare, RenamedClipsAreNotEncodedAgain) {
  ASSERT_EQ(prepare(1).code, 0);
  const auto before = contents(cache());
  const auto rename = [&](const std::string& from, const std::string& to) {
    for (const char* type : {".mp4", ".txt"}) fs::rename(data() / (from + type), data() / (to + type));
  };
  rename("clip1", "street at night");
  const Result renamed = prepare(2);
  ASSERT_EQ(renamed.code, 0) << renamed.output;
  expect_text(renamed, {"1 clips were encoded under another path"});
  EXPECT_EQ(renamed.output.find("encoding"), std::string::npos) << renamed.output;
  for (const auto& [name, bytes] : before)
    if (name != "probes.jsonl") EXPECT_TRUE(contents(cache()).at(name) == bytes) << name;
  EXPECT_EQ(entries(cache()), 3u);
  EXPECT_EQ(run_.train(2, "renamed").code, 0);

  // Another clip under the earlier name: its entry replaces the one that the renamed clip used.
  data::write_mp4(data() / "clip1.mp4", moving(8, 32, 32, 3));
  write(data() / "clip1.txt", "another clip");
  EXPECT_EQ(prepare(1).code, 3) << "that entry is stale";
  const Result both = prepare(2, {"--rebuild"});
  ASSERT_EQ(both.code, 0) << both.output;
  expect_text(both, {"2 of 4 clips"});
  EXPECT_EQ(run_.train(2, "both").code, 0);

  // Nobody looks at what a trusted clip has.
  const fs::path file = data() / "clip2.mp4";
  const auto time = fs::last_write_time(file);
  {
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(fs::file_size(file)) - 1), out.put('x');
  }
  fs::last_write_time(file, time);
  rename("clip2", "a walk");
  const Result trusted = prepare(2, {"--trust"});
  ASSERT_EQ(trusted.code, 0) << trusted.output;
  EXPECT_EQ(trusted.output.find("encoding"), std::string::npos) << trusted.output;
  const Result later = prepare(1);
  EXPECT_EQ(later.code, 0) << later.output;
  EXPECT_EQ(later.output.find("encoding"), std::string::npos) << "it is written down\n" << later.output;
}

TEST_F(Prepare, CaptionsThatWereCutAreEncodedAgainForALongerText) {
  std::string longer = "a square";
  for (int i = 0; i < 30; ++i) longer += " moves and then rests";
  write(data() / "clip1.txt", longer);
  ASSERT_EQ(prepare(1).code, 0);
  std::string recipe = text_of(run_.recipe());
  const size_t length = recipe.find("text_len = 16");
  ASSERT_NE(length, std::string::npos);
  write(run_.recipe(), recipe.replace(length, 13, "text_len = 40"));
  const Result r = prepare(1);
  ASSERT_EQ(r.code, 0) << r.output;
  expect_text(r, {"0 of 3 clips and 3 of 3 captions"});
  std::multiset<int64_t> rows;
  for (const auto& entry : fs::directory_iterator(cache() / "texts"))
    rows.insert(checkpoint::SafetensorsFile::open(entry.path()).at("context").shape[0]);
  EXPECT_GE(rows.count(16), 1u) << "cut at 16";
  EXPECT_GE(rows.count(40), 1u) << "and at 40";
}

TEST_F(Prepare, RanksShareTheCaptionsAndWriteWhatOneRankWrites) {
  ASSERT_EQ(prepare(1).code, 0);
  const auto one = contents(cache());
  fs::remove_all(cache());
  ASSERT_EQ(prepare(2).code, 0);
  EXPECT_TRUE(contents(cache()) == one);
}

/// Two jobs of four ranks encode the same clips into one folder at once, as two recipes of one data set do, and the ranks of
/// one are killed.
TEST_F(Prepare, AFolderThatManyRanksWriteAtOnceIsWholeWhenHalfOfThemAreKilled) {
  const fs::path clips = run_.folder() / "forty";
  std::string table = "video,prompt\n";
  fs::create_directories(clips);
  for (int i = 0; i < 40; ++i) {
    data::write_mp4(clips / (std::to_string(i) + ".mp4"), moving(4, 16, 16, 7 * i));
    table += std::to_string(i) + ".mp4,a square that moves in way " + std::to_string(i) + "\n";
  }
  write(clips / "metadata.csv", table);
  const auto flags = [&](const std::string& cache) {
    return std::vector<std::string>{
        "--data.path", clips.string(), "--data.cache", (run_.folder() / cache).string(), "--data.frames",
        "4",           "--data.size",  "16,16"};
  };
  ASSERT_EQ(prepare(1, flags("whole")).code, 0);
  const auto whole = contents(run_.folder() / "whole");
  std::vector<std::string> argv = {TESSERA_BINARY, "launch", "-n", "4", "prepare", run_.recipe()};
  for (const auto& flag : flags("shared")) argv.push_back(flag);
  const std::string log = (run_.folder() / "job-").string();
  std::vector<pid_t> jobs;
  for (const char* dies : {"3", "nobody"})
    jobs.push_back(start_program(argv, log + dies,
                                 {{"LD_PRELOAD", KILL_AT},
                                  {"TESSERA_KILL_AT", std::string("call=rename path=*/shared/*.safetensors nth=1 "
                                                                  "when=before end=self who=") +
                                                          dies},
                                  {"TESSERA_KILL_DONE", (run_.folder() / dies).string()},
                                  {"TESSERA_TEST_EXEC", "1"},
                                  {"OMP_NUM_THREADS", "1"}}));
  EXPECT_EQ(wait_program(jobs[0], 90), 5) << text_of(log + "3");
  EXPECT_EQ(wait_program(jobs[1], 90), 0) << text_of(log + "nobody");
  const Result next = prepare(2, flags("shared"));
  EXPECT_EQ(next.code, 0) << next.output;
  EXPECT_TRUE(contents(run_.folder() / "shared") == whole) << "every entry, and nothing that was half written";
}

/// The clip shown with its left side on the right, as a container's matrix says.
void mirror(const fs::path& mp4) {
  std::string bytes = text_of(mp4);
  bytes.replace(bytes.find("tkhd") + 44, 4, std::string("\xFF\xFF\0\0", 4));
  write(mp4, bytes);
}

/// An entry of the cache as a version made it that did not say how files are shown: as they are stored.
void make_plain(const fs::path& entry, const fs::path& cache) {
  data::CachedClip clip;
  data::CacheKey key;
  {
    const auto file = checkpoint::SafetensorsFile::open(entry);
    for (const char* field : {"source", "encoder", "shape", "preprocessing", "version"})
      key.fields[field] = file.metadata().at(field);
    clip = data::read_clip({entry, key.fields, false, "the clip"});
  }
  std::string& preprocessing = key.fields["preprocessing"];
  const size_t reading = preprocessing.find(" upright");
  ASSERT_NE(reading, std::string::npos) << preprocessing;
  preprocessing.erase(reading);
  const fs::path source = key.fields["source"];
  key.sources = {{"", source, data::file_stamp(source)}};
  data::write_clip(cache, key, clip, {});
  fs::remove(entry);
}

TEST_F(Prepare, EntriesOfFilesThatAreShownOtherwiseNowAreMadeAgainAndNoOthers) {
  mirror(data() / "clip1.mp4");
  ASSERT_EQ(prepare(1).code, 0);
  const auto whole = contents(cache());
  fs::path mirrored;
  for (const auto& entry : fs::directory_iterator(cache()))
    if (entry.path().extension() == ".safetensors" && text_of(entry.path()).find("clip1.mp4") != std::string::npos)
      mirrored = entry.path();
  ASSERT_FALSE(mirrored.empty());
  make_plain(mirrored, cache());
  fs::remove(cache() / "probes.jsonl");  // which an earlier version wrote in other words
  const auto before = contents(cache());
  for (const bool trains : {false, true}) {
    const Result r = trains ? run_.train(2, "run") : prepare(2);
    ASSERT_EQ(r.code, 0) << r.output;
    expect_text(
        r, {"encoding 1 of 3 clips and 0 of",
            "1 clip is encoded again, since an earlier version showed its file in another way: 1 turned or mirrored"});
    for (const auto& [name, bytes] : before)
      if (name.ends_with(".safetensors")) EXPECT_TRUE(contents(cache()).at(name) == bytes) << name;
    EXPECT_TRUE(text_of(mirrored) == whole.at(mirrored.filename().string())) << "as it was made at first";
    fs::remove(mirrored);
  }
  EXPECT_EQ(prepare(1).code, 0);
  const Result again = prepare(1);
  EXPECT_EQ(again.output.find("encoding "), std::string::npos) << again.output;
}

TEST_F(Prepare, ClipsThatAreTooShortAreLeftOutAndCounted) {
  data::write_mp4(data() / "clip1.mp4", moving(5, 32, 32, 3));
  for (const bool trains : {false, true}) {
    const Result r = trains ? run_.train(2, "run") : prepare(2);
    EXPECT_EQ(r.code, 0) << r.output;
    expect_text(r, {"1 clip is too short and left out:", "clip1.mp4: found 5 frames at the rate of training"});
    EXPECT_EQ(r.output.find("have a problem"), std::string::npos) << r.output;
  }
  const Result none = prepare(1, {"--data.frames", "32"});
  EXPECT_EQ(none.code, 3) << none.output;
  expect_text(none,
              {"3 clips are too short and left out", "clip2.mp4: found 8 frames", "no clip of the data set is left"});
}

TEST_F(Prepare, WhatIsWrongWithFootageIsToldAndDropsNothing) {
  data::Frames cut = moving(8, 32, 32, 3), black = moving(8, 32, 32, 5);
  for (int f = 4; f < 8; ++f)
    for (size_t i = 0; i < cut.frame_bytes(); ++i) cut.frame(f)[i] = static_cast<uint8_t>(255 - cut.frame(f)[i] / 2);
  std::ranges::fill(black.rgb, uint8_t{4});
  data::write_mp4(data() / "clip1.mp4", cut), data::write_mp4(data() / "clip2.mp4", black);
  const auto report = [&] {
    std::map<std::string, nlohmann::json> lines;
    std::ifstream in(cache() / "report.jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line);
      lines[fs::path(json.at("source").get<std::string>()).filename().string()] = json;
    }
    return lines;
  };
  const Result r = prepare(2);
  ASSERT_EQ(r.code, 0) << r.output;
  expect_text(r, {"footage of 3 clips: ", "1 clip with hard cuts inside; the first: ", "clip1.mp4 at frame 4",
                  "data.cuts", "1 clip all black; the first: ", "clip2.mp4", "3 samples ready"});
  EXPECT_EQ(report().at("clip1.mp4").at("cuts"), nlohmann::json({4}));
  EXPECT_EQ(report().at("clip2.mp4").at("black"), true);
  EXPECT_EQ(report().at("clip0.mp4").at("black"), false);
  EXPECT_EQ(report().size(), 3u);
  for (const auto& file : fs::directory_iterator(cache())) EXPECT_NE(file.path().extension(), ".part");
  // Told again from the report, without a look at any clip; a clip that changes has its line anew.
  const Result again = prepare(1);
  expect_text(again, {"footage of 3 clips: ", "clip1.mp4 at frame 4"});
  data::write_mp4(data() / "clip1.mp4", moving(8, 32, 32, 3));
  const Result mended = prepare(1, {"--rebuild"});
  ASSERT_EQ(mended.code, 0) << mended.output;
  EXPECT_EQ(mended.output.find("hard cuts"), std::string::npos) << mended.output;
  EXPECT_TRUE(report().at("clip1.mp4").at("cuts").empty());
  // Clips of one caption are told, too.
  write(data() / "metadata.csv", "video,prompt\nclip0.mp4,same\nclip1.mp4,same\nclip2.mp4,same\nclip0.mp4,other\n");
  expect_text(prepare(1), {"3 of 4 captions are the same: 'same'"});
}

TEST_F(Prepare, ScenesAreSplitAndClipsAcrossACutDroppedOnRequest) {
  data::Frames cut = moving(8, 32, 32, 3);
  for (int f = 5; f < 8; ++f)
    for (size_t i = 0; i < cut.frame_bytes(); ++i) cut.frame(f)[i] = static_cast<uint8_t>(255 - cut.frame(f)[i] / 2);
  data::write_mp4(data() / "clip1.mp4", cut);
  const std::vector<std::string> four = {"--data.frames", "4", "--data.fps", "8", "--data.clip_mode", "chunks"};
  const auto with = [&](const char* cuts) {
    std::vector<std::string> more = four;
    more.insert(more.end(), {"--data.cuts", cuts});
    const Result r = prepare(2, more);
    EXPECT_EQ(r.code, 0) << r.output;
    return r;
  };
  expect_text(with("keep"), {"4x32x32: 6 clips", "1 clip with hard cuts inside"});
  expect_text(with("drop"), {"4x32x32: 5 clips", "data.cuts = \"drop\" leaves out 1 clips"});
  const Result split = with("split");
  expect_text(split, {"4x32x32: 5 clips", "data.cuts = \"split\" leaves out 1 scenes that are too short"});
  EXPECT_EQ(split.output.find("with hard cuts inside"), std::string::npos) << split.output;
}

TEST_F(Prepare, ADiskThatIsTooSmallIsToldBeforeAnythingIsWritten) {
  const Result r = prepare(1, {"--data.size", "300000,300000", "--data.max_crop", "1"});
  EXPECT_EQ(r.code, 7) << r.output;
  expect_text(r, {"GiB", "are free", "data.cache"});
  EXPECT_EQ(entries(cache()), 0u);
}

}  // namespace
}  // namespace tessera::testing
