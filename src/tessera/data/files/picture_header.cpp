#include "tessera/data/files/picture_header.h"

#include <cstdint>
#include <string>

namespace tessera::data {

namespace {

/// Numbers at places of a file; 0 beyond its end.
struct Bytes {
  std::string_view text;
  bool little = false;

  uint32_t number(size_t at, size_t count) const {
    if (count > text.size() || at > text.size() - count) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < count; ++i)
      value = value << 8 | static_cast<unsigned char>(text[little ? at + count - 1 - i : at + i]);
    return value;
  }
  std::string_view part(size_t at, size_t count = std::string_view::npos) const {
    return at > text.size() ? std::string_view() : text.substr(at, count);
  }
};

/// The orientation in the first directory of a TIFF file, which is what EXIF data are.
int orientation_of_tiff(std::string_view text) {
  constexpr uint32_t kTag = 0x0112, kShort = 3, kLong = 4;
  constexpr size_t kField = 12;
  const Bytes tiff{text, text.starts_with("II")};
  if ((!tiff.little && !text.starts_with("MM")) || tiff.number(2, 2) != 42) return 1;
  const size_t directory = tiff.number(4, 4), fields = tiff.number(directory, 2);
  for (size_t i = 0; i < fields; ++i) {
    const size_t field = directory + 2 + i * kField;
    if (field + kField > text.size()) break;
    if (tiff.number(field, 2) != kTag) continue;
    const uint32_t type = tiff.number(field + 2, 2);
    const uint32_t value = type == kShort ? tiff.number(field + 8, 2) : type == kLong ? tiff.number(field + 8, 4) : 1;
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

/// EXIF data, with or without the name that JPEG puts in front.
int orientation_of_exif(std::string_view data) {
  constexpr std::string_view kName("Exif\0\0", 6);
  return orientation_of_tiff(data.starts_with(kName) ? data.substr(kName.size()) : data);
}

/// Where the marker after a scan's entropy-coded data stands: zeros and restarts belong to them.
size_t end_of_scan(std::string_view jpeg, size_t at) {
  for (;; ++at) {
    at = jpeg.find('\xFF', at);
    if (at == jpeg.npos || at + 1 >= jpeg.size()) return jpeg.size();
    const auto next = static_cast<unsigned char>(jpeg[at + 1]);
    if (next != 0 && next != 0xFF && (next < 0xD0 || next > 0xD7)) return at;
  }
}

PictureHeader read_jpeg(std::string_view text) {
  constexpr uint32_t kEnd = 0xD9, kScan = 0xDA, kApp1 = 0xE1;
  const Bytes jpeg{text};
  PictureHeader header;
  bool oriented = false;  // the first EXIF data count
  for (size_t at = 2; at + 1 < text.size();) {
    if (jpeg.number(at, 1) != 0xFF || jpeg.number(at + 1, 1) == 0xFF || jpeg.number(at + 1, 1) == 0) {
      ++at;  // filling between segments
      continue;
    }
    const uint32_t marker = jpeg.number(at + 1, 1);
    if (marker == kEnd) return header;
    if (marker == 1 || (marker >= 0xD0 && marker <= 0xD8)) {
      at += 2;
      continue;
    }
    const size_t length = jpeg.number(at + 2, 2);
    const std::string_view segment = jpeg.part(at + 4, length < 2 ? 0 : length - 2);
    if (marker == kApp1 && !oriented && segment.starts_with("Exif"))
      header.orientation = orientation_of_exif(segment), oriented = true;
    at += 2 + length;
    if (marker == kScan) at = end_of_scan(text, at);
  }
  header.cut = true;
  return header;
}

PictureHeader read_png(std::string_view text) {
  const Bytes png{text};
  PictureHeader header;
  for (size_t at = 8; at + 12 <= text.size();) {
    const size_t length = png.number(at, 4);
    if (length > text.size() - at - 12) break;
    if (png.part(at + 4, 4) == "eXIf") header.orientation = orientation_of_exif(png.part(at + 8, length));
    at += 12 + length;
  }
  return header;
}

PictureHeader read_webp(std::string_view text) {
  constexpr uint32_t kAnimation = 2;
  const Bytes webp{text, /*little=*/true};
  PictureHeader header;
  for (size_t at = 12; at + 8 <= text.size();) {
    const std::string_view name = webp.part(at, 4);
    const size_t length = webp.number(at + 4, 4);
    if (name == "VP8X") header.animated = webp.number(at + 8, 1) & kAnimation;
    if (name == "EXIF") header.orientation = orientation_of_exif(webp.part(at + 8, length));
    if (length > text.size() - at - 8) break;
    at += 8 + length + length % 2;
  }
  return header;
}

}  // namespace

PictureHeader read_picture_header(std::string_view bytes) {
  if (bytes.starts_with("\xFF\xD8")) return read_jpeg(bytes);
  if (bytes.starts_with("\x89PNG\r\n")) return read_png(bytes);
  if (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP") return read_webp(bytes);
  PictureHeader header;
  header.orientation = orientation_of_tiff(bytes);
  return header;
}

}  // namespace tessera::data
