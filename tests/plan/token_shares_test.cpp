#include "tessera/plan/token_shares.h"

#include <gtest/gtest.h>

namespace tessera::plan {
namespace {

const char* kMeshes[] = {"sp=2", "cp=3", "cp=2,sp=2", "cp=3,sp=2,tp=2", "dp_shard=2,cp=2,tp=3"};

TEST(TokenShares, CoverAllTokensOnceAndDifferByOneAtMost) {
  for (const char* text : kMeshes)
    for (int64_t tokens : {12, 13, 97, 32760}) {
      const Mesh mesh = Mesh::parse(text);
      const int n = sequence_size(mesh);
      int64_t at = 0, least = tokens, most = 0;
      for (int i = 0; i < n; ++i) {
        const TokenRange share = token_share(tokens, i, n);
        EXPECT_EQ(share.begin, at) << text;
        at = share.end, least = std::min(least, share.count()), most = std::max(most, share.count());
      }
      EXPECT_EQ(at, tokens);
      EXPECT_LE(most - least, 1);
      EXPECT_EQ(token_share(tokens, n - 1, n).count(), most) << "the last is the largest: it is what is measured";
    }
}

TEST(TokenShares, OfTheRanksOfOnePlaceMakeTheShareOfThePlace) {
  const Mesh mesh = Mesh::parse("cp=3,sp=2,tp=2");
  for (int64_t tokens : {12, 29, 1001})
    for (int cp = 0; cp < 3; ++cp) {
      EXPECT_EQ(token_share(tokens, cp, 3).begin, token_share(tokens, 4 * cp, 12).begin);
      EXPECT_EQ(token_share(tokens, cp, 3).end, token_share(tokens, 4 * cp + 3, 12).end);
    }
  EXPECT_EQ(sequence_rank(mesh, 7), 7);
}

/// What all ranks send of the given rows.
int64_t sent(Rows rows, int64_t row_bytes, int64_t tokens, const Mesh& mesh) {
  const Traffic traffic{"sequence", {Axis::sp}, "all_to_all", rows, row_bytes};
  int64_t sum = 0;
  for (int rank = 0; rank < mesh.world(); ++rank) sum += traffic.bytes(tokens, mesh, rank, 1);
  return sum;
}

TEST(TokenShares, TrafficOfARingAndOfHeadsAddsUpToWhatTheoryHas) {
  const int64_t tokens = 1001;
  const Mesh ring = Mesh::parse("cp=4"), heads = Mesh::parse("sp=4"), both = Mesh::parse("cp=2,sp=2");
  EXPECT_EQ(sent(Rows::keys, 8, tokens, ring), 3 * tokens * 8) << "each block goes to three others";
  EXPECT_EQ(sent(Rows::gradients, 8, tokens, ring), 3 * tokens * 8) << "and its gradients come home over three hops";
  EXPECT_EQ(sent(Rows::own, 6, tokens, heads), tokens * 6) << "each token's row, but the part that stays";
  EXPECT_EQ(sent(Rows::others, 2, tokens, heads), 3 * tokens * 2);
  EXPECT_EQ(sent(Rows::keys, 8, tokens, both), 2 * tokens * 8) << "both ranks of sp pass their heads on";
  EXPECT_EQ(sent(Rows::keys, 8, tokens, Mesh::parse("dp_shard=2")), 0) << "a group of one sends nothing";
}

TEST(TokenShares, OfAPartOfTheTokensCountItsRowsAlone) {
  const Mesh mesh = Mesh::parse("cp=2,tp=2");
  Traffic text{"tensor", {Axis::tp}, "all_gather", Rows::share, 1};
  text.part = {0, 5};
  Traffic video = text;
  video.part = {5, -1};
  for (int rank = 0; rank < 4; ++rank)  // two samples of 16 tokens, a half for each place of cp
    EXPECT_EQ(text.bytes(32, mesh, rank, 2), rank % 2 == 0 ? 5 : 0) << "a sample's first 5 rest on its first rank";
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(text.bytes(32, mesh, rank, 2) + video.bytes(32, mesh, rank, 2), 8) << "together all that rest there";
}

TEST(TokenShares, AConvolutionReachesRowsOfItsNeighboursAndNoFarther) {
  Traffic traffic{"reach", {Axis::cp, Axis::sp}, "all_to_all", Rows::reach, 1};
  traffic.reach = 3;
  const Mesh mesh = Mesh::parse("cp=4");
  EXPECT_EQ(traffic.bytes(32, mesh, 0, 1), 3) << "the first has a neighbour behind it alone";
  EXPECT_EQ(traffic.bytes(32, mesh, 1, 1), 6);
  traffic.reach = 10;
  EXPECT_EQ(traffic.bytes(32, mesh, 0, 1), 8 + 2) << "all of its rows to the next, two to the one after that";
  traffic.rows = Rows::reached;
  int64_t sum = 0;
  for (int rank = 0; rank < 4; ++rank) sum += traffic.bytes(32, mesh, rank, 1);
  EXPECT_EQ(sum, 2 * (8 + 8 + 8) + 2 * (2 + 2)) << "gradients go back the same ways";
}

TEST(TokenShares, RowsAreWidenedWhereThereAreAny) {
  EXPECT_EQ(widened({4, 6}, 3).begin, 1);
  EXPECT_EQ(widened({4, 6}, 3).end, 9);
  EXPECT_EQ(widened({4, 4}, 3).count(), 0) << "around no rows there are none";
  Traffic traffic{"reach", {Axis::cp, Axis::sp}, "all_to_all", Rows::reach, 1};
  traffic.reach = 3, traffic.part = {0, 2};  // rows of the first rank's tokens alone
  const Mesh mesh = Mesh::parse("cp=4");
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(traffic.bytes(32, mesh, rank, 1), 0) << rank;
}

}  // namespace
}  // namespace tessera::plan
