#include "tessera/plan/schedule_json.h"

#include <gtest/gtest.h>

#include "plan/toy.h"
#include "tessera/base/check.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::plan {
namespace {

const char kLine[] =
    R"({"rank":1,"step":3,"i":7,"phase":"train","op":"reduce","unit":"blocks.0","micro":0,"lane":"reduce",)"
    R"("bytes":2048,)"
    R"("group":"reduce:dp_shard[0,1]","grad":4096,"scratch":0,"wait":[5,6],)"
    R"("comm":[{"axis":"dp_shard","kind":"reduce_scatter","bytes":1024}]})";

std::string line_refusal(const std::string& text) {
  try {
    parse_line(text);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::input);
    return error.what();
  }
  return "accepted";
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(ScheduleJson, FieldsComeInOneOrder) {
  Instruction in;
  in.op = Op::reduce, in.lane = Lane::reduce, in.unit = 1, in.name = "blocks.0", in.micro = 0, in.bytes = 2048;
  in.group = "reduce:dp_shard[0,1]", in.grad = 4096, in.scratch = 0, in.wait = {1, 2};
  in.comm = {{"dp_shard", "reduce_scatter", 1024}};
  EXPECT_EQ(to_json(in, "train", 1, 3, 3, 4), kLine);
  const std::string timed = to_json(in, "train", 1, 3, 3, 4, 0.5, 1.25);
  const std::string start(kLine, sizeof kLine - 2);
  EXPECT_EQ(timed, start + R"(,"t0":0.500000,"t1":1.250000})");
}

TEST(ScheduleJson, AbsentUnitAndMicroBatchAreNull) {
  Instruction in;
  in.op = Op::norm;
  EXPECT_EQ(to_json(in, "train", 0, 1, 0, 0), R"({"rank":0,"step":1,"i":0,"phase":"train","op":"norm","unit":null,)"
                                              R"("micro":null,"lane":"compute","bytes":0,"wait":[],"comm":[]})");
}

TEST(ScheduleJson, ALineReadsBackAsItWas) {
  const Line line = parse_line(kLine);
  EXPECT_EQ(line.rank, 1);
  EXPECT_EQ(line.step, 3);
  EXPECT_EQ(line.i, 7);
  EXPECT_EQ(line.in.op, Op::reduce);
  EXPECT_EQ(line.in.name, "blocks.0");
  EXPECT_EQ(line.in.slot, -1);
  EXPECT_EQ(line.in.wait, (Waits{5, 6}));
  EXPECT_FALSE(line.executed);
  EXPECT_EQ(to_json(line), kLine);
}

TEST(ScheduleJson, CompiledRunsRoundTripByteForByte) {
  toy::Random random(3);
  for (int n = 0; n < 20; ++n) {
    const ModelSpec spec = toy::random_model(random);
    for (Line line : toy::run(spec, toy::random_plan(random, spec, 2), 2, 2)) {
      const std::string text = to_json(line);
      Line read = parse_line(text);
      EXPECT_EQ(to_json(read), text);
      line.in.unit = -1;  // a line carries the unit's name
      EXPECT_EQ(read.in, line.in);
      line.executed = true, line.t0 = 0.25, line.t1 = 0.5;
      read = parse_line(to_json(line));
      EXPECT_TRUE(read.executed);
      EXPECT_EQ(to_json(read), to_json(line));
    }
  }
}

TEST(ScheduleJson, SchedulesOfAStepNumberOn) {
  const ModelSpec spec = toy::model(1);
  const auto lines = toy::run(spec, toy::plan(spec, "dp_shard=2", 2, 1, 1), 1, 2);
  std::vector<std::string> phases;
  for (size_t k = 0; k < lines.size(); ++k) {
    const bool first = k == 0 || lines[k].rank != lines[k - 1].rank;
    EXPECT_EQ(lines[k].i, first ? 0 : lines[k - 1].i + 1);
    for (int wait : lines[k].in.wait) EXPECT_LT(wait, lines[k].i);
    if (lines[k].rank == 0 && (phases.empty() || phases.back() != lines[k].phase)) phases.push_back(lines[k].phase);
  }
  EXPECT_EQ(phases, (std::vector<std::string>{"train", "checkpoint", "sample"}));
}

TEST(ScheduleJson, ErrorsNameTheField) {
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(line_refusal(text).find(part), std::string::npos) << line_refusal(text);
  };
  expect("{\"rank\":0", "not JSON");
  expect("[1]", "one JSON object");
  expect(with(kLine, "\"lane\"", "\"lain\""), "\"lane\" is missing");
  expect(with(kLine, "\"op\":\"reduce\"", "\"op\":\"reduse\""), "did you mean reduce?");
  expect(with(kLine, "\"bytes\":2048", "\"bytes\":-1"), "\"bytes\": found -1");
  expect(with(kLine, "\"bytes\":2048", "\"bytes\":1e300"), "\"bytes\"");
  expect(with(kLine, "\"step\":3", "\"step\":18446744073709551615"), "\"step\"");
  expect(with(kLine, "[5,6]", "[5,\"6\"]"), "\"wait\"");
  expect(with(kLine, "[5,6]", "5"), "\"wait\": expected a list");
  expect(with(kLine, "\"kind\"", "\"kid\""), "\"kind\" is missing");
  expect(with(kLine, "\"phase\":\"train\"", "\"phase\":1"), "\"phase\": expected a string");
}

TEST(ScheduleHash, SeesEveryFieldAndGroupsHashTheirCollectivesOnly) {
  const ModelSpec spec = toy::model(2);
  const Plan plan = toy::plan(spec, "dp_shard=2", 3, 1, 1);
  const Schedule zero = compile_train(spec, plan, 0), one = compile_train(spec, plan, 1);
  EXPECT_NE(schedule_hash(zero), schedule_hash(one)) << "rank 0 has an idle micro-batch";
  EXPECT_EQ(group_hashes(zero), group_hashes(one));
  EXPECT_EQ(group_hashes(zero).size(), 3u);  // gather, reduce, control
  Schedule changed = zero;
  changed.list.back().wait.push_back(0);
  EXPECT_NE(schedule_hash(changed), schedule_hash(zero));
}

TEST(ScheduleNames, AreThoseOfTheContract) {
  EXPECT_EQ(name(Op::gather), "gather");
  EXPECT_EQ(name(Op::reduce_outer), "reduce_outer");
  EXPECT_EQ(name(Op::finish), "finish");
  EXPECT_EQ(name(Lane::disk), "disk");
}

}  // namespace
}  // namespace tessera::plan
