// One run, one folder: who holds it is named, and a holder that is gone holds nothing.
#include "tessera/comm/run_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "folder_test.h"
#include "tessera/base/check.h"

namespace tessera::comm {
namespace {

class RunLockTest : public FolderTest {
 protected:
  /// A process that holds the folder's lock until it is killed.
  pid_t hold() const {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      const RunLock lock(folder_ / "run");
      if (write_byte(ready[1])) pause();
      _exit(1);
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    close(ready[0]), close(ready[1]);
    return child;
  }
  static bool write_byte(int fd) { return ::write(fd, "x", 1) == 1; }
  static void end(pid_t process) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
};

TEST_F(RunLockTest, ASecondHolderIsRefusedWithTheNameOfTheFirst) {
  const pid_t first = hold();
  try {
    RunLock second(folder_ / "run");
    ADD_FAILURE() << "two hold one folder";
  } catch (const UserError& error) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    const std::string text = error.what();
    EXPECT_EQ(error.code(), Exit::usage);
    for (const std::string& word : {(folder_ / "run").string() + " is in use", "process " + std::to_string(first),
                                    std::string("on host ") + host, std::string("since 20"), std::string("run.out")})
      EXPECT_NE(text.find(word), std::string::npos) << word << " in " << text;
  }
  end(first);
}

TEST_F(RunLockTest, ADeadHolderNeedsNothing) {
  end(hold());
  EXPECT_NO_THROW(RunLock(folder_ / "run"));
  EXPECT_NO_THROW(RunLock(folder_ / "run")) << "nor does one that ended";
}

TEST_F(RunLockTest, RanksOfAHolderThatIsGoneAreWaitedFor) {
  // The lock's descriptor lives on in a child of the holder, as in a rank whose launcher was killed.
  const pid_t holder = fork();
  if (holder == 0) {
    const RunLock lock(folder_ / "run");
    if (fork() == 0) usleep(500'000);
    _exit(0);
  }
  waitpid(holder, nullptr, 0);
  const int fd = ::open((folder_ / "run/.lock").c_str(), O_RDONLY);
  EXPECT_NE(flock(fd, LOCK_EX | LOCK_NB), 0) << "the child holds it still";
  ::close(fd);
  EXPECT_NO_THROW(RunLock(folder_ / "run"));
}

TEST_F(RunLockTest, NothingIsWrittenThroughALink) {
  const std::filesystem::path outside = write("outside", "somebody's");
  for (const char* name : {".lock", ".faults"})
    for (const auto& target : {outside, folder_ / "nothing"}) {
      SCOPED_TRACE(name + (" to " + target.string()));
      std::filesystem::create_directories(folder_ / "run");
      std::filesystem::remove(folder_ / "run" / name);
      std::filesystem::create_symlink(target, folder_ / "run" / name);
      try {
        if (name == std::string(".lock"))
          RunLock(folder_ / "run");
        else
          note_fault(folder_ / "run", "rank 1 was killed");
        ADD_FAILURE() << "it was written";
      } catch (const UserError& error) {
        EXPECT_EQ(error.code(), Exit::disk);
        EXPECT_NE(std::string(error.what()).find("it is a symbolic link"), std::string::npos) << error.what();
      }
    }
  EXPECT_EQ(read(outside), "somebody's");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "nothing"));
}

TEST_F(RunLockTest, FaultsAreNotedUntilTheyAreToldAndHalfANoteIsNone) {
  EXPECT_TRUE(fault_notes(folder_).empty());
  note_fault(folder_, "rank 1 was killed\nby signal 9");
  note_fault(folder_, "rank 0 fell silent");
  std::ofstream(folder_ / ".faults", std::ios::app) << "1234 rank";
  const std::vector<FaultNote> notes = fault_notes(folder_);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0].text, "rank 1 was killed by signal 9");
  EXPECT_GT(notes[0].time, 1'700'000'000'000);
  EXPECT_LE(notes[0].time, notes[1].time);
  forget_faults(folder_);
  EXPECT_TRUE(fault_notes(folder_).empty());
  EXPECT_NO_THROW(forget_faults(folder_));
}

}  // namespace
}  // namespace tessera::comm
