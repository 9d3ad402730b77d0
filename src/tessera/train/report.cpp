#include "tessera/train/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "tessera/base/units.h"

namespace tessera::train {

namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#fafaf8;--fg:#1c1c1a;--soft:#6d6d68;--line:#dcdcd6;--card:#fff;--a:#2f6fde;--b:#d9822b}
@media(prefers-color-scheme:dark){:root{--bg:#141413;--fg:#ecece6;--soft:#9a9a92;--line:#33332f;--card:#1d1d1b;--a:#7aa8ff;--b:#f0a35a}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 16px 60px}h1{font-size:26px;margin:0}h2{font-size:17px;margin:0 0 10px}
.soft{color:var(--soft)}.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:14px;margin-top:16px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px;margin-top:16px;overflow-x:auto}.grid .card{margin-top:0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin-top:18px}.facts div{border-left:3px solid var(--a);padding-left:10px}
.facts b{display:block;font-size:18px;font-weight:600;overflow-wrap:anywhere}svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.strip{display:flex;gap:3px;margin:4px 0 10px}.strip img{flex:1 1 0;min-width:72px;max-width:132px;border-radius:3px}
pre{overflow-x:auto;font-size:12.5px;margin:0}.key{display:inline-block;margin-right:14px}.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
details summary{cursor:pointer;font-weight:600})css";

std::string escape(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

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

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

/// A fixed colour for each kind of thing, the same in every chart.
std::string colour(const std::string& kind) {
  static const std::map<std::string, std::string> known = {
      {"forward", "#3b7ddd"}, {"backward", "#7457c9"},     {"recompute", "#4fb0c6"},   {"gather", "#3d9a5f"},
      {"reduce", "#d9822b"},  {"reduce_outer", "#c4622d"}, {"update", "#c94f6d"},      {"norm", "#98823c"},
      {"loss", "#888888"},    {"flush", "#555555"},        {"parameters", "#3d9a5f"},  {"gradients", "#d9822b"},
      {"states", "#c94f6d"},  {"slots", "#98823c"},        {"activations", "#3b7ddd"}, {"temporaries", "#7457c9"}};
  const auto it = known.find(kind);
  return it == known.end() ? "#999999" : it->second;
}

struct Series {
  std::vector<double> x, y;
};

/// At most a few hundred points: the mean of each stretch.
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

std::string curve(const std::string& title, const Series& s, bool logarithmic) {
  if (s.x.empty()) return "";
  const double w = 480, h = 220, left = 52, right = 10, top = 8, bottom = 24;
  const auto scale = [&](double v) { return logarithmic ? std::log10(std::max(v, 1e-12)) : v; };
  double low = 1e300, high = -1e300;
  for (double v : s.y) low = std::min(low, scale(v)), high = std::max(high, scale(v));
  if (high - low < 1e-12) high = low + (low == 0 ? 1 : std::abs(low) * 0.1);
  if (!logarithmic && low > 0 && low < 0.4 * high) low = 0;
  const double x0 = s.x.front(), x1 = std::max(s.x.back(), x0 + 1);
  const auto px = [&](double x) { return left + (x - x0) / (x1 - x0) * (w - left - right); };
  const auto py = [&](double v) { return top + (1 - (scale(v) - low) / (high - low)) * (h - top - bottom); };
  std::ostringstream out;
  out << "<div class=card><h2>" << title << (logarithmic ? " <span class=soft>(log)</span>" : "")
      << "</h2><svg viewBox='0 0 " << w << " " << h << "'>";
  for (int i = 0; i <= 4; ++i) {
    const double v = low + (high - low) * i / 4, y = top + (1 - i / 4.0) * (h - top - bottom);
    out << "<line x1='" << left << "' x2='" << w - right << "' y1='" << y << "' y2='" << y
        << "' stroke='var(--line)'/><text x='" << left - 6 << "' y='" << y + 4 << "' text-anchor='end'>"
        << number(logarithmic ? std::pow(10, v) : v) << "</text>";
  }
  for (int i = 0; i <= 4; ++i) {
    const double x = x0 + (x1 - x0) * i / 4;
    out << "<text x='" << px(x) << "' y='" << h - 6 << "' text-anchor='"
        << (i == 0   ? "start"
            : i == 4 ? "end"
                     : "middle")
        << "'>" << std::llround(x) << "</text>";
  }
  out << "<polyline fill='none' stroke='var(--a)' stroke-width='1.6' points='";
  for (size_t i = 0; i < s.x.size(); ++i) out << px(s.x[i]) << "," << py(s.y[i]) << " ";
  out << "'/></svg></div>";
  return out.str();
}

std::string memory(const std::vector<ReportInput::Rank>& ranks) {
  if (ranks.empty()) return "";
  int64_t most = 1;
  for (const auto& r : ranks) most = std::max({most, r.predicted, r.peak});
  const double w = 980, left = 70, row = 44;
  std::ostringstream out;
  out << "<div class=card><h2>Memory of each rank at its peak</h2><svg viewBox='0 0 " << w << " "
      << row * ranks.size() + 4 << "'>";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto& r = ranks[i];
    const double y = row * i;
    const auto width = [&](int64_t bytes) {
      return static_cast<double>(bytes) / static_cast<double>(most) * (w - left - 150);
    };
    out << "<text x='0' y='" << y + 18 << "'>rank " << r.rank << "</text>";
    double x = left;
    for (const auto& [part, bytes] : r.parts) {
      out << "<rect x='" << x << "' y='" << y + 4 << "' width='" << width(bytes) << "' height='20' fill='"
          << colour(part) << "'><title>" << part << " " << format_bytes(bytes) << "</title></rect>";
      x += width(bytes);
    }
    out << "<text x='" << left + width(std::max(r.peak, r.predicted)) + 8 << "' y='" << y + 18 << "'>measured "
        << format_bytes(r.peak) << "</text>";
    out << "<rect x='" << left << "' y='" << y + 27 << "' width='" << width(r.predicted)
        << "' height='6' fill='var(--soft)'/><text x='" << left + width(std::max(r.peak, r.predicted)) + 8 << "' y='"
        << y + 35 << "'>planned " << format_bytes(r.predicted) << "</text>";
  }
  out << "</svg><p class=soft>";
  for (const auto& [part, bytes] : ranks.front().parts)
    out << "<span class=key><i style='background:" << colour(part) << "'></i>" << part << "</span>";
  out << "</p></div>";
  return out.str();
}

std::string lanes(const std::vector<ReportInput::Bar>& bars, const std::string& title) {
  if (bars.empty()) return "";
  std::vector<std::pair<int, std::string>> rows;
  double end = 1e-9;
  for (const auto& bar : bars) {
    const std::pair<int, std::string> row(bar.rank, bar.lane);
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
    end = std::max(end, bar.end);
  }
  std::sort(rows.begin(), rows.end());
  const double w = 980, left = 110, height = 26;
  std::ostringstream out;
  out << "<div class=card><h2>" << escape(title) << "</h2><svg viewBox='0 0 " << w << " "
      << height * static_cast<double>(rows.size()) + 22 << "'>";
  for (size_t i = 0; i < rows.size(); ++i)
    out << "<text x='0' y='" << height * static_cast<double>(i) + 16 << "'>rank " << rows[i].first << " "
        << escape(rows[i].second) << "</text>";
  std::map<std::string, bool> kinds;
  for (const auto& bar : bars) {
    const auto row =
        std::find(rows.begin(), rows.end(), std::pair<int, std::string>(bar.rank, bar.lane)) - rows.begin();
    const double x = left + bar.begin / end * (w - left),
                 width = std::max(0.6, (bar.end - bar.begin) / end * (w - left));
    out << "<rect x='" << x << "' y='" << height * static_cast<double>(row) + 4 << "' width='" << width << "' height='"
        << height - 8 << "' fill='" << colour(bar.kind) << "'><title>" << escape(bar.label) << "  "
        << format_seconds(bar.end - bar.begin) << "</title></rect>";
    if (bar.end - bar.begin > 0.004 * end) kinds[bar.kind] = true;
  }
  const double base = height * static_cast<double>(rows.size()) + 16;
  out << "<text x='" << left << "' y='" << base << "'>0</text><text x='" << w << "' y='" << base
      << "' text-anchor='end'>" << format_seconds(end) << "</text></svg><p class=soft>";
  for (const auto& [kind, used] : kinds)
    out << "<span class=key><i style='background:" << colour(kind) << "'></i>" << kind << "</span>";
  out << "</p></div>";
  return out.str();
}

}  // namespace

