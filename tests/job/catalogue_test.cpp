// What `tessera list` shows can be used.
#include "tessera/job/catalogue.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tessera/base/check.h"
#include "tessera/job/job.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::job {
namespace {

namespace fs = std::filesystem;

TEST(Catalogue, EachKindHasEntriesOfOneShapeAndNoNameTwice) {
  for (const Kind& kind : catalogue()) {
    SCOPED_TRACE(kind.name);
    const std::vector<Entry> entries = kind.entries();
    ASSERT_FALSE(entries.empty());
    std::set<std::string> names;
    for (const Entry& entry : entries) {
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
      ASSERT_EQ(entry.facts.size(), entries.front().facts.size()) << entry.name;
      for (size_t i = 0; i < entry.facts.size(); ++i) {
        EXPECT_EQ(entry.facts[i].first, entries.front().facts[i].first);
        EXPECT_FALSE(entry.facts[i].second.empty()) << entry.name << ": " << entry.facts[i].first;
      }
    }
  }
}

TEST(Catalogue, AnUnknownKindIsNamedWithTheNearest) {
  try {
    catalogue_kind("preset");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("did you mean presets?"), std::string::npos) << error.what();
  }
}

TEST(Catalogue, AutoencodersSayWhatALatentCovers) {
  std::map<std::string, std::string> sizes;
  for (const Entry& entry : catalogue_kind("autoencoders").entries()) sizes[entry.name] = entry.facts[1].second;
  EXPECT_EQ(sizes["haar"], "4 x 8 x 8");
  EXPECT_EQ(sizes["wan2.1-vae"], "4 x 8 x 8");
  EXPECT_EQ(sizes["wan2.2-vae"], "4 x 16 x 16");
  EXPECT_EQ(sizes["dc-ae-f32c32"], "1 x 32 x 32");
  EXPECT_EQ(sizes["hunyuan-vae"], "4 x 8 x 8");
  EXPECT_EQ(sizes["dc-ae-f32t4c128"], "4 x 32 x 32");
  EXPECT_EQ(sizes["opensora1.2-vae"], "4 x 8 x 8");
  EXPECT_EQ(sizes["opensora1.3-vae"], "4 x 8 x 8");
  EXPECT_EQ(sizes["hunyuan15-vae"], "4 x 16 x 16");
}

TEST(Catalogue, PresetsOfOursGoWithEncodersWithoutFiles) {
  const Partners demo = partners_of("wan-demo");
  EXPECT_EQ(demo.autoencoder, "haar");
  EXPECT_EQ(demo.text_encoder, "umt5-demo");
  const Partners released = partners_of("wan2.2-ti2v-5b");
  EXPECT_EQ(released.autoencoder, "wan2.2-vae");
  EXPECT_EQ(released.text_encoder, "umt5-xxl");
}

/// The autoencoder makes the latents and the text encoder the embeddings that the model reads: a job can be made of them.
TEST(Catalogue, EachPresetGoesWithTheEncodersBesideIt) {
  const fs::path folder = fs::temp_directory_path() / ("tessera-catalogue-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "recipe.toml") << "[data]\npath = \".\"\nframes = 17\nsize = [512, 512]\n";
  for (const Entry& entry : catalogue_kind("presets").entries()) {
    SCOPED_TRACE(entry.name);
    const Partners partners = partners_of(entry.name);
    ASSERT_FALSE(partners.autoencoder.empty());
    if (partners.text_encoder.empty()) {  // sizes of tests and benchmarks, whose embeddings come from files of theirs
      EXPECT_TRUE(entry.name.find("-tiny") != std::string::npos || entry.name.find("-bench") != std::string::npos);
      continue;
    }
    recipe::Overrides overrides = {
        {"model.preset", entry.name}, {"data.vae", partners.autoencoder}, {"data.text_encoder", partners.text_encoder}};
    if (partners.autoencoder == "haar")  // of pictures, or of clips
      overrides.push_back({"data.frames", entry.name.starts_with("sana-") ? "1" : "16"});
    if (partners.autoencoder.starts_with("dc-ae")) overrides.push_back({"data.frames", "1"});
    const recipe::Recipe recipe = recipe::load_recipe((folder / "recipe.toml").string(), overrides);
    const Job job = make_job(recipe);
    EXPECT_GT(shapes_of(recipe, *job.model, *job.codec).tokens, 0);
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tessera::job
