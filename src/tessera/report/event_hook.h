#pragma once
// run.on_event: a command of the user's that gets the events of a run, the lines of metrics.jsonl, on its standard input:
// for wandb, mlflow, uploads of checkpoints, messages (docs/run-folder.md has examples).
//
//   EventHook hook("python3 to_wandb.py", "runs/a");   // started; the run never waits for it
//   hook.tell("{\"type\":\"step\",...}\n");
//   if (const std::string text = hook.losses(); !text.empty()) log.fault(step, "on_event", text);
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::report {

class EventHook {
 public:
  /// Starts `command` by /bin/sh, in a process group of its own, so that Ctrl-C ends the run and the command hears of it;
  /// its variable TESSERA_RUN is the run's folder. It inherits no open file of this process but stdout and stderr. What
  /// cannot be started is told and loses all events. Empty: there is no command.
  EventHook(const std::string& command, const std::filesystem::path& run);
  /// Closes its input: the command reads to the end, for as long as it likes; nobody waits for it.
  ~EventHook();
  EventHook(const EventHook&) = delete;
  EventHook& operator=(const EventHook&) = delete;

  /// A whole line. Where the command has ended, or has read so little that the pipe is full, it is lost and counted; the
  /// first time, a warning says so. What the command gets are whole lines.
  void tell(std::string_view line);
  /// "run.on_event: 3 of 120 events were lost: ..."; empty: none were.
  std::string losses() const;

 private:
  ssize_t push(std::string_view bytes) const;
  void lose(const std::string& why);
  void explain(const std::string& why);
  void close_pipe();

  int pipe_ = -1;  // -1: no command, or none that reads
  pid_t process_ = -1;
  std::string rest_;  // of a line of which the pipe took the beginning
  std::string why_;   // the first event was lost
  int64_t told_ = 0, lost_ = 0;
};

}  // namespace tessera::report
