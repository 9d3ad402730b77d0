// Runs that are killed at chosen instants (kill_at.cpp), or whose disk fails there, and started again until they are done:
// every number they wrote is that of the run that was left alone, nothing is missing, and nothing is left over.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "matrix.h"
#include "processes.h"
#include "program.h"
#include "tessera/base/hash.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/training.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

/// The how many-th call on a path of this form, that writes this text.
struct Instant {
  const char *call, *path;
  int nth = 1;
  const char* written = "";
};
/// One thing that happens to a run.
struct Order {
  Instant at;
  const char *when = "before", *who = "0", *end = "self";

  bool is_kill() const { return end[0] != 'E'; }
  std::string text() const {
    return std::string("call=") + at.call + " path=" + at.path + " nth=" + std::to_string(at.nth) +
           " text=" + at.written + " when=" + when + " who=" + who + " end=" + end;
  }
};
using Orders = std::vector<Order>;
// The way of a start, of a step and its checkpoint, and of a run's end. What needs something of a run that was killed
// comes behind the kill that leaves it there.
constexpr Instant kInstants[] = {
    {"write", "*/plan.json.*"},
    {"rename", "*/recipe.toml"},
    {"write", "*/plan.txt.*"},
    {"rename", "*/plan.toml"},
    {"write", "*/events.out.tfevents*"},
    {"write", "*/metrics.jsonl"},
    {"write", "*/metrics.jsonl", 3},
    {"mkdir", "*/step-??????.partial"},
    {"ftruncate", "*/metrics.jsonl"},
    {"write", "*/rank-00000.safetensors.*"},
    {"fsync", "*/rank-00000.safetensors.*"},
    {"rename", "*/rank-00000.safetensors"},
    {"rename", "*.parts.json"},
    {"fdatasync", "*/metrics.jsonl", 2},
    {"write", "*/manifest.json.*"},
    {"rename", "*/manifest.json"},
    {"rename", "*/checkpoints/step-??????"},
    {"write", "*/exports/*/diffusion*"},
    {"rename", "*/exports/step-??????"},
    {"rename", "*/exports/step-??????.partial"},
    {"fsync", "*/proved.*"},
    {"rename", "*/proved"},
    {"rename", "*/checkpoints/step-??????.partial"},
    {"remove", "*/manifest.json"},
    {"rename", "*/samples/*.mp4"},
    {"rename", "*/model/*"},
    {"rename", "*/trace.json"},
    {"rename", "*/report.html"},
};

class Kills : public ::testing::Test {
 protected:
  static constexpr int kSteps = 60;

  static Flags flags() {
    return {"--run.steps",
            std::to_string(kSteps),
            "--checkpoint.every",
            "2",
            "--checkpoint.keep",
            "2",
            "--checkpoint.export",
            "model",
            "--checkpoint.keep_exports",
            "3",
            "--sample.every",
            "6",
            "--sample.steps",
            "1",
            "--sample.prompts",
            "a square"};
  }

  /// The run that is left alone, once for all tests. Sums of gradients differ between worlds, so each has its own.
  static const TinyRun& undisturbed(int ranks = 1) {
    static std::map<int, TinyRun> runs;  // ends before the tests' program does
    const auto [run, is_new] = runs.try_emplace(ranks, "kills-alone");
    if (!is_new) return run->second;
    if (ranks != 1) give_the_same_clips(run->second);
    const Result r = run->second.train(ranks, "run", flags());
    EXPECT_EQ(r.code, 0) << r.output;
    return run->second;
  }

  /// A run on the same clips: an encoder need not write the same frames the same way twice.
  static void give_the_same_clips(const TinyRun& run) {
    fs::remove_all(run.folder() / "data");
    fs::copy(undisturbed().folder() / "data", run.folder() / "data");
  }

  static Flags command(const TinyRun& run, int ranks, int restarts) {
    Flags argv = {TESSERA_BINARY,           "launch", "-n",         std::to_string(ranks), "--max-restarts",
                  std::to_string(restarts), "train",  run.recipe(), "--run.out",           run.out()};
    for (const std::string& flag : flags()) argv.push_back(flag);
    return argv;
  }

