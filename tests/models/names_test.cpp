#include "tessera/models/common/names.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera::models {

namespace {

const std::vector<NamePattern> kTable = {{"blocks.#.o.*", "layers.#.out.0.*"}, {"head.bias", "proj.bias"}};

std::string foreign(const std::string& name, const std::string& naming) {
  return naming == "other" ? rename(kTable, name) : name;
}

Naming detect(const std::vector<std::string>& stored) {
  return detect_naming({"blocks.0.o.weight", "blocks.10.o.weight", "head.bias"}, foreign, {"official", "other"}, stored,
                       "a.safetensors");
}

}  // namespace

TEST(Names, PatternsCarryNumbersAndTheRest) {
  EXPECT_EQ(rename(kTable, "blocks.17.o.weight"), "layers.17.out.0.weight");
  EXPECT_EQ(rename(kTable, "head.bias"), "proj.bias");
  for (const char* other : {"blocks.x.o.weight", "blocks..o.weight", "head.biases", "head.bia", "blocks.1.o"})
    EXPECT_EQ(rename(kTable, other), other) << "no pattern matches";
}

TEST(Names, TheNamingOfAFileIsFoundWithItsPrefix) {
  Naming found = detect({"head.bias", "blocks.0.o.weight", "extra"});
  EXPECT_EQ(found.naming + "|" + found.prefix, "official|");
  found = detect({"model.diffusion_model.blocks.0.o.weight", "model.diffusion_model.head.bias"});
  EXPECT_EQ(found.naming + "|" + found.prefix, "official|model.diffusion_model.");
  found = detect({"proj.bias", "layers.10.out.0.weight"});
  EXPECT_EQ(found.naming + "|" + found.prefix, "other|");
}

TEST(Names, AFileOfAnotherModelIsRefused) {
  try {
    detect({"unet.conv_in.weight"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::input);
    const std::string text = error.what();
    EXPECT_NE(text.find("a.safetensors"), std::string::npos) << text;
    EXPECT_NE(text.find("unet.conv_in.weight"), std::string::npos) << text;
    EXPECT_NE(text.find("blocks.0.o.weight"), std::string::npos) << text;
  }
}

}  // namespace tessera::models
