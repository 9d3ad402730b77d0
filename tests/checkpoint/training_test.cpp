#include "tessera/checkpoint/training.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <numeric>

#include "checkpoint/files.h"
#include "tessera/base/random.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

struct Model {
  struct Tensor {
    std::string name;
    Shape shape;
    std::vector<float> values;
  };
  std::vector<Tensor> tensors;

  /// Values that tell tensor, element and step apart.
  explicit Model(int64_t step) {
    for (const auto& [name, shape] :
         std::vector<std::pair<std::string, Shape>>{{"stem.weight", {6, 4}}, {"block.bias", {7}}, {"scale", {}}}) {
      std::vector<float> values(static_cast<size_t>(*element_count(shape)));
      std::iota(values.begin(), values.end(),
                static_cast<float>(1000 * step + 100 * static_cast<int64_t>(tensors.size())));
      tensors.push_back({name, shape, values});
    }
  }
};

/// Where rank r of n begins in `count` elements, uneven as flat shards are.
int64_t cut(int64_t count, int rank, int world) { return count * rank / world; }

std::vector<Piece> shard(const Model& model, int rank, int world) {
  std::vector<Piece> pieces;
  for (const auto& tensor : model.tensors) {
    int64_t count = static_cast<int64_t>(tensor.values.size()), begin = cut(count, rank, world);
    pieces.push_back({{tensor.name, "param", DType::f32, tensor.shape, {}, begin, cut(count, rank + 1, world)},
                      tensor.values.data() + begin});
  }
  return pieces;
}

Path save(const Path& checkpoints, int64_t step, int world, const Model& model) {
  Path partial = partial_folder(checkpoints, step), final = step_folder(checkpoints, step);
  for (int rank = 0; rank < world; ++rank) save_rank(partial, rank, shard(model, rank, world));
  Manifest manifest;
  manifest.step = step;
  manifest.mesh = Mesh::parse("dp_shard=" + std::to_string(world));
  manifest.epoch = 3, manifest.cursor = 17;
  manifest.seed = 0xffffffffffffffffu;
  manifest.schedule_lr = 1.0 / 3;
  manifest.experts = {{"high_noise", 5}};
  manifest.extra["losses"] = {1, 2};
  commit(partial, final, world, manifest);
  return final;
}

void expect_holds(const Path& folder, const Model& model, int world) {
  TrainingCheckpoint saved(folder);
  for (const auto& tensor : model.tensors)
    for (int rank = 0; rank < world; ++rank) {
      int64_t count = static_cast<int64_t>(tensor.values.size()), begin = cut(count, rank, world),
              end = cut(count, rank + 1, world);
      std::vector<float> values(static_cast<size_t>(end - begin));
      saved.read({tensor.name, "param", DType::f32, tensor.shape, {}, begin, end}, values.data());
      EXPECT_TRUE(std::equal(values.begin(), values.end(), tensor.values.begin() + begin))
          << tensor.name << " rank " << rank;
    }
}

class Training : public FileTest {};

TEST_F(Training, SavedByAnyNumberOfRanksLoadsOnAnyOther) {
  Model model(1);
  for (int savers : {1, 2, 3, 5, 9})
    for (int loaders : {1, 2, 4, 7}) {
      Path folder = save(folder_, 100, savers, model);
      expect_holds(folder, model, loaders);
    }
}

