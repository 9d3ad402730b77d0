// run.on_event's command: it gets whole lines in their order, and whatever it does the run neither waits nor ends.
#include "tessera/report/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "folder_test.h"

namespace tessera::report {
namespace {

namespace fs = std::filesystem;

class EventHooks : public FolderTest {
 protected:
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  std::string text(const std::string& name) const {
    std::ifstream in(file(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// The file once `done` is there, which commands make last.
  std::string awaited(const std::string& name) const {
    for (int i = 0; i < 1000 && !fs::exists(file("done")); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return text(name);
  }
  std::string then_done() const { return "; touch '" + file("done") + "'"; }
};

std::string event_line(int number, size_t bytes = 20) {
  std::string text = std::to_string(number) + " ";
  text.resize(std::max(bytes, text.size()), 'x');
  return text + "\n";
}

int64_t lost_of(const EventHook& hook) {
  const std::string text = hook.losses();
  return text.empty() ? 0 : std::atoll(text.substr(text.find(": ") + 2).c_str());
}

TEST_F(EventHooks, GetEveryLineAndTheRunsFolder) {
  {
    EventHook hook("cat > '" + file("got") + "'; echo \"$TESSERA_RUN\" >> '" + file("got") + "'" + then_done(),
                   "runs/a");
    for (int i = 0; i < 3; ++i) hook.tell(event_line(i));
    EXPECT_EQ(hook.losses(), "");
  }
  EXPECT_EQ(awaited("got"), event_line(0) + event_line(1) + event_line(2) + "runs/a\n");
}

TEST_F(EventHooks, OfACommandThatDoesNotReadAreLostWithoutAWait) {
  EventHook hook("sleep 5", folder_);
  const auto before = std::chrono::steady_clock::now();
  constexpr int kLines = 20'000;
  for (int i = 0; i < kLines; ++i) hook.tell(event_line(i, 1000));  // 20 MB, the pipe takes 1 MiB
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(4)) << "it waited for the command";
  EXPECT_GT(lost_of(hook), kLines / 2);
  EXPECT_NE(hook.losses().find("of 20000 events were lost: the command reads more slowly"), std::string::npos)
      << hook.losses();
}

TEST_F(EventHooks, OfASlowCommandThatAreNotLostAreWholeAndInOrder) {
  constexpr int kLines = 5000;
  int64_t lost = 0;
  {
    EventHook hook("sleep 0.3; cat > '" + file("got") + "'" + then_done(), folder_);
    for (int i = 0; i < kLines; ++i) {
      hook.tell(event_line(i, 500 + i % 1700));
      if (i % 500 == 499) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    hook.tell("last\n");  // finishes the line that the pipe had taken in part
    lost = lost_of(hook);
  }
  awaited("got");
  std::ifstream in(file("got"));
  int64_t got = 0, before = -1;
  std::string last;
  for (std::string text; std::getline(in, text); ++got) {
    last = text;
    if (text == "last") continue;
    const int number = std::atoi(text.c_str());
    ASSERT_GT(number, before);
    ASSERT_EQ(text + "\n", event_line(number, 500 + number % 1700)) << "a line in two pieces";
    before = number;
  }
  EXPECT_EQ(last, "last");
  EXPECT_GT(lost, 0) << "the pipe took all: the test tests nothing";
  EXPECT_EQ(got + lost, kLines + 1);
}

TEST_F(EventHooks, OfACommandThatHasEndedAreLostAndTheCodeIsTold) {
  for (const auto& [command, how] : {std::pair<std::string, std::string>{"exit 7", "ended with code 7"},
                                     {"no-such-program-anywhere 2> /dev/null", "ended with code 127"},
                                     {"kill -9 $$", "ended by signal 9"}}) {
    EventHook hook(command, folder_);
    for (int i = 0; i < 400 && hook.losses().empty(); ++i) {  // what the pipe took before it ended is not known
      hook.tell(event_line(i));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_NE(hook.losses().find(how), std::string::npos) << command << "\n" << hook.losses();
    const int64_t before = lost_of(hook);
    hook.tell(event_line(0));
    EXPECT_EQ(lost_of(hook), before + 1);
  }
}

TEST_F(EventHooks, InheritNeitherFilesNorTheSecretOfTheRanks) {
  const int held = ::open("/dev/null", O_RDONLY);  // as a lock of the run's folder: without O_CLOEXEC
  ASSERT_GE(::fcntl(held, F_DUPFD, 200), 200);
  ::setenv("TESSERA_TOKEN", "secret", 1);
  { EventHook hook("(ls /proc/$$/fd; printenv TESSERA_TOKEN) > '" + file("got") + "'" + then_done(), folder_); }
  ::unsetenv("TESSERA_TOKEN");
  const std::string got = awaited("got");
  EXPECT_NE(got.find("0\n1\n2\n"), std::string::npos) << got;
  EXPECT_EQ(got.find("200"), std::string::npos) << got;
  EXPECT_EQ(got.find("secret"), std::string::npos) << got;
}

TEST_F(EventHooks, WithoutACommandAreNothing) {
  EventHook hook("", folder_);
  hook.tell(event_line(0));
  EXPECT_EQ(hook.losses(), "");
}

}  // namespace
}  // namespace tessera::report
