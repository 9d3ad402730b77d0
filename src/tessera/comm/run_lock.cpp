#include "tessera/comm/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/in_place.h"

namespace tessera::comm {

namespace fs = std::filesystem;

namespace {

constexpr double kDying = 10;  // seconds in which the ranks of a launcher that is gone end

struct Holder {
  std::string host, since;
  pid_t pid = 0;
};

std::string this_host() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

/// "HOST PID SINCE", in one write: a reader sees all of it or nothing.
std::string line_of_this_process() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char since[32];
  std::strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return this_host() + " " + std::to_string(getpid()) + " " + since + "\n";
}

Holder read_holder(const fs::path& file) {
  Holder holder;
  std::ifstream(file) >> holder.host >> holder.pid >> holder.since;
  return holder;
}

/// Only a process of this machine can be seen to be gone.
bool is_gone(const Holder& holder) {
  return holder.host == this_host() && holder.pid > 0 && kill(holder.pid, 0) != 0 && errno == ESRCH;
}

fs::path lock_file(const fs::path& run) { return run / ".lock"; }
fs::path notes_file(const fs::path& run) { return run / ".faults"; }

[[noreturn]] void fail(const fs::path& file, const std::string& act) {
  const checkpoint::WriteFailure failure = checkpoint::write_failure(errno, file);
  throw UserError(Exit::disk, "run.out", file.string() + ": cannot be " + act + ": " + failure.what,
                  failure.hint + ", or choose another run.out");
}

}  // namespace

RunLock::RunLock(const fs::path& run) {
  checkpoint::make_folder(run, "check run.out");
  const fs::path file = lock_file(run);
  fd_ = checkpoint::open_in_place(file, O_RDWR | O_CREAT);
  try {
    take(run, file);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

RunLock::~RunLock() { ::close(fd_); }

void RunLock::take(const fs::path& run, const fs::path& file) {
  using Clock = std::chrono::steady_clock;
  for (const auto start = Clock::now(); ::flock(fd_, LOCK_EX | LOCK_NB) != 0;) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      log::warn(file.string() + ": " + std::strerror(errno) +
                ": this file system has no locks; see to it that no second run writes to " + run.string());
      return;
    }
    const Holder holder = read_holder(file);
    if (is_gone(holder) && Clock::now() - start < std::chrono::duration<double>(kDying)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    const std::string who = holder.pid == 0 ? "another process"
                                            : "process " + std::to_string(holder.pid) + " on host " + holder.host +
                                                  " since " + holder.since;
    throw UserError(Exit::usage, "run.out", run.string() + " is in use: " + who + " trains there",
                    "wait for it or stop it, or give this run a run.out of its own");
  }
  const std::string line = line_of_this_process();
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, line.data(), line.size(), 0) != static_cast<ssize_t>(line.size()))
    fail(file, "written");
}

bool RunLock::held_by_launcher(const fs::path& run) {
  const char* held = std::getenv(kVariable);
  return held && *held && fs::absolute(run) == fs::path(held);
}

void note_fault(const fs::path& run, const std::string& text) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string line = std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) + " " + text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  const fs::path file = notes_file(run);
  checkpoint::GrowingFile notes(file, checkpoint::GrowingFile::Begin::behind);
  notes.write(line);
  notes.flush();
}

std::vector<FaultNote> fault_notes(const fs::path& run) {
  std::vector<FaultNote> notes;
  std::ifstream in(notes_file(run));
  for (std::string line; std::getline(in, line) && !in.eof();) {  // without its newline it was never finished
    FaultNote note;
    std::istringstream words(line);
    if (words >> note.time && std::getline(words >> std::ws, note.text)) notes.push_back(std::move(note));
  }
  return notes;
}

void forget_faults(const fs::path& run) {
  if (::unlink(notes_file(run).c_str()) != 0 && errno != ENOENT) fail(notes_file(run), "removed");
}

fs::path stop_note(const fs::path& run) { return run / ".stopping"; }

}  // namespace tessera::comm
