#include "tessera/base/text.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Quotes, EscapeWhatABasicStringOfTomlMayNotHold) {
  EXPECT_EQ(in_quotes("full_shard"), R"("full_shard")");
  EXPECT_EQ(in_quotes("a \"b\"\\c\nd"), R"("a \"b\"\\c\nd")");
}

}  // namespace
}  // namespace tessera
