#include "tessera/data/listing.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/files/parquet.h"

namespace tessera::data {

namespace fs = std::filesystem;
using checkpoint::Json;

namespace {

constexpr const char* kMendRow = "fix or remove the row";

std::string row_name(const Path& file, size_t number) { return file.string() + ": row " + std::to_string(number); }

std::string text_without_mark(const Path& file) {
  std::string text = checkpoint::read_text(file);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // the mark that some editors put in front
  return text;
}

std::vector<std::string> lines_of(const Path& file) {
  std::vector<std::string> lines;
  const std::string text = text_without_mark(file);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    at = end + 1;
  }
  return lines;
}

void add_column(RowTable& table, const std::string& name) {
  if (std::find(table.columns.begin(), table.columns.end(), name) == table.columns.end()) table.columns.push_back(name);
}

RowTable from_csv(const Path& file, Problems& problems) {
  CsvTable csv = parse_csv(text_without_mark(file), file.string(), &problems);
  RowTable table;
  table.columns = csv.header;
  for (size_t i = 0; i < csv.rows.size(); ++i) {
    Row row{row_name(file, static_cast<size_t>(csv.numbers[i])), {}};
    for (size_t c = 0; c < csv.header.size(); ++c)
      row.fields.emplace(csv.header[c], std::vector<std::string>{std::move(csv.rows[i][c])});
    table.rows.push_back(std::move(row));
  }
  return table;
}

/// A text, a list of texts, or a number or flag as JSON writes it; nothing for null and for what has no text form.
std::vector<std::string> texts_of(const Json& value) {
  std::vector<std::string> texts;
  if (value.is_string())
    texts.push_back(value.get<std::string>());
  else if (value.is_number() || value.is_boolean())
    texts.push_back(checkpoint::dump_json(value));
  else if (value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); }))
    texts = value.get<std::vector<std::string>>();
  return texts;
}

void add_object(RowTable& table, const std::string& where, const Json& object, Problems& problems) {
  if (!object.is_object()) {
    problems.add(where,
                 "expected an object such as {\"video\": \"a.mp4\", \"prompt\": \"...\"}, found " +
                     checkpoint::shown(checkpoint::dump_json(object)),
                 kMendRow);
    return;
  }
  Row row{where, {}};
  for (const auto& [name, value] : object.items()) {
    add_column(table, name);
    row.fields[name] = texts_of(value);
  }
  table.rows.push_back(std::move(row));
}

RowTable from_json(const Path& file, Problems& problems) {
  const Json json = checkpoint::parse_json(text_without_mark(file), file.string());
  RowTable table;
  size_t number = 0;
  if (json.is_array()) {
    for (const Json& object : json) add_object(table, row_name(file, ++number), object, problems);
  } else {
    check_input(json.is_object(), "data.dataset",
                file.string() + ": expected a list of objects, found " + checkpoint::shown(checkpoint::dump_json(json)),
                "write [{\"video\": \"a.mp4\", \"prompt\": \"...\"}, ...]");
    table.columns = {"path", "caption"};
    for (const auto& [path, captions] : json.items())
      table.rows.push_back({row_name(file, ++number), {{"path", {path}}, {"caption", texts_of(captions)}}});
  }
  return table;
}

RowTable from_jsonl(const Path& file, Problems& problems) {
  RowTable table;
  size_t number = 0;
  for (const std::string& line : lines_of(file)) {
    const std::string where = row_name(file, ++number);
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    Json object;
    try {
      object = checkpoint::parse_json(line, where);
    } catch (const UserError& error) {
      problems.add(where, error);
      continue;
    }
    add_object(table, where, object, problems);
  }
  return table;
}

RowTable from_two_lists(const Path& file, Problems&) {
  Path captions = file.parent_path() / "prompt.txt";
  if (!fs::exists(captions)) captions = file.parent_path() / "prompts.txt";
  check_input(fs::exists(captions), "data.dataset",
              file.string() + ": no captions, expected " + (file.parent_path() / "prompt.txt").string(),
              "write a caption a line there, in the order of the paths");
  const std::vector<std::string> paths = lines_of(file), texts = lines_of(captions);
  check_input(paths.size() == texts.size(), "data.dataset",
              file.string() + " has " + std::to_string(paths.size()) + " lines, " + captions.string() + " has " +
                  std::to_string(texts.size()),
              "both need a line for each clip, in the same order");
  RowTable table{{"path", "caption"}, {}};
  for (size_t i = 0; i < paths.size(); ++i)
    table.rows.push_back({row_name(file, i + 1), {{"path", {paths[i]}}, {"caption", {texts[i]}}}});
  return table;
}

