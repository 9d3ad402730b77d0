#include "tessera/data/probes.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <mutex>

#include "tessera/base/check.h"
#include "tessera/base/in_threads.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/files/parquet.h"
#include "tessera/data/frame_folder.h"
#include "tessera/data/text/text.h"

namespace tessera::data {

namespace fs = std::filesystem;
using checkpoint::Json;

std::string file_stamp(const Path& path) {
  if (fs::is_directory(path)) return folder_stamp(path);
  if (const auto place = find_in_archive(path))
    return file_stamp(place->archive) + ", from byte " + std::to_string(place->member.begin) + " " +
           std::to_string(place->member.bytes);
  if (const auto picture = find_in_table(path))
    return file_stamp(picture->table) + ", row " + std::to_string(picture->row) + " of " + picture->column;
  struct stat info {};
  check_input(::stat(path.c_str(), &info) == 0, "data.cache", path.string() + ": no such file",
              "check data.path and data.metadata");
  return std::to_string(info.st_size) + " bytes, " + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec);
}

Probes::Probes(const Path& file) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const Json json = json_or_nothing(line);
    try {
      VideoInfo info;
      info.width = json.at("width"), info.height = json.at("height");
      info.fps = json.at("fps"), info.frames = json.at("frames"), info.duration = json.at("duration");
      known_[json.at("source")] = {json.at("stamp"), info};
    } catch (const Json::exception&) {
      continue;  // looked into again
    }
  }
}

bool Probes::knows(const Path& path) const {
  const auto found = known_.find(path.string());
  return found != known_.end() && found->second.stamp == file_stamp(path);
}

VideoInfo Probes::info(const Path& path) const { return knows(path) ? known_.at(path.string()).info : probe(path); }

void Probes::add(const Path& path, const VideoInfo& info) { known_[path.string()] = {file_stamp(path), info}; }

void Probes::write(const Path& file) const {
  std::string text;
  for (const auto& [source, known] : known_) {
    if (invalid_utf8(source) != std::string::npos) continue;  // JSON could not say its name
    text += checkpoint::dump_json({{"source", source},
                                   {"stamp", known.stamp},
                                   {"width", known.info.width},
                                   {"height", known.info.height},
                                   {"fps", known.info.fps},
                                   {"frames", known.info.frames},
                                   {"duration", known.info.duration}}) +
            "\n";
  }
  std::error_code failed;
  fs::create_directories(file.parent_path(), failed);
  if (failed)
    throw UserError(Exit::disk, "data.cache", file.parent_path().string() + ": " + failed.message(),
                    "check data.cache");
  checkpoint::write_text(file, text);
}

void update_probes(const Path& file, const std::vector<Path>& paths, const std::function<void(int64_t)>& done) {
  Probes probes(file);
  std::vector<Path> unknown;
  for (const Path& path : paths)
    if (!is_latent(path) && (is_file(path) || is_frame_folder(path)) && !probes.knows(path)) unknown.push_back(path);
  std::sort(unknown.begin(), unknown.end());
  unknown.erase(std::unique(unknown.begin(), unknown.end()), unknown.end());
  if (unknown.empty()) return;

  std::mutex lock;
  int64_t looked = 0;
  for_each_in_threads(unknown.size(), [&](size_t i) {
    try {
      const VideoInfo info = probe(unknown[i]);
      const std::lock_guard<std::mutex> guard(lock);
      probes.add(unknown[i], info);
    } catch (const Error&) {  // told by who asks for it
    }
    const std::lock_guard<std::mutex> guard(lock);
    ++looked;
    if (done) done(looked);
  });
  probes.write(file);
}

}  // namespace tessera::data
