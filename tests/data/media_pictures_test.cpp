// Pictures as their files say that they are shown: turned, opaque, of stored pixels, in sRGB; cut ones are refused.
#include "data/archive_files.h"
#include "data/media.h"
#include "tessera/data/clips.h"
#include "tessera/data/files/picture_header.h"
#include "tessera/data/icc.h"

namespace tessera::data {

namespace {

std::string number(uint32_t value, size_t count, bool little) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * (little ? i : count - 1 - i)));
  return bytes;
}

/// EXIF data of one directory with an orientation, 3: SHORT, 4: LONG.
std::string exif(int orientation, bool little = true, uint32_t type = 3) {
  const auto n = [&](uint32_t value, size_t count) { return number(value, count, little); };
  const std::string value =
      type == 3 ? n(static_cast<uint32_t>(orientation), 2) + n(0, 2) : n(static_cast<uint32_t>(orientation), 4);
  return (little ? "II" : "MM") + n(42, 2) + n(8, 4) + n(2, 2) + n(0x0110, 2) + n(2, 2) + n(1, 4) + n(0, 4) +
         n(0x0112, 2) + n(type, 2) + n(1, 4) + value + n(0, 4);
}

std::string jpeg_with(const std::string& jpeg, char marker, const std::string& data) {
  return jpeg.substr(0, 2) + "\xFF" + marker + number(static_cast<uint32_t>(data.size() + 2), 2, false) + data +
         jpeg.substr(2);
}
/// Decoders compare no checksums here.
std::string png_with(const std::string& png, const std::string& name, const std::string& data) {
  constexpr size_t kAfterHeader = 33;
  return png.substr(0, kAfterHeader) + number(static_cast<uint32_t>(data.size()), 4, false) + name + data +
         std::string(4, '\0') + png.substr(kAfterHeader);
}
std::string webp_with(const std::string& webp, int width, int height, const std::string& data) {
  const auto chunk = [](const std::string& name, std::string bytes) {
    const auto size = static_cast<uint32_t>(bytes.size());
    if (size % 2) bytes += '\0';
    return name + number(size, 4, true) + bytes;
  };
  constexpr uint32_t kHasExif = 8;
  const std::string head = number(kHasExif, 4, true) + number(static_cast<uint32_t>(width - 1), 3, true) +
                           number(static_cast<uint32_t>(height - 1), 3, true);
  const std::string body = "WEBP" + chunk("VP8X", head) + webp.substr(12) + chunk("EXIF", data);
  return "RIFF" + number(static_cast<uint32_t>(body.size()), 4, true) + body;
}
/// Without compression, RGB.
std::string tiff(int width, int height, int orientation, const Paint& paint) {
  std::string pixels, fields;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (size_t c = 0; c < 3; ++c) pixels += static_cast<char>(paint(x, y)[c]);
  const auto n = [&](uint32_t value, size_t count) { return number(value, count, true); };
  constexpr uint32_t kFields = 10, kPixels = 8 + 2 + kFields * 12 + 4 + 6;
  const auto field = [&](uint32_t tag, uint32_t type, uint32_t count, uint32_t value) {
    fields += n(tag, 2) + n(type, 2) + n(count, 4) + n(value, 4);
  };
  const auto w = static_cast<uint32_t>(width), h = static_cast<uint32_t>(height);
  field(256, 4, 1, w), field(257, 4, 1, h), field(258, 3, 3, kPixels - 6), field(259, 3, 1, 1), field(262, 3, 1, 2);
  field(273, 4, 1, kPixels), field(274, 3, 1, static_cast<uint32_t>(orientation)), field(277, 3, 1, 3);
  field(278, 4, 1, h), field(279, 4, 1, w * h * 3);
  return "II" + n(42, 2) + n(8, 4) + n(kFields, 2) + fields + n(0, 4) + n(8, 2) + n(8, 2) + n(8, 2) + pixels;
}

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

constexpr int kAcross = 48, kDown = 32;
Rgba quarter_at(int x, int y) { return quarters(x, y, kAcross, kDown); }

}  // namespace

class MediaPictures : public FolderTest {
 protected:
  static std::string jpeg() {
    Frames frames{.count = 1, .height = kDown, .width = kAcross, .fps = 25, .rgb = {}};
    for (int y = 0; y < kDown; ++y)
      for (int x = 0; x < kAcross; ++x)
        for (size_t c = 0; c < 3; ++c) frames.rgb.push_back(static_cast<uint8_t>(quarter_at(x, y)[c]));
    const auto bytes = write_jpeg(frames, 0);
    return {bytes.begin(), bytes.end()};
  }
  static std::string png() { return picture_file("png", *painted(AV_PIX_FMT_RGB24, kAcross, kDown, quarter_at)); }
  static std::string webp() { return picture_file("libwebp", *painted(AV_PIX_FMT_BGRA, kAcross, kDown, quarter_at)); }

