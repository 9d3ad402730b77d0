// Readers of what a data set's rows name: sound, clips and pictures by FFmpeg, Parquet by Arrow. Their own code is not
// instrumented, what they write to our memory is; a build without them has no such readers.
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "fuzz/readers.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/audio.h"
#include "tessera/data/files/parquet.h"
#include "tessera/data/files/picture_header.h"
#include "tessera/data/icc.h"
#include "tessera/data/video.h"

namespace tessera::fuzz {

namespace {

namespace fs = std::filesystem;

void read_sound(const std::string&, const std::string& file) {
  data::decode_sound(file, {.rate = 16000, .start = 0, .seconds = 2});
}

void read_clip(const std::string&, const std::string& file) {
  const data::VideoInfo info = data::probe(file);
  check_internal(info.width > 0 && info.height > 0, "fuzz", "a clip without pixels");
  const data::Frames frames = data::decode_clip(file, {.frames = 1, .height = 16, .width = 16});
  check_internal(frames.rgb.size() == 16 * 16 * 3, "fuzz", "a frame without its pixels");
}

void read_header(const std::string& bytes, const std::string&) {
  const int orientation = data::read_picture_header(bytes).orientation;
  check_internal(orientation >= 1 && orientation <= 8, "fuzz", "an orientation that is none");
}

void read_icc(const std::string& bytes, const std::string&) {
  const data::IccProfile profile(bytes);
  std::array<uint8_t, 8> pixels = {1, 2, 3, 4, 250, 251, 252, 253};
  if (profile.kind() == data::IccProfile::Kind::other) profile.convert(pixels.data(), 2);
  check_internal(profile.kind() != data::IccProfile::Kind::other || (pixels[3] == 4 && pixels[7] == 253), "fuzz",
                 "a profile that changes what is transparent");
}

void read_table(const std::string&, const std::string& file) {
  size_t columns = 0, texts = 0;
  data::read_parquet(file, {.columns = [&](std::vector<std::string> names) { columns = names.size(); },
                            .row = [] {},
                            .text =
                                [&](size_t column, std::string_view text) {
                                  check_internal(column < columns, "fuzz", "a text of no column");
                                  texts += text.size();
                                }});
}

/// A sine of 16 bits, in `channels`.
std::string wav_seed(int channels) {
  constexpr uint32_t kRate = 8000, kSamples = 400;
  const auto put = [](std::string& bytes, auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  std::string data;
  for (uint32_t i = 0; i < kSamples; ++i)
    for (int c = 0; c < channels; ++c) put(data, static_cast<int16_t>(9000 * std::sin(0.1 * i)));
  std::string bytes = "RIFF";
  put(bytes, static_cast<uint32_t>(36 + data.size()));
  bytes += "WAVEfmt ";
  put(bytes, uint32_t{16});
  put(bytes, uint16_t{1});
  put(bytes, static_cast<uint16_t>(channels));
  put(bytes, kRate);
  put(bytes, static_cast<uint32_t>(kRate * 2 * channels));
  put(bytes, static_cast<uint16_t>(2 * channels));
  put(bytes, uint16_t{16});
  bytes += "data";
  put(bytes, static_cast<uint32_t>(data.size()));
  return bytes + data;
}

/// Pictures with an orientation in front: of JPEG, PNG, WebP and TIFF.
std::vector<std::string> header_seeds() {
  const std::string tiff("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0", 26);
  const std::string scan("\xff\xda\0\x02\x01\xff\0\x02\xff\xd0\x03\xff\xd9", 13);
  return {"\xff\xd8\xff\xe1" +
              std::string("\0\x22"
                          "Exif\0\0",
                          8) +
              tiff + scan,
          "\x89PNG\r\n\x1a\n" + std::string("\0\0\0\x1a", 4) + "eXIf" + tiff + "crc.",
          "RIFF" + std::string("\x46\0\0\0", 4) + "WEBPVP8X" + std::string("\x0a\0\0\0\x08\0\0\0\0\0\0\0\0\0", 14) +
              "EXIF" + std::string("\x1a\0\0\0", 4) + tiff,
          tiff};
}

/// An RGB profile of a matrix and one gamma, without a white point.
std::string profile_seed() {
  const auto number = [](uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
    return bytes;
  };
  constexpr uint32_t kHead = 128 + 4 + 6 * 12;
  std::string text = number(kHead + 3 * 20 + 16) + number(0) + number(0x02400000) + "mntrRGB XYZ ";
  text += std::string(12, '\0') + "acsp" + std::string(88, '\0') + number(6);
  for (uint32_t i = 0; i < 3; ++i) text += std::string(1, "rgb"[i]) + "XYZ" + number(kHead + 20 * i) + number(20);
  for (uint32_t i = 0; i < 3; ++i) text += std::string(1, "rgb"[i]) + "TRC" + number(kHead + 60) + number(14);
  for (uint32_t i = 0; i < 3; ++i)
    text += "XYZ " + number(0) + number(i == 0 ? 0x6fa2 : 0x62ab) + number(i == 1 ? 0xb785 : 0x1800) +
            number(i == 2 ? 0xb6d0 : 0x0f00);
  return text + "curv" + number(0) + number(1) + std::string("\2\x33\0\0", 4);
}

data::Frames frames(int count) {
  data::Frames all{.count = count, .height = 16, .width = 16, .fps = 8, .rgb = {}};
  for (int i = 0; i < count * 16 * 16 * 3; ++i) all.rgb.push_back(static_cast<uint8_t>(i * 7));
  return all;
}

std::vector<std::string> clip_seeds() {
  const fs::path file = fs::temp_directory_path() / ("fuzz-readers-clip-" + std::to_string(::getpid()) + ".mp4");
  data::write_mp4(file, frames(4));
  std::vector<std::string> seeds = {checkpoint::read_text(file)};
  fs::remove(file);
  for (const auto& picture : {data::write_png(frames(1), 0), data::write_jpeg(frames(1), 0)})
    seeds.emplace_back(picture.begin(), picture.end());
  return seeds;
}

}  // namespace

std::vector<Reader> media_readers() {
  std::vector<Reader> all;
  all.push_back({"picture_header",
                 read_header,
                 ".jpg",
                 header_seeds(),
                 {"Exif", "II*", "MM", "eXIf", "EXIF", "VP8X", "\xff\xda", "\xff\xd9", "\xff\xe1", "\xff\xff\xff\xff",
                  std::string("\x12\x01", 2), std::string("\0\0\0\0", 4)}});
  all.push_back({"icc_profile",
                 read_icc,
                 ".icc",
                 {profile_seed()},
                 {"acsp", "RGB ", "GRAY", "CMYK", "XYZ ", "curv", "para", "mft2", "mAB ", "A2B0", "\xff\xff\xff\xff",
                  std::string("\0\0\0\0", 4)}});
  if (data::has_video()) {
    all.push_back({"sound",
                   read_sound,
                   ".wav",
                   {wav_seed(1), wav_seed(2)},
                   {"RIFF", "WAVE", "fmt ", "data", "LIST", "fact", "\xff\xff\xff\xff", std::string("\1\0", 2),
                    std::string("\3\0", 2), std::string("\xfe\xff", 2), std::string("\0\0\0\0", 4)}});
    all.push_back({"clip",
                   read_clip,
                   ".mp4",
                   clip_seeds(),
                   {"moov", "trak", "mdat", "stsz", "stco", "stsc", "elst", "avcC", "IHDR", "IDAT", "\xff\xd8\xff",
                    "\xff\xff\xff\xff", std::string("\0\0\0\1", 4), std::string("\x7f\xff\xff\xff", 4)}});
  }
  if (data::parquet_absence().empty()) {
    std::vector<std::string> tables;
    for (const auto& entry : fs::directory_iterator(fs::path(TESSERA_SOURCE_DIR) / "tests/data/parquet"))
      if (entry.path().extension() == ".parquet" && entry.path().filename() != "nothing.parquet")
        tables.push_back(checkpoint::read_text(entry.path()));
    all.push_back(
        {"parquet",
         read_table,
         ".parquet",
         tables,
         {"PAR1", "ARROW:schema", "\x15", "\x19", "\x1c", "\xff\xff\xff\xff\x07", std::string("\0\0\0\0", 4)}});
  }
  return all;
}

}  // namespace tessera::fuzz
