// Recipes of strangers, and numbers that nobody means.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "bounded.h"
#include "folder_test.h"
#include "tessera/base/mesh.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/recipe/setting.h"

namespace tessera::recipe {
namespace {

class RecipeAttacks : public FolderTest {
 protected:
  std::string recipe() const { return (folder_ / "recipe.toml").string(); }
};

TEST_F(RecipeAttacks, DepthLettersAndFilesWithoutEndAreRefusedWithTheFile) {
  for (const std::string& text : {"a = " + repeated("[", 200'000), repeated("a.", 200'000) + "a = 1",
                                  std::string("\xc3\xa9 = 1"), std::string("[run]\nout = \"\xff\"")}) {
    write("recipe.toml", text);
    expect_refused_cheaply([&] { load_recipe(recipe(), {}); }, {"recipe.toml, line "});
  }
  std::filesystem::resize_file(folder_ / "recipe.toml", int64_t{1} << 40);
  expect_refused_cheaply([&] { load_recipe(recipe(), {}); }, {"recipe.toml", "expected at most"});
  expect_refused_cheaply([&] { load_recipe("/dev/zero", {}); }, {"/dev/zero: is no regular file"});
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  expect_refused_cheaply([&] { load_recipe((folder_ / "pipe").string(), {}); }, {"pipe: is no regular file"});
}

TEST_F(RecipeAttacks, NumbersThatNobodyMeansAreRefusedWithTheirKey) {
  const std::vector<std::pair<std::string, std::string>> numbers = {
      {"data.frames", "9223372036854775804"},     {"data.repeats", "9223372036854775807"},
      {"train.global_batch", "1099511627776"},    {"fault.timeout", "1e300"},
      {"run.steps", "9223372036854775807"},       {"train.warmup_steps", "9223372036854775807"},
      {"checkpoint.every", "9223372036854775807"}};
  for (const auto& [key, value] : numbers)
    expect_refused_cheaply([&] { load_recipe("", {{key, value}}); }, {key, "expected"});
  expect_refused_cheaply(
      [&] {
        load_recipe("", {{"data.size", "9223372036854775807,9223372036854775807"}});
      },
      {"9223372036854775807"});
  expect_refused_cheaply([&] { load_recipe("", {{"data.buckets", "100000x100000x100000"}}); }, {"pixels"});
}

TEST_F(RecipeAttacks, NumbersWithoutARangeAreFiniteTooAndListsOfSizesAreNumbers) {
  for (const char* key : {"diffusion.logit_mean", "distill.logit_mean", "distill.judged_mean", "data.score_min",
                          "model.config.eps", "model.config.timestep_scale"})
    for (const char* value : {"nan", "inf", "-inf", "1e999"})
      expect_refused_cheaply([&] { load_recipe("", {{key, value}}); }, {key, value, "finite"});
  for (const char* value : {"abc", "1,x", "0.5", "99999999999999999999"})
    expect_refused_cheaply(
        [&] {
          load_recipe("", {{"model.config.vace_layers", value}});
        },
        {"model.config.vace_layers", "whole numbers"});
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"train.betas", "a,b"},
                                                                                   {"train.betas", "0.9,0.999x"},
                                                                                   {"train.betas", "0.9;0.999,0.9"},
                                                                                   {"eval.sigmas", "0.5,high"},
                                                                                   {"data.size", "32.5,32"},
                                                                                   {"data.fps", "1e30"},
                                                                                   {"lora.alpha", "0"},
                                                                                   {"lora.alpha", "-1"},
                                                                                   {"lora.alpha_pattern", "q=0"},
                                                                                   {"data.size", "32px,32px"}})
    expect_refused_cheaply([&] { load_recipe("", {{key, value}}); }, {key, "expected"});
  write("recipe.toml", "[data]\nsize = [32, 32, 3]\n");  // a list is told as it was written
  expect_refused_cheaply([&] { load_recipe(recipe(), {}); }, {"data.size = '32,32,3': expected [height, width]"});
  for (const char* key : {"run.resume", "data.cache", "data.text_encoder", "run.out"})
    expect_refused_cheaply([&] { load_recipe("", {{key, ""}}); }, {key, "is empty"});
}

/// Each key is read with what nobody means. It is refused by its name, or the recipe that says it says it again.
TEST_F(RecipeAttacks, ExtremesOfEveryKeyAreRefusedByNameOrWrittenAsTheyWere) {
  int taken = 0, refused = 0;
  std::vector<std::string> keys;
  for (const Setting& setting : settings()) keys.push_back(setting.key);
  for (const Setting& setting : set_settings()) keys.push_back("data.set.0." + setting.key.substr(11));
  for (const std::string& key : keys)
    for (const std::string value :
         {"", "0", "-1", "0.5", "1e30", "nan", "inf", "9223372036854775807", "99999999999999999999999", "abc",
          "1,2,3,4,5,6,7", ",", "a=b", "/no/such", "\"\n"}) {
      Overrides given = {{key, value}};
      if (key.starts_with("data.set.0.") && key != "data.set.0.path")
        given.insert(given.begin(), {"data.set.0.path", "a"});
      try {
        const Recipe recipe = load_recipe("", given);
        write("recipe.toml", recipe.to_toml());
        write("recipe.toml", load_recipe(this->recipe(), {}).to_toml());  // with numbers in TOML's form
        const std::string again = load_recipe(this->recipe(), {}).to_toml();
        EXPECT_TRUE(again == read(folder_ / "recipe.toml")) << key << " = " << value;
        ++taken;
      } catch (const UserError& error) {
        const std::string told = error.what(), name = key.substr(key.rfind('.') + 1);
        EXPECT_TRUE(error.code() == Exit::usage || error.code() == Exit::input)
            << key << " = " << value << ": " << told;
        EXPECT_NE(told.find(name), std::string::npos) << key << " = " << value << ": " << told;
        ++refused;
      } catch (const std::exception& error) {
        ADD_FAILURE() << key << " = " << value << ": " << error.what();
      }
    }
  EXPECT_GT(taken, 500);
  EXPECT_GT(refused, 2000);
}

TEST_F(RecipeAttacks, AMeshHasNoMoreRanksThanThereAreDevices) {
  expect_refused_cheaply([] { Mesh::parse("dp_shard=1000000").world(); }, {"dp_shard=1000000", "ranks"});
  expect_refused_cheaply([] { Mesh::parse("dp_shard=2147483647,tp=2147483647,cp=2147483647").world(); }, {"ranks"});
}

}  // namespace
}  // namespace tessera::recipe
