// What an optimiser is given of a rank's shards, and what becomes of masters, averages and gradients there.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include <barrier>
#include <thread>

#include "checkpoint/files.h"
#include "engine/toy_engine.h"
#include "tessera/engine/store/average.h"
#include "tessera/engine/store/updates.h"
#include "tessera/ops/bf16.h"
#include "tessera/optim/muon.h"
#include "tessera/plan/optimizers.h"

namespace tessera::engine {
namespace {

using plan::Split;
using toy::Toy;

/// Shows what it is given.
class Shown final : public net::UnitUpdate {
 public:
  using See = std::function<void(const net::Slice&)>;
  explicit Shown(See see, plan::StateFormat format = {}, bool totals = false)
      : see_(std::move(see)), states_(plan::states_of(format)), totals_(totals) {}
  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return states_(param); }
  void update(const net::Slice& slice, const net::StepControl&) const override { see_(slice); }
  bool totals() const override { return totals_; }

 private:
  const See see_;
  const plan::StatesOf states_;
  const bool totals_;
};

/// Of an element of this rank's part of a parameter, its place in the whole one.
int64_t whole_place(const plan::ParamSpec& param, int64_t at, int tp, int tp_rank) {
  if (param.split == Split::column_parallel) return param.numel() / tp * tp_rank + at;
  if (param.split == Split::none) return at;
  const int64_t inner = param.numel() / param.shape[0], width = inner / tp;
  return at / width * inner + width * tp_rank + at % width;
}

float value_at(int64_t element) { return static_cast<float>(element); }
float gradient_at(int64_t element) { return static_cast<float>(element % 251); }  // exact in 16 bits too

TEST(Slices, SayWhichElementsOfTheTensorTheirValuesAndGradientsAreOf) {
  const Toy toy;
  plan::ModelSpec spec = toy.spec();
  plan::UnitSpec& unit = spec.units[1];  // two buffers under tp: of what it splits, and of what it does not
  unit.params = {{"mid.b.weight", {40, 36}},
                 {"mid.b.bias", {40}},
                 {"mid.norm.weight", {300}},
                 {"mid.norm.bias", {30}},
                 {"mid.a.weight", {24, 50}}};
  unit.params[0].split = unit.params[1].split = Split::column_parallel, unit.params[4].split = Split::row_parallel;
  for (const char* mesh : {"single", "dp_shard=3", "tp=2", "dp_shard=2,tp=2", "dp_replicate=2,tp=2"})
    for (const auto strategy : {plan::Strategy::full_shard, plan::Strategy::no_shard, plan::Strategy::two_level})
      for (const DType stored : {DType::f32, DType::bf16}) {
        plan::Plan plan = toy.plan({.strategy = strategy});
        plan.mesh = Mesh::parse(mesh), plan.grad = stored;
        const int tp = plan.mesh[Axis::tp];
        std::map<std::string, std::vector<int>> seen;
        for (int rank = 0; rank < plan.mesh.world(); ++rank) {
          SCOPED_TRACE(std::string(mesh) + ", rank " + std::to_string(rank) + ", " + plan.summary());
          Store store(spec, toy.prefixes(), plan, rank, at::kCPU);
          const Shown shown([&](const net::Slice& slice) {
            auto& counts = seen[slice.spec->name];
            counts.resize(static_cast<size_t>(slice.spec->numel()));
            EXPECT_EQ(slice.numel, slice.spec->numel());
            for (int64_t i = 0; i < slice.count(); ++i) {
              int64_t element = slice.begin + i;
              if (slice.cut.width > 0)
                element = element / slice.cut.width * slice.cut.inner + slice.cut.first + element % slice.cut.width;
              ASSERT_LT(element, slice.numel);
              ++counts[static_cast<size_t>(element)];
              ASSERT_EQ(static_cast<const float*>(slice.param)[i], value_at(element)) << slice.spec->name;
              ASSERT_EQ(slice.grad[i], gradient_at(element)) << slice.spec->name;
            }
          });
          store.make_states(shown);
          fill_shards(store, [](const plan::ParamSpec&, int64_t first, int64_t count, float* out) {
            for (int64_t i = 0; i < count; ++i) out[i] = value_at(first + i);
          });
          for (const Store::Part& part : store.parts()) {
            const plan::ParamSpec& param = store.spec(part.unit).params[part.param];
            for (int64_t i = part.begin; i < part.end; ++i)
              store.grad(part.unit)[store.layout(part.unit).buffers[part.buffer].held + part.offset + i - part.begin] =
                  gradient_at(whole_place(param, i, tp, plan.mesh.coordinate(rank, Axis::tp)));
          }
          update_unit(store, 1, shown, {1, 1e-2, 1}, {});
        }
        for (const plan::ParamSpec& param : unit.params) {
          const auto& counts = seen.at(param.name);
          EXPECT_TRUE(std::ranges::all_of(counts, [&](int n) { return n == counts[0] && n > 0; })) << param.name;
        }
      }
}

TEST(Slices, TotalsAreOfAllUnitsUntilTheyAreTaken) {
  const Toy toy;
  Store store(toy.spec(), toy.prefixes(), toy.plan(), 0, at::kCPU);
  double elements = 0;
  const Shown shown(
      [&](const net::Slice& slice) {
        (*slice.totals)[0] += static_cast<double>(slice.count());
        (*slice.totals)[1] += 1;
      },
      {}, true);
  store.make_states(shown);
  for (int u = 0; u < store.units(); ++u) {
    for (const plan::ParamSpec& param : store.spec(u).params) elements += static_cast<double>(param.numel());
    update_unit(store, u, shown, {1, 1e-2, 1}, {});
  }
  EXPECT_EQ(store.take_totals(), (net::Totals{elements, 9}));
  EXPECT_EQ(store.take_totals(), net::Totals{});
}

TEST(Masters, InBf16AreTheNearestOfWhatTheyAreSetTo) {
  const Toy toy;
  plan::Plan plan = toy.plan();
  plan.states.masters = plan::Masters::bf16, plan.param_dtype = DType::bf16;
  Store store(toy.spec(), toy.prefixes(), plan, 0, at::kCPU);
  store.make_states(optim::AdamW({.format = plan.states}));
  const auto values = [](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    toy::fill(param, first, count, out);
    for (int64_t i = 0; i < count; ++i)  // every third lies in the middle of two: to the even one
      if ((first + i) % 3 == 0) out[i] = 1 + static_cast<float>(2 * ((first + i) % 100) + 1) / 256;
  };
  fill_shards(store, values);
  for (const Store::Part& part : store.parts()) {
    std::vector<float> found(static_cast<size_t>(part.end - part.begin));
    store.read_masters(part, 0, part.end - part.begin, found.data());
    Tensor exact = at::empty({part.end - part.begin});
    values(store.spec(part.unit).params[part.param], part.begin, part.end - part.begin,
           exact.mutable_data_ptr<float>());
    const Tensor expected = exact.to(at::kBFloat16).to(at::kFloat);
    EXPECT_EQ(std::memcmp(found.data(), expected.const_data_ptr(), 4 * found.size()), 0);
  }
}

/// A unit has a parameter of several pieces of 65536 elements.
class Averages : public checkpoint::FileTest {
 protected:
  Averages() {
    spec_.units[1].params[0].shape = {300, 500};
    plan_.states.ema = true;
  }
  std::unique_ptr<Store> make(plan::Masters masters) {
    plan_.states.masters = masters;
    plan_.param_dtype = masters == plan::Masters::fp32 ? DType::f32 : DType::bf16;
    auto store = std::make_unique<Store>(spec_, toy_.prefixes(), plan_, 0, at::kCPU);
    store->make_states(optim::AdamW({.format = plan_.states}));
    fill_shards(*store, toy::fill);
    return store;
  }
  static float* average(Store& store, const Store::Part& part) {
    const auto& states = store.states(part.unit).ranges[part.range].states;
    for (size_t s = 0; s < states.size(); ++s)
      if (states[s].kind == plan::kAverage) return static_cast<float*>(store.state(part, s).data);
    return nullptr;
  }
  static std::vector<float> masters(Store& store, const Store::Part& part) {
    std::vector<float> values(static_cast<size_t>(part.end - part.begin));
    store.read_masters(part, 0, part.end - part.begin, values.data());
    return values;
  }
  static float averaged(int64_t element) { return 0.3f * static_cast<float>(element % 100003) - 1; }
  void set_averages(Store& store) {
    for (const Store::Part& part : store.parts())
      for (int64_t i = part.begin; i < part.end; ++i) average(store, part)[i - part.begin] = averaged(i);
  }

