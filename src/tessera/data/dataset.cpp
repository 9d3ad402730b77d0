#include "tessera/data/dataset.h"

#include <algorithm>
#include <cctype>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/csv.h"
#include "tessera/data/text.h"

namespace tessera::data {

namespace fs = std::filesystem;

namespace {

// The columns that today's trainers write, most specific first.
const std::vector<std::string> kPathColumns = {"video", "image", "file_name", "file_path", "path"};
const std::vector<std::string> kCaptionColumns = {"prompt", "text", "caption", "cap"};
const std::vector<std::string> kVideoEndings = {".mp4", ".mov", ".mkv", ".webm", ".avi",
                                                ".m4v", ".gif", ".mpg", ".mpeg"};
const std::vector<std::string> kImageEndings = {".png", ".jpg", ".jpeg", ".webp", ".bmp"};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string checked_utf8(std::string text, const std::string& where) {
  const size_t bad = invalid_utf8(text);
  check_input(bad == std::string::npos, "data.dataset",
              where + ": the caption is not UTF-8 at byte " + std::to_string(bad), "save the file as UTF-8");
  return text;
}

std::string caption_beside(const Path& clip) {
  const Path file = Path(clip).replace_extension(".txt");
  check_input(fs::is_regular_file(file), "data.dataset", clip.string() + ": no caption, expected " + file.string(),
              "write the caption into that file, or list clips and captions in a metadata.csv");
  std::string text = checkpoint::read_text(file);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return checked_utf8(std::move(text), file.string());
}

std::vector<Item> read_folder(const Path& folder) {
  std::vector<Path> clips;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file() && is_clip(entry.path())) clips.push_back(entry.path());
  std::sort(clips.begin(), clips.end(), [](const Path& a, const Path& b) { return a.native() < b.native(); });
  std::vector<Item> items;
  for (const Path& clip : clips) items.push_back({clip, caption_beside(clip)});
  return items;
}

size_t column(const CsvTable& table, const std::vector<std::string>& names, const std::string& file) {
  for (const std::string& name : names) {
    const auto found = std::find(table.header.begin(), table.header.end(), name);
    if (found != table.header.end()) return static_cast<size_t>(found - table.header.begin());
  }
  throw UserError(Exit::input, "data.dataset",
                  file + ": expected a column " + joined(names) + ", found " + joined(table.header),
                  "rename the column");
}

std::vector<Item> read_table(const Path& file, const Path& folder) {
  const CsvTable table = parse_csv(checkpoint::read_text(file), file.string());
  const size_t path = column(table, kPathColumns, file.string());
  const size_t caption = column(table, kCaptionColumns, file.string());
  std::vector<Item> items;
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const std::vector<std::string>& row = table.rows[i];
    const std::string where = file.string() + ": row " + std::to_string(table.numbers[i]);
    check_input(!row[path].empty(), "data.dataset", where + ": no path in column " + table.header[path],
                "fill it in or remove the row");
    check_input(!row[caption].empty(), "data.dataset",
                where + ": " + row[path] + ": no caption in column " + table.header[caption],
                "fill it in or remove the row");
    const Path clip = folder / row[path];  // an absolute path replaces the folder
    check_input(fs::is_regular_file(clip), "data.dataset", where + ": " + clip.string() + ": no such file",
                "paths are relative to " + folder.string() + "; mend or remove the row");
    items.push_back({clip, checked_utf8(row[caption], where)});
  }
  return items;
}

bool ends_in(const Path& path, const std::vector<std::string>& endings) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::find(endings.begin(), endings.end(), ending) != endings.end();
}

std::vector<Item> read_once(const DatasetSpec& spec) {
  if (!spec.metadata.empty())
    return read_table(spec.metadata, spec.path.empty() ? spec.metadata.parent_path() : spec.path);
  check_input(fs::exists(spec.path), "data.dataset", spec.path.string() + ": no such folder or file",
              "check data.path");
  if (!fs::is_directory(spec.path)) return {{spec.path, caption_beside(spec.path)}};
  const Path table = spec.path / "metadata.csv";
  return fs::exists(table) ? read_table(table, spec.path) : read_folder(spec.path);
}

}  // namespace

bool is_clip(const Path& path) { return ends_in(path, kVideoEndings) || ends_in(path, kImageEndings); }

std::vector<Item> read_dataset(const DatasetSpec& spec) {
  check_input(spec.repeats >= 1, "data.dataset",
              "data.repeats is " + std::to_string(spec.repeats) + ", expected 1 or more");
  const std::vector<Item> once = read_once(spec);
  check_input(!once.empty(), "data.dataset",
              (spec.metadata.empty() ? spec.path : spec.metadata).string() + ": no clips",
              "put clips (" + joined(kVideoEndings) + ", " + joined(kImageEndings) +
                  ") with a .txt beside each there, or a metadata.csv");
  std::vector<Item> items;
  for (int repeat = 0; repeat < spec.repeats; ++repeat) items.insert(items.end(), once.begin(), once.end());
  return items;
}

}  // namespace tessera::data