TEST_F(Training, TheManifestHasTheContractsFields) {
  Path folder = save(folder_, 100, 2, Model(1));
  EXPECT_EQ(folder.filename(), "step-000100");
  EXPECT_EQ(listing(),
            (std::vector<std::string>{"step-000100", "step-000100/manifest.json", "step-000100/rank-00000.safetensors",
                                      "step-000100/rank-00001.safetensors"}));
  Json json = parse_json(read_text(folder / "manifest.json"), "manifest");
  EXPECT_EQ(json["format"], "tessera");
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["step"], 100);
  EXPECT_EQ(json["mesh"]["dp_shard"], 2);
  EXPECT_EQ(json["data"], (Json{{"epoch", 3}, {"cursor", 17}}));
  EXPECT_EQ(json["rng"]["seed"], 0xffffffffffffffffu);
  EXPECT_EQ(json["schedule_lr"].get<double>(), 1.0 / 3);
  const Json& part = json["tensors"][0]["parts"][1];
  EXPECT_EQ(part["file"], "rank-00001.safetensors");
  EXPECT_EQ(part["box"], (Json{{0, 6}, {0, 4}}));
  EXPECT_EQ(part["flat"], (Json{12, 24}));
  EXPECT_TRUE(part["crc32c"].is_number_unsigned());
  EXPECT_TRUE(SafetensorsFile::open(folder / "rank-00001.safetensors").find(part["key"].get<std::string>()));

  Manifest manifest = load_manifest(folder);
  EXPECT_EQ(manifest.seed, 0xffffffffffffffffu);
  EXPECT_EQ(manifest.mesh, Mesh::parse("dp_shard=2"));
  EXPECT_EQ(manifest.experts["high_noise"], 5);
  EXPECT_EQ(manifest.extra, (Json{{"losses", {1, 2}}}));
  ASSERT_NE(manifest.find("scale", "param"), nullptr);
  EXPECT_EQ(manifest.find("scale", "exp_avg"), nullptr);
  EXPECT_EQ(manifest.step, 100);
  EXPECT_EQ(manifest.epoch, 3);
  EXPECT_EQ(manifest.cursor, 17);
  EXPECT_EQ(manifest.schedule_lr, 1.0 / 3);
  EXPECT_EQ(to_json(manifest), json) << "nothing that was written is lost by reading";
}

TEST_F(Training, BoxesOfTensorParallelismReshardToRowsAndColumns) {
  const Shape shape = {4, 6};
  std::vector<float> whole(24);
  std::iota(whole.begin(), whole.end(), 0.0f);
  auto element = [&](const Box& box, int64_t i) {
    int64_t width = box[1].second - box[1].first;
    return whole[static_cast<size_t>((box[0].first + i / width) * 6 + box[1].first + i % width)];
  };
  // saved as two column blocks, each sharded over two ranks at an uneven place
  std::vector<std::vector<float>> held;
  for (int rank = 0; rank < 4; ++rank) {
    Box box = {{0, 4}, {rank / 2 * 3, rank / 2 * 3 + 3}};
    int64_t begin = rank % 2 ? 7 : 0, end = rank % 2 ? 12 : 7;
    std::vector<float>& values = held.emplace_back();
    for (int64_t i = begin; i < end; ++i) values.push_back(element(box, i));
    save_rank(path("s.partial"), rank, {{{"w", "param", DType::f32, shape, box, begin, end}, values.data()}});
  }
  commit(path("s.partial"), path("s"), 4, {});
  TrainingCheckpoint saved(path("s"));
  for (const Box& box : {Box{{0, 4}, {0, 6}}, Box{{1, 3}, {0, 6}}, Box{{0, 4}, {2, 5}}, Box{{2, 4}, {1, 6}}})
    for (int64_t begin = 0; begin < volume(box); ++begin)
      for (int64_t end = begin; end <= volume(box); ++end) {
        std::vector<float> values(static_cast<size_t>(end - begin), -1);
        saved.read({"w", "param", DType::f32, shape, box, begin, end}, values.data());
        for (int64_t i = begin; i < end; ++i) ASSERT_EQ(values[static_cast<size_t>(i - begin)], element(box, i));
      }
}

