#include "tessera/base/options.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera {
namespace {

const OptionTable& table() {
  static const OptionTable options({{"run.out", Kind::text, "runs/a", "folder"},
                                    {"run.steps", Kind::integer, "100", "optimiser steps"},
                                    {"train.lr", Kind::number, "1e-4", "learning rate"},
                                    {"plan.budget", Kind::bytes, "24GiB", "device memory"},
                                    {"data.encoders", Kind::choice, "cached", "where", "cached|host|device"},
                                    {"data.path", Kind::paths, "", "folders"},
                                    {"sample.prompts", Kind::list, "", "texts"}});
  return options;
}

std::string refusal(const std::string& name, const std::string& value) {
  Values values = table().defaults();
  try {
    table().set(values, name, value, "--" + name);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return std::string(error.what()) + " " + error.hint();
  }
  return "accepted";
}

TEST(Options, ValuesBeginWithTheirDefaults) {
  Values values = table().defaults();
  EXPECT_EQ(to_integer(values.at("run.steps")), 100);
  EXPECT_EQ(to_number(values.at("train.lr")), 1e-4);
  table().set(values, "run.steps", "7", "a.toml");
  EXPECT_EQ(to_integer(values.at("run.steps")), 7);
}

TEST(Options, AnUnknownKeyNamesPlaceAndNearest) {
  const std::string said = refusal("train.lrr", "1");
  EXPECT_NE(said.find("--train.lrr"), std::string::npos) << said;
  EXPECT_NE(said.find("train.lr"), std::string::npos) << said;
}

TEST(Options, AValueMustBeOfItsKind) {
  EXPECT_NE(refusal("run.steps", "ten"), "accepted");
  EXPECT_NE(refusal("run.steps", "1.5"), "accepted");
  EXPECT_NE(refusal("train.lr", "fast"), "accepted");
  EXPECT_NE(refusal("plan.budget", "much"), "accepted");
  EXPECT_NE(refusal("data.encoders", "hosts").find("host"), std::string::npos);
  EXPECT_EQ(refusal("data.encoders", "host"), "accepted");
}

TEST(Options, ListsAreSplitAtCommasUnlessTheyCameAsLists) {
  EXPECT_EQ(split_list("a, b"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(split_list("").empty());
  const std::string listed = std::string("a, b") + kListSeparator + "c" + kListSeparator;
  EXPECT_EQ(split_list(listed), (std::vector<std::string>{"a, b", "c"}));
}

TEST(Options, OnePathIsWrittenAsATextAndSeveralAsAList) {
  Values values = table().defaults();
  const auto written = [&](const std::string& paths) {
    values["data.path"] = paths;
    const std::string toml = table().to_toml(values);
    return toml.substr(toml.find("path = "), toml.find('\n', toml.find("path = ")) - toml.find("path = "));
  };
  EXPECT_EQ(written("clips, of May"), "path = \"clips, of May\"");
  EXPECT_EQ(written(std::string("a, b") + kListSeparator + "1" + kListSeparator), "path = [\"a, b\", \"1\"]");
}

TEST(Options, NumbersAreWrittenAsTomlHasThem) {
  const Option& lr = *table().find("train.lr");
  for (const auto& [given, written] : {std::pair(".1", "0.1"),
                                       {"1.", "1.0"},
                                       {"0x1p-3", "0.125"},
                                       {"00.5", "0.5"},
                                       {"01", "1"},
                                       {".5e3", "500.0"},
                                       {"99999999999999999999999", "1e+23"},
                                       {"1e-4", "1e-4"},
                                       {"1.5e+3", "1.5e+3"},
                                       {"0.10", "0.10"},
                                       {"-1", "-1"}})
    EXPECT_EQ(toml_value(lr, given), written);
  EXPECT_EQ(toml_value(*table().find("run.steps"), "064"), "64");
  const Option& list = *table().find("sample.prompts");  // a prompt stays what it is
  EXPECT_EQ(toml_value(list, "0.9,.9,007,1.,a"), R"([0.9, ".9", "007", "1.", "a"])");
}

TEST(Options, TomlHasEveryOption) {
  const std::string toml = table().to_toml(table().defaults());
  for (const Option& option : table().options()) {
    const std::string key = option.name.substr(option.name.find('.') + 1);
    if (!option.fallback.empty()) EXPECT_NE(toml.find(key + " = "), std::string::npos) << toml;
  }
}

}  // namespace
}  // namespace tessera
