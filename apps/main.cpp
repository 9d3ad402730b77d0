// tessera COMMAND ...: finds the command, runs it, turns errors into messages and exit codes.
#include <csignal>
#include <cstdio>
#include <new>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "version.h"

namespace tessera::apps {

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      launch_command(),  train_command(), prepare_command(),  sample_command(),     plan_command(),
      verify_command(),  probe_command(), simulate_command(), bench_command(),      inspect_command(),
      convert_command(), top_command(),   report_command(),   completion_command(), man_command()};
  return table;
}

namespace {

std::string overview() {
  std::string text = "tessera: trains video and image diffusion transformers\n\ntessera COMMAND ...\n\n";
  for (const auto& command : commands())
    text += "  " + command.name + std::string(12 - command.name.size(), ' ') +
            command.summary.substr(0, command.summary.find('\n')) + "\n";
  return text + "\ntessera COMMAND --help explains a command, with an example.\n";
}

int dispatch(const std::vector<std::string>& typed) {
  if (typed.empty() || typed[0] == "--help" || typed[0] == "-h" || typed[0] == "help") {
    if (typed.size() > 1 && typed[0] == "help") return dispatch({typed[1], "--help"});
    std::fputs(overview().c_str(), stdout);
    return typed.empty() ? static_cast<int>(Exit::usage) : 0;
  }
  if (typed[0] == "--version" || typed[0] == "-V" || typed[0] == "version") {
    std::fputs(version().c_str(), stdout);
    return 0;
  }
  std::vector<std::string> known;
  for (const auto& command : commands()) {
    known.push_back(command.name);
    if (command.name != typed[0]) continue;
    const std::vector<std::string> rest(typed.begin() + 1, typed.end());
    for (const auto& word : rest) {
      if (command.rest_is_verbatim && word[0] != '-') break;
      if (word != "--help" && word != "-h") continue;
      std::fputs(help(command).c_str(), stdout);
      return 0;
    }
    return command.run(parse(command, rest));
  }
  throw UserError(Exit::usage, "", "unknown command '" + typed[0] + "'",
                  "did you mean '" + nearest(typed[0], known).front() + "'? tessera --help lists all");
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  using namespace tessera;
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error with a name, not a death
  try {
    return apps::dispatch({argv + 1, argv + argc});
  } catch (const Error& error) {
    log::error(error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    log::error("the machine is out of memory");
    return static_cast<int>(Exit::memory);
  } catch (const std::exception& error) {
    log::error(std::string(error.what()) + "; this is a fault in tessera, please report it with the command");
    return static_cast<int>(Exit::internal);
  }
}
