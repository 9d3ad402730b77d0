#include "tessera/data/files/file_kinds.h"

#include <algorithm>
#include <cctype>

namespace tessera::data {

namespace {

using Names = std::vector<std::string>;

// Whether FFmpeg reads a file is seen when it is opened: one that it does not is told by name.
const Names kVideoEndings = {".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v",  ".gif",  ".mpg", ".mpeg", ".ts",
                             ".wmv", ".flv", ".ogv", ".y4m",  ".mts", ".m2ts", ".3gp",  ".3g2", ".f4v",  ".asf",
                             ".vob", ".mxf", ".mpe", ".m2v",  ".nut", ".apng", ".rmvb", ".rm",  ".divx"};
const Names kImageEndings = {".png",  ".jpg",  ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".avif", ".jfif", ".jpe",
                             ".heic", ".heif", ".jp2",  ".j2k",  ".jxl", ".ppm", ".pgm",  ".tga",  ".dib"};
const Names kCaptionEndings = {".txt", ".caption"};
const Names kTensorEndings = {".npy", ".pt", ".pth"};

bool ends_in(const Path& path, const Names& endings) {
  if (is_hidden(path)) return false;
  return std::find(endings.begin(), endings.end(), ending_of(path)) != endings.end();
}

}  // namespace

std::string ending_of(const Path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

bool is_hidden(const Path& path) {
  const std::string name = path.filename().string();
  return name.starts_with('.') && name != "." && name != "..";
}

bool is_folder(const Path& path) {
  std::error_code unseen;
  return std::filesystem::is_directory(path, unseen);
}
bool is_image(const Path& path) { return ends_in(path, kImageEndings); }
bool is_npy(const Path& path) { return ends_in(path, {".npy"}); }
bool is_latent(const Path& path) { return ends_in(path, kTensorEndings); }
bool is_clip(const Path& path) { return ends_in(path, kVideoEndings) || is_image(path); }

std::string unpacking(const Path& path) {
  constexpr std::pair<std::string_view, const char*> kPacked[] = {{".gz", "gunzip -k "},
                                                                  {".tgz", "gunzip -k -S .tgz "},
                                                                  {".zst", "unzstd -k "},
                                                                  {".xz", "unxz -k "},
                                                                  {".bz2", "bunzip2 -k "}};
  const std::string ending = ending_of(path);
  for (const auto& [packed, command] : kPacked)
    if (ending == packed && (ending == ".tgz" || ending_of(Path(path).replace_extension()) == ".tar"))
      return command + path.string();
  return {};
}

const std::vector<std::string>& video_endings() { return kVideoEndings; }
const std::vector<std::string>& image_endings() { return kImageEndings; }
const std::vector<std::string>& tensor_endings() { return kTensorEndings; }
const std::vector<std::string>& caption_endings() { return kCaptionEndings; }

}  // namespace tessera::data
