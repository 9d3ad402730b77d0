// Recipes of strangers, and numbers that nobody means.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "bounded.h"
#include "folder_test.h"
#include "tessera/base/mesh.h"
#include "tessera/recipe/run_recipe.h"

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

TEST_F(RecipeAttacks, AMeshHasNoMoreRanksThanThereAreDevices) {
  expect_refused_cheaply([] { Mesh::parse("dp_shard=1000000").world(); }, {"dp_shard=1000000", "ranks"});
  expect_refused_cheaply([] { Mesh::parse("dp_shard=2147483647,tp=2147483647,cp=2147483647").world(); }, {"ranks"});
}

}  // namespace
}  // namespace tessera::recipe