  const Toy toy_;
  plan::ModelSpec spec_ = toy_.spec();
  plan::Plan plan_ = toy_.plan();
};

TEST_F(Averages, TakeThePlaceOfTheWeightsAndGiveItBackToTheLastBit) {
  comm::Comm comm({}, {});
  for (const plan::Masters form : {plan::Masters::fp32, plan::Masters::split}) {
    const auto store = make(form);
    set_averages(*store);
    std::vector<std::vector<float>> trained;
    for (const Store::Part& part : store->parts()) trained.push_back(masters(*store, part));
    {
      const AveragedWeights used(*store, comm, true);
      for (const Store::Part& part : store->parts()) {
        const std::vector<float> now = masters(*store, part);
        for (int64_t i = part.begin; i < part.end; ++i)
          ASSERT_EQ(now[static_cast<size_t>(i - part.begin)], averaged(i)) << part.unit << ", " << i;
      }
    }
    size_t p = 0;
    for (const Store::Part& part : store->parts()) {
      EXPECT_EQ(masters(*store, part), trained[p++]);
      for (int64_t i = part.begin; i < part.end; ++i) ASSERT_EQ(average(*store, part)[i - part.begin], averaged(i));
    }
  }
}

TEST_F(Averages, OfACheckpointAreTheWeightsOfASampleAndNotThoseThatWereTrained) {
  for (const plan::Masters form : {plan::Masters::fp32, plan::Masters::split}) {
    const auto store = make(form);
    set_averages(*store);
    const int64_t step = form == plan::Masters::fp32 ? 1 : 2;
    const auto partial = checkpoint::partial_folder(folder_, step), whole = checkpoint::step_folder(folder_, step);
    checkpoint::save_rank(partial, 0, checkpoint_pieces(*store));
    checkpoint::commit(partial, whole, 1, {});
    plan::Plan plan = plan_;
    plan.states = {}, plan.param_dtype = DType::f32;
    Store sampled(spec_, toy_.prefixes(), plan, 0, at::kCPU);
    sampled.make_states(optim::AdamW({.format = plan.states}));
    checkpoint::TrainingCheckpoint from(whole);
    restore_average(sampled, from);
    for (const Store::Part& part : sampled.parts()) {
      const std::vector<float> now = masters(sampled, part);
      for (int64_t i = part.begin; i < part.end; ++i) ASSERT_EQ(now[static_cast<size_t>(i - part.begin)], averaged(i));
    }
  }
}

TEST(Gradients, HaveNothingBetweenTheirTensorsWhateverTheSlotHeld) {
  const Toy toy;
  Store store(toy.spec(), toy.prefixes(), toy.plan(), 0, at::kCPU);
  for (int u = 0; u < store.units(); ++u) {
    const int64_t total = store.layout(u).grad_total;
    store.set_arena(total * 4);
    store.arena(0, total).fill_(7);
    store.bind_grad(u, 0, /*fresh=*/true);
    for (const plan::ParamSpec& param : store.spec(u).params) {
      const std::string prefix = toy.prefixes()[static_cast<size_t>(u)];
      ops::WeightSite& site = *store.find(u, param.name.substr(prefix.size()));
      site.grad.fill_(0), site.fresh = false;
    }
    store.finish_grad(u);
    EXPECT_EQ(store.arena(0, total).abs().max().item<double>(), 0) << store.spec(u).name;
  }
}

TEST(Gradients, StayOnlyWhereTheNextProgramUpdatesBehindTheBackward) {
  const Toy toy;
  plan::Plan behind = toy.plan();
  behind.global_batch = behind.micro_batch;  // of several micro-batches the sum has to stay
  plan::Plan within = behind;
  within.update = plan::Update::in_backward;
  Store store(toy.spec(), toy.prefixes(), behind, 0, at::kCPU);
  store.grad(1).fill_(5);
  store.place_gradients(behind);
  EXPECT_TRUE(store.grad(1).defined());
  store.place_gradients(within);
  EXPECT_FALSE(store.grad(1).defined()) << "its memory is for something else";
  store.place_gradients(behind);
  ASSERT_TRUE(store.grad(1).defined());
  EXPECT_EQ(store.grad(1).abs().max().item<double>(), 0) << "nothing of before";
}

/// Ranks as threads that take steps of Muon together: what each sends lies on a board until all have read it.
class MuonRanks {
 public:
  MuonRanks(const plan::ModelSpec& spec, const Toy& toy, plan::Plan plan) : spec_(spec), plan_(std::move(plan)) {
    for (int rank = 0; rank < plan_.mesh.world(); ++rank) {
      stores_.push_back(std::make_unique<Store>(spec_, toy.prefixes(), plan_, rank, at::kCPU));
      stores_.back()->make_states(muon_);
      fill_shards(*stores_.back(), toy::fill);
    }
    board_.resize(stores_.size());
  }

