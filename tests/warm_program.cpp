// The program, started once and then forked for each command: what a test asks of it costs no loading of LibTorch, 0.25
// CPU-seconds of each start. A fork runs main() with the words, variables, folder and output that it is given, as exec would
// (comm/rank_process.h says what of LibTorch a fork takes along). Asked over the socket at descriptor 3 by program.cpp.
//
// [Note: forks are the test's children] A test waits for a program, kills it and asks for its children, as if it had started it
// itself. So the fork comes from a process between, which ends at once: its child then goes to the nearest process above that
// takes orphans (PR_SET_CHILD_SUBREAPER), the test, which is one for as long as it asks.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "warm_program.h"

extern "C" int __real_main(int argc, char** argv);

namespace {

using tessera::testing::kWarmSocket;

/// The next command, as program.cpp packed it, and where its output goes; false once nobody asks any more.
bool next_command(std::string& packed, int& output) {
  packed.resize(tessera::testing::kMostCommand);
  iovec part{packed.data(), packed.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  const ssize_t size = recvmsg(kWarmSocket, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (size <= 0 || header == nullptr || header->cmsg_type != SCM_RIGHTS) return false;
  packed.resize(static_cast<size_t>(size));
  std::memcpy(&output, CMSG_DATA(header), sizeof output);
  return true;
}

/// Words that lie one behind the other, as main() has them from the system.
std::vector<char*> pointers(std::string& words) {
  std::vector<char*> all;
  for (size_t at = 0; at < words.size(); at = words.find('\0', at) + 1) all.push_back(words.data() + at);
  all.push_back(nullptr);
  return all;
}

[[noreturn]] void become(std::string& packed, int output) {
  close(kWarmSocket);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO), dup2(output, STDOUT_FILENO), dup2(output, STDERR_FILENO);
  close(nothing), close(output);
  // never destroyed: what runs at the end of a process reads variables too
  auto& [folder, words, variables] = *new auto(tessera::testing::unpack(packed));
  auto &environment = *new auto(pointers(variables)), &arguments = *new auto(pointers(words));
  environ = environment.data();
  if (chdir(folder.c_str()) != 0) _exit(127);
  _exit(__real_main(static_cast<int>(arguments.size()) - 1, arguments.data()));
}

/// The process of a command; -1 if there can be none.
pid_t start(std::string& packed, int output) {
  static auto* const child =
      static_cast<pid_t*>(mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (child == MAP_FAILED) return -1;
  *child = -1;
  const pid_t between = fork();
  if (between == 0) {
    if (const pid_t pid = fork(); pid == 0)
      become(packed, output);
    else
      *child = pid;
    _exit(0);
  }
  if (between > 0) waitpid(between, nullptr, 0);
  return *child;
}

}  // namespace

/// In place of main() (the linker's --wrap).
extern "C" int __wrap_main(int argc, char** argv) {
  if (argc != 2 || std::string(argv[1]) != tessera::testing::kWarmWord) return __real_main(argc, argv);
  std::string packed;
  for (int output = -1; next_command(packed, output); close(output))
    if (const pid_t child = start(packed, output); send(kWarmSocket, &child, sizeof child, 0) < 0) return 1;
  return 0;
}
