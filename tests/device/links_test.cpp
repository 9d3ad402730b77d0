// Messages between devices (comm/device_links.h) on the simulated device: two ranks, which are threads here.
#include "tessera/comm/device_links.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "simulated.h"
#include "stand_in.h"
#include "tessera/device/streams.h"
#include "timeline.h"

namespace tessera::testing {
namespace {

using at::Tensor;

/// What member 0 tells the other, by the name of the communicator.
class Told {
 public:
  std::string agree(const std::string& name, const std::string& mine) {
    std::unique_lock lock(mutex_);
    if (!mine.empty()) texts_[name] = mine;
    changed_.notify_all();
    changed_.wait(lock, [&] { return texts_.contains(name); });
    return texts_[name];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> texts_;
};

/// Holds a thread until as many have come.
class Meeting {
 public:
  void come() {
    std::unique_lock lock(mutex_);
    ++here_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return here_ == 2; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int here_ = 0;
};

struct Rank {
  int index;
  comm::DeviceLinks& links;
  std::unique_ptr<comm::Transport> first, second;
};

/// Runs `act(rank)` on two ranks, whose messages may take `seconds`.
template <class Act>
void on_two_ranks(double seconds, Act act) {
  static int runs = 0;
  const std::string run = "links" + std::to_string(runs++) + "-";
  Told told;
  timeline().compare_uses(false);  // the ranks share a device here, and memory that another rank's stream has used
  std::vector<std::thread> ranks;
  for (int index = 0; index < 2; ++index)
    ranks.emplace_back([&, index] {
      become_rank(run + std::to_string(index));
      device::enter_thread();
      device::own_stream();
      comm::DeviceLinks links(stand_in_communicators(), seconds);
      const auto made = [&](const std::string& name) {
        return links.connect(name, index, 2, device_messages("sequence"),
                             [&](const std::string& mine) { return told.agree(name, mine); });
      };
      Rank rank = {index, links, made("sequence:sp"), made("tensor:tp")};
      act(rank);
    });
  for (std::thread& rank : ranks) rank.join();
  timeline().work_late(false), timeline().compare_uses(true);  // for the tests that follow
}

void exchange(comm::Transport& by, int index, const Tensor& out, const Tensor& in) {
  std::vector<Tensor> sent(2), received(2);
  sent[static_cast<size_t>(1 - index)] = out, received[static_cast<size_t>(1 - index)] = in;
  by.exchange("all_to_all", sent, received);
}

Tensor ones() { return at::ones({4}, at::TensorOptions(at::kFloat).device(device::here())); }

TEST(DeviceLinks, SendInTheOrderOfTheStream) {
  on_two_ranks(60, [](Rank& rank) {
    const Tensor x = ones() * (rank.index + 1), y = ones();
    exchange(*rank.first, rank.index, x, y);
    exchange(*rank.second, rank.index, y, x);
    device::used()->wait();
    EXPECT_EQ(y[0].item<float>(), static_cast<float>(2 - rank.index));
    EXPECT_EQ(x[0].item<float>(), static_cast<float>(1 + rank.index)) << "it went there and back";
    EXPECT_NO_THROW(rank.links.check());
  });
}

/// A peer never comes. The end of a communicator waits for its messages, which stand behind one of the other communicator in
/// the stream: whichever is ended first, both have to be told, or the rank hangs with nothing said.
TEST(DeviceLinks, AMessageThatDoesNotEndEndsAllOfThemAndTheHostIsTold) {
  for (const bool turned : {false, true}) {
    Meeting over;
    on_two_ranks(0.3, [&](Rank& rank) {
      if (rank.index == 0) {
        const Tensor x = ones(), y = ones();
        comm::Transport &one = turned ? *rank.second : *rank.first, &other = turned ? *rank.first : *rank.second;
        exchange(one, 0, x, y), exchange(other, 0, y, x);
        device::Mark behind;
        behind.record();
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        std::string said;
        while (said.empty() && std::chrono::steady_clock::now() < until) try {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            rank.links.check();
          } catch (const std::runtime_error& error) {
            said = error.what();
          }
        EXPECT_NE(said.find("all_to_all of 16 bytes"), std::string::npos) << said;
        EXPECT_NE(said.find("began on the device and did not end"), std::string::npos) << said;
        while (!behind.passed() && std::chrono::steady_clock::now() < until)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_TRUE(behind.passed()) << "the stream goes on";
        EXPECT_THROW(exchange(one, 0, x, y), std::runtime_error) << "nothing more is sent";
      }
      over.come();
    });
  }
}

}  // namespace
}  // namespace tessera::testing
