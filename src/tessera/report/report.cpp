#include "tessera/report/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "tessera/base/units.h"
#include "tessera/report/page.h"

namespace tessera::report {

namespace {

std::string base64(const std::vector<uint8_t>& bytes) {
  static const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const uint32_t word =
        bytes[i] << 16 | (i + 1 < bytes.size() ? bytes[i + 1] << 8 : 0) | (i + 2 < bytes.size() ? bytes[i + 2] : 0);
    out += digits[word >> 18 & 63];
    out += digits[word >> 12 & 63];
    out += i + 1 < bytes.size() ? digits[word >> 6 & 63] : '=';
    out += i + 2 < bytes.size() ? digits[word & 63] : '=';
  }
  return out;
}

std::string strip_card(const ReportInput::Strip& strip) {
  std::string out = "<div class=card><h2>" + escape_html(strip.caption) + "</h2>";
  for (const auto& row : strip.rows) {
    const std::string label = escape_html(row.label);
    out += "<div class=soft>" + label + "</div><div class=strip>";
    for (const auto& jpeg : row.jpegs)
      out += "<img alt='" + label + "' src='data:image/jpeg;base64," + base64(jpeg) + "'>";
    out += "</div>";
  }
  return out + "</div>";
}

/// Whom the samples chose, over the steps.
std::string expert_curves(const std::vector<ReportInput::Run>& experts) {
  if (experts.empty()) return "";
  return run_legend(experts) + "<div class=grid>" +
         curve_card(
             "Share of the samples by expert", experts, [](const ReportInput::Step& s) { return s.loss; }, false) +
         "</div>";
}

std::string curves(const std::vector<ReportInput::Run>& runs) {
  using Step = ReportInput::Step;
  return "<div class=grid>" +
         curve_card(
             "Loss", runs, [](const Step& s) { return s.loss; }, true) +
         curve_card(
             "Gradient norm", runs, [](const Step& s) { return s.grad_norm; }, true) +
         curve_card(
             "Learning rate", runs, [](const Step& s) { return s.lr; }, false) +
         curve_card(
             "Seconds a step", runs, [](const Step& s) { return s.seconds; }, false) +
         "</div>";
}

}  // namespace

std::string render_report(const ReportInput& in) {
  std::ostringstream out;
  out << "<h1>" << escape_html(in.title) << "</h1><div class=soft>" << escape_html(in.subtitle)
      << "</div><div class=facts>";
  for (const auto& [label, value] : in.facts)
    out << "<div><span class=soft>" << escape_html(label) << "</span><b>" << escape_html(value) << "</b></div>";
  out << "</div>" << run_legend(in.runs);
  std::string tables;
  for (const auto& table : in.tables) tables += table_card(table);
  // What a run learned comes first; of several, which they are.
  const bool several = in.runs.size() > 1;
  out << (several ? tables : "") << curves(in.runs) << expert_curves(in.experts);
  for (const auto& strip : in.strips) out << strip_card(strip);
  out << (several ? "" : tables) << memory_card(in.ranks) << lanes_card(in.lanes, in.lanes_title);
  for (const auto& [heading, text] : in.texts)
    out << "<div class=card><details><summary>" << escape_html(heading) << "</summary><pre>" << escape_html(text)
        << "</pre></details></div>";
  return html_page(in.title, out.str());
}

namespace {

constexpr int kDrawnRanks = 16;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

/// Of a run's curves; style.css has the values, for light and dark.
std::string run_colour(size_t run) { return "var(--r" + std::to_string(run % 6) + ")"; }

struct Series {
  std::vector<double> x, y;
};

Series thinned(const std::vector<ReportInput::Step>& steps, double (*value)(const ReportInput::Step&)) {
  Series s;
  const size_t stretch = std::max<size_t>(1, steps.size() / 400);
  for (size_t i = 0; i < steps.size(); i += stretch) {
    double x = 0, y = 0;
    size_t n = 0;
    for (size_t j = i; j < std::min(steps.size(), i + stretch); ++j) {
      if (!std::isfinite(value(steps[j]))) continue;
      x += static_cast<double>(steps[j].step), y += value(steps[j]), ++n;
    }
    if (n > 0) s.x.push_back(x / static_cast<double>(n)), s.y.push_back(y / static_cast<double>(n));
  }
  return s;
}

/// A chart's frame: from values to places in the picture.
struct Axes {
  static constexpr double w = 480, h = 240, left = 76, right = 10, top = 10, bottom = 28;
  double x0 = 1e300, x1 = -1e300, low = 1e300, high = -1e300;
  bool logarithmic;

