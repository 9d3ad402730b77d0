#include "tessera/data/files/csv.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::data {

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