  static fs::path done(const TinyRun& run, size_t order) { return run.folder() / ("done-" + std::to_string(order)); }

  /// Starts the run again and again until all of the orders have happened, and once more to its end. Gives how often a
  /// launcher restarted ranks.
  static size_t carry_out(const TinyRun& run, int ranks, const Orders& orders, const std::vector<int>& restarts) {
    std::string text;
    for (const Order& order : orders) text += (text.empty() ? "" : ";") + order.text();
    size_t restarted = 0;
    for (size_t start = 0; start <= 2 * orders.size(); ++start) {
      const Result r = run_program(command(run, ranks, restarts[start % restarts.size()]),
                                   {{"OMP_NUM_THREADS", "1"},
                                    {"LD_PRELOAD", KILL_AT},
                                    {"TESSERA_KILL_AT", text},
                                    {"TESSERA_KILL_DONE", (run.folder() / "done").string()}},
                                   300);
      for (size_t at = r.output.find("restarting from the last"); at != r.output.npos;
           at = r.output.find("restarting from the last", at + 1))
        ++restarted;
      EXPECT_EQ(r.output.find("terminate called"), std::string::npos) << r.output;
      EXPECT_TRUE(r.code == 0 || r.code == 5 || r.code == 7 || r.code == 128 + SIGKILL) << r.code << "\n" << r.output;
      if (r.code == 0) break;
      if (HasFailure()) return restarted;
    }
    for (size_t i = 0; i < orders.size(); ++i)
      EXPECT_TRUE(fs::exists(done(run, i))) << "never came: " << orders[i].text() << ", number " << i;
    const Result last = run.train(ranks, "run", flags());
    EXPECT_EQ(last.code, 0) << last.output;
    return restarted;
  }

  /// Sends it to a start that has made no step.
  static void expect_obeyed(pid_t launcher, int signal, const std::string& name, const std::string& log) {
    const auto before = std::chrono::steady_clock::now();
    kill(launcher, signal);
    EXPECT_EQ(wait_program(launcher, 20), 75) << text_of(log);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count(), 5) << name;
    EXPECT_NE(text_of(log).find("stopped by " + name + " before the first step"), std::string::npos) << text_of(log);
  }

  static void expect_same_numbers(const TinyRun& run, int ranks) {
    const auto lines = run.metrics("run"), expected = undisturbed(ranks).metrics("run");
    ASSERT_EQ(lines.size(), expected.size());
    for (size_t s = 0; s < lines.size(); ++s)
      for (const char* key : {"step", "loss", "grad_norm", "lr", "samples", "tokens"})
        EXPECT_EQ(lines[s][key], expected[s][key]) << key << " of line " << s;
    EXPECT_EQ(run.model("run"), undisturbed(ranks).model("run"));
  }

  static void expect_whole_checkpoints(const TinyRun& run) {
    const auto whole = checkpoint::whole_checkpoints(fs::path(run.out()) / "checkpoints");
    ASSERT_EQ(whole.size(), 2u);
    for (const auto& folder : whole)
      for (const auto& tensor : checkpoint::load_manifest(folder).tensors)
        for (const auto& part : tensor.parts) {
          const auto bytes = checkpoint::SafetensorsFile::open(folder / part.file).bytes(part.key);
          EXPECT_EQ(crc32c(bytes.data(), bytes.size()), part.crc32c) << folder << " " << part.key;
        }
  }

  /// Those of the same saves, with the same bytes.
  static void expect_same_exports(const TinyRun& run, const TinyRun& other) {
    const auto of = [](const TinyRun& one) {
      std::map<std::string, std::string> files;
      for (const auto& entry : fs::recursive_directory_iterator(fs::path(one.out()) / "exports"))
        if (entry.is_regular_file()) files[fs::relative(entry.path(), one.out()).string()] = text_of(entry.path());
      return files;
    };
    const auto files = of(run), expected = of(other);
    EXPECT_GE(expected.size(), 6u);
    for (const auto& [name, bytes] : expected) EXPECT_TRUE(files.contains(name)) << name;
    EXPECT_TRUE(files == expected) << "of other saves, or with other bytes";
  }

  /// A line for every checkpoint and every sample, once, and for every restart.
  static void expect_complete_events(const TinyRun& run, size_t restarts) {
    std::vector<int> saved;
    for (const auto& line : run.metrics("run", "checkpoint")) saved.push_back(line["step"]);
    std::vector<int> all;
    for (int s = 2; s <= kSteps; s += 2) all.push_back(s);
    EXPECT_EQ(saved, all);
    std::vector<int> sampled, wanted;
    for (const auto& line : run.metrics("run", "sample")) {
      sampled.push_back(line["step"]);
      EXPECT_TRUE(fs::exists(fs::path(run.out()) / line["file"].get<std::string>())) << line;
    }
    for (int s = 6; s <= kSteps; s += 6) wanted.push_back(s);
    EXPECT_EQ(sampled, wanted);
    size_t restarted = 0;  // a busy machine may have a slow rank too
    for (const auto& line : run.metrics("run", "fault")) restarted += line["kind"] == "restart";
    EXPECT_EQ(restarted, restarts);
  }

  static void expect_nothing_left(const TinyRun& run) {
    for (const fs::path& folder : {fs::path(run.out()), run.folder() / "cache"})
      for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        EXPECT_EQ(name.find(".partial"), std::string::npos) << entry.path();
        EXPECT_EQ(name.find(".rank-"), std::string::npos) << entry.path();
        EXPECT_NE(name, ".faults");
      }
    for (const auto& entry : fs::directory_iterator("/dev/shm"))
      EXPECT_EQ(entry.path().filename().string().find("tessera"), std::string::npos) << entry.path();
  }

  static void expect_as_if_left_alone(const TinyRun& run, int ranks, size_t restarts) {
    expect_same_numbers(run, ranks);
    expect_whole_checkpoints(run);
    expect_same_exports(run, undisturbed(ranks));
    expect_complete_events(run, restarts);
    expect_nothing_left(run);
  }
};

