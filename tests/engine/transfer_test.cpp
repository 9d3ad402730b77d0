// Values into shards and out of them: initial weights, files, training checkpoints of any layout.
#include "tessera/engine/store/transfer.h"

#include <gtest/gtest.h>

#include "checkpoint/files.h"
#include "engine/toy_engine.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::engine {
namespace {

using checkpoint::FileTest;
using toy::Toy;

class Transfer : public FileTest {
 protected:
  std::unique_ptr<Store> make(const plan::Plan& plan, int rank = 0) const {
    return std::make_unique<Store>(toy_.spec(), toy_.prefixes(), plan, rank, at::kCPU);
  }
  plan::Plan sharded(int ranks) const {
    plan::Plan plan = toy_.plan();
    plan.mesh[Axis::dp_shard] = ranks;
    return plan;
  }
  /// The whole parameters of a store of one rank.
  static std::map<std::string, Tensor> weights(Store& store) {
    std::map<std::string, Tensor> found;
    comm::Comm comm({}, {});
    for (int u = 0; u < store.units(); ++u)
      whole_unit(store, comm, u, false,
                 [&](const plan::ParamSpec& param, const Tensor& value) { found[param.name] = value.clone(); });
    return found;
  }
  /// The toy's weights as a file, under other names.
  void write_weights(const std::string& file, int64_t rows_of_last = 2) {
    std::vector<Tensor> values;
    std::vector<checkpoint::TensorData> tensors;
    for (const auto& unit : toy_.spec().units)
      for (const auto& param : unit.params) {
        plan::ParamSpec stored = param;
        if (param.name == "out.b.weight") stored.shape[0] = rows_of_last;
        values.push_back(toy::filled(stored));
        tensors.push_back({"model." + param.name, DType::f32, stored.shape, values.back().const_data_ptr()});
      }
    checkpoint::write_safetensors(path(file), tensors);
  }

  /// A value that tells moment, parameter and element apart.
  static float told_apart(const Store::Part& part, size_t moment, int64_t element) {
    return static_cast<float>(10000 * moment) + static_cast<float>(1000 * part.unit + 100 * part.param) +
           static_cast<float>(element) / 4;
  }

