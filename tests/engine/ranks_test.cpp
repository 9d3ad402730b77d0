// Several ranks against the plain loop: what they reduce in 16 bits, over shards, replicas and partitions, over several
// micro-batches and steps; norms; and the operators that need other ranks.
#include <gtest/gtest.h>

#include "engine/ranks.h"
#include "engine/toy_engine.h"
#include "tessera/engine/collectives.h"
#include "tessera/engine/slice.h"
#include "tessera/engine/tensor_parallel.h"
#include "tessera/engine/unit_run.h"

namespace tessera::engine {
namespace {

using plan::Strategy;
using toy::Toy, toy::ToyRank, toy::ToyStep;

class Ranks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_gloo()) GTEST_SKIP() << "ranks need a build with Gloo";
  }
};

/// Of the terms: those of a rank are rounded, what shards sum, and what replicas do.
double rounding(DType type) { return type == DType::bf16 ? 3 * 0x1p-8 : type == DType::f16 ? 3 * 0x1p-11 : 1e-6; }

/// Each element's terms: the sum of the sizes of all micro-batches' gradients, of which each may be rounded.
std::map<std::string, Tensor> terms(const Toy& toy, int64_t step, int micros) {
  std::map<std::string, Tensor> all;
  for (int micro = 0; micro < micros; ++micro)
    for (const auto& [name, gradient] : toy.plain_step(step, 1, micro).gradients)
      all[name] = all.contains(name) ? all[name] + gradient.abs() : gradient.abs();
  return all;
}

struct Layout {
  const char* mesh;
  Strategy strategy;
};

TEST_F(Ranks, HaveTheGradientsAndTheNormOfThePlainLoopInEachTypeThatTheyReduceIn) {
  const Toy toy;
  for (const Layout& layout :
       {Layout{"dp_shard=2", Strategy::full_shard}, Layout{"dp_shard=2", Strategy::no_shard},
        Layout{"dp_replicate=2", Strategy::full_shard}, Layout{"dp_replicate=2", Strategy::two_level},
        Layout{"dp_replicate=2,dp_shard=2", Strategy::full_shard},
        Layout{"dp_replicate=2,dp_shard=2", Strategy::two_level}})
    for (const auto& [reduce, once] : {std::pair(DType::f32, false), {DType::bf16, false}, {DType::f16, true}}) {
      plan::Plan plan = toy.plan({.strategy = layout.strategy, .reduce_once = once});
      plan.mesh = Mesh::parse(layout.mesh), plan.reduce = reduce;
      const int world = plan.mesh.world(), micros = 2 * world;
      if (world > 2 && reduce != DType::f16) continue;
      plan.global_batch = 2 * micros;
      SCOPED_TRACE(std::string(layout.mesh) + " " + plan.summary());
      std::vector<std::vector<ToyStep>> found(static_cast<size_t>(world));
      on_ranks(world, [&](const comm::Rendezvous& place) {
        ToyRank rank(toy, plan, place);
        rank.lr = 0;  // each step has the first one's weights, and what an earlier one left behind
        for (int64_t step = 1; step <= 2; ++step) found[static_cast<size_t>(place.rank)].push_back(rank.step(step));
      });
      for (int64_t step = 1; step <= 2; ++step) {
        const ToyStep plain = toy.plain_step(step, micros);
        const auto sizes = terms(toy, step, micros);
        for (const auto& of_rank : found) {
          const ToyStep& own = of_rank[static_cast<size_t>(step - 1)];
          EXPECT_NEAR(own.norm, plain.norm, (rounding(reduce) + 1e-5) * plain.norm) << "step " << step;
          ASSERT_EQ(own.gradients.size(), plain.gradients.size());
          for (const auto& [name, gradient] : plain.gradients) {
            const Tensor &size = sizes.at(name), off = (own.gradients.at(name) - gradient).abs();
            const Tensor room = rounding(reduce) * size + 5e-5 * size.max();
            EXPECT_LE((off - room).max().item<double>(), 0) << name << " in step " << step;
          }
        }
      }
    }
}

TEST_F(Ranks, OfPartitionsKeepNothingOfOthersInTheirGradients) {
  const Toy toy;
  plan::Plan plan = toy.plan({.strategy = Strategy::two_level, .reduce_once = true});
  plan.mesh = Mesh::parse("dp_replicate=2"), plan.reduce = DType::bf16, plan.global_batch = 8;
  on_ranks(2, [&](const comm::Rendezvous& place) {
    ToyRank rank(toy, plan, place);
    rank.run(1);
    Store& store = rank.store();
    for (int u = 0; u < store.units(); ++u) {
      if (!store.grad(u).defined()) continue;
      Tensor own = store.partition(u, 0, store.grad(u)).clone();
      EXPECT_GT(own.abs().max().item<double>(), 0);
      store.partition(u, 0, store.grad(u)).zero_();
      EXPECT_EQ(store.grad(u).abs().max().item<double>(), 0) << "rank " << place.rank << ", unit " << u;
    }
  });
}

