// Copies of host memory that the system does not page-lock: whole, from threads at once, each piece in order.
#include "tessera/device/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "simulated.h"
#include "timeline.h"

namespace tessera::testing {
namespace {

using device::Staging;

constexpr int64_t kPiece = 1000, kBytes = 10 * kPiece + 7;

class Staged : public ::testing::Test {
 protected:
  void SetUp() override {
    device::use(simulated_device(), 0);
    timeline().compare_uses(true);
  }
  void TearDown() override {
    timeline().forget_waits("", "");
    timeline().work_late(false);
    timeline().compare_uses(false);
  }
};

/// Bytes on the device, of a thread with a stream.
class Range {
 public:
  Range() : data_(simulated_device().take(kBytes)) {}
  ~Range() {
    simulated_device().wait();
    simulated_device().give(data_);
  }
  Range(const Range&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
};

std::vector<char> bytes_of(unsigned seed) {
  std::vector<char> bytes(kBytes);
  std::ranges::generate(bytes, [random = std::mt19937(seed)]() mutable { return static_cast<char>(random()); });
  return bytes;
}

TEST_F(Staged, CopiesOfManyPiecesArriveWholeFromThreadsAtOnce) {
  timeline().work_late(true);
  Staging staging(kPiece, 3);
  ASSERT_TRUE(staging.ok());
  EXPECT_EQ(pinned_bytes(), 3 * kPiece);
  std::atomic<int> whole = 0;
  constexpr int kThreads = 4, kRounds = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      device::enter_thread();
      device::own_stream();
      const Range range;
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<char> sent = bytes_of(static_cast<unsigned>(t * kRounds + round));
        std::vector<char> from = sent, to(kBytes);
        staging.bring(range.data(), from.data(), kBytes);
        std::ranges::fill(from, '\0');  // it was read
        staging.fetch(to.data(), range.data(), kBytes);
        whole += to == sent;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(whole, kThreads * kRounds);
}

/// A piece that is filled again while the device reads it, or emptied before the device has filled it.
TEST_F(Staged, AWaitForAPieceThatIsForgottenIsFound) {
  for (const bool brings : {true, false}) {
    Staging staging(kPiece, 1);
    const Range range;
    std::vector<char> host = bytes_of(1);
    const auto copy = [&] {
      device::label(brings ? "bring" : "fetch");
      brings ? staging.bring(range.data(), host.data(), kBytes) : staging.fetch(host.data(), range.data(), kBytes);
    };
    copy();
    timeline().forget_waits(brings ? "bring" : "fetch", "");
    try {
      copy();
      FAIL() << (brings ? "bring" : "fetch");
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("and neither waits for the other"), std::string::npos) << error.what();
    }
    timeline().forget_waits("", "");
    simulated_device().wait();
  }
  device::label("");
}

TEST_F(Staged, ADriverWithoutPageLockedMemoryIsNoFailure) {
  setenv("TESSERA_SIMULATED_REFUSES", "pins,pinned", 1);
  EXPECT_FALSE(Staging(kPiece, 3).ok());
  unsetenv("TESSERA_SIMULATED_REFUSES");
}

}  // namespace
}  // namespace tessera::testing
