// The parameter store alone: what a rank holds, what a slot shows, where buffers rest.
#include "tessera/engine/store/updates.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/toy_engine.h"
#include "tessera/base/check.h"
#include "tessera/engine/store/transfer.h"

namespace tessera::engine {
namespace {

using toy::Toy;

plan::Plan on_mesh(const Toy& toy, const char* mesh, const plan::UnitPlan& each = {}) {
  plan::Plan plan = toy.plan(each);
  plan.mesh = Mesh::parse(mesh);
  return plan;
}

/// How many ranks hold each element of a parameter.
std::map<std::string, std::vector<int>> holders(const Toy& toy, const plan::Plan& plan) {
  std::map<std::string, std::vector<int>> held;
  for (const auto& unit : toy.spec().units)
    for (const auto& param : unit.params) held[param.name].assign(static_cast<size_t>(param.numel()), 0);
  for (int rank = 0; rank < plan.mesh.world(); ++rank) {
    const Store store(toy.spec(), toy.prefixes(), plan, rank, at::kCPU);
    for (const Store::Part& part : store.parts())
      for (int64_t i = part.begin; i < part.end; ++i)
        ++held[store.spec(part.unit).params[part.param].name][static_cast<size_t>(i)];
  }
  return held;
}

TEST(Store, TheRanksOfAShardGroupHoldEachElementOnce) {
  const Toy toy;
  const std::pair<const char*, int> meshes[] = {{"single", 1}, {"dp_shard=3", 1}, {"dp_replicate=2,dp_shard=2", 2}};
  for (const auto& [mesh, times] : meshes)
    for (const auto& [name, counts] : holders(toy, on_mesh(toy, mesh)))
      EXPECT_EQ(counts, std::vector<int>(counts.size(), times)) << mesh << " " << name;
  for (const auto& [name, counts] : holders(toy, on_mesh(toy, "dp_shard=2", {.strategy = plan::Strategy::no_shard})))
    EXPECT_EQ(counts, std::vector<int>(counts.size(), 2)) << name;
}

TEST(Store, AGatheredSlotShowsEverySiteItsWeight) {
  const Toy toy;
  Store store(toy.spec(), toy.prefixes(), toy.plan(), 0, at::kCPU);
  fill_shards(store, toy::fill);
  constexpr int kBlock = 1;
  store.set_arena(4 * store.layout(kBlock).total);
  for (size_t b = 0; b < store.layout(kBlock).buffers.size(); ++b)
    EXPECT_EQ(store.gather(kBlock, static_cast<int>(b), 0, nullptr), 0) << "one rank sends nothing";
  for (const int64_t slot : {int64_t{0}, int64_t{-1}}) {
    store.bind(kBlock, slot);
    for (const plan::ParamSpec& param : store.spec(kBlock).params)
      EXPECT_TRUE(at::equal(store.site(kBlock, param.name.substr(4)).value, toy::filled(param))) << param.name;
    store.unbind(kBlock);
    EXPECT_THROW(store.site(kBlock, "a.weight"), InternalError) << "used while its unit is released";
  }
  EXPECT_EQ(store.find(kBlock, "a.bias"), nullptr);
  EXPECT_THROW(store.site(kBlock, "a.bias"), InternalError);
}

/// Biases are trained, weights are the base of both.
plan::ModelSpec of_one_base(const Toy& toy) {
  plan::ModelSpec spec = toy.spec();
  for (plan::UnitSpec& unit : spec.units)
    for (plan::ParamSpec& param : unit.params) param.trainable = param.name.ends_with("bias");
  return spec;
}
constexpr std::pair<plan::Tier, plan::Tier> kActiveAndIdle[] = {{plan::Tier::device, plan::Tier::device},
                                                                {plan::Tier::device, plan::Tier::host},
                                                                {plan::Tier::host, plan::Tier::device},
                                                                {plan::Tier::host, plan::Tier::host}};
void fill_plus_one(const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
  toy::fill(param, first, count, out);
  for (int64_t i = 0; i < count; ++i) out[i] += 1;
}

/// No plan has room for a second copy of what an inactive one trains.
TEST(Store, ExpertsOfOneBaseAreSavedFromWhereTheyRest) {
  const Toy toy;
  const plan::ModelSpec spec = of_one_base(toy);
  for (const auto& [parameters, idle] : kActiveAndIdle) {
    plan::Plan plan = toy.plan({.parameters = parameters});
    plan.experts = 3, plan.idle = idle, plan.shared_base = true;
    Store store(spec, toy.prefixes(), plan, 0, at::kCPU);
    fill_shards(store, toy::fill);
    {
      const Store::ExpertScope third(store, 2);
      fill_shards(store, fill_plus_one, nullptr, /*trained_alone=*/true);
    }
    for (const int active : {0, 2, 1}) {
      store.switch_to(active);
      std::vector<checkpoint::Piece> pieces;
      {
        const Store::ExpertScope third(store, 2);
        pieces = checkpoint_pieces(store, "", active);
      }
      size_t biases = 0;
      for (const checkpoint::Piece& piece : pieces) {
        EXPECT_FALSE(piece.fetch) << "bytes beside the store";
        plan::ParamSpec param;
        param.name = piece.range.name, param.shape = piece.range.shape;
        std::vector<float> wanted(static_cast<size_t>(piece.range.end - piece.range.begin));
        const bool bias = param.name.ends_with("bias");
        biases += bias;
        (bias ? fill_plus_one : toy::fill)(param, piece.range.begin, static_cast<int64_t>(wanted.size()),
                                           wanted.data());
        EXPECT_EQ(std::memcmp(piece.data, wanted.data(), wanted.size() * sizeof(float)), 0)
            << param.name << " while " << active << " is active";
      }
      EXPECT_GT(biases, 0u);
    }
  }
}

TEST(Store, ExpertsOfOneBaseChangePlacesInWhatIsTrained) {
  const Toy toy;
  const plan::ModelSpec spec = of_one_base(toy);
  for (const auto& [parameters, idle] : kActiveAndIdle) {
    plan::Plan plan = toy.plan({.parameters = parameters});
    plan.experts = 2, plan.idle = idle, plan.shared_base = true;
    Store store(spec, toy.prefixes(), plan, 0, at::kCPU);
    fill_shards(store, toy::fill);
    {
      const Store::ExpertScope second(store, 1);
      fill_shards(store, fill_plus_one, nullptr, /*trained_alone=*/true);
    }
    const auto expect_of = [&](float trained) {
      for (const Store::Part& part : store.parts()) {
        const plan::ParamSpec& param = store.spec(part.unit).params[part.param];
        std::vector<float> held(static_cast<size_t>(part.end - part.begin)), wanted(held.size());
        store.read_masters(part, 0, part.end - part.begin, held.data());
        toy::fill(param, part.begin, part.end - part.begin, wanted.data());
        for (float& value : wanted) value += param.trainable ? trained : 0;
        EXPECT_EQ(held, wanted) << param.name;
      }
    };
    expect_of(0);
    store.switch_to(1);
    expect_of(1);
    store.switch_to(0);
    expect_of(0);
    int64_t trained = 0;
    for (int u = 0; u < store.units(); ++u) trained += plan.inactive_bytes(store.layout(u));
    EXPECT_EQ(store.take_moved().bytes % (2 * trained), 0) << "what is trained alone";
  }
}

TEST(Store, AGradientThatNobodyWroteIsZero) {
  const Toy toy;
  Store store(toy.spec(), toy.prefixes(), toy.plan(), 0, at::kCPU);
  store.grad(1).fill_(7);
  store.bind_grad(1, -1, /*fresh=*/true);
  ops::WeightSite& written = *store.find(1, "b.bias");
  written.grad.fill_(2), written.fresh = false;
  store.finish_grad(1);
  EXPECT_FALSE(written.grad.defined());
  store.bind_grad(1, -1, /*fresh=*/false);
  EXPECT_TRUE(at::equal(written.grad, at::full({toy::kWidth}, 2.0)));
  EXPECT_TRUE(at::equal(store.find(1, "a.weight")->grad, at::zeros({toy::kWidth, toy::kWidth})));
  store.finish_grad(1);
}

TEST(Store, OneOfTheReplicasSpeaksForTheNorm) {
  const Toy toy;
  const plan::Plan plan = on_mesh(toy, "dp_replicate=2,dp_shard=2");
  int speakers = 0;
  for (int rank = 0; rank < 4; ++rank) {
    Store store(toy.spec(), toy.prefixes(), plan, rank, at::kCPU);
    store.grad(1).fill_(1);
    const Tensor squares = at::zeros({static_cast<int64_t>(store.layout(1).buffers.size())}, at::kDouble);
    store.squares(1, store.grad(1), squares);
    EXPECT_EQ(squares.sum().item<double>(), store.is_primary(1, 0) ? static_cast<double>(store.grad(1).numel()) : 0);
    speakers += store.is_primary(1, 0);
  }
  EXPECT_EQ(speakers, 2) << "one for each shard";
}

TEST(Store, AnUpdateDoesNotDependOnTheTierOrTheThreads) {
  const Toy toy;
  const optim::AdamW adamw({});
  const auto updated = [&](plan::Tier tier, Workers* workers) {
    plan::UnitPlan each{.parameters = tier, .gradients = tier, .states = tier, .update_on = tier};
    Store store(toy.spec(), toy.prefixes(), toy.plan(each), 0, at::kCPU);
    EXPECT_EQ(store.host_bytes() > 0, tier == plan::Tier::host);
    store.make_states(adamw);
    fill_shards(store, toy::fill);
    for (int64_t step = 1; step <= 2; ++step) {
      store.grad(1).copy_(toy::normals({store.grad(1).numel()}, static_cast<uint64_t>(step)));
      update_unit(store, 1, adamw, {step, 1e-2, 0.5}, {}, workers);
    }
    return store.masters(1, 0).clone();
  };
  Workers workers(3);
  const Tensor expected = updated(plan::Tier::device, nullptr);
  EXPECT_TRUE(at::equal(updated(plan::Tier::host, nullptr), expected));
  EXPECT_TRUE(at::equal(updated(plan::Tier::host, &workers), expected));
}

}  // namespace
}  // namespace tessera::engine
