// What a terminal shows of messages beside a line of progress: the messages whole, one below the other, and progress last.
#include "tessera/base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tessera {
namespace {

/// stderr as a terminal of 80 columns, for as long as this lives.
class Terminal {
 public:
  Terminal() : before_(::dup(STDERR_FILENO)) {
    winsize size{24, 80, 0, 0};
    int terminal = -1;
    EXPECT_EQ(::openpty(&screen_, &terminal, nullptr, nullptr, &size), 0);
    ::dup2(terminal, STDERR_FILENO);
    ::close(terminal);
    ::fcntl(screen_, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    log::set_rank(0, 1);
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    ::close(screen_);
  }

  /// Lines as they stand on the screen; the last one is that of the cursor.
  std::vector<std::string> lines() {
    char bytes[4096];
    for (ssize_t n; (n = ::read(screen_, bytes, sizeof bytes)) > 0;) text_.append(bytes, static_cast<size_t>(n));
    std::vector<std::string> lines = {""};
    size_t column = 0;
    for (size_t i = 0; i < text_.size(); ++i) {
      if (text_[i] == '\r') {
        column = 0;
      } else if (text_[i] == '\n') {
        lines.emplace_back();
      } else if (text_.compare(i, 3, "\x1b[K") == 0) {
        lines.back().resize(column);
        i += 2;
      } else {
        lines.back().resize(std::max(lines.back().size(), column + 1), ' ');
        lines.back()[column++] = text_[i];
      }
    }
    return lines;
  }

 private:
  const int before_;
  int screen_ = -1;
  std::string text_;
};

using Lines = std::vector<std::string>;

TEST(Log, OfATerminalKeepsMessagesOutOfTheLineOfProgress) {
  Terminal terminal;
  log::status("step 1/3  loss 0.5");
  log::warn("a clip is short");
  EXPECT_EQ(terminal.lines(), (Lines{"warning: a clip is short", "step 1/3  loss 0.5"}));
  log::status("step 2/3");
  log::info("saved");
  log::status("step 3/3");
  log::keep_status();
  log::info("done");
  EXPECT_EQ(terminal.lines(), (Lines{"warning: a clip is short", "saved", "step 3/3", "done", ""}));
}

TEST(Log, OfAnotherRankTakesTheLineThatItCannotDrawAgain) {
  Terminal terminal;
  ASSERT_GT(::write(STDERR_FILENO, "step 1/3", 8), 0);  // by rank 0, another process
  log::set_rank(1, 2);
  log::warn("slow");
  log::info("rank 0 says it");
  EXPECT_EQ(terminal.lines(), (Lines{"rank 1: warning: slow", ""}));
}

TEST(Log, OfAnErrorLeavesHowFarItCame) {
  Terminal terminal;
  log::status("step 2/3");
  log::error("no memory");
  EXPECT_EQ(terminal.lines(), (Lines{"step 2/3", "error: no memory", ""}));
}

TEST(Log, ALineOfProgressThatGoesLeavesNothing) {
  Terminal terminal;
  log::status("convert: 40%");
  log::status("");
  log::info("converted");
  EXPECT_EQ(terminal.lines(), (Lines{"converted", ""}));
}

/// stderr as a pipe of one page that nobody reads until read() is called.
class Pipe {
 public:
  Pipe() : before_(::dup(STDERR_FILENO)) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    ::fcntl(ends[1], F_SETPIPE_SZ, 4096);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    read_ = ends[0];
  }
  ~Pipe() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    ::close(read_);
  }
  /// Lines from here on, as long as `act` takes.
  Lines lines_of(const std::function<void()>& act) {
    std::string text;
    std::thread reader([&] {
      char bytes[4096];
      for (ssize_t n; text.find("the end") == text.npos && (n = ::read(read_, bytes, sizeof bytes)) > 0;)
        text.append(bytes, static_cast<size_t>(n));
    });
    act();
    EXPECT_EQ(::write(STDERR_FILENO, "the end\n", 8), 8);
    reader.join();
    Lines lines;
    for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
      lines.push_back(text.substr(at, end - at));
    return lines;
  }

 private:
  const int before_;
  int read_ = -1;
};

std::string numbered(int i, size_t width) {
  std::string line = std::to_string(i) + " ";
  line.resize(width, '.');
  return line;
}

double seconds_of(const std::function<void()>& act) {
  const auto before = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

TEST(Log, AReaderThatStopsReadingStopsNobodyAndIsToldWhatItMissed) {
  for (const size_t width : {200, 5000}) {  // more than a page is taken in parts
    SCOPED_TRACE(width);
    Pipe pipe;
    const int count = static_cast<int>(600'000 / width);
    EXPECT_LT(seconds_of([&] {
                for (int i = 0; i < count; ++i) log::info(numbered(i, width));
              }),
              5);
    const Lines lines = pipe.lines_of([] {
      log::flush();
      log::info("and on");
      log::flush();
    });
    size_t whole = 0;
    while (whole < lines.size() && lines[whole] == numbered(static_cast<int>(whole), width)) ++whole;
    EXPECT_GT(whole * width, 200'000u) << "so much is kept for a reader that comes back";
    EXPECT_LT(whole * width, 400'000u) << "and no more";
    ASSERT_EQ(lines.size(), whole + 3) << lines[whole];
    EXPECT_EQ(lines[whole], "warning: " + std::to_string(static_cast<size_t>(count) - whole) +
                                " lines of the log left out here: nobody read them");
    EXPECT_EQ(lines[whole + 1], "and on");
  }
}

TEST(Log, AShortStopLosesNothing) {
  Pipe pipe;
  for (int i = 0; i < 400; ++i) log::info(numbered(i, 100));
  const Lines lines = pipe.lines_of([] { log::flush(); });
  ASSERT_EQ(lines.size(), 401u);
  for (int i = 0; i < 400; ++i) EXPECT_EQ(lines[static_cast<size_t>(i)], numbered(i, 100));
}

/// Ctrl-S, and Ctrl-Q.
TEST(Log, OfATerminalThatWasStoppedIsNotWaitedFor) {
  Terminal terminal;
  log::info("before");
  ASSERT_EQ(::tcflow(STDERR_FILENO, TCOOFF), 0);
  EXPECT_LT(seconds_of([&] {
              for (int i = 0; i < 5000; ++i) log::status("step " + std::to_string(i));
              log::warn("a clip is short");
              for (int i = 0; i < 5000; ++i) log::status("step " + std::to_string(i));
            }),
            5);
  ASSERT_EQ(::tcflow(STDERR_FILENO, TCOON), 0);
  log::status("step 2/3");
  const Lines lines = terminal.lines();
  EXPECT_EQ(lines.front(), "before");
  EXPECT_NE(std::find(lines.begin(), lines.end(), "warning: a clip is short"), lines.end());
  EXPECT_EQ(lines.back(), "step 2/3");
  EXPECT_LE(lines.size(), 4u) << "lines of progress that nobody saw are not drawn later";
}

/// At a process's end nobody waits for long.
TEST(Log, TheEndIsNotWaitedForWhereNobodyReads) {
  Pipe pipe;
  for (int i = 0; i < 100; ++i) log::info(numbered(i, 100));
  const double seconds = seconds_of([] { log::flush(); });
  EXPECT_LT(seconds, 5);
  pipe.lines_of([] { log::flush(); });  // nothing is left for the next test
}

}  // namespace
}  // namespace tessera
