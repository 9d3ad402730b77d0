// The ways to start a run on several ranks give the same run, and what a new user types first is answered.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "processes.h"
#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Variables = std::map<std::string, std::string>;

void expect(const Result& r, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(r.code, code) << r.output;
  for (const auto& word : words)
    EXPECT_NE(r.output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << r.output;
}

std::string some_port(int salt) { return std::to_string(20000 + (getpid() * 7 + salt * 131) % 10000); }

class Starting : public ::testing::Test {
 protected:
  /// Two processes: the words and variables of each. Both must end well and train what `launch -n 2` trains.
  void expect_same_run(const std::string& run, const std::function<std::vector<std::string>(int)>& words,
                       const std::function<Variables(int)>& variables) {
    std::vector<pid_t> processes;
    const auto log = [&](int i) { return (run_.folder() / (run + std::to_string(i))).string(); };
    for (int i = 0; i < 2; ++i) {
      std::vector<std::string> argv = words(i);
      argv.insert(argv.begin(), TESSERA_BINARY);
      argv.insert(argv.end(), {"train", run_.recipe(), "--run.out", run_.out(run), "--run.steps", "2"});
      Variables environment = variables(i);
      environment["OMP_NUM_THREADS"] = "1";
      processes.push_back(start_program(argv, log(i), environment));
    }
    for (int i = 0; i < 2; ++i) EXPECT_EQ(wait_program(processes[i], 60), 0) << text_of(log(i));
    ASSERT_EQ(run_.train(2, "reference", {"--run.steps", "2"}).code, 0);
    const auto a = run_.metrics(run), b = run_.metrics("reference");
    ASSERT_EQ(a.size(), 2u);
    for (size_t s = 0; s < 2; ++s) EXPECT_EQ(a[s].at("loss"), b[s].at("loss"));
  }
  const TinyRun run_{"starting"};
};

TEST_F(Starting, TwoLaunchersOnOneHostMakeOneRun) {
  const std::string endpoint = "127.0.0.1:" + some_port(1);
  expect_same_run(
      "nodes",
      [&](int node) {
        return std::vector<std::string>{
            "launch", "-n", "1", "--nnodes", "2", "--node-rank", std::to_string(node), "--rdzv-endpoint", endpoint};
      },
      [](int) { return Variables{}; });
}

/// LibTorch reads OMP_NUM_THREADS when it is loaded, which the launcher did before it chose a number for its ranks.
TEST_F(Starting, RanksHaveTheThreadsThatTheLauncherChoseForThem) {
  const auto peak_flops = [&](const std::string& run, unsigned threads) {
    std::vector<std::string> argv = {"/usr/bin/env"};
    if (threads == 0) argv.insert(argv.end(), {"-u", "OMP_NUM_THREADS"});
    if (threads > 0) argv.push_back("OMP_NUM_THREADS=" + std::to_string(threads));
    argv.insert(argv.end(), {TESSERA_BINARY, "launch", "-n", "2", "train", run_.recipe(), "--run.out", run_.out(run),
                             "--run.steps", "1"});
    const Result r = run_program(argv);
    EXPECT_EQ(r.code, 0) << r.output;
    return run_.metrics(run).at(0).at("peak_flops").get<double>();  // the rate of one thread, times the threads
  };
  const unsigned cores = std::thread::hardware_concurrency(), share = std::max(1u, cores / 2);
  const double chosen = peak_flops("chosen", 0);
  EXPECT_EQ(chosen, peak_flops("share", share));
  if (cores > 1) EXPECT_LT(chosen, peak_flops("all", 2 * share));
}

/// What a user looks for with ps and pkill, and what a fork may be made of.
TEST_F(Starting, RanksAreShownByWhatTheyRunAndTheirLauncherHasNoThreadButTheStores) {
  const std::string log = run_.out("shown.log");
  const pid_t launcher = start_program({TESSERA_BINARY, "launch", "-n", "2", "train", run_.recipe(), "--run.out",
                                        run_.out("shown"), "--run.steps", "100000"},
                                       log, {{"OMP_NUM_THREADS", "1"}, {"TESSERA_TEST_EXEC", "1"}});
  for (int i = 0; i < 3000 && run_.metrics("shown").empty() && alive(launcher); ++i) sleep_seconds(0.02);
  const auto ranks = children(launcher);
  EXPECT_EQ(ranks.size(), 2u);
  for (const pid_t rank : ranks) {
    std::string words = text_of("/proc/" + std::to_string(rank) + "/cmdline");
    std::ranges::replace(words, '\0', ' ');
    EXPECT_EQ(words.find(TESSERA_BINARY + std::string(" train ") + run_.recipe() + " --run.out "), 0u) << words;
  }
  const fs::directory_iterator threads("/proc/" + std::to_string(launcher) + "/task");
  EXPECT_LE(std::distance(begin(threads), end(threads)), 2);
  kill(launcher, SIGTERM);
  EXPECT_EQ(wait_program(launcher, 60), 75) << text_of(log);
}

TEST_F(Starting, SrunsTasksMakeOneRun) {
  expect_same_run(
      "slurm", [](int) { return std::vector<std::string>{}; },
      [](int task) {
        return Variables{{"SLURM_PROCID", std::to_string(task)},
                         {"SLURM_LOCALID", std::to_string(task)},
                         {"SLURM_NTASKS", "2"},
                         {"SLURM_NNODES", "1"},
                         {"SLURM_JOB_ID", std::to_string(getpid())}};
      });
}

TEST_F(Starting, MpirunsRanksMakeOneRun) {
  expect_same_run(
      "mpirun", [](int) { return std::vector<std::string>{}; },
      [](int rank) {
        return Variables{{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "prterun-" + std::to_string(getpid()) + "@1"}};
      });
}

TEST_F(Starting, OneRankPlansAndTheTimeBeforeTheFirstStepIsToldByPhase) {
  const Result r = run_.train(2, "phases", {"--run.steps", "1"});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto starts = run_.metrics("phases", "start");
  ASSERT_EQ(starts.size(), 1u);
  const auto& ranks = starts[0].at("ranks");
  ASSERT_EQ(ranks.size(), 2u);
  for (const auto& rank : ranks) {
    double sum = 0;
    for (const auto& [phase, seconds] : rank.at("phases").items()) {
      EXPECT_GT(seconds.get<double>(), 0) << phase;
      sum += seconds.get<double>();
    }
    EXPECT_NEAR(sum, rank.at("seconds").get<double>(), 1e-9);
    EXPECT_LT(sum, r.seconds);
    for (const char* phase :
         {"connecting", "preparing the data", "measuring the model", "compiling the plan", "loading the weights"})
      EXPECT_TRUE(rank.at("phases").contains(phase)) << phase << " of " << rank;
  }
  EXPECT_TRUE(ranks[0].at("phases").contains("planning")) << ranks;
  EXPECT_FALSE(ranks[0].at("phases").contains("waiting for the plan")) << ranks;
  EXPECT_TRUE(ranks[1].at("phases").contains("waiting for the plan")) << ranks;
  EXPECT_FALSE(ranks[1].at("phases").contains("planning")) << ranks << ": rank 1 searched too";
  const std::string line = starts[0].at("text").get<std::string>() + "\n";
  const size_t told = r.output.find(line), step = r.output.find("step 1/1");
  ASSERT_NE(told, std::string::npos) << line << r.output;
  ASSERT_NE(step, std::string::npos) << r.output;
  EXPECT_LT(told, step);
  EXPECT_EQ(r.output.find(line, told + 1), std::string::npos) << "told once";
}

TEST_F(Starting, WhatEndsTheSearchIsToldByRankZeroAloneAndEndsAllWithItsCode) {
  const auto refused = [&](int code, const std::vector<std::string>& words, const std::vector<std::string>& flags) {
    std::vector<pid_t> tasks;
    const auto log = [&](int task) { return (run_.folder() / ("task" + std::to_string(task))).string(); };
    for (int task = 0; task < 2; ++task) {
      std::vector<std::string> argv = {TESSERA_BINARY, "train", run_.recipe(), "--run.out", run_.out("refused")};
      argv.insert(argv.end(), flags.begin(), flags.end());
      tasks.push_back(start_program(argv, log(task),
                                    {{"SLURM_PROCID", std::to_string(task)},
                                     {"SLURM_LOCALID", std::to_string(task)},
                                     {"SLURM_NTASKS", "2"},
                                     {"SLURM_NNODES", "1"},
                                     {"SLURM_JOB_ID", std::to_string(getpid() + code)},
                                     {"OMP_NUM_THREADS", "1"}}));
    }
    for (int task = 0; task < 2; ++task) EXPECT_EQ(wait_program(tasks[task], 60), code) << text_of(log(task));
    for (const std::string& word : words) EXPECT_NE(text_of(log(0)).find(word), std::string::npos) << text_of(log(0));
    EXPECT_EQ(text_of(log(1)).find("error"), std::string::npos) << text_of(log(1));
    EXPECT_TRUE(run_.metrics("refused").empty());
  };
  refused(4, {"error: ", "[plan]", "fits"}, {"--plan.budget", "300KiB"});
  refused(2, {"error: ", "2 blocks with plan.activations"}, {"--plan.recompute", "2", "--plan.activations", "keep"});
}

TEST_F(Starting, VariablesThatContradictEachOtherAreNamed) {
  const auto with = [&](const Variables& variables) {
    return run_program({TESSERA_BINARY, "train", run_.recipe()}, variables);
  };
  expect(with({{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "2"}}), 2, {"SLURM_PROCID is 2 and SLURM_NTASKS is 2"});
  expect(with({{"OMPI_COMM_WORLD_SIZE", "2"}}), 2, {"OMPI_COMM_WORLD_RANK is not set"});
  expect(with({{"WORLD_SIZE", "2"}}), 2, {"WORLD_SIZE is 2 and RANK is not set"});
}

TEST_F(Starting, ARunThatIsDoneSaysSo) {
  ASSERT_EQ(run_.train(1, "run", {"--run.steps", "1"}).code, 0);
  expect(run_.train(1, "run", {"--run.steps", "1"}), 0, {"nothing to train: step 1 is saved and run.steps = 1"});
}

TEST_F(Starting, MistakesInARecipeAreToldOnceAndBeforeRanksStart) {
  const Result r = run_.train(2, "run", {"--mesh", "dp_shard=3"});
  expect(r, 2, {"3", "2"});
  EXPECT_EQ(r.output.find("rank "), std::string::npos) << r.output;
}

TEST_F(Starting, TheNumberOfRanksMayBeWrittenAsOtherLaunchersDo) {
  for (const std::vector<std::string>& two : {std::vector<std::string>{"-n2"},
                                              {"-n=2"},
                                              {"--n", "2"},
                                              {"-np", "2"},
                                              {"--nproc_per_node=2"},
                                              {"--ntasks=2"}}) {
    std::vector<std::string> words = {"launch"};
    words.insert(words.end(), two.begin(), two.end());
    words.insert(words.end(), {"train", run_.recipe(), "--mesh", "dp_shard=3"});  // told before ranks start
    expect(run_.tessera(words), 2, {"has 3 ranks, 2 were started"});
  }
}

TEST_F(Starting, FlagsOfOtherLaunchersAreAnsweredByName) {
  for (const auto& [words, hint] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"launch", "--standalone", "-n2", "train"}, "without --nnodes the run is this machine's alone"},
           {{"launch", "--master_addr=a", "train"}, "--rdzv-endpoint HOST:PORT"},
           {{"launch", "-N", "2", "train"}, "nodes are --nnodes K"},
           {{"launch", "-ntwo", "train"}, "--nproc-per-node two: expected a whole number"},
           {{"launch", "2", "train"}, "as many ranks are -n 2"},
           {{"train", "-n2", run_.recipe()}, "before the command: tessera launch -n 2 train"}})
    expect(run_.tessera(words), 2, {hint});
}

