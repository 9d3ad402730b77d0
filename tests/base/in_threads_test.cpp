#include "tessera/base/in_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera {
namespace {

TEST(InThreads, EachIsCalledOnce) {
  std::vector<std::atomic<int>> calls(1000);
  for_each_in_threads(calls.size(), [&](size_t i) { ++calls[i]; });
  for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], 1) << i;
  for_each_in_threads(0, [](size_t) { FAIL() << "there is nothing to do"; });
}

TEST(InThreads, TheExceptionOfTheLowestIsThrownAfterAllHaveRun) {
  std::atomic<int> calls = 0;
  std::string caught;
  try {
    for_each_in_threads(100, [&](size_t i) {
      ++calls;
      if (i % 30 == 7) throw std::runtime_error(std::to_string(i));
    });
  } catch (const std::runtime_error& error) {
    caught = error.what();
  }
  EXPECT_EQ(caught, "7");
  EXPECT_EQ(calls, 100);
}

}  // namespace
}  // namespace tessera