TEST_F(Training, KindsRangesAndDtypesOfOneTensorStandBesideEachOther) {
  uint16_t half[4] = {0x3c00, 0x4000, 0x4200, 0x4400};  // 1 2 3 4
  float moment[4] = {5, 6, 7, 8};
  save_rank(path("s.partial"), 0,
            {{{"w", "param", DType::f16, {4}, {}, 0, 1}, half},
             {{"w", "param", DType::f16, {4}, {}, 3, 4}, half + 3},
             {{"w", "exp_avg", DType::f32, {4}}, moment}});
  save_rank(path("s.partial"), 1, {{{"w", "param", DType::f16, {4}, {}, 1, 3}, half + 1}});
  save_rank(path("s.partial"), 2, {});  // another replica holds the same and gives nothing
  commit(path("s.partial"), path("s"), 3, {});
  TrainingCheckpoint saved(path("s"));
  float values[4] = {};
  saved.read_f32({"w", "param", DType::f32, {4}}, values);
  EXPECT_EQ(std::vector<float>(values, values + 4), (std::vector<float>{1, 2, 3, 4}));
  saved.read_f32({"w", "exp_avg", DType::f32, {4}, {}, 2, 4}, values);
  EXPECT_EQ(values[0], 7.0f);
  EXPECT_FALSE(saved.contains("w", "exp_avg_sq"));
}

TEST_F(Training, AnotherModelOrOptimiserIsRefusedByName) {
  TrainingCheckpoint saved(save(folder_, 1, 2, Model(1)));
  float values[24];
  expect_error(Exit::input, {"param of 'stem.weight': expected [6, 8], file has [6, 4]", "another model"}, [&] {
    saved.read({"stem.weight", "param", DType::f32, {6, 8}}, values);
  });
  expect_error(Exit::input, {"no param of 'stem.wait', the nearest is 'stem.weight'"}, [&] {
    saved.read({"stem.wait", "param", DType::f32, {6, 4}}, values);
  });
  expect_error(Exit::input, {"no exp_avg of 'stem.weight', nor of any other tensor"}, [&] {
    saved.read({"stem.weight", "exp_avg", DType::f32, {6, 4}}, values);
  });
  expect_error(Exit::input, {"expected BF16, file has F32"}, [&] {
    saved.read({"stem.weight", "param", DType::bf16, {6, 4}}, values);
  });
}

TEST_F(Training, DamageIsFoundAndNamed) {
  Path folder = save(folder_, 1, 2, Model(1)), file = folder / "rank-00001.safetensors";
  std::string bytes = read_text(file);
  float values[24];
  auto read_all = [&] {
    TrainingCheckpoint saved(folder);
    saved.read({"stem.weight", "param", DType::f32, {6, 4}}, values);
    saved.read({"block.bias", "param", DType::f32, {7}}, values);
    saved.read({"scale", "param", DType::f32, {}}, values);
  };
  std::string flipped = bytes;
  flipped.back() ^= 1;
  write("step-000001/rank-00001.safetensors", flipped);
  expect_error(Exit::input, {"rank-00001.safetensors", "param of", "checksum", "no earlier one is there"}, read_all);
  write("step-000001/rank-00001.safetensors", bytes.substr(0, bytes.size() - 1));
  expect_error(Exit::input, {"rank-00001.safetensors", "truncated?"}, read_all);
  fs::copy_file(folder / "rank-00000.safetensors", file, fs::copy_options::overwrite_existing);
  expect_error(Exit::input, {"rank-00001.safetensors"}, read_all);
  fs::remove(file);
  expect_error(Exit::input, {"rank-00001.safetensors: missing, manifest.json names it"}, read_all);
}

