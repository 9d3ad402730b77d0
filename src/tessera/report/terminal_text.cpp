#include "tessera/report/terminal_text.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace tessera::report {

namespace {

/// Colours of the report's charts, as near as 256 colours come; by Ink.
constexpr std::array<const char*, 10> kInks = {"",         "1",        "38;5;245", "38;5;72", "38;5;172",
                                               "38;5;168", "38;5;136", "38;5;68",  "38;5;98", "38;5;240"};

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

bool utf8_locale() {
  // The program runs in the "C" locale; what the user has is asked for and put back.
  const std::string before = std::setlocale(LC_CTYPE, nullptr);
  std::setlocale(LC_CTYPE, "");
  const bool utf8 = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  std::setlocale(LC_CTYPE, before.c_str());
  return utf8;
}

int columns_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : 0;
}

int columns_in(std::string_view text) {
  return static_cast<int>(std::ranges::count_if(text, [](char c) { return !continues(c); }));
}

/// Where the rest of a line goes on: behind its last gap of two spaces, if that leaves half of the width.
int hanging_indent(const std::string& line, int width) {
  const size_t first = line.find_first_not_of(' ');
  int indent = first == std::string::npos ? 0 : static_cast<int>(first);
  for (size_t at = line.find("  ", static_cast<size_t>(indent)); at != std::string::npos; at = line.find("  ", at)) {
    at = line.find_first_not_of(' ', at);
    if (at == std::string::npos) break;
    const int column = columns_in(std::string_view(line).substr(0, at));
    if (column > width / 2) break;
    indent = column;
  }
  return indent;
}

}  // namespace

TerminalStyle TerminalStyle::of(int fd) {
  TerminalStyle style;
  const char* term = std::getenv("TERM");
  const bool dumb = !term || !*term || std::strcmp(term, "dumb") == 0;
  const bool terminal = isatty(fd) == 1;
  winsize size{};
  if (terminal && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    style.width = size.ws_col, style.height = size.ws_row;
  else if (const int columns = columns_of("COLUMNS"); columns > 0)
    style.width = columns;
  style.width = std::clamp(style.width, 20, 240);
  style.colour = terminal && !dumb && !std::getenv("NO_COLOR");
  style.utf8 = utf8_locale() && !(terminal && dumb);
  return style;
}

int terminal_columns(int fd) {
  winsize size{};
  return isatty(fd) == 1 && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string wrapped(const std::string& text, int width) {
  if (width <= 0) return text;
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    const std::string indent(static_cast<size_t>(hanging_indent(line, width)), ' ');
    while (columns_in(line) > width) {
      size_t cut = std::string::npos;  // the last space that leaves something before it and fits
      int column = 0;
      for (size_t i = 0; i < line.size() && column <= width; ++i) {
        if (line[i] == ' ' && line.find_first_not_of(' ') < i && i > indent.size()) cut = i;
        column += !continues(line[i]);
      }
      if (cut == std::string::npos) cut = line.find(' ', std::max(indent.size(), line.find_first_not_of(' ')));
      const size_t next = cut == std::string::npos ? cut : line.find_first_not_of(' ', cut);
      if (next == std::string::npos) break;
      out += line.substr(0, line.find_last_not_of(' ', cut) + 1) + "\n";
      line = indent + line.substr(next);
    }
    out += line;
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

Line& Line::add(std::string_view text, Ink ink) {
  size_t end = 0;
  while (end < text.size() && width_ < style_.width) {
    do ++end;
    while (end < text.size() && continues(text[end]));
    ++width_;
  }
  text = text.substr(0, end);
  if (text.empty()) return *this;
  const char* code = kInks[static_cast<size_t>(ink)];
  if (style_.colour && *code)
    text_.append("\x1b[").append(code).append("m").append(text).append("\x1b[0m");
  else
    text_ += text;
  return *this;
}

Line& Line::pad_to(int column) {
  return column > width_ ? add(std::string(static_cast<size_t>(column - width_), ' ')) : *this;
}

Line& Line::bar(const std::vector<Piece>& pieces, int cells) {
  double share = 0;
  int done = 0;
  for (const Piece& piece : pieces) {
    share += std::max(piece.share, 0.0);
    const int edge = std::clamp(static_cast<int>(std::lround(share * cells)), done, cells);
    std::string drawn;
    for (; done < edge; ++done) drawn += !style_.colour ? std::string(1, piece.letter) : style_.utf8 ? "█" : "#";
    add(drawn, piece.ink);
  }
  std::string rest;
  for (; done < cells; ++done) rest += style_.utf8 ? "·" : ".";
  return add(rest, Ink::grey);
}

std::string in_column(std::string text, size_t width) {
  text.resize(std::max(width, text.size() + 2), ' ');
  return text;
}

std::string sparkline(const std::vector<double>& values, int cells, bool utf8) {
  static constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::array<const char*, 8> kAscii = {"_", ".", "-", "~", "=", "+", "*", "#"};
  const auto& marks = utf8 ? kBlocks : kAscii;
  const size_t count = std::min(values.size(), static_cast<size_t>(std::max(cells, 0)));
  std::vector<double> means;
  for (size_t i = 0; i < count; ++i) {
    double sum = 0;
    int n = 0;
    for (size_t j = i * values.size() / count; j < (i + 1) * values.size() / count; ++j)
      if (std::isfinite(values[j])) sum += values[j], ++n;
    means.push_back(n > 0 ? sum / n : NAN);
  }
  double low = INFINITY, high = -INFINITY;
  for (double mean : means)
    if (std::isfinite(mean)) low = std::min(low, mean), high = std::max(high, mean);
  std::string line;
  for (double mean : means) {
    if (!std::isfinite(mean)) {
      line += " ";
      continue;
    }
    const double level = high > low ? (mean - low) / (high - low) : 0;
    line += marks[static_cast<size_t>(std::lround(level * (marks.size() - 1)))];
  }
  return line;
}

}  // namespace tessera::report
