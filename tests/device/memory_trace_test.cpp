// Where a GPU's allocations lie: whole training steps of models at their full sizes, through the executor and the allocator
// that run there, on the simulated device with sizes alone. What they take is what the plan for sm_90 says, in one block with
// hardly a gap, and each step gets the addresses of the one before.
#include <gtest/gtest.h>

#include <cstdlib>

#include "matrix.h"
#include "memory.h"
#include "simulated.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/store/meter.h"
#include "tessera/job/job.h"
#include "tessera/job/optimiser.h"
#include "tessera/ops/session.h"
#include "tessera/plan/simulate/libraries.h"
#include "tessera/planning/plan_request.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::testing {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

using Flags = std::vector<std::pair<std::string, std::string>>;

struct Piece {
  const void* data;
  size_t bytes;
  bool operator==(const Piece&) const = default;
};

/// Notes what the device's allocator gives.
class Notes final : public c10::Allocator {
 public:
  explicit Notes(c10::Allocator* inner) : inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr piece = inner_->allocate(bytes);
    pieces.push_back({piece.get(), bytes});
    return piece;
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_->copy_data(to, from, bytes); }

  std::vector<Piece> pieces;

 private:
  c10::Allocator* const inner_;
};

Notes*& notes() {
  static Notes* once = nullptr;  // outlives every tensor
  return once;
}

class OnSizes final : public ::testing::Environment {
  void SetUp() override {
    setenv("TESSERA_SIMULATED_SIZES", "1", 1);
    setenv("TESSERA_SIMULATED_BYTES", std::to_string(160 * kGiB).c_str(), 1);
    engine::Meter::install();
    device::use(simulated_device(), 0);
    engine::Meter::use_device(simulated_device());
    engine::Meter::reserve(150 * kGiB);
    notes() = new Notes(engine::Meter::allocator(at::kPrivateUse1));
    c10::SetAllocator(at::kPrivateUse1, notes(), /*priority=*/2);
  }
};
[[maybe_unused]] const auto* const on_sizes = ::testing::AddGlobalTestEnvironment(new OnSizes);

/// Batches of the model's shapes; predictions are compared with nothing.
class Sizes final : public net::Objective {
 public:
  Sizes(const net::Denoiser& model, const std::array<int64_t, 4>& latent, int64_t text, int64_t samples) {
    std::vector<net::Sample> all;
    for (int64_t s = 0; s < samples; ++s) {
      net::Sample& sample = all.emplace_back(model.blank(latent));
      sample.x = at::zeros(latent);
      sample.context = at::zeros({text, model.context_dim()});
      sample.t = 500;
    }
    batch_ = model.pack(all);
  }
  net::Batch batch(int) override { return batch_; }
  at::Tensor gradient(const at::Tensor& prediction, const net::Batch&, int) override {
    return at::empty_like(prediction);
  }

 private:
  net::Batch batch_;
};

/// 84 frames of 480 x 832 are 32,760 tokens behind the wavelet. A process plans for the device that it computes on, which here
/// is no chip: this request is for that of the profile, as where nothing is computed.
planning::PlanRequest request_of(const recipe::Recipe& recipe, const job::Job& job) {
  planning::PlanRequest request =
      planning::plan_request(recipe, job, job::shapes_of(recipe, *job.model, *job.codec), recipe.mesh, /*prompts=*/0);
  request.machine.profile.target = plan::find_profile(recipe.plan.profile).target;
  return request;
}

