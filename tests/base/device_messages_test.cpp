// Which members of a group a communicator connects on devices: memory that plans count.
#include "tessera/base/device_messages.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Ints = std::vector<int>;

TEST(DeviceMessages, OfGathersGoAlongRingsAlone) {
  for (const char* purpose : {"gather", "gather_outer"}) {
    EXPECT_TRUE(device_messages(purpose).rings) << purpose;
    EXPECT_EQ(device_messages(purpose).peers_of(1, 4), Ints{}) << purpose;
    EXPECT_EQ(device_messages(purpose).channels, 0) << purpose;
  }
}

TEST(DeviceMessages, OfRingAttentionGoToNeighboursAlone) {
  const DeviceMessages ring = device_messages("ring");
  EXPECT_FALSE(ring.rings);
  EXPECT_EQ(ring.peers_of(0, 8), (Ints{1, 7}));
  EXPECT_EQ(ring.peers_of(5, 8), (Ints{4, 6}));
  EXPECT_EQ(ring.peers_of(1, 2), Ints{0});
}

TEST(DeviceMessages, OfSumsAreExchangesUnlessTheLibraryAdds) {
  for (const char* purpose : {"reduce", "reduce_outer", "reduce_whole", "sums"}) {
    EXPECT_FALSE(device_messages(purpose).rings) << purpose;
    EXPECT_EQ(device_messages(purpose).peers_of(2, 4), (Ints{0, 1, 3})) << purpose;
    EXPECT_TRUE(device_messages(purpose, /*library_sums=*/true).rings) << purpose;
    EXPECT_EQ(device_messages(purpose, /*library_sums=*/true).peers_of(2, 4), Ints{}) << purpose;
  }
  EXPECT_FALSE(device_messages("sequence", /*library_sums=*/true).rings);
}

TEST(DeviceMessages, OfAFewBytesHaveFewChannels) {
  for (const char* purpose : {"norms", "states", "reach", "tokens", "sums", "results"})
    EXPECT_EQ(device_messages(purpose).channels, 4) << purpose;
  for (const char* purpose : {"sequence", "tensor", "blocks", "reduce", "activations", "anything"})
    EXPECT_EQ(device_messages(purpose).channels, 0) << purpose;
}

}  // namespace
}  // namespace tessera
