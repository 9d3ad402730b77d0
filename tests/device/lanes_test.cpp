// Lanes on a device: their streams are in order under every plan, and each wait that the plan names is one that is missed.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "engine/toy_engine.h"
#include "simulated.h"
#include "tessera/device/staging.h"
#include "tessera/engine/slice.h"
#include "tessera/engine/store/host_memory.h"
#include "tessera/engine/store/lane.h"
#include "tessera/engine/store/meter.h"
#include "tessera/ops/convolution.h"
#include "tessera/ops/ranges.h"
#include "tessera/plan/compile/races.h"
#include "timeline.h"

namespace tessera::testing {
namespace {

using engine::toy::Toy, engine::toy::ToyRank, engine::toy::ToyStep;
using plan::Policy, plan::Tier;

/// The process computes on the device from its first tensor on.
class OnDevice final : public ::testing::Environment {
  void SetUp() override {
    setenv("CUDNN_CONV_WSCAP_DBG", "1", 1);  // MiB, read once
    engine::Meter::install();
    device::use(simulated_device(), 0);
    engine::Meter::use_device(simulated_device());
    EXPECT_THROW(at::empty({8}, at::TensorOptions().device(device::here())), InternalError) << "no memory is reserved";
    engine::Meter::reserve(int64_t{256} << 20);
    timeline().compare_uses(true);
  }
};
[[maybe_unused]] const auto* const on_device = ::testing::AddGlobalTestEnvironment(new OnDevice);

struct Case {
  const char* name;
  plan::UnitPlan each;
  int prefetch = 1;
  DType gradients = DType::f32;
  plan::Update update = plan::Update::end;