RowTable from_parquet(const Path& file, Problems&) {
  RowTable table;
  const auto begin_row = [&] { table.rows.push_back({row_name(file, table.rows.size() + 1), {}}); };
  read_parquet(
      file,
      {.columns = [&](std::vector<std::string> names) { table.columns = std::move(names); },
       .row = begin_row,
       .text = [&](size_t column,
                   std::string_view text) { table.rows.back().fields[table.columns.at(column)].emplace_back(text); },
       .file =
           [&](size_t column, std::string_view path, bool inside) {
             const std::string& name = table.columns.at(column);
             const auto row = static_cast<int64_t>(table.rows.size()) - 1;
             table.rows.back().fields[name].push_back(
                 inside ? path_in_table({fs::absolute(file), name, row}, path).string() : std::string(path));
           }});
  check_input(!table.columns.empty(), "data.dataset", file.string() + ": has no column of texts or numbers",
              "expected columns such as path and text");
  return table;
}

struct Format {
  const char* ending;
  RowTable (*read)(const Path&, Problems&);
};
constexpr Format kFormats[] = {{".csv", from_csv},       {".json", from_json},       {".jsonl", from_jsonl},
                               {".txt", from_two_lists}, {".parquet", from_parquet}, {".arrow", from_parquet}};

}  // namespace

RowTable read_rows(const Path& file, Problems& problems) {
  check_input(fs::is_regular_file(file), "data.dataset", file.string() + ": no such file", "check data.metadata");
  std::string known;
  for (const Format& format : kFormats) {
    if (file.extension() == format.ending) return format.read(file, problems);
    known += (known.empty() ? "" : ", ") + std::string(format.ending);
  }
  throw UserError(Exit::input, "data.dataset", file.string() + ": unknown kind of table, expected one of " + known,
                  "give the file the ending of its format");
}

namespace {

class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  bool done() const { return at_ >= text_.size(); }
  int row() const { return row_; }

  std::vector<std::string> next_row() {
    ++row_;
    begin_ = at_;
    std::vector<std::string> fields = {field()};
    while (take(',')) fields.push_back(field());
    take('\r');
    if (!take('\n') && !done()) fail("text beside a quoted field or a stray carriage return");
    return fields;
  }

  /// Goes on at the line after the one that the faulty row began on: a quote that does not end would swallow the rest.
  void skip_row() { at_ = std::min(text_.find('\n', begin_), text_.size() - 1) + 1; }

  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(
        Exit::input, "data.csv", file_ + ": row " + std::to_string(row_) + ": " + what,
        "fix the row; fields with commas, quotes or line breaks stand in \"quotes\", a quote inside is doubled");
  }

 private:
  bool take(char c) { return !done() && text_[at_] == c && ++at_; }

  std::string field() {
    if (take('"')) return quoted();
    const size_t begin = at_;
    at_ = std::min(text_.find_first_of(",\r\n", begin), text_.size());
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string quoted() {
    std::string value;
    while (!done()) {
      const char c = text_[at_++];
      if (c == '"' && !take('"')) return value;
      value += c;
    }
    fail("a quoted field does not end");
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0, begin_ = 0;  // begin_: of the row being read
  int row_ = 0;
};

}  // namespace

CsvTable parse_csv(std::string_view text, const std::string& file, Problems* problems) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // the mark that spreadsheets put in front
  CsvReader reader(text, file);
  CsvTable table;
  while (!reader.done()) {
    try {
      std::vector<std::string> fields = reader.next_row();
      if (fields.size() == 1 && fields[0].empty()) continue;
      if (table.header.empty()) {
        for (size_t i = 0; i < fields.size(); ++i)
          if (std::find(fields.begin(), fields.begin() + static_cast<long>(i), fields[i]) !=
              fields.begin() + static_cast<long>(i))
            reader.fail("the header has column '" + fields[i] + "' twice");
        table.header = std::move(fields);
        continue;
      }
      if (fields.size() != table.header.size())
        reader.fail("expected " + std::to_string(table.header.size()) + " fields, found " +
                    std::to_string(fields.size()));
      table.rows.push_back(std::move(fields));
      table.numbers.push_back(reader.row());
    } catch (const UserError& error) {
      if (!problems || table.header.empty()) throw;
      problems->add(file + ": row " + std::to_string(reader.row()), error);
      reader.skip_row();
    }
  }
  check_input(!table.header.empty(), "data.csv", file + ": empty", "write a header row, such as video,prompt");
  return table;
}

