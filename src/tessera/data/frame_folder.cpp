#include "tessera/data/frame_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

#include "tessera/base/check.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/files/file_kinds.h"

namespace tessera::data {

namespace fs = std::filesystem;

namespace {

struct Numbered {
  int64_t number = 0;
  Path path;
};

/// The number at the end of the name, before the ending.
std::optional<int64_t> number_of(const Path& path) {
  const std::string stem = path.stem().string();
  size_t begin = stem.size();
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(stem[begin - 1]))) --begin;
  constexpr size_t kMostDigits = 18;
  if (begin == stem.size() || stem.size() - begin > kMostDigits) return std::nullopt;
  return std::stoll(stem.substr(begin));
}

/// Nothing where a picture has no number.
std::optional<std::vector<Numbered>> numbered(const Path& folder) {
  std::vector<Numbered> all;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    if (!is_file(entry.path()) || !is_image(entry.path())) continue;
    const auto number = number_of(entry.path());
    if (!number) return std::nullopt;
    all.push_back({*number, entry.path()});
  }
  if (failed) return std::nullopt;
  std::sort(all.begin(), all.end(), [](const Numbered& a, const Numbered& b) {
    return std::tie(a.number, a.path.native()) < std::tie(b.number, b.path.native());
  });
  return all;
}

[[noreturn]] void fail(const Path& folder, const std::string& what, const std::string& mend) {
  throw UserError(Exit::input, "data.frames", folder.string() + ": " + what, mend);
}

}  // namespace

bool is_frame_folder(const Path& folder) {
  if (!is_folder(folder)) return false;
  const auto all = numbered(folder);
  return all && !all->empty();
}

std::vector<Path> frames_of(const Path& folder) {
  const auto all = numbered(folder);
  if (!all || all->empty())
    fail(folder, "is a folder without numbered images", "name them frame_0001.png, frame_0002.png, ... or .jpg");
  std::vector<Path> paths;
  for (size_t i = 0; i < all->size(); ++i) {
    const auto& [number, path] = (*all)[i];
    const int64_t expected = all->front().number + static_cast<int64_t>(i);
    if (number > expected)
      fail(folder, "frame " + std::to_string(expected) + " is missing before " + path.filename().string(),
           "add it, or number the frames without a gap");
    if (number < expected)
      fail(folder,
           "frame " + std::to_string(number) + " is there twice: " + paths.back().filename().string() + ", " +
               path.filename().string(),
           "remove one of them");
    paths.push_back(path);
  }
  return paths;
}

VideoInfo probe_frames(const Path& folder) {
  const std::vector<Path> paths = frames_of(folder);
  VideoInfo info = probe_file(paths.front());
  for (const Path& path : paths)
    if (path != paths.front()) info.traits.add(probe_file(path).traits);
  info.fps = 0;
  info.frames = static_cast<int64_t>(paths.size());
  info.picture = info.frames == 1;
  info.duration = static_cast<double>(info.frames) / kFolderFps;
  return info;
}

Frames decode_frames(const Path& folder, const ClipSpec& spec) {
  const std::vector<Path> paths = frames_of(folder);
  const double fps = spec.fps > 0 ? spec.fps : kFolderFps;
  const auto first = static_cast<size_t>(std::llround(spec.start * fps));
  const size_t there = paths.size() > first ? paths.size() - first : 0;
  const size_t wanted = spec.frames > 0 ? static_cast<size_t>(spec.frames) : there;
  if (there < wanted || wanted == 0)
    fail(folder,
         "found " + std::to_string(there) + " frames from frame " + std::to_string(first) + " on, needed " +
             std::to_string(wanted),
         "lower data.frames, or remove the clip");
  Frames clip;
  VideoInfo size;
  for (size_t i = 0; i < wanted; ++i) {
    const Path& path = paths[first + i];
    ClipSpec one_frame = spec;
    one_frame.frames = 1, one_frame.fps = one_frame.start = 0;
    VideoInfo info;
    const Frames one = decode_file(path, one_frame, &info);
    if (i == 0) size = info;
    if (info.width != size.width || info.height != size.height)
      fail(folder,
           path.filename().string() + " has " + std::to_string(info.width) + " x " + std::to_string(info.height) +
               " pixels, the frames before it " + std::to_string(size.width) + " x " + std::to_string(size.height),
           "give all frames of a clip one size");
    if (i == 0) {
      clip.height = one.height, clip.width = one.width, clip.fps = fps;
      clip.rgb.reserve(one.rgb.size() * wanted);
    }
    clip.rgb.insert(clip.rgb.end(), one.rgb.begin(), one.rgb.end());
    ++clip.count;
  }
  return clip;
}

std::string folder_stamp(const Path& folder) {
  int64_t bytes = 0;
  timespec latest{};
  const std::vector<Path> paths = frames_of(folder);
  for (const Path& path : paths) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) continue;  // gone just now: decoding will say so
    bytes += info.st_size;
    if (std::tie(info.st_mtim.tv_sec, info.st_mtim.tv_nsec) > std::tie(latest.tv_sec, latest.tv_nsec))
      latest = info.st_mtim;
  }
  return std::to_string(paths.size()) + " frames, " + std::to_string(bytes) + " bytes, " +
         std::to_string(latest.tv_sec) + "." + std::to_string(latest.tv_nsec);
}

}  // namespace tessera::data
