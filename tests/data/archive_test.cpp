// Clips inside archives that Python's tarfile and zipfile wrote are those of the folder that was archived; archives that
// are damaged are refused and never harm.
#include "tessera/data/files/archive.h"

#include "bounded.h"
#include "data/archive_files.h"
#include "data/scene.h"
#include "tessera/base/random.h"
#include "tessera/data/cache.h"
#include "tessera/data/clips.h"
#include "tessera/data/files/inflate.h"
#include "tessera/data/files/tensor_file.h"

namespace tessera::data {

namespace fs = std::filesystem;

class Archives : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!has_video()) GTEST_SKIP() << "needs a build with FFmpeg";
    if (!has_python()) GTEST_SKIP() << "needs python3, whose archives these are";
    const auto png = write_png(scene(1, 32, 32, 8), 0), jpeg = write_jpeg(scene(1, 32, 48, 8), 0);
    write("set/a.png", std::string(png.begin(), png.end()));
    write("set/a.json", R"({"prompt": "a red square", "height": 32, "width": 32, "_long": null})");
    write("set/b.jpg", std::string(jpeg.begin(), jpeg.end()));
    write("set/b.txt", "a wide one\n");
    write("set/" + long_name() + ".png", std::string(png.begin(), png.end()));
    write("set/" + long_name() + ".json", R"({"prompt": "of a long name"})");
  }
  static std::string long_name() { return "z" + std::string(140, 'n'); }
};

TEST_F(Archives, HoldTheClipsThatWereArchivedInEveryFormOfTar) {
  for (const std::string form : {"PAX", "GNU"}) {
    const Path shard = folder_ / ("shards-" + form) / "00000.tar";
    fs::create_directories(shard.parent_path());
    ASSERT_TRUE(make_tar(folder_, "set", shard.string(), form));
    const Items items = read_dataset({.path = shard.parent_path()});
    ASSERT_EQ(items.size(), 3u) << form;
    EXPECT_EQ(items[0].captions, std::vector<std::string>{"a red square"});
    EXPECT_EQ(items[1].captions, std::vector<std::string>{"a wide one"});
    EXPECT_EQ(items[2].captions, std::vector<std::string>{"of a long name"});
    for (const Item& item : items) {
      const Path beside = folder_ / "set" / item.path.filename();
      EXPECT_EQ(read_bytes(item.path), read(beside)) << item.path;
      const VideoInfo info = probe(item.path), same = probe(beside);
      EXPECT_EQ(info.width, same.width);
      EXPECT_EQ(info.frames, 1);
      EXPECT_EQ(decode_clip(item.path, {.frames = 1, .height = 16, .width = 16}).rgb,
                decode_clip(beside, {.frames = 1, .height = 16, .width = 16}).rgb)
          << item.path << ": the pixels";
    }
    EXPECT_EQ(read_dataset({.path = shard}).size(), 3u) << "the archive itself";
    EXPECT_EQ(file_stamp(items[0].path), file_stamp(items[0].path));
    EXPECT_NE(file_stamp(items[0].path), file_stamp(items[1].path));
  }
}

TEST_F(Archives, VideosInAZipAreReadFromTheMiddleOn) {
  write("videos/c.json", R"({"prompt": "a video", "height": 32.0, "width": 32.0})");
  write_mp4(folder_ / "videos/c.mp4", scene(12, 32, 32, 8));
  ASSERT_TRUE(make_zip(folder_, "videos", "clips.zip"));
  Problems problems;
  const Items items = read_dataset({.path = folder_ / "clips.zip"});
  ASSERT_EQ(items.size(), 1u);
  const ClipRules rules{.buckets = {{4, 32, 32}}, .fps = 8, .mode = ClipMode::chunks};
  const ClipPlan plan = plan_clips(items, Probes(), rules, problems);
  ASSERT_EQ(plan.clips.size(), 3u);
  for (const Clip& clip : plan.clips)
    EXPECT_EQ(decode_clip(items[0].path, plan.spec(clip)).rgb,
              decode_clip(folder_ / "videos/c.mp4", plan.spec(clip)).rgb)
        << clip.start;
  write("mixed/a.txt", "a still one");
  const auto png = write_png(scene(1, 32, 32, 8), 0);
  write("mixed/a.png", std::string(png.begin(), png.end()));
  fs::copy_file(folder_ / "clips.zip", folder_ / "mixed/clips.zip");
  ASSERT_EQ(read_dataset({.path = folder_ / "mixed"}).size(), 1u) << "a folder of clips stays one";
}