  /// The picture shown in its own size.
  Frames shown(const std::string& name, const std::string& bytes, const Showing& showing = {}) const {
    return decode_clip(write(name, bytes), {.frames = 1, .showing = showing});
  }
};

TEST_F(MediaPictures, OfEveryOrientationAreShownUpright) {
  const char* kShown[] = {"RGBW", "GRWB", "WBGR", "BWRG", "RBGW", "BRWG", "WGBR", "GWRB"};
  for (int o = 1; o <= 8; ++o) {
    const std::pair<const char*, std::string> files[] = {
        {"a.jpg", jpeg_with(jpeg(), '\xE1', std::string("Exif\0\0", 6) + exif(o))},
        {"big.jpg", jpeg_with(jpeg(), '\xE1', std::string("Exif\0\0", 6) + exif(o, /*little=*/false, 4))},
        {"a.png", png_with(png(), "eXIf", exif(o, /*little=*/false))},
        {"a.webp", webp_with(webp(), kAcross, kDown, exif(o))},
        {"a.tiff", tiff(kAcross, kDown, o, quarter_at)}};
    for (const auto& [name, bytes] : files) {
      const Frames picture = shown(name, bytes);
      EXPECT_EQ(colours_of(picture), kShown[o - 1]) << name << " " << o;
      EXPECT_EQ(picture.width, o > 4 ? kDown : kAcross) << name << " " << o;
      const VideoInfo info = probe(folder_ / name);
      EXPECT_EQ(std::pair(info.width, info.height), std::pair(picture.width, picture.height)) << name << " " << o;
      EXPECT_EQ(info.traits.has(Trait::turned), o != 1) << name << " " << o;
      // cut to a shape as it is shown
      EXPECT_EQ(colours_of(decode_clip(folder_ / name, {.frames = 1, .height = 16, .width = 16})), kShown[o - 1]);
    }
  }
  EXPECT_EQ(colours_of(shown("plain.tif", tiff(kAcross, kDown, 1, quarter_at))), "RGBW");
}

TEST_F(MediaPictures, OrientationsThatAreNoneAndDamagedDataAreNotTurned) {
  const auto of = [&](const std::string& data) {
    return read_picture_header(jpeg_with(jpeg(), '\xE1', std::string("Exif\0\0", 6) + data)).orientation;
  };
  EXPECT_EQ(of(exif(6)), 6);
  for (const int none : {0, 9, 255}) EXPECT_EQ(of(exif(none)), 1);
  EXPECT_EQ(of(exif(6, true, 2)), 1) << "a text";
  const std::string whole = exif(6);
  for (size_t size = 0; size + 6 < whole.size(); ++size) EXPECT_EQ(of(whole.substr(0, size)), 1) << size;
  std::string far = whole;
  far.replace(4, 4, "\xFF\xFF\xFF\xFF");  // a directory beyond the end
  EXPECT_EQ(of(far), 1);
  EXPECT_EQ(read_picture_header("").orientation, 1);
  EXPECT_EQ(read_picture_header(png().substr(0, 40)).orientation, 1);
}