TEST_F(Training, WrongManifestsAreRefused) {
  Path folder = save(folder_, 1, 2, Model(1));
  const Json good = parse_json(read_text(folder / "manifest.json"), "good");
  auto expect_refused = [&](const std::function<void(Json&)>& change, const std::string& text) {
    Json bad = good;
    change(bad);
    write("step-000001/manifest.json", bad.dump());
    expect_error(Exit::input, {text, "manifest.json"}, [&] { load_manifest(folder); });
  };
  expect_refused([](Json& m) { m["format"] = "other"; }, "not a checkpoint of this program");
  expect_refused([](Json& m) { m["version"] = 2; }, "expected version 1, found 2");
  expect_refused([](Json& m) { m.erase("data"); }, "'data' is missing");
  expect_refused([](Json& m) { m["rng"]["seed"] = -1; }, "rng.seed");
  expect_refused([](Json& m) { m["mesh"]["tp"] = 0; }, "tp = 0");
  expect_refused([](Json& m) { m["tensors"].push_back(m["tensors"][0]); }, "listed twice");
  expect_refused([](Json& m) { m["tensors"][0]["parts"][0]["file"] = "../x"; }, "expected a plain file name");
  expect_refused([](Json& m) { m["tensors"][0]["parts"].erase(0); }, "param of 'stem.weight': hole at element 0");
  expect_refused([](Json& m) { m["tensors"][0]["parts"][1]["flat"] = {11, 24}; }, "overlap at element 11");
  expect_refused([](Json& m) { m["tensors"][0]["parts"][1]["flat"] = {12, 23}; }, "has 24 elements, its parts 23");
  expect_refused([](Json& m) { m["tensors"][0]["parts"][1]["box"] = {{0, 6}, {0, 5}}; }, "lies outside [6, 4]");
  expect_refused([](Json& m) { m["tensors"][0]["shape"] = {1 << 30, 1 << 30, 1 << 30}; }, "more than 2^63 bytes");
  write("step-000001/manifest.json", good.dump().substr(0, 100));
  expect_error(Exit::input, {"not JSON"}, [&] { load_manifest(folder); });
}

TEST_F(Training, CommitRefusesRanksThatDoNotTileOrAreMissing) {
  float values[4] = {};
  auto piece = [&](int64_t begin, int64_t end) {
    return Piece{{"w", "param", DType::f32, {4}, {}, begin, end}, values};
  };
  save_rank(path("s.partial"), 0, {piece(0, 2)});
  expect_error(Exit::disk, {"rank-00001.parts.json", "rank 1 left no record"},
               [&] { commit(path("s.partial"), path("s"), 2, {}); });
  save_rank(path("s.partial"), 1, {piece(1, 4)});
  expect_error<InternalError>(Exit::internal, {"param of 'w'", "overlap at element 1"},
                              [&] { commit(path("s.partial"), path("s"), 2, {}); });
  save_rank(path("s.partial"), 1, {piece(3, 4)});
  expect_error<InternalError>(Exit::internal, {"hole at element 2"},
                              [&] { commit(path("s.partial"), path("s"), 2, {}); });
  EXPECT_FALSE(fs::exists(path("s")));
  save_rank(path("s.partial"), 1, {piece(2, 4)});
  commit(path("s.partial"), path("s"), 2, {});
  EXPECT_TRUE(fs::exists(path("s/manifest.json")));
  expect_error<InternalError>(Exit::internal, {"[3, 9) of box [0:4]"},
                              [&] { save_rank(path("t.partial"), 0, {piece(3, 9)}); });
}

TEST_F(Training, RemainsOfALargerWorldDoNotEnterACheckpoint) {
  Model old_model(1), model(2);
  for (int rank = 0; rank < 4; ++rank) save_rank(partial_folder(folder_, 5), rank, shard(old_model, rank, 4));
  Path folder = save(folder_, 5, 2, model);
  expect_holds(folder, model, 3);
  EXPECT_FALSE(fs::exists(folder / "rank-00003.safetensors"));
}

TEST_F(Training, SavingAStepTwiceReplacesIt) {
  save(folder_, 5, 2, Model(1));
  Path folder = save(folder_, 5, 3, Model(2));
  expect_holds(folder, Model(2), 1);
  EXPECT_FALSE(fs::exists(partial_folder(folder_, 5)));
}

