// Lists of items and clips that keep millions in little memory: what is given is what was put in.
#include <gtest/gtest.h>
#include <malloc.h>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/data/cache.h"
#include "tessera/data/clips.h"
#include "tessera/data/files/records.h"
#include "tessera/data/item.h"

namespace tessera::data {
namespace {

void expect_same(const Item& got, const Item& expected) {
  EXPECT_EQ(got.path, expected.path);
  EXPECT_EQ(got.captions, expected.captions);
  EXPECT_EQ(got.where, expected.where);
  EXPECT_EQ(got.weights, expected.weights);
  EXPECT_EQ(got.class_captions, expected.class_captions);
  EXPECT_EQ(got.references, expected.references);
  EXPECT_EQ(got.direction, expected.direction);
  EXPECT_EQ(got.camera_speed, expected.camera_speed);
  EXPECT_EQ(got.set, expected.set);
  for (const Path Item::*file :
       {&Item::first_image, &Item::last_image, &Item::sound, &Item::mask, &Item::pose, &Item::guide, &Item::guide_mask,
        &Item::control, &Item::camera, &Item::face, &Item::context, &Item::pooled})
    EXPECT_EQ(got.*file, expected.*file);
}

/// Any field filled in or not, texts of any length and byte, paths with and without folders.
Item drawn(uint64_t number) {
  const RandomKey key(5, Purpose::order, number);
  uint64_t at = 0;
  const auto below = [&](uint64_t most) { return key.below(at++, most); };
  const auto text = [&](uint64_t most) {
    std::string made(below(most), ' ');
    for (char& c : made) c = static_cast<char>(below(256));
    return made;
  };
  const auto path = [&] {
    const std::string name = "clip " + std::to_string(below(1000)) + (below(2) ? ".mp4" : "");
    return below(3) == 0 ? Path(name) : Path("/set/" + std::to_string(below(4)) + ".tar") / name;
  };
  Item item{path(), {text(400)}, ""};
  const std::string file = item.path.filename().string();
  item.where = std::vector<std::string>{item.path.string(), "/set/0.tar: " + file.substr(0, 4), "a.csv: row 3",
                                        text(20)}[below(4)];
  item.captions.resize(below(4) == 0 ? below(4) : 1, text(10));
  for (uint64_t i = below(3); i > 1; --i) item.weights.push_back(static_cast<double>(below(100)) / 7 - 3);
  for (uint64_t i = below(4); i > 2; --i) item.class_captions.push_back(text(300));
  for (uint64_t i = below(4); i > 1; --i) item.references.push_back(path());
  if (below(3) == 0) item.direction = text(5);
  if (below(3) == 0) item.camera_speed = -0.25;
  if (below(3) == 0) item.set = static_cast<int>(below(400));
  for (Path Item::*other :
       {&Item::first_image, &Item::last_image, &Item::sound, &Item::mask, &Item::pose, &Item::guide, &Item::guide_mask,
        &Item::control, &Item::camera, &Item::face, &Item::context, &Item::pooled})
    if (below(4) == 0) item.*other = path();
  return item;
}

TEST(Items, AreGivenAsTheyWerePutIn) {
  constexpr size_t kCount = 4000;  // several blocks of bytes
  Items items;
  for (size_t i = 0; i < kCount; ++i) items.push_back(drawn(i));
  Item huge = drawn(0);
  huge.captions[0].assign(3 << 20, 'x');
  items.push_back(huge);
  ASSERT_EQ(items.size(), kCount + 1);
  for (size_t i = 0; i < kCount; ++i) expect_same(items[i], drawn(i));
  expect_same(items.back(), huge);
  size_t i = 0;
  for (const Item& item : items) EXPECT_EQ(item.where, items[i++].where);
  EXPECT_THROW(static_cast<void>(items.at(kCount + 1)), std::out_of_range);
}

TEST(Items, CopiesAndTheirOriginalsGrowApart) {
  Items items{drawn(0), drawn(1)}, copy = items;
  items.push_back(drawn(2)), copy.push_back(drawn(3)), items.push_back(drawn(4));
  copy.edit([](Item& item) { return item.set = 7, true; });
  for (const size_t i : {0, 1, 2}) {
    Item other = drawn(i == 2 ? 3 : i);
    other.set = 7;
    expect_same(copy[i], other);
    expect_same(items[i], drawn(i));
  }
  expect_same(items[3], drawn(4));
  items.append(copy), items.append(items, 0, 2);
  ASSERT_EQ(items.size(), 9u);
  expect_same(items[5], copy[1]), expect_same(items[8], drawn(1));
  Items part;
  part.append(items, 2, 4), part.append(items, 8, 9);
  expect_same(part[0], drawn(2)), expect_same(part[1], drawn(4)), expect_same(part[2], drawn(1));
  part.keep_if([](const Item& item) { return item.path != drawn(4).path; });
  ASSERT_EQ(part.size(), 2u);
  expect_same(part.back(), drawn(1));
}

TEST(Clips, AreGivenAsTheyWerePutInWhateverTheyHaveAlike) {
  Clips clips;
  const auto made = [](int64_t i) {
    return Clip{i / 3,
                static_cast<int>(i % 2),
                i % 97,
                static_cast<double>(i % 97) / 16,
                i % 5 ? 16.0 : 0.0,
                {.top = i % 89 == 0 ? 0.25 : 0},
                i % 7 ? "" : " upright",
                static_cast<int>(i % 3)};
  };
  for (int64_t i = 0; i < 3000; ++i) clips.push_back(made(i));
  ASSERT_EQ(clips.size(), 3000u);
  int64_t i = 0;
  for (const Clip& clip : clips) {
    const Clip expected = made(i++);
    EXPECT_EQ(clip.item, expected.item);
    EXPECT_EQ(clip.bucket, expected.bucket);
    EXPECT_EQ(clip.start, expected.start);
    EXPECT_EQ(clip.seconds, expected.seconds);
    EXPECT_EQ(clip.rate, expected.rate);
    EXPECT_EQ(clip.bars.top, expected.bars.top);
    EXPECT_EQ(clip.reading, expected.reading);
    EXPECT_EQ(clip.set, expected.set);
  }
}

CacheKey cache_key(size_t i, bool text = false) {
  const std::string n = std::to_string(i), path = i % 3 ? "/set/" + n + ".tar/a b/" + n + ".npy" : "alone " + n;
  if (text) return {{{"caption", "or / and\0/" + n}, {"encoder", "e"}, {"version", "2"}}, {}, {}};
  return {{{"source", path}, {"encoder", "0123456789abcdef"}, {"shape", "16x64x96"}, {"version", "2"}},
          {{"", path, n + " bytes, 17.5"}},
          {}};
}

TEST(CacheLists, HaveAnEntryForEachKeyOnce) {
  for (const bool texts : {false, true}) {
    CacheEntries entries("cache", texts);
    constexpr size_t kCount = 3000;
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(entries.add(cache_key(i, texts)), std::pair(i, true));
      EXPECT_EQ(entries.add(cache_key(i / 2, texts)), std::pair(i / 2, false));
    }
    entries.all_added();
    const auto entry_of = [&](size_t i) -> std::optional<CacheEntry> {
      const CacheKey key = cache_key(i, texts);
      if (i % 7 == 0) return std::nullopt;
      return CacheEntry{i % 5 ? key.file("cache") : Path("cache") / ("moved " + std::to_string(i)), key.fields, texts};
    };
    for (size_t i = 0; i < kCount; ++i) entries.set(i, entry_of(i));
    const auto expect_entry = [&](size_t at, const std::optional<CacheEntry>& expected) {
      EXPECT_EQ(entries.has(at), expected.has_value());
      const auto got = entries[at];
      ASSERT_EQ(got.has_value(), expected.has_value());
      if (!got) return;
      EXPECT_EQ(got->file, expected->file);
      EXPECT_EQ(got->is_text, texts);
      EXPECT_NE(got->digest, 0u);
    };
    ASSERT_EQ(entries.size(), kCount);
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(entries.hash(i), cache_key(i, texts).hash());
      expect_entry(i, entry_of(i));
    }
    entries.set(7, entry_of(8)), entries.set(8, std::nullopt), entries.set(10, entry_of(9));
    expect_entry(7, entry_of(8)), expect_entry(8, std::nullopt), expect_entry(9, entry_of(9));
    expect_entry(10, entry_of(9));
    EXPECT_THROW(static_cast<void>(entries.at(8)), InternalError);
  }
}