TEST_F(MediaPictures, ACutJpegIsRefusedWhereverItLies) {
  const std::string whole = jpeg();
  EXPECT_EQ(colours_of(shown("whole.jpg", whole)), "RGBW");
  EXPECT_EQ(colours_of(shown("more.jpg", whole + std::string(300, '\0'))), "RGBW") << "what follows the end";
  for (const size_t size : {whole.size() - 1, whole.size() - 2, whole.size() * 3 / 4, whole.size() / 2}) {
    const std::string cut = whole.substr(0, size);
    expect_error(Exit::input, {"half.jpg", "cut short", "end marker"}, [&] { shown("half.jpg", cut); });
    expect_error(Exit::input, {"half.jpg", "cut short"}, [&] { probe(folder_ / "half.jpg"); });
    expect_error(Exit::input, {"padded.jpg", "cut short"}, [&] { shown("padded.jpg", cut + std::string(999, '\0')); });
  }
  // 8 x 8, progressive: two of its scans, then all
  const std::string progressive = from_hex(
      "ffd8ffe000104a46494600010100000100010000ffdb0043000d090a0b0a080d0b0a0b0e0e0d0f13201513121213271c1e17202e"
      "2931302e292d2c333a4a3e333646372c2d405741464c4e525352323e5a615a50604a51524fffc2000b080008000801011100ffc4"
      "0014000100000000000000000000000000000004ffda00080101000000011fffc400141001000000000000000000000000000000"
      "00ffda00080101000105027fffc40014100100000000000000000000000000000000ffda0008010100063f027fffc40014100100"
      "000000000000000000000000000000ffda0008010100013f217fffda0008010100000010ff00ffc4001410010000000000000000"
      "0000000000000000ffda0008010100013f107fffd9");
  EXPECT_FALSE(read_picture_header(progressive).cut);
  for (size_t size = 20; size < progressive.size(); size += 7)
    EXPECT_TRUE(read_picture_header(progressive.substr(0, size)).cut) << size;

  const std::string half = whole.substr(0, whole.size() / 2);
  write("frames/1.jpg", whole), write("frames/2.jpg", half);
  expect_error(Exit::input, {"2.jpg", "cut short"}, [&] { decode_clip(folder_ / "frames", {.frames = 2}); });
  expect_error(Exit::input, {"2.jpg", "cut short"}, [&] { probe(folder_ / "frames"); });
  write("column/whole.jpg", whole), write("column/half.jpg", half);
  write("column/metadata.csv", "image,input_image,text\nwhole.jpg,whole.jpg,x\nwhole.jpg,half.jpg,y\n");
  Problems problems(/*strict=*/false);
  ClipRules rules{.buckets = {{1, 32, 32}}};
  rules.beside = [](const Item& item) { return std::vector{std::pair(std::string("first"), item.first_image)}; };
  EXPECT_EQ(plan_clips(read_dataset({.path = folder_ / "column"}), Probes(), rules, problems).clips.size(), 1u);
  EXPECT_NE(problems.text().find("half.jpg: the picture is cut short"), std::string::npos) << problems.text();
  if (!has_python()) GTEST_SKIP() << "needs Python to make archives";
  write("in/a.jpg", half), write("in/a.txt", "x"), write("in/b.jpg", whole), write("in/b.txt", "y");
  ASSERT_TRUE(make_zip(folder_, "in", "s.zip") && make_zip(folder_, "in", "d.zip", "ZIP_DEFLATED") &&
              make_tar(folder_, "in", "t.tar"));
  for (const char* archive : {"s.zip", "d.zip", "t.tar"}) {
    expect_error(Exit::input, {"a.jpg", "cut short"}, [&] { probe(folder_ / archive / "a.jpg"); });
    EXPECT_EQ(colours_of(decode_clip(folder_ / archive / "b.jpg", {})), "RGBW") << archive;
  }
}

TEST_F(MediaPictures, OtherPicturesThatAreCutAreRefusedToo) {
  for (const auto& [name, whole] : {std::pair<const char*, std::string>("a.png", png()),
                                    {"a.webp", webp()},
                                    {"a.tiff", tiff(kAcross, kDown, 1, quarter_at)}})
    for (const size_t size : {whole.size() / 2, whole.size() * 9 / 10})
      EXPECT_THROW(shown(name, whole.substr(0, size)), UserError) << name << " " << size;
}

/// Outside of the middle something shows through, with red hidden under it; the top row of the middle is half there.
Rgba through(int x, int y) {
  const bool inside = x >= 16 && x < 32 && y >= 8 && y < 24;
  return inside ? Rgba{0, 0, 255, y == 8 ? 51 : 255} : Rgba{255, 0, 0, 0};
}

