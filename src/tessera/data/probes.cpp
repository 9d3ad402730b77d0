#include "tessera/data/probes.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
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
      info.picture = json.at("picture");  // earlier versions did not say it, and counted otherwise
      info.traits = Traits::of(json.at("traits"));
      const std::string source = json.at("source");
      Known known = {json.at("stamp"), info};
      put(source, known);
      if (!json.contains("footage")) continue;
      const Json& seen = json.at("footage");
      known.fps = seen.at("fps");
      known.footage = Footage{.frames = seen.at("frames"), .cuts = seen.at("cuts")};
      const std::vector<double> bars = seen.at("bars");
      if (bars.size() == 4) known.footage->bars = {bars[0], bars[1], bars[2], bars[3]};
      put(source, known);
    } catch (const Json::exception&) {
      continue;  // looked into again
    } catch (const UserError&) {
      continue;
    }
  }
}

namespace {

constexpr int kTraits = static_cast<int>(Trait::interlaced) + 1;

}  // namespace

void Probes::put(const Path& path, const Known& known) {
  RecordWriter out;
  const VideoInfo& info = known.info;
  out.text(known.stamp);
  for (const int64_t number : {int64_t{info.width}, int64_t{info.height}, info.frames})
    out.number(static_cast<uint64_t>(number));
  out.real(info.fps), out.real(info.duration);
  uint64_t flags = (info.picture ? 1 : 0) | (known.footage ? 2 : 0);
  for (int i = 0; i < kTraits; ++i) flags |= uint64_t{info.traits.has(static_cast<Trait>(i))} << (2 + i);
  out.number(flags);
  if (known.footage) {
    const Footage& seen = *known.footage;
    out.real(known.fps), out.number(static_cast<uint64_t>(seen.frames)), out.number(seen.cuts.size());
    for (const int64_t cut : seen.cuts) out.number(static_cast<uint64_t>(cut));
    for (const double bar : {seen.bars.top, seen.bars.bottom, seen.bars.left, seen.bars.right}) out.real(bar);
  }
  known_.put(path.native(), out);
}

Probes::Known Probes::read(RecordReader in) {
  Known known;
  VideoInfo& info = known.info;
  known.stamp = in.text();
  info.width = static_cast<int>(in.number()), info.height = static_cast<int>(in.number());
  info.frames = static_cast<int64_t>(in.number());
  info.fps = in.real(), info.duration = in.real();
  const uint64_t flags = in.number();
  info.picture = flags & 1;
  for (int i = 0; i < kTraits; ++i)
    if (flags >> (2 + i) & 1) info.traits.add(static_cast<Trait>(i));
  if (!(flags & 2)) return known;
  known.fps = in.real();
  Footage& seen = known.footage.emplace();
  seen.frames = static_cast<int64_t>(in.number());
  seen.cuts.resize(in.number());
  for (int64_t& cut : seen.cuts) cut = static_cast<int64_t>(in.number());
  for (double* bar : {&seen.bars.top, &seen.bars.bottom, &seen.bars.left, &seen.bars.right}) *bar = in.real();
  return known;
}

std::optional<Probes::Known> Probes::current(const Path& path) const {
  const auto found = known_.find(path.native());
  if (!found) return std::nullopt;
  Known known = read(*found);
  if (known.stamp != file_stamp(path)) return std::nullopt;
  return known;
}

bool Probes::knows(const Path& path) const { return current(path).has_value(); }

VideoInfo Probes::info(const Path& path) const {
  const auto known = current(path);
  return known ? known->info : probe(path);
}

std::optional<Footage> Probes::footage(const Path& path, double fps) const {
  const auto known = current(path);
  return known && known->fps == fps ? known->footage : std::nullopt;
}

void Probes::add(const Path& path, const VideoInfo& info) { put(path, {file_stamp(path), info}); }

void Probes::add(const Path& path, const Footage& footage, double fps) {
  const auto found = known_.find(path.native());
  check_internal(found.has_value(), "data.probes", path.string() + ": footage of a file that is not known");
  Known known = read(*found);
  known.footage = footage, known.fps = fps;
  put(path, known);
}

