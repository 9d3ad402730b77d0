#include "tessera/plan/compile/rules.h"

#include <gtest/gtest.h>

#include <sstream>

#include "plan/edit.h"
#include "plan/toy.h"

namespace tessera::plan {
namespace {

using toy::Edit;

std::vector<Line> two_ranks(int64_t steps = 1, int passes = 0) {
  const ModelSpec spec = toy::model(3);
  Plan plan = toy::plan(spec, "dp_shard=2", 3, 1, 1);
  plan.units[2].activations = Policy::recompute;
  return toy::run(spec, plan, steps, passes);
}

auto is(Op op, const std::string& unit, int rank = 0) {
  return [=](const Line& l) { return l.in.op == op && l.in.name == unit && l.rank == rank; };
}

/// Some violation names `line`, `rule` and all `parts`.
void expect(const std::vector<Violation>& found, int line, const std::string& rule,
            const std::vector<std::string>& parts) {
  for (const Violation& v : found) {
    bool all = v.line == line && v.rule == rule;
    for (const auto& part : parts) all = all && v.text.find(part) != std::string::npos;
    if (all) return;
  }
  ADD_FAILURE() << "expected line " << line << " [" << rule << "] " << ::testing::PrintToString(parts) << ", found:\n"
                << toy::text(found);
}

std::vector<Violation> check_text(const std::string& text) {
  std::istringstream file(text);
  return check(file);
}

TEST(Rules, ACompiledRunPassesAsAFile) { EXPECT_EQ(toy::text(check_text(toy::text(two_ranks(3, 2)))), ""); }

TEST(Rules, AMissingReleaseNamesTheGatherItBelongsTo) {
  Edit edit(two_ranks());
  const int gather = edit.find(is(Op::gather, "blocks.0"));
  edit.remove(edit.find(is(Op::release, "blocks.0")));
  expect(check(edit.done()), gather + 1, "residency", {"rank 0, step 1", "never released"});
}

TEST(Rules, AReleaseDeletedFromTheTextAloneIsRefused) {
  auto lines = two_ranks();
  const auto at = std::find_if(lines.begin(), lines.end(), is(Op::release, "blocks.0"));
  const int hole = static_cast<int>(at - lines.begin()) + 1;
  lines.erase(at);
  const auto found = check_text(toy::text(lines));
  expect(found, hole, "form", {"expected i", "a line is missing"});
  expect(found, Edit(lines).find(is(Op::gather, "blocks.0")) + 1, "residency", {"never released"});
}

TEST(Rules, AMissingReleaseOfASampleIsRefused) {
  Edit edit(two_ranks(1, 2));
  const int release =
      edit.find([](const Line& l) { return l.phase == "sample" && l.in.op == Op::release && l.in.name == "head"; });
  edit.remove(release);
  const auto found = check(edit.done());
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front().rule, "residency");
}

TEST(Rules, AGatherBehindItsForwardNamesBoth) {
  Edit edit(two_ranks());
  const int gather = edit.find(is(Op::gather, "blocks.1")), forward = edit.find(is(Op::forward, "blocks.1"));
  edit.move_behind(gather, forward);
  const auto found = check(edit.done());
  expect(found, forward, "residency", {"not gathered", "move line " + std::to_string(forward + 1)});
  expect(found, forward, "form", {"does not come before it"});
}

TEST(Rules, AGatherMovedInTheTextAloneIsRefused) {
  auto lines = two_ranks();
  const auto gather = std::find_if(lines.begin(), lines.end(), is(Op::gather, "blocks.1"));
  const auto forward = std::find_if(lines.begin(), lines.end(), is(Op::forward, "blocks.1"));
  const int line = static_cast<int>(forward - lines.begin());  // one up, since the gather has left
  std::rotate(gather, gather + 1, forward + 1);
  expect(check_text(toy::text(lines)), line, "residency", {"forward blocks.1", "not gathered"});
}

TEST(Rules, SwappedCollectivesOfOneRankAreNamedOnBothSides) {
  Edit edit(two_ranks());
  const int a = edit.find(is(Op::reduce, "blocks.1", 1)), b = edit.find(is(Op::reduce, "blocks.0", 1));
  edit.swap(a, b);
  const int peer = edit.find(is(Op::reduce, "blocks.1", 0)) + 1;
  expect(check(edit.done()), a + 1, "groups",
         {"rank 1 runs reduce_scatter (reduce blocks.0", "rank 0 runs", "line " + std::to_string(peer)});
}

TEST(Rules, OfThreeRanksTheOddOneIsNamed) {
  const ModelSpec spec = toy::model(3);
  Edit edit(toy::run(spec, toy::plan(spec, "dp_shard=3", 3, 1, 1)));
  const int first = edit.find(is(Op::reduce, "blocks.1", 0));
  edit.swap(first, edit.find(is(Op::reduce, "blocks.0", 0)));
  expect(check(edit.done()), first + 1, "groups", {"rank 0 runs", "rank 1 runs"});
}

TEST(Rules, TwoGroupsThatTwoRanksShareAreInterleavedAlike) {
  Edit edit(two_ranks());
  // a reduction and the gather behind it, which do not wait for each other
  int reduce = -1;
  for (int k : edit.all([](const Line& l) { return l.rank == 1 && l.in.op == Op::reduce; }))
    if (edit[k + 1].in.op == Op::gather) reduce = k;
  ASSERT_GE(reduce, 0);
  std::erase(edit.waits(reduce + 1), reduce);
  edit.swap(reduce, reduce + 1);
  expect(check(edit.done()), reduce + 1, "groups", {"gather:dp_shard[0,1] and ", "reduce:dp_shard[0,1]"});
}

TEST(Rules, AForwardThatDoesNotWaitForItsGatherIsRefused) {
  Edit edit(two_ranks());
  const int forward = edit.find(is(Op::forward, "blocks.1"));
  edit.waits(forward).clear();
  expect(check(edit.done()), forward + 1, "residency", {"does not wait for line", "gather blocks.1"});
}

TEST(Rules, AWaitThroughAnotherLaneIsEnough) {
  Edit edit(two_ranks());
  const int forward = edit.find(is(Op::forward, "stem")), next = edit.find(is(Op::gather, "blocks.0"));
  ASSERT_LT(next, forward);
  edit.waits(forward) = {next};  // the gather lane runs in order, so the stem's gather is done too
  EXPECT_EQ(toy::text(check(edit.done())), "");
}

TEST(Rules, BytesInFlightMustNotBeTakenAgain) {
  Edit edit(two_ranks());
  const int head = edit.find(is(Op::reduce, "head")), backward = edit.find(is(Op::backward, "blocks.1"));
  edit[backward].in.grad = edit[edit.find(is(Op::reduce, "blocks.1"))].in.grad = edit[head].in.grad;
  std::erase_if(edit.waits(backward), [&](int wait) { return edit[wait].in.op == Op::reduce; });
  expect(check(edit.done()), backward + 1, "arena",
         {"gradient slot", "may be written before line " + std::to_string(head + 1), "wait for that line"});
}

TEST(Rules, ARecomputeThatOneRankForgetsIsRefused) {
  Edit edit(two_ranks());
  const int recompute = edit.find(is(Op::recompute, "blocks.1", 1));
  edit.remove(recompute);
  expect(check(edit.done()), recompute + 1, "order", {"backward blocks.1", "recompute"});
}

TEST(Rules, AnUpdateBeforeTheNormIsRefused) {
  Edit edit(two_ranks());
  const int norm = edit.find(is(Op::norm, ""));
  edit.swap(norm, norm + 1);
  expect(check(edit.done()), norm + 1, "order", {"update stem", "no norm before it"});
}

TEST(Rules, BackwardsComeInTheReverseOrderOfForwards) {
  Edit edit(two_ranks());
  const int a = edit.find(is(Op::forward, "blocks.0", 1)), b = edit.find(is(Op::forward, "blocks.1", 1));
  edit.swap(a, b);
  bool named = false;
  for (const auto& v : check(edit.done()))
    named = named || v.text.find("passes through blocks.0 first") != std::string::npos;
  EXPECT_TRUE(named);
}

TEST(Rules, WhatIsFetchedIsUsedWhereAndAsItIs) {
  const ModelSpec spec = toy::model(3);
  Plan plan = toy::plan(spec, "dp_shard=2", 4, 1, 1);
  for (UnitPlan& unit : plan.units) unit.parameters = unit.states = Tier::nvme;
  const std::vector<Line> lines = toy::run(spec, plan);
  ASSERT_EQ(toy::text(check(lines)), "");
  const auto hop = [](Op op, Part part, Lane lane) {
    return [=](const Line& l) { return l.in.op == op && l.in.part == part && l.in.lane == lane; };
  };
  Edit shifted(lines);
  const int gather = shifted.find([](const Line& l) { return l.in.op == Op::gather && l.in.scratch >= 0; });
  const int fetch = shifted.find(hop(Op::fetch, Part::parameters, Lane::h2d));
  shifted[gather].in.scratch += 64;
  expect(check(shifted.done()), gather + 1, "residency",
         {"uses the parameters fetched for stem", "line " + std::to_string(fetch + 1), "use that place"});
  Edit longer(lines);
  const int read = longer.find(hop(Op::fetch, Part::states, Lane::disk)),
            copy = longer.find(hop(Op::fetch, Part::states, Lane::h2d), read);
  longer[copy].in.bytes += 64;
  expect(check(longer.done()), copy + 1, "bytes", {"moves", "line " + std::to_string(read + 1)});
}

TEST(Rules, ARankMissingFromTheFileIsNamed) {
  auto lines = two_ranks();
  std::erase_if(lines, [](const Line& l) { return l.rank == 1; });
  expect(check_text(toy::text(lines)), 1, "groups",
         {"rank 1 is a member of gather:dp_shard[0,1] and has no line in the file"});
}

TEST(Rules, UnsortedRanksAndStepsAreRefused) {
  auto lines = two_ranks();
  std::rotate(lines.begin(), std::find_if(lines.begin(), lines.end(), [](const Line& l) { return l.rank == 1; }),
              lines.end());
  const auto found = check_text(toy::text(lines));
  ASSERT_EQ(found.size(), 1u) << toy::text(found);
  EXPECT_NE(found[0].text.find("sort the file"), std::string::npos);
}

TEST(Rules, UnreadableLinesAreNamedAndNothingElseIsBlamed) {
  std::string text = toy::text(two_ranks());
  text.replace(text.find("\"op\":\"forward\""), 14, "\"op\":\"foward\"");
  const auto found = check_text(text + "\n{\"rank\":");
  ASSERT_EQ(found.size(), 2u) << toy::text(found);
  EXPECT_NE(found[0].text.find("did you mean forward?"), std::string::npos);
  EXPECT_NE(found[1].text.find("not JSON"), std::string::npos);
  EXPECT_NE(check_text("\n").at(0).text.find("no instruction"), std::string::npos);
}

TEST(Rules, AnExecutedLineThatEndsBeforeItBeginsIsRefused) {
  auto lines = two_ranks();
  for (auto& line : lines) line.executed = true, line.t0 = 1, line.t1 = 2;
  EXPECT_EQ(toy::text(check_text(toy::text(lines))), "");
  lines[4].t1 = 0.5;
  expect(check_text(toy::text(lines)), 5, "form", {"ends (t1) before"});
}

TEST(Rules, ARingOfPairsThatNoTwoRanksCanSeeIsFoundByProgress) {
  // Each two ranks share one group only, so nothing is interleaved; but 0 waits for 2, 1 for 0 and 2 for 1.
  const auto line = [](int rank, int i, const std::string& ranks) {
    Line l;
    l.number = rank * 2 + i + 1, l.rank = rank, l.step = 1, l.i = i, l.phase = "checkpoint";
    l.in.op = Op::flush, l.in.lane = Lane::disk, l.in.group = "control:dp_shard[" + ranks + "]";
    l.in.comm = {{"dp_shard", "barrier", 0}};
    return l;
  };
  const auto found = check({line(0, 0, "0,2"), line(0, 1, "0,1"), line(1, 0, "0,1"), line(1, 1, "1,2"),
                            line(2, 0, "1,2"), line(2, 1, "0,2")});
  ASSERT_EQ(found.size(), 1u) << toy::text(found);
  expect(found, 1, "progress", {"stuck", "rank 1 at line 3", "rank 2 at line 5"});
}

TEST(Rules, NoTextCanCrashTheCheck) {
  const std::string whole = toy::text(two_ranks(1, 1));
  toy::Random random(5);
  for (int n = 0; n < 300; ++n) {
    std::string text = whole;
    for (int edits = toy::draw(random, 1, 4); edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 2)
        text[at] = static_cast<char>('0' + random() % 10);  // most often another number: still a schedule
      else if (random() % 2)
        text[at] = static_cast<char>(random());
      else
        text.erase(at, random() % 300);
    }
    const auto found = check_text(text);
    for (const auto& v : found) EXPECT_GE(v.line, 1);
    EXPECT_LE(found.size(), 100u);
  }
}