TEST_F(MediaPictures, WhatIsTransparentIsComposedOnTheBackground) {
  const struct {
    const char *name, *encoder;
    AVPixelFormat format;
  } kinds[] = {{"rgba.png", "png", AV_PIX_FMT_RGBA},          {"deep.png", "png", AV_PIX_FMT_RGBA64BE},
               {"grey.png", "png", AV_PIX_FMT_YA8},           {"deepgrey.png", "png", AV_PIX_FMT_YA16BE},
               {"lossless.webp", "libwebp", AV_PIX_FMT_BGRA}, {"a.tiff", "tiff", AV_PIX_FMT_RGBA}};
  for (const auto& kind : kinds) {
    const bool grey = av_pix_fmt_desc_get(kind.format)->nb_components == 2;
    const std::string bytes = picture_file(kind.encoder, *painted(kind.format, kAcross, kDown, through));
    const Frames white = shown(kind.name, bytes), green = shown(kind.name, bytes, {.background = {0, 255, 0}});
    const Rgba middle = grey ? Rgba{0, 0, 0, 255} : Rgba{0, 0, 255, 255};
    EXPECT_EQ(pixel(white, 0, 2, 2), (Rgba{255, 255, 255, 255})) << kind.name;
    EXPECT_EQ(pixel(white, 0, 16, 24), middle) << kind.name;
    EXPECT_EQ(pixel(white, 0, 8, 24), (grey ? Rgba{204, 204, 204, 255} : Rgba{204, 204, 255, 255})) << kind.name;
    EXPECT_EQ(pixel(green, 0, 2, 2), (Rgba{0, 255, 0, 255})) << kind.name;
    EXPECT_EQ(pixel(green, 0, 16, 24), middle) << kind.name;
    EXPECT_TRUE(probe(folder_ / kind.name).traits.has(Trait::transparent)) << kind.name;
    // Resized, no hidden red comes in at the edges.
    const Frames small = decode_clip(folder_ / kind.name, {.frames = 1, .height = 16, .width = 24});
    for (int x = 0; x < 24; ++x) {
      const Rgba at = pixel(small, 0, 8, x);
      EXPECT_LE(at[0], at[2] + 2) << kind.name << " " << x;
    }
  }
}

TEST_F(MediaPictures, PalettesAndSingleTransparentColoursAreComposedToo) {
  FramePtr palette = new_frame(AV_PIX_FMT_PAL8, kAcross, kDown);
  auto* colours = reinterpret_cast<uint32_t*>(palette->data[1]);
  std::fill(colours, colours + 256, 0xFF000000U);
  colours[0] = 0x00FF0000U, colours[1] = 0xFF0000FFU;
  for (int y = 0; y < kDown; ++y)
    for (int x = 0; x < kAcross; ++x) palette->data[0][y * palette->linesize[0] + x] = through(x, y)[3] > 0;
  const Frames picture = shown("palette.png", picture_file("png", *palette));
  EXPECT_EQ(pixel(picture, 0, 2, 2), (Rgba{255, 255, 255, 255}));
  EXPECT_EQ(pixel(picture, 0, 16, 24), (Rgba{0, 0, 255, 255}));
  const Frames keyed = shown("keyed.png", png_with(png(), "tRNS", std::string("\0\xFF\0\0\0\0", 6)));  // red
  EXPECT_EQ(colours_of(keyed), "WGBW");
}

TEST_F(MediaPictures, AnAlphaChannelThroughWhichNothingShowsChangesNoPixel) {
  const std::string opaque = picture_file("png", *painted(AV_PIX_FMT_RGBA, kAcross, kDown, quarter_at));
  for (const ClipSpec& spec : {ClipSpec{.frames = 1}, ClipSpec{.frames = 1, .height = 17, .width = 23}}) {
    const Frames with = decode_clip(write("a.png", opaque), spec), without = decode_clip(write("b.png", png()), spec);
    EXPECT_EQ(with.rgb, without.rgb);
  }
  EXPECT_TRUE(probe(folder_ / "a.png").traits.names().empty());
}

TEST_F(MediaPictures, DensityDoesNotChangeTheShape) {
  std::string dense = jpeg_with(jpeg(), '\xE0', std::string("JFIF\0\1\1\0\0\1\0\1\0\0", 14));
  const size_t jfif = dense.find("JFIF");
  for (const auto& [x, y] : {std::pair(1, 2), {300, 72}, {72, 300}}) {
    dense.replace(jfif + 7, 5,
                  "\1" + number(static_cast<uint32_t>(x), 2, false) + number(static_cast<uint32_t>(y), 2, false));
    std::string phys = png();  // which has one that says 1 to 1
    phys.replace(phys.find("pHYs") + 4, 8,
                 number(static_cast<uint32_t>(x), 4, false) + number(static_cast<uint32_t>(y), 4, false));
    for (const auto& [name, bytes] : {std::pair<const char*, std::string>("a.jpg", dense), {"a.png", phys}}) {
      const Frames picture = shown(name, bytes);
      EXPECT_EQ(std::pair(picture.width, picture.height), std::pair(kAcross, kDown)) << name;
      EXPECT_TRUE(probe(folder_ / name).traits.has(Trait::dense)) << name;
    }
  }
  dense.replace(jfif + 7, 5, std::string("\1\0\x48\0\x48", 5));
  EXPECT_FALSE(probe(write("square.jpg", dense)).traits.has(Trait::dense));
}