TEST_F(Kills, AtEveryChosenInstantLoseNothing) {
  const auto began = std::chrono::steady_clock::now();
  const TinyRun run("kills");
  give_the_same_clips(run);
  ASSERT_EQ(run.tessera({"prepare", run.recipe()}).code, 0);
  Orders orders;
  for (const Instant& at : kInstants)
    for (const char* when : {"before", "behind"}) orders.push_back({at, when});
  EXPECT_GE(orders.size(), 30u);
  const size_t restarts = carry_out(run, 1, orders, {100});
  EXPECT_EQ(restarts, orders.size());
  expect_as_if_left_alone(run, 1, restarts);
  std::printf("%zu kills in %.1f s\n", orders.size(),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
}

/// What comes at every start, in every few steps, and at the end of a run.
constexpr Instant kAtStart[] = {
    {"write", "*/plan.json.*"}, {"rename", "*/recipe.toml"}, {"write", "*/plan.txt.*"}, {"rename", "*/plan.toml"}};
constexpr Instant kUnderWay[] = {
    {"write", "*/events.out.tfevents*"},
    {"write", "*/metrics.jsonl"},
    {"write", "*/metrics.jsonl", 2},
    {"write", "*/metrics.jsonl", 3},
    {"@(ftruncate|rename)", "*/@(metrics.jsonl|manifest.json)"},  // cut where there is something to cut
    {"mkdir", "*/step-??????.partial"},
    {"write", "*/rank-00000.safetensors.*"},
    {"fsync", "*/rank-00000.safetensors.*"},
    {"rename", "*/rank-00000.safetensors"},
    {"rename", "*.parts.json"},
    {"fdatasync", "*/metrics.jsonl"},
    {"write", "*/manifest.json.*"},
    {"rename", "*/manifest.json"},
    {"rename", "*/checkpoints/step-??????"},
    {"write", "*/exports/*/diffusion*"},
    {"rename", "*/exports/step-??????"},
    {"rename", "*/exports/step-??????.partial"},
    {"fsync", "*/proved.*"},
    {"rename", "*/proved"},
    {"rename", "*/checkpoints/step-??????.partial"},
    {"remove", "*/manifest.json"},
    {"write", "*/samples/*"},
    {"rename", "*/samples/*.mp4"},
};
constexpr Instant kOfRankOne[] = {{"write", "*/rank-00001.parts.json.*"}, {"rename", "*/rank-00001.parts.json"}};
constexpr Instant kAtEnd[] = {{"rename", "*/model/*"}, {"rename", "*/trace.json"}, {"rename", "*/report.html"}};

constexpr int kRounds = 100, kKills = 10, kFailures = 2;  // of a round

/// Whether the newest order ends no run, so that no start follows it: an old checkpoint that cannot be deleted, or one that
/// cannot be called proved, is a warning.
bool goes_on(const Orders& orders) {
  if (orders.empty() || orders.back().is_kill()) return false;
  const std::string_view call = orders.back().at.call, path = orders.back().at.path;
  return call == "remove" || (call == "rename" && path.ends_with(".partial")) || path.find("/proved") != path.npos;
}

/// Ten kills, of the rank, its launcher or all, and two failures of the disk, the last at the run's end.
Orders draw(int round, int ranks) {
  std::mt19937 random(static_cast<uint32_t>(round) + 1);
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  const auto any = [&](const auto& all) { return all[below(std::size(all))]; };
  constexpr const char *kEnds[] = {"self", "self", "launcher", "all"}, *kErrors[] = {"ENOSPC", "EIO", "EDQUOT"};
  Orders orders;
  for (int i = 0; i < kKills + kFailures; ++i) {
    Order order{any(kUnderWay)};
    if (i == kKills + kFailures - 1)
      order.at = any(kAtEnd);
    else if (below(5) == 0 && !goes_on(orders))
      order.at = any(kAtStart);
    else if (ranks > 1 && below(4) == 0)
      order = {any(kOfRankOne), "before", "1"};
    order.when = below(2) ? "before" : "behind";
    order.end = i % 6 == 4 ? any(kErrors) : any(kEnds);
    // a run goes on without a sample or an export that could not be written
    if (const std::string_view path = order.at.path;
        !order.is_kill() && (path.starts_with("*/samples/") || path.starts_with("*/exports/")))
      order.at = kUnderWay[1];
    orders.push_back(order);
  }
  return orders;
}

TEST_F(Kills, OfRanksAndLaunchersAndFailuresOfTheDiskLoseNothing) {
  MatrixPart part("kills, ten a round", kRounds);
  int kills = 0;
  for (int round : part) {
    const TinyRun run("kills");
    const int ranks = 1 + (round % 3 == 2);
    give_the_same_clips(run);
    const Orders orders = draw(round, ranks);
    const size_t restarts = carry_out(run, ranks, orders, {0, 3, 1});
    expect_as_if_left_alone(run, ranks, restarts);
    for (const Order& order : orders) kills += order.is_kill();
    std::printf("round %d: %d kills of %d ranks%s\n", round, kKills, ranks, HasFailure() ? ", failed" : "");
    std::fflush(stdout);
    if (HasFailure()) return;
  }
  EXPECT_EQ(kills, kKills * part.size());
}

// A run that diverges at step 13, and the one that goes back with a lower rate.
constexpr Instant kDiverging[] = {{"fsync", "*/proved.*"},
                                  {"rename", "*/proved"},
                                  {"rename", "*/checkpoints/step-??????"},
                                  {"rename", "*/exports/step-??????"},
                                  {"rename", "*/checkpoints/step-??????.partial"},
                                  {"remove", "*/manifest.json"},
                                  {"write", "*/metrics.jsonl"}};
constexpr Instant kDiverged[] = {{"write", "*/diverged.json.*"}, {"rename", "*/diverged.json"}};
constexpr Instant kGoingBack[] = {{"mkdir", "*/abandoned.partial"},   {"rename", "*/abandoned.partial/exports/*"},
                                  {"write", "*/abandoned.partial/*"}, {"rename", "*/abandoned.partial/checkpoints/*"},
                                  {"rename", "*/abandoned-1"},        {"remove", "*/diverged.json"},
                                  {"ftruncate", "*/metrics.jsonl"},   {"rename", "*/recipe.toml"}};

TEST_F(Kills, OfRunsThatDivergeAndGoBackLeaveWhatIsProved) {
  constexpr int kOfDiverging = 40;
  const auto staged = [](const TinyRun& run, const std::string& rate) {
    const std::string text = text_of(run.recipe()), plain = text.substr(0, text.find("\n[[stage]]"));
    std::ofstream(run.recipe(), std::ios::trunc) << plain << "\n[[stage]]\nfrom = 12\ntrain.lr = " << rate << "\n";
  };
  const auto flags = [](int round) {
    return Flags{"--run.steps",         "20",
                 "--checkpoint.every",  "2",
                 "--sample.every",      "0",
                 "--checkpoint.export", "model",
                 "--checkpoint.keep",   std::to_string(1 + round % 3),
                 "--run.on_nan",        round % 2 ? "skip" : "stop"};
  };
  static const TinyRun healthy("kills-healthy");
  give_the_same_clips(healthy);
  staged(healthy, "5e-4");
  ASSERT_EQ(healthy.train(1, "run", flags(0)).code, 0);
  MatrixPart part("kills of runs that diverge, six a round", kOfDiverging);
  for (int round : part) {
    SCOPED_TRACE(round);
    const TinyRun run("kills-diverging");
    give_the_same_clips(run);
    std::mt19937 random(static_cast<uint32_t>(round) + 1);
    const auto any = [&](const auto& all) { return all[random() % std::size(all)]; };
    const auto start_until = [&](int code, const Orders& orders, const std::string& stem) {
      std::string text;
      for (const Order& order : orders) text += (text.empty() ? "" : ";") + order.text();
      for (size_t start = 0; start <= orders.size(); ++start) {
        Flags argv = {TESSERA_BINARY, "launch", "-n", "1", "train", run.recipe(), "--run.out", run.out()};
        for (const std::string& flag : flags(round)) argv.push_back(flag);
        const Result r = run_program(argv, {{"OMP_NUM_THREADS", "1"},
                                            {"LD_PRELOAD", KILL_AT},
                                            {"TESSERA_KILL_AT", text},
                                            {"TESSERA_KILL_DONE", (run.folder() / stem).string()}});
        if (r.code == code) break;
        EXPECT_TRUE(r.code == 5 || r.code == 128 + SIGKILL) << r.code << "\n" << r.output;
        if (HasFailure()) return;
      }
      for (size_t i = 0; i < orders.size(); ++i)
        EXPECT_TRUE(fs::exists(run.folder() / (stem + "-" + std::to_string(i)))) << "never came: " << orders[i].text();
    };
    const auto drawn = [&](const Instant& at) {
      return Order{at, random() % 2 ? "before" : "behind", "0", random() % 3 ? "self" : "launcher"};
    };
    staged(run, "1e30");
    start_until(6, {drawn(any(kDiverging)), drawn(any(kDiverging)), drawn(any(kDiverging)), drawn(any(kDiverged))},
                "first");
    if (HasFailure()) return;
    const auto proved = checkpoint::newest_proved(fs::path(run.out()) / "checkpoints");
    ASSERT_TRUE(proved);
    EXPECT_EQ(checkpoint::load_manifest(*proved).step, 10) << "the one of step 12 is broken";
    EXPECT_FALSE(fs::exists(run.out() + "/model"));
    staged(run, "5e-4");
    start_until(0, {drawn(any(kGoingBack)), drawn({"rename", "*/proved"})}, "second");
    const auto lines = run.metrics("run"), expected = healthy.metrics("run");
    ASSERT_EQ(lines.size(), expected.size());
    for (size_t s = 0; s < lines.size(); ++s)
      for (const char* key : {"step", "loss", "grad_norm", "lr"}) EXPECT_EQ(lines[s][key], expected[s][key]) << s;
    EXPECT_EQ(run.model("run"), healthy.model("run"));
    expect_same_exports(run, healthy);
    expect_nothing_left(run);
    std::printf("round %d: 6 kills%s\n", round, HasFailure() ? ", failed" : "");
    std::fflush(stdout);
    if (HasFailure()) return;
  }
}

TEST_F(Kills, AFailureOfTheDiskWhereASampleIsWrittenDownEndsTheRunAndLosesNoLine) {
  const TinyRun run("kills");
  give_the_same_clips(run);
  Orders orders;
  for (const char* error : {"ENOSPC", "EIO"})
    for (const Instant& at : {Instant{"write", "*/metrics.jsonl", 1, "\"type\":\"sample\""},
                              Instant{"write*", "*/events.out.tfevents*", 1, "samples/0"}})
      orders.push_back({at, "before", "0", error});
  const size_t restarts = carry_out(run, 1, orders, {100});
  EXPECT_EQ(restarts, 0u);  // on a full disk ranks would end alike
  expect_as_if_left_alone(run, 1, restarts);
  EXPECT_TRUE(run.metrics("run", "warning").empty());
}

/// Of replicas one writes the shards, and one writes the samples: the other one waits, for as long as that takes. So it does
/// where rank 0 alone takes over the folder, calls a checkpoint proved, or writes the report.
TEST_F(Kills, WritesThatTakeLongerThanTheTimeoutAreWaitedFor) {
  const TinyRun run("slow-writes");
  Orders orders;
  std::string text;
  for (const Instant& at : {Instant{"rename", "*/recipe.toml"}, Instant{"write", "*/rank-00000.safetensors.*"},
                            Instant{"rename", "*/manifest.json"}, Instant{"rename", "*/proved"},
                            Instant{"rename", "*/samples/*.mp4"}, Instant{"rename", "*/report.html"}}) {
    orders.push_back({at, "before", "0", "sleep:5"});
    text += (text.empty() ? "" : ";") + orders.back().text();
  }
  Flags argv = command(run, 2, 0);
  for (const char* flag : {"--run.steps", "2", "--sample.every", "2", "--checkpoint.every", "1", "--mesh",
                           "dp_replicate=2", "--fault.timeout", "3"})
    argv.emplace_back(flag);
  const Result r = run_program(argv,
                               {{"OMP_NUM_THREADS", "1"},
                                {"LD_PRELOAD", KILL_AT},
                                {"TESSERA_KILL_AT", text},
                                {"TESSERA_KILL_DONE", (run.folder() / "done").string()}},
                               180);
  EXPECT_EQ(r.code, 0) << r.output;
  for (size_t i = 0; i < orders.size(); ++i) EXPECT_TRUE(fs::exists(done(run, i))) << orders[i].text();
  EXPECT_EQ(run.metrics("run").size(), 2u);
}

TEST_F(Kills, WhatKilledWritersLeftGoesWithTheNextOfTheSameTarget) {
  const TinyRun run("kills-writers");
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "1"}).code, 0);
  const fs::path to = run.folder() / "to", other = to / "other.html.0123456789abcdef-7.partial";
  fs::create_directories(to);
  std::ofstream(other) << "of another target";
  const std::string model = run.out() + "/model", folder = (to / "folder").string();
  const std::vector<std::pair<Flags, Instant>> writers = {
      {{"convert", model, folder, "--to", "diffusers"}, {"fsync", "*/folder.*"}},
      {{"convert", model, folder + ".safetensors", "--to", "diffusers"}, {"fsync", "*/folder.safetensors.*"}},
      {{"report", run.out(), "--out", (to / "page.html").string()}, {"fsync", "*/page.html.*"}},
      {{"sample", run.recipe(), "--run.out", run.out(), "--sample.steps", "1", "--prompt", "a", "--out",
        (to / "clip.mp4").string()},
       {"fsync", "*/clip.mp4.*"}}};
  for (size_t w = 0; w < writers.size(); ++w) {
    const auto& [arguments, at] = writers[w];
    const Order order{at, "before", "launcher"};
    Flags argv = {TESSERA_BINARY};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const Result killed = run_program(argv, {{"OMP_NUM_THREADS", "1"},
                                             {"LD_PRELOAD", KILL_AT},
                                             {"TESSERA_KILL_AT", order.text()},
                                             {"TESSERA_KILL_DONE", (run.folder() / std::to_string(w)).string()}});
    EXPECT_EQ(killed.code, 128 + SIGKILL) << killed.output;
    const auto remains = [&] {
      std::set<std::string> names;
      for (const auto& entry : fs::directory_iterator(to))
        if (entry.path().extension() == ".partial" && entry.path() != other) names.insert(entry.path().filename());
      return names;
    };
    EXPECT_EQ(remains().size(), 1u) << order.text();
    const Result again = run.tessera(arguments);
    EXPECT_EQ(again.code, 0) << again.output;
    EXPECT_EQ(remains(), std::set<std::string>()) << order.text();
  }
  EXPECT_TRUE(fs::exists(other));
}

