#include "tessera/report/report.h"

#include <sstream>

#include "tessera/report/page.h"
#include "tessera/report/report_charts.h"

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

}  // namespace tessera::report
