// The stand-in of NCCL on the simulated device: two ranks, which are threads here, each with a stream of its own.
#include "stand_in.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "simulated.h"
#include "tessera/device/streams.h"
#include "timeline.h"

namespace tessera::testing {
namespace {

using device::Communicator;
using device::Message;

struct Pair {
  Communicator gather, reduce;
};

/// Runs `act(rank, communicators)` on two ranks.
template <class Act>
void on_two_ranks(Act act) {
  device::use(simulated_device(), 0);
  const device::Communicators& table = stand_in_communicators();
  const std::string ids[2] = {table.new_id(), table.new_id()};
  static int runs = 0;
  const std::string run = std::to_string(runs++) + "-";
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      become_rank(run + std::to_string(rank));
      device::enter_thread();
      device::own_stream();
      const Pair pair = {table.connect(ids[0], 2, rank, 0, "gather:dp_shard"),
                         table.connect(ids[1], 2, rank, 0, "reduce:dp_shard")};
      act(rank, pair);
      device::used()->wait();
      table.free(pair.gather), table.free(pair.reduce);
    });
  for (std::thread& rank : ranks) rank.join();
  timeline().work_late(false);  // for the tests that follow
}

/// A float of the device; `give` and `take` see it from the host.
struct Value {
  void* data = device::used()->take(4);
  ~Value() { device::used()->give(data); }
  void give(float x) const { device::used()->copy(data, &x, 4); }
  float take() const {
    float x = 0;
    device::used()->copy(&x, data, 4);
    return x;
  }
};

/// Sends `x` to the other rank and receives `y`.
void swap(Communicator by, int rank, const Value& x, const Value& y) {
  std::vector<Message> out(2), in(2);
  out[static_cast<size_t>(1 - rank)] = {x.data, 4}, in[static_cast<size_t>(1 - rank)] = {y.data, 4};
  stand_in_communicators().exchange(by, out, in);
}

TEST(StandIn, MessagesComeAfterWhatTheirStreamWasGivenAndBeforeWhatFollows) {
  on_two_ranks([](int rank, const Pair& pair) {
    const Value x, y, sum;
    for (int round = 0; round < 20; ++round) {
      x.give(static_cast<float>(10 * rank + round));
      swap(round % 2 ? pair.gather : pair.reduce, rank, x, y);
      const float* parts[] = {static_cast<float*>(x.data), static_cast<float*>(y.data)};
      device::used()->sum_in_order(static_cast<float*>(sum.data), parts, 2, 1, false);
      EXPECT_EQ(sum.take(), static_cast<float>(10 + 2 * round));
    }
    EXPECT_EQ(stand_in_communicators().fault(pair.gather), "");
  });
}

TEST(StandIn, RanksThatIssueInDifferentOrdersAreTold) {
  std::string faults[2];
  on_two_ranks([&](int rank, const Pair& pair) {
    const Value x, y;
    x.give(1);
    swap(rank ? pair.gather : pair.reduce, rank, x, y);
    swap(rank ? pair.reduce : pair.gather, rank, x, y);
    device::used()->wait();
    for (const Communicator by : {pair.gather, pair.reduce}) faults[rank] += stand_in_communicators().fault(by) + "\n";
  });
  EXPECT_NE(faults[0].find("order of issue: between these ranks the next message is \"reduce:dp_shard number 0 of 4 "
                           "bytes\" here, and \"gather:dp_shard number 0 of 4 bytes\" on member 1"),
            std::string::npos)
      << faults[0];
  EXPECT_NE(faults[1].find("is \"gather:dp_shard number 0 of 4 bytes\" here"), std::string::npos) << faults[1];
}

/// Memory of the device. Giving it back waits for all streams, also for those of a rank that waits for this one: it is given
/// back when both have ended.
struct Blocks {
  ~Blocks() {
    for (void* data : taken) device::used()->give(data);
  }
  char* take() {
    const std::lock_guard lock(mutex);
    taken.push_back(device::used()->take(8192));
    return static_cast<char*>(taken.back());
  }
  std::mutex mutex;
  std::vector<void*> taken;
};