  double scale(double v) const { return logarithmic ? std::log10(std::max(v, 1e-12)) : v; }
  double px(double x) const { return left + (x - x0) / (x1 - x0) * (w - left - right); }
  double py(double v) const { return top + (1 - (scale(v) - low) / (high - low)) * (h - top - bottom); }

  Axes(const std::vector<Series>& all, bool logarithmic_) : logarithmic(logarithmic_) {
    for (const Series& s : all) {
      for (double v : s.y) low = std::min(low, scale(v)), high = std::max(high, scale(v));
      for (double x : s.x) x0 = std::min(x0, x), x1 = std::max(x1, x);
    }
    if (high - low < 1e-12) high = low + (low == 0 ? 1 : std::abs(low) * 0.1);
    if (!logarithmic && low > 0 && low < 0.4 * high) low = 0;
    x1 = std::max(x1, x0 + 1);
  }

  void draw(std::ostringstream& out) const {
    for (int i = 0; i <= 4; ++i) {
      const double v = low + (high - low) * i / 4, y = top + (1 - i / 4.0) * (h - top - bottom);
      out << "<line x1='" << left << "' x2='" << w - right << "' y1='" << y << "' y2='" << y
          << "' stroke='var(--line)'/><text x='" << left - 6 << "' y='" << y + 4 << "' text-anchor='end'>"
          << number(logarithmic ? std::pow(10, v) : v) << "</text>";
    }
    constexpr std::array<const char*, 3> kAnchors = {"start", "middle", "end"};
    for (int i = 0; i <= 2; ++i) {
      const double x = x0 + (x1 - x0) * i / 2;
      out << "<text x='" << px(x) << "' y='" << h - 8 << "' text-anchor='" << kAnchors[static_cast<size_t>(i)] << "'>"
          << (i == 0 ? "step " : "") << std::llround(x) << "</text>";
    }
  }
};

}  // namespace

std::string curve_card(const std::string& title, const std::vector<ReportInput::Run>& runs,
                       double (*value)(const ReportInput::Step&), bool logarithmic) {
  std::vector<Series> all;
  bool any = false;
  for (const auto& run : runs) {
    all.push_back(thinned(run.steps, value));
    any = any || !all.back().x.empty();
  }
  if (!any) return "";
  const Axes axes(all, logarithmic);
  std::ostringstream out;
  out << "<div class=card><h2>" << title << (logarithmic ? " <span class=soft>(log)</span>" : "")
      << "</h2><svg class=curve viewBox='0 0 " << Axes::w << " " << Axes::h << "'>";
  axes.draw(out);
  for (size_t r = 0; r < all.size(); ++r) {
    const Series& s = all[r];
    if (s.x.size() == 1)  // a single point makes no line
      out << "<circle r='3' fill='" << run_colour(r) << "' cx='" << axes.px(s.x[0]) << "' cy='" << axes.py(s.y[0])
          << "'/>";
    out << "<polyline fill='none' stroke='" << run_colour(r) << "' stroke-width='1.8' stroke-linejoin='round' points='";
    for (size_t i = 0; i < s.x.size(); ++i) out << axes.px(s.x[i]) << "," << axes.py(s.y[i]) << " ";
    out << "'><title>" << escape_html(runs[r].label) << "</title></polyline>";
  }
  out << "</svg></div>";
  return out.str();
}

std::string run_legend(const std::vector<ReportInput::Run>& runs) {
  if (runs.size() < 2) return "";
  std::string out = "<p>";
  for (size_t r = 0; r < runs.size(); ++r) out += legend_key(run_colour(r), runs[r].label);
  return out + "</p>";
}