TEST(FirstLook, TheProgramAloneListsItsCommandsAndAnExample) {
  const TinyRun run("look");
  expect(run.tessera({}), 2, {"train", "plan", "tessera launch -n 2 train"});
  expect(run.tessera({"--help"}), 0, {"tessera COMMAND --help", "videos and pictures"});
  expect(run.tessera({"--version"}), 0, {"tessera ", "LibTorch "});
}
TEST(FirstLook, EveryCommandExplainsItselfWithAnExample) {
  const TinyRun run("look");
  for (const char* command : {"launch", "train", "prepare", "sample", "plan", "verify", "probe", "simulate", "bench",
                              "inspect", "convert", "top", "report", "completion", "man"})
    expect(run.tessera({command, "--help"}), 0, {"Example", std::string("tessera ") + command});
  expect(run.tessera({"help", "plan"}), 0, {"tessera plan RECIPE"});
}
TEST(FirstLook, HelpFitsEightyColumns) {
  const TinyRun run("look");
  std::vector<std::vector<std::string>> asked = {{"--help"}, {"train", "--help", "plan"}, {"train", "--help-all"}};
  for (const char* command : {"launch", "train", "prepare", "sample", "plan", "verify", "probe", "simulate", "bench",
                              "inspect", "import", "convert", "top", "report", "completion", "man"})
    asked.push_back({command, "--help"});
  for (const std::vector<std::string>& words : asked) {
    std::istringstream lines(run.tessera(words).output);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << words.front() << ": " << line;
  }
}
TEST(FirstLook, HelpFitsATerminalAndNamesWhereTheRestIs) {
  const TinyRun run("look");
  for (const char* command : {"train", "prepare", "sample", "plan"}) {
    const Result r = run.tessera({command, "--help"});
    EXPECT_LE(std::count(r.output.begin(), r.output.end(), '\n'), 48) << command;
    expect(r, 0, {"--train.lr", "--help TABLE", "--help-all"});
  }
  expect(run.tessera({"train", "--help", "plan"}), 0, {"[plan]", "--plan.update_on", "--plan.chunks"});
  expect(run.tessera({"train", "--help-all"}), 0, {"--plan.update_on", "--fault.rebalance", "--ulysses_size"});
  expect(run.tessera({"train", "--help", "plam"}), 2, {"did you mean plan?"});
}
TEST(FirstLook, HelpAfterALaunchedCommandIsThatCommands) {
  const TinyRun run("look");
  expect(run.tessera({"launch", "-n", "2", "--help"}), 0, {"tessera launch"});
  expect(run.tessera({"launch", "-n", "2", "train", "--help"}), 0, {"tessera train RECIPE"});
}
TEST(FirstLook, ACommandWithoutWhatItNeedsSaysWhat) {
  const TinyRun run("look");
  for (const auto& [words, missing] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"train"}, "no recipe given"},
           {{"launch"}, "no command to launch"},
           {{"launch", "-n", "2", "train"}, "no recipe given"},
           {{"launch", "-n", "none", "train"}, "--nproc-per-node none"},
           {{"inspect"}, "no file or folder given"},
           {{"trian", "recipe.toml"}, "did you mean 'train'?"}})
    expect(run.tessera(words), 2, {missing});
}
TEST(FirstLook, AnEmptyFolderIsNoRunNoModelAndNoDataSet) {
  const TinyRun run("look");
  const std::string empty = (run.folder() / "empty").string();
  fs::create_directories(empty);
  expect(run.tessera({"top", empty}), 3, {"is not a run"});
  expect(run.tessera({"report", empty}), 3, {"is not a run"});
  expect(run.tessera({"inspect", empty}), 3, {"no weights"});
  expect(run.tessera({"train", empty}), 2, {"is a folder, expected a recipe"});
  expect(run.tessera({"prepare", run.recipe(), "--data.path", empty}), 3, {empty});
}
TEST(FirstLook, APlanNeedsNoData) {
  const TinyRun run("look");
  expect(run.tessera({"plan", run.recipe(), "--data.path", "later", "--sample.every", "2"}), 0,
         {"'later' is not there yet"});
}

}  // namespace
}  // namespace tessera::testing