TEST(NamedRecords, AreFoundByNameAndComeInTheOrderOfNames) {
  NamedRecords known;
  const auto name_of = [](size_t i) {
    return (i % 3 ? "/a/b " + std::to_string(i % 7) + "/" : "") + std::to_string(i);
  };
  constexpr size_t kCount = 3000;
  for (const size_t more : {0, 5}) {
    for (size_t i = 0; i < kCount; ++i) {
      RecordWriter out;
      out.number(i + more), out.text("of " + name_of(i));
      known.put(name_of(i), out);
    }
    for (size_t i = 0; i < kCount; ++i) {
      auto in = known.find(name_of(i));
      ASSERT_TRUE(in.has_value()) << name_of(i);
      EXPECT_EQ(in->number(), i + more);
      EXPECT_EQ(in->text(), "of " + name_of(i));
    }
  }
  EXPECT_FALSE(known.find(""));
  EXPECT_FALSE(known.find("/a/b 1/"));
  EXPECT_FALSE(NamedRecords().find("x"));
  std::vector<std::string> names, sorted;
  known.each_by_name([&](const std::string& name, RecordReader in) {
    names.push_back(name);
    in.number();
    EXPECT_EQ(in.text(), "of " + name);
  });
  sorted = names;
  std::ranges::sort(sorted);
  EXPECT_EQ(names, sorted);
  EXPECT_EQ(names.size(), kCount);
}

/// Ten million have room in a rank's memory: some tens of bytes each beside the caption.
TEST(Items, TakeSomeTensOfBytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers count otherwise";
#endif
  constexpr size_t kCount = 100'000;
  const auto in_use = [] {
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = in_use();
  Items items;
  Clips clips;
  for (size_t i = 0; i < kCount; ++i) {
    const std::string archive = "/data/set/" + std::to_string(i / 1000) + ".tar", key = std::to_string(10'000'000 + i);
    items.push_back({Path(archive) / (key + ".npy"), {"a caption"}, archive + ": " + key});
    clips.push_back({.item = static_cast<int64_t>(i)});
  }
  EXPECT_LT(static_cast<double>(in_use() - before) / kCount, 60);
}

TEST(Records, HoldNumbersOfEverySize) {
  RecordWriter out;
  std::vector<uint64_t> numbers = {0, 127, 128, ~uint64_t{0}};
  for (int bit = 0; bit < 64; ++bit) numbers.push_back(uint64_t{1} << bit);
  for (const uint64_t number : numbers) out.number(number);
  out.text(""), out.real(-0.1), out.text(std::string(200, 'x'));
  RecordReader in(out.bytes().data());
  for (const uint64_t number : numbers) EXPECT_EQ(in.number(), number);
  EXPECT_EQ(in.text(), "");
  EXPECT_EQ(in.real(), -0.1);
  EXPECT_EQ(in.text(), std::string(200, 'x'));
  EXPECT_EQ(in.at(), out.bytes().data() + out.bytes().size());
}

}  // namespace
}  // namespace tessera::data
