#include "tessera/data/cache.h"

#include "data/scene.h"
#include "tessera/base/hash.h"
#include "tessera/data/cache_search.h"

namespace tessera::data {

namespace fs = std::filesystem;

class Cache : public FolderTest {
 protected:
  CacheKey clip(std::vector<RowFile> files = {}) const {
    return clip_key({.source = folder_ / "a.mp4",
                     .encoder = "wavelet",
                     .shape = "16x64x96",
                     .preprocessing = "cover+crop, 16 fps",
                     .files = std::move(files),
                     .encoder_before = "wavelet+umt5:12ab"});
  }
  CacheKey text(const std::string& caption = "a road") const { return text_key(caption, "umt5", "wavelet+umt5:12ab"); }
  void SetUp() override {
    FolderTest::SetUp();
    write("a.mp4", "pixels");
    cache_ = folder_ / "cache";
  }
  static CachedClip made() {
    CachedClip clip{{{2, 1, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.5}}, {}};
    clip.extras["y"] = {{1, 3}, {7, 8, 9}};
    return clip;
  }
  static CachedText encoded() { return {{{2, 2}, {-1, 0.25, 3e-30f, 4}}, {{3}, {5, 6, 7}}}; }
  CacheSearch search(int64_t rows = 2) const {
    return {cache_, Contents(cache_ / "contents.jsonl"), [rows](const std::string&) { return rows; }};
  }
  void write_both() const {
    write_clip(cache_, clip(), made(), {});
    write_caption(cache_, text(), encoded());
  }
  /// An entry as version 1 wrote it, with the stamp that the clip has now: both in one file.
  Path write_first_version(const std::string& caption, bool checksums = true) const {
    checkpoint::Metadata fields = {{"source", (folder_ / "a.mp4").string()}, {"caption", caption},
                                   {"encoder", "wavelet+umt5:12ab"},         {"shape", "16x64x96"},
                                   {"preprocessing", "cover+crop, 16 fps"},  {"version", "1"}};
    const Path path = cache_ / (CacheKey{fields, {}, {}}.hash() + ".safetensors");
    fields["stamp"] = file_stamp(folder_ / "a.mp4");
    const CachedClip latent = made();
    const CachedText context = encoded();
    const auto checksum = [&](const char* name, const CachedTensor& tensor) {
      char digits[16];
      std::snprintf(digits, sizeof digits, "%08x", crc32c(tensor.values.data(), 4 * tensor.values.size()));
      if (checksums) fields[std::string("crc32c.") + name] = digits;
    };
    checksum("latent", latent.latent), checksum("context", context.context);
    checkpoint::make_folder(cache_);
    checkpoint::write_safetensors(path,
                                  {{"latent", DType::f32, latent.latent.shape, latent.latent.values.data()},
                                   {"context", DType::f32, context.context.shape, context.context.values.data()},
                                   {"pooled", DType::f32, context.pooled.shape, context.pooled.values.data()}},
                                  fields);
    return path;
  }
  void touch(const Path& path, int hours) const {
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::hours(hours));
  }
  Path cache_;
};

TEST_F(Cache, WhatIsWrittenIsRead) {
  EXPECT_FALSE(search().find(clip()).entry.has_value());
  EXPECT_EQ(search().find(clip()).stale, "") << "missing is not stale";
  write_both();
  const auto found = search().find(clip()), caption = search().find(text());
  ASSERT_TRUE(found.entry && caption.entry) << found.stale << caption.stale;
  EXPECT_EQ(found.entry->name, (folder_ / "a.mp4").string());
  const CachedClip back = read_clip(*found.entry);
  EXPECT_EQ(back.latent.shape, made().latent.shape);
  EXPECT_EQ(back.latent.values, made().latent.values);
  ASSERT_EQ(back.extras.size(), 1u);
  EXPECT_EQ(back.extras.at("y").values, made().extras.at("y").values);
  EXPECT_EQ(read_caption(*caption.entry).context.values, encoded().context.values);
  EXPECT_EQ(read_caption(*caption.entry).pooled.values, encoded().pooled.values);
  EXPECT_TRUE(read_caption(*caption.entry).glyphs.shape.empty()) << "nothing stands in quotes";
  CachedText quoted = encoded();
  quoted.pooled = {}, quoted.glyphs = {{3, 2}, {1, 2, 3, 4, 5, 6.5}};
  write_caption(cache_, text("a \"road\""), quoted);
  const CachedText back_text = read_caption(*search().find(text("a \"road\"")).entry);
  EXPECT_EQ(back_text.glyphs.shape, quoted.glyphs.shape);
  EXPECT_EQ(back_text.glyphs.values, quoted.glyphs.values);
  EXPECT_TRUE(back_text.pooled.shape.empty());
}

