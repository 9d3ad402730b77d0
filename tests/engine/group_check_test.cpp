// Ranks compare the collectives of each group before they use it. Here the ranks are threads.
#include "tessera/engine/group_check.h"

#include <gtest/gtest.h>

#include "engine/ranks.h"
#include "tessera/base/check.h"

namespace tessera::engine {
namespace {

using plan::Instruction, plan::Op, plan::Schedule;

Instruction collective(Op op, const std::string& unit, const std::string& kind, int64_t bytes,
                       const std::string& group) {
  Instruction in;
  in.op = op, in.name = unit, in.group = group;
  in.comm = {{"dp_shard", kind, bytes, group}};
  return in;
}

/// Gathers of three units, one reduction, the exchange at the end.
Schedule schedule(const std::string& ranks) {
  Schedule s;
  s.phase = "train";
  for (const char* unit : {"stem", "blocks.0", "head"})
    s.list.push_back(collective(Op::gather, unit, "all_gather", 4096, "gather:dp_shard" + ranks));
  s.list.push_back(collective(Op::reduce, "head", "reduce_scatter", 4096, "reduce:dp_shard" + ranks));
  s.list.push_back(collective(Op::norm, "", "all_gather", 192, "control:dp_shard" + ranks));
  return s;
}

/// What each rank says to its schedule; empty: it found nothing.
std::vector<std::string> check(const std::vector<Schedule>& schedules) {
  Mesh mesh;
  mesh[Axis::dp_shard] = static_cast<int>(schedules.size());
  std::vector<std::string> said(schedules.size());
  on_ranks(mesh.world(), [&](const comm::Rendezvous& place) {
    const auto rank = static_cast<size_t>(place.rank);
    try {
      comm::Comm comm(place, mesh);
      check_groups(comm, {&schedules[rank]});
      comm.barrier();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      said[rank] = error.what();
    }
  });
  return said;
}

class GroupCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_gloo()) GTEST_SKIP() << "ranks need a build with Gloo";
  }
};

TEST_F(GroupCheck, AgreesWhereAllRanksRunTheSame) {
  EXPECT_EQ(check({schedule("[0,1]"), schedule("[0,1]")}), (std::vector<std::string>{"", ""}));
}

TEST_F(GroupCheck, LetsTheTwoEndsOfAMessageDiffer) {
  std::vector<Schedule> ends(2);
  ends[0].list = {collective(Op::send, "blocks.1", "send", 640, "next:pp[0,1]")};
  ends[1].list = {collective(Op::recv, "blocks.1", "recv", 0, "next:pp[0,1]")};
  EXPECT_EQ(check(ends), (std::vector<std::string>{"", ""}));
}

/// What a rank would do differently, and what all of them say to it.
struct Change {
  const char* what;
  std::function<void(Schedule&)> alter;
  const char* words;
};

TEST_F(GroupCheck, NamesRanksGroupAndTheFirstDifferentCollectiveOfAnAlteredSchedule) {
  const Change changes[] = {
      {"two gathers in another order", [](Schedule& s) { std::swap(s.list[1], s.list[2]); },
       "the ranks of group gather:dp_shard[0,1] would not run the same collectives: number 2 is 'train: gather "
       "blocks.0, all_gather of 4096 bytes' on rank 0 and 'train: gather head, all_gather of 4096 bytes' on rank 1"},
      {"another size", [](Schedule& s) { s.list[3].comm[0].bytes = 8192; },
       "group reduce:dp_shard[0,1] would not run the same collectives: number 1 is 'train: reduce head, "
       "reduce_scatter of 4096 bytes' on rank 0 and 'train: reduce head, reduce_scatter of 8192 bytes' on rank 1"},
      {"one gather less", [](Schedule& s) { s.list.erase(s.list.begin() + 2); },
       "number 3 is 'train: gather head, all_gather of 4096 bytes' on rank 0 and nothing more on rank 1"},
      {"one more", [](Schedule& s) { s.list.push_back(s.list[3]); },
       "number 2 is nothing more on rank 0 and 'train: reduce head, reduce_scatter of 4096 bytes' on rank 1"},
      {"a group that it does not use", [](Schedule& s) { s.list.pop_back(); },
       "group control:dp_shard[0,1] would not run the same collectives: number 1 is 'train: norm, all_gather of 192 "
       "bytes' on rank 0 and nothing more on rank 1"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.what);
    std::vector<Schedule> all(2, schedule("[0,1]"));
    change.alter(all[1]);
    const auto said = check(all);
    for (const std::string& text : said) {
      EXPECT_NE(text.find(change.words), std::string::npos) << text;
      EXPECT_EQ(text, said[0]) << "every rank says the same";
    }
  }
}

}  // namespace
}  // namespace tessera::engine
