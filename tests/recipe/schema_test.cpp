// The JSON schema of recipes, which editors read: it has every key, and takes the recipes that are shipped.

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>

#include "tessera/base/options.h"
#include "tessera/recipe/recipe_file.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/recipe/setting.h"

namespace tessera::recipe {
namespace {

using Json = nlohmann::ordered_json;

/// What the schema says of a key; null where it does not have it.
const Json* schema_of(const Json& root, const std::string& key) {
  const Json* at = &root;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    const auto properties = at->find("properties");
    if (properties == at->end()) return nullptr;
    const auto found = properties->find(key.substr(begin, end - begin));
    if (found == properties->end()) return nullptr;
    at = &*found, begin = end + 1;
  }
  return at;
}

bool is_type(const Json& value, const std::string& type) {
  return type == "string"    ? value.is_string()
         : type == "integer" ? value.is_number_integer()
         : type == "number"  ? value.is_number()
         : type == "boolean" ? value.is_boolean()
         : type == "array"   ? value.is_array()
                             : type == "object" && value.is_object();
}

/// Of JSON Schema as much as this schema uses.
bool takes(const Json& schema, const Json& value) {
  if (const auto any = schema.find("anyOf"); any != schema.end())
    return std::ranges::any_of(*any, [&](const Json& one) { return takes(one, value); });
  if (const auto all = schema.find("enum"); all != schema.end()) return std::ranges::find(*all, value) != all->end();
  if (const auto only = schema.find("const"); only != schema.end()) return *only == value;
  const Json& type = schema.at("type");
  if (type.is_array() ? std::ranges::none_of(type, [&](const Json& one) { return is_type(value, one); })
                      : !is_type(value, type))
    return false;
  if (schema.contains("minimum") && value < schema.at("minimum")) return false;
  if (schema.contains("maximum") && value > schema.at("maximum")) return false;
  if (schema.contains("exclusiveMinimum") && value <= schema.at("exclusiveMinimum")) return false;
  if (schema.contains("exclusiveMaximum") && value >= schema.at("exclusiveMaximum")) return false;
  if (value.is_array())
    for (const Json& item : value)
      if (!takes(schema.at("items"), item)) return false;
  return true;
}

/// A value of a recipe file, which reads as text, as the TOML that it was.
Json value_of(const FileKey& key) {
  const auto scalar = [](const std::string& text) {
    const Json number = Json::parse(text, nullptr, false);
    return number.is_number() || number.is_boolean() ? number : Json(text);
  };
  if (key.value.find(kListSeparator) == std::string::npos) return scalar(key.value);
  Json list = Json::array();
  for (const std::string& item : split_list(key.value)) list.push_back(scalar(item));
  return list;
}

TEST(WhatDoIWant, HasEveryKeyOfDataAndTraining) {
  std::ifstream in(TESSERA_SOURCE_DIR "/docs/what-do-i-want.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  ASSERT_FALSE(page.empty());
  const auto has = [&](const std::string& key) {  // the whole word
    for (size_t at = page.find(key); at != page.npos; at = page.find(key, at + 1))
      if (const char next = page[at + key.size()]; !std::isalnum(static_cast<unsigned char>(next)) && next != '_')
        return true;
    return false;
  };
  const std::set<std::string> tables = {"data", "train", "lora", "diffusion", "eval", "checkpoint", "sample"};
  for (const Setting& setting : settings())
    if (tables.contains(setting.key.substr(0, setting.key.find('.')))) EXPECT_TRUE(has(setting.key)) << setting.key;
  for (const char* key : {"repeats", "weight", "loss_weight", "role", "from_step", "to_step"})
    EXPECT_TRUE(has(std::string("`") + key)) << key;
}

TEST(Schema, HasEveryKeyWithItsHelpAndTakesItsDefault) {
  const Json schema = recipe_schema();
  EXPECT_EQ(schema.at("additionalProperties"), false);
  for (const Option& option : recipe_table().options()) {
    const Json* key = schema_of(schema, option.name);
    ASSERT_TRUE(key) << option.name;
    EXPECT_EQ(key->at("description"), option.help) << option.name;
    if (key->contains("default")) EXPECT_TRUE(takes(*key, key->at("default"))) << option.name << "\n" << *key;
  }
}

TEST(Schema, TakesTheRecipesThatAreShipped) {
  const Json schema = recipe_schema();
  int recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_SOURCE_DIR "/recipes")) {
    ++recipes;
    for (const FileKey& key : read_recipe_file(entry.path()).keys) {
      const Json* found = schema_of(schema, key.name);
      ASSERT_TRUE(found) << entry.path() << " " << key.name;
      EXPECT_TRUE(takes(*found, value_of(key))) << entry.path() << " " << key.name << " = " << key.value << "\n"
                                                << *found;
    }
  }
  EXPECT_GE(recipes, 9);
}

TEST(Schema, RefusesWhatTheRecipeRefuses) {
  const Json schema = recipe_schema();
  const auto taken = [&](const char* key, const Json& value) { return takes(*schema_of(schema, key), value); };
  EXPECT_FALSE(taken("run.steps", 0)) << "at least 1";
  EXPECT_FALSE(taken("run.steps", "many"));
  EXPECT_TRUE(taken("run.steps", 7));
  EXPECT_FALSE(taken("train.mode", "lorra"));
  EXPECT_TRUE(taken("train.mode", "lora"));
  EXPECT_TRUE(taken("run.deterministic", true)) << "TOML has flags";
  EXPECT_TRUE(taken("run.deterministic", "true"));
  EXPECT_TRUE(taken("train.micro_batch", "auto"));
  EXPECT_TRUE(taken("train.micro_batch", 4));
  EXPECT_TRUE(taken("data.size", Json({64, 96})));
  EXPECT_FALSE(schema_of(schema, "train.lrr"));
  EXPECT_FALSE(schema_of(schema, "lr")) << "keys stand in tables";
}

TEST(Schema, AStageHasTheKeysThatMayChangeAndThoseAlone) {
  const Json stage = recipe_schema().at("properties").at("stage").at("items");
  EXPECT_TRUE(schema_of(stage, "from"));
  EXPECT_TRUE(schema_of(stage, "train.lr"));
  EXPECT_TRUE(schema_of(stage, "global_batch")) << "its table may be left out: there is one";
  EXPECT_FALSE(schema_of(stage, "train.optimizer"));
  EXPECT_FALSE(schema_of(stage, "steps")) << "of run and of sample";
}

}  // namespace
}  // namespace tessera::recipe