TEST(Rules, AnErrorReadsAsASentence) {
  Edit edit(two_ranks());
  edit.remove(edit.find(is(Op::release, "stem")));
  const auto found = check(edit.done());
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(to_string(found.front())
                .rfind("line 1: [residency] rank 0, step 1, i 0 (gather stem, micro-batch 0): is never released", 0),
            0u)
      << toy::text(found);
}

TEST(Rules, AnUpdateJustInTimeComesAheadOfTheNextGatherAndNothingIsSampledOrSavedBeforeIt) {
  const ModelSpec spec = toy::model(2);
  Plan plan = toy::plan(spec, "dp_shard=2", 4, 1, 1);
  plan.update = Update::just_in_time;
  for (UnitPlan& unit : plan.units) unit.states = Tier::host;
  const std::vector<Line> lines = toy::run(spec, plan, 3, 1);
  EXPECT_TRUE(check(lines).empty()) << to_string(check(lines).front());
  int updates = 0, ahead = 0;
  bool normed = false;
  for (const Line& line : lines) {
    if (line.rank != 0) break;
    if (line.i == 0) normed = false;
    normed = normed || line.in.op == Op::norm;
    updates += line.in.op == Op::update, ahead += line.in.op == Op::update && !normed;
  }
  EXPECT_EQ(updates, 3 * 4) << "each unit, each step";
  EXPECT_EQ(ahead, 2 * 4) << "those of the last step run before it is sampled";
  for (const Op op : {Op::gather, Op::forward}) {  // moved behind its unit's use, it is too late
    Edit edit(lines);
    const int late = edit.find([](const Line& l) { return l.step == 2 && l.in.op == Op::update; });
    const Line update = edit[late];
    const int use = edit.find([&](const Line& l) { return l.in.op == op && l.in.name == update.in.name; }, late);
    edit.move_behind(late, use);
    EXPECT_FALSE(check(edit.done()).empty());
  }
}

