#include "tessera/engine/store/meter.h"

#include <gtest/gtest.h>

#include <random>

#include "tessera/base/check.h"

namespace tessera::engine {
namespace {

char* const kBase = reinterpret_cast<char*>(int64_t{1} << 40);  // nothing is read there

TEST(Reserve, TakesTheSmallestPieceThatFits) {
  Reserve reserve(kBase, 64 * 1024);
  void* wide = reserve.take(16 * 1024);
  void* between = reserve.take(256);
  void* narrow = reserve.take(4096);
  void* last = reserve.take(256);
  reserve.give(wide), reserve.give(narrow);
  EXPECT_EQ(reserve.take(4000), narrow) << "the hole of 4 KiB, not that of 16";
  EXPECT_EQ(reserve.take(8192), wide);
  reserve.give(between), reserve.give(last);
}

TEST(Reserve, LargePiecesBeginWhereAWindowMayAndTheGapBeforeThemIsUsed) {
  Reserve reserve(kBase, 2 * Reserve::kLarge + 8192);
  void* small = reserve.take(256);
  void* large = reserve.take(Reserve::kLarge);
  EXPECT_EQ(static_cast<char*>(large) - kBase, 4096);
  EXPECT_EQ(reserve.take(3840), kBase + 256);
  EXPECT_EQ(reserve.take(Reserve::kLarge), kBase + Reserve::kLarge + 4096);
  reserve.give(large), reserve.give(small);
  EXPECT_EQ(reserve.take(Reserve::kLarge), large);
}

TEST(Reserve, TakesAPieceAtAPlaceThatOthersHaveToo) {
  Reserve reserve(kBase, 1 << 20);
  void* first = reserve.take(256);
  EXPECT_EQ(reserve.place_for(8192, 0), 4096);
  EXPECT_EQ(reserve.place_for(8192, 4097), 8192);
  EXPECT_EQ(reserve.place_for(1 << 20, 0), -1);
  EXPECT_EQ(reserve.take_at(8192, 8192), kBase + 8192);
  EXPECT_EQ(reserve.place_for(8192, 0), 16384) << "before it are 4 KiB";
  EXPECT_THROW(reserve.take_at(12288, 256), InternalError);
  EXPECT_EQ(reserve.take(7000), kBase + 256) << "the gap is used";
  reserve.give(kBase + 8192), reserve.give(kBase + 256), reserve.give(first);
  EXPECT_EQ(reserve.largest(), 1 << 20);
}

TEST(Reserve, NeighboursThatAreFreeBecomeOne) {
  Reserve reserve(kBase, 4096);
  std::vector<void*> pieces;
  for (int i = 0; i < 4; ++i) pieces.push_back(reserve.take(1024));
  EXPECT_EQ(reserve.take(1), nullptr);
  for (const int i : {0, 2, 3, 1}) reserve.give(pieces[static_cast<size_t>(i)]);
  EXPECT_EQ(reserve.largest(), 4096);
  EXPECT_EQ(reserve.take(4096), kBase);
}

TEST(Reserve, WhatIsGivenTwiceIsAFault) {
  Reserve reserve(kBase, 4096);
  void* data = reserve.take(100);
  reserve.give(data);
  EXPECT_THROW(reserve.give(data), InternalError);
}

/// Random tensors of a step: pieces never overlap, nothing is lost, and the next step gets the same addresses.
TEST(Reserve, GivesTheSameAddressesStepAfterStep) {
  constexpr int64_t kBytes = 1 << 24;
  Reserve reserve(kBase, kBytes);
  const auto step = [&] {
    std::mt19937_64 random(7);
    std::map<char*, int64_t> held;
    std::vector<void*> addresses;
    for (int i = 0; i < 2000; ++i) {
      if (held.size() > 40 || (!held.empty() && random() % 2)) {
        const auto victim = std::next(held.begin(), static_cast<int64_t>(random() % held.size()));
        reserve.give(victim->first);
        held.erase(victim);
        continue;
      }
      const auto bytes = static_cast<int64_t>(1 + random() % 100'000);
      auto* data = static_cast<char*>(reserve.take(bytes));
      EXPECT_TRUE(data);
      EXPECT_EQ((data - kBase) % Reserve::kAlign, 0);
      const auto after = held.lower_bound(data);
      EXPECT_TRUE(after == held.end() || data + bytes <= after->first);
      EXPECT_TRUE(after == held.begin() || std::prev(after)->first + std::prev(after)->second <= data);
      held.emplace(data, bytes);
      addresses.push_back(data);
    }
    for (const auto& [data, bytes] : held) reserve.give(data);
    EXPECT_EQ(reserve.used(), 0);
    EXPECT_EQ(reserve.largest(), kBytes);
    return addresses;
  };
  const auto first = step();
  EXPECT_EQ(step(), first);
}

}  // namespace
}  // namespace tessera::engine
