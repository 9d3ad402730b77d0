#include "tessera/data/rows.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"
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

}  // namespace tessera::data