TEST(Rules, AnUpdateInBackwardFollowsItsOwnGradientAndNothingUsesItsUnitAfterwards) {
  const ModelSpec spec = toy::model(2);
  Plan plan = toy::plan(spec, "dp_replicate=2,dp_shard=2", 4, 1, 1);
  plan.update = Update::in_backward;
  for (UnitPlan& unit : plan.units) unit.states = Tier::host;
  const std::vector<Line> lines = toy::run(spec, plan, 2, 1);
  EXPECT_TRUE(check(lines).empty()) << to_string(check(lines).front());
  const auto is = [](Op op) { return [op](const Line& l) { return l.in.op == op && l.in.name == "blocks.1"; }; };
  const auto refused = [&](const char* why, const auto& change) {
    Edit edit(lines);
    change(edit, edit.find(is(Op::update)));
    const auto found = check(edit.done());
    ASSERT_FALSE(found.empty()) << why;
    EXPECT_NE(toy::text(found).find(why), std::string::npos) << toy::text(found);
  };
  refused("that of the unit before its update", [&](Edit& edit, int) { edit.remove(edit.find(is(Op::norm))); });
  refused("put all updates behind it", [&](Edit& edit, int update) {
    edit.move_behind(update, edit.find([](const Line& l) { return l.in.op == Op::norm && l.in.name.empty(); }));
  });
  refused("has used the gradient",
          [&](Edit& edit, int update) { edit.move_behind(edit.find(is(Op::reduce_outer)), update); });
  refused("gathers parameters before the update", [&](Edit& edit, int update) { edit.remove(update); });
}

