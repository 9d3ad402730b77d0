// [[data.set]] of a recipe: what is read, what is refused, and that the resolved recipe says the same.
#include <gtest/gtest.h>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/recipe/load_recipe.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/recipe/stages.h"

namespace tessera::recipe {
namespace {

constexpr const char* kTwo = R"([run]
steps = 20
[data]
frames = 9
size = [64, 64]
caption_prefix = "a film, "
[[data.set]]
path = "clips"
repeats = 2.5
[[data.set]]
path = ["stills", "more"]
frames = 1
size = [128, 96]
caption_prefix = ""
trigger = "sks"
loss_weight = 0.5
)";

class Sets : public FolderTest {
 protected:
  Recipe load(const std::string& text, const Overrides& overrides = {}) const {
    write("recipe.toml", text);
    return load_recipe((folder_ / "recipe.toml").string(), overrides);
  }
  /// What a recipe was resolved to is read back as it is, with its stages once.
  void expect_same(const Recipe& recipe) const {
    const Recipe once = load(recipe.to_toml()), twice = load(once.to_toml());
    EXPECT_EQ(twice.to_toml(), once.to_toml()) << "but for how numbers are written";
    ASSERT_EQ(once.sets.size(), recipe.sets.size());
    for (size_t s = 0; s < recipe.sets.size(); ++s) {
      const Recipe::DataSet &set = once.sets[s], &same = recipe.sets[s];
      EXPECT_EQ(std::tie(set.name, set.repeats, set.weight, set.loss_weight, set.from_step, set.to_step),
                std::tie(same.name, same.repeats, same.weight, same.loss_weight, same.from_step, same.to_step));
      EXPECT_EQ(set.data.paths, same.data.paths);
      EXPECT_EQ(set.data.captions.prefix, same.data.captions.prefix);
      EXPECT_EQ(set.data.clips.buckets, same.data.clips.buckets);
    }
    ASSERT_EQ(once.stages.size(), recipe.stages.size());
    for (size_t s = 0; s < recipe.stages.size(); ++s) {
      EXPECT_EQ(once.stages[s].from, recipe.stages[s].from);
      EXPECT_EQ(once.stages[s].changes, recipe.stages[s].changes);
    }
  }
  /// What is refused says this.
  void refused(const std::string& text, const Overrides& overrides, const std::string& words) const {
    try {
      load(text, overrides);
      ADD_FAILURE() << words;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
};

TEST_F(Sets, HaveKeysOfTheirOwnAndElseThoseOfData) {
  const Recipe recipe = load(kTwo);
  ASSERT_EQ(recipe.sets.size(), 2u);
  const Recipe::DataSet &clips = recipe.sets[0], &stills = recipe.sets[1];
  EXPECT_EQ(clips.name, "clips");
  EXPECT_EQ(clips.repeats, 2.5);
  EXPECT_EQ(clips.data.captions.prefix, "a film, ");
  EXPECT_EQ(clips.data.clips.buckets, (std::vector<data::Bucket>{{9, 64, 64}}));
  EXPECT_EQ(stills.name, "stills, more");
  EXPECT_EQ(stills.data.paths, (std::vector<std::string>{"stills", "more"}));
  EXPECT_EQ(stills.data.captions.prefix, "");
  EXPECT_EQ(stills.data.captions.trigger, "sks");
  EXPECT_EQ(stills.repeats, 1);
  EXPECT_EQ(stills.loss_weight, 0.5);
  EXPECT_EQ(recipe.data.clips.buckets, (std::vector<data::Bucket>{{9, 64, 64}, {1, 128, 96}})) << "shapes of all";
  EXPECT_EQ(recipe.data.frames, 9);
  EXPECT_TRUE(load("[data]\npath = \"clips\"").sets.empty());
  EXPECT_EQ(load("[data]\npath = \"clips\"").data_sets().size(), 1u);
}

TEST_F(Sets, TheResolvedRecipeSaysTheSame) {
  const Recipe recipe = load(kTwo, {{"data.set.1.repeats", "4"}});
  EXPECT_EQ(recipe.sets[1].repeats, 4);
  expect_same(recipe);
  EXPECT_NE(recipe.to_toml().find("[[data.set]]\nrepeats = 2.5\n"), std::string::npos) << recipe.to_toml();
}

TEST_F(Sets, FlagsMakeSetsAsTheFileDoes) {
  const Recipe flags = load(
      "",
      {{"data.set.0.path", "a,b"}, {"data.set.1.path", "c"}, {"data.set.1.weight", "3"}, {"data.set.0.weight", "1"}});
  EXPECT_EQ(flags.sets[0].data.paths, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(flags.sets[1].weight, 3);
  expect_same(flags);
}

TEST_F(Sets, OfOneFolderHaveNamesOfTheirOwn) {
  const Recipe recipe = load("[[data.set]]\npath = \"a\"\n[[data.set]]\npath = \"a\"\nframes = 1\n");
  EXPECT_EQ(recipe.sets[0].name, "a");
  EXPECT_EQ(recipe.sets[1].name, "a #2");
}

TEST_F(Sets, WhatIsWrongIsRefusedByName) {
  refused(kTwo, {{"data.path", "more"}}, "data.path beside [[data.set]]");
  refused(kTwo, {{"data.metadata", "a.csv"}}, "data.metadata beside [[data.set]]");
  refused(kTwo, {{"data.repeats", "3"}}, "data.repeats beside [[data.set]]");
  refused(kTwo, {{"data.set.0.weight", "3"}}, "data.set.0.repeats beside data.set.0.weight");
  refused(kTwo, {{"data.set.1.weight", "3"}}, "1 of 2 [[data.set]] have a weight");
  refused(kTwo, {{"data.set.3.path", "x"}}, "there is no data.set.2");
  refused(kTwo, {{"data.set.2.repeats", "2"}}, "data.set.2.path is empty");
  refused(kTwo, {{"data.set.0.repeats", "0"}}, "data.set.0.repeats = 0: expected above 0");
  refused(kTwo, {{"data.set.0.repeats", "two"}}, "data.set.N.repeats = 'two': expected a number");
  refused(kTwo, {{"data.set.1.loss_weight", "-1"}}, "data.set.1.loss_weight = -1: expected at least 0");
  refused(kTwo, {{"data.set.0.cache", "x"}}, "data.cache is the same for all sets of a run");
  refused(kTwo, {{"data.set.0.repeat", "2"}}, "did you mean data.set.N.repeats?");
  refused(kTwo, {{"data.set.1.size", "64"}}, "[[data.set]] 1");
  refused(kTwo, {{"data.set.1.from_step", "9"}, {"data.set.1.to_step", "8"}}, "lies before its from_step");
  refused(kTwo, {{"data.set.1.from_step", "2"}, {"data.set.0.from_step", "2"}}, "from step 1 on no [[data.set]]");
  refused("[data]\nset = [1]\n", {}, "data.set: expected a table");
}

TEST_F(Sets, AStageChangesThemAndStepsBetweenWhichTheyAreDrawnAreStages) {
  const std::string stage = "[[stage]]\nfrom = 5\n[[stage.data.set]]\nrepeats = 8\n";
  const Recipe changed = load(kTwo + stage);
  const std::vector<RunPart> parts = run_parts(changed);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].recipe.sets[0].repeats, 2.5);
  EXPECT_EQ(parts[1].recipe.sets[0].repeats, 8);
  EXPECT_FALSE(same_data(parts[0].recipe, parts[1].recipe));
  expect_same(changed);

  const Recipe comes = load(kTwo, {{"data.set.1.from_step", "4"}, {"data.set.1.to_step", "9"}});
  const std::vector<RunPart> three = run_parts(comes);
  ASSERT_EQ(three.size(), 3u);
  EXPECT_EQ(three[0].recipe.sets.size(), 1u);
  EXPECT_EQ(three[0].recipe.data.clips.buckets.size(), 1u) << "plans of a part know the shapes of its sets";
  EXPECT_EQ(three[1].first, 4);
  EXPECT_EQ(three[1].recipe.sets.size(), 2u);
  EXPECT_EQ(three[2].first, 10);
  EXPECT_EQ(three[2].recipe.sets.front().name, "clips");
  expect_same(comes);
}

TEST_F(Sets, TheSchemaHasThem) {
  const auto schema = recipe_schema();
  const auto& set = schema["properties"]["data"]["properties"]["set"];
  EXPECT_EQ(set["type"], "array");
  EXPECT_TRUE(set["items"]["properties"].contains("loss_weight"));
  EXPECT_TRUE(set["items"]["properties"].contains("caption_prefix"));
  EXPECT_FALSE(set["items"]["properties"].contains("cache"));
}

}  // namespace
}  // namespace tessera::recipe
