#include "tessera/data/files/file_kinds.h"

#include <algorithm>
#include <cctype>

namespace tessera::data {

namespace {

using Names = std::vector<std::string>;

const Names kVideoEndings = {".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".gif", ".mpg", ".mpeg", ".ts", ".wmv"};
const Names kImageEndings = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"};
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

const std::vector<std::string>& video_endings() { return kVideoEndings; }
const std::vector<std::string>& image_endings() { return kImageEndings; }
const std::vector<std::string>& tensor_endings() { return kTensorEndings; }
const std::vector<std::string>& caption_endings() { return kCaptionEndings; }

}  // namespace tessera::data