  void step(int64_t step) {
    std::barrier meet(static_cast<std::ptrdiff_t>(stores_.size()));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < stores_.size(); ++rank)
      threads.emplace_back([&, rank] { step_of(static_cast<int>(rank), step, meet); });
    for (auto& thread : threads) thread.join();
  }

  /// Of all ranks together, by name.
  std::map<std::string, std::vector<float>> masters() const {
    std::map<std::string, std::vector<float>> all;
    for (size_t rank = 0; rank < stores_.size(); ++rank)
      for (const Store::Part& part : stores_[rank]->parts()) {
        const plan::ParamSpec& param = spec_.units[static_cast<size_t>(part.unit)].params[part.param];
        std::vector<float>& values = all[param.name];
        values.resize(static_cast<size_t>(param.numel()));
        std::vector<float> own(static_cast<size_t>(part.end - part.begin));
        stores_[rank]->read_masters(part, 0, part.end - part.begin, own.data());
        const int tp = plan_.mesh[Axis::tp], tp_rank = plan_.mesh.coordinate(static_cast<int>(rank), Axis::tp);
        for (int64_t i = part.begin; part.updated && i < part.end; ++i)
          values[static_cast<size_t>(whole_place(param, i, tp, tp_rank))] = own[static_cast<size_t>(i - part.begin)];
      }
    return all;
  }

