// Lean graphs of every family, and those of a recompute that keeps some results, run: they give the bits of the graph
// that holds everything, in the bytes that were measured on meta.
#include <gtest/gtest.h>

#include "tessera/base/random.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/engine/unit_run.h"
#include "tessera/models/common/adapted.h"
#include "tessera/models/registry.h"
#include "tessera/torch_headers.h"

namespace tessera::engine {
namespace {

struct Family {
  const char* name;
  const char* preset;
  DType compute = DType::f32;
  std::optional<models::AdapterRule> lora = {};
};

void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

Tensor random_like(const Tensor& t, uint64_t index) {
  const Tensor values = at::empty(t.sizes(), at::kFloat);
  RandomKey(11, Purpose::test, index).normal(values.mutable_data_ptr<float>(), 0, static_cast<size_t>(values.numel()));
  return values.to(t.scalar_type());
}

/// What a unit gives, and the bytes that it took.
struct Outcome {
  std::vector<Tensor> tensors;
  int64_t kept = 0, saved = 0, backward_peak = 0;
};

class Families : public ::testing::TestWithParam<Family> {
 protected:
  Families() : model_(models::make_denoiser({.preset = GetParam().preset})) {
    Meter::install();
    if (GetParam().lora) models::adapt(*model_, *GetParam().lora);
    std::vector<net::Sample> samples;
    for (const int64_t width : {8, 4}) {
      net::Sample sample = model_->blank({model_->in_channels(), 3, 4, width});
      sample.x = random_like(sample.x, 1), sample.context = random_like(sample.context, 2);
      for (auto& [name, value] : sample.extra)
        if (value.is_floating_point() && name != "t") value = random_like(value, 3);
      samples.push_back(std::move(sample));
    }
    batch_ = model_->pack(samples);
    batch_.tokens.samples = {1, 2};  // training: there is dropout
    spec_ = measure(model_->units(), batch_, "model", {.compute = GetParam().compute});
  }

  /// Weights whose values hide nothing: what is zero at the start, and would hide what is before it, is not.
  std::unique_ptr<Store> store() {
    plan_.compute = plan_.param_dtype = GetParam().compute;
    plan_.units.assign(spec_.units.size(), {.strategy = plan::Strategy::no_shard});
    std::vector<std::string> prefixes;
    for (const auto& unit : model_->units()) prefixes.push_back(unit->prefix());
    auto store = std::make_unique<Store>(spec_, prefixes, plan_, 0, at::kCPU);
    fill_shards(*store, [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
      RandomKey(7, Purpose::test, std::hash<std::string>{}(param.name))
          .normal(out, static_cast<uint64_t>(first), count);
      for (int64_t i = 0; i < count; ++i) out[i] *= 0.1f;
    });
    return store;
  }

  /// Moves stream and conditioning on past the unit.
  void pass(Store& store, int unit, std::vector<Tensor>& stream, std::vector<Tensor>& cond) {
    UnitRun forward{.in = leaves(stream, false)};
    ShardContext ctx(store, unit, batch_.tokens);
    net::Flow out = run_forward(*model_->units()[unit], ctx, cond, false, forward);
    stream = std::move(out.stream);
    if (!out.cond.empty()) cond = std::move(out.cond);
  }

  static void expect_same(const Outcome& other, const Outcome& whole, const std::string& what) {
    ASSERT_EQ(other.tensors.size(), whole.tensors.size());
    for (size_t i = 0; i < whole.tensors.size(); ++i) {
      ASSERT_EQ(other.tensors[i].defined(), whole.tensors[i].defined());
      if (whole.tensors[i].defined())
        EXPECT_TRUE(at::equal(other.tensors[i], whole.tensors[i])) << what << ", result " << i;
    }
  }

  enum class Graph { whole, listed, selective, again };
  /// Forward and backward of a unit; `listed`: whole, but seen while it is saved, as where sites leave the device;
  /// `again`: built behind a forward without a graph, of which the results of `kept` are known.
  Outcome run(Store& store, int unit, const std::vector<Tensor>& stream, const std::vector<Tensor>& cond, Graph graph,
              const std::vector<std::string>& kept = {}) {
    store.set_arena(store.layout(unit).total * 4);
    for (size_t b = 0; b < store.layout(unit).buffers.size(); ++b) store.gather(unit, static_cast<int>(b), 0, nullptr);
    store.bind(unit, 0);
    store.bind_grad(unit, -1, true);
    UnitRun run{.in = leaves(stream, unit > (GetParam().lora ? 1 : 0))};  // behind the first that is trained
    const std::vector<Tensor> conditioning = leaves(cond, !GetParam().lora);
    std::vector<Tensor> cond_grad(cond.size()), out_grad, out_cond_grad;
    Outcome outcome;
    const int64_t before = Meter::live();
    for (const std::string& site : kept) run.results[site];
    if (graph == Graph::again) {
      ShardContext first(store, unit, batch_.tokens, {.keep = &run.results});
      run_forward(*model_->units()[unit], first, conditioning, false, run);
      outcome.kept = Meter::live() - before;
    }
    net::Flow out;
    {  // a context ends with its forward, as in a step
      ShardContext ctx(store, unit, batch_.tokens, {.known = &run.results});
      std::optional<SavedStorages> saved;
      if (graph != Graph::whole)
        saved.emplace(foreign_tensors(run.in, conditioning, batch_.tokens), graph != Graph::listed);
      out = run_forward(*model_->units()[unit], ctx, conditioning, true, run);
    }
    run.results.clear();
    outcome.saved = Meter::live() - before - spec_.units[unit].cost.out - spec_.units[unit].cost.cond;
    for (const auto* list : {&out.stream, &out.cond})
      for (const Tensor& t : *list) outcome.tensors.push_back(t.clone());
    for (const Tensor& t : out.stream) out_grad.push_back(random_like(t, 4));
    for (const Tensor& t : out.cond) out_cond_grad.push_back(random_like(t, 5));
    const std::vector<Tensor> given = out.cond;
    out = {};
    const int64_t start = Meter::live();
    Meter::reset_peak();
    for (const Tensor& t :
         run_backward(run, std::move(out_grad), std::move(out_cond_grad), conditioning, cond_grad, store.anchor(unit)))
      outcome.tensors.push_back(t);
    outcome.backward_peak = Meter::peak() - start;
    store.finish_grad(unit);
    for (const Tensor& t : cond_grad) outcome.tensors.push_back(t);
    if (store.grad(unit).defined()) outcome.tensors.push_back(store.grad(unit).clone());
    return outcome;
  }

