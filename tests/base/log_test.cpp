// What a terminal shows of messages beside a line of progress: the messages whole, one below the other, and progress last.
#include "tessera/base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <string>
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

}  // namespace
}  // namespace tessera
