#pragma once
// Other processes as a test sees them: who the launcher started, who is still there, what they wrote.
#include <sys/types.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace tessera::testing {

inline void sleep_seconds(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

inline std::vector<pid_t> children(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  std::vector<pid_t> list;
  for (pid_t child; in >> child;) list.push_back(child);
  return list;
}

inline bool alive(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  const size_t at = text.rfind(')');
  return at != std::string::npos && at + 2 < text.size() && text[at + 2] != 'Z';
}

/// Whether none of them is left within so many seconds.
inline bool gone(const std::vector<pid_t>& pids, double within) {
  for (double waited = 0;; waited += 0.02) {
    bool any = false;
    for (pid_t pid : pids) any = any || alive(pid);
    if (!any || waited > within) return !any;
    sleep_seconds(0.02);
  }
}

}  // namespace tessera::testing