namespace fs = std::filesystem;
using checkpoint::Json;

namespace {

constexpr const char* kList = "wids-meta.json";
constexpr int64_t kMostText = int64_t{16} << 20;

struct Sample {
  std::string key;
  std::map<std::string, const Member*> files;  // by ending
};

/// Members of one name together, in the order in which the first of them comes.
std::vector<Sample> samples_of(const std::vector<Member>& members, bool first_dot) {
  std::vector<Sample> samples;
  std::map<std::string_view, size_t> places;
  for (const Member& member : members) {
    const size_t base = member.name.rfind('/') + 1;  // npos + 1 is 0
    if (member.name[base] == '.') continue;          // ._a.jpg and .DS_Store of other programs
    const size_t dot = first_dot ? member.name.find('.', base) : member.name.rfind('.');
    if (dot == std::string::npos || dot < base) continue;
    const std::string_view key = std::string_view(member.name).substr(0, dot);
    const auto [place, fresh] = places.emplace(key, samples.size());
    if (fresh) samples.push_back({std::string(key), {}});
    std::string ending = member.name.substr(dot);
    std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
    samples[place->second].files[ending] = &member;
  }
  return samples;
}

/// The sample's file of that ending: "a.png", else "a.image.png" where no other field has that ending, or one of these names
/// is the sample's own. Null where there is none, or several that only who made them can tell apart.
const Member* field_of(const Sample& sample, const std::string& ending) {
  if (const auto plain = sample.files.find(ending); plain != sample.files.end()) return plain->second;
  const Member* found = nullptr;
  int fields = 0;
  for (const auto& [field, member] : sample.files) {
    if (!field.ends_with(ending) || field.size() <= ending.size() || field[field.size() - ending.size()] != '.')
      continue;
    for (const char* own : {"image", "img", "jpg", "video", "clip", "caption", "text", "prompt", "latent"})
      if (field == "." + std::string(own) + ending) return member;
    found = member, ++fields;
  }
  return fields == 1 ? found : nullptr;
}

const Member* media_of(const Sample& sample, bool latents) {
  if (latents) return field_of(sample, ".npy");
  for (const auto* endings : {&image_endings(), &video_endings()})
    for (const std::string& ending : *endings)
      if (const Member* member = field_of(sample, ending)) return member;
  return nullptr;
}

class ArchiveReader {
 public:
  ArchiveReader(const Archive& archive, const DatasetSpec& spec)
      : archive_(archive),
        spec_(spec),
        members_(members_of(archive.path)),
        file_(archive.path),
        side_(Path(archive.path).replace_extension(), spec.captions),
        tar_(ending_of(archive.path) == ".tar") {}

  const CaptionFiles& side_files() const { return side_; }

  std::vector<Item> read(MissingFiles& missing, Problems& problems) const {
    std::vector<Item> items;
    const std::vector<Sample> samples = samples_of(members_, tar_);
    for (const Sample& sample : samples) {
      const std::string where = archive_.path.string() + ": " + sample.key;
      try {
        if (side_.drops(sample.key)) {
          missing.dropped();
          continue;
        }
        items.push_back(item_of(sample, where));
      } catch (const UserError& error) {
        problems.add(where, error);
      }
    }
    const auto found = static_cast<int64_t>(samples.size());
    if (archive_.samples >= 0 && archive_.samples != found)
      problems.add(
          archive_.path.string(),
          "holds " + std::to_string(found) + " samples, " + kList + " counts " + std::to_string(archive_.samples),
          "fetch the archive again, or write " + std::string(kList) + " anew");
    return items;
  }

 private:
  std::string text_of(const Member& member, const std::string& where) const {
    check_input(member.bytes <= kMostText, "data.dataset",
                where + ": " + member.name + " has " + std::to_string(member.bytes) + " bytes, expected a text",
                "remove it");
    return read_member(file_, member);
  }

