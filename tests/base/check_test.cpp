#include "tessera/base/check.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Check, AnErrorKeepsCodePlaceAndHint) {
  const UserError error(Exit::disk, "checkpoint.save", "no space left", "free some");
  EXPECT_EQ(error.code(), Exit::disk);
  EXPECT_EQ(error.hint(), "free some");
  for (const char* part : {"checkpoint.save", "no space left", "free some"})
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  EXPECT_EQ(InternalError("store", "two shards meet").code(), Exit::internal);
}

TEST(Check, OnlyAFailureThrows) {
  EXPECT_NO_THROW(check_input(true, "a", "b"));
  EXPECT_NO_THROW(check_internal(true, "a", "b"));
  EXPECT_THROW(check_input(false, "a", "b"), UserError);
  EXPECT_THROW(check_internal(false, "a", "b"), InternalError);
}

TEST(Check, DivisionsAreExactOrRoundedUp) {
  EXPECT_EQ(div_exact(12, 4, "a"), 3);
  try {
    div_exact(13, 4, "store.shard");
    FAIL();
  } catch (const InternalError& error) {
    for (const char* part : {"store.shard", "13", "4"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_EQ(div_up(12, 4), 3);
  EXPECT_EQ(div_up(13, 4), 4);
  EXPECT_EQ(round_up(13, 4), 16);
}

TEST(Check, TheNearestNamesComeFirst) {
  const std::vector<std::string> known = {"train.lr", "train.steps", "run.steps", "run.seed"};
  EXPECT_EQ(nearest("train.step", known), (std::vector<std::string>{"train.steps"}));
  EXPECT_EQ(nearest("run.step", known, 2).front(), "run.steps");
  EXPECT_EQ(nearest("run.step", known, 2).size(), 2u);
  EXPECT_TRUE(nearest("x", {}).empty());
}

}  // namespace
}  // namespace tessera