TEST_F(Ranks, SumWhatTheyRoundInFp32AndRoundOnceWhateverTheirNumberAndTheCount) {
  for (const int world : {2, 3, 4}) {
    Mesh mesh;
    mesh[Axis::dp_shard] = world;
    on_ranks(world, [&](const comm::Rendezvous& place) {
      comm::Comm comm(place, mesh);
      comm::Group& group = comm.group("reduce", {Axis::dp_shard});
      for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
        for (int64_t n = 1; n <= 11; ++n) {
          const auto of = [&](int rank, int64_t count) {
            return toy::normals({count}, static_cast<uint64_t>(1000 * rank + 10 * count));
          };
          Tensor sum = at::zeros({n});
          for (int r = 0; r < world; ++r) sum += of(r, n).to(type).to(at::kFloat);
          Tensor all = of(place.rank, n).clone();
          all_reduce_rounded(group, type, all);
          EXPECT_TRUE(at::equal(all, sum.to(type).to(at::kFloat))) << world << " ranks, " << n;
          // and scattered: n to each rank, in fp32, beside or on top of what is there
          for (const bool add : {false, true}) {
            Tensor flat = of(place.rank, n * world).clone(), scratch = at::empty({n * world}),
                   shard = at::full({n}, 3.0f);
            Tensor expected = add ? at::full({n}, 3.0f) : at::zeros({n});
            for (int r = 0; r < world; ++r)
              expected += of(r, n * world).to(type).to(at::kFloat).narrow(0, place.rank * n, n);
            reduce_scatter_rounded(group, type, shard, flat, scratch, add);
            EXPECT_TRUE(at::allclose(shard, expected, 1e-6, 1e-6)) << world << " ranks, " << n << add;
          }
        }
    });
  }
}

TEST_F(Ranks, GiveInputsThatAllTokensShareTheGradientsOfAllTokens) {
  for (const char* axes : {"cp=2", "sp=2", "tp=2", "cp=3"}) {
    const Mesh mesh = Mesh::parse(axes);
    on_ranks(mesh.world(), [&](const comm::Rendezvous& place) {
      comm::Comm comm(place, mesh);
      const Parallel parallel(mesh, place.rank, &comm);
      net::Batch whole;
      whole.inputs = {toy::normals({7, 3}, 1), toy::normals({2, 5}, 2), toy::normals({4}, 3)};
      whole.token_inputs = {0};
      whole.tokens.offsets = {0, 4, 7};
      const net::Batch mine = slice(whole, parallel);
      const plan::TokenRange here = parallel.share(7);
      const auto part = [&](int rank, int64_t index) {
        return toy::normals(whole.inputs[static_cast<size_t>(index)].sizes().vec(),
                            static_cast<uint64_t>(100 * rank + index));
      };
      // the last input is needed by no token of rank 1
      std::vector<Tensor> grads = {toy::normals({7, 3}, 9).slice(0, here.begin, here.end).clone(), part(place.rank, 1),
                                   place.rank == 1 ? Tensor() : part(place.rank, 2)};
      const std::vector<Tensor> found = whole_input_grads(std::move(grads), mine, parallel);
      EXPECT_TRUE(at::equal(found[0], toy::normals({7, 3}, 9)));
      for (const int64_t input : {1, 2}) {
        Tensor sum = at::zeros(whole.inputs[static_cast<size_t>(input)].sizes());
        for (int r = 0; r < mesh.world(); ++r)
          if (input == 1 || r != 1) sum += part(r, input);
        EXPECT_TRUE(at::allclose(found[static_cast<size_t>(input)], sum, 1e-6, 1e-6)) << axes << ", input " << input;
      }
    });
  }
}