  const Toy toy_;
};

TEST_F(Transfer, WhatFillsTheShardsComesBackWhole) {
  const auto store = make(toy_.plan());
  fill_shards(*store, toy::fill);
  const auto found = weights(*store);
  EXPECT_EQ(found.size(), 9u);
  for (const auto& unit : toy_.spec().units)
    for (const auto& param : unit.params)
      EXPECT_TRUE(at::equal(found.at(param.name), toy::filled(param))) << param.name;
}

/// Where nobody asks for the rounding, 16-bit parameters are filled piece by piece.
TEST_F(Transfer, FrozenParametersHaveTheSameBitsWhetherTheirRoundingIsAskedForOrNot) {
  plan::ModelSpec spec = toy_.spec();
  for (plan::UnitSpec& unit : spec.units)
    for (plan::ParamSpec& param : unit.params) param.trainable = false;
  spec.units[1].params[0].shape = {600, 301};  // more than a piece on each rank
  for (const DType stored : {DType::f32, DType::bf16, DType::i8})
    for (const Axis axis : {Axis::dp_shard, Axis::tp})
      for (const int rank : {0, 1}) {
        for (plan::UnitSpec& unit : spec.units)
          for (plan::ParamSpec& param : unit.params) param.stored = stored;
        spec.units[1].params[0].split = axis == Axis::tp ? plan::Split::row_parallel : plan::Split::none;
        plan::Plan plan = toy_.plan();
        plan.mesh[axis] = 2;
        if (axis == Axis::tp) spec.units[1].params[0].shape = {602, 300};
        Roundings rounded;
        Store one(spec, toy_.prefixes(), plan, rank, at::kCPU), other(spec, toy_.prefixes(), plan, rank, at::kCPU);
        fill_shards(one, toy::fill, &rounded);
        fill_shards(other, toy::fill);
        EXPECT_EQ(rounded.empty(), stored == DType::f32);
        int64_t compared = 0;
        for (const Store::Part& part : one.parts()) {
          const auto count = static_cast<size_t>(part.end - part.begin);
          std::vector<float> a(count), b(count);
          one.read_masters(part, 0, part.end - part.begin, a.data());
          other.read_masters(part, 0, part.end - part.begin, b.data());
          EXPECT_EQ(a, b) << spec.units[part.unit].params[part.param].name;
          compared += part.end - part.begin;
        }
        EXPECT_GT(compared, 80'000);
      }
}

TEST_F(Transfer, AFileFillsShardsAndWhatItLacksIsFilledOtherwise) {
  write_weights("model.safetensors");
  const checkpoint::WeightSet file = checkpoint::open_weights(path("model.safetensors"));
  const auto store = make(toy_.plan());
  const auto name = [](const std::string& ours) { return ours == "in.b.bias" ? "" : "model." + ours; };
  const auto no_hint = [](const std::string&, const std::vector<int64_t>&) { return std::string(); };
  load_weights(*store, file, name, no_hint,
               [](const plan::ParamSpec&, int64_t, int64_t count, float* out) { std::fill_n(out, count, 0.5f); });
  for (const auto& [param, value] : weights(*store)) {
    if (param == "in.b.bias") {
      EXPECT_TRUE(at::equal(value, at::full({toy::kWidth}, 0.5)));
    } else {
      EXPECT_TRUE(at::equal(value, toy::filled({param, value.sizes().vec()}))) << param;
    }
  }
}

TEST_F(Transfer, AnotherShapeIsRefusedWithBothAndTheHint) {
  write_weights("model.safetensors", 5);
  const checkpoint::WeightSet file = checkpoint::open_weights(path("model.safetensors"));
  const auto store = make(toy_.plan());
  const auto name = [](const std::string& ours) { return "model." + ours; };
  const auto hint = [](const std::string& param, const std::vector<int64_t>& found) {
    return "try " + param + " with " + std::to_string(found[0]) + " rows";
  };
  checkpoint::expect_error(Exit::input,
                           {"out.b.weight: expected [2, 16], file has [5, 16]", "try out.b.weight with 5 rows"},
                           [&] { load_weights(*store, file, name, hint); });
}

TEST_F(Transfer, ACheckpointOfThreeRanksResumesOnTwoAndOnOne) {
  const optim::AdamW adamw({});
  const auto trained = [&](const plan::Plan& plan, int rank) {
    auto store = make(plan, rank);
    store->make_states(adamw);
    return store;
  };
  std::vector<std::unique_ptr<Store>> writers;
  for (int rank = 0; rank < 3; ++rank) writers.push_back(trained(sharded(3), rank));
  const auto partial = checkpoint::partial_folder(folder_, 1), whole = checkpoint::step_folder(folder_, 1);
  for (int rank = 0; rank < 3; ++rank) {
    Store& store = *writers[static_cast<size_t>(rank)];
    fill_shards(store, toy::fill);
    for (const Store::Part& part : store.parts())  // moments that tell parameter and element apart
      for (size_t s = 0; s < 2; ++s) {
        auto* moment = static_cast<float*>(store.state(part, s).data);
        for (int64_t i = part.begin; i < part.end; ++i) moment[i - part.begin] = told_apart(part, s, i);
      }
    checkpoint::save_rank(partial, rank, checkpoint_pieces(store));
  }
  checkpoint::commit(partial, whole, 3, {});
  for (const int ranks : {2, 1})
    for (int rank = 0; rank < ranks; ++rank) {
      const auto reader = trained(sharded(ranks), rank);
      Store& store = *reader;
      checkpoint::TrainingCheckpoint from(whole);
      restore(store, from);
      for (const Store::Part& part : store.parts()) {
        std::vector<float> expected(static_cast<size_t>(part.end - part.begin));
        toy::fill(store.spec(part.unit).params[part.param], part.begin, part.end - part.begin, expected.data());
        EXPECT_EQ(std::memcmp(store.data(part).data, expected.data(), 4 * expected.size()), 0);
        const auto* moment = static_cast<const float*>(store.state(part, 1).data);
        EXPECT_EQ(moment[0], told_apart(part, 1, part.begin));
      }
    }
}

}  // namespace
}  // namespace tessera::engine