TEST_F(MediaPictures, AnAnimatedWebpIsNamed) {
  // two frames of 4 x 4
  const std::string animated = from_hex(
      "524946468400000057454250565038580a00000002000000030000030000414e494d06000000000000000000414e4d4628000000"
      "000000000000030000030000000000005650384c0f0000002f03c000000710fd8ffe0722a2ff0100414e4d462800000000000000"
      "0000030000030000000000005650384c0f0000002f03c000000710d1fffe0722a2ff0100");
  EXPECT_TRUE(read_picture_header(animated).animated);
  EXPECT_FALSE(read_picture_header(webp()).animated);
  EXPECT_FALSE(read_picture_header(webp_with(webp(), kAcross, kDown, exif(1))).animated);
  expect_error(Exit::input, {"a.webp", "animated WebP"}, [&] { shown("a.webp", animated); });
}

namespace {

/// A profile with these colorants of red, green and blue, and the curve of sRGB.
std::string icc_profile(const std::array<std::array<double, 3>, 3>& colorants) {
  const auto n = [](uint32_t value) { return number(value, 4, false); };
  const auto fixed = [&](double value) { return n(static_cast<uint32_t>(std::lround(value * 65536))); };
  std::string data, table;
  uint32_t count = 0;
  constexpr uint32_t kTags = 8, kBegin = 128 + 4 + 12 * kTags;
  const auto add = [&](const char* tag, const std::string& bytes) {
    table += tag + n(kBegin + static_cast<uint32_t>(data.size())) + n(static_cast<uint32_t>(bytes.size()));
    data += bytes, ++count;
  };
  const auto xyz = [&](const std::array<double, 3>& v) {
    return "XYZ " + n(0) + fixed(v[0]) + fixed(v[1]) + fixed(v[2]);
  };
  const std::string curve = "para" + n(0) + number(3, 2, false) + number(0, 2, false) + fixed(2.4) + fixed(1 / 1.055) +
                            fixed(0.055 / 1.055) + fixed(1 / 12.92) + fixed(0.04045);
  add("wtpt", xyz({0.9642, 1, 0.8249}));
  add("rXYZ", xyz(colorants[0])), add("gXYZ", xyz(colorants[1])), add("bXYZ", xyz(colorants[2]));
  add("rTRC", curve), add("gTRC", curve), add("bTRC", curve);
  add("cprt", "text" + n(0) + std::string("none", 5) + std::string(3, '\0'));
  std::string head = n(kBegin + static_cast<uint32_t>(data.size())) + n(0) + n(0x02400000) + "mntrRGB XYZ ";
  head += std::string(12, '\0') + "acsp";
  head.resize(68, '\0');
  head += fixed(0.9642) + fixed(1) + fixed(0.8249);
  head.resize(128, '\0');
  return head + n(count) + table + data;
}

}  // namespace

TEST_F(MediaPictures, AColourProfileOtherThanSrgbIsConvertedOrTold) {
  constexpr std::array<double, 3> red = {0.4361, 0.2225, 0.0139}, green = {0.3851, 0.7169, 0.0971},
                                  blue = {0.1431, 0.0606, 0.7141};
  const auto with = [&](const std::string& profile) {
    return jpeg_with(jpeg(), '\xE2', std::string("ICC_PROFILE\0\1\1", 14) + profile);
  };
  const std::string swapped = with(icc_profile({blue, green, red}));
  if (converts_icc()) {
    EXPECT_EQ(colours_of(shown("swapped.jpg", swapped)), "BGRW");
    EXPECT_EQ(probe(folder_ / "swapped.jpg").traits.names(), (std::vector<std::string>{"profiled"}));
    EXPECT_EQ(colours_of(shown("srgb.jpg", with(icc_profile({red, green, blue})))), "RGBW");
    EXPECT_TRUE(probe(folder_ / "srgb.jpg").traits.names().empty());
    EXPECT_EQ(shown("srgb.jpg", with(icc_profile({red, green, blue}))).rgb, shown("none.jpg", jpeg()).rgb);
  } else {
    EXPECT_EQ(colours_of(shown("swapped.jpg", swapped)), "RGBW");
    EXPECT_TRUE(probe(folder_ / "swapped.jpg").traits.has(Trait::unconverted));
  }
  EXPECT_EQ(colours_of(shown("damaged.jpg", with("no profile at all"))), "RGBW");
  const VideoInfo damaged = probe(folder_ / "damaged.jpg");
  EXPECT_TRUE(damaged.traits.has(Trait::unconverted));
  TraitCounts counts;
  counts.add(damaged.traits, "damaged.jpg");
  ASSERT_EQ(counts.notes({}).size(), 1u);
  EXPECT_NE(counts.notes({})[0].find("1 file is of a colour profile other than sRGB"), std::string::npos);
}

}  // namespace tessera::data