/// A window of 16 bytes at a byte of a block that is lent.
struct Window {
  Window(Communicator by, char* block, int64_t at) : by(by) {
    const device::Communicators& table = stand_in_communicators();
    EXPECT_TRUE(table.lend(by, block, 8192));
    std::optional<std::string> answer;
    while (!(answer = table.open_window(by, block + at, 16))) std::this_thread::yield();
    refusal = *answer;
  }
  ~Window() { stand_in_communicators().close_window(by); }
  Communicator by;
  std::string refusal;
};

TEST(StandIn, AWindowLiesAtOnePlaceOfAllBlocks) {
  Blocks blocks;
  on_two_ranks([&](int rank, const Pair& pair) {
    EXPECT_EQ(Window(pair.gather, blocks.take(), 4096).refusal, "");
    const std::string refusal = Window(pair.reduce, blocks.take(), rank ? 4096 : 0).refusal;
    EXPECT_NE(refusal.find("windows begin at "), std::string::npos) << refusal;
  });
}

/// Between machines NCCL registers all that it is lent with each network card.
TEST(StandIn, TheWholeBlockOfADeviceIsNotLent) {
  Blocks blocks;
  on_two_ranks([&](int rank, const Pair& pair) {
    if (rank == 1) return;
    char* block = blocks.take();
    device::set_block({block, 8192});
    EXPECT_THROW(stand_in_communicators().lend(pair.gather, block, 8192), c10::Error);
    EXPECT_TRUE(stand_in_communicators().lend(pair.gather, block, 4096));
    EXPECT_TRUE(stand_in_communicators().lend(pair.gather, block + 6144, 2048));
    device::set_block({});
  });
}

/// NCCL takes the place of its own member for that of all: another would be written at.
TEST(StandIn, ACollectiveAtDifferentPlacesOfItsWindowIsTold) {
  std::string same, other;
  Blocks blocks;
  on_two_ranks([&](int rank, const Pair& pair) {
    char* block = blocks.take();
    const Window window(pair.gather, block, 0);
    const auto gather = [&](int64_t at) {
      char* out = block + at;
      stand_in_communicators().all_gather(pair.gather, out, out + rank * 4, 4);
      device::Mark after;
      after.record(), after.await();
      return stand_in_communicators().fault(pair.gather);
    };
    const std::string first = gather(8), second = gather(rank ? 0 : 8);
    if (rank == 0) same = first, other = second;
  });
  EXPECT_EQ(same, "");
  EXPECT_NE(other.find("of 4 bytes at byte 8 of the window\" here, and \""), std::string::npos) << other;
  EXPECT_NE(other.find("of 4 bytes at byte 0 of the window\" on member 1"), std::string::npos) << other;
}

TEST(StandIn, AnAbortEndsWhatWaits) {
  on_two_ranks([](int rank, const Pair& pair) {
    if (rank == 1) return;  // sends nothing
    const Value x, y;
    x.give(1);
    swap(pair.gather, rank, x, y);
    device::Mark after;
    after.record();
    EXPECT_FALSE(after.passed());
    stand_in_communicators().abort_all({pair.gather});
    after.await();
    EXPECT_NE(stand_in_communicators().fault(pair.gather).find("aborted"), std::string::npos);
  });
}

/// As NCCL's: a message that stands behind one of another communicator ends when that one does, so both are ended at once.
TEST(StandIn, AnAbortWaitsForWhatStandsBeforeItsMessages) {
  on_two_ranks([](int rank, const Pair& pair) {
    if (rank == 1) return;  // sends nothing
    const Value x, y;
    x.give(1);
    swap(pair.reduce, rank, x, y), swap(pair.gather, rank, x, y);
    std::atomic<bool> ended = false;
    std::thread alone([&] {
      device::enter_thread();
      stand_in_communicators().abort_all({pair.gather});
      ended = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(ended) << "a message of the other communicator still waits for its peer";
    stand_in_communicators().abort_all({pair.gather, pair.reduce});
    alone.join();
    EXPECT_TRUE(ended);
  });
}

}  // namespace
}  // namespace tessera::testing