/// The others wait for it and end because of it: with another code, so that the launcher names this one.
TEST_F(Kills, ARankWhoseShardCannotBeWrittenIsTheOneThatIsNamed) {
  for (int round = 0; round < 3; ++round) {
    const TinyRun run("full-disk");
    const Order full{{"write", "*/rank-00001.safetensors.*"}, "before", "1", "ENOSPC"};
    Flags argv = command(run, 2, 0);
    for (const char* flag : {"--run.steps", "2", "--sample.every", "0"}) argv.emplace_back(flag);
    const Result r = run_program(argv,
                                 {{"OMP_NUM_THREADS", "1"},
                                  {"LD_PRELOAD", KILL_AT},
                                  {"TESSERA_KILL_AT", full.text()},
                                  {"TESSERA_KILL_DONE", (run.folder() / "done").string()}},
                                 120);
    EXPECT_EQ(r.code, 7) << r.output;
    EXPECT_NE(r.output.find("rank 1 ended with code 7"), std::string::npos) << r.output;
  }
}

TEST_F(Kills, ASignalWhileDataArePreparedIsObeyedAtOnceAndNamed) {
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, std::pair{SIGINT, "SIGINT"}}) {
    const TinyRun run("stopped-early");
    const std::string log = (run.folder() / "log.txt").string();
    const Order sleep{{"write", "*/cache/*.safetensors.*"}, "before", "0", "sleep"};
    const pid_t launcher = start_program(command(run, 1, 0), log,
                                         {{"OMP_NUM_THREADS", "1"},
                                          {"LD_PRELOAD", KILL_AT},
                                          {"TESSERA_KILL_AT", sleep.text()},
                                          {"TESSERA_KILL_DONE", (run.folder() / "done").string()}});
    for (int i = 0; i < 1500 && !fs::exists(done(run, 0)); ++i) sleep_seconds(0.02);
    ASSERT_TRUE(fs::exists(done(run, 0))) << text_of(log);
    expect_obeyed(launcher, signal, name, log);
    EXPECT_EQ(run.train(1, "run", {"--run.steps", "1"}).code, 0);
    expect_nothing_left(run);
  }
}