TEST_F(Cache, AnotherCaptionNeedsAnotherTextAndTheSameClip) {
  write_both();
  EXPECT_TRUE(search().find(clip()).entry.has_value());
  EXPECT_FALSE(search().find(text("a long road")).entry.has_value());
}

TEST_F(Cache, TheFileSaysWhatItWasMadeFrom) {
  write_both();
  const auto header = checkpoint::SafetensorsFile::open(clip().file(cache_)).metadata();
  for (const char* field : {"source", "encoder", "shape", "preprocessing", "stamp", "content"})
    EXPECT_TRUE(header.contains(field)) << field;
  EXPECT_EQ(header.at("encoder"), "wavelet");
  EXPECT_EQ(header.at("version"), "2");
  EXPECT_EQ(checkpoint::SafetensorsFile::open(text().file(cache_)).metadata().at("caption"), "a road");
  EXPECT_EQ(clip().file(cache_).filename().string().size(), 32 + std::string(".safetensors").size());
  EXPECT_EQ(clip().file(cache_).parent_path(), cache_);
  EXPECT_EQ(text().file(cache_).parent_path(), cache_ / "texts");
}

TEST_F(Cache, EveryFieldOfTheKeyMakesAnotherEntry) {
  write("b.png", "a picture");
  for (const CacheKey& key : {clip({{"first", folder_ / "b.png"}}), text()}) {
    std::vector<std::string> hashes = {key.hash()};
    for (const auto& [name, value] : key.fields) {
      CacheKey other = key;
      other.fields[name] += "x";
      EXPECT_EQ(std::count(hashes.begin(), hashes.end(), other.hash()), 0) << name;
      hashes.push_back(other.hash());
    }
  }
  EXPECT_NE(clip({{"first", folder_ / "b.png"}}).hash(), clip().hash());
}

TEST_F(Cache, AReplacedClipMakesItsEntryStaleAndATouchedOneDoesNot) {
  write("b.png", "a picture");
  const auto key = [this] { return clip({{"first", folder_ / "b.png"}}); };
  write_clip(cache_, key(), made(), {});
  touch(folder_ / "a.mp4", 3), touch(folder_ / "b.png", 5);
  ASSERT_EQ(search().changed({key()}), (std::vector<Path>{folder_ / "a.mp4", folder_ / "b.png"}));
  EXPECT_TRUE(search().find(key()).entry.has_value()) << search().find(key()).stale;

  write("b.png", "a paintin");
  EXPECT_NE(search().find(key()).stale.find("stale: stamp.first is"), std::string::npos) << "as long as before";
  write("b.png", "a picture"), write("a.mp4", "other pixels");
  const std::string stale = search().find(key()).stale;
  for (const char* part : {"stale: stamp is '6 bytes, ", "expected '12 bytes, ", "content is '6 bytes, crc32c "})
    EXPECT_NE(stale.find(part), std::string::npos) << stale;
  write_clip(cache_, key(), made(), {});
  EXPECT_TRUE(search().find(key()).entry.has_value()) << "encoding again mends it";
}

/// A data set in another folder: its content decides, also of the row's other files.
TEST_F(Cache, AMovedClipKeepsItsEntryWhileItsContentIsTheSame) {
  const auto in = [&](const std::string& folder, const std::string& clip) {
    return clip_key({.source = folder_ / folder / clip,
                     .encoder = "wavelet",
                     .shape = "16x64x96",
                     .preprocessing = "cover+crop start=8",
                     .files = {{"first", folder_ / folder / "pictures/first.png"}}});
  };
  const auto make = [&](const std::string& folder) {
    fs::create_directories(folder_ / folder / "pictures");
    write(folder + "/a.mp4", "pixels"), write(folder + "/b.mp4", "longer"), write(folder + "/c.mp4", "of another size");
    write(folder + "/pictures/first.png", "png");
  };
  make("set");
  write_clip(cache_, in("set", "a.mp4"), made(), {});
  const Path entry = in("set", "a.mp4").file(cache_);
  make("deep/er");  // written again: another time
  const CacheKey moved = in("deep/er", "a.mp4");
  EXPECT_EQ(search().changed({moved, in("deep/er", "c.mp4")}),
            (std::vector<Path>{moved.sources[0].path, moved.sources[1].path}));
  const auto found = search().find(moved);
  ASSERT_TRUE(found.entry && found.moved) << found.stale;
  EXPECT_EQ(found.entry->file, entry);
  EXPECT_EQ(read_clip(*found.entry).latent.values, made().latent.values);
  EXPECT_FALSE(search().find(in("deep/er", "b.mp4")).entry) << "another clip";
  write("deep/er/pictures/first.png", "gif");
  EXPECT_FALSE(search().find(moved).entry) << "the picture of its row is another one";
  make("deep/er"), write("deep/er/a.mp4", "pixelz");
  EXPECT_FALSE(search().find(in("deep/er", "a.mp4")).entry) << "of the same size, with other content";
}

