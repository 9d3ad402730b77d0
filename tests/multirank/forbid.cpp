// Runs a program without some calls of the system, as the seccomp profile of a container does: each fails with EPERM.
//
//   forbid memfd_create,getrandom -- PROGRAM [ARGUMENT...]
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  const std::map<std::string, unsigned> numbers = {
      {"memfd_create", SYS_memfd_create}, {"getrandom", SYS_getrandom}, {"flock", SYS_flock}};
  if (argc < 4 || std::string(argv[2]) != "--") return 64;
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  const std::string names = std::string(argv[1]) + ",";
  for (size_t begin = 0, end; (end = names.find(',', begin)) != std::string::npos; begin = end + 1) {
    const auto found = numbers.find(names.substr(begin, end - begin));
    if (found == numbers.end()) return 64;
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, found->second, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::fprintf(stderr, "forbid: %s\n", std::strerror(errno));
    return 65;
  }
  execv(argv[3], argv + 3);
  return 66;
}
