#pragma once
// A reader that must refuse, with an upper bound on what it takes: 2 GiB of memory, and a minute of a processor's time
// where the reader needs a few seconds and a quadratic one hours.
//
//   expect_refused_cheaply([&] { SafetensorsFile::open(file); }, {"header"});
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <new>
#include <string>
#include <vector>

#include "tessera/base/check.h"

namespace tessera {

struct Bounded {
  int status = -1;  ///< as waitpid gives it; the exit code is that of what was thrown
  std::string told;
};

/// Runs it in a process of its own.
inline Bounded run_bounded(const std::function<void()>& act) {
  int ends[2];
  Bounded result;
  if (::pipe(ends) != 0) return result;
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr rlim_t kMemory = rlim_t{2} << 30, kSeconds = 60;
    const rlimit processor{kSeconds, kSeconds};
    ::setrlimit(RLIMIT_CPU, &processor);
#ifndef __SANITIZE_ADDRESS__  // reserves terabytes of addresses for itself
    const rlimit memory{kMemory, kMemory};
    ::setrlimit(RLIMIT_AS, &memory);
#endif
    std::string text = "no error";
    int code = 0;
    try {
      act();
    } catch (const UserError& error) {
      text = error.what(), code = static_cast<int>(error.code());
    } catch (const std::exception& error) {
      text = std::string("no UserError: ") + error.what(), code = static_cast<int>(Exit::internal);
    }
    [[maybe_unused]] const ssize_t written = ::write(ends[1], text.data(), std::min<size_t>(text.size(), 4096));
    ::_exit(code);
  }
  ::close(ends[1]);
  result.told.resize(4096);
  const ssize_t got = ::read(ends[0], result.told.data(), result.told.size());
  result.told.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  ::close(ends[0]);
  if (child > 0) ::waitpid(child, &result.status, 0);
  return result;
}

/// `act` must return.
inline void expect_done_cheaply(const std::function<void()>& act) {
  const auto [status, told] = run_bounded(act);
  ASSERT_TRUE(WIFEXITED(status)) << "died of signal " << WTERMSIG(status) << " (24: it took more than a minute)";
  EXPECT_EQ(WEXITSTATUS(status), 0) << told;
}

/// `act` must throw a UserError of code 2 or 3 with these texts.
inline void expect_refused_cheaply(const std::function<void()>& act, const std::vector<std::string>& texts) {
  const auto [status, told] = run_bounded(act);
  ASSERT_TRUE(WIFEXITED(status)) << "died of signal " << WTERMSIG(status) << " (24: it took more than a minute)";
  EXPECT_TRUE(WEXITSTATUS(status) == 2 || WEXITSTATUS(status) == 3) << "code " << WEXITSTATUS(status) << ": " << told;
  for (const std::string& each : texts) EXPECT_NE(told.find(each), std::string::npos) << each << " in: " << told;
}

inline std::string repeated(std::string_view part, size_t times) {
  const size_t size = part.size() * times;
  std::string text(part);
  text.reserve(2 * size);
  while (text.size() < size) text += text;  // tests compile without optimisation, and most parts are three letters
  text.resize(size);
  return text;
}

}  // namespace tessera
