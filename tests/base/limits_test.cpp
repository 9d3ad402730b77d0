#include "tessera/base/limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

namespace tessera {
namespace {

/// A soft limit while it lives.
class Lowered {
 public:
  Lowered(__rlimit_resource what, rlim_t to) : what_(what) {
    getrlimit(what, &before_);
    const rlimit lower{to, before_.rlim_max};
    set_ = setrlimit(what, &lower) == 0;
  }
  ~Lowered() { setrlimit(what_, &before_); }
  bool set() const { return set_; }

 private:
  const __rlimit_resource what_;
  rlimit before_{};
  bool set_ = false;
};

TEST(Limits, AreNamedWithTheirValueAndTheFlagThatSetsThem) {
  const Lowered files(RLIMIT_NOFILE, 64), size(RLIMIT_FSIZE, 1 << 20);
  ASSERT_TRUE(files.set() && size.set());
  EXPECT_EQ(limit_behind(EMFILE), "; the limit of open files is 64 (ulimit -n)");
  EXPECT_EQ(limit_behind(EFBIG), "; the limit of a file's size is 1.00 MiB (ulimit -f)");
}

TEST(Limits, AnErrorThatNoLimitCausesNamesNone) {
  EXPECT_EQ(limit_behind(ENOENT), "");
  EXPECT_EQ(limit_behind(ENOSPC), "");
}

TEST(Limits, AreFoundInTheMessagesOfLibraries) {
  const Lowered files(RLIMIT_NOFILE, 64);
  ASSERT_TRUE(files.set());
  EXPECT_EQ(limit_behind(std::string_view("[loop.cc:47] rv != -1. pipe: Too many open files")),
            "; the limit of open files is 64 (ulimit -n)");
  EXPECT_EQ(limit_behind(std::string_view("Connection refused")), "");
}

TEST(Limits, OfOpenFilesIsToldBeforeFilesFailToOpen) {
  EXPECT_NO_THROW(require_files(8));
  const Lowered files(RLIMIT_NOFILE, 64);
  ASSERT_TRUE(files.set());
  EXPECT_NO_THROW(require_files(64));
  try {
    require_files(65);
    ADD_FAILURE() << "more open files than the limit";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("needs 65 open files"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("is 64 (ulimit -n)"), std::string::npos) << error.what();
  }
}

TEST(Limits, BehindAnErrorThatTwoCauseAreBothNamed) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's shadow alone takes more addresses than the limit of this test";
#endif
  const Lowered addresses(RLIMIT_AS, rlim_t{64} << 30), processes(RLIMIT_NPROC, 5000);
  ASSERT_TRUE(addresses.set() && processes.set());
  EXPECT_EQ(
      limit_behind(EAGAIN),
      "; the limit of addresses is 64.00 GiB (ulimit -v); the limit of processes and threads is 5000 (ulimit -u)");
}

TEST(Limits, OfAddressesIsToldBeforeThreadsFail) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's shadow alone takes more addresses than the limit of this test";
#endif
  EXPECT_NO_THROW(require_addresses(int64_t{1} << 30));
  const Lowered addresses(RLIMIT_AS, rlim_t{64} << 30);
  ASSERT_TRUE(addresses.set());
  EXPECT_NO_THROW(require_addresses(1 << 20));
  try {
    require_addresses(int64_t{65} << 30);
    ADD_FAILURE() << "more addresses than the limit";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::memory);
    EXPECT_NE(std::string(error.what()).find("65.00 GiB more of addresses"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("is 64.00 GiB (ulimit -v)"), std::string::npos) << error.what();
  }
}

TEST(Limits, StandBehindWhatLibrariesThrow) {
  const Lowered addresses(RLIMIT_AS, rlim_t{64} << 30);
  ASSERT_TRUE(addresses.set());
  const std::bad_alloc none;
  const std::system_error thread(EAGAIN, std::generic_category());
  const std::runtime_error allocator(
      "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.\n#1 x");
  for (const std::exception* error :
       {static_cast<const std::exception*>(&none), static_cast<const std::exception*>(&thread),
        static_cast<const std::exception*>(&allocator)}) {
    const auto told = shortage(*error);
    ASSERT_TRUE(told) << error->what();
    EXPECT_EQ(told->code(), Exit::memory);
    EXPECT_NE(std::string(told->what()).find("(ulimit -v)"), std::string::npos) << told->what();
    EXPECT_EQ(std::string(told->what()).find("#1"), std::string::npos) << told->what();
  }
  EXPECT_NE(std::string(shortage(thread)->what()).find("no more threads"), std::string::npos);
  EXPECT_FALSE(shortage(std::runtime_error("a fault")));
  EXPECT_FALSE(shortage(std::system_error(ENOENT, std::generic_category())));
}

}  // namespace
}  // namespace tessera
