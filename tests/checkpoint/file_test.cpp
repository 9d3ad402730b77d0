#include "tessera/checkpoint/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <regex>
#include <thread>

#include "checkpoint/files.h"

namespace tessera::checkpoint {

class Partials : public FileTest {};

TEST_F(Partials, OfDeadWritersGoHoweverLittleTheyWroteAndThoseInHandStay) {
  write("begun.safetensors.17-0.partial", "");
  write("half.safetensors.17-1.partial", "bytes");
  write("whole.safetensors", "bytes");
  write("x.partial", "a user's own");
  write("notes.txt.partial", "a user's own");
  {
    const auto dead = temporary_name(path("plan.txt"));
    write(dead.filename().string(), "of a start that was killed");
  }
  DurableFile in_hand(path("mine.safetensors"), 4);
  remove_dead_partials(folder_);
  EXPECT_FALSE(std::filesystem::exists(path("begun.safetensors.17-0.partial")));
  EXPECT_FALSE(std::filesystem::exists(path("half.safetensors.17-1.partial")));
  EXPECT_TRUE(std::filesystem::exists(path("whole.safetensors")));
  EXPECT_TRUE(std::filesystem::exists(path("x.partial")));
  EXPECT_TRUE(std::filesystem::exists(path("notes.txt.partial")));
  EXPECT_EQ(listing().size(), 4u) << "plan.txt's has gone, that in hand is there";
  in_hand.write("mine", 4);
  in_hand.commit();
  EXPECT_EQ(read_text(path("mine.safetensors")), "mine");
}

class WrittenTo : public FileTest {};

TEST_F(WrittenTo, PipesAndDevicesAndOpenFilesStayWhatTheyAre) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { std::getline(std::ifstream(path("pipe")), read, '\0'); });
  write_text(path("pipe"), "through a pipe");
  reader.join();
  EXPECT_EQ(read, "through a pipe");
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));

  std::filesystem::create_symlink("/dev/null", path("nowhere"));
  write_text(path("nowhere"), "gone");
  EXPECT_TRUE(std::filesystem::is_character_file(path("nowhere")));

  std::filesystem::create_symlink("/dev/full", path("full"));
  expect_error(Exit::disk, {"full", "cannot write", "No space left"}, [&] { write_text(path("full"), "no room"); });
  EXPECT_TRUE(std::filesystem::is_character_file(path("full")));

  write("log", "before, ");
  const int fd = ::open(path("log").c_str(), O_WRONLY | O_APPEND);
  write_text("/proc/self/fd/" + std::to_string(fd), "behind");
  ASSERT_EQ(::write(fd, ", after", 7), 7);
  ::close(fd);
  EXPECT_EQ(read_text(path("log")), "before, behind, after");

  std::filesystem::create_symlink("log", path("link"));  // of files: the new one takes the name, as before
  write_text(path("link"), "new");
  EXPECT_EQ(read_text(path("log")), "before, behind, after");
  EXPECT_EQ(read_text(path("link")), "new");
}

TEST_F(Partials, OfOneTargetGoWithoutThoseOfItsNeighbours) {
  write("model.17-0.partial/weights.safetensors", "half a model");
  write("model.17-1.partial", "a file of the same target");
  write("model.png.17-2.partial", "another's");
  write("models.17-3.partial", "another's");
  write("model.partial", "a user's own");
  {
    PartialFolder in_hand(path("model"), "check OUT");
    write_text(in_hand.path() / "a", "mine");
    EXPECT_FALSE(std::filesystem::exists(path("model.17-0.partial")));
    EXPECT_FALSE(std::filesystem::exists(path("model.17-1.partial")));
    remove_dead_partials_of(path("model") / "");
    EXPECT_TRUE(std::filesystem::exists(path("model.png.17-2.partial")));
    EXPECT_TRUE(std::filesystem::exists(path("models.17-3.partial")));
    remove_dead_partials(folder_);
    EXPECT_EQ(read_text(in_hand.path() / "a"), "mine") << "somebody writes it";
    EXPECT_EQ(in_hand.final(), path("model"));
  }
  EXPECT_TRUE(std::filesystem::exists(path("model.partial")));
  EXPECT_EQ(listing().size(), 1u) << "what was not given the name goes";
}

/// A lock of another machine may not be seen here (Lustre with localflock), so its files go when they are old.
TEST_F(Partials, OfAnotherMachineGoWhenNobodyHasWrittenThemForAnHour) {
  const std::string tag = "0123456789abcdef-0.partial";
  const std::string mine = temporary_name(path("a")).filename().string(), elsewhere = "a.ffffffff" + tag;
  ASSERT_NE(mine.substr(2, 8), "ffffffff");
  const std::string here = mine.substr(0, 10) + tag;
  for (const std::string& name : {elsewhere, here}) write(name, "half");
  remove_dead_partials(folder_);
  EXPECT_FALSE(std::filesystem::exists(path(here)));
  EXPECT_TRUE(std::filesystem::exists(path(elsewhere))) << "somebody may be writing it";
  using namespace std::chrono_literals;
  std::filesystem::last_write_time(path(elsewhere), std::filesystem::file_time_type::clock::now() - 2h);
  remove_dead_partials(folder_);
  EXPECT_FALSE(std::filesystem::exists(path(elsewhere)));
}

TEST_F(Partials, HaveNamesThatDifferByMoreThanANumberOfAProcess) {
  // Two containers have processes of the same number; 64 random bits they do not share.
  const std::string name = temporary_name("a").string();
  EXPECT_TRUE(std::regex_match(name, std::regex("a\\.[0-9a-f]{24}-[0-9]+\\.partial"))) << name;
  EXPECT_NE(temporary_name("a"), temporary_name("a"));
}

TEST_F(Partials, HaveOtherNamesInAForkOfTheProcess) {
  const std::string before = temporary_name("a").string();
  const std::string file = path("name").string();
  const pid_t child = fork();
  if (child == 0) {
    std::ofstream(file) << temporary_name("a").string();
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  std::string name;
  std::ifstream(file) >> name;
  EXPECT_NE(name.substr(0, name.rfind('-')), before.substr(0, before.rfind('-')));
  EXPECT_TRUE(name.ends_with(".partial")) << name;
}

TEST_F(Partials, MayBeTidiedUpWhileOthersBeginFiles) {
  std::atomic<bool> done = false;
  std::thread tidy([&] {
    while (!done) remove_dead_partials(folder_);
  });
  for (int i = 0; i < 300; ++i) {
    const std::string name = std::to_string(i);
    DurableFile file(path(name), static_cast<int64_t>(name.size()));
    file.write(name.data(), static_cast<int64_t>(name.size()));
    EXPECT_NO_THROW(file.commit()) << name;
  }
  done = true;
  tidy.join();
  for (int i = 0; i < 300; ++i) EXPECT_EQ(read_text(path(std::to_string(i))), std::to_string(i));
}

}  // namespace tessera::checkpoint