// By Python's zipfile, as SANA-Video's data sets are zipped by whoever does not ask for -0.
TEST_F(Archives, OfAZipThatIsCompressedAreTheClipsThatWereZipped) {
  if (!has_inflate()) GTEST_SKIP() << "needs a build with zlib";
  write("videos/c.json", R"({"prompt": "a video", "height": 32.0, "width": 32.0})");
  write_mp4(folder_ / "videos/c.mp4", scene(12, 32, 32, 8));
  const std::vector<float> latent(16, 0.5f);
  write("videos/c.npy", npy_bytes<float>("<f4", "(4, 2, 2)", latent));
  fs::copy_file(folder_ / "set/a.png", folder_ / "videos/d.png"), write("videos/d.txt", "a still one");
  for (const std::string method : {"ZIP_STORED", "ZIP_DEFLATED"}) {
    ASSERT_TRUE(make_zip(folder_, "videos", method + ".zip", method));
    const fs::path zip = folder_ / (method + ".zip");
    int64_t deflated = 0;
    for (const Member& member : members_of(zip)) deflated += member.packed >= 0;
    EXPECT_EQ(deflated, method == "ZIP_STORED" ? 0 : 5);
    const Items items = read_dataset({.path = zip});
    ASSERT_EQ(items.size(), 2u) << method;
    EXPECT_EQ(items[0].captions, std::vector<std::string>{"a video"});
    EXPECT_EQ(items[1].captions, std::vector<std::string>{"a still one"});
    Problems problems;
    const ClipRules rules{.buckets = {{4, 32, 32}}, .fps = 8, .mode = ClipMode::chunks};
    const ClipPlan plan = plan_clips({items[0]}, Probes(), rules, problems);
    ASSERT_EQ(plan.clips.size(), 3u) << method;
    for (const Clip& clip : plan.clips)
      EXPECT_EQ(decode_clip(items[0].path, plan.spec(clip)).rgb,
                decode_clip(folder_ / "videos/c.mp4", plan.spec(clip)).rgb)
          << method << " " << clip.start;
    EXPECT_EQ(decode_clip(items[1].path, {.frames = 1}).rgb, decode_clip(folder_ / "set/a.png", {.frames = 1}).rgb);
    EXPECT_EQ(read_bytes(items[0].path), read(folder_ / "videos/c.mp4"));
    EXPECT_EQ(read_npy(zip / "c.npy").values, latent);
    for (const char* name : {"c.mp4", "d.png"})
      EXPECT_EQ(file_content(zip / name), file_content(folder_ / "videos" / name)) << "however it is zipped";
  }
}

