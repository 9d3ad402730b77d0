#include "tessera/models/common/adapted.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/models/wan/spec.h"
#include "tessera/net/plain_context.h"

namespace tessera::models {
namespace {

using at::Tensor;

wan::Config tiny() {
  wan::Config c;
  c.dim = 24, c.ffn_dim = 40, c.num_heads = 2, c.num_layers = 2, c.in_dim = 4, c.out_dim = 4;
  c.freq_dim = 16, c.text_dim = 12, c.text_len = 5;
  return c;
}

std::vector<std::string> adapted(std::vector<std::string> targets) {
  wan::Wan model(tiny());
  return adapt(model, {.rank = 2, .targets = std::move(targets)});
}

TEST(Adapted, TargetsAreNamesTheirEndsPatternsAndExpressions) {
  EXPECT_EQ(adapted({}).size(), 20u) << "ten in each block";
  EXPECT_EQ(adapted({"ffn.0"}), (std::vector<std::string>{"blocks.0.ffn.0", "blocks.1.ffn.0"}));
  EXPECT_EQ(adapted({"self_attn.q"}), (std::vector<std::string>{"blocks.0.self_attn.q", "blocks.1.self_attn.q"}));
  EXPECT_EQ(adapted({"attn2.to_out.0"}), (std::vector<std::string>{"blocks.0.cross_attn.o", "blocks.1.cross_attn.o"}))
      << "diffusers' names";
  EXPECT_EQ(adapted({"blocks.1.ffn.2"}), std::vector<std::string>{"blocks.1.ffn.2"});
  EXPECT_EQ(adapted({"blocks.*.cross_attn.*"}).size(), 8u);
  EXPECT_EQ(adapted({"blocks.*(to_q|to_k|to_v|to_out.0)"}).size(), 16u) << "finetrainers' default";
  EXPECT_EQ(adapted({"all"}).size(), 20u);
  EXPECT_EQ(adapted({"head.head"}), std::vector<std::string>{"head.head"});
}

TEST(Adapted, ATargetThatIsNotThereIsNamed) {
  try {
    adapted({"q", "self_attn.p"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("self_attn.p"), std::string::npos) << error.what();
  }
  EXPECT_THROW(adapted({"norm_q"}), UserError) << "a norm is no linear";
}

TEST(Adapted, StoresTheLinearsOfBlocksInTheFormThatIsAskedForAndNothingElse) {
  wan::Wan model(tiny());
  adapt(model, {.rank = 3, .base = DType::i8, .targets = {"ffn.0"}});
  int in_int8 = 0;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) {
      const bool linear = unit->spec().kind == "block" && !param.trainable && param.shape.size() == 2;
      EXPECT_EQ(param.stored, linear ? DType::i8 : DType::f32) << param.name;
      in_int8 += param.stored == DType::i8;
    }
  EXPECT_EQ(in_int8, 20) << "all of them, with and without a pair";
}

TEST(Adapted, FreezesTheBaseAndTrainsThePairs) {
  wan::Wan model(tiny());
  adapt(model, {.rank = 3, .dora = true, .targets = {"ffn.0"}});
  const plan::UnitSpec& block = model.units()[1]->spec();
  std::map<std::string, std::vector<int64_t>> trained;
  for (const auto& param : block.params)
    if (param.trainable) trained[param.name] = param.shape;
  const std::map<std::string, std::vector<int64_t>> expected = {{"blocks.0.ffn.0.lora_A.weight", {3, 24}},
                                                                {"blocks.0.ffn.0.lora_B.weight", {40, 3}},
                                                                {"blocks.0.ffn.0.lora_magnitude_vector", {40}}};
  EXPECT_EQ(trained, expected);
  EXPECT_EQ(model.units()[0]->prefix(), "") << "a unit keeps its name and place";
  EXPECT_EQ(model.units()[1]->output_site(), "gate2");
}

TEST(Adapted, UnitsThatAreAdaptedElsewhereAreAnotherKind) {
  wan::Wan same(tiny()), other(tiny());
  adapt(same, {.rank = 2, .targets = {"q"}});
  EXPECT_EQ(same.units()[1]->spec().kind, same.units()[2]->spec().kind);
  adapt(other, {.rank = 2, .targets = {"blocks.1.ffn.0"}});
  EXPECT_NE(other.units()[1]->spec().kind, other.units()[2]->spec().kind) << "they cost other bytes";
}

/// Weights of a model by name, adapters included; B is not zero here.
net::WeightMap weights_of(const net::Denoiser& model) {
  net::WeightMap weights;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) {
      Tensor value = at::empty(param.shape);
      auto* out = value.mutable_data_ptr<float>();
      if (is_adapter_parameter(param.name))
        initialise_adapter(param, 5, 0, value.numel(), out);
      else
        model.initialise(param, 5, 0, value.numel(), out);
      if (param.name.ends_with("lora_B.weight") || param.name == "head.head.weight")
        value = at::randn(param.shape, at::detail::createCPUGenerator(9), at::kFloat) / 10;
      weights[param.name] = value;
    }
  return weights;
}

net::Batch batch_of(const net::Denoiser& model) {
  net::Sample sample = model.blank({4, 2, 4, 4});
  sample.x = at::randn({4, 2, 4, 4}, at::detail::createCPUGenerator(3), at::kFloat);
  sample.context = at::randn({5, 12}, at::detail::createCPUGenerator(4), at::kFloat);
  sample.t = 500;
  return model.pack({sample});
}

TEST(Adapted, MergedIntoTheWeightsGivesTheSameOutput) {
  wan::Wan base(tiny()), model(tiny());
  const AdapterRule rule{.rank = 2, .alpha = 3, .rslora = true, .targets = {}};
  adapt(model, rule);
  net::WeightMap weights = weights_of(model);
  const net::Batch batch = batch_of(model);
  const Tensor with_pairs = net::run_plain(model.units(), weights, batch);
  const Tensor without = net::run_plain(base.units(), weights, batch);
  for (auto& [name, value] : weights) {
    const std::string module = name.substr(0, name.rfind('.'));
    if (!name.ends_with(".weight") || !weights.count(module + ".lora_A.weight")) continue;
    value =
        value + rule.scale() * at::matmul(weights.at(module + ".lora_B.weight"), weights.at(module + ".lora_A.weight"));
  }
  const Tensor merged = net::run_plain(base.units(), weights, batch);
  EXPECT_TRUE(at::allclose(with_pairs, merged, 1e-4, 1e-5));
  EXPECT_FALSE(at::allclose(with_pairs, without, 1e-4, 1e-5));
}

TEST(Adapted, DropoutIsForTrainingAlone) {
  wan::Wan model(tiny());
  adapt(model, {.rank = 2, .dropout = 0.5, .targets = {}});
  const net::WeightMap weights = weights_of(model);
  net::Batch batch = batch_of(model);
  const Tensor sampled = net::run_plain(model.units(), weights, batch);
  EXPECT_TRUE(at::equal(sampled, net::run_plain(model.units(), weights, batch)));
  batch.tokens.samples = {7};
  batch.tokens.step = 1;
  const Tensor first = net::run_plain(model.units(), weights, batch);
  EXPECT_FALSE(at::equal(first, sampled));
  EXPECT_TRUE(at::equal(first, net::run_plain(model.units(), weights, batch))) << "the same draw for the same step";
  batch.tokens.step = 2;
  EXPECT_FALSE(at::equal(first, net::run_plain(model.units(), weights, batch)));
}

TEST(Adapted, HaveTheScaleAndTheMasksOfTheirRule) {
  EXPECT_EQ((AdapterRule{.rank = 16, .alpha = 8}.scale()), 0.5);
  EXPECT_EQ((AdapterRule{.rank = 16, .alpha = 8, .rslora = true}.scale()), 2);
  const auto trained = [](double dropout, uint64_t seed) {
    wan::Wan model(tiny());
    adapt(model, {.rank = 2, .dropout = dropout, .seed = seed, .targets = {}});
    net::Batch batch = batch_of(model);
    batch.tokens.samples = {7};
    batch.tokens.step = 1;
    return net::run_plain(model.units(), weights_of(model), batch);
  };
  EXPECT_TRUE(at::equal(trained(0.5, 1), trained(0.5, 1)));
  EXPECT_FALSE(at::equal(trained(0.5, 1), trained(0.5, 2))) << "another seed, other masks";
  EXPECT_FALSE(at::equal(trained(0.5, 1), trained(0.25, 1)));
  EXPECT_TRUE(at::equal(trained(0, 1), trained(0, 2)));
}

/// Of LyCORIS: https://github.com/KohakuBlueleaf/LyCORIS, checked against its shapes in the golden case.
TEST(Adapted, DimensionsAreSplitAsInLyCORIS) {
  using Split = std::array<int64_t, 2>;
  EXPECT_EQ(kronecker_split(64, -1), (Split{8, 8}));
  EXPECT_EQ(kronecker_split(48, -1), (Split{6, 8}));
  EXPECT_EQ(kronecker_split(7, -1), (Split{1, 7}));
  EXPECT_EQ(kronecker_split(1, -1), (Split{1, 1}));
  EXPECT_EQ(kronecker_split(5120, -1), (Split{64, 80}));
  EXPECT_EQ(kronecker_split(5120, 8), (Split{8, 640}));
  EXPECT_EQ(kronecker_split(64, 16), (Split{4, 16})) << "the smaller first";
  EXPECT_EQ(kronecker_split(60, 8), (Split{6, 10})) << "a factor that does not divide is the most of the smaller part";
  EXPECT_EQ(kronecker_split(13, 4), (Split{1, 13}));
}

std::map<std::string, std::vector<int64_t>> factor_shapes(const AdapterRule& rule, int64_t out, int64_t in) {
  std::map<std::string, std::vector<int64_t>> all;
  for (const auto& param : adapter_params(rule, {"m.weight", {out, in}})) all[param.name] = param.shape;
  return all;
}
using FactorShapes = std::map<std::string, std::vector<int64_t>>;

TEST(Adapted, FactorsAreWholeOrProductsByRankAndKind) {
  EXPECT_EQ(
      factor_shapes({.rank = 4, .kind = "loha"}, 36, 24),
      (FactorShapes{
          {"m.hada_w1_a", {36, 4}}, {"m.hada_w1_b", {4, 24}}, {"m.hada_w2_a", {36, 4}}, {"m.hada_w2_b", {4, 24}}}));
  EXPECT_EQ(factor_shapes({.rank = 2, .kind = "lokr", .factor = 4}, 48, 64),
            (FactorShapes{{"m.lokr_w1", {4, 4}}, {"m.lokr_w2_a", {12, 2}}, {"m.lokr_w2_b", {2, 16}}}));
  EXPECT_EQ(factor_shapes({.rank = 8, .kind = "lokr", .factor = 4}, 48, 64),
            (FactorShapes{{"m.lokr_w1", {4, 4}}, {"m.lokr_w2", {12, 16}}}))
      << "half of the longer side";
  EXPECT_EQ(factor_shapes({.rank = 1000000, .kind = "lokr"}, 36, 24),
            (FactorShapes{{"m.lokr_w1", {6, 4}}, {"m.lokr_w2", {6, 6}}}));
  EXPECT_EQ(factor_shapes({.rank = 2, .kind = "lokr", .factor = 4, .full_matrix = true}, 24, 36),
            (FactorShapes{{"m.lokr_w1", {4, 4}}, {"m.lokr_w2", {6, 9}}}));
  EXPECT_EQ(factor_shapes({.rank = 2, .kind = "lokr", .factor = 8, .decompose_both = true}, 64, 64),
            (FactorShapes{
                {"m.lokr_w1_a", {8, 2}}, {"m.lokr_w1_b", {2, 8}}, {"m.lokr_w2_a", {8, 2}}, {"m.lokr_w2_b", {2, 8}}}));
  EXPECT_EQ(factor_shapes({.rank = 2, .kind = "lokr", .factor = 4, .decompose_both = true, .unbalanced = true}, 64, 16),
            (FactorShapes{{"m.lokr_w1_a", {16, 2}}, {"m.lokr_w1_b", {2, 4}}, {"m.lokr_w2", {4, 4}}}));
}

TEST(Adapted, FactorsBeginAsInLyCORISAndChangeNothing) {
  const auto drawn = [](const std::string& name, std::vector<int64_t> shape) {
    const plan::ParamSpec param{.name = "m" + name, .shape = std::move(shape)};
    Tensor value = at::empty(param.shape);
    initialise_adapter(param, 3, 0, value.numel(), value.mutable_data_ptr<float>());
    EXPECT_TRUE(is_adapter_parameter(param.name)) << name;
    return value;
  };
  for (const char* zero : {".lokr_w2", ".lokr_w2_b", ".hada_w2_a"})
    EXPECT_EQ(drawn(zero, {16, 16}).abs().max().item<float>(), 0) << zero;
  for (const char* uniform : {".lokr_w1", ".lokr_w1_a", ".lokr_w1_b", ".lokr_w2_a"}) {
    const Tensor value = drawn(uniform, {64, 16});
    EXPECT_LE(value.abs().max().item<float>(), 0.25f) << uniform;
    EXPECT_NEAR(value.std().item<float>(), 0.25 / std::sqrt(3), 0.02) << uniform;
  }
  EXPECT_NEAR(drawn(".hada_w1_a", {64, 64}).std().item<float>(), 0.1, 0.01);
  for (const char* normal : {".hada_w1_b", ".hada_w2_b"})
    EXPECT_NEAR(drawn(normal, {64, 64}).std().item<float>(), 1, 0.05) << normal;
  EXPECT_FALSE(is_adapter_parameter("blocks.0.ffn.0.weight"));
  EXPECT_FALSE(is_adapter_parameter("blocks.0.lokr_w1.weight"));
}

/// The plain context with factors is the base with what they make of its weights.
TEST(Adapted, MergedFactorsGiveTheSameOutput) {
  for (const char* kind : {"loha", "lokr"}) {
    wan::Wan base(tiny()), model(tiny());
    AdapterRule rule{.rank = 2, .alpha = 3};
    rule.kind = kind;
    adapt(model, rule);
    net::WeightMap weights = weights_of(model);
    for (auto& [name, value] : weights)
      if (is_adapter_parameter(name))
        value = at::randn(value.sizes(), at::detail::createCPUGenerator(9), at::kFloat) / 4;
    const net::Batch batch = batch_of(model);
    const Tensor adapted = net::run_plain(model.units(), weights, batch),
                 without = net::run_plain(base.units(), weights, batch);
    for (auto& [name, value] : weights) {
      const std::string module = name.substr(0, name.rfind('.'));
      const auto of = [&](const char* ending) { return weights.at(module + ending); };
      if (!name.ends_with(".weight")) continue;
      if (weights.count(module + ".hada_w1_a"))
        value = value +
                1.5 * at::matmul(of(".hada_w1_a"), of(".hada_w1_b")) * at::matmul(of(".hada_w2_a"), of(".hada_w2_b"));
      if (weights.count(module + ".lokr_w1")) {
        const bool whole = weights.count(module + ".lokr_w2") > 0;
        value = value +
                at::kron(of(".lokr_w1"), whole ? of(".lokr_w2") : 1.5 * at::matmul(of(".lokr_w2_a"), of(".lokr_w2_b")));
      }
    }
    EXPECT_TRUE(at::allclose(adapted, net::run_plain(base.units(), weights, batch), 1e-4, 1e-5)) << kind;
    EXPECT_FALSE(at::allclose(adapted, without, 1e-4, 1e-5)) << kind;
  }
}

TEST(Adapted, PatternsGiveModulesTheirRankAndAlpha) {
  AdapterRule rule{.rank = 4, .alpha = 4, .targets = {}};
  rule.ranks = {{"ffn.0", 8}, {"blocks.0.*", 2}}, rule.alphas = {{"blocks.1.*", 1}}, rule.alpha_is_rank = true;
  wan::Wan model(tiny());
  adapt(model, rule);
  std::map<std::string, std::vector<int64_t>> found;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) found[param.name] = param.shape;
  EXPECT_EQ(found.at("blocks.0.ffn.0.lora_A.weight"), (std::vector<int64_t>{8, 24})) << "the first that matches";
  EXPECT_EQ(found.at("blocks.0.self_attn.q.lora_A.weight"), (std::vector<int64_t>{2, 24}));
  EXPECT_EQ(found.at("blocks.1.self_attn.q.lora_A.weight"), (std::vector<int64_t>{4, 24}));
  EXPECT_EQ(rule.scale("blocks.0.ffn.0"), 1) << "alpha is the module's rank";
  EXPECT_EQ(rule.scale("blocks.1.self_attn.q"), 0.25);
  EXPECT_NE(model.units()[1]->spec().kind, model.units()[2]->spec().kind) << "they cost other bytes";
  for (auto* patterns : {&rule.ranks, &rule.alphas}) {
    AdapterRule wrong = rule;
    (patterns == &rule.ranks ? wrong.ranks : wrong.alphas) = {{"blocks.7.*", 2}};
    wan::Wan other(tiny());
    EXPECT_THROW(adapt(other, wrong), UserError) << "a pattern without a module";
  }
  rule.ranks = {{"ffn.0", 999}};
  wan::Wan other(tiny());
  EXPECT_THROW(adapt(other, rule), UserError);
}

TEST(Adapted, InitialValuesAreThoseOfAnyRange) {
  const plan::ParamSpec a{.name = "x.lora_A.weight", .shape = {4, 16}}, b{.name = "x.lora_B.weight", .shape = {8, 4}};
  std::vector<float> whole(64), part(10), zero(32, 1.0f);
  initialise_adapter(a, 1, 0, 64, whole.data());
  initialise_adapter(a, 1, 20, 10, part.data());
  initialise_adapter(b, 1, 0, 32, zero.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 20));
  for (const float value : whole) EXPECT_LE(std::abs(value), 0.25f);
  for (const float value : zero) EXPECT_EQ(value, 0.0f);
}

}  // namespace
}  // namespace tessera::models