TEST_F(Kills, ASignalWhileARunIsPlannedIsObeyedAtOnceAndNamed) {
  const TinyRun run("stopped-planning");
  ASSERT_EQ(run.tessera({"prepare", run.recipe()}).code, 0);
  // Of so many layers and so little memory the planner tries plans for many seconds.
  Flags argv = command(run, 1, 0);
  for (const char* flag : {"--model.config.num_layers", "400", "--plan.budget", "60MiB"}) argv.emplace_back(flag);
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, std::pair{SIGINT, "SIGINT"}}) {
    const std::string log = (run.folder() / (std::string(name) + ".txt")).string();
    const pid_t launcher = start_program(argv, log, {{"OMP_NUM_THREADS", "1"}});
    for (int i = 0; i < 3000 && text_of(log).find("data: 3 rows") == std::string::npos; ++i) sleep_seconds(0.02);
    sleep_seconds(1);  // nothing is left to encode
    expect_obeyed(launcher, signal, name, log);
    EXPECT_EQ(text_of(log).find("encoding"), std::string::npos) << "it was not planned yet\n" << text_of(log);
    EXPECT_EQ(text_of(log).find("a step, predicted"), std::string::npos) << "it was planned already\n" << text_of(log);
  }
  EXPECT_EQ(run.train(1, "run", {"--run.steps", "1"}).code, 0);
  expect_nothing_left(run);
}

}  // namespace
}  // namespace tessera::testing