Flags flags(const Flags& more) {
  Flags all = {{"data.vae", "haar"},          {"data.text_encoder", "umt5-xxl"}, {"data.frames", "84"},
               {"data.size", "480,832"},      {"train.global_batch", "2"},       {"train.micro_batch", "1"},
               {"plan.compute_dtype", "bf16"}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Bytes that the device's driver has given.
int64_t memory_taken() { return memory().taken(0); }

struct Trace {
  int64_t peak = 0, reserved = 0;
  std::vector<int64_t> during;  // peak bytes during each instruction of the compute lane; of others 0
  std::vector<Piece> pieces;
};

/// Three steps of the plan.
std::vector<Trace> run(const recipe::Recipe& recipe, const job::Job& job, const plan::ModelSpec& spec,
                       const plan::Plan& plan) {
  const plan::Programs programs(plan, plan::compile_all(spec, plan, 0, 1), /*samples=*/false);
  comm::Comm comm({}, plan.mesh);
  engine::Engine engine(job.model->units(), spec, plan, comm, 0);
  engine.use(programs);
  engine.optimise(job::optimiser_of(recipe, plan.states));
  const auto shape = job::shapes_of(recipe, *job.model, *job.codec).latent;
  Sizes objective(*job.model, shape, job.context_length, plan.micro_batch);
  const net::StepControl control{1, 1e-3, 1};
  std::vector<Trace> traces;
  engine.lanes().on_instruction([&](int64_t, int index, const plan::Instruction& in, bool ends) {
    if (in.lane != plan::Lane::compute) return;
    Trace& t = traces.back();
    t.peak = std::max(t.peak, engine::Meter::peak());
    if (ends) t.during[static_cast<size_t>(index)] = engine::Meter::peak();
    engine::Meter::reset_peak();
  });
  for (int64_t step = 1; step <= 3; ++step) {
    engine::Meter::reset_peak();
    notes()->pieces.clear();
    const plan::ProgramPtr program = programs.step(/*pending=*/step > 1);
    traces.emplace_back().during.resize(program->schedule.list.size());
    engine::Pass pass;
    pass.program = program, pass.step = step;
    if (plan.update == plan::Update::in_backward) pass.ahead = control;
    engine::StepRun half = engine.run(pass, objective, {});
    engine.finish(std::move(half), control);
    Trace& t = traces.back();
    t.peak = std::max(t.peak, engine::Meter::peak());
    t.reserved = engine::Meter::reserved(), t.pieces = notes()->pieces;
  }
  return traces;
}

/// `planned`: the plan's memory, with workspaces of libraries, which here there are none of.
void check(const std::vector<Trace>& traces, const plan::MemoryCurve& planned, int64_t workspaces,
           const std::string& which) {
  const int64_t peak = planned.peak - workspaces;
  for (size_t step = 1; step < traces.size(); ++step) {
    const Trace& t = traces[step];
    EXPECT_GE(static_cast<double>(t.peak), 0.97 * static_cast<double>(t.reserved))
        << which << ": " << format_bytes(t.peak) << " of " << format_bytes(t.reserved);
    EXPECT_LE(t.peak, peak) << which << ", step " << step + 1;
    EXPECT_GE(static_cast<double>(t.peak), 0.998 * static_cast<double>(peak)) << which << ", step " << step + 1;
    ASSERT_EQ(t.during.size(), planned.live.size()) << which;
    int64_t most = 0;
    for (size_t i = 0; i < t.during.size(); ++i) {
      if (t.during[i] == 0) continue;
      const int64_t live = planned.live[i] - workspaces;
      ASSERT_LE(t.during[i], live) << which << ", step " << step + 1 << ", instruction " << i;
      most = std::max(most, live - t.during[i]);
    }
    EXPECT_LE(static_cast<double>(most), 0.002 * static_cast<double>(peak)) << which << ", step " << step + 1;
  }
  EXPECT_FALSE(traces[1].pieces.empty()) << which;
  EXPECT_TRUE(traces[1].pieces == traces[2].pieces) << which << ": step 3 has other addresses than step 2";
}

struct Case {
  const char* name;
  Flags more;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class FullSizes : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(, FullSizes,
                         ::testing::Values(Case{"full_1_3b_on_an_h200",
                                                {{"model.preset", "wan2.1-t2v-1.3b"}, {"plan.profile", "1xh200"}}},
                                           Case{"full_1_3b_in_24_gib",
                                                {{"model.preset", "wan2.1-t2v-1.3b"},
                                                 {"plan.profile", "1xh100"},
                                                 {"plan.budget", "24GiB"},
                                                 {"plan.host_budget", "0"},
                                                 {"plan.masters", "split"},
                                                 {"plan.moments", "int8"}}},
                                           Case{"blocks_of_the_14b",
                                                {{"model.preset", "wan2.1-t2v-14b"},
                                                 {"model.config.num_layers", "8"},
                                                 {"plan.profile", "1xh200"}}},
                                           Case{"lora_of_the_14b_on_an_h100",
                                                {{"model.preset", "wan2.1-t2v-14b"},
                                                 {"train.mode", "lora"},
                                                 {"plan.profile", "1xh100"},
                                                 {"plan.host_budget", "0"}}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(FullSizes, TakeWhatThePlanSaysWithHardlyAGapAtTheSameAddresses) {
  const recipe::Recipe recipe = recipe::load_recipe("", flags(GetParam().more));
  const job::Job job = job::make_job(recipe);
  const planning::Planned planned = planning::make_plan_as_is(request_of(recipe, job));
  ASSERT_TRUE(planned.choice.fits) << planned.plan().summary();
  const ops::TargetScope scope(target("sm_90", "test"));
  EXPECT_GT(plan::bytes_of(planned.workspaces()), 0) << "the plan is for a chip";
  check(run(recipe, job, planned.spec, planned.plan()), planned.memory(0), plan::bytes_of(planned.workspaces()),
        planned.plan().summary());
}

/// One of two experts rests on the host: the bytes by way of which they swap are in the plan, and no others are taken.
TEST(FullSizePlans, CountTheMemoryByWayOfWhichExpertsSwap) {
  const recipe::Recipe recipe = recipe::load_recipe("", flags({{"model.preset", "wan2.1-t2v-1.3b"},
                                                               {"model.config.num_layers", "1"},
                                                               {"model.config.ffn_dim", "1536"},
                                                               {"experts.router", "gate"},
                                                               {"experts.count", "2"},
                                                               {"plan.idle", "host"},
                                                               {"plan.profile", "1xh200"}}));
  const job::Job job = job::make_job(recipe);
  const planning::Planned planned = planning::make_plan_as_is(request_of(recipe, job));
  const plan::MemoryCurve memory = planned.memory(0);
  const ops::TargetScope scope(target("sm_90", "test"));
  const int64_t before = engine::Meter::live(engine::Part::slots), taken = memory_taken();
  const plan::Programs programs(planned.plan(), plan::compile_all(planned.spec, planned.plan(), 0, 1), false);
  comm::Comm comm({}, planned.plan().mesh);
  engine::Engine engine(job.model->units(), planned.spec, planned.plan(), comm, 0);
  engine.use(programs);
  EXPECT_EQ(engine::Meter::live(engine::Part::slots) - before, memory.by_part.slots);
  EXPECT_EQ(memory.by_part.slots - programs.arena, plan::kSwapPiece);
  const int64_t on_their_way =
      plan::bytes_on_their_way(planned.spec.inputs + planned.spec.targets, planned.plan().accumulation());
  EXPECT_LT(std::abs(memory_taken() - taken - on_their_way), int64_t{1} << 20)
      << "beside the block: batches on their way and numbers of a step alone";
}

/// What each unit keeps, what is gathered ahead and when updates come, at random.
TEST(FullSizePlans, AtRandomHaveHardlyAGapAndTheSameAddresses) {
  const recipe::Recipe recipe =
      recipe::load_recipe("", flags({{"model.preset", "wan2.1-t2v-1.3b"}, {"plan.profile", "1xh200"}}));
  const job::Job job = job::make_job(recipe);
  const planning::Planned planned = planning::make_plan_as_is(request_of(recipe, job));
  const ops::TargetScope scope(target("sm_90", "test"));
  MatrixPart part("full-size plans", 40);
  for (const int seed : part) {
    plan::Plan plan = planned.plan();
    auto draw = [&, n = uint64_t{0}](int below) mutable {
      return static_cast<int>(RandomKey(static_cast<uint64_t>(seed), Purpose::test, n++).words()[0] %
                              static_cast<uint32_t>(below));
    };
    plan.prefetch = draw(3);
    plan.update = static_cast<plan::Update>(draw(3));
    plan.grad = draw(2) ? DType::bf16 : DType::f32;
    for (plan::UnitPlan& unit : plan.units) {
      constexpr plan::Policy kKept[] = {plan::Policy::keep, plan::Policy::rebuild, plan::Policy::recompute};
      unit.activations = kKept[draw(3)];
      unit.sites.clear();
    }
    const int64_t arena = plan::Programs(plan, plan::compile_all(planned.spec, plan, 0, 1), false).arena;
    const auto schedule = plan::compile_all(planned.spec, plan, 0, 1).train;
    check(run(recipe, job, planned.spec, plan), plan::memory_curve(planned.spec, plan, schedule, 0, arena),
          plan::bytes_of(planned.workspaces()), "seed " + std::to_string(seed));
  }
}

}  // namespace
}  // namespace tessera::testing
