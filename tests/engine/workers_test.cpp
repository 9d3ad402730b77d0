#include "tessera/engine/store/workers.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tessera::engine {
namespace {

TEST(Workers, DoEveryPieceOnceWhateverTheirNumber) {
  for (int threads : {1, 2, 5}) {
    Workers workers(threads);
    EXPECT_EQ(workers.threads(), threads);
    for (int count : {0, 1, 3, 200}) {
      std::vector<std::atomic<int>> done(static_cast<size_t>(count));
      workers.run(count, [&](int piece) { ++done[static_cast<size_t>(piece)]; });
      for (const auto& times : done) EXPECT_EQ(times, 1);
    }
  }
}

TEST(Workers, AFailureReachesTheCallerAndTheyGoOn) {
  Workers workers(3);
  const auto fails = [](int piece) {
    if (piece == 7) throw std::runtime_error("piece 7");
  };
  EXPECT_THROW(workers.run(20, fails), std::runtime_error);
  std::atomic<int> done = 0;
  workers.run(20, [&](int) { ++done; });
  EXPECT_EQ(done, 20);
}

}  // namespace
}  // namespace tessera::engine
