// [[data.set]] of a recipe: what is read, what is refused, and that the resolved recipe says the same.
#include <gtest/gtest.h>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/recipe/run_recipe.h"
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

TEST_F(Sets, HaveMasksControlsAndRolesOfTheirOwn) {
  const Recipe recipe = load(kTwo, {{"data.mask_suffix", "-mask.png"},
                                    {"data.set.1.mask_suffix", ""},
                                    {"data.set.1.mask_path", "masks"},
                                    {"data.set.1.invert_mask", "true"},
                                    {"data.set.1.mask_min_value", "0.25"},
                                    {"data.set.1.mask_resize", "nearest"},
                                    {"data.set.0.control_path", "controls"},
                                    {"data.set.1.role", "regularisation"}});
  EXPECT_EQ(recipe.sets[0].data.masks.suffix, "-mask.png");
  EXPECT_EQ(recipe.sets[0].data.masks.resize, "area");
  EXPECT_FALSE(recipe.sets[0].data.invert_mask);
  EXPECT_EQ(recipe.sets[0].data.control_path, "controls");
  EXPECT_EQ(recipe.sets[0].role, Recipe::Role::train);
  EXPECT_EQ(recipe.sets[1].data.masks.folder, "masks");
  EXPECT_EQ(recipe.sets[1].data.masks.suffix, "");
  EXPECT_TRUE(recipe.sets[1].data.invert_mask);
  EXPECT_EQ(recipe.sets[1].data.mask_min_value, 0.25);
  EXPECT_EQ(recipe.sets[1].data.masks.resize, "nearest");
  EXPECT_EQ(recipe.sets[1].data.control_path, "");
  EXPECT_EQ(recipe.sets[1].role, Recipe::Role::regularisation);
  EXPECT_TRUE(recipe.masked());
  expect_same(recipe);
  EXPECT_TRUE(load(kTwo, {{"data.set.1.alpha_mask", "true"}}).masked()) << "a set alone may have masks";
  EXPECT_FALSE(load(kTwo).masked());
  refused(kTwo, {{"data.set.0.mask_path", "a"}, {"data.set.0.alpha_mask", "true"}}, "a clip has one mask");
  refused(kTwo, {{"data.set.0.role", "teacher"}}, "train|regularisation|prior");
  refused(kTwo, {{"data.set.0.role", "prior"}}, "train.mode = \"full\" has none");
  refused(kTwo + std::string("[[stage]]\nfrom = 5\n[[stage.data.set]]\nmask_path = \"m\"\n"), {},
          "data.set.0.mask_path cannot change within a run");
}

TEST_F(Sets, TwinsNeedAdaptersAnEvenBatchAndAWordToReplace) {
  const Overrides good = {{"train.mode", "lora"},
                          {"train.global_batch", "4"},
                          {"train.preserve", "class"},
                          {"train.preserve_class", "d"},
                          {"data.set.0.trigger", "s"}};
  const auto with = [&](Overrides more) {
    Overrides all = good;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_EQ(load(kTwo, good).clips_of(4), 2);
  EXPECT_TRUE(load(kTwo, good).asks_base());
  EXPECT_EQ(load(kTwo).clips_of(4), 4);
  refused(kTwo, with({{"train.mode", "full"}}), "train.preserve = \"class\" takes what the model says without");
  refused(kTwo, with({{"train.global_batch", "5"}}), "a batch has 5 samples");
  refused(kTwo, with({{"data.set.0.buckets", "9x64x64=3"}}), "a batch has 3 samples");
  refused(kTwo, with({{"train.preserve_class", ""}}), "without train.preserve_class");
  refused(kTwo, with({{"data.set.0.trigger", ""}}), "without data.trigger of clips");
  EXPECT_NO_THROW(load(kTwo, with({{"data.set.1.trigger", ""}, {"data.set.1.role", "regularisation"}})));
  EXPECT_NO_THROW(load(kTwo, with({{"train.preserve", "blank"}, {"data.set.0.trigger", ""}})));
  refused(kTwo, with({{"experts.router", "gate"}}), "a gate sums the predictions");
}

/// Other tables of lists stand as lines in a recipe; their keys are flags by number all the same.
TEST_F(Sets, FlagsChangeKeysOfGroupsAndUnits) {
  const std::string groups =
      "[[train.group]]\nmatch = \"norm_q\"\nlr = 1e-5\n[[train.group]]\nmatch = \"*bias\"\nweight_decay = 0\n";
  const auto lines = [&](const Overrides& overrides, const char* key = "train.group") {
    return split_list(load(groups, overrides).values.at(key));
  };
  EXPECT_EQ(lines({{"train.group.0.lr", "2e-6"}}),
            (std::vector<std::string>{"norm_q lr=2e-6", "*bias weight_decay=0"}));
  EXPECT_EQ(lines({{"train.group.1.lr_factor", "3"}, {"train.group.1.match", "*gain"}}),
            (std::vector<std::string>{"norm_q lr=1e-05", "*gain weight_decay=0 lr_factor=3"}));
  EXPECT_EQ(lines({{"train.group.2.match", "head*"}, {"train.group.2.lr", "0"}}).back(), "head* lr=0");
  EXPECT_EQ(lines({{"plan.units.0.match", "blocks.*"}, {"plan.units.0.activations", "recompute"}}, "plan.units"),
            (std::vector<std::string>{"blocks.* activations=recompute"}));
  refused(groups, {{"train.group.2.lr", "1"}}, "train.group has 2 tables");
  refused(groups, {{"train.group.4.match", "x"}}, "--train.group.2.match");
  refused(groups, {{"train.group.0.rate", "1"}}, "unknown key 'rate'");
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
