#include "tessera/report/top.h"

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "tessera/report/top_screen.h"

namespace tessera::report {

namespace {

constexpr int kRefreshMs = 1000;

volatile std::sig_atomic_t asked_to_stop = 0;
void stop(int) { asked_to_stop = 1; }
void wake(int) {}  // SIGWINCH: poll returns, and the screen is drawn for the new size

/// All of it in one write where the terminal takes it: no half-drawn screen is seen. False: nobody reads any more.
bool write_all(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) done += static_cast<size_t>(n);
  }
  return true;
}

void on(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;  // without SA_RESTART: poll is to return
  sigaction(signal, &action, nullptr);
}

/// The other screen of the terminal, without cursor and echo; all as before when it goes out of scope.
class FullScreen {
 public:
  FullScreen() {
    if (tcgetattr(STDIN_FILENO, &before_) == 0) {
      changed_ = true;
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // ISIG stays: Ctrl-C is a signal
      tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    write_all("\x1b[?1049h\x1b[?25l");
  }
  ~FullScreen() {
    write_all("\x1b[?25h\x1b[?1049l");
    if (changed_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

 private:
  termios before_{};
  bool changed_ = false;
};

/// Writes over what stands there, line by line, and clears only what is left: a cleared screen would flicker.
std::string frame(const std::vector<std::string>& lines) {
  std::string text = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) text += (i ? "\r\n" : "") + lines[i] + "\x1b[K";
  return text + "\x1b[J";
}

/// Waits for the next second, a key or a signal. True: q was typed.
bool wait() {
  pollfd keys{STDIN_FILENO, POLLIN, 0};
  if (::poll(&keys, isatty(STDIN_FILENO) ? 1 : 0, kRefreshMs) <= 0) return false;
  char key = 0;
  return ::read(STDIN_FILENO, &key, 1) == 1 && (key == 'q' || key == 'Q');
}

}  // namespace

int top(const std::filesystem::path& path, const TopOptions& options) {
  RunFolder run(path);
  std::signal(SIGPIPE, SIG_IGN);
  const char* term = std::getenv("TERM");
  const bool drawable = isatty(STDOUT_FILENO) == 1 && term && *term && std::strcmp(term, "dumb") != 0;
  if (options.once || !drawable) {
    TerminalStyle style = TerminalStyle::of(STDOUT_FILENO);
    style.height = 0;
    std::string text;
    for (const std::string& line : top_screen(run, style)) text += line + "\n";
    write_all(text);  // a reader that left early (| head) wanted no more
    return 0;
  }
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) on(signal, stop);
  on(SIGWINCH, wake);
  const FullScreen screen;
  while (!asked_to_stop) {
    run.poll();
    if (!write_all(frame(top_screen(run, TerminalStyle::of(STDOUT_FILENO))))) break;
    if (wait()) break;
  }
  return 0;
}

}  // namespace tessera::report
