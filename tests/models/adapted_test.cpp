#include "tessera/models/common/adapted.h"

#include <gtest/gtest.h>

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
