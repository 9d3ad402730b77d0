#include "tessera/data/cache.h"

#include "data/scene.h"

namespace tessera::data {

class Cache : public FolderTest {
 protected:
  CacheKey key(const std::string& caption = "a road") const {
    return cache_key(folder_ / "a.mp4", caption, "wavelet+umt5:12ab", "16x64x96", "cover+crop, 16 fps");
  }
  void SetUp() override {
    FolderTest::SetUp();
    write("a.mp4", "pixels");
    cache_ = folder_ / "cache";
  }
  CachedSample sample() const {
    CachedSample made;
    made.latent = {{2, 1, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.5}};
    made.context = {{2, 2}, {-1, 0.25, 3e-30f, 4}};
    made.extras["y"] = {{1, 3}, {7, 8, 9}};
    return made;
  }
  Path cache_;
};

TEST_F(Cache, WhatIsWrittenIsLoaded) {
  EXPECT_EQ(cache_problem(cache_, key()), "missing");
  write_cached(cache_, key(), sample());
  EXPECT_EQ(cache_problem(cache_, key()), std::nullopt);
  const CacheReader reader(cache_, {key()});
  const CachedSample back = reader.load(0);
  EXPECT_EQ(reader.size(), 1);
  EXPECT_EQ(back.source, (folder_ / "a.mp4").string());
  EXPECT_EQ(back.latent.shape, sample().latent.shape);
  EXPECT_EQ(back.latent.values, sample().latent.values);
  EXPECT_EQ(back.context.values, sample().context.values);
  EXPECT_EQ(back.extras.at("y").values, sample().extras.at("y").values);
}

TEST_F(Cache, TheFileSaysWhatItWasMadeFrom) {
  write_cached(cache_, key(), sample());
  const auto metadata = checkpoint::SafetensorsFile::open(key().file(cache_)).metadata();
  for (const char* field : {"source", "encoder", "shape", "preprocessing", "version"})
    EXPECT_TRUE(metadata.contains(field)) << field;
  EXPECT_EQ(metadata.at("encoder"), "wavelet+umt5:12ab");
  EXPECT_EQ(key().file(cache_).filename().string().size(), 32 + std::string(".safetensors").size());
}

TEST_F(Cache, EveryFieldOfTheKeyMakesAnotherEntry) {
  std::vector<std::string> hashes = {key().hash()};
  for (std::string CacheKey::*field :
       {&CacheKey::source, &CacheKey::caption, &CacheKey::encoder, &CacheKey::shape, &CacheKey::preprocessing}) {
    CacheKey other = key();
    other.*field += "x";
    EXPECT_EQ(std::count(hashes.begin(), hashes.end(), other.hash()), 0);
    hashes.push_back(other.hash());
  }
}

TEST_F(Cache, AReplacedClipMakesItsEntryStale) {
  write_cached(cache_, key(), sample());
  write("a.mp4", "other pixels");
  EXPECT_NE(cache_problem(cache_, key()).value_or("").find("stale: stamp"), std::string::npos);
  expect_error(Exit::input, {"1 of 2 samples are not prepared", "a.mp4", "tessera prepare RECIPE"}, [&] {
    const CacheKey fresh = key("another caption");
    write_cached(cache_, fresh, sample());
    CacheReader(cache_, {fresh, key()});
  });
  write_cached(cache_, key(), sample());
  EXPECT_EQ(cache_problem(cache_, key()), std::nullopt) << "preparing again mends it";
}

TEST_F(Cache, AnEntryLostOrDamagedLaterIsNamed) {
  write_cached(cache_, key(), sample());
  const CacheReader reader(cache_, {key()});
  const Path path = key().file(cache_);
  const std::string whole = read(path);
  write("cache/" + path.filename().string(), whole.substr(0, whole.size() - 5));
  expect_error(Exit::input, {path.filename().string()}, [&] { reader.load(0); });
  EXPECT_NE(cache_problem(cache_, key()).value_or("").find("unreadable"), std::string::npos);
  std::filesystem::remove(path);
  expect_error(Exit::input, {"a.mp4", "missing", "tessera prepare RECIPE"}, [&] { reader.load(0); });
}

TEST_F(Cache, BytesThatAreNotThoseThatWereWrittenAreFoundWhenTheyAreRead) {
  write_cached(cache_, key(), sample());
  const std::string name = key().file(cache_).filename().string(), whole = read(key().file(cache_));
  EXPECT_EQ(cache_damage(cache_, key()), std::nullopt);
  const CacheReader reader(cache_, {key()});
  for (const size_t from_end : {1, 9, 20, 70}) {  // in every tensor: a bit, or zeros where a block was lost
    std::string flipped = whole;
    flipped[whole.size() - from_end] ^= 0x10;
    write("cache/" + name, flipped);
    EXPECT_EQ(cache_problem(cache_, key()), std::nullopt) << "the header tells nothing of it";
    expect_error(Exit::input, {name, "damaged: the bytes of", "was written", "tessera prepare RECIPE"},
                 [&] { reader.load(0); });
    EXPECT_NE(cache_damage(cache_, key()).value_or("").find("damaged"), std::string::npos);
  }
  write("cache/" + name, whole.substr(0, whole.size() - 40) + std::string(40, '\0'));
  expect_error(Exit::input, {name, "damaged"}, [&] { reader.load(0); });
}

TEST_F(Cache, EntriesWithoutChecksumsStayReadable) {
  const CachedSample made = sample();
  checkpoint::make_folder(cache_);
  checkpoint::write_safetensors(key().file(cache_),
                                {{"latent", DType::f32, made.latent.shape, made.latent.values.data()},
                                 {"context", DType::f32, made.context.shape, made.context.values.data()}},
                                key().metadata());
  EXPECT_EQ(cache_problem(cache_, key()), std::nullopt);
  EXPECT_EQ(cache_damage(cache_, key()), std::nullopt);
  EXPECT_EQ(CacheReader(cache_, {key()}).load(0).latent.values, made.latent.values);
}

TEST_F(Cache, TensorsOfAnotherFormAreRefused) {
  CachedSample flat = sample();
  flat.latent.shape = {12};
  write_cached(cache_, key(), flat);
  expect_error(Exit::input, {"latent: expected [C, f, h, w], found [12]"},
               [&] { CacheReader(cache_, {key()}).load(0); });
}

TEST_F(Cache, AMissingSourceIsNamed) {
  expect_error(Exit::input, {"gone.mp4", "no such file"}, [&] { cache_key(folder_ / "gone.mp4", "", "", "", ""); });
}

}  // namespace tessera::data