  Item item_of(const Sample& sample, const std::string& where) const {
    const Member* media = media_of(sample, spec_.latents);
    if (!media) {
      std::string found;
      for (const auto& [ending, member] : sample.files) found += (found.empty() ? "" : ", ") + ending;
      const bool other = field_of(sample, ".npy") || media_of(sample, false);
      throw UserError(
          Exit::input, "data.dataset",
          where + (spec_.latents ? ": no .npy of its latents" : ": no picture or video") + ", found " + found,
          other ? std::string("data.latents = \"") + (spec_.latents ? "no" : "npy") + "\" takes what is there"
                : "fix or remove the sample");
    }
    NamedCaptions named;
    for (const std::string& ending : caption_endings()) {
      const Member* text = field_of(sample, ending);
      if (!text || named.contains("prompt")) continue;
      std::string& prompt = named["prompt"] = text_of(*text, where);
      while (prompt.ends_with('\n') || prompt.ends_with('\r')) prompt.pop_back();
    }
    if (const Member* json = field_of(sample, ".json")) {
      const Json object = checkpoint::parse_json(text_of(*json, where), where + ".json");
      check_input(object.is_object(), "data.dataset", where + ".json: expected an object", "fix or remove the sample");
      for (auto& [name, text] : named_captions(object)) named[name] = text;
    }
    side_.add_captions(sample.key, /*renames=*/true, named);
    if (named.empty() && !spec_.caption.empty()) named["prompt"] = spec_.caption;
    Captions captions = choose_captions(named, side_.scores(sample.key), spec_.captions, where, /*lenient=*/!tar_);
    const std::string motion = side_.motion(sample.key);
    for (std::string& text : captions.texts) text += motion;
    Item item{archive_.path / media->name, std::move(captions.texts), where};
    item.weights = std::move(captions.weights);
    return item;
  }

  const Archive& archive_;
  const DatasetSpec& spec_;
  const std::vector<Member> members_;
  const checkpoint::ReadFile file_;
  const CaptionFiles side_;
  const bool tar_;
};

/// An archive by the name that a list has for it: beside the list where it was moved with it.
Path find_archive(const std::string& url, const Path& folder, const std::string& where) {
  const Path named = url.starts_with("file:") ? Path(url.substr(5)) : Path(url);
  for (const Path& path : {folder / named, folder / named.filename()}) {
    const std::string command = unpacking(path);
    check_input(command.empty() || !is_file(path), "data.dataset",
                where + ": " + path.string() + ": is packed, and only members of a plain .tar are read in their places",
                "unpack it, and name the .tar: " + command);
    if (is_file(path)) return path;
  }
  throw UserError(Exit::input, "data.dataset", where + ": " + checkpoint::shown(url) + ": no such archive",
                  "urls are files, relative to " + folder.string());
}

std::vector<Archive> listed(const Path& list) {
  const Json json = checkpoint::parse_json(checkpoint::read_text(list), list.string());
  const Json& shards =
      checkpoint::json_array(checkpoint::json_member(json, "shardlist", list.string()), list.string() + ": shardlist");
  std::vector<Archive> archives;
  for (const Json& shard : shards) {
    const std::string where = list.string() + ": shardlist[" + std::to_string(archives.size()) + "]";
    Archive archive;
    archive.path = find_archive(checkpoint::json_string(checkpoint::json_member(shard, "url", where), where + ": url"),
                                list.parent_path(), where);
    if (shard.contains("nsamples"))
      archive.samples = checkpoint::json_integer(shard.at("nsamples"), where + ": nsamples");
    archives.push_back(std::move(archive));
  }
  return archives;
}

std::vector<Archive> by_name(const Path& folder) {
  std::vector<Archive> archives;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_file(entry.path()) && is_archive(entry.path())) archives.push_back({entry.path()});
  std::sort(archives.begin(), archives.end(),
            [](const auto& a, const auto& b) { return a.path.native() < b.path.native(); });
  return archives;
}

}  // namespace

bool has_archives(const Path& folder) {
  if (!is_folder(folder)) return false;
  if (is_file(folder / kList)) return true;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if ((is_clip(entry.path()) || is_npy(entry.path())) && is_file(entry.path())) return false;
  return !by_name(folder).empty();
}

std::vector<Archive> archives_of(const Path& folder) {
  if (folder.filename() == kList) return listed(folder);
  if (!fs::is_directory(folder)) return {{folder}};
  return fs::exists(folder / kList) ? listed(folder / kList) : by_name(folder);
}

std::vector<Item> read_archive(const Archive& archive, const DatasetSpec& spec, MissingFiles& missing,
                               Problems& problems) {
  try {
    const ArchiveReader reader(archive, spec);
    missing.count(reader.side_files());
    return reader.read(missing, problems);
  } catch (const UserError& error) {
    problems.add(archive.path.string(), error);
    return {};
  }
}

}  // namespace tessera::data