std::string memory_card(const std::vector<ReportInput::Rank>& ranks) {
  if (ranks.empty()) return "";
  int64_t most = 1;
  for (const auto& r : ranks) most = std::max({most, r.predicted, r.peak, r.reserved});
  const auto percent = [&](int64_t bytes) {
    return number(100.0 * static_cast<double>(bytes) / static_cast<double>(most)) + "%";
  };
  std::ostringstream out;
  out << "<div class=card><h2>Memory of each rank at its peak</h2>";
  for (const auto& r : ranks) {
    out << "<div class=rank><div><b>rank " << r.rank << "</b> <span class=soft>measured " << format_bytes(r.peak)
        << ", planned " << format_bytes(r.predicted);
    if (r.reserved > 0) out << ", reserved " << format_bytes(r.reserved);
    out << "</span></div><div class=bar>";
    for (const auto& [part, bytes] : r.parts)
      if (bytes > 0)
        out << "<i style='width:" << percent(bytes) << ";background:" << kind_colour(part) << "' title='" << part << " "
            << format_bytes(bytes) << "'></i>";
    out << "</div><div class='bar planned'><i style='width:" << percent(r.predicted) << "'></i></div></div>";
  }
  out << "<p class=soft>";
  for (const auto& [part, bytes] : ranks.front().parts)
    out << legend_key(kind_colour(part), part + " " + format_bytes(bytes));
  out << legend_key("var(--soft)", "planned") << "</p></div>";
  return out.str();
}

std::string lanes_card(const std::vector<ReportInput::Bar>& bars, const std::string& title) {
  if (bars.empty()) return "";
  std::set<std::pair<int, std::string>> named;
  std::set<int> ranks;
  double end = 1e-9;
  for (const auto& bar : bars) {
    ranks.insert(bar.rank);
    end = std::max(end, bar.end);
  }
  const size_t drawn = std::min<size_t>(ranks.size(), kDrawnRanks);
  const int beyond = ranks.size() > drawn ? *std::next(ranks.begin(), static_cast<long>(drawn)) : *ranks.rbegin() + 1;
  for (const auto& bar : bars)
    if (bar.rank < beyond) named.emplace(bar.rank, bar.lane);
  // A heading for each rank, its lanes below it.
  const double w = 980, left = 74, height = 24, heading = 22;
  std::map<std::pair<int, std::string>, double> rows;
  std::map<int, double> headings;
  double y = 0;
  for (const auto& row : named) {
    if (!headings.count(row.first)) headings[row.first] = y + 15, y += heading;
    rows[row] = y;
    y += height;
  }
  std::ostringstream out;
  out << "<div class=card><h2>" << escape_html(title) << "</h2><div class=scroll><svg class=lanes viewBox='0 0 " << w
      << " " << y + 22 << "'>";
  for (const auto& [rank, at] : headings) out << "<text class=head x='0' y='" << at << "'>rank " << rank << "</text>";
  for (const auto& [row, at] : rows)
    out << "<text x='0' y='" << at + 15 << "'>" << escape_html(row.second) << "</text>";
  std::set<std::string> kinds;
  for (const auto& bar : bars) {
    const auto row = rows.find({bar.rank, bar.lane});
    if (row == rows.end()) continue;
    const double x = left + bar.begin / end * (w - left),
                 width = std::max(0.6, (bar.end - bar.begin) / end * (w - left));
    out << "<rect x='" << x << "' y='" << row->second + 3 << "' width='" << width << "' height='" << height - 7
        << "' fill='" << kind_colour(bar.kind) << "'><title>" << escape_html(bar.label) << "  "
        << format_seconds(bar.end - bar.begin) << "</title></rect>";
    if (bar.end - bar.begin > 0.004 * end) kinds.insert(bar.kind);
  }
  out << "<text x='" << left << "' y='" << y + 16 << "'>0</text><text x='" << w << "' y='" << y + 16
      << "' text-anchor='end'>" << format_seconds(end) << "</text></svg></div><p class=soft>";
  for (const auto& kind : kinds) out << legend_key(kind_colour(kind), kind);
  if (drawn < ranks.size()) out << "<br>" << ranks.size() - drawn << " more ranks are in schedule.jsonl";
  out << "</p></div>";
  return out.str();
}

std::string table_card(const ReportInput::Table& table) {
  if (table.rows.empty()) return "";
  std::string out = "<div class=card><h2>" + escape_html(table.title) + "</h2><div class=scroll><table><tr>";
  for (const auto& cell : table.head) out += "<th>" + escape_html(cell) + "</th>";
  out += "</tr>";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (const auto& cell : row) out += "<td>" + escape_html(cell) + "</td>";
    out += "</tr>";
  }
  return out + "</table></div></div>";
}

}  // namespace tessera::report