 private:
  void step_of(int rank, int64_t step, std::barrier<>& meet) {
    at::set_num_threads(1);
    Store& store = *stores_[static_cast<size_t>(rank)];
    for (const Store::Part& part : store.parts()) {
      const plan::ParamSpec& param = store.spec(part.unit).params[part.param];
      const Tensor whole = toy::normals({param.numel()}, hash_text(param.name) + static_cast<uint64_t>(step));
      const int tp = plan_.mesh[Axis::tp], tp_rank = plan_.mesh.coordinate(rank, Axis::tp);
      auto* grad = store.grad(part.unit).mutable_data_ptr<float>() + store.layout(part.unit).buffers[part.buffer].held +
                   part.offset;
      for (int64_t i = part.begin; i < part.end; ++i)
        grad[i - part.begin] = whole.const_data_ptr<float>()[whole_place(param, i, tp, tp_rank)];
    }
    for (int u = 0; u < store.units(); ++u) {
      const auto parts = plan::matrix_parts(plan_, store.spec(u), store.layout(u), rank);
      const int64_t bytes = plan::work_bytes(store.spec(u), parts, plan_.states.matrices);
      const auto exchange = [&](int buffer, const std::vector<Tensor>& out, const std::vector<Tensor>& in) {
        board_[static_cast<size_t>(rank)] = out;
        meet.arrive_and_wait();
        const std::vector<int> members =
            plan_.mesh.group(rank, plan::sum_axes(plan_, store.layout(u).buffers[static_cast<size_t>(buffer)]));
        const auto index = static_cast<size_t>(parts[static_cast<size_t>(buffer)].index);
        for (size_t m = 0; m < members.size(); ++m)
          if (m != index) in[m].copy_(board_[static_cast<size_t>(members[m])][index]);
        meet.arrive_and_wait();
      };
      update_unit(store, u, muon_, {step, 1e-2, 0.5}, {}, nullptr, {},
                  {&parts, at::zeros({bytes}, at::kByte), exchange});
    }
  }

  const plan::ModelSpec& spec_;
  const plan::Plan plan_;
  const optim::Muon muon_{{.format = plan_.states}};
  std::vector<std::unique_ptr<Store>> stores_;
  std::vector<std::vector<Tensor>> board_;
};

TEST(WholeMatrices, AreUpdatedWithTheSameBitsOnEveryLayout) {
  const Toy toy;
  plan::ModelSpec spec = toy.spec();
  plan::UnitSpec& unit = spec.units[1];
  unit.params = {{"mid.b.weight", {40, 36}}, {"mid.b.bias", {40}},      {"mid.norm.weight", {300}},
                 {"mid.left", {33, 20}},     {"mid.kernel", {8, 5, 3}}, {"mid.a.weight", {24, 50}}};
  unit.params[0].split = unit.params[1].split = Split::column_parallel, unit.params[5].split = Split::row_parallel;
  for (const int whole : {0, 3, 4, 5}) unit.params[static_cast<size_t>(whole)].whole = true;
  for (const auto& [type, masters] : {std::pair(DType::bf16, plan::Masters::fp32),
                                      {DType::f32, plan::Masters::fp32},
                                      {DType::bf16, plan::Masters::split}}) {
    std::map<std::string, std::vector<float>> expected;
    for (const char* mesh : {"single", "dp_shard=2", "dp_shard=3", "tp=2", "dp_shard=2,tp=2", "dp_replicate=2,tp=2"})
      for (const auto strategy : {plan::Strategy::full_shard, plan::Strategy::no_shard, plan::Strategy::two_level}) {
        plan::Plan plan = toy.plan({.strategy = strategy});
        plan.mesh = Mesh::parse(mesh);
        plan.states = {.masters = masters, .optimizer = plan::Optimizer::muon, .matrices = type};
        if (masters == plan::Masters::split) plan.param_dtype = DType::bf16;
        MuonRanks ranks(spec, toy, plan);
        const auto before = ranks.masters();
        for (int64_t step = 1; step <= 3; ++step) ranks.step(step);
        const auto found = ranks.masters();
        if (expected.empty()) expected = found;
        for (const auto& [name, values] : found) {
          EXPECT_TRUE(values == expected.at(name)) << name << ", " << mesh << ", " << plan.summary();
          EXPECT_FALSE(values == before.at(name)) << name;
        }
      }
  }
}

}  // namespace
}  // namespace tessera::engine