TEST_F(Cache, ARenamedClipKeepsItsEntryAndOnlyFilesOfItsSizeAreRead) {
  const auto named = [&](const std::string& clip, const std::string& picture, const std::string& made = "cover+crop") {
    return clip_key({.source = folder_ / clip,
                     .encoder = "wavelet",
                     .shape = "16x64x96",
                     .preprocessing = made,
                     .files = {{"first", folder_ / picture}, {"last", folder_ / "end.png"}}});
  };
  write("end.png", "end"), write("b.png", "a picture");
  write_clip(cache_, named("a.mp4", "b.png"), made(), {});
  EXPECT_TRUE(search().changed({named("a.mp4", "b.png")}).empty()) << "nothing changed: nothing is read";
  fs::rename(folder_ / "a.mp4", folder_ / "new first=name.mp4"), fs::rename(folder_ / "b.png", folder_ / "c.png");
  write("d.mp4", "another clip"), write("e.mp4", "sixels"), write("f.mkv", "pixels");
  const CacheKey renamed = named("new first=name.mp4", "c.png");
  EXPECT_EQ(search().changed({renamed}).size(), 3u);
  EXPECT_TRUE(search().changed({named("d.mp4", "c.png")}).empty()) << "no entry is of a clip of its size";
  const auto found = search().find(renamed);
  ASSERT_TRUE(found.entry && found.moved) << found.stale;
  EXPECT_EQ(read_clip(*found.entry).latent.values, made().latent.values);
  EXPECT_FALSE(search().find(named("e.mp4", "c.png")).entry) << "its content differs";
  EXPECT_FALSE(search().find(named("f.mkv", "c.png")).entry) << "another kind of file";
  EXPECT_FALSE(search().find(named("new first=name.mp4", "end.png")).entry) << "another picture";
  EXPECT_FALSE(search().find(named("new first=name.mp4", "c.png", "cover+crop start=8")).entry) << "another part";
  EXPECT_FALSE(search().find(named("new first=name.mp4", "c.png", "cover")).entry) << "made in another way";
}

TEST_F(Cache, ClipsThatTradeTheirNamesTradeTheirEntries) {
  write("b.mp4", "others");
  const auto key = [&](const char* clip) {
    return clip_key({.source = folder_ / clip, .encoder = "wavelet", .shape = "1x1x1", .preprocessing = "cover"});
  };
  for (const char* clip : {"a.mp4", "b.mp4"}) write_clip(cache_, key(clip), made(), {});
  write("a.mp4", "others"), write("b.mp4", "pixels");
  touch(folder_ / "a.mp4", 1), touch(folder_ / "b.mp4", 1);
  const auto traded = search().find({key("a.mp4"), key("b.mp4")});
  ASSERT_TRUE(traded[0].entry && traded[1].entry) << traded[0].stale << traded[1].stale;
  EXPECT_EQ(traded[0].entry->file, key("b.mp4").file(cache_));
  EXPECT_EQ(traded[1].entry->file, key("a.mp4").file(cache_));

  write("c.mp4", "others");
  EXPECT_TRUE(search().find(key("c.mp4")).entry.has_value()) << "of a clip that is not in this data set";
  write_clip(cache_, key("a.mp4"), made(), {});
  write_clip(cache_, key("b.mp4"), made(), {});
  const std::vector<CacheKey> copies = {key("a.mp4"), key("b.mp4"), key("c.mp4")};
  EXPECT_TRUE(search().changed(copies).empty()) << "no content is read to find copies";
  EXPECT_FALSE(search().find(copies)[2].entry) << "a copy beside its clip has an entry of its own";
}