void Probes::write(const Path& file) const {
  std::string text;
  known_.each_by_name([&](const std::string& source, RecordReader record) {
    if (invalid_utf8(source) != std::string::npos) return;  // JSON could not say its name
    const Known known = read(record);
    Json line = {{"source", source},
                 {"stamp", known.stamp},
                 {"width", known.info.width},
                 {"height", known.info.height},
                 {"fps", known.info.fps},
                 {"frames", known.info.frames},
                 {"duration", known.info.duration},
                 {"picture", known.info.picture},
                 {"traits", known.info.traits.names()}};
    if (known.footage) {
      const Edges& bars = known.footage->bars;
      line["footage"] = {{"fps", known.fps},
                         {"frames", known.footage->frames},
                         {"cuts", known.footage->cuts},
                         {"bars", {bars.top, bars.bottom, bars.left, bars.right}}};
    }
    text += checkpoint::dump_json(line) + "\n";
  });
  std::error_code failed;
  fs::create_directories(file.parent_path(), failed);
  if (failed)
    throw UserError(Exit::disk, "data.cache", file.parent_path().string() + ": " + failed.message(),
                    "check data.cache");
  checkpoint::write_text(file, text);
}

namespace {

/// Calls `look` for each of the paths on several threads, and under a lock what it returns; then writes the probes. Who
/// asks for a file that cannot be read is told why.
void look_into(Probes& probes, const Path& file, std::vector<Path> paths, const std::function<void(int64_t)>& done,
               const std::function<std::function<void()>(const Path&)>& look) {
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  if (paths.empty()) return;
  constexpr std::chrono::seconds kWritten(30);  // what a kill may lose
  std::mutex lock;
  int64_t looked = 0;
  auto written = std::chrono::steady_clock::now();
  for_each_in_threads(paths.size(), [&](size_t i) {
    std::function<void()> keep;
    try {
      keep = look(paths[i]);
    } catch (const Error&) {
    }
    const std::lock_guard<std::mutex> guard(lock);
    if (keep) keep();
    if (const auto now = std::chrono::steady_clock::now(); now - written > kWritten) probes.write(file), written = now;
    ++looked;
    if (done) done(looked);
  });
  probes.write(file);
}

}  // namespace

CountedFiles update_probes(const Path& file, const std::vector<Path>& paths, const std::function<void(int64_t)>& done) {
  const EachPath each = [&](const std::function<void(const Path&)>& take) { std::ranges::for_each(paths, take); };
  return update_probes(file, each, done);
}

CountedFiles update_probes(const Path& file, const EachPath& each, const std::function<void(int64_t)>& done) {
  Probes probes(file);
  std::vector<Path> unknown;
  each([&](const Path& path) {
    if (!is_latent(path) && (is_file(path) || is_frame_folder(path)) && !probes.knows(path)) unknown.push_back(path);
  });
  CountedFiles counted;
  look_into(probes, file, std::move(unknown), done, [&](const Path& path) {
    const auto begin = std::chrono::steady_clock::now();
    const VideoInfo info = probe(path);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return [&, path, info, seconds] {
      probes.add(path, info);
      if (info.counted) ++counted.files, counted.seconds += seconds;
    };
  });
  return counted;
}

void update_footage(const Path& file, const EachPath& each, double fps, const Showing& showing,
                    const std::function<void(int64_t)>& done) {
  Probes probes(file);
  std::vector<Path> unknown;
  each([&](const Path& path) {
    if (probes.knows(path) && !probes.footage(path, fps)) unknown.push_back(path);
  });
  look_into(probes, file, std::move(unknown), done, [&](const Path& path) {
    const VideoInfo info = probes.info(path);
    const Footage footage = look_through(path, info, fps, showing);
    return [&, path, footage] { probes.add(path, footage, fps); };
  });
}

}  // namespace tessera::data