TEST_F(Archives, OfAZipWhatInflatesToSomethingElseIsRefused) {
  if (!has_inflate()) GTEST_SKIP() << "needs a build with zlib";
  write("texts/a.txt", std::string(100'000, 'a'));
  ASSERT_TRUE(make_zip(folder_, "texts", "s.zip", "ZIP_DEFLATED"));
  const std::string whole = read(folder_ / "s.zip");
  const Member member = members_of(folder_ / "s.zip").at(0);
  ASSERT_GT(member.packed, 0);
  const checkpoint::ReadFile file(folder_ / "s.zip");
  EXPECT_EQ(read_member(file, member), std::string(100'000, 'a'));
  const auto refused = [&](Member changed, const std::vector<std::string>& words) {
    expect_error(Exit::input, words, [&] { read_member(file, changed); });
  };
  Member changed = member;
  changed.bytes -= 1;
  refused(changed, {"s.zip/a.txt", "more than the 99999 bytes"});
  changed.bytes += 2;
  refused(changed, {"inflates to 100000 bytes, expected 100001"});
  changed = member, changed.crc32 ^= 1;
  refused(changed, {"checksum"});
  changed = member, changed.packed /= 2;
  refused(changed, {"damaged after"});
  expect_error(Exit::input, {"a.txt", "would inflate to 100000 bytes, expected at most 1000"},
               [&] { read_bytes(folder_ / "s.zip/a.txt", 1000); });

  // what a directory promises beyond what deflated bytes can become, and what they become beyond what is asked
  std::string lie = whole;
  const size_t central = lie.find("PK\x01\x02");
  ASSERT_NE(central, std::string::npos);
  lie.replace(central + 24, 4, "\xfe\xff\xff\x7f", 4);
  write("lie.zip", lie);
  expect_error(Exit::input, {"lie.zip", "would inflate to 2147483646", "more than deflated bytes can"},
               [&] { members_of(folder_ / "lie.zip"); });
  ASSERT_TRUE(run_python(folder_,
                         "import zipfile\nz = zipfile.ZipFile('bomb.zip', 'w', zipfile.ZIP_DEFLATED)\n"
                         "z.writestr('a.mp4', bytes(40 << 20))\nz.close()"));
  expect_refused_cheaply([&] { read_bytes(folder_ / "bomb.zip/a.mp4", 1 << 20); }, {"a.mp4", "at most 1048576"});
  ASSERT_TRUE(make_zip(folder_, "texts", "b.zip", "ZIP_BZIP2"));
  expect_error(Exit::input, {"b.zip", "compressed by method 12", "8 (deflated)", "zip -0"},
               [&] { members_of(folder_ / "b.zip"); });
}

TEST_F(Archives, AreFoundByTheirListAndCountedAgainstIt) {
  fs::create_directories(folder_ / "shards");
  for (const char* name : {"00000.tar", "00001.tar", "spare.tar"})
    ASSERT_TRUE(make_tar(folder_, "set", "shards/" + std::string(name)));
  const auto list = [&](const std::string& shards) {
    write("shards/wids-meta.json", R"({"wids_version": 1, "name": "train", "shardlist": [)" + shards + "]}");
  };
  list(R"({"url": "00001.tar", "nsamples": 3}, {"url": "/gone/with/00000.tar", "nsamples": 3})");
  const Items items = read_dataset({.path = folder_ / "shards"});
  ASSERT_EQ(items.size(), 6u) << "no spare ones, and those of an absolute name beside the list";
  EXPECT_EQ(items[0].path.parent_path().filename(), "00001.tar");
  EXPECT_EQ(read_dataset({.metadata = folder_ / "shards/wids-meta.json"}).size(), 6u);

  Problems problems(/*strict=*/false);
  list(R"({"url": "00000.tar", "nsamples": 4})");
  EXPECT_EQ(read_dataset({.path = folder_ / "shards"}, problems).size(), 3u);
  EXPECT_NE(problems.text().find("holds 3 samples, wids-meta.json counts 4"), std::string::npos) << problems.text();
  list(R"({"url": "00007.tar"})");
  expect_error(Exit::input, {"shardlist[0]", "00007.tar", "no such archive"},
               [&] { read_dataset({.path = folder_ / "shards"}); });
  write("shards/wids-meta.json", R"({"shardlist": 3})");
  expect_error(Exit::input, {"wids-meta.json: shardlist"}, [&] { read_dataset({.path = folder_ / "shards"}); });
}

TEST_F(Archives, ASampleThatLacksItsPictureOrCaptionIsNamedAndTheOthersStay) {
  const auto npy = npy_bytes<float>("<f4", "(4, 2, 2)", std::vector<float>(16, 1));
  write("set/only.npy", npy), write("set/only.json", R"({"prompt": "x"})");
  const auto png = write_png(scene(1, 32, 32, 8), 0);
  write("set/mute.png", std::string(png.begin(), png.end()));
  ASSERT_TRUE(make_tar(folder_, "set", "s.tar"));
  Problems problems(/*strict=*/false);
  EXPECT_EQ(read_dataset({.path = folder_ / "s.tar"}, problems).size(), 3u);
  EXPECT_EQ(problems.size(), 2u);
  const std::string said = problems.text();
  for (const char* words : {"s.tar: only: no picture or video", "data.latents = \"npy\"", "s.tar: mute: no caption"})
    EXPECT_NE(said.find(words), std::string::npos) << words << " in\n" << said;
  Problems captioned(/*strict=*/false);
  EXPECT_EQ(read_dataset({.path = folder_ / "s.tar", .caption = "a thing"}, captioned).size(), 4u);
}

TEST_F(Archives, AFieldMayHaveANameBeforeItsEnding) {
  const auto png = write_png(scene(1, 32, 32, 8), 0);
  const std::string picture(png.begin(), png.end());
  write("named/00000.image.png", picture), write("named/00000.mask.png", picture);
  write("named/00000.caption.txt", "of the first");
  write("named/00001.rgb.png", picture), write("named/00001.meta.json", R"({"prompt": "of the second"})");
  write("named/00002.left.png", picture), write("named/00002.right.png", picture), write("named/00002.txt", "x");
  ASSERT_TRUE(make_tar(folder_, "named", "s.tar"));
  Problems problems(/*strict=*/false);
  const Items items = read_dataset({.path = folder_ / "s.tar"}, problems);
  ASSERT_EQ(items.size(), 2u) << problems.text();
  EXPECT_EQ(items[0].path.filename(), "00000.image.png");
  EXPECT_EQ(items[0].caption(), "of the first");
  EXPECT_EQ(items[1].path.filename(), "00001.rgb.png");
  EXPECT_EQ(items[1].caption(), "of the second");
  EXPECT_NE(problems.text().find("00002: no picture or video, found .left.png, .right.png, .txt"), std::string::npos)
      << "which of two is meant nobody says\n"
      << problems.text();
}

TEST_F(Archives, OfManyMembersEachIsFoundByItsName) {
  for (const int count : {3000, 66'000}) {  // of more than 65,535 the numbers take four bytes
    const int most = count < 10'000 ? 600 : 3;
    ASSERT_TRUE(run_python(folder_, "import io, tarfile\nt = tarfile.open('m.tar', 'w')\nfor i in range(" +
                                        std::to_string(count) +
                                        "):\n"
                                        "  m = tarfile.TarInfo(f'{i % 7}/{i}.txt'); m.size = i % " +
                                        std::to_string(most) +
                                        "\n"
                                        "  t.addfile(m, io.BytesIO(bytes([i % 251]) * m.size))\nt.close()"));
    const std::vector<Member> members = members_of(folder_ / "m.tar");
    ASSERT_EQ(members.size(), static_cast<size_t>(count));
    for (int i = 0; i < count; i += count < 10'000 ? 13 : 997) {
      const std::string name = std::to_string(i % 7) + "/" + std::to_string(i) + ".txt";
      const auto place = find_in_archive(folder_ / "m.tar" / name);
      ASSERT_TRUE(place) << name;
      EXPECT_EQ(members[static_cast<size_t>(i)].name, name);
      EXPECT_EQ(place->member.name, name);
      EXPECT_EQ(place->member.begin, members[static_cast<size_t>(i)].begin);
      EXPECT_EQ(place->member.packed, -1);
      EXPECT_EQ(read_bytes(folder_ / "m.tar" / name),
                std::string(static_cast<size_t>(i % most), static_cast<char>(i % 251)));
    }
    EXPECT_FALSE(is_file(folder_ / "m.tar/1/0.txt"));
  }
}

TEST_F(Archives, LatentsGoToTheBucketThatTheyWereEncodedFor) {
  std::vector<uint16_t> halves = {0x3c00, 0xc000, 0x3800, 0x0001};  // 1, -2, 0.5, 2^-24
  halves.resize(4 * 2 * 3);
  write("latents/a.npy", npy_bytes<uint16_t>("<f2", "(1, 4, 2, 3)", halves));
  write("latents/a.json", R"({"prompt": "x", "height": 64, "width": 96})");
  ASSERT_TRUE(make_tar(folder_, "latents", "s.tar"));
  const Items items = read_dataset({.path = folder_ / "s.tar", .latents = true});
  ASSERT_EQ(items.size(), 1u);
  const NpyArray array = read_npy(items[0].path);
  EXPECT_EQ(array.shape, (NpyShape{1, 4, 2, 3}));
  EXPECT_EQ(latent_shape(array.shape), (NpyShape{4, 1, 2, 3}));
  EXPECT_EQ((std::vector<float>{array.values.begin(), array.values.begin() + 4}),
            (std::vector<float>{1, -2, 0.5, 0x1p-24f}));

  ClipRules rules{.buckets = {{1, 32, 64}, {1, 64, 96}}};
  rules.latent_of = [](const Bucket& b) { return NpyShape{4, 1, b.height / 32, b.width / 32}; };
  Problems problems;
  const ClipPlan plan = plan_clips(items, Probes(), rules, problems);
  ASSERT_EQ(plan.clips.size(), 1u);
  EXPECT_EQ(plan.clips[0].bucket, 1);
  rules.buckets = {{1, 32, 64}};
  expect_error(Exit::input, {"[1, 4, 2, 3]", "are of no bucket", "[4, 1, 1, 2] of 1x32x64", "data.buckets"},
               [&] { plan_clips(items, Probes(), rules, problems); });
  expect_error(Exit::input, {"a.npy", "latents have no pictures"}, [&] { decode_clip(items[0].path, {}); });
}

TEST_F(Archives, ThatAreDamagedAreRefusedByName) {
  ASSERT_TRUE(make_tar(folder_, "set", "s.tar"));
  const std::string whole = read(folder_ / "s.tar");
  const auto refused = [&](std::string bytes, const std::vector<std::string>& words) {
    write("t.tar", bytes);
    expect_error(Exit::input, words, [&] { members_of(folder_ / "t.tar"); });
  };
  refused(whole.substr(0, 700), {"t.tar", "cut short"});
  refused("", {"t.tar", "without its end mark"});
  std::string changed = whole;
  changed[10] = 'x';
  refused(changed, {"t.tar: byte 0", "checksum"});
  refused(whole.substr(0, (whole.find_last_not_of('\0') / 512 + 1) * 512), {"end mark"});
  expect_error(Exit::input, {"no such archive"}, [&] { members_of(folder_ / "gone.tar"); });
  expect_error(Exit::input, {"s.tar: holds no 'q.png'"}, [&] { find_in_archive(folder_ / "s.tar/q.png"); });
  ASSERT_TRUE(run_python(folder_,
                         "import tarfile\nt = tarfile.open('u.tar', 'w')\nt.add('set/a.png', 'a.png')\n"
                         "t.add('set/a.png', 'a.png')\nt.close()"));
  expect_error(Exit::input, {"u.tar", "a.png", "used twice"}, [&] { members_of(folder_ / "u.tar"); });
}

/// Changed anywhere, an archive or array is refused with a UserError or read within its bytes; run it under the
/// address and undefined sanitizers.
TEST_F(Archives, MutatedOnesAreRefusedOrReadAndNeverHarm) {
  write("set/c.npy", npy_bytes<float>("<f4", "(4, 2, 2)", std::vector<float>(16, 1)));
  for (const std::string form : {"PAX", "GNU", "zip", "deflated"}) {
    const bool zip = form == "zip" || form == "deflated";
    const std::string name = "m." + std::string(zip ? "zip" : "tar");
    ASSERT_TRUE(zip ? make_zip(folder_, "set", name, form == "zip" ? "ZIP_STORED" : "ZIP_DEFLATED")
                    : make_tar(folder_, "set", name, form));
    const std::string whole = read(folder_ / name);
    int read_through = 0;
    for (uint64_t round = 0; round < 400; ++round) {
      const RandomKey key(7, Purpose::test, round);
      std::string bytes = whole;
      for (uint64_t k = 0; k <= key.below(0, 3); ++k) {
        const size_t at = key.below(3 * k + 1, bytes.size());
        if (key.below(3 * k + 2, 8) == 0)
          bytes.resize(at + 1);
        else
          bytes[at] = static_cast<char>(key.below(3 * k + 3, 256));
        // checksums are mended, so that what they guard is reached as well
        for (size_t block = at / 512 * 512; !zip && block + 512 <= bytes.size() && k == 0;) {
          int sum = 8 * ' ';
          for (size_t i = 0; i < 512; ++i)
            if (i < 148 || i >= 156) sum += static_cast<unsigned char>(bytes[block + i]);
          char octal[16];
          std::snprintf(octal, sizeof octal, "%06o", sum);
          if (bytes.compare(block + 257, 5, "ustar") == 0) bytes.replace(block + 148, 6, octal, 6);
          break;
        }
      }
      const std::string changed = std::to_string(round) + name;
      write(changed, bytes);
      try {
        for (const Member& member : members_of(folder_ / changed)) {
          ASSERT_GE(member.begin, 0);
          ASSERT_GE(member.bytes, 0);
          ASSERT_LE(member.begin + (member.packed < 0 ? member.bytes : member.packed),
                    static_cast<int64_t>(bytes.size()));
        }
        Problems problems(/*strict=*/false);
        for (const Item& item : read_dataset({.path = folder_ / changed, .latents = round % 2 == 0}, problems))
          if (round % 2 == 0) read_npy(item.path);
        ++read_through;
      } catch (const UserError&) {
      }
      fs::remove(folder_ / changed);
    }
    EXPECT_GT(read_through, 0) << form;
  }
}

TEST_F(Archives, ArraysThatAreNotLatentsAreRefusedByWhatIsWrong) {
  const std::vector<float> values(16, 1);
  const auto refused = [&](const std::string& bytes, const std::vector<std::string>& words) {
    expect_error(Exit::input, words, [&] { read_npy(write("x.npy", bytes)); });
  };
  const std::string good = npy_bytes("<f4", "(4, 2, 2)", values);
  EXPECT_EQ(read_npy(write("x.npy", good)).values, values);
  EXPECT_EQ(npy_shape(write("y.npy", npy_bytes("<f4", "(16,)", values))), (NpyShape{16}));
  refused("", {"x.npy", "cut short"});
  refused("PK\x03\x04 and the rest of a zip", {"does not begin as an .npy"});
  refused(good.substr(0, good.size() - 1), {"its header needs"});
  refused(good + "x", {"its header needs"});
  refused(npy_bytes("|O", "(16,)", values), {"numbers of type", "'<f2'"});
  refused(npy_bytes("<f4", "(4, 0)", values), {"a shape of no or of too many numbers"});
  refused(npy_bytes("<f4", "(9223372036854775807, 2)", values), {"too many numbers"});
  refused(npy_bytes("<f4", "(-4, 2)", values), {"a shape of no"});
  std::string columns = good;
  columns.replace(columns.find("False"), 5, "True ");
  refused(columns, {"columns first"});
  std::vector<float> broken = values;
  broken[3] = std::nanf("");
  refused(npy_bytes("<f4", "(16,)", broken), {"not finite"});
}

}  // namespace tessera::data
