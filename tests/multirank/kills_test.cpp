// Runs that are killed at chosen instants (kill_at.cpp), or whose disk fails there, and started again until they are done:
// every number they wrote is that of the run that was left alone, nothing is missing, and nothing is left over.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <random>

#include "matrix.h"
#include "processes.h"
#include "program.h"
#include "tessera/checkpoint/crc32c.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/training.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

/// The how many-th call on a path of this form.
struct Instant {
  const char *call, *path;
  int nth = 1;
};
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
    {"rename", "*/checkpoints/step-??????.partial"},
    {"remove", "*/manifest.json"},
    {"rename", "*/model/*"},
    {"rename", "*/trace.json"},
    {"rename", "*/report.html"},
};
constexpr int kInstantCount = static_cast<int>(std::size(kInstants));

class Kills : public ::testing::Test {
 protected:
  static constexpr int kSteps = 60;

  static Flags flags() {
    return {"--run.steps", std::to_string(kSteps), "--checkpoint.every", "2", "--checkpoint.keep", "2"};
  }

  /// The run that is left alone, once for all tests.
  static const TinyRun& undisturbed() {
    static const TinyRun* run = [] {
      auto* made = new TinyRun("kills-alone");
      std::atexit([] { delete &undisturbed(); });
      const Result r = made->train(1, "run", flags());
      EXPECT_EQ(r.code, 0) << r.output;
      return made;
    }();
    return *run;
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

  /// Started with this order; gives its code.
  Result start(const TinyRun& run, int ranks, int restarts, const std::string& order, const std::string& done) {
    return run_program(
        command(run, ranks, restarts),
        {{"OMP_NUM_THREADS", "1"}, {"LD_PRELOAD", KILL_AT}, {"TESSERA_KILL_AT", order}, {"TESSERA_KILL_DONE", done}});
  }

  static void expect_same_numbers(const TinyRun& run) {
    const auto lines = run.metrics("run"), expected = undisturbed().metrics("run");
    ASSERT_EQ(lines.size(), expected.size());
    for (size_t s = 0; s < lines.size(); ++s)
      for (const char* key : {"step", "loss", "grad_norm", "lr", "samples", "tokens"})
        EXPECT_EQ(lines[s][key], expected[s][key]) << key << " of line " << s;
    EXPECT_EQ(run.model("run"), undisturbed().model("run"));
  }

  static void expect_whole_checkpoints(const TinyRun& run) {
    const auto whole = checkpoint::whole_checkpoints(fs::path(run.out()) / "checkpoints");
    ASSERT_EQ(whole.size(), 2u);
    for (const auto& folder : whole)
      for (const auto& tensor : checkpoint::load_manifest(folder).tensors)
        for (const auto& part : tensor.parts) {
          const auto bytes = checkpoint::SafetensorsFile::open(folder / part.file).bytes(part.key);
          EXPECT_EQ(checkpoint::crc32c(bytes.data(), bytes.size()), part.crc32c) << folder << " " << part.key;
        }
  }

  /// A line for every checkpoint, once, and for every restart.
  static void expect_complete_events(const TinyRun& run, size_t restarts) {
    std::vector<int> saved;
    for (const auto& line : run.metrics("run", "checkpoint")) saved.push_back(line["step"]);
    std::vector<int> all;
    for (int s = 2; s <= kSteps; s += 2) all.push_back(s);
    EXPECT_EQ(saved, all);
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

  static void expect_as_if_left_alone(const TinyRun& run, size_t restarts) {
    expect_same_numbers(run);
    expect_whole_checkpoints(run);
    expect_complete_events(run, restarts);
    expect_nothing_left(run);
  }

  static std::string order(const Instant& at, int nth, const char* when, const char* who, const char* end) {
    return std::string("call=") + at.call + " path=" + at.path + " nth=" + std::to_string(nth) + " when=" + when +
           " who=" + who + " end=" + end;
  }
};

TEST_F(Kills, AtEveryChosenInstantLoseNothing) {
  const auto began = std::chrono::steady_clock::now();
  const TinyRun run("kills");
  give_the_same_clips(run);
  ASSERT_EQ(run.tessera({"prepare", run.recipe()}).code, 0);
  (void)undisturbed();
  int kills = 0;
  for (int i = 0; i < 2 * kInstantCount; ++i) {
    const Instant& at = kInstants[i / 2];
    const fs::path done = run.folder() / ("done-" + std::to_string(i));
    const Result r = start(run, 1, 0, order(at, at.nth, i % 2 ? "behind" : "before", "0", "self"), done.string());
    EXPECT_TRUE(fs::exists(done)) << "never came: " << at.call << " " << at.path << ", number " << i;
    EXPECT_EQ(r.code, 5) << at.call << " " << at.path << "\n" << r.output;
    ++kills;
    if (HasFailure()) return;
  }
  const Result last = run.train(1, "run", flags());
  EXPECT_EQ(last.code, 0) << last.output;
  EXPECT_GE(kills, 30);
  expect_as_if_left_alone(run, 0);
  std::printf("%d kills in %.1f s\n", kills,
              std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
}

/// A random order: who, where, the how many-th time, and what happens.
struct Draw {
  Instant at;
  int ranks, restarts, nth;
  const char *when, *who, *end;
};
Draw draw(int i) {
  std::mt19937 random(static_cast<uint32_t>(i) + 1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  constexpr const char* kEnds[] = {"self", "self", "launcher", "ENOSPC", "EIO", "EDQUOT"};
  Draw d{};
  d.at = kInstants[below(kInstantCount)];
  d.ranks = 1 + below(2), d.restarts = below(2), d.nth = 1 + below(3);
  d.when = below(2) ? "before" : "behind", d.who = "0", d.end = kEnds[below(6)];
  return d;
}

TEST_F(Kills, OfRanksAndLaunchersAndFailuresOfTheDiskLoseNothing) {
  constexpr int kStarts = 10;  // of one run
  MatrixPart part("kills", 1000 / kStarts);
  int happened = 0;
  for (int round : part) {
    const TinyRun run("kills");
    give_the_same_clips(run);
    size_t restarts = 0;
    int ranks = 1;
    for (int i = round * kStarts; i < (round + 1) * kStarts; ++i) {
      const Draw d = draw(i);
      ranks = 1 + round % 2;  // sums of gradients differ between worlds: a run keeps its own
      const fs::path done = run.folder() / ("done-" + std::to_string(i));
      const Result r = start(run, ranks, d.restarts, order(d.at, d.nth, d.when, d.who, d.end), done.string());
      happened += fs::exists(done);
      if (r.output.find("restart 1 of 1") != std::string::npos) ++restarts;
      const bool killed = fs::exists(done) && d.end != std::string("launcher");
      EXPECT_TRUE(r.code == 0 || r.code == 5 || r.code == 7 || (!killed && r.code == 128 + SIGKILL))
          << r.code << " " << d.at.call << " " << d.at.path << " " << d.end << "\n"
          << r.output;
      EXPECT_EQ(r.output.find("terminate called"), std::string::npos) << r.output;
    }
    const Result last = run.train(ranks, "run", flags());
    EXPECT_EQ(last.code, 0) << last.output;
    if (ranks == 1) expect_same_numbers(run);
    expect_whole_checkpoints(run);
    expect_complete_events(run, restarts);
    expect_nothing_left(run);
    if (HasFailure()) return;
  }
  EXPECT_GT(happened, part.size());
}

TEST_F(Kills, ASignalWhileDataArePreparedIsObeyedAtOnceAndNamed) {
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, std::pair{SIGINT, "SIGINT"}}) {
    const TinyRun run("stopped-early");
    const std::string log = (run.folder() / "log.txt").string(), done = (run.folder() / "done").string();
    const pid_t launcher =
        start_program(command(run, 1, 0), log,
                      {{"OMP_NUM_THREADS", "1"},
                       {"LD_PRELOAD", KILL_AT},
                       {"TESSERA_KILL_AT", order({"write", "*/cache/*.safetensors.*"}, 1, "before", "0", "sleep")},
                       {"TESSERA_KILL_DONE", done}});
    for (int i = 0; i < 1500 && !fs::exists(done); ++i) sleep_seconds(0.02);
    ASSERT_TRUE(fs::exists(done)) << text_of(log);
    const auto before = std::chrono::steady_clock::now();
    kill(launcher, signal);
    EXPECT_EQ(wait_program(launcher, 20), 75) << text_of(log);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count(), 5) << name;
    EXPECT_NE(text_of(log).find(std::string("stopped by ") + name + " before the first step"), std::string::npos)
        << text_of(log);
    EXPECT_EQ(run.train(1, "run", {"--run.steps", "1"}).code, 0);
    expect_nothing_left(run);
  }
}

}  // namespace
}  // namespace tessera::testing
