#include "tessera/base/mesh.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera {
namespace {

TEST(Mesh, ReadsWhatItWrites) {
  for (const char* text : {"dp_shard=2", "pp=2,dp_replicate=3,dp_shard=4,cp=5,sp=6,tp=7", "single"})
    EXPECT_EQ(Mesh::parse(text).to_string(), text);
  EXPECT_EQ(Mesh::parse("tp=2,pp=3"), Mesh::parse("pp=3,tp=2"));
  EXPECT_EQ(Mesh::parse("").world(), 1);
}

TEST(Mesh, RefusesUnknownAxesAndSizesNamingWhatIsMeant) {
  const auto refusal = [](const char* text) -> std::string {
    try {
      Mesh::parse(text);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      return std::string(error.what()) + " " + error.hint();
    }
    return "accepted";
  };
  EXPECT_NE(refusal("dp_shart=2").find("did you mean dp_shard?"), std::string::npos);
  for (const char* text : {"dp_shard=0", "dp_shard=-1", "dp_shard=2x", "dp_shard", "dp_shard=99999999999"})
    EXPECT_NE(refusal(text).find("expected AXIS=N"), std::string::npos) << text;
  EXPECT_NE(refusal("tp=2,tp=4").find("both given"), std::string::npos);
}

TEST(Mesh, RanksAreNumberedFromTheInnermostAxis) {
  const Mesh mesh = Mesh::parse("dp_replicate=2,dp_shard=3,tp=2");
  ASSERT_EQ(mesh.world(), 12);
  for (int rank = 0; rank < 12; ++rank) {
    EXPECT_EQ(mesh.coordinate(rank, Axis::tp), rank % 2);
    EXPECT_EQ(mesh.coordinate(rank, Axis::dp_shard), rank / 2 % 3);
    EXPECT_EQ(mesh.coordinate(rank, Axis::dp_replicate), rank / 6);
    EXPECT_EQ(mesh.dp_rank(rank), rank / 2);
    EXPECT_EQ(mesh.shard_rank(rank), rank / 2 % 3);
  }
}

TEST(Mesh, AGroupIsTheRanksThatDifferOnItsAxesAlone) {
  const Mesh mesh = Mesh::parse("dp_replicate=2,dp_shard=3,tp=2");
  EXPECT_EQ(mesh.group(3, {Axis::dp_shard}), (std::vector<int>{1, 3, 5}));
  EXPECT_EQ(mesh.group(3, {Axis::dp_replicate, Axis::tp}), (std::vector<int>{2, 3, 8, 9}));
  EXPECT_EQ(mesh.group(3, {Axis::cp}), (std::vector<int>{3}));
}

}  // namespace
}  // namespace tessera
