#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "commands.h"
#include "foreign.h"
#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/comm/launcher.h"
#include "tessera/comm/machine.h"
#include "tessera/device/open.h"
#include "tessera/recipe/recipe.h"

namespace tessera::apps {

namespace {

int whole(const Arguments& arguments, const std::string& flag, int absent) {
  const std::string text = arguments.value(flag);
  if (text.empty()) return absent;
  if (text.find_first_not_of("0123456789") != std::string::npos || text.size() > 6)
    throw UserError(Exit::usage, "launch", flag + " " + text + ": expected a whole number from 0 to 999999");
  return std::stoi(text);
}

/// Mistakes in it are reported once, here, not by every rank.
recipe::Recipe recipe_of(const Command& command, const Arguments& arguments, int world) {
  Translated given = recipe_from(arguments, arguments.overrides, world);
  tell(given.translation);
  recipe::Recipe recipe = std::move(given.recipe);
  return command.name == "sample" ? recipe
                                  : look_over(std::move(recipe), world);  // what it samples need not be model.path
}

/// GPUs of this machine that the command may compute on: none if its recipe computes on the CPU.
int gpus_here(const Command& command, const Arguments& arguments) {
  const int gpus = device::count_in_child();
  if (gpus == 0 || !command.recipe_keys) return gpus;
  return recipe_from(arguments, arguments.overrides, gpus).recipe.run.device == "cpu" ? 0 : gpus;
}

/// Ranks on this machine where none are asked for: one for each GPU.
int ranks_here(int gpus) {
  if (gpus < 2) return 1;
  log::info("launch: a rank for each of the " + std::to_string(gpus) +
            " GPUs of this machine; -n N starts as many as you say");
  return gpus;
}

/// What flags say; what they leave open is 0, or -1 where 0 means something.
comm::LaunchOptions typed(const Arguments& arguments) {
  comm::LaunchOptions options;
  options.nproc = whole(arguments, "--nproc-per-node", 0);
  options.nnodes = whole(arguments, "--nnodes", 0);
  for (const char* flag : {"--nproc-per-node", "--nnodes"})
    if (arguments.has(flag) && whole(arguments, flag, 0) == 0)
      throw UserError(Exit::usage, "launch", std::string(flag) + " 0", "ranks and nodes count from 1");
  options.node_rank = whole(arguments, "--node-rank", -1);
  options.endpoint = arguments.value("--rdzv-endpoint");
  options.min_nodes = whole(arguments, "--min-nodes", 0);
  options.max_restarts = whole(arguments, "--max-restarts", -1);
  return options;
}

/// A program of the user's own, named by its path as a shell wants it. It takes the place of the rank's fork.
[[noreturn]] void run_own(const std::vector<std::string>& words, int /*threads: in OMP_NUM_THREADS*/) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  std::fprintf(stderr, "error: [launch] %s cannot be executed: %s\n", argv[0], std::strerror(errno));
  std::fflush(nullptr);
  _exit(static_cast<int>(Exit::usage));
}

int launch_own(comm::LaunchOptions options, const std::vector<std::string>& words) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(words.front(), none) || access(words.front().c_str(), X_OK) != 0)
    throw UserError(Exit::usage, "launch", words.front() + ": no program that may be executed",
                    "a word with a slash is a program of your own, as in tessera launch -n 2 ./my-program ...; "
                    "a script begins with #! and has chmod +x");
  const int gpus = device::count_in_child();
  options.bind = gpus == 0;
  if (options.nproc == 0) options.nproc = ranks_here(gpus);
  options.max_restarts = std::max(0, options.max_restarts);
  return comm::launch(options, words, run_own);
}

int run_launch(const Arguments& arguments) {
  if (arguments.words.empty())
    throw UserError(Exit::usage, "launch", "no command to launch", "tessera launch -n 2 train RECIPE");
  const auto& inner = arguments.words.front();
  comm::LaunchOptions options = comm::by_environment(typed(arguments));
  if (inner.find('/') != std::string::npos) return launch_own(options, arguments.words);
  const Command* target = nullptr;
  std::vector<std::string> known;
  for (const auto& command : commands()) {
    if (command.name == "launch") continue;
    known.push_back(command.name);
    if (command.name == inner) target = &command;
  }
  if (!target) {
    const bool number = inner.find_first_not_of("0123456789") == std::string::npos;
    throw UserError(Exit::usage, "launch", "unknown command '" + inner + "'",
                    number
                        ? "as many ranks are -n " + inner
                        : "did you mean '" + nearest(inner, known).front() + "'? A program of your own is ./" + inner);
  }
  const Arguments rest = parse(*target, {arguments.words.begin() + 1, arguments.words.end()});
  const int gpus = gpus_here(*target, rest);
  options.bind = gpus == 0;
  if (options.nproc == 0) options.nproc = ranks_here(gpus);
  comm::require_room(options.nproc);  // what follows takes time for each rank
  if (target->recipe_keys) {
    const recipe::Recipe recipe = recipe_of(*target, rest, options.nproc * options.nnodes);
    options.timeout = recipe.fault.timeout;
    if (options.max_restarts < 0) options.max_restarts = static_cast<int>(recipe.fault.max_restarts);
    if (target->name == "train") options.run = recipe.run.out;
  }
  options.max_restarts = std::max(0, options.max_restarts);
  return comm::launch(options, arguments.words, run_rank);
}

}  // namespace

Command launch_command() {
  Command c;
  c.name = "launch";
  c.summary =
      "Starts a process for each rank and watches them.\nWhen a rank dies or hangs, it names that rank and ends the "
      "others.\nMachines, their numbers and the rendezvous may come from the scheduler.";
  c.usage =
      "launch [-n N] [--nnodes K --node-rank I --rdzv-endpoint HOST:PORT] [--max-restarts R] [--min-nodes M] "
      "COMMAND|./PROGRAM ...";
  c.example = "tessera launch -n 2 train recipes/wan-tiny_demo_cpu.toml";
  c.rest_is_verbatim = true;
  c.flags = {{"--nproc-per-node",
              "N",
              "ranks on this machine; without it one, or one for each GPU",
              "-n",
              {"--n", "-np", "--np", "--nproc", "--ntasks"}},
             {"--nnodes", "K", "machines of the run, one launcher each; else as the scheduler says, or 1"},
             {"--node-rank", "I", "number of this machine, from 0"},
             {"--rdzv-endpoint", "HOST:PORT", "rendezvous of the launchers: an address of machine 0"},
             {"--max-restarts", "R", "restarts from the last checkpoint after a rank is lost"},
             {"--min-nodes", "M", "machines that suffice to restart; dp_shard shrinks"}};
  constexpr const char* kRendezvous = "--rdzv-endpoint HOST:PORT is the rendezvous of the nodes";
  c.elsewhere = {{"-N", "nodes are --nnodes K, ranks on each -n N"},
                 {"--standalone", "leave it out: without --nnodes the run is this machine's alone"},
                 {"--master-addr", kRendezvous},
                 {"--master-port", kRendezvous},
                 {"--rdzv-backend", "leave it out: there is one rendezvous"},
                 {"--rdzv-id", "leave it out: all launchers of one endpoint are one run"}};
  c.run = run_launch;
  return c;
}

}  // namespace tessera::apps
