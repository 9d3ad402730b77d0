#include "tessera/report/report.h"

#include <sstream>

#include "tessera/report/report_charts.h"

namespace tessera::report {

namespace {

// Wide things (lanes, tables, frames, texts) scroll within their card, so that the page itself never does.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#fafaf8;--fg:#1c1c1a;--soft:#66665f;--line:#dcdcd6;--card:#fff;
--r0:#2f6fde;--r1:#d0721c;--r2:#2f8f57;--r3:#b8406a;--r4:#7457c9;--r5:#7d6a1f}
@media(prefers-color-scheme:dark){:root{--bg:#141413;--fg:#ecece6;--soft:#a2a29a;--line:#33332f;--card:#1d1d1b;
--r0:#7aa8ff;--r1:#f0a35a;--r2:#63c48d;--r3:#ee7fa4;--r4:#ab95f5;--r5:#cdb75a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere;-webkit-text-size-adjust:100%}
main{max-width:1080px;margin:0 auto;padding:28px 16px 60px}
h1{font-size:26px;line-height:1.25;margin:0}h2{font-size:17px;margin:0 0 10px}p{margin:10px 0 0}
.soft{color:var(--soft)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:14px;margin-top:16px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px;margin-top:16px;min-width:0}
.grid .card{margin-top:0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin-top:18px}
.facts div{border-left:3px solid var(--r0);padding-left:10px}.facts b{display:block;font-size:18px;font-weight:600}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font:12px system-ui,sans-serif}
svg .head{fill:var(--fg);font-weight:600}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}.lanes{min-width:760px}
.rank{margin-bottom:12px}.bar{display:flex;height:20px;margin-top:4px}.bar i{display:block;height:100%;flex:none}
.bar.planned{height:6px}.bar.planned i{background:var(--soft)}
.strip{display:flex;gap:3px;margin:4px 0 10px;overflow-x:auto}.strip img{flex:1 0 auto;width:84px;min-width:72px;max-width:132px;border-radius:3px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{text-align:right;padding:4px 12px 4px 0}th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left}
tr+tr td{border-top:1px solid var(--line)}
pre{overflow-x:auto;font-size:12.5px;margin:10px 0 0;overflow-wrap:normal}
.key{display:inline-block;margin-right:14px}.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
details summary{cursor:pointer;font-weight:600}
@media(max-width:600px){main{padding:18px 12px 40px}h1{font-size:21px}.card{padding:12px}.curve text{font-size:17px}}
)css";

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
  out << "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
         "content='width=device-width,initial-scale=1'><title>"
      << escape_html(in.title) << "</title><style>" << kStyle << "</style><main><h1>" << escape_html(in.title)
      << "</h1><div class=soft>" << escape_html(in.subtitle) << "</div><div class=facts>";
  for (const auto& [label, value] : in.facts)
    out << "<div><span class=soft>" << escape_html(label) << "</span><b>" << escape_html(value) << "</b></div>";
  out << "</div>" << run_legend(in.runs);
  for (const auto& table : in.tables) out << table_card(table);
  // Of one run the clips say most; of several, the curves.
  std::string clips;
  for (const auto& strip : in.strips) clips += strip_card(strip);
  const bool several = in.runs.size() > 1;
  out << (several ? "" : clips) << curves(in.runs) << (several ? clips : "") << memory_card(in.ranks)
      << lanes_card(in.lanes, in.lanes_title);
  for (const auto& [heading, text] : in.texts)
    out << "<div class=card><details><summary>" << escape_html(heading) << "</summary><pre>" << escape_html(text)
        << "</pre></details></div>";
  out << "</main></html>\n";
  return out.str();
}

}  // namespace tessera::report
