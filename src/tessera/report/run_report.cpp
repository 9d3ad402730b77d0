#include "tessera/report/run_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/clip_format.h"
#include "tessera/report/history.h"
#include "tessera/report/page.h"
#include "tessera/report/run_folder.h"

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

namespace {

namespace fs = std::filesystem;
using AnyJson = nlohmann::json;

// Of a strip: enough to judge a clip by, small enough for a page that is sent to a phone.
constexpr int kFrames = 8, kSide = 264;
constexpr size_t kMostSamples = 40;  // of a prompt

template <typename... Values>
std::string print(const char* format, Values... values) {
  char text[64];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

/// One, or one of each expert: each has losses of its own.
std::vector<ReportInput::Run> curves(const RunFolder& run, const std::string& label) {
  std::vector<ReportInput::Run> curves;
  std::map<std::string, size_t> place;  // by expert
  for (const StepMetrics& s : run.steps()) {
    const auto [found, added] = place.try_emplace(s.expert, curves.size());
    if (added) curves.push_back({s.expert.empty() ? label : label + ": " + s.expert, {}});
    curves[found->second].steps.push_back({s.step, s.loss, s.grad_norm, s.lr, s.seconds});
  }
  if (curves.empty()) curves.push_back({label, {}});
  if (run.evals().empty()) return curves;
  ReportInput::Run& held_out = curves.emplace_back(ReportInput::Run{label + ": held out", {}});
  for (const EvalMetrics& eval : run.evals()) held_out.steps.push_back({eval.step, eval.loss, NAN, NAN, NAN});
  return curves;
}

/// The steps of each expert, and the cost of swapping it in.
ReportInput::Table expert_table(const RunFolder& run) {
  ReportInput::Table table{
      "Experts", {"expert", "steps", "share", "last loss", "longest pause", "swapped", "swapped a step", "waited"}, {}};
  std::map<std::string, std::vector<const StepMetrics*>> own;
  for (const StepMetrics& s : run.steps())
    if (!s.expert.empty()) own[s.expert].push_back(&s);
  for (const auto& [name, steps] : own) {
    int64_t rest = 0, moved = 0, before = run.steps().front().step - 1;
    double waited = 0;
    for (const StepMetrics* s : steps) {
      rest = std::max(rest, s->step - before - 1);
      before = s->step;
      moved += s->moved.bytes;
      waited += s->moved.waited;
    }
    rest = std::max(rest, run.steps().back().step - before);
    const auto count = static_cast<double>(steps.size());
    table.rows.push_back(
        {name, std::to_string(steps.size()), print("%.1f %%", 100 * count / static_cast<double>(run.steps().size())),
         print("%.4g", steps.back()->loss), std::to_string(rest) + " steps", format_bytes(moved),
         format_bytes(static_cast<int64_t>(static_cast<double>(moved) / count)), format_seconds(waited)});
  }
  return table;
}

/// The loss by tenths of the timesteps, late in the run.
ReportInput::Table timestep_table(const RunFolder& run) {
  ReportInput::Table table{"Loss by timestep, newest tenth of the steps", {"timesteps", "loss", "samples"}, {}};
  const auto bins = run.loss_by_timestep();
  for (size_t b = 0; b < bins.size(); ++b) {
    const auto edge = [&](size_t place) {
      return print("%.1f", static_cast<double>(place) / static_cast<double>(bins.size()));
    };
    table.rows.push_back({edge(b) + " to " + edge(b + 1), bins[b].count > 0 ? print("%.4g", bins[b].loss) : "",
                          std::to_string(bins[b].count)});
  }
  return table;
}

/// Of a run with several data sets: samples of the whole run, the loss late in it. What is to stay is of all sets.
ReportInput::Table set_table(const RunFolder& run) {
  ReportInput::Table table{"Data sets", {"data set", "samples", "of all", "loss, newest tenth of the steps"}, {}};
  std::map<std::string, int64_t> samples;
  int64_t all = 0;
  for (const StepMetrics& step : run.steps())
    for (const auto& [name, own] : step.by_set) samples[name] += own.count, all += own.count;
  const auto newest = run.loss_by_set();
  if (const StepMetrics::Bin twins = run.preserved(); twins.count > 0)
    table.rows.push_back({"what is to stay (train.preserve)", "", "", print("%.4g", twins.loss)});
  for (const auto& [name, count] : samples) {
    const auto late = std::ranges::find(newest, name, &std::pair<std::string, StepMetrics::Bin>::first);
    const bool trained = late != newest.end() && late->second.count > 0;
    const double share = all > 0 ? 100 * static_cast<double>(count) / static_cast<double>(all) : 0;
    table.rows.push_back(
        {name, std::to_string(count), print("%.1f %%", share), trained ? print("%.4g", late->second.loss) : ""});
  }
  return table;
}

/// Of the held-out clips; a curve of its own is among those of the loss.
ReportInput::Table held_out_table(const RunFolder& run) {
  ReportInput::Table table{"Held-out loss", {"step", "loss", "", "at the cleanest", "at the noisiest", "clips"}, {}};
  const auto& evals = run.evals();
  if (evals.empty()) return table;
  const auto best = std::ranges::min_element(evals, {}, &EvalMetrics::loss);
  constexpr size_t kMost = 40;
  for (size_t e = 0; e < evals.size(); ++e) {
    const EvalMetrics& eval = evals[e];
    const bool shown = evals.size() - e <= kMost || &eval == &*best;
    const auto end = [&](bool last) {
      if (eval.by_timestep.empty()) return std::string();
      const auto& [sigma, loss] = last ? eval.by_timestep.back() : eval.by_timestep.front();
      return print("%.4g", loss) + print(" (sigma %.3f)", sigma);
    };
    if (shown)
      table.rows.push_back({std::to_string(eval.step), print("%.6g", eval.loss), &eval == &*best ? "best" : "",
                            end(false), end(true), std::to_string(eval.samples)});
  }
  return table;
}

/// Whom the samples of a run with a gate chose, and how decided the gate has become.
ReportInput::Table gate_table(const RunFolder& run) {
  ReportInput::Table table{
      "Gate", {"expert", "samples", "share", "of the last tenth", "updates", "steps without", "samples/s"}, {}};
  const auto& steps = run.steps();
  if (steps.empty() || !steps.back().gate) return table;
  const size_t experts = steps.back().gate->experts.size(), tenth = steps.size() - (steps.size() + 9) / 10;
  for (size_t e = 0; e < experts; ++e) {
    int64_t own = 0, all = 0, own_late = 0, all_late = 0, without = 0;
    double seconds = 0;
    for (size_t s = 0; s < steps.size(); ++s) {
      if (!steps[s].gate || steps[s].gate->experts.size() <= e) continue;
      const int64_t samples = steps[s].gate->experts[e].samples;
      own += samples, all += steps[s].samples;
      if (s >= tenth) own_late += samples, all_late += steps[s].samples;
      without += samples == 0;
      if (steps[s].gate->experts[e].seconds > 0) seconds += steps[s].gate->experts[e].seconds;
    }
    const auto share = [](int64_t part, int64_t whole) {
      return print("%.1f %%", whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0.0);
    };
    table.rows.push_back({"expert_" + std::to_string(e), std::to_string(own), share(own, all),
                          share(own_late, all_late), std::to_string(steps.back().gate->experts[e].updates),
                          std::to_string(without),
                          seconds > 0 ? print("%.3g", static_cast<double>(own) / seconds) : ""});
  }
  const auto last = [&](const char* name, double first, double now) {
    table.rows.push_back({name, print("%.4g", first), "to", print("%.4g", now), "", "", ""});
  };
  // A run may have begun without a gate, and the file may be anybody's.
  const auto begun = std::ranges::find_if(steps, [](const StepMetrics& s) { return s.gate.has_value(); });
  const StepMetrics::Gate &first = *begun->gate, &now = *steps.back().gate;
  last("temperature", first.temperature, now.temperature);
  last("entropy", first.entropy, now.entropy);
  last("balance loss", first.balance_loss, now.balance_loss);
  double idle = 0, undealt = 0, dummies = 0, moved = 0, count = 0;
  for (const StepMetrics& s : steps)
    if (s.gate)
      idle += s.gate->idle, undealt += s.gate->undealt_idle, dummies += s.gate->dummies,
          moved += static_cast<double>(s.gate->moved), count += 1;
  const auto mean = [&](const char* name, double sum, const char* told) {
    table.rows.push_back({name, print("%.1f %%", 100 * sum / count), told, "", "", "", ""});
  };
  mean("ranks idle", idle, "of the time of the passes, by samples");
  mean("without a deal", undealt, "of it");
  mean("dummies", dummies, "of the micro-batches");
  table.rows.push_back({"dealt", print("%.4g", moved / count), "samples a step", "", "", "", ""});
  return table;
}

/// Of each expert behind a gate, the share of the samples of every step.
std::vector<ReportInput::Run> expert_shares(const RunFolder& run) {
  std::vector<ReportInput::Run> experts;
  for (const StepMetrics& s : run.steps()) {
    if (!s.gate || s.samples <= 0) continue;
    for (size_t e = experts.size(); e < s.gate->experts.size(); ++e)
      experts.push_back({"expert_" + std::to_string(e), {}});
    for (size_t e = 0; e < s.gate->experts.size(); ++e) {
      const double share = static_cast<double>(s.gate->experts[e].samples) / static_cast<double>(s.samples);
      experts[e].steps.push_back({s.step, share, NAN, NAN, NAN});
    }
  }
  return experts;
}

/// Whom samples chose by tenths of the timesteps, in the newest steps.
ReportInput::Table choice_table(const RunFolder& run) {
  ReportInput::Table table{"Experts by timestep, newest tenth of the steps", {"timesteps"}, {}};
  const auto chosen = run.experts_by_timestep();
  if (chosen.empty()) return table;
  for (size_t e = 0; e < chosen.size(); ++e) table.head.push_back("expert_" + std::to_string(e));
  table.head.push_back("samples");
  for (size_t b = 0; b < chosen[0].size(); ++b) {
    const auto edge = [&](size_t place) {
      return print("%.1f", static_cast<double>(place) / static_cast<double>(chosen[0].size()));
    };
    int64_t all = 0;
    for (const auto& of_expert : chosen) all += of_expert[b];
    std::vector<std::string> row = {edge(b) + " to " + edge(b + 1)};
    for (const auto& of_expert : chosen)
      row.push_back(all > 0 ? print("%.1f %%", 100 * static_cast<double>(of_expert[b]) / static_cast<double>(all))
                            : "");
    row.push_back(std::to_string(all));
    table.rows.push_back(std::move(row));
  }
  return table;
}

/// What products in 8 bits lose of each unit's operands, in the newest step that counted it.
ReportInput::Table fp8_table(const RunFolder& run) {
  const StepMetrics* step = run.counted_fp8();
  ReportInput::Table table{"Products in 8 bits: values lost, step " + std::to_string(step ? step->step : 0),
                           {"unit", "x and W that became zero", "clipped", "gradients that became zero", "clipped"},
                           {}};
  const auto share = [](double value) { return print("%.3g %%", 100 * value); };
  for (const StepMetrics::EightBits& of : step ? step->fp8 : std::vector<StepMetrics::EightBits>())
    table.rows.push_back({of.unit, share(of.operands.zeros), share(of.operands.clipped), share(of.gradients.zeros),
                          share(of.gradients.clipped)});
  return table;
}

double training_seconds(const RunFolder& run) {
  double total = 0;
  for (const StepMetrics& s : run.steps()) total += s.seconds;
  return total;
}

double tokens_a_second(const RunFolder& run) {
  const double seconds = run.step_seconds();
  return seconds > 0 ? static_cast<double>(run.steps().back().tokens) / seconds : 0;
}

int64_t highest_peak(const RunFolder& run) {
  int64_t peak = 0;
  for (const RankMetrics& r : run.ranks()) peak = std::max(peak, r.peak_bytes);
  return peak;
}

/// Of all ranks, as the table of their utilisation has it.
std::optional<double> mean_mfu(const RunFolder& run) {
  double sum = 0;
  int64_t count = 0;
  for (const RunFolder::Utilisation& rank : run.utilisation())
    if (rank.mfu) sum += *rank.mfu, ++count;
  return count == 0 ? std::nullopt : std::optional(sum / static_cast<double>(count));
}

std::vector<std::pair<std::string, std::string>> facts(const RunFolder& run) {
  const RunFacts& f = run.facts();
  std::vector<std::pair<std::string, std::string>> facts;
  if (f.parameters > 0) facts.emplace_back("parameters", print("%.1f M", static_cast<double>(f.parameters) / 1e6));
  if (!run.steps().empty() && run.steps().back().samples > 0)
    facts.emplace_back("tokens a sample", print("%.0f", static_cast<double>(run.steps().back().tokens) /
                                                            static_cast<double>(run.steps().back().samples)));
  if (f.global_batch > 0) facts.emplace_back("global batch", std::to_string(f.global_batch));
  if (!run.ranks().empty()) facts.emplace_back("ranks", std::to_string(run.world()));
  if (!run.ranks().empty())
    facts.emplace_back("device memory", used_and_reserved(run.memory(), static_cast<size_t>(run.world())));
  facts.emplace_back("steps", std::to_string(run.last_step()) +
                                  (run.finished() || f.steps == 0 ? "" : " of " + std::to_string(f.steps)));
  if (!run.steps().empty()) {
    const StepMetrics& last = run.steps().back();
    facts.emplace_back("training time", format_seconds(training_seconds(run)));
    facts.emplace_back("tokens a second", print("%.0f", tokens_a_second(run)));
    if (const auto mfu = mean_mfu(run))
      facts.emplace_back(
          "MFU, mean of the steps",
          print("%.1f %%", 100 * *mfu) + (last.peak_flops ? " of " + format_flops(*last.peak_flops) + " a rank" : ""));
    if (const auto error = run.compression_error())
      facts.emplace_back("error of quantised activations",
                         print("mean %.2g, largest %.2g of their size", error->mean, error->most));
    facts.emplace_back("last loss", print("%.4g", last.loss));
  }
  for (auto event = run.events().rbegin(); event != run.events().rend(); ++event)
    if (event->psnr) {
      facts.emplace_back("PSNR of the last sample against its clip's reconstruction", print("%.1f dB", *event->psnr));
      break;
    }
  return facts;
}

std::vector<ReportInput::Rank> memory(const RunFolder& run) {
  std::vector<ReportInput::Rank> ranks;
  for (const RankMetrics& m : run.ranks()) {
    ReportInput::Rank rank{m.rank, m.predicted_peak_bytes, m.peak_bytes, m.reserved_bytes, named_parts(m.bytes)};
    rank.parts.pop_back();  // host memory is no part of the device's
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

void read_lanes(const fs::path& file, ReportInput& in) {
  int64_t step = -1;
  if (fs::exists(file)) {
    ForeignLines lines(file, "run");
    for (std::string text; lines.next(text);) {
      const AnyJson json = json_or_nothing(text);
      if (!json.is_object()) continue;
      const JsonFields line(json, file.string() + ", line " + std::to_string(lines.number()));
      if (!line.text("phase").starts_with("train") || !line.has("t0")) continue;
      const std::string op = line.text("op");
      if (op == "release") continue;
      step = line.whole("step");
      in.lanes.push_back({static_cast<int>(line.whole("rank")), line.text("lane"),
                          printable(op + " " + line.text("unit")), op, line.real("t0"), line.real("t1")});
    }
  }
  in.lanes_title = "Lanes over time, step " + std::to_string(step);
}

/// Seconds of the first rank's instructions by kind, as predicted and as measured: sums of what trace.json has.
ReportInput::Table predicted_and_measured(const fs::path& trace) {
  ReportInput::Table table{
      "A step by kind of instruction, rank 0", {"instructions", "predicted", "measured (waiting included)"}, {}};
  constexpr int64_t kMost = int64_t{512} << 20;
  const AnyJson json = fs::exists(trace) ? json_or_nothing(read_foreign(trace, kMost, "run")) : AnyJson();
  if (!json.is_object()) return table;
  std::map<int64_t, std::string> lanes;  // "predicted: rank 0 and 1 alike", by process
  std::map<std::string, std::array<double, 2>> seconds;
  for (const JsonFields& event : JsonFields(json, trace.string()).list("traceEvents")) {
    const int64_t process = event.whole("pid");
    if (event.text("name") == "process_name") lanes[process] = event.object("args").text("name");
    if (event.text("ph") != "X") continue;
    for (const int which : {0, 1})
      if (lanes[process].starts_with(which == 0 ? "predicted: rank 0" : "measured: rank 0,"))
        seconds[event.text("cat")][static_cast<size_t>(which)] += event.real("dur") / 1e6;
  }
  for (const auto& [op, both] : seconds)
    if (both[0] + both[1] > 0) table.rows.push_back({printable(op), format_seconds(both[0]), format_seconds(both[1])});
  return table;
}

/// What computing stood still for: as the plan predicted it, and as it was, in seconds of a step.
ReportInput::Table waits_table(const RunFolder& run) {
  ReportInput::Table table{
      "What compute waited for, a step",
      {"for", "predicted, slowest rank", "measured, mean of ranks", "measured, the most of a rank"},
      {}};
  const auto waits = run.waits();
  if (waits.empty()) return table;
  using Exposed = RankMetrics::Exposed;
  for (const auto& [what, field] : {std::pair("collectives (exposed communication)", &Exposed::comm),
                                    {"copies (exposed transfers)", &Exposed::copy},
                                    {"other stages", &Exposed::stages},
                                    {"samples (data loading)", &Exposed::data},
                                    {"nothing: the host between two instructions (dispatch)", &Exposed::dispatch}}) {
    double sum = 0, most = 0;
    int rank = waits.front().rank;
    for (const RunFolder::Waits& here : waits) {
      const double seconds = here.seconds.*field;
      sum += seconds;
      if (seconds > most) most = seconds, rank = here.rank;
    }
    const double predicted = run.facts().predicted_waits.*field;
    if (predicted + sum <= 0) continue;
    table.rows.push_back({what, format_seconds(predicted), format_seconds(sum / static_cast<double>(waits.size())),
                          format_seconds(most) + " on rank " + std::to_string(rank)});
  }
  if (!table.rows.empty())
    table.rows.push_back(
        {"of a step of", format_seconds(run.facts().predicted_seconds), format_seconds(run.step_seconds()), ""});
  return table;
}

/// MFU, the busy share of each lane and what the GPU's driver says, by rank.
ReportInput::Table utilisation_table(const RunFolder& run) {
  ReportInput::Table table{"Utilisation, mean of the steps", {"rank", "MFU"}, {}};
  const auto list = run.utilisation();
  std::set<std::string> lanes;
  for (const auto& rank : list)
    for (const auto& [lane, share] : rank.lanes) lanes.insert(lane);
  for (const std::string& lane : lanes) table.head.push_back(printable(lane) + " busy");
  const bool driver = std::ranges::any_of(list, [](const auto& rank) { return rank.driver.has_value(); });
  if (driver)
    for (const char* said : {"GPU busy, by its driver", "power", "most memory taken"}) table.head.emplace_back(said);
  for (const auto& rank : list) {
    auto& row = table.rows.emplace_back();
    row = {"rank " + std::to_string(rank.rank), rank.mfu ? print("%.1f %%", 100 * *rank.mfu) : "not known"};
    for (const std::string& lane : lanes) {
      const auto found = rank.lanes.find(lane);
      row.push_back(print("%.0f %%", found == rank.lanes.end() ? 0.0 : 100 * found->second));
    }
    if (!driver) continue;
    const RankMetrics::Driver said = rank.driver.value_or(RankMetrics::Driver{});
    for (const std::string& cell :
         {print("%.0f %%", 100 * said.utilisation), print("%.0f W", said.watts), format_bytes(said.memory_bytes)})
      row.push_back(rank.driver ? cell : "not known");
  }
  return table;
}

/// A few frames of a stored clip; none where it is gone, or this build reads no video.
std::vector<std::vector<uint8_t>> pictures(const fs::path& clip) {
  std::vector<std::vector<uint8_t>> jpegs;
  if (!data::has_video() || !fs::exists(clip)) return jpegs;
  const data::Frames frames = data::thumbnail(data::decode_clip(clip, {}), kSide, kFrames);
  for (int i = 0; i < frames.count; ++i) jpegs.push_back(data::write_jpeg(frames, i));
  return jpegs;
}

/// The samples of each prompt by step, under what the clip of that caption looks like where the run keeps it. Of very
/// many, kMostSamples from the first to the last.
std::vector<ReportInput::Strip> strips(const RunFolder& run) {
  std::map<std::string, std::map<int64_t, const RunEvent*>> samples;  // by prompt and step: the newest of a step
  for (const RunEvent& event : run.events())
    if (event.type == "sample") samples[event.prompt][event.step] = &event;
  std::vector<ReportInput::Strip> strips;
  if (const fs::path grid = run.folder() / "samples" / "grid.jpg"; fs::exists(grid)) {
    const std::string bytes = checkpoint::read_text(grid);
    strips.push_back(
        {"All samples: a row a prompt, a column a step", {{"samples/grid.jpg", {{bytes.begin(), bytes.end()}}}}});
  }
  for (const auto& [prompt, by_step] : samples) {
    std::vector<const RunEvent*> all;
    for (const auto& [step, event] : by_step) all.push_back(event);
    const std::string stem = fs::path(all.back()->file).stem().string(), index = stem.substr(stem.rfind('-') + 1);
    const size_t shown = std::min(all.size(), kMostSamples);
    ReportInput::Strip strip{prompt, {}};
    if (shown < all.size()) strip.caption += print(" (%zu of %zu samples)", shown, all.size());
    std::vector<std::pair<fs::path, std::string>> rows = {
        {run.folder() / "references" / ("source-" + index + ".mp4"), "source"},
        {run.folder() / "references" / ("reconstruction-" + index + ".mp4"),
         "reconstruction: what the autoencoder keeps"}};
    for (size_t i = 0; i < shown; ++i) {
      const RunEvent& event = *all[shown == 1 ? all.size() - 1 : i * (all.size() - 1) / (shown - 1)];
      rows.emplace_back(run.folder() / "samples" / fs::path(event.file).filename(),
                        "sample of step " + std::to_string(event.step) +
                            (event.psnr ? print(", PSNR %.1f dB against the reconstruction", *event.psnr) : ""));
    }
    for (const auto& [file, label] : rows)
      if (auto jpegs = pictures(file); !jpegs.empty()) strip.rows.push_back({label, std::move(jpegs)});
    if (!strip.rows.empty()) strips.push_back(std::move(strip));
  }
  return strips;
}

ReportInput single(const RunFolder& run) {
  const RunFacts& f = run.facts();
  ReportInput in;
  in.title = "Tessera: " + run.folder().string();
  in.subtitle = f.model + (f.plan.empty() ? "" : ", " + f.plan);
  in.facts = facts(run);
  in.runs = curves(run, run.folder().string());
  in.experts = expert_shares(run);
  in.ranks = memory(run);
  read_lanes(run.folder() / "schedule.jsonl", in);
  in.strips = strips(run);
  in.tables.push_back(predicted_and_measured(run.folder() / "trace.json"));
  in.tables.push_back(waits_table(run));
  in.tables.push_back(utilisation_table(run));
  ReportInput::Table troubles{"Faults and skipped steps", {"step", "what", "why"}, {}};
  for (const RunEvent& event : run.events())
    if (event.type == "skip" || event.type == "fault")
      troubles.rows.push_back({std::to_string(event.step), event.type, event.text});
  in.tables.push_back(held_out_table(run));
  in.tables.push_back(timestep_table(run));
  in.tables.push_back(set_table(run));
  in.tables.push_back(expert_table(run));
  in.tables.push_back(gate_table(run));
  in.tables.push_back(choice_table(run));
  in.tables.push_back(fp8_table(run));
  in.tables.push_back(std::move(troubles));
  for (const auto& [heading, file] : {std::pair{"Recipe", "recipe.toml"}, std::pair{"Plan", "plan.toml"},
                                      std::pair{"Where the bytes go", "plan.txt"}})
    if (fs::exists(run.folder() / file)) in.texts.emplace_back(heading, checkpoint::read_text(run.folder() / file));
  return in;
}

ReportInput compared(const std::vector<RunFolder>& runs) {
  ReportInput in;
  in.title = "Tessera: " + std::to_string(runs.size()) + " runs";
  in.tables = {{"Runs", {"run", "mesh", "steps", "last loss", "a step", "tokens/s", "peak a rank"}, {}}};
  for (const RunFolder& run : runs) {
    const std::string label = run.folder().string();
    for (auto& curve : curves(run, label)) in.runs.push_back(std::move(curve));
    const bool any = !run.steps().empty();
    in.tables[0].rows.push_back(
        {label, run.facts().mesh, std::to_string(run.last_step()), any ? print("%.4g", run.steps().back().loss) : "",
         any ? format_seconds(run.step_seconds()) : "", any ? print("%.0f", tokens_a_second(run)) : "",
         any ? format_bytes(highest_peak(run)) : ""});
    for (auto& strip : strips(run)) {
      strip.caption = label + ": " + strip.caption;
      in.strips.push_back(std::move(strip));
    }
    if (fs::exists(run.folder() / "recipe.toml"))
      in.texts.emplace_back("Recipe of " + label, checkpoint::read_text(run.folder() / "recipe.toml"));
  }
  return in;
}

}  // namespace

void write_run_report(const std::vector<fs::path>& paths, const fs::path& file) {
  check_internal(!paths.empty(), "train.report", "no run to report on");
  checkpoint::remove_dead_partials_of(file);
  std::vector<RunFolder> runs;
  for (const auto& path : paths) {
    const RunFolder& run = runs.emplace_back(path);
    if (!run.strays().empty())
      log::warn(printable((run.folder() / "metrics.jsonl").string()) + ": " + told_strays(run.strays()));
  }
  checkpoint::write_text(file, render_report(runs.size() == 1 ? single(runs.front()) : compared(runs)));
}

}  // namespace tessera::report