  plan::Plan plan(const Toy& toy) const {
    plan::Plan made = toy.plan(each);
    made.prefetch = prefetch, made.grad = gradients, made.update = update;
    return made;
  }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const plan::UnitPlan kAllOnHost{
    .reduce_once = true, .parameters = Tier::host, .gradients = Tier::host, .states = Tier::host};

const Case kCases[] = {
    {"keep", {}},
    {"recompute", {.activations = Policy::recompute, .sites = {{"boundary", Policy::offload}}}},
    {"offload", {.activations = Policy::offload}},
    {"offload_two_ahead", {.activations = Policy::offload}, 2},
    {"offload_to_disk", {.activations = Policy::offload, .offload_to = Tier::nvme}},
    {"all_on_the_host", kAllOnHost},
    {"all_on_the_host_with_bf16_gradients", kAllOnHost, 2, DType::bf16},
    {"states_on_disk", {.states = Tier::nvme}},
    {"updates_on_the_host",
     {.parameters = Tier::host, .gradients = Tier::host, .states = Tier::host, .update_on = Tier::host}},
    {"updates_in_the_backward", {.states = Tier::host}, 1, DType::f32, plan::Update::in_backward},
};

class Lanes : public ::testing::TestWithParam<Case> {
 protected:
  void TearDown() override { timeline().forget_waits("", ""); }
  const Toy toy{4};
};
INSTANTIATE_TEST_SUITE_P(, Lanes, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Lanes, AreInOrderAndChangeNoBit) {
  ToyRank kept(toy, toy.plan()), rank(toy, GetParam().plan(toy), /*poison=*/true);
  const bool rounded = GetParam().gradients != DType::f32;
  for (int64_t step = 1; step <= 3; ++step) {
    const ToyStep expected = kept.step(step), found = rank.step(step);
    if (rounded && step > 1) continue;
    for (size_t m = 0; m < expected.outputs.size(); ++m)
      EXPECT_TRUE(at::equal(found.outputs[m], expected.outputs[m])) << "step " << step << ", micro-batch " << m;
    if (rounded) continue;
    EXPECT_EQ(found.norm, expected.norm);
    for (const auto& [name, weight] : expected.weights) EXPECT_TRUE(at::equal(found.weights.at(name), weight)) << name;
  }
}

/// At `norm`, for the squares of the gradients, the loss and what else the step tells. Lanes of the host wait for what they
/// move or compute.
TEST_P(Lanes, LetTheHostWaitOnceAStep) {
  const plan::Plan plan = GetParam().plan(toy);
  ToyRank rank(toy, plan);
  rank.run(1), rank.run(2);
  int on_host = 0;
  for (const plan::Instruction& in : rank.schedule().list)
    on_host += in.lane == plan::Lane::disk || in.lane == plan::Lane::host;
  (void)timeline().take_counts();
  rank.run(3);
  const HostCounts counts = timeline().take_counts();
  if (on_host > 0) {
    EXPECT_GT(counts.waits, 1);
    return;
  }
  EXPECT_EQ(counts.waits, 1);
  if (GetParam().name != std::string("keep")) return;
  int64_t numbers = 0;
  for (int u = 0; u < rank.store().units(); ++u) numbers += static_cast<int64_t>(rank.store().layout(u).buffers.size());
  EXPECT_EQ(counts.bytes_back, numbers * static_cast<int64_t>(sizeof(double))) << "nothing else goes to the host";
}

/// A thread that makes samples computes on the stream of the compute lane, out of the same memory, and at any time: also
/// between an instruction and a fetch that waits for it. The fetch then may get what the thread has just freed.
TEST_P(Lanes, FetchesComeAfterWorkOfOtherThreadsInTheMemoryThatTheyGet) {
  ToyRank rank(toy, GetParam().plan(toy));
  rank.engine().lanes().on_instruction([&](int64_t, int, const plan::Instruction& in, bool ends) {
    if (!ends || in.lane != plan::Lane::compute) return;
    std::thread([] {
      device::enter_thread();
      for (int64_t bytes = 256; bytes <= 8192; bytes += 256)  // the same request gets the same address
        at::empty({bytes}, at::TensorOptions(at::kByte).device(device::here())).zero_();
    }).join();
  });
  EXPECT_NO_THROW(rank.run(1));
  rank.engine().lanes().on_instruction({});
}

/// An instruction as the executor labels it.
std::string label(const plan::Instruction& in) {
  return std::string(name(in.op)) + (in.name.empty() ? "" : " " + in.name);
}

/// Work of lanes is done late, by their own threads.
class LateLanes : public Lanes {
 protected:
  void SetUp() override { timeline().work_late(true); }
  void TearDown() override {
    timeline().slow_down("", 0);
    timeline().await_all();
    timeline().work_late(false);
  }
};
INSTANTIATE_TEST_SUITE_P(, LateLanes, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

struct Timed {
  plan::Instruction in;
  double began, ended;
};
std::vector<Timed> times_of(ToyRank& rank) {
  std::vector<Timed> found;
  for (const std::string& line : rank.engine().times().last_lines()) {
    const auto number = [&](const char* key) { return std::stod(line.substr(line.find(key) + std::strlen(key))); };
    found.push_back({rank.schedule().list[found.size()], number("\"t0\":"), number("\"t1\":")});
  }
  return found;
}

/// Both clocks, of the device and of lanes that work on the host, tell one order: an instruction begins behind what it waits
/// for. By the host's clock alone what copies does no time at all.
TEST_P(LateLanes, TimesAreThoseOfTheDevice) {
  constexpr double kSlow = 0.02, kNear = 2e-3;  // seconds
  ToyRank rank(toy, GetParam().plan(toy));
  rank.engine().times().read();
  rank.run(1);
  rank.engine().times().keep_lines(true);
  (void)rank.engine().times().take_busy();
  timeline().slow_down("stash", kSlow);
  rank.run(2);
  const std::vector<Timed> times = times_of(rank);
  ASSERT_EQ(times.size(), rank.schedule().list.size());
  double stashes = 0;
  for (const Timed& one : times) {
    EXPECT_LE(one.began, one.ended);
    for (const int earlier : one.in.wait)
      EXPECT_GE(one.began, times[static_cast<size_t>(earlier)].ended - kNear)
          << label(one.in) << " behind " << label(times[static_cast<size_t>(earlier)].in);
    if (one.in.op != plan::Op::stash || one.in.lane != plan::Lane::d2h) continue;
    EXPECT_GE(one.ended - one.began, kSlow) << label(one.in);
    stashes += one.ended - one.began;
  }
  const auto busy = rank.engine().times().take_busy();
  EXPECT_NEAR(busy.contains("d2h") ? busy.at("d2h") : 0, stashes, 1e-2 + 0.1 * stashes);
  EXPECT_GT(rank.engine().times().take_work(), 0);
}

/// LibTorch's convolutions would round their operands to 10 bits.
TEST(Fp32, IsFp32OnADevice) {
  EXPECT_FALSE(at::globalContext().allowTF32CuDNN());
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
}

/// cuBLAS may divide the sum of a product among thread blocks, but adds the parts in fp32.
TEST(Fp32, IsWhatProductsOf16BitOperandsAreAddedUpIn) {
  constexpr auto kFp32 = at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK;
  EXPECT_EQ(at::globalContext().allowFP16ReductionCuBLAS(), kFp32);
  EXPECT_EQ(at::globalContext().allowBF16ReductionCuBLAS(), kFp32);
}

/// cuDNN catches LibTorch's error and tries a convolution with less workspace; whoever does not is told of the budget.
TEST(Budget, OfADeviceIsExceededByTheErrorThatLibrariesCatch) {
  const auto bytes = [](int64_t count) {
    return at::empty({count}, at::TensorOptions(at::kByte).device(device::here()));
  };
  engine::Meter::set_budget(engine::Meter::live() + 4096);
  bool tried = false;
  try {
    bytes(1 << 20);
  } catch (const c10::OutOfMemoryError& error) {
    tried = true;
    EXPECT_NO_THROW(bytes(2048)) << "less";
    const std::optional<UserError> told = engine::out_of_memory(error);
    ASSERT_TRUE(told);
    EXPECT_EQ(told->code(), Exit::memory);
    for (const char* words :
         {"a tensor of 1.00 MiB would exceed plan.budget", "held now: parameters", "plan.recompute"})
      EXPECT_NE(std::string(told->what()).find(words), std::string::npos) << told->what();
  }
  engine::Meter::set_budget(0);
  EXPECT_TRUE(tried);
  try {
    bytes(int64_t{1} << 40);
  } catch (const c10::Error& error) {
    const std::optional<UserError> told = engine::out_of_memory(error);
    ASSERT_TRUE(told);
    EXPECT_NE(std::string(told->what()).find("has no room in one piece"), std::string::npos) << told->what();
  }
}

/// Priorities of the streams of lanes, by what a lane was given last. On one rank gradients that rest in 16 bits are stashed
/// by the lane of reductions, and what is offloaded by that of copies.
std::map<std::string, std::set<device::Priority>> priorities_of(const Toy& toy, const plan::Plan& plan) {
  const std::map<std::string, device::Priority> before = timeline().priorities();
  ToyRank rank(toy, plan);
  rank.run(1);
  std::map<std::string, std::set<device::Priority>> by;
  for (const auto& [label, priority] : timeline().priorities())
    if (!before.contains(label)) by[label.substr(0, label.find(' '))].insert(priority);
  return by;
}

/// cuDNN offers ways of a convolution with more workspace than a plan counts, and LibTorch takes the first that it gets.
TEST(Budget, OfAConvolutionsWorkspaceIsWhatAPlanCounts) {
  const auto drawn = [](at::IntArrayRef shape) {
    return at::randn(shape, at::detail::createCPUGenerator(3), at::kFloat);
  };
  const at::Tensor x = drawn({1, 2, 4, 40, 40}), w = drawn({3, 2, 3, 3, 3}), b = drawn({3});
  const at::Tensor expected = at::conv3d(x, w, b, 1, 1);
  const at::Tensor far_x = x.to(device::here()), far_w = w.to(device::here()), far_b = b.to(device::here());
  const auto workspace = [&](const char* offered, const auto& convolve) {
    setenv("TESSERA_SIMULATED_WORKSPACES", offered, 1);
    engine::Meter::reset_peak();
    const int64_t before = engine::Meter::live();
    EXPECT_TRUE(at::allclose(convolve().cpu(), expected)) << offered;
    return engine::Meter::peak() - before;
  };
  const auto ours = [&] { return ops::convolution(far_x, far_w, far_b, {1, 1, 1}, {1, 1, 1}); };
  const auto plain = [&] { return at::conv3d(far_x, far_w, far_b, 1, 1); };
  EXPECT_GE(workspace("3000000,1500000,200000", plain), 3'000'000);
  EXPECT_LT(workspace("3000000,1500000,200000", ours), 1 << 20) << "CUDNN_CONV_WSCAP_DBG is 1 MiB";
  EXPECT_GE(workspace("3000000,1500000", ours), 3'000'000) << "none of them has so little: it is computed all the same";
  setenv("TESSERA_SIMULATED_WORKSPACES", "1073741824", 1);
  EXPECT_THROW(ours(), c10::Error) << "there is no memory for any";
  unsetenv("TESSERA_SIMULATED_WORKSPACES");
  const at::Tensor large = at::zeros({1, 64, 2, 64, 64}).to(device::here()),
                   one = at::ones({64, 64, 1, 1, 1}).to(device::here());
  EXPECT_EQ(ops::convolution(large, one, {}, {1, 1, 1}, {0, 0, 0}).nbytes(), 2u << 20) << "the result is no workspace";
}

/// Of NCCL's memory some is lost where it fails, and then the driver has not enough: who reads the error must know.
TEST(Budget, WithoutOneBlockForItNamesNcclWhereItWasAskedFirst) {
  setenv("TESSERA_SIMULATED_NCCL_HAS_NO_MEMORY", "ncclMemAlloc: unhandled cuda error", 1);
  const auto said = [](bool lent) -> std::string {
    try {
      engine::Meter::reserve(int64_t{1} << 40, lent);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(said(true).find("NCCL, which was asked first, gave none (ncclMemAlloc: unhandled cuda error)"),
            std::string::npos)
      << said(true);
  EXPECT_NE(said(true).find("TESSERA_NCCL=0"), std::string::npos) << said(true);
  EXPECT_NE(said(false).find("the device does not give"), std::string::npos) << said(false);
  EXPECT_EQ(said(false).find("NCCL"), std::string::npos) << "it was not asked: " << said(false);
  unsetenv("TESSERA_SIMULATED_NCCL_HAS_NO_MEMORY");
}

TEST(LanePriorities, GathersGoBeforeReductionsAndBothBeforeCopies) {
  const Toy toy{4};
  plan::Plan rounded = toy.plan();
  rounded.grad = DType::bf16;
  auto by = priorities_of(toy, rounded);
  EXPECT_EQ(by["gather"], std::set{device::Priority::highest});
  EXPECT_EQ(by["stash"], std::set{device::Priority::high});
  by = priorities_of(toy, toy.plan({.activations = Policy::offload}));
  EXPECT_EQ(by["fetch"], std::set{device::Priority::normal});
}

/// The host has given the stash and goes on; the device has not done it.
TEST(LaneProgress, NamesWhatALaneHasFinishedAndWhatItIsAtOnTheDevice) {
  const Toy toy{4};
  ToyRank rank(toy, toy.plan({.activations = Policy::offload}));
  rank.run(1);
  timeline().work_late(true);
  timeline().slow_down("stash mid1", 0.5);
  std::optional<engine::LaneProgress> seen;
  std::atomic<int> begun = 0;
  rank.engine().lanes().on_instruction([&](int64_t, int index, const plan::Instruction& in, bool ends) {
    if (!ends && in.lane == plan::Lane::d2h)  // its work comes after this
      for (const engine::LaneProgress& lane : rank.engine().lanes().progress()->look())
        if (lane.lane == in.lane && lane.next && lane.next->index == index) {
          EXPECT_FALSE(lane.given) << label(in);
          ++begun;
        }
    if (ends || in.op != plan::Op::forward || in.name != "mid2" || in.micro != 0) return;
    const auto look = [&] {
      for (const engine::LaneProgress& lane : rank.engine().lanes().progress()->look())
        if (lane.lane == plan::Lane::d2h) seen = lane;
      return seen && seen->next && label(seen->next->instruction()) == "stash mid1" && seen->given;
    };
    for (int i = 0; i < 10'000 && !look(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  rank.run(2);
  rank.engine().lanes().on_instruction({});
  ASSERT_TRUE(seen && seen->next && seen->finished);
  EXPECT_EQ(label(seen->next->instruction()), "stash mid1");
  EXPECT_TRUE(seen->given);
  EXPECT_GT(begun, 0);
  EXPECT_EQ(label(seen->finished->instruction()), "stash mid");
  EXPECT_EQ(seen->next->step, 2);
  timeline().slow_down("", 0);
  timeline().await_all();
  for (const engine::LaneProgress& lane : rank.engine().lanes().progress()->look()) {
    EXPECT_FALSE(lane.next) << label(lane.next->instruction());
    EXPECT_TRUE(lane.finished);
  }
  timeline().work_late(false);
}

/// Squares of rounded activations stay on the device until `norm`.
TEST(LossyLanes, LetTheHostWaitOnceAStepAndTellTheErrorOfAll) {
  const Toy toy{4};
  for (const DType form : {DType::i8, DType::bf16}) {
    ToyRank rank(toy, toy.plan({.activations = {plan::Graph::rebuild, form}}));
    rank.run(1);
    (void)rank.engine().interpreter().numbers().take_compression_error();
    (void)timeline().take_counts();
    rank.run(2);
    EXPECT_EQ(timeline().take_counts().waits, 1);
    const engine::CompressionError error = rank.engine().interpreter().numbers().take_compression_error();
    EXPECT_GT(error.count, 0);
    EXPECT_GT(error.sum, 0);
    EXPECT_LT(error.most, 1e-2);
    EXPECT_EQ(error.unread, 0);
    rank.run(3);
    EXPECT_EQ(rank.engine().interpreter().numbers().take_compression_error().count, error.count)
        << "those of a step of its own";
  }
}

/// Whether an instruction of the kind uses less than the plan says, so that nothing is missed without the wait.
bool uses_less(const std::pair<std::string, std::string>& kind, const Case& c) {
  const auto& [waiter, earlier] = kind;
  const bool own_stash = waiter.starts_with("stash ") && earlier == "forward " + waiter.substr(6);
  // a unit that offloads nothing but its input stashes what the forward before its own has made
  if (own_stash && (c.each.recomputes() || waiter == "stash out")) return true;
  // nobody asks the first unit for the gradient of its input, and that of its weights needs no weights
  if (waiter == "backward in" && earlier == "gather in") return true;
  // a share of the norm writes the gradient where that is rounded
  return waiter.starts_with("update ") && earlier.starts_with("norm ") && c.gradients == DType::f32;
}

/// Runs two steps in which the waits of one kind are forgotten. What is said of it; empty: nothing.
std::string without(const Toy& toy, const plan::Plan& plan, const std::pair<std::string, std::string>& kind) {
  ToyRank rank(toy, plan, /*poison=*/true);
  timeline().forget_waits(kind.first, kind.second);
  std::string said;
  try {
    rank.run(1), rank.run(2);
  } catch (const c10::Error& error) {
    said = error.what_without_backtrace();
  }
  timeline().forget_waits("", "");
  return said;
}

/// Forgets the waits of each kind (an instruction of a unit for another) in turn. Where the plan says that instructions
/// then use the same memory in no order, the device must have seen it.
TEST_P(Lanes, EachWaitThatIsForgottenIsFound) {
  const plan::Plan plan = GetParam().plan(toy);
  const plan::Schedule whole = plan::compile_train(toy.spec(), plan, 0);
  std::set<std::pair<std::string, std::string>> kinds;
  for (const plan::Instruction& in : whole.list)
    for (const int w : in.wait)
      if (whole.list[w].lane != in.lane) kinds.emplace(label(in), label(whole.list[w]));
  int found = 0, taken = 0;
  for (const auto& kind : kinds) {
    plan::Schedule schedule = whole;
    for (plan::Instruction& in : schedule.list)
      in.wait.erase_if([&](int w) {
        return label(in) == kind.first && label(schedule.list[w]) == kind.second && schedule.list[w].lane != in.lane;
      });
    const std::vector<plan::Race> races = plan::find_races(toy.spec(), plan, schedule, 0);
    if (races.empty()) continue;
    if (uses_less(kind, GetParam())) continue;
    const std::string said = without(toy, plan, kind);
    found += !said.empty();
    // What is taken need not be what was freed just before, be it named by who takes it or by the drop that frees it.
    // Parameters that are used in place are there before their gather. What the norm decides is the host's, which waits.
    const auto drops = [&](int i) { return schedule.list[static_cast<size_t>(i)].op == plan::Op::drop; };
    const bool surely = std::ranges::any_of(races, [&](const plan::Race& race) {
      const bool in_place =
          race.memory.starts_with("the parameters gathered for ") && race.memory.find(", ") == std::string::npos;
      return race.memory != "memory taken at its place" && race.memory != "what the norm decides" && !in_place &&
             !drops(race.first) && !drops(race.second);
    });
    taken += !surely && !said.empty();
    EXPECT_TRUE(!surely || !said.empty())
        << kind.first << " without " << kind.second << ": " << to_string(races[0], schedule);
  }
  const Case& c = GetParam();
  const bool moves = std::string(c.name) != "keep";
  EXPECT_EQ(found > 0, moves) << found << " of " << kinds.size() << " kinds of waits";
  EXPECT_TRUE(c.each.activations != Policy::offload || taken > 0) << "memory that is taken too early";
  RecordProperty("found", found);
}

TEST(LaneThreads, WhoseStreamADeviceDoesNotMakeAreAnErrorOfWhoMakesThem) {
  timeline().fail(true);
  EXPECT_THROW(engine::LaneThread{}, c10::Error);
  timeline().fail(false);
  engine::LaneThread lane;
  std::promise<bool> has;
  lane.push([&has] { has.set_value(device::has_streams()); });
  EXPECT_TRUE(has.get_future().get());
}

/// Batches go up through a ring of page-locked memory, whose bytes the host writes over once the device has read them, and, on
/// a stream beside the thread's, through one of the device, whose bytes it writes over once that thread's stream has.
TEST(UploadRing, IsWrittenOverWhereTheDeviceHasReadAndAForgottenWaitIsFound) {
  for (const auto& [beside, forgets] : {std::pair(false, false), {false, true}, {true, false}, {true, true}}) {
    std::string found;
    device::Mark begun, ended;  // the memory is others', before and afterwards
    begun.record();
    std::thread([&, beside = beside, forgets = forgets] {
      device::enter_thread();
      device::own_stream();
      begun.order();
      device::label("upload");
      engine::Uploads uploads;
      uploads.reserve(beside ? 64 << 10 : 8 << 10);
      if (beside) uploads.reserve_beside(8 << 10);
      if (forgets) timeline().forget_waits("upload", "upload");
      timeline().work_late(!forgets);
      timeline().slow_down(forgets ? "" : "upload", 2e-3);
      try {
        std::vector<at::Tensor> there;
        for (int i = 0; i < 12; ++i) there.push_back(uploads.bring(at::full({1000}, i), device::here()));
        device::used()->wait();
        for (int i = 0; i < 12; ++i)
          EXPECT_TRUE(at::equal(there[static_cast<size_t>(i)].cpu(), at::full({1000}, i))) << i;
      } catch (const c10::Error& error) {
        found = error.what_without_backtrace();
      }
      timeline().forget_waits("", "");
      timeline().slow_down("", 0);
      device::used()->wait();
      timeline().work_late(false);
      ended.record();
    }).join();
    ended.order();
    EXPECT_EQ(found.find("and neither waits for the other") != std::string::npos, forgets) << found;
    EXPECT_EQ(found.empty(), !forgets) << found;
  }
}

/// The next batch is on the device while the thread's stream still computes: its page-locked bytes are free again, and so the
/// host writes a third one there without a wait for what is computed. What the stream is given then reads the right one.
TEST(UploadRing, BringsABatchWhileTheThreadsStreamIsBusy) {
  for (const bool beside : {false, true}) {
    device::Mark begun, ended;
    begun.record();
    std::thread([&, beside] {
      device::enter_thread();
      device::own_stream();
      begun.order();
      device::label("upload");
      engine::Uploads uploads;
      uploads.reserve(8 << 10);
      if (beside) uploads.reserve_beside(64 << 10);
      const at::Tensor x = at::zeros({1000}, at::TensorOptions(at::kFloat).device(device::here()));
      uploads.bring(x.cpu(), device::here());  // the first one follows what the stream had been given
      timeline().work_late(true);
      timeline().slow_down("compute", 0.5);
      device::label("compute");
      device::used()->fill(x.mutable_data_ptr(), 0, 4000);
      device::Mark computed;
      computed.record();
      device::label("upload");
      std::vector<at::Tensor> there;
      for (int i = 0; i < 6; ++i) there.push_back(uploads.bring(at::full({1000}, i), device::here()));
      EXPECT_EQ(computed.passed(), !beside) << "the host has written over bytes that the device had read";
      device::used()->wait();
      for (int i = 0; i < 6; ++i) EXPECT_TRUE(at::equal(there[static_cast<size_t>(i)].cpu(), at::full({1000}, i))) << i;
      timeline().slow_down("", 0);
      timeline().work_late(false);
      ended.record();
    }).join();
    ended.order();
  }
}

/// What a system refuses to page-lock is staged; words that the device writes are the driver's own memory then.
TEST(HostTier, IsThereWhereTheSystemPageLocksNone) {
  const int64_t before = pinned_bytes();
  setenv("TESSERA_SIMULATED_REFUSES", "pins", 1);
  constexpr int64_t kBytes = 3'000'000;
  engine::HostMemory host;
  host.reserve(kBytes);
  EXPECT_EQ(pinned_bytes() - before, device::kStagingBytes);
  EXPECT_EQ(device::staging_bytes(), device::kStagingBytes);
  const at::Tensor bytes = at::arange(kBytes, at::kByte),
                   there = at::empty({kBytes}, bytes.options().device(device::here()));
  std::memcpy(host.at(0), bytes.const_data_ptr(), kBytes);
  ops::enqueue_copy(there.mutable_data_ptr(), host.at(0), kBytes, true);
  std::memset(host.at(0), 0, kBytes);
  ops::enqueue_copy(host.at(0), there.const_data_ptr(), kBytes, true);
  EXPECT_EQ(std::memcmp(host.at(0), bytes.const_data_ptr(), kBytes), 0) << "it is there at once";

  engine::HostMemory word(engine::HostMemory::Refused::drivers_own);
  word.reserve(sizeof(uint32_t));
  auto* const value = reinterpret_cast<uint32_t*>(word.at(0));
  EXPECT_EQ(*value, 0);
  EXPECT_TRUE(device::used()->write_word(value, 7));
  EXPECT_EQ(*value, 7);
  unsetenv("TESSERA_SIMULATED_REFUSES");
}

/// Drivers refuse to page-lock half a TiB in one call, and CUDA a copy that two registrations share.
TEST(HostTier, IsPageLockedInPiecesThatNoCopyStraddles) {
  setenv("TESSERA_SIMULATED_PIN", "1048576", 1);
  constexpr int64_t kBytes = 3'500'000;
  const int64_t before = pinned_bytes();
  {
    engine::HostMemory host;
    host.reserve(kBytes);
    EXPECT_TRUE(is_pinned(host.at(0), kBytes));
    const at::Tensor bytes = at::arange(kBytes, at::kInt).to(at::kByte),
                     there = at::empty({kBytes}, bytes.options().device(device::here()));
    std::memcpy(host.at(0), bytes.const_data_ptr(), kBytes);
    for (const int64_t first : {int64_t{0}, int64_t{1048575}, int64_t{1048576}, int64_t{3'499'999}}) {
      const int64_t n = kBytes - first;
      there.zero_();
      ops::enqueue_copy(there.mutable_data_ptr(), host.at(first), n, true);
      device::used()->wait();
      EXPECT_TRUE(at::equal(there.narrow(0, 0, n).cpu(), bytes.narrow(0, first, n))) << first;
      std::memset(host.at(first), 0, static_cast<size_t>(n));
      ops::copy_bytes(host.at(first), there.const_data_ptr(), n, true);
      EXPECT_EQ(std::memcmp(host.at(0), bytes.const_data_ptr(), kBytes), 0) << first;
    }
  }
  EXPECT_EQ(pinned_bytes(), before);
  setenv("TESSERA_SIMULATED_REFUSES", "pins", 1);
  std::vector<char> memory(4096);
  EXPECT_NE(device::pin(memory.data(), 4096), "");
  EXPECT_EQ(pinned_bytes(), before) << "of what is refused nothing stays page-locked";
  unsetenv("TESSERA_SIMULATED_REFUSES"), unsetenv("TESSERA_SIMULATED_PIN");
}

/// The device takes copies from memory whose end other processes share as from any other: one range is page-locked.
TEST(HostTier, IsPageLockedTogetherWithWhatItShares) {
  constexpr int64_t kOwn = 1536, kShared = 70'000;
  const auto file = comm::SharedFile::create("test", kShared);
  ASSERT_TRUE(file);
  const int64_t before = pinned_bytes();
  {
    engine::HostMemory host;
    host.reserve(kOwn, *file);
    EXPECT_TRUE(is_pinned(host.at(0), kOwn + kShared));
    const at::Tensor bytes = at::arange(kOwn + kShared, at::kInt).to(at::kByte),
                     there = at::empty({kOwn + kShared}, bytes.options().device(device::here()));
    std::memcpy(host.at(0), bytes.const_data_ptr(), kOwn + kShared);
    host.allow_writes(false);
    ops::enqueue_copy(there.mutable_data_ptr(), host.at(0), kOwn + kShared, true);
    device::used()->wait();
    EXPECT_TRUE(at::equal(there.cpu(), bytes)) << "read-only memory is copied from";
  }
  EXPECT_EQ(pinned_bytes(), before);
}

}  // namespace
}  // namespace tessera::testing
