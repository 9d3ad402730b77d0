// [[plan.units]] of a recipe: what is read, that the resolved recipe and a command line say the same, what is refused.
#include <gtest/gtest.h>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::recipe {
namespace {

class UnitTables : public FolderTest {
 protected:
  Recipe load(const std::string& text, const Overrides& overrides = {}) const {
    write("recipe.toml", text.find("[run]") == text.npos ? "[run]\nsteps = 20\n" + text : text);
    return load_recipe((folder_ / "recipe.toml").string(), overrides);
  }
  std::string refusal(const std::string& text) const {
    try {
      load(text);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "not refused:\n" << text;
    return "";
  }
};

TEST_F(UnitTables, ALogitNormalMayHaveAMeanAndADeviation) {
  const std::string given = "logit_normal(0.5, 1.25)";
  const Recipe recipe = load("[diffusion]\ntimesteps = \"" + given + "\"\n");
  EXPECT_EQ(recipe.diffusion.timesteps, given);
  EXPECT_EQ(load("", {{"diffusion.timesteps", given}}).to_toml(), recipe.to_toml());
  EXPECT_EQ(load(recipe.to_toml()).diffusion.timesteps, given);
  for (const std::string wrong : {"logit_normal(1", "logit_normal(1, 0)", "logit_normal(1, 2)x", "uniform(0, 1)"})
    EXPECT_NE(refusal("[diffusion]\ntimesteps = \"" + wrong + "\"\n").find("logit_normal(MEAN, DEVIATION)"),
              std::string::npos)
        << wrong;
  EXPECT_NE(refusal("[diffusion]\ntimesteps = \"unifrom\"\n").find("did you mean 'uniform'?"), std::string::npos);
}

TEST_F(UnitTables, ListsOnACommandLineHaveTheFormOfRecipesToo) {
  const Recipe recipe =
      load("", {{"data.size", "[64, 96]"}, {"lora.export", "[\"comfyui\", 'kohya']"}, {"train.mode", "lora"}});
  const Recipe plain = load("", {{"data.size", "64,96"}, {"lora.export", "comfyui,kohya"}, {"train.mode", "lora"}});
  EXPECT_EQ(split_list(recipe.values.at("data.size")), split_list(plain.values.at("data.size")));
  EXPECT_EQ(split_list(recipe.values.at("lora.export")), (std::vector<std::string>{"comfyui", "kohya"}));
  EXPECT_EQ(recipe.to_toml(), plain.to_toml());
  EXPECT_EQ(split_list(load("", {{"sample.prompts", "[sks] a dog, running"}}).values.at("sample.prompts")),
            split_list("[sks] a dog, running"))
      << "no list of TOML";
  EXPECT_EQ(split_list(load("", {{"sample.prompts", "[\"a, b\"]"}}).values.at("sample.prompts")),
            std::vector<std::string>{"a, b"});
  EXPECT_THROW(load("", {{"data.size", "[64, [96]]"}}), UserError);
}

constexpr const char* kTables = R"([plan]
compute_dtype = "bf16"
[[plan.units]]
match = "high_noise.*"
strategy = "shard_grad_op"
[[plan.units]]
match = "blocks.2-5"
activations = "recompute"
sites = { self_attn = "keep", "ffn.2" = "offload" }
reshard_after_forward = false
)";

TEST_F(UnitTables, AreReadAndTheResolvedRecipeAndACommandLineSayTheSame) {
  using Keys = std::vector<std::pair<std::string, std::string>>;
  const Recipe recipe = load(kTables);
  ASSERT_EQ(recipe.plan.units.size(), 2u);
  EXPECT_EQ(recipe.plan.units[0], (plan::UnitKeys{"high_noise.*", {{"strategy", "shard_grad_op"}}}));
  EXPECT_EQ(recipe.plan.units[1].match, "blocks.2-5");
  Keys found = recipe.plan.units[1].keys;
  std::ranges::sort(found);
  EXPECT_EQ(found, (Keys{{"activations", "recompute"},
                         {"reshard_after_forward", "false"},
                         {"sites.ffn.2", "offload"},
                         {"sites.self_attn", "keep"}}));
  EXPECT_EQ(load(recipe.to_toml()).plan.units, recipe.plan.units) << recipe.to_toml();
  const Recipe line = load("", {{"plan.units", "high_noise.* strategy=shard_grad_op,blocks.0 states=host"}});
  ASSERT_EQ(line.plan.units.size(), 2u);
  EXPECT_EQ(line.plan.units[0], recipe.plan.units[0]);
  EXPECT_EQ(line.plan.units[1], (plan::UnitKeys{"blocks.0", {{"states", "host"}}}));
  EXPECT_TRUE(load("").plan.units.empty());
}

TEST_F(UnitTables, OfWhichKeysAndPlacesAreWrongAreRefused) {
  EXPECT_NE(refusal("[[plan.units]]\nstrategy = \"full_shard\"\n").find("[[plan.units]] without match"),
            std::string::npos);
  EXPECT_NE(refusal("[[plan.units]]\nmatch = \"*\"\nstratgy = \"full_shard\"\n").find("stratgy: unknown key"),
            std::string::npos);
  EXPECT_NE(refusal("[[plan.units]]\nmatch = \"*\"\nstates = \"nvme\"\n").find("plan.units: * states = \"nvme\""),
            std::string::npos)
      << "a disk has to be named";
  EXPECT_NE(refusal("[[stage]]\nfrom = 3\n[[stage.plan.units]]\nmatch = \"*\"\nstates = \"host\"\n")
                .find("plan.units cannot change within a run"),
            std::string::npos);
}

/// A patch is a list in one family and a number in another, under one key.
TEST(ModelConfig, OneNumberIsANumberAndAListIsAList) {
  const auto config = [](const std::string& patch) {
    return load_recipe("", {{"model.config.patch_size", patch}}).model.config;
  };
  EXPECT_EQ(config("2"), R"({"patch_size":2})");
  EXPECT_EQ(config("1,2,2"), R"({"patch_size":[1,2,2]})");
}

}  // namespace
}  // namespace tessera::recipe