TEST_F(Cache, TrustTakesAMovedClipByNameOrTimeAndReadsNothing) {
  const auto key = [&](const std::string& clip) {
    return clip_key({.source = folder_ / clip, .encoder = "wavelet", .shape = "1x1x1", .preprocessing = "cover"});
  };
  const auto trusted = [&](const std::string& clip) {
    CacheSearch trusting = search();
    const int64_t files = trusting.trust({key(clip)});
    EXPECT_EQ(files, trusting.find(key(clip)).entry ? 1 : 0) << clip;
    trusting.contents().write(cache_ / "contents.jsonl");
    return files == 1;
  };
  write_clip(cache_, key("a.mp4"), made(), {});
  const auto time = fs::last_write_time(folder_ / "a.mp4");
  fs::create_directories(folder_ / "set");
  write("set/a.mp4", "sixels"), write("b.mp4", "sixels"), write("c.mp4", "pixels");
  fs::last_write_time(folder_ / "b.mp4", time), touch(folder_ / "c.mp4", 1), touch(folder_ / "set/a.mp4", 1);
  EXPECT_TRUE(trusted("set/a.mp4")) << "of the same name and size";
  EXPECT_TRUE(trusted("b.mp4")) << "of the same size and time";
  EXPECT_FALSE(trusted("c.mp4")) << "only its content would tell";
  EXPECT_TRUE(search().changed({key("b.mp4")}).empty()) << "it is written down, and not read later either";
  EXPECT_TRUE(search().find(key("b.mp4")).entry.has_value());

  fs::create_directories(folder_ / "other");
  write("other/a.mp4", "others"), write("d.mp4", "others");
  fs::last_write_time(folder_ / "other/a.mp4", time), fs::last_write_time(folder_ / "d.mp4", time);
  write_clip(cache_, key("other/a.mp4"), made(), {});
  EXPECT_FALSE(trusted("d.mp4")) << "it may be either of two";
}

TEST_F(Cache, ContentIsReadOnceForAStamp) {
  const Path file = cache_ / "contents.jsonl", clip = folder_ / "a.mp4";
  int64_t done = 0;
  update_contents(file, {clip, clip}, [&](int64_t n) { done = n; });
  EXPECT_EQ(done, 1) << "each file once";
  EXPECT_TRUE(Contents(file).knows(clip));
  EXPECT_EQ(Contents(file).of(clip), file_content(clip));
  update_contents(file, {clip}, [&](int64_t) { ADD_FAILURE() << "it is known"; });
  touch(clip, 1);
  EXPECT_FALSE(Contents(file).knows(clip));
  write("cache/contents.jsonl", "no JSON\n" + read(file));
  EXPECT_EQ(Contents(file).of(clip), "6 bytes, crc32c " + file_content(clip).substr(16));
}

TEST_F(Cache, TrustTakesFilesForWhatTheyWereAndRemembersIt) {
  write_both();
  write("a.mp4", "other pixels");
  ASSERT_FALSE(search().find(clip()).entry.has_value());
  CacheSearch trusting = search();
  EXPECT_EQ(trusting.trust({clip()}), 1);
  EXPECT_TRUE(trusting.find(clip()).entry.has_value());
  trusting.contents().write(cache_ / "contents.jsonl");
  EXPECT_TRUE(search().find(clip()).entry.has_value()) << "the next program reads it";
  write("a.mp4", "pixels again");
  EXPECT_FALSE(search().find(clip()).entry.has_value()) << "what comes later is not trusted";
}

TEST_F(Cache, EntriesOfVersionOneAreUsedWhereTheyAreRight) {
  write_first_version("a road");
  const auto found = search().find(clip()), caption = search().find(text());
  ASSERT_TRUE(found.entry && caption.entry) << found.stale << caption.stale;
  EXPECT_EQ(found.entry->file, caption.entry->file) << "one file has both";
  EXPECT_EQ(read_clip(*found.entry).latent.values, made().latent.values);
  EXPECT_EQ(read_clip(*found.entry).extras.size(), 0u) << "context and pooled are the text's";
  EXPECT_EQ(read_caption(*caption.entry).context.values, encoded().context.values);
  EXPECT_EQ(read_caption(*caption.entry).pooled.values, encoded().pooled.values);

  EXPECT_FALSE(search().find(text("a long road")).entry.has_value());
  EXPECT_FALSE(search(/*rows=*/5).find(text()).entry.has_value()) << "it was cut at two tokens";
  EXPECT_FALSE(search(/*rows=*/-1).find(text()).entry.has_value()) << "the encoder's dtype is another";
  CacheKey other = clip();
  other.before["encoder"] = "another";
  EXPECT_FALSE(search().find(other).entry.has_value());
  other = clip();
  other.before["shape"] = "16x64x64";
  EXPECT_FALSE(search().find(other).entry.has_value());
}

