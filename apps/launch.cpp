#include "commands.h"
#include "foreign.h"
#include "look_over.h"
#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/comm/launch/launcher.h"
#include "tessera/comm/launch/machine.h"
#include "tessera/device/open.h"
#include "tessera/recipe/recipe.h"

namespace tessera::apps {

namespace {

int whole(const Arguments& arguments, const std::string& flag, int absent) {
  const std::string text = arguments.value(flag);
  if (text.empty()) return absent;
  if (text.find_first_not_of("0123456789") != std::string::npos || text.size() > 6)
    throw UserError(Exit::usage, "launch", flag + " " + text + ": expected a whole number");
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

int run_launch(const Arguments& arguments) {
  if (arguments.words.empty())
    throw UserError(Exit::usage, "launch", "no command to launch", "tessera launch -n 2 train RECIPE");
  const auto& inner = arguments.words.front();
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
                    number ? "as many ranks are -n " + inner : "did you mean '" + nearest(inner, known).front() + "'?");
  }
  const Arguments rest = parse(*target, {arguments.words.begin() + 1, arguments.words.end()});
  comm::LaunchOptions options;
  const int gpus = gpus_here(*target, rest);
  options.bind = gpus == 0;
  options.nproc =
      arguments.value("--nproc-per-node").empty() ? ranks_here(gpus) : whole(arguments, "--nproc-per-node", 1);
  comm::require_room(options.nproc);  // what follows takes time for each rank
  options.nnodes = whole(arguments, "--nnodes", 1);
  options.node_rank = whole(arguments, "--node-rank", 0);
  options.endpoint = arguments.value("--rdzv-endpoint");
  options.min_nodes = whole(arguments, "--min-nodes", 0);
  if (target->recipe_keys) {
    const recipe::Recipe recipe = recipe_of(*target, rest, options.nproc * options.nnodes);
    options.timeout = recipe.fault.timeout;
    options.max_restarts = static_cast<int>(recipe.fault.max_restarts);
    if (target->name == "train") options.run = recipe.run.out;
  }
  options.max_restarts = whole(arguments, "--max-restarts", options.max_restarts);
  return comm::launch(options, arguments.words, run_rank);
}

}  // namespace

Command launch_command() {
  Command c;
  c.name = "launch";
  c.summary =
      "Starts a process for each rank and watches them.\nWhen a rank dies or hangs, it names that rank and ends the others.";
  c.usage =
      "launch [-n N] [--nnodes K --node-rank I --rdzv-endpoint HOST:PORT] [--max-restarts R] [--min-nodes M] COMMAND "
      "...";
  c.example = "tessera launch -n 2 train recipes/wan-tiny_demo_cpu.toml";
  c.rest_is_verbatim = true;
  c.flags = {{"--nproc-per-node",
              "N",
              "ranks on this machine; without it one, or one for each GPU",
              "-n",
              {"--n", "-np", "--np", "--nproc", "--ntasks"}},
             {"--nnodes", "K", "machines of the run, one launcher each"},
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
