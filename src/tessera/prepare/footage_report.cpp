#include "tessera/prepare/footage_report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tessera/base/json.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/probes.h"
#include "tessera/report/progress.h"

namespace tessera::prepare {

namespace fs = std::filesystem;
using checkpoint::Json;

namespace {

constexpr const char* kReport = "report.jsonl";

std::string number(const char* form, double value) {
  char text[48];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

Json line_of(const SeenClip& clip) {
  const data::Footage& footage = clip.footage;
  const data::Edges& bars = footage.bars;
  return {{"entry", clip.entry},
          {"source", clip.source},
          {"start", clip.start},
          {"shape", clip.shape},
          {"frames", footage.frames},
          {"cuts", footage.cuts},
          {"repeated", footage.repeated},
          {"black", footage.black},
          {"bars", {{"top", bars.top}, {"bottom", bars.bottom}, {"left", bars.left}, {"right", bars.right}}}};
}

/// Lines by their entry; what cannot be read (a line that a kill cut off) is not there.
using Lines = std::map<std::string, Json>;

void read_lines(const fs::path& file, Lines& lines) {
  std::ifstream in(file);
  for (std::string text; std::getline(in, text);) {
    Json line = json_or_nothing(text);
    if (!line.is_object() || !line.contains("entry") || !line.at("entry").is_string()) continue;
    const std::string entry = line.at("entry");
    lines[entry] = std::move(line);
  }
}

/// What was found of one kind: how many clips, the worst of them in words, and the first.
struct Finding {
  const char* name;
  const char* mend;
  int64_t clips = 0;
  double most = 0;
  std::string first = {};

  void add(double amount, const std::string& where) {
    if (clips++ == 0) first = where;
    most = std::max(most, amount);
  }
};

class Table {
 public:
  void add(const Json& line) {
    try {
      const std::string source = line.at("source");
      const int64_t start = line.at("start"), frames = line.at("frames"), repeated = line.at("repeated");
      const std::vector<int64_t> cuts = line.at("cuts");
      const Json& bars = line.at("bars");
      const double high = bars.at("top").get<double>() + bars.at("bottom").get<double>();
      const double wide = bars.at("left").get<double>() + bars.at("right").get<double>();
      ++clips_;
      const std::string from = start > 0 ? source + " from frame " + std::to_string(start) : source;
      if (!cuts.empty())
        cuts_.add(static_cast<double>(cuts.size()), source + " at frame " + std::to_string(start + cuts.front()));
      if (high + wide > 0) bars_.add(std::max(high, wide), from);
      const double still = frames > 1 ? static_cast<double>(repeated) / static_cast<double>(frames - 1) : 0;
      if (line.at("black"))
        black_.add(1, from);
      else if (frames > 1 && repeated == frames - 1)
        frozen_.add(1, from);
      else if (repeated > 0)
        repeated_.add(still, from);
    } catch (const Json::exception&) {
      return;  // of another version
    }
  }

  std::string text(int64_t all, const fs::path& file) const {
    std::string text;
    const auto row = [&](const Finding& finding, const std::string& amount) {
      if (finding.clips == 0) return;
      text += "\n  " + std::to_string(finding.clips) + (finding.clips == 1 ? " clip " : " clips ") + finding.name +
              amount + "; the first: " + finding.first + finding.mend;
    };
    const auto percent = [](double share) { return number("%.0f", 100 * share) + " %"; };
    row(cuts_, cuts_.most > 1 ? ", up to " + number("%.0f", cuts_.most) : "");
    row(bars_, " of up to " + percent(bars_.most) + " of a side");
    row(black_, "");
    row(frozen_, "");
    row(repeated_, ", up to " + percent(repeated_.most) + " of a clip");
    if (all == 0) return {};
    std::string seen =
        std::to_string(clips_) + (clips_ == all ? "" : " of " + std::to_string(all)) + (all == 1 ? " clip" : " clips");
    if (clips_ < all) seen += ", the others were encoded before this was looked for";
    return "prepare: footage of " + seen + ": " +
           (text.empty() ? "no cuts, bars, black or still frames" : file.string() + " has more") + text;
  }

 private:
  int64_t clips_ = 0;
  Finding cuts_{"with hard cuts inside", "; data.cuts = \"split\" or \"drop\""};
  Finding bars_{"with black bars", "; data.bars = \"crop\""};
  Finding black_{"all black", ""};
  Finding frozen_{"without any movement", ""};
  Finding repeated_{"with frames that repeat the one before", ""};
};

/// Captions that few clips should share.
std::string captions_text(const std::vector<std::string>& captions) {
  constexpr size_t kShown = 60, kFew = 3;
  std::map<std::string, int64_t> counts;
  for (const std::string& caption : captions) ++counts[caption];
  std::string text;
  int64_t empty = 0;
  for (const auto& [caption, count] : counts)
    if (caption.find_first_not_of(" \t\r\n\f\v") == std::string::npos) empty += count;
  const auto all = static_cast<int64_t>(captions.size());
  if (empty > 0) text += "\n  " + std::to_string(empty) + " of " + std::to_string(all) + " captions are empty";
  const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  if (captions.size() > kFew && most->second * 2 > all && !most->first.empty())
    text += "\n  " + std::to_string(most->second) + " of " + std::to_string(all) +
            " captions are the same: " + shown(most->first.substr(0, kShown));
  return text;
}

}  // namespace

void look_into_files(const recipe::Recipe::Data& data, const data::Items& items, const FilesBeside& beside) {
  const fs::path probes = fs::path(data.cache) / "probes.jsonl";
  const data::EachPath videos = [&](const std::function<void(const fs::path&)>& take) {
    for (const data::Item& item : items)
      if (!data::is_latent(item.path)) take(item.path);
  };
  int64_t files = 0;
  const auto with_files_beside = [&](const std::function<void(const fs::path&)>& take) {
    for (const data::Item& item : items) {
      take(item.path);
      for (const auto& [role, file] : beside(item)) take(file);
    }
  };
  with_files_beside([&](const fs::path&) { ++files; });
  {
    report::CountProgress progress(true, "prepare: looking into", "files", files);
    const data::CountedFiles counted =
        data::update_probes(probes, data::EachPath(with_files_beside), [&](int64_t done) { progress.at(done); });
    progress.finish();
    if (counted.files > 0)
      log::info("prepare: read " + std::to_string(counted.files) + (counted.files == 1 ? " file" : " files") +
                " to the end to count their frames, which no index of theirs lists, in " +
                number("%.1f s", counted.seconds) + " of all threads; probes.jsonl keeps the numbers");
  }
  const data::ClipRules& rules = data.clips;
  if (!rules.looks_through()) return;
  report::CountProgress progress(true, "prepare: looking through", "videos", static_cast<int64_t>(items.size()));
  data::update_footage(probes, videos, rules.fps, rules.showing, [&](int64_t done) { progress.at(done); });
}

void FootageReport::add(const SeenClip& clip) {
  if (!own_) {
    own_.emplace(part(rank_), checkpoint::GrowingFile::Begin::behind);
    own_->write("\n");  // what a kill cut off of the last line stays apart
  }
  own_->write(checkpoint::dump_json(line_of(clip)) + "\n");
  own_->flush();  // whole, whatever comes
}

void FootageReport::finish(const Texts& entries, const Texts& captions, bool quiet) {
  std::vector<fs::path> parts;
  std::error_code unseen;
  for (const fs::directory_entry& file : fs::directory_iterator(folder_, unseen)) {
    const std::string name = file.path().filename().string();
    if (name.starts_with("report.") && name.ends_with(".part")) parts.push_back(file.path());
  }
  if (quiet && parts.empty()) return;  // what is known of ten million clips is not read for nothing
  Lines lines;
  read_lines(folder_ / kReport, lines);
  for (const fs::path& file : parts) read_lines(file, lines);
  if (!parts.empty()) {
    std::string text;
    for (const auto& [entry, line] : lines) text += checkpoint::dump_json(line) + "\n";
    checkpoint::write_text(folder_ / kReport, text);
    for (const fs::path& file : parts) fs::remove(file, unseen);
  }
  Table table;
  int64_t all = 0;
  for (const std::string& entry : entries()) {
    if (entry.empty()) continue;
    ++all;
    if (const auto line = lines.find(entry); line != lines.end()) table.add(line->second);
  }
  if (const std::string text = table.text(all, folder_ / kReport); !text.empty())
    log::info(text + captions_text(captions()));
}

void RereadClips::add(const std::string& reading, bool encoded) {
  std::istringstream words(encoded ? reading : "");
  bool known = false;
  for (std::string word; words >> word;) {
    const size_t role = word.find(':');
    const std::string reason = data::reading_reason(role == std::string::npos ? word : word.substr(role + 1));
    if (!reason.empty()) ++reasons_[reason], known = true;
  }
  clips_ += known;
}

std::string RereadClips::text() const {
  if (clips_ == 0) return {};
  std::string reasons;
  for (const auto& [reason, count] : reasons_)
    reasons += (reasons.empty() ? "" : ", ") + std::to_string(count) + " " + reason;
  return std::to_string(clips_) + (clips_ == 1 ? " clip is" : " clips are") +
         " encoded again, since an earlier version showed its file in another way: " + reasons;
}

}  // namespace tessera::prepare
