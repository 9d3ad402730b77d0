#pragma once
// Lines for a terminal that know how wide they are: colours and block characters where they can be shown, plain ASCII
// where they cannot, and never wider than asked.
//
//   Line line({.width = 80, .colour = true, .utf8 = true});
//   line.add("rank 0 ", Ink::soft).bar({{0.4, Ink::blue, 'A'}, {0.1, Ink::green, 'P'}}, 30).str();
#include <string>
#include <string_view>
#include <vector>

namespace tessera::report {

struct TerminalStyle {
  int width = 80, height = 0;  ///< columns, rows; height 0: as many lines as there are
  bool colour = false, utf8 = false;

  /// Of the terminal behind `fd` and the environment: no colours when it is no terminal, for TERM=dumb or with
  /// NO_COLOR; block characters only in a UTF-8 locale (and not for TERM=dumb).
  static TerminalStyle of(int fd);
};

/// Columns of the terminal behind `fd`; 0: it is none, and nothing should be wrapped for it.
int terminal_columns(int fd);

/// Lines of more columns than `width` are broken between words and go on under the last column of their table (two
/// spaces or more stand before it), or under their indent. 0: as it is. A word that is too long stays whole.
std::string wrapped(const std::string& text, int width);

enum class Ink { plain, strong, soft, green, orange, red, olive, blue, purple, grey };

class Line {
 public:
  explicit Line(const TerminalStyle& style) : style_(style) {}

  struct Piece {
    double share;  ///< of the bar's width
    Ink ink;
    char letter;  ///< what the piece is drawn with where there are no colours
  };

  /// UTF-8 text of narrow characters; what does not fit is cut off.
  Line& add(std::string_view text, Ink ink = Ink::plain);
  Line& pad_to(int column);
  /// Pieces after one another in `cells` columns, the rest left dark. Edges are placed, not widths rounded, so that
  /// pieces neither gain nor lose by their order.
  Line& bar(const std::vector<Piece>& pieces, int cells);
  int width() const { return width_; }
  int left() const { return style_.width - width_; }
  const std::string& str() const { return text_; }

 private:
  TerminalStyle style_;
  std::string text_;
  int width_ = 0;
};

/// The text with spaces behind it up to `width` columns, two at least.
std::string in_column(std::string text, size_t width);

/// `values` as a row of at most `cells` small columns, each the mean of a stretch; NaN leaves a gap.
std::string sparkline(const std::vector<double>& values, int cells, bool utf8);

}  // namespace tessera::report
