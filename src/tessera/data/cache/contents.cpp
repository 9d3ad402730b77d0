#include "tessera/data/cache/contents.h"

#include <algorithm>
#include <fstream>
#include <mutex>

#include "tessera/base/check.h"
#include "tessera/base/in_threads.h"
#include "tessera/checkpoint/crc32c.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/frame_folder.h"
#include "tessera/data/text/text.h"

namespace tessera::data {

namespace fs = std::filesystem;
using checkpoint::Json;

namespace {

struct Fingerprint {
  int64_t bytes = 0;
  uint32_t crc = 0;

  void add(const Path& path) {
    const OpenFile file(path);
    const int64_t count = file.size();
    std::vector<char> piece(static_cast<size_t>(std::min<int64_t>(count, 1 << 20)));
    for (int64_t at = 0; at < count;) {
      const int64_t now = std::min(count - at, static_cast<int64_t>(piece.size()));
      file.read(at, now, piece.data());
      crc = checkpoint::crc32c(piece.data(), static_cast<size_t>(now), crc);
      at += now;
    }
    bytes += count;
  }
};

}  // namespace

std::string file_content(const Path& path) {
  Fingerprint all;
  std::string of;
  if (fs::is_directory(path)) {
    const std::vector<Path> frames = frames_of(path);
    for (const Path& frame : frames) all.add(frame);
    of = std::to_string(frames.size()) + " frames, ";
  } else {
    all.add(path);
  }
  char digits[16];
  std::snprintf(digits, sizeof digits, "%08x", all.crc);
  return of + std::to_string(all.bytes) + " bytes, crc32c " + digits;
}

Contents::Contents(const Path& file) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const Json json = json_or_nothing(line);
    try {
      known_[json.at("source")] = {json.at("stamp"), json.at("content"), json.at("taken")};
    } catch (const Json::exception&) {
      continue;  // read again
    }
  }
}

const Contents::Known* Contents::find(const Path& path) const {
  const auto found = known_.find(path.string());
  return found != known_.end() && found->second.stamp == file_stamp(path) ? &found->second : nullptr;
}

Contents::Known& Contents::current(const Path& path) {
  Known& known = known_[path.string()];
  if (std::string stamp = file_stamp(path); known.stamp != stamp) known = {std::move(stamp), "", {}};
  return known;
}

bool Contents::knows(const Path& path) const {
  const Known* known = find(path);
  return known && !known->content.empty();
}

std::string Contents::of(const Path& path) const { return knows(path) ? find(path)->content : file_content(path); }

std::vector<std::string> Contents::taken(const Path& path) const {
  const Known* known = find(path);
  return known ? known->taken : std::vector<std::string>();
}

bool Contents::taken_for(const Path& path, const std::string& content) const {
  const Known* known = find(path);
  return known && std::ranges::find(known->taken, content) != known->taken.end();
}

void Contents::add(const Path& path, std::string content) { current(path).content = std::move(content); }

void Contents::take_for(const Path& path, std::string content) {
  auto& taken = current(path).taken;
  if (std::ranges::find(taken, content) == taken.end()) taken.push_back(std::move(content));
}

void Contents::write(const Path& file) const {
  std::string text;
  for (const auto& [source, known] : known_) {
    if (invalid_utf8(source) != std::string::npos) continue;  // JSON could not say its name
    text += checkpoint::dump_json(
                {{"source", source}, {"stamp", known.stamp}, {"content", known.content}, {"taken", known.taken}}) +
            "\n";
  }
  checkpoint::make_folder(file.parent_path(), "check data.cache");
  checkpoint::write_text(file, text);
}

void update_contents(const Path& file, std::vector<Path> paths, const std::function<void(int64_t)>& done) {
  Contents contents(file);
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  std::erase_if(paths, [&](const Path& path) { return contents.knows(path); });
  if (paths.empty()) return;

  std::mutex lock;
  int64_t looked = 0;
  for_each_in_threads(paths.size(), [&](size_t i) {
    std::string content;
    try {
      content = file_content(paths[i]);
    } catch (const Error&) {  // told by who asks for it
    }
    const std::lock_guard<std::mutex> guard(lock);
    if (!content.empty()) contents.add(paths[i], std::move(content));
    if (done) done(++looked);
  });
  contents.write(file);
}

}  // namespace tessera::data