std::string render_report(const ReportInput& in) {
  std::ostringstream out;
  out << "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
         "content='width=device-width,initial-scale=1'><title>"
      << escape(in.title) << "</title><style>" << kStyle << "</style><main><h1>" << escape(in.title)
      << "</h1><div class=soft>" << escape(in.subtitle) << "</div><div class=facts>";
  for (const auto& [label, value] : in.facts)
    out << "<div><span class=soft>" << escape(label) << "</span><b>" << escape(value) << "</b></div>";
  out << "</div>";
  for (const auto& strip : in.strips) {
    out << "<div class=card><h2>" << escape(strip.caption) << "</h2>";
    for (const auto& row : strip.rows) {
      out << "<div class=soft>" << escape(row.label) << "</div><div class=strip>";
      for (const auto& jpeg : row.jpegs)
        out << "<img alt='" << escape(row.label) << "' src='data:image/jpeg;base64," << base64(jpeg) << "'>";
      out << "</div>";
    }
    out << "</div>";
  }
  out << "<div class=grid>" << curve("Loss", thinned(in.steps, [](const ReportInput::Step& s) { return s.loss; }), true)
      << curve("Learning rate", thinned(in.steps, [](const ReportInput::Step& s) { return s.lr; }), false)
      << curve("Gradient norm", thinned(in.steps, [](const ReportInput::Step& s) { return s.grad_norm; }), true)
      << curve("Seconds a step", thinned(in.steps, [](const ReportInput::Step& s) { return s.seconds; }), false)
      << "</div>" << memory(in.ranks) << lanes(in.lanes, in.lanes_title);
  for (const auto& [heading, text] : in.texts)
    out << "<div class=card><details><summary>" << escape(heading) << "</summary><pre>" << escape(text)
        << "</pre></details></div>";
  out << "</main></html>\n";
  return out.str();
}

}  // namespace tessera::train
