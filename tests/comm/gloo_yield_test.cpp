// Threads that epoll_wait tells the same events again give their core away, LibTorch's threads too.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tessera/comm/gloo_yield.h"

namespace tessera::comm {
namespace {

TEST(GlooYield, YieldsWhereTheSameEventComesAgain) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC), ready = eventfd(1, EFD_CLOEXEC);
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.u64 = 42;
  ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, ready, &wanted), 0);
  epoll_event told{};
  const int64_t before = event_thread_yields();
  ASSERT_EQ(epoll_wait(epoll, &told, 1, 0), 1);
  EXPECT_EQ(told.data.u64, 42u);
  EXPECT_EQ(event_thread_yields(), before) << "the first time there may be work to do";
  ASSERT_EQ(epoll_wait(epoll, &told, 1, 0), 1);
  ASSERT_EQ(epoll_wait(epoll, &told, 1, 0), 1);
  EXPECT_EQ(event_thread_yields(), before + 2);
  uint64_t value = 0;
  ASSERT_EQ(read(ready, &value, sizeof value), static_cast<ssize_t>(sizeof value));
  EXPECT_EQ(epoll_wait(epoll, &told, 1, 0), 0);
  EXPECT_EQ(epoll_wait(epoll, &told, 1, 0), 0) << "nothing is ready: the kernel waits itself";
  EXPECT_EQ(event_thread_yields(), before + 2);
  close(ready);
  close(epoll);
}

TEST(GlooYield, IsWhatSharedLibrariesCall) {
  Dl_info found{}, mine{};
  ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, "epoll_wait"), &found), 0);
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&event_thread_yields), &mine), 0);
  EXPECT_EQ(found.dli_fbase, mine.dli_fbase) << "epoll_wait is that of " << found.dli_fname;
}

}  // namespace
}  // namespace tessera::comm
