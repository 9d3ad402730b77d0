// tessera COMMAND ...: finds the command, runs it, turns errors into messages and exit codes.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/job/given_checks.h"

namespace tessera::apps {

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      plan_command(),       prepare_command(), train_command(),    launch_command(),  sample_command(),
      top_command(),        report_command(),  import_command(),   inspect_command(), list_command(),
      convert_command(),    probe_command(),   simulate_command(), bench_command(),   verify_command(),
      completion_command(), man_command()};
  return table;
}

namespace {

std::string overview() {
  std::string text =
      "tessera trains large diffusion transformers of videos and pictures\n\nUsage: tessera COMMAND ...\n\n";
  for (const auto& command : commands())
    text += "  " + command.name + std::string(12 - command.name.size(), ' ') +
            command.summary.substr(0, command.summary.find('\n')) + "\n";
  return text +
         "\nA recipe, a TOML file, describes a run; recipes/ has examples.\n"
         "  tessera plan recipes/wan-tiny_demo_cpu.toml               memory and time\n"
         "  tessera launch -n 2 train recipes/wan-tiny_demo_cpu.toml  train on 2 ranks\n"
         "\ntessera COMMAND --help explains a command, tessera --version prints the version.\n";
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& command : commands()) {
    if (command.name == name) return command;
    known.push_back(command.name);
  }
  throw UserError(Exit::usage, "", "unknown command '" + name + "'",
                  "did you mean '" + nearest(name, known).front() + "'? tessera --help lists all");
}

bool asks_for_help(const std::string& word) { return word == "--help" || word == "-h"; }

/// The help that is asked for: `launch -n 2 train --help plan` means the keys of [plan] that train takes. Nothing when
/// none is.
std::optional<std::string> help_wanted(const Command& command, const std::vector<std::string>& words) {
  const Command* subject = &command;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--help-all") return help_all(*subject);
    if (command.rest_is_verbatim && subject == &command && words[i].find('/') != std::string::npos)
      return std::nullopt;  // a program of the user's own, which has a help of its own
    if (asks_for_help(words[i])) {
      const bool on_table = i + 1 < words.size() && !words[i + 1].starts_with("-");
      return on_table ? help_on(*subject, words[i + 1]) : help(*subject);
    }
    if (!command.rest_is_verbatim || subject != &command) continue;
    for (const auto& other : commands())
      if (other.name == words[i]) subject = &other;
  }
  return std::nullopt;
}

int dispatch(const std::vector<std::string>& typed) {
  if (typed.empty() || asks_for_help(typed[0]) || typed[0] == "help") {
    if (typed.size() > 1 && typed[0] == "help") return dispatch({typed[1], "--help"});
    std::fputs(overview().c_str(), stdout);
    return typed.empty() ? static_cast<int>(Exit::usage) : 0;
  }
  if (typed[0] == "--version" || typed[0] == "-V" || typed[0] == "version") {
    std::fputs(version().c_str(), stdout);
    return 0;
  }
  const Command& command = find_command(typed[0]);
  const std::vector<std::string> rest(typed.begin() + 1, typed.end());
  if (const std::optional<std::string> text = help_wanted(command, rest)) {
    std::fputs(text->c_str(), stdout);
    return 0;
  }
  return command.run(parse(command, rest));
}

/// LibTorch looks for the current folder when it is loaded, and ends the program with words of its own where there is
/// none. This comes before all libraries.
void require_folder(int, char**, char**) {
  char folder[PATH_MAX];
  if (getcwd(folder, sizeof folder) || errno != ENOENT) return;
  constexpr char kWords[] = "error: [start] the current folder is gone; cd to one that is there (cd ~)\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kWords, sizeof kWords - 1);
  _exit(static_cast<int>(Exit::usage));
}
[[gnu::used, gnu::section(".preinit_array")]] void (*before_libraries)(int, char**, char**) = require_folder;

/// With less, a call somewhere in a library ends the program without a word. The stacks of threads are as large.
void require_stack() {
  constexpr int64_t kLeast = int64_t{1} << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(kLeast)) return;
  throw UserError(Exit::usage, "start",
                  "the limit of the stack is " + format_bytes(static_cast<int64_t>(limit.rlim_cur)) +
                      " (ulimit -s), and threads need " + format_bytes(kLeast),
                  "raise that limit: ulimit -s 8192");
}

/// The code that the command ends with; what went wrong is logged.
int run(const std::vector<std::string>& words) {
  try {
    require_stack();
    return dispatch(words);
  } catch (const std::exception& error) {
    return static_cast<int>(job::tell_error(error));
  }
}

/// The code where all output was written, else that of a full disk: a file that `>` made would be cut short without a word.
/// Whoever closes a pipe (`| head`) or a terminal has seen enough.
int told(int code) {
  errno = 0;
  const bool whole = std::fflush(stdout) == 0 && !std::ferror(stdout);
  const int error = errno;
  struct stat to {};
  const bool to_reader = fstat(STDOUT_FILENO, &to) != 0 || S_ISFIFO(to.st_mode) || S_ISSOCK(to.st_mode);
  if (whole || code != 0 || to_reader || error == EIO) return code;
  return static_cast<int>(job::tell_error(
      UserError(Exit::disk, "stdout",
                "the output could not be written whole" + (error ? std::string(": ") + std::strerror(error) : ""),
                "free space, or send it to another file")));
}

[[noreturn]] void end(int code) {
  code = told(code);
  std::fflush(nullptr);
  log::flush();
#ifdef __SANITIZE_ADDRESS__
  std::exit(code);  // leaks are looked for on the way out
#else
  std::_Exit(code);  // LibTorch would take its tables of operators apart: a seventh of a second, for nobody
#endif
}

/// The memory of the command line behind the program's name: what `ps` shows.
std::span<char> shown;

/// A rank is shown as "tessera train RECIPE", without what the launcher was told.
void show(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + '\0';
  if (text.size() > shown.size()) return;
  std::ranges::fill(shown, '\0');
  std::ranges::copy(text, shown.begin());
}

/// [Note: process 1]
/// In a container without an init this program is process 1. The kernel takes no default action for that one, so a TERM
/// would end nothing before training has begun, nor `prepare` or `sample` at all; and whoever loses its parent (what a
/// hook left running) becomes its child and stays a zombie. So process 1 does nothing but what an init does: the program
/// is its child. It passes signals on, takes the exits of all, and ends with the program's code.
void leave_process_one() {
  if (getpid() != 1) return;
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  const pid_t program = fork();
  if (program <= 0) {  // where there can be no other process, it does without
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return;
  }
  for (;;) {
    siginfo_t signal{};
    const int number = sigwaitinfo(&all, &signal);
    if (number == SIGCHLD) {
      int status = 0;
      for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;)
        if (ended == program) _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    } else if (number > 0 && signal.si_code != SI_KERNEL) {  // what a terminal sends has reached the program too
      kill(program, number);
    }
  }
}

}  // namespace

void run_rank(const std::vector<std::string>& arguments, int threads) {
  show(arguments);
  if (threads > 0) at::set_num_threads(threads);
  end(run(arguments));
}

}  // namespace tessera::apps

int main(int argc, char** argv) {
  using namespace tessera::apps;
  leave_process_one();
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error with a name, not a death
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads the log may go: that ends nothing
  std::signal(SIGUSR2, SIG_IGN);  // asks for a checkpoint: of what saves none, for nothing
  // What is opened first would get the number of a closed stderr, and the log with it.
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) close(fd);
  if (argc > 1) shown = {argv[1], argv[argc - 1] + std::strlen(argv[argc - 1]) + 1};
  end(run({argv + 1, argv + argc}));
}
