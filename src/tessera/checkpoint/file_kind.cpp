#include "tessera/checkpoint/file_kind.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace tessera::checkpoint {

namespace {

using std::string_view_literals::operator""sv;

struct Kind {
  std::string_view magic;
  int64_t at;  ///< offset of the magic
  const char* words;
};
constexpr Kind kKinds[] = {
    {"version https://git-lfs"sv, 0, "a Git LFS pointer and not the file itself ('git lfs pull' gets that)"},
    {"PK\x03\x04"sv, 0, "a zip archive, perhaps a file of torch.save (tessera convert FILE OUT.safetensors)"},
    {"GGUF"sv, 0, "a GGUF file, which only inference programs read"},
    {"<!DOCTYPE"sv, 0, "a web page: a download that failed"},
    {"<html"sv, 0, "a web page: a download that failed"},
    {"\x89PNG"sv, 0, "a PNG picture"},
    {"\xff\xd8\xff"sv, 0, "a JPEG picture"},
    {"GIF8"sv, 0, "a GIF"},
    {"ftyp"sv, 4, "an MP4 or QuickTime video"},
    {"\x1a\x45\xdf\xa3"sv, 0, "a Matroska or WebM video"},
    {"RIFF"sv, 0, "an AVI, WAV or WebP file"},
    {"%PDF"sv, 0, "a PDF"},
    {"\x93NUMPY"sv, 0, "a NumPy array"},
    {"\x89HDF\r\n"sv, 0, "an HDF5 file"},
    {"\x1f\x8b"sv, 0, "packed by gzip: unpack it first"},
    {"\x28\xb5\x2f\xfd"sv, 0, "packed by zstd: unpack it first"},
    {"7z\xbc\xaf"sv, 0, "packed by 7-Zip: unpack it first"},
    {"\x7f"
     "ELF"sv,
     0, "a program"},
};

/// A pickle begins with its protocol, 2 to 5. So may the length of a safetensors header, which then fits into the file.
bool is_pickle(std::string_view start, int64_t file_bytes) {
  uint64_t length = 0;
  if (start.size() < sizeof length || start[0] != '\x80' || start[1] < 2 || start[1] > 5) return false;
  std::memcpy(&length, start.data(), sizeof length);
  return length > static_cast<uint64_t>(file_bytes);
}

bool is_text(std::string_view start) {
  return std::all_of(start.begin(), start.end(),
                     [](char c) { return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t'; });
}

}  // namespace

std::string what_else(const ReadFile& file) {
  constexpr int64_t kRead = 24, kShown = 16;
  if (file.size() == 0) return "empty";
  std::string start(static_cast<size_t>(std::min(file.size(), kRead)), '\0');
  file.read(0, static_cast<int64_t>(start.size()), start.data());
  for (const Kind& kind : kKinds)
    if (start.size() > static_cast<size_t>(kind.at) &&
        std::string_view(start).substr(static_cast<size_t>(kind.at)).starts_with(kind.magic))
      return kind.words;
  if (is_pickle(start, file.size()))
    return "a plain pickle and no file of torch.save (in Python: torch.save(pickle.load(open(FILE, \"rb\")), NEW), if you "
           "trust who made it: loading a pickle runs what it holds)";
  // A safetensors file begins with a length of 8 bytes, of which the upper ones are zero.
  if (!is_text(start)) return {};
  std::string shown = start.substr(0, std::min(start.find_first_of("\r\n"), static_cast<size_t>(kShown)));
  return "a text file (it begins with \"" + shown + "\")";
}

}  // namespace tessera::checkpoint
