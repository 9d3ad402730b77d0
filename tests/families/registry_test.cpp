#include "tessera/families/registry.h"

#include <gtest/gtest.h>

#include <set>

namespace tessera::families {

TEST(Families, AKeyNamesAFamilyOrOneOfItsTypesAndNothingTheStandardOne) {
  for (const Family& family : all()) {
    EXPECT_EQ(of(family.name).config_keys.size(), family.config_keys.size());
    for (const std::string& type : family.types) EXPECT_EQ(of(family.name + "-" + type).name, family.name);
  }
  EXPECT_EQ(of("").name, standard().name);
}

TEST(Families, OneThatIsNotListedHasANameAndNothingElse) {
  const Family other = of("other-t2v");
  EXPECT_EQ(other.name, "other");
  EXPECT_TRUE(other.experts.empty() && other.config_keys.empty() && other.files.empty());
}

TEST(Families, ExpertsAreTwoOrNoneAndKeysAreNamedOnce) {
  for (const Family& family : all()) {
    EXPECT_TRUE(family.experts.empty() || family.experts.size() == 2) << family.name;
    std::set<std::string> names;
    for (const ConfigKey& key : family.config_keys) {
      EXPECT_TRUE(names.insert(key.name).second) << key.name;
      EXPECT_FALSE(key.help.empty()) << key.name;
    }
  }
}

TEST(Families, ARoleHasTheFileOfItsVariantElseTheUsualOne) {
  EXPECT_EQ(released_file(standard(), "vae", "2.2")->official, "Wan2.2_VAE");
  EXPECT_EQ(released_file(standard(), "vae", "2.1")->official, "Wan2.1_VAE");
  EXPECT_EQ(released_file(standard(), "vae")->official, "Wan2.1_VAE");
  EXPECT_EQ(released_file(standard(), "text_encoder", "t2v")->comfyui, "umt5_xxl");
  EXPECT_EQ(released_file(standard(), "transformer"), nullptr);
}

TEST(Families, ColumnsAreOursThenTheirs) {
  EXPECT_EQ(column_names({"pose"}, "pose"), (std::vector<std::string>{"pose", "s2v_pose_video", "animate_pose_video"}));
  EXPECT_EQ(column_names({"audio"}, "audio"), std::vector<std::string>{"audio"});
}

TEST(Families, WordsAreListedAsInASentence) {
  EXPECT_EQ(listed({}, "or"), "");
  EXPECT_EQ(listed({"a"}, "or"), "a");
  EXPECT_EQ(listed({"a", "b"}, "and"), "a and b");
  EXPECT_EQ(listed({"a", "b", "c"}, "or"), "a, b or c");
}

}  // namespace tessera::families
