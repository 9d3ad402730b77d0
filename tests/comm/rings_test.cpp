#include "tessera/comm/rings.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

namespace tessera::comm {
namespace {

using Rings = std::unique_ptr<SharedRings>;
using Data = std::vector<unsigned char>;

/// All members in this process.
std::vector<Rings> members(int size) {
  std::vector<Rings> all;
  all.push_back(SharedRings::create(size));
  for (int i = 1; i < size && all[0]; ++i) all.push_back(SharedRings::join(all[0]->address(), i, size));
  return all;
}

void on_all(const std::vector<Rings>& all, const std::function<void(int)>& act) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) threads.emplace_back([&act, i] { act(static_cast<int>(i)); });
  for (std::thread& thread : threads) thread.join();
}

SharedRings::Bytes bytes(Data& data) { return {data.data(), data.size()}; }

/// What member `from` sends to member `to` in a round; nothing in some.
Data message(int round, int from, int to) {
  std::mt19937_64 draw(static_cast<unsigned>(round * 100 + from * 10 + to));
  const size_t sizes[] = {0, 1, 7, 64, 4096, 100'003, (size_t{1} << 20) - 8, (size_t{3} << 20) + 5};
  Data data(from == to ? 0 : sizes[draw() % std::size(sizes)]);
  for (size_t i = 0; i < data.size(); i += sizeof(uint64_t)) {
    const uint64_t bits = draw();
    std::memcpy(&data[i], &bits, std::min(sizeof bits, data.size() - i));
  }
  return data;
}

double seconds_of(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// What the exchange failed with, and with whom.
std::string failure(SharedRings& rings, const std::vector<SharedRings::Bytes>& out,
                    const std::vector<SharedRings::Bytes>& in) {
  try {
    rings.exchange(out, in);
  } catch (const PeerError& error) {
    return std::to_string(error.member()) + ": " + error.what();
  }
  return "nothing failed";
}

TEST(SharedRings, CarryMessagesOfAnySizeBetweenAllMembers) {
  for (const int size : {2, 3, 5}) {
    const std::vector<Rings> all = members(size);
    ASSERT_TRUE(all.size() == static_cast<size_t>(size) && all.back()) << "no memory can be shared here";
    on_all(all, [&](int me) {
      for (int round = 0; round < 20; ++round) {
        std::vector<Data> sent, received;
        std::vector<SharedRings::Bytes> out, in;
        for (int i = 0; i < size; ++i) {
          sent.push_back(message(round, me, i));
          received.emplace_back(message(round, i, me).size());
        }
        for (size_t i = 0; i < sent.size(); ++i) out.push_back(bytes(sent[i])), in.push_back(bytes(received[i]));
        all[static_cast<size_t>(me)]->exchange(out, in);
        for (int i = 0; i < size; ++i)
          ASSERT_EQ(received[static_cast<size_t>(i)], message(round, i, me)) << round << " from " << i << " to " << me;
      }
    });
  }
}

TEST(SharedRings, LetOneThreadSendWhileAnotherReceives) {
  const std::vector<Rings> all = members(2);
  ASSERT_TRUE(all[0] && all[1]);
  constexpr int kRounds = 60;
  const auto run = [&](int me) {
    std::thread sends([&] {
      for (int round = 0; round < kRounds; ++round) {
        Data data = message(round, me, 1 - me);
        std::vector<SharedRings::Bytes> out(2);
        out[static_cast<size_t>(1 - me)] = bytes(data);
        all[static_cast<size_t>(me)]->exchange(out, std::vector<SharedRings::Bytes>(2));
      }
    });
    for (int round = 0; round < kRounds; ++round) {
      const Data expected = message(round, 1 - me, me);
      Data data(expected.size());
      std::vector<SharedRings::Bytes> in(2);
      in[static_cast<size_t>(1 - me)] = bytes(data);
      all[static_cast<size_t>(me)]->exchange(std::vector<SharedRings::Bytes>(2), in);
      EXPECT_EQ(data, expected) << round;
    }
    sends.join();
  };
  on_all(all, run);
}

TEST(SharedRings, RefuseAMessageOfAnotherSizeNamingTheMember) {
  const std::vector<Rings> all = members(2);
  ASSERT_TRUE(all[0] && all[1]);
  Data four(4), eight(8);
  all[0]->exchange({{}, bytes(four)}, {{}, {}});
  EXPECT_EQ(failure(*all[1], {{}, {}}, {bytes(eight), {}}), "0: it sent 4 bytes where 8 were expected");
}

TEST(SharedRings, AnAbortEndsAWaitAndAllThatFollow) {
  const std::vector<Rings> all = members(2);
  ASSERT_TRUE(all[0] && all[1]);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    all[0]->abort();
  });
  Data data(8);
  EXPECT_EQ(failure(*all[0], {{}, {}}, {{}, bytes(data)}), "1: it sent nothing in that time");
  later.join();
  EXPECT_EQ(failure(*all[0], {{}, {}}, {{}, bytes(data)}), "1: it sent nothing in that time");
}

TEST(SharedRings, NameAMemberWhoseProcessEndedAfterAllThatItSent) {
  const Rings first = SharedRings::create(2);
  ASSERT_TRUE(first);
  const std::string address = first->address();
  const pid_t child = fork();
  if (child == 0) {
    const Rings second = SharedRings::join(address, 1, 2);
    Data sent = {1, 2, 3};
    if (second) second->exchange({bytes(sent), {}}, {{}, {}});
    _exit(second ? 0 : 1);
  }
  Data received(3), more(3);
  std::vector<SharedRings::Bytes> in = {{}, bytes(received)};
  first->exchange({{}, {}}, in);
  EXPECT_EQ(received, (Data{1, 2, 3}));
  int status = 1;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  std::string said;
  EXPECT_LT(seconds_of([&] { said = failure(*first, {{}, {}}, {{}, bytes(more)}); }), 5);
  EXPECT_EQ(said, "1: its process ended");
  Data large(size_t{8} << 20);  // more than a ring holds
  EXPECT_EQ(failure(*first, {{}, bytes(large)}, {{}, {}}), "1: its process ended");
}

TEST(SharedRings, AreNotJoinedWhereTheAddressIsOfSomethingElse) {
  const Rings first = SharedRings::create(2);
  ASSERT_TRUE(first);
  EXPECT_FALSE(SharedRings::join("", 1, 2));
  EXPECT_FALSE(SharedRings::join("none", 1, 2));
  EXPECT_FALSE(SharedRings::join("1 1 0000000000000000", 1, 2));
  std::string other = first->address();
  other.back() = other.back() == '0' ? '1' : '0';  // of its token
  EXPECT_FALSE(SharedRings::join(other, 1, 2));
  EXPECT_FALSE(SharedRings::join(first->address(), 1, 3)) << "another number of members is another memory";
  EXPECT_TRUE(SharedRings::join(first->address(), 1, 2));
}

TEST(SharedRings, AreOfAtMostSixteenMembers) { EXPECT_FALSE(SharedRings::create(17)); }

}  // namespace
}  // namespace tessera::comm