TEST_F(Training, PartialFoldersAreRecognisedAndRemoved) {
  EXPECT_EQ(latest(path("absent")), std::nullopt);
  EXPECT_TRUE(clean_partials(path("absent")).empty());
  save(folder_, 9, 1, Model(9));
  save(folder_, 1'000'000, 1, Model(1));
  save(folder_, 999'999, 1, Model(1));
  save_rank(partial_folder(folder_, 1'000'001), 0, {});
  write("step-2000000/rank-00000.safetensors", "a folder without manifest.json does not exist");
  EXPECT_EQ(latest(folder_), path("step-1000000"));
  EXPECT_EQ(clean_partials(folder_), (std::vector<std::string>{"step-1000001.partial"}));
  EXPECT_EQ(whole_checkpoints(folder_).size(), 3u);
  EXPECT_TRUE(prune(folder_, 0).empty());
  EXPECT_EQ(prune(folder_, 1), (std::vector<std::string>{"step-000009", "step-999999"}));
  EXPECT_EQ(latest(folder_), path("step-1000000"));
}

TEST_F(Training, PruningLeavesTheNewestProvedOneBesideThoseItKeeps) {
  for (int64_t step : {10, 20, 30, 40, 50}) save(folder_, step, 1, Model(step));
  EXPECT_EQ(newest_proved(folder_), std::nullopt);
  for (int64_t step : {10, 20}) prove(step_folder(folder_, step));
  prove(step_folder(folder_, 20));
  EXPECT_EQ(newest_proved(folder_), step_folder(folder_, 20));
  EXPECT_EQ(fs::file_size(path("step-000020/proved")), 0u);
  EXPECT_EQ(prune(folder_, 2), (std::vector<std::string>{"step-000010", "step-000030"}));
  EXPECT_TRUE(prune(folder_, 2).empty());
  EXPECT_EQ(prune(folder_, 1), std::vector<std::string>{"step-000040"});
  prove(step_folder(folder_, 50));
  EXPECT_EQ(prune(folder_, 1), std::vector<std::string>{"step-000020"});
  EXPECT_EQ(whole_checkpoints(folder_), std::vector<Path>{step_folder(folder_, 50)});
}

TEST_F(Training, PruningLeavesOneMoreIfItIsAsked) {
  for (int64_t step : {10, 20, 30, 40}) save(folder_, step, 1, Model(step));
  prove(step_folder(folder_, 10));
  EXPECT_EQ(prune(folder_, 1, step_folder(folder_, 20)), std::vector<std::string>{"step-000030"});
  EXPECT_EQ(prune(folder_, 1, step_folder(folder_, 40)), std::vector<std::string>{"step-000020"});
}

TEST_F(Training, PruningLeavesAWindowOfStepsAndTheBestBesideTheNewest) {
  for (int64_t step : {10, 20, 30, 40, 50}) save(folder_, step, 1, Model(step));
  using Names = std::vector<std::string>;
  EXPECT_EQ(prune(folder_, 1, {}, {.steps = 20, .best = {10}}), Names{"step-000020"}) << "step 30 is 20 steps away";
  EXPECT_EQ(prune(folder_, 1, {}, {.steps = 19, .best = {10, 7}}), Names{"step-000030"});
  EXPECT_EQ(prune(folder_, 1, {}, {.steps = 10}), Names{"step-000010"});
  EXPECT_TRUE(prune(folder_, 0, {}, {.steps = 1}).empty()) << "all are kept";
  for (const char* step : {"000005", "000040", "000060"}) write("exports/step-" + std::string(step) + "/a", "x");
  prune_exports(path("exports"), 1, {}, {.steps = 20, .best = {5}});
  EXPECT_EQ(saves_in(path("exports")).size(), 3u);
  prune_exports(path("exports"), 1, {}, {.steps = 3, .best = {5}});
  EXPECT_EQ(saves_in(path("exports")), (std::vector<Path>{path("exports/step-000005"), path("exports/step-000060")}));
}

TEST_F(Training, ExportsArePrunedByThemselvesAndThatOfAProvedCheckpointStays) {
  for (const char* step : {"000002", "000010", "999999", "1000000"})
    write("exports/step-" + std::string(step) + "/a", "x");
  write("exports/mine/a", "the user's");
  write("exports/step-000003", "no folder");
  const auto left = [&] {
    std::vector<std::string> names;
    for (const Path& path : exports_behind(folder_, -1)) names.push_back(path.filename());
    return names;
  };
  EXPECT_EQ(exports_behind(folder_, 10),
            (std::vector<Path>{path("exports/step-999999"), path("exports/step-1000000")}));
  prune_exports(path("exports"), 0, {});
  EXPECT_EQ(left().size(), 4u);
  prune_exports(path("exports"), 1, step_folder(path("checkpoints"), 10));
  EXPECT_EQ(left(), (std::vector<std::string>{"step-000010", "step-1000000"}));
  prune_exports(path("exports"), 1, {});
  EXPECT_EQ(left(), std::vector<std::string>{"step-1000000"});
  EXPECT_TRUE(fs::exists(path("exports/mine/a")) && fs::exists(path("exports/step-000003")));
  write("exports/step-000004.partial/a", "of a kill while it was pruned");
  clean_partials(path("exports"));
  EXPECT_FALSE(fs::exists(path("exports/step-000004.partial")));
  prune_exports(path("absent"), 1, {});
  EXPECT_TRUE(exports_behind(path("absent"), 0).empty());
}

TEST_F(Training, OfALinkThatIsPrunedTheLinkGoesAndNotWhatItLeadsTo) {
  const Path elsewhere = save(path("elsewhere"), 10, 1, Model(1));
  for (int64_t step : {20, 30}) save(path("run"), step, 1, Model(step));
  fs::create_directory_symlink(elsewhere, step_folder(path("run"), 10));
  EXPECT_EQ(prune(path("run"), 1), (std::vector<std::string>{"step-000010", "step-000020"}));
  EXPECT_TRUE(fs::exists(elsewhere / "manifest.json"));
  EXPECT_FALSE(fs::exists(fs::symlink_status(path("run") / "step-000010.partial")));
}

TEST_F(Training, WhatIsNotFiniteIsAgreedOnBeforeAnythingIsWritten) {
  std::vector<float> values(40'000, 1.0f);
  const std::vector<int16_t> low(values.size(), 0x7fff);  // of a split master: bits, and no number
  const auto pieces = [&] {
    return std::vector<Piece>{{{"w", "param", DType::f32, {200, 200}}, values.data()},
                              {{"w", "master_low", DType::i16, {200, 200}}, low.data()}};
  };
  std::string told = "not asked";
  const auto agree = [&](const std::string& broken) {
    told = broken;
    return broken.empty();
  };
  EXPECT_TRUE(save_rank(partial_folder(folder_, 1), 0, pieces(), agree));
  EXPECT_EQ(told, "");
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const size_t at : {size_t{0}, size_t{16'384}, values.size() - 1}) {
      values[at] = bad;
      EXPECT_FALSE(save_rank(partial_folder(folder_, 2), 0, pieces(), agree));
      EXPECT_EQ(told, "param of 'w'");
      EXPECT_FALSE(fs::exists(partial_folder(folder_, 2)));
      values[at] = 1;
    }
  EXPECT_FALSE(save_rank(partial_folder(folder_, 2), 0, pieces(), [](const std::string&) { return false; }))
      << "another rank has one";
}

TEST_F(Training, WhatTheProgramDidNotNameIsNeverTouched) {
  for (const char* own : {"notes.txt", "x.partial", "step-77/manifest.json", "step-77.partial/a", "step-0000078/a",
                          "step-000079/a", "step-best.partial/a", "step-000080.mine.partial/a"})
    write(own, "the user's");
  for (int64_t step : {90, 91, 92}) save(folder_, step, 1, Model(step));
  const auto before = listing();
  EXPECT_TRUE(clean_partials(folder_).empty());
  EXPECT_EQ(listing(), before);
  EXPECT_EQ(latest(folder_), step_folder(folder_, 92));
  EXPECT_EQ(prune(folder_, 2), std::vector<std::string>{"step-000090"});
  EXPECT_EQ(listing().size(), before.size() - 3) << "the folder, its manifest and its one file";
}

/// Of a function that runs as somebody who may not write everywhere: what root is not kept from. Its log is given back.
std::string as_nobody(const Path& log, const std::function<void()>& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(fd, 2), ::dup2(fd, 1);
    if (::getuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(2);
    try {
      act();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "ended by %s\n", error.what());
      std::fflush(stderr);
      ::_exit(1);
    }
    std::fflush(nullptr);
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << read_text(log);
  return read_text(log);
}

TEST_F(Training, WhatCannotBeRemovedIsAWarning) {
  for (int64_t step : {1, 2, 3}) save(folder_, step, 1, Model(step));
  write("step-000007.partial/rank-00000.safetensors", "of a run that was killed");
  if (::getuid() == 0) ASSERT_EQ(::chown(folder_.c_str(), 65534, 65534), 0);
  for (const char* folder : {"step-000001", "step-000007.partial"}) ASSERT_EQ(::chmod(path(folder).c_str(), 0555), 0);
  const Path log = fs::temp_directory_path() / (folder_.filename().string() + ".log");
  const std::string cleaned = as_nobody(log, [&] { clean_partials(folder_); });
  EXPECT_NE(cleaned.find("step-000007.partial: cannot be removed: Permission denied"), std::string::npos) << cleaned;
  const std::string pruned = as_nobody(log, [&] { prune(folder_, 2); });
  EXPECT_NE(pruned.find("cannot be removed: Permission denied"), std::string::npos) << pruned;
  EXPECT_EQ(latest(folder_), step_folder(folder_, 3));
  for (const auto& entry : fs::directory_iterator(folder_)) ::chmod(entry.path().c_str(), 0755);
  fs::remove(log);
}

TEST_F(Training, AStepThatIsSavedTwiceIsThereAtEveryInstantAlsoWithoutAnExchange) {
  // Between the two renames of a file system that cannot exchange: neither has the name.
  fs::rename(save(folder_, 5, 2, Model(1)), path("step-000005.old.partial"));
  fs::rename(save(folder_, 5, 3, Model(2)), path("step-000005.partial"));
  EXPECT_EQ(latest(folder_), std::nullopt);
  EXPECT_EQ(clean_partials(folder_), std::vector<std::string>{"step-000005.partial"});
  expect_holds(path("step-000005"), Model(1), 2);
  // Behind both: the old one goes.
  fs::rename(save(folder_, 6, 2, Model(1)), path("step-000006.old.partial"));
  save(folder_, 6, 2, Model(2));
  EXPECT_EQ(clean_partials(folder_), std::vector<std::string>{"step-000006.old.partial"});
  expect_holds(path("step-000006"), Model(2), 2);
}

[[noreturn]] void save_and_prune_forever(const Path& checkpoints, int64_t step) {
  try {
    for (;; ++step) {
      save(checkpoints, step, 3, Model(step));
      if (step % 3 == 0) save(checkpoints, step, 2, Model(step));  // the same step again
      prune(checkpoints, 2);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    ::_exit(1);
  }
}

// A process that saves and prunes without end is killed at 60 random instants; what is found afterwards must be whole.
TEST_F(Training, KilledAtAnyInstantTheNewestCheckpointIsWhole) {
  RandomKey key(7, Purpose::test);
  int64_t step = 0;
  int with_partials = 0;
  uint64_t longest_us = 30'000;  // of a saver's life; grows where saving is slow (sanitizers, a busy machine)
  for (uint64_t round = 0; round < 60; ++round) {
    pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_and_prune_forever(folder_, step);
    ::usleep(static_cast<useconds_t>(2000 + key.below(round, longest_us)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the saving process failed by itself";
    with_partials += !clean_partials(folder_).empty();
    std::optional<Path> newest = latest(folder_);
    if (!newest) {
      EXPECT_EQ(step, 0);
      longest_us = std::min<uint64_t>(longest_us * 2, 240'000);
      continue;
    }
    int64_t found = load_manifest(*newest).step;
    EXPECT_GE(found, step - 1) << "an older state came back";
    for (const Path& whole : whole_checkpoints(folder_)) expect_holds(whole, Model(load_manifest(whole).step), 2);
    if (found < step) longest_us = std::min<uint64_t>(longest_us * 2, 240'000);
    step = found + 1;
  }
  EXPECT_GT(step, 1);
  EXPECT_GT(with_partials, 5) << "the kills did not fall into the writing";
}

}  // namespace tessera::checkpoint