TEST_F(Cache, AVersionOneEntryOfAChangedClipIsStaleUnlessTrusted) {
  write_first_version("a road");
  touch(folder_ / "a.mp4", 1);
  EXPECT_NE(search().find(clip()).stale.find("stale: stamp is"), std::string::npos) << "it does not say its content";
  EXPECT_TRUE(search().find(text()).entry.has_value()) << "a text is of no clip";
  CacheSearch trusting = search();
  EXPECT_EQ(trusting.trust({clip()}), 1);
  EXPECT_TRUE(trusting.find(clip()).entry.has_value());
}

TEST_F(Cache, AnEntryLostOrReplacedLaterIsNamed) {
  write_both();
  const CacheEntry entry = *search().find(clip()).entry;
  const std::string whole = read(entry.file), name = entry.file.filename().string();
  write("cache/" + name, whole.substr(0, whole.size() - 5));
  expect_error(Exit::input, {name}, [&] { read_clip(entry); });
  EXPECT_NE(search().find(clip()).stale.find("unreadable"), std::string::npos);
  write("a.mp4", "other pixels");
  write_clip(cache_, clip(), made(), {});
  expect_error(Exit::input, {name, "a.mp4", "stale: content is", "tessera prepare RECIPE"}, [&] { read_clip(entry); });
  fs::remove(entry.file);
  expect_error(Exit::input, {"a.mp4", "missing", "tessera prepare RECIPE"}, [&] { read_clip(entry); });
}

TEST_F(Cache, BytesThatAreNotThoseThatWereWrittenAreFoundWhenTheyAreRead) {
  write_both();
  for (const CacheKey& key : {clip(), text()}) {
    const CacheEntry entry = *search().find(key).entry;
    const std::string name = fs::relative(entry.file, folder_).string(), whole = read(entry.file);
    EXPECT_EQ(damage(entry), std::nullopt);
    for (const size_t from_end : {1, 17}) {  // in every tensor
      std::string flipped = whole;
      flipped[whole.size() - from_end] ^= 0x10;
      write(name, flipped);
      EXPECT_TRUE(search().find(key).entry.has_value()) << "the header tells nothing of it";
      EXPECT_NE(damage(entry).value_or("").find("damaged: the bytes of"), std::string::npos);
    }
    write(name, whole.substr(0, whole.size() - 12) + std::string(12, '\0'));
    expect_error(Exit::input, {entry.file.filename().string(), "damaged", "was written", "tessera prepare RECIPE"},
                 [&] { key.is_text() ? void(read_caption(entry)) : void(read_clip(entry)); });
  }
}

TEST_F(Cache, EntriesWithoutChecksumsStayReadable) {
  write_first_version("a road", /*checksums=*/false);
  const auto found = search().find(clip());
  ASSERT_TRUE(found.entry.has_value());
  EXPECT_EQ(damage(*found.entry), std::nullopt);
  EXPECT_EQ(read_clip(*found.entry).latent.values, made().latent.values);
}

TEST_F(Cache, TensorsOfAnotherFormAreRefused) {
  CachedClip flat = made();
  flat.latent.shape = {12};
  write_clip(cache_, clip(), flat, {});
  expect_error(Exit::input, {"latent: expected [C, f, h, w], found [12]"},
               [&] { read_clip(*search().find(clip()).entry); });
}

TEST_F(Cache, AMissingSourceIsNamed) {
  expect_error(Exit::input, {"gone.mp4", "no such file"}, [&] { clip_key({.source = folder_ / "gone.mp4"}); });
}

TEST_F(Cache, EntriesThatNobodyNeedsAreRemovedAndNothingElse) {
  write_both();
  const Path old = write_first_version("an old caption");
  write_caption(cache_, text("an old caption"), encoded());
  write("cache/contents.jsonl", ""), write("cache/tokenizer-0123456789abcdef.model", "");
  write("cache/a model of somebody.safetensors", "");
  const auto removed = remove_unused(cache_, {clip().file(cache_), text().file(cache_)});
  EXPECT_EQ(removed.entries, 2);
  EXPECT_GT(removed.bytes, 200);
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(search().find(clip()).entry && search().find(text()).entry);
  for (const char* name : {"contents.jsonl", "tokenizer-0123456789abcdef.model", "a model of somebody.safetensors"})
    EXPECT_TRUE(fs::exists(cache_ / name)) << name;
}

}  // namespace tessera::data