TEST(Rules, AnUpdateOnTheHostWaitsForItsGradientThereAndTheNextFetchForIt) {
  const ModelSpec spec = toy::model(2);
  for (const Update when : {Update::end, Update::just_in_time, Update::in_backward}) {
    Plan plan = toy::plan(spec, "dp_shard=2", 4, 1, 1);
    plan.update = when;
    for (UnitPlan& unit : plan.units) unit.parameters = unit.gradients = unit.states = unit.update_on = Tier::host;
    const std::vector<Line> lines = toy::run(spec, plan, 3, 1);
    EXPECT_TRUE(check(lines).empty()) << name(when) << ": " << to_string(check(lines).front());
    for (const Line& line : lines) EXPECT_EQ(line.in.op == Op::update, line.in.lane == Lane::host);
    Edit edit(lines);
    const int update = edit.find([](const Line& l) { return l.in.op == Op::update && l.step == 2; });
    if (when == Update::just_in_time) {  // who brings the parameters follows
      const std::string unit = edit[update].in.name;
      for (int k = update; k < static_cast<int>(edit.size()); ++k)
        if (edit[k].in.name == unit && (edit[k].in.op == Op::gather || edit[k].in.op == Op::fetch))
          std::erase(edit.waits(k), update);
    } else {
      edit.waits(update).clear();
    }
    EXPECT_FALSE(check(edit.done()).empty()) << name(when);
  }
}

}  // namespace
}  // namespace tessera::plan
