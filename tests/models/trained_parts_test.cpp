// Patterns over the parameters of a model: what they train, freeze and group, and how they are refused.
#include "tessera/models/common/trained_parts.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tessera/base/check.h"
#include "tessera/models/registry.h"

namespace tessera::models {
namespace {

using Names = std::vector<std::string>;

std::unique_ptr<net::Denoiser> tiny(const std::string& preset = "wan-vace-tiny") {
  return make_denoiser({.preset = preset});
}

std::set<std::string> trained(const net::Denoiser& model) {
  std::set<std::string> names;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params)
      if (param.trainable) names.insert(param.name);
  return names;
}

std::set<std::string> chosen(const Names& only, const Names& freeze = {}) {
  const auto model = tiny();
  choose_trained(*model, only, freeze);
  return trained(*model);
}

std::string refusal(const Names& only, const Names& freeze = {}) {
  try {
    chosen(only, freeze);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return std::string(error.what()) + " " + error.hint();
  }
  return "";
}

TEST(TrainedParts, AreNamedByComponentsPatternsAndExpressions) {
  const std::set<std::string> vace = chosen({"vace_blocks", "vace_patch_embedding"});
  ASSERT_FALSE(vace.empty());
  for (const std::string& name : vace) EXPECT_TRUE(name.starts_with("vace_")) << name;
  EXPECT_TRUE(vace.contains("vace_blocks.0.before_proj.weight")) << "it belongs to the stem";
  EXPECT_EQ(chosen({"*vace*"}), vace);
  EXPECT_EQ(chosen({"vace_(blocks|patch)"}), vace);
  EXPECT_EQ(chosen({"blocks.1.self_attn.q"}),
            (std::set<std::string>{"blocks.1.self_attn.q.weight", "blocks.1.self_attn.q.bias"}))
      << "not of vace_blocks.1, whose name only ends so";
  EXPECT_EQ(chosen({"blocks.1.attn1.to_q"}), chosen({"blocks.1.self_attn.q"})) << "diffusers' name";
  EXPECT_EQ(chosen({"blocks.*.ffn.0"}).size(), 8U) << "weight and bias of four blocks, and of no others";
  for (const std::string& name : chosen({"bias"})) EXPECT_TRUE(name.ends_with(".bias")) << name;
  const std::set<std::string> without = chosen({"blocks.1"}, {"bias", "norm_q"});
  EXPECT_TRUE(without.contains("blocks.1.self_attn.q.weight"));
  for (const std::string& name : without)
    EXPECT_FALSE(name.ends_with(".bias") || name.find("norm_q") != name.npos) << name;
}

TEST(TrainedParts, CountWhatIsLeft) {
  const auto model = tiny();
  int64_t all = 0, wanted = 0;
  for (const auto& unit : model->units())
    for (const plan::ParamSpec& param : unit->spec().params) {
      all += param.numel();
      if (param.name.starts_with("head.")) wanted += param.numel();
    }
  const TrainedCount count = choose_trained(*model, {"head"}, {});
  EXPECT_EQ(count.all, all);
  EXPECT_EQ(count.trained, wanted);
  EXPECT_GT(wanted, 0);
}

TEST(TrainedParts, APatternOfNothingIsRefusedWithNearNames) {
  EXPECT_NE(refusal({"vace_block"}).find("did you mean \"vace_blocks\"?"), std::string::npos)
      << refusal({"vace_block"});
  EXPECT_NE(refusal({}, {"self_atn.q"}).find("did you mean \"self_attn.q\"?"), std::string::npos);
  EXPECT_NE(refusal({"blocks.1"}, {"head"}).find("train.only leaves it out already"), std::string::npos);
  EXPECT_NE(refusal({"blocks.1"}, {"blocks"}).find("nothing of the model is left"), std::string::npos);
  EXPECT_NE(refusal({"(a"}).find("no regular expression"), std::string::npos);
}

/// Units of one kind have equal costs: a frozen block behind a trained one passes gradients on, one before it does not.
TEST(TrainedParts, UnitsThatDifferAreOfDifferentKinds) {
  const auto model = tiny("wan-tiny");
  choose_trained(*model, {"blocks.1.ffn"}, {});
  std::map<std::string, std::string> kinds;
  for (const auto& unit : model->units()) kinds[unit->spec().name] = unit->spec().kind;
  ASSERT_TRUE(kinds.contains("blocks.1"));
  EXPECT_NE(kinds.at("blocks.0"), kinds.at("blocks.1"));
  const auto longer = tiny();
  choose_trained(*longer, {"blocks.1.ffn"}, {});
  for (const auto& unit : longer->units()) kinds[unit->spec().name] = unit->spec().kind;
  EXPECT_NE(kinds.at("blocks.0"), kinds.at("blocks.2"));
  EXPECT_NE(kinds.at("blocks.0"), kinds.at("blocks.1"));
}

TEST(ParameterGroups, TheFirstPatternHoldsAndARateOfZeroFreezes) {
  const auto model = tiny();
  const Names patterns = {"norm_q", "blocks.0", "head"};
  check_groups(*model, patterns, {false, false, true});
  const auto groups = parameter_groups(*model, patterns);
  EXPECT_EQ(groups.at("blocks.0.self_attn.norm_q.weight"), 0);
  EXPECT_EQ(groups.at("blocks.0.self_attn.q.weight"), 1);
  EXPECT_FALSE(groups.contains("blocks.1.self_attn.q.weight"));
  for (const std::string& name : trained(*model)) EXPECT_FALSE(name.starts_with("head.")) << name;
  EXPECT_THROW(check_groups(*model, {"head"}, {false}), UserError) << "it is frozen by now";
  EXPECT_THROW(check_groups(*tiny(), {"heads"}, {false}), UserError);
}

}  // namespace
}  // namespace tessera::models
