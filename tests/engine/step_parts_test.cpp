// The parts of a run of a schedule, each alone: its numbers, its times and its lanes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "engine/toy_engine.h"
#include "tessera/engine/step_numbers.h"
#include "tessera/engine/step_times.h"
#include "tessera/plan/schedule_json.h"

namespace tessera::engine {
namespace {

using toy::Toy, toy::ToyRank;

/// An objective that has numbers of its own.
struct Counted final : net::Objective {
  net::Batch batch(int) override { return {}; }
  Tensor gradient(const Tensor& prediction, const net::Batch&, int) override { return prediction; }
  Tensor numbers() override { return at::tensor({1.5, 2.5}, at::kDouble); }
  void read(std::span<const double> numbers) override { found.assign(numbers.begin(), numbers.end()); }
  std::vector<double> found;
};

TEST(StepNumbers, CountEachGradientOnceWhetherItWasAddedOrIsThere) {
  const Toy toy;
  ToyRank rank(toy, toy.plan());
  Store& store = rank.store();
  double expected = 0;
  for (int u = 0; u < store.units(); ++u) {
    store.grad(u).fill_(u + 1);
    expected += static_cast<double>(store.grad(u).numel()) * (u + 1) * (u + 1);
  }
  StepNumbers numbers(store);
  for (int step = 0; step < 2; ++step) {
    Counted objective;
    numbers.begin(/*counts_fp8=*/false);
    if (step == 1) {
      numbers.add(1, store.grad(1));
      store.grad(1).fill_(100);  // gone before the norm
    }
    EXPECT_DOUBLE_EQ(numbers.read(objective), expected) << "step " << step;
    EXPECT_EQ(objective.found, (std::vector<double>{1.5, 2.5}));
  }
}

TEST(StepNumbers, ErrorsOfQuantisedActivationsAreThoseSinceTheyWereTaken) {
  const Toy toy;
  ToyRank rank(toy, toy.plan());
  for (int u = 0; u < rank.store().units(); ++u) rank.store().grad(u).zero_();
  StepNumbers numbers(rank.store());
  numbers.begin(/*counts_fp8=*/false);
  CompressionError& error = numbers.compression_error();
  error.squares[0][0].fill_(4), error.squares[0][1].fill_(16);
  error.unread = 1;
  Counted objective;
  EXPECT_EQ(numbers.read(objective), 0);
  const CompressionError taken = numbers.take_compression_error();
  EXPECT_EQ(taken.count, 1);
  EXPECT_DOUBLE_EQ(taken.most, 0.5);
  EXPECT_EQ(numbers.take_compression_error().count, 0);
}

TEST(StepNumbers, WhatProductsIn8BitsLoseIsOfTheStepsThatCountIt) {
  const Toy toy;
  ToyRank rank(toy, toy.plan());
  for (int u = 0; u < rank.store().units(); ++u) rank.store().grad(u).zero_();
  StepNumbers numbers(rank.store());
  Counted objective;
  for (int step = 0; step < 2; ++step) {
    numbers.begin(/*counts_fp8=*/true);
    for (int i = 0; i < ops::kFp8Counts; ++i) numbers.fp8_counts(1)[i] += i + 1;
    numbers.read(objective);
    EXPECT_EQ(objective.found, (std::vector<double>{1.5, 2.5})) << "the objective's numbers stay its own";
    EXPECT_EQ(numbers.fp8_counts(1), nullptr) << "what follows the norm belongs to no step";
    const std::vector<double> all = numbers.take_fp8();
    ASSERT_EQ(all.size(), static_cast<size_t>(rank.store().units() * ops::kFp8Counts));
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(all[i], i / ops::kFp8Counts == 1 ? static_cast<double>(i % ops::kFp8Counts + 1) : 0.0) << i;
  }
  numbers.begin(/*counts_fp8=*/false);
  EXPECT_EQ(numbers.fp8_counts(1), nullptr);
  numbers.read(objective);
  EXPECT_TRUE(numbers.take_fp8().empty());
}

/// Two forwards, a gather that ends while compute waits, and an update that is no work of samples.
plan::Program program() {
  plan::Schedule schedule;
  schedule.phase = "train";
  const auto add = [&](plan::Op op, plan::Lane lane, plan::Waits wait) {
    plan::Instruction in;
    in.op = op, in.lane = lane, in.name = "a", in.wait = std::move(wait);
    schedule.list.push_back(std::move(in));
  };
  add(plan::Op::gather, plan::Lane::gather, {});
  add(plan::Op::forward, plan::Lane::compute, {0});
  add(plan::Op::forward, plan::Lane::compute, {});
  add(plan::Op::update, plan::Lane::compute, {});
  return plan::Program({}, std::move(schedule));
}
const InstructionTimes kTimes = {{0, 2}, {2, 5}, {5, 6}, {6, 10}};

TEST(StepTimes, AddUpUntilTheyAreTaken) {
  StepTimes times(0, /*far=*/false, /*by_device=*/false, {true}, "");
  times.note(program(), 1, kTimes, /*in_collectives=*/0.25);
  times.note(program(), 2, kTimes, 0);
  EXPECT_DOUBLE_EQ(times.take_work(), 8) << "two forwards in each of two steps, no update";
  EXPECT_EQ(times.take_work(), 0);
  const auto busy = times.take_busy();
  EXPECT_DOUBLE_EQ(busy.at("gather"), 4);
  EXPECT_DOUBLE_EQ(busy.at("compute"), 16);
  EXPECT_TRUE(times.take_busy().empty());
  EXPECT_DOUBLE_EQ(times.take_exposed().comm, 4.25);
  EXPECT_EQ(times.take_exposed().comm, 0);
}

TEST(StepTimes, LinesAreThoseOfTheLastScheduleAndOnlyWhereTheyAreKept) {
  StepTimes times(3, false, false, {true}, "");
  times.note(program(), 1, kTimes, 0);
  EXPECT_TRUE(times.last_lines().empty());
  EXPECT_EQ(times.attention(), nullptr);
  times.keep_lines(true);
  EXPECT_NE(times.attention(), nullptr);
  times.note(program(), 2, kTimes, 0);
  times.note(program(), 3, kTimes, 0);
  ASSERT_EQ(times.last_lines().size(), kTimes.size());
  const plan::Line line = plan::parse_line(times.last_lines()[1]);
  EXPECT_EQ(line.t0, 2);
  EXPECT_EQ(line.t1, 5);
}

TEST(StepTimes, ATraceReplacesALinkInsteadOfWritingThroughIt) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "step_times";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto other = folder / "other", trace = folder / "trace.jsonl";
  std::ofstream(other) << "kept";
  std::filesystem::create_symlink(other, trace);
  {
    StepTimes times(0, false, false, {true}, trace.string());
    times.note(program(), 1, kTimes, 0);
  }
  EXPECT_FALSE(std::filesystem::is_symlink(trace));
  EXPECT_EQ(std::filesystem::file_size(other), 4u);
  std::ifstream in(trace);
  int lines = 0;
  for (std::string line; std::getline(in, line);) ++lines;
  EXPECT_EQ(lines, 4);
}

TEST(Lanes, AFailureOfOneLaneEndsTheStepWithItsErrorAndTheLanesAreIdleBehindIt) {
  const Toy toy;
  ToyRank rank(toy, toy.plan({.parameters = plan::Tier::host}));
  const std::thread::id compute = std::this_thread::get_id();
  int others = 0;
  rank.engine().lanes().on_instruction([&](int64_t, int, const plan::Instruction& in, bool ends) {
    EXPECT_EQ(std::this_thread::get_id() == compute, in.lane == plan::Lane::compute) << "each lane has its thread";
    if (in.lane == plan::Lane::h2d && !ends && ++others == 2) throw std::runtime_error("the copy failed");
  });
  try {
    rank.run(1);
    FAIL() << "the step went on";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the copy failed");
  }
  rank.engine().lanes().drain();
  EXPECT_EQ(others, 2);
}

}  // namespace
}  // namespace tessera::engine