TEST_F(Ranks, OfLinearAttentionSeeAllTokensOfASampleAlsoWhereTpSharesNoHeads) {
  const Toy toy;
  net::Batch whole;
  whole.inputs = {toy::normals({9, 8}, 1)};
  whole.tokens.offsets = {0, 5, 9};
  const auto rows = [](uint64_t index) { return toy::normals({9, 8}, index).abs(); };
  net::PlainContext plain({}, "u.", whole.tokens);
  const Tensor expected = plain.linear_attention("a", rows(2), rows(3), rows(4), 2, 1e-6);
  for (const char* axes : {"tp=2", "cp=2", "sp=2", "cp=2,tp=2"}) {
    const Mesh mesh = Mesh::parse(axes);
    on_ranks(mesh.world(), [&](const comm::Rendezvous& place) {
      comm::Comm comm(place, mesh);
      const Parallel parallel(mesh, place.rank, &comm);
      const net::Batch mine = slice(whole, parallel);
      plan::UnitSpec unit;
      unit.name = "u", unit.kind = "block", unit.params = {{"u.a.weight", {8, 8}}};
      plan::Plan plan;
      plan.units.resize(1);
      Store store(plan::ModelSpec{"sites", {unit}}, {"u."}, plan, 0, at::kCPU);
      ShardContext ctx(store, 0, mine.tokens, {.parallel = &parallel});
      const plan::TokenRange here = parallel.share(9);
      const auto own = [&](const Tensor& t) { return t.slice(0, here.begin, here.end).contiguous(); };
      const Tensor found = ctx.linear_attention("a", own(rows(2)), own(rows(3)), own(rows(4)), 2, 1e-6);
      EXPECT_TRUE(at::allclose(found, own(expected), 1e-4, 1e-5)) << axes << ", rank " << place.rank;
    });
  }
}

TEST_F(Ranks, OfTensorParallelismAddABiasOnceAndSumItsGradientsOverMicroBatches) {
  const Mesh mesh = Mesh::parse("tp=2");
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
    on_ranks(2, [&](const comm::Rendezvous& place) {
      const at::AutoGradMode graph(true);
      comm::Comm comm(place, mesh);
      const Parallel parallel(mesh, place.rank, &comm);
      const TpGroupRows rows{{3, 2}, kWholeSample};
      ops::WeightSite bias;
      bias.value = toy::normals({4}, 50).to(type), bias.grad = at::full({4}, 7.0f), bias.fresh = true;
      Tensor expected_bias = at::zeros({4});
      for (int micro = 0; micro < 3; ++micro) {
        const auto of = [&](int rank) {
          return toy::normals({5, 4}, static_cast<uint64_t>(10 * micro + rank)).to(type);
        };
        Tensor y = of(place.rank).requires_grad_();
        const Tensor anchor = at::zeros({}).requires_grad_();
        const Tensor out = sum_to_shares(y, rows, parallel, &bias, anchor);
        const Tensor sum = of(0).to(at::kFloat) + of(1).to(at::kFloat) + bias.value.to(at::kFloat);
        const int64_t first = place.rank == 0 ? 0 : 3, count = place.rank == 0 ? 3 : 2;
        const Tensor wanted = sum.narrow(0, first, count);
        EXPECT_TRUE(at::allclose(out.detach().to(at::kFloat), wanted.to(type).to(at::kFloat), 1e-6, 1e-6));
        const Tensor up = toy::normals({count, 4}, static_cast<uint64_t>(90 + 10 * micro + place.rank)).to(type);
        out.backward(up);
        expected_bias += up.to(at::kFloat).sum(0);
      }
      EXPECT_TRUE(at::allclose(bias.grad, expected_bias, 1e-5, 1e-5)) << toString(type);
    });
}

TEST_F(Ranks, OfTwoLevelsExportSplitMastersToTheLastBit) {
  const Toy toy;
  plan::Plan plan = toy.plan({.strategy = Strategy::two_level});
  plan.mesh = Mesh::parse("dp_replicate=2"), plan.global_batch = 8;
  plan.states.masters = plan::Masters::split, plan.param_dtype = DType::bf16;
  const optim::AdamW adamw({.format = plan.states});
  on_ranks(2, [&](const comm::Rendezvous& place) {
    comm::Comm comm(place, plan.mesh);
    Store store(toy.spec(), toy.prefixes(), plan, place.rank, at::kCPU);
    store.make_states(adamw);
    for (const Store::Part& part :
         store.parts()) {  // as behind a step: other replicas' partitions are gathered in bf16
      const auto count = static_cast<size_t>(part.end - part.begin);
      std::vector<float> values(count);
      toy::fill(store.spec(part.unit).params[part.param], part.begin, part.end - part.begin, values.data());
      if (!part.updated)
        for (float& value : values) value *= 3;
      store.set_masters(part, 0, part.end - part.begin, values.data());
    }
    for (int u = 0; u < store.units(); ++u)
      whole_unit(store, comm, u, false, [&](const plan::ParamSpec& param, const Tensor& value) {
        EXPECT_TRUE(at::equal(value, toy::filled(param))) << param.name << " on rank " << place.rank;
      });
  });
}

}  // namespace
}  // namespace tessera::engine
