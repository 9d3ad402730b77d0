#include "tessera/report/event_hook.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "tessera/base/log.h"

extern char** environ;

namespace tessera::report {

namespace {

constexpr int kPipeBytes = 1 << 20;  // what the system gives to anyone: some hundred steps of a few ranks

/// The variables of this process and the run's folder.
struct Environment {
  std::string run;
  std::vector<char*> all;
  explicit Environment(const std::filesystem::path& folder) : run("TESSERA_RUN=" + folder.string()) {
    for (char** entry = environ; *entry; ++entry) {
      const std::string_view variable(*entry);
      // A launched rank's own, the secret of its rendezvous among them, are no matter of the command's.
      if (variable.starts_with("TESSERA_TOKEN=") || variable.starts_with("TESSERA_STORE=") ||
          variable.starts_with("TESSERA_STATUS=") || variable.starts_with("TESSERA_RUN="))
        continue;
      all.push_back(*entry);
    }
    all.push_back(run.data());
    all.push_back(nullptr);
  }
};

/// The process of `sh -c command` that reads from `input`; -1 and errno where there is none.
pid_t spawn(const std::string& command, int input, const std::filesystem::path& run) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);  // locks of the run's folder, sockets, devices
  sigset_t none, usual;
  sigemptyset(&none);
  sigfillset(&usual);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const char* const words[] = {"sh", "-c", command.c_str(), nullptr};
  Environment environment(run);
  pid_t process = -1;
  const int error =
      posix_spawn(&process, "/bin/sh", &files, &attributes, const_cast<char* const*>(words), environment.all.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  errno = error;
  return error == 0 ? process : -1;
}

/// How a process ended, if it has.
std::string end_of(pid_t process) {
  int status = 0;
  if (process < 0 || ::waitpid(process, &status, WNOHANG) != process) return "the command reads no more";
  if (WIFSIGNALED(status)) return "the command was ended by signal " + std::to_string(WTERMSIG(status));
  return "the command ended with code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

EventHook::EventHook(const std::string& command, const std::filesystem::path& run) {
  if (command.empty()) return;
  std::signal(SIGPIPE, SIG_IGN);  // a command that has ended is an error of the write
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    explain(std::string("no pipe: ") + std::strerror(errno));
    return;
  }
  ::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);  // else it has the usual 64 KiB
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  process_ = spawn(command, ends[0], run);
  const int error = errno;
  ::close(ends[0]);
  if (process_ < 0) {
    ::close(ends[1]);
    explain(std::string("/bin/sh cannot be started: ") + std::strerror(error));
    return;
  }
  pipe_ = ends[1];
}

EventHook::~EventHook() { close_pipe(); }

void EventHook::close_pipe() {
  if (pipe_ >= 0) ::close(pipe_);
  pipe_ = -1;
}

/// Bytes that the pipe took; -1 where nobody reads them.
ssize_t EventHook::push(std::string_view bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(pipe_, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EAGAIN) break;
    if (put < 0 && errno != EINTR) return -1;
    done += put < 0 ? 0 : static_cast<size_t>(put);
  }
  return static_cast<ssize_t>(done);
}

void EventHook::tell(std::string_view line) {
  if (pipe_ < 0 && why_.empty()) return;  // there is no command
  ++told_;
  if (pipe_ < 0) return lose(why_);
  ssize_t put = push(rest_);
  if (put >= 0) {
    rest_.erase(0, static_cast<size_t>(put));
    put = rest_.empty() ? push(line) : 0;
  }
  if (put > 0)
    rest_ = line.substr(static_cast<size_t>(put));  // begun: the rest follows, before the next
  else if (put == 0)
    lose("the command reads more slowly than the run writes");
  else {
    close_pipe();
    lose(end_of(process_));
  }
}

void EventHook::lose(const std::string& why) {
  ++lost_;
  explain(why);
}

void EventHook::explain(const std::string& why) {
  if (!why_.empty()) return;
  why_ = why;
  log::warn("run.on_event: events are lost, " + why + "; the run goes on");
}

std::string EventHook::losses() const {
  if (lost_ == 0 || told_ == 0) return "";
  return "run.on_event: " + std::to_string(lost_) + " of " + std::to_string(told_) + " events were lost: " + why_;
}

}  // namespace tessera::report