  std::unique_ptr<net::Denoiser> model_;
  net::Batch batch_;
  plan::ModelSpec spec_;
  plan::Plan plan_;
};

TEST_P(Families, LeanGraphsGiveTheBitsOfTheWholeOnesInTheBytesThatWereMeasured) {
  const std::unique_ptr<Store> store = this->store();
  std::vector<Tensor> stream = batch_.inputs, cond;
  int64_t less = 0;
  for (int u = 0; u < store->units(); ++u) {
    const plan::Footprint& cost = spec_.units[u].cost;
    run(*store, u, stream, cond, Graph::whole);  // kernels may keep scratch of their own from the first call on
    const Outcome whole = run(*store, u, stream, cond, Graph::whole),
                  selective = run(*store, u, stream, cond, Graph::selective);
    expect_same(selective, whole, spec_.units[u].name + ", lean");
    expect_same(run(*store, u, stream, cond, Graph::listed), whole, spec_.units[u].name + ", listed");
    EXPECT_EQ(whole.saved, cost.saved) << spec_.units[u].name;
    EXPECT_EQ(selective.saved, cost.selective->saved) << spec_.units[u].name;
    EXPECT_EQ(selective.backward_peak, cost.selective->backward_peak) << spec_.units[u].name;
    EXPECT_LE(selective.saved, whole.saved) << spec_.units[u].name;
    if (spec_.units[u].kind == "block") less += 10 * selective.saved < 8 * whole.saved;
    pass(*store, u, stream, cond);
  }
  EXPECT_GT(less, 0) << "a block's lean graph saves much less";
}

TEST_P(Families, ResultsThatARecomputeKeepsGiveTheSameBitsInTheBytesThatWereMeasured) {
  const std::unique_ptr<Store> store = this->store();
  std::vector<Tensor> stream = batch_.inputs, cond;
  int feed_forwards = 0;
  for (int u = 0; u < store->units(); ++u) {
    const plan::Footprint& cost = spec_.units[u].cost;
    const Outcome whole = run(*store, u, stream, cond, Graph::whole);
    for (const auto& [site, bytes] : cost.results) {
      const Outcome again = run(*store, u, stream, cond, Graph::again, {site});
      expect_same(again, whole, spec_.units[u].name + ", " + site);
      EXPECT_EQ(again.kept, bytes) << spec_.units[u].name << ", " << site;
      EXPECT_LT(cost.replays.at(site).forward_flops, cost.forward_flops) << site;
      feed_forwards += site == "ffn.2";
    }
    pass(*store, u, stream, cond);
  }
  EXPECT_GT(feed_forwards, 0);
}

models::AdapterRule adapters(bool dora, double dropout) {
  models::AdapterRule rule{.rank = 2, .dora = dora, .dropout = dropout, .targets = {"all"}};
  return rule;
}

INSTANTIATE_TEST_SUITE_P(, Families,
                         ::testing::Values(Family{"t2v", "wan-tiny"}, Family{"t2v_bf16", "wan-tiny", DType::bf16},
                                           Family{"i2v_bf16", "wan-tiny-i2v", DType::bf16},
                                           Family{"flf2v", "wan-tiny-flf2v"},
                                           Family{"ti2v_fp16", "wan-tiny-ti2v", DType::f16},
                                           Family{"s2v", "wan-s2v-tiny"},
                                           Family{"s2v_bf16", "wan-s2v-tiny", DType::bf16},
                                           Family{"lora", "wan-tiny-i2v", DType::f32, adapters(false, 0)},
                                           Family{"lora_bf16", "wan-tiny", DType::bf16, adapters(false, 0)},
                                           Family{"dropout", "wan-tiny", DType::f32, adapters(false, 0.3)},
                                           Family{"dora_bf16", "wan-tiny", DType::bf16, adapters(true, 0)}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::engine
