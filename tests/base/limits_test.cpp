#include "tessera/base/limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>

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

}  // namespace
}  // namespace tessera
