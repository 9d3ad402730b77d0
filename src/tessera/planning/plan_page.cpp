#include "tessera/planning/plan_page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "tessera/base/units.h"
#include "tessera/planning/plan_view.h"

namespace tessera::planning {

namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#fafaf8;--fg:#1c1c1a;--soft:#6d6d68;--line:#dcdcd6;--card:#fff;--mem:#3b7ddd}
@media(prefers-color-scheme:dark){:root{--bg:#141413;--fg:#ecece6;--soft:#9a9a92;--line:#33332f;--card:#1d1d1b;--mem:#7aa8ff}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 16px 60px}h1{font-size:24px;margin:0}h2{font-size:16px;margin:0 0 10px}
.soft{color:var(--soft)}.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px;margin-top:16px;overflow-x:auto}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:16px}.two .card{margin-top:16px}
.no{color:#d04a3a;font-weight:600}svg{display:block;width:100%;min-width:720px;height:auto}svg text{fill:var(--soft);font:11px system-ui,sans-serif}
table{border-collapse:collapse;width:100%;font-size:13.5px}td,th{padding:3px 10px 3px 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.key{display:inline-block;margin:0 14px 4px 0;font-size:13px}
i.dot{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}.bar{height:10px;border-radius:3px})css";

/// One colour for each kind, the same on every page.
const std::map<std::string, std::string>& colours() {
  static const std::map<std::string, std::string> known = {
      {"forward", "#3b7ddd"},  {"backward", "#7457c9"},     {"recompute", "#4fb0c6"},    {"gather", "#3d9a5f"},
      {"reduce", "#d9822b"},   {"reduce_outer", "#c4622d"}, {"gather_outer", "#2d9cc4"}, {"update", "#c94f6d"},
      {"norm", "#98823c"},     {"loss", "#888888"},         {"flush", "#555555"},        {"stash", "#b07a4a"},
      {"fetch", "#7f9c3c"},    {"compute", "#3b7ddd"},      {"exposed comm", "#d9822b"}, {"exposed copies", "#b07a4a"},
      {"bubble", "#888888"},   {"optimiser", "#c94f6d"},    {"parameters", "#3d9a5f"},   {"gradients", "#d9822b"},
      {"states", "#c94f6d"},   {"slots", "#98823c"},        {"activations", "#3b7ddd"},  {"temporaries", "#7457c9"},
      {"compress", "#a8733a"}, {"expand", "#8a9a55"}};
  return known;
}
std::string colour(const std::string& kind) {
  const auto it = colours().find(kind);
  return it == colours().end() ? "#999999" : it->second;
}

std::string escape(const std::string& text) {
  std::string out;
  for (char c : text)
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

/// "12.3 ms", with enough digits to distinguish neighbours.
std::string seconds(double s) {
  if (s <= 0) return "0";
  char text[32];
  std::snprintf(text, sizeof text,
                s < 1e-3 ? "%.1f us"
                : s < 1  ? "%.1f ms"
                         : "%.2f s",
                s < 1e-3 ? s * 1e6
                : s < 1  ? s * 1e3
                         : s);
  return text;
}

constexpr double kWidth = 1200, kLeft = 84, kRight = 16, kRow = 30, kCurve = 190;

class Picture {
 public:
  Picture(const Planned& planned, const plan::RankGroup& group) : planned_(planned), group_(group) {
    for (const auto& span : group.spans) end_ = std::max(end_, span.end);
  }

  std::string draw() {
    lanes();
    const double top = y_ + 14;
    curve(top);
    axis(top + kCurve);
    std::ostringstream svg;
    svg << "<svg viewBox='0 0 " << kWidth << " " << top + kCurve + 28 << "' role='img'>" << out_.str() << "</svg>";
    return svg.str();
  }

 private:
  double x(double t) const { return kLeft + (end_ > 0 ? t / end_ : 0) * (kWidth - kLeft - kRight); }

  void lanes() {
    for (int lane = 0; lane < plan::kLaneCount; ++lane) {
      bool any = false;
      for (size_t i = 0; i < group_.spans.size(); ++i) {
        const plan::Instruction& in = group_.schedule.list[i];
        const plan::Span& span = group_.spans[i];
        if (static_cast<int>(in.lane) != lane || span.end <= span.begin) continue;
        if (!any) out_ << "<text x='0' y='" << y_ + 17 << "'>" << plan::name(in.lane) << "</text>";
        any = true;
        const double width = std::max(0.4, x(span.end) - x(span.begin) - (x(span.end) - x(span.begin) > 3 ? 0.6 : 0));
        out_ << "<rect x='" << x(span.begin) << "' y='" << y_ << "' width='" << width << "' height='" << kRow - 6
             << "' fill='" << colour(std::string(plan::name(in.op))) << "'><title>" << escape(describe(in)) << "\n"
             << seconds(span.begin) << " to " << seconds(span.end) << " (" << seconds(span.end - span.begin) << ")"
             << (in.bytes > 0 ? "\n" + format_bytes(in.bytes) : "") << "</title></rect>";
      }
      if (any) y_ += kRow;
    }
  }

  void curve(double top) {
    const plan::MemoryCurve memory = planned_.memory(group_.rank);
    const int64_t most =
        std::max(memory.peak, planned_.budget > 0 && planned_.budget < 2 * memory.peak ? planned_.budget : 0);
    const auto y = [&](double bytes) { return top + (1 - bytes / (1.06 * static_cast<double>(most))) * kCurve; };
    for (int i = 0; i <= 4; ++i) {
      const double bytes = static_cast<double>(most) * i / 4;
      out_ << "<line x1='" << kLeft << "' x2='" << kWidth - kRight << "' y1='" << y(bytes) << "' y2='" << y(bytes)
           << "' stroke='var(--line)'/><text x='" << kLeft - 6 << "' y='" << y(bytes) + 4 << "' text-anchor='end'>"
           << format_bytes(static_cast<int64_t>(bytes)) << "</text>";
    }
    // The compute lane's instructions in order of time, each with its peak bytes.
    std::vector<size_t> order;
    for (size_t i = 0; i < group_.spans.size(); ++i)
      if (group_.schedule.list[i].lane == plan::Lane::compute && group_.spans[i].end > group_.spans[i].begin)
        order.push_back(i);
    std::ostringstream line;
    double last = x(0);
    for (size_t i : order) {
      const double level = y(static_cast<double>(memory.live[i]));
      last = x(group_.spans[i].end);
      line << x(group_.spans[i].begin) << "," << level << " " << last << "," << level << " ";
    }
    const double floor = y(0);
    out_ << "<polygon fill='var(--mem)' opacity='.18' points='" << kLeft << "," << floor << " " << line.str() << last
         << "," << floor << "'/><polyline fill='none' stroke='var(--mem)' stroke-width='1.5' points='" << line.str()
         << "'/>";
    out_ << "<line x1='" << kLeft << "' x2='" << kWidth - kRight << "' y1='"
         << y(static_cast<double>(memory.persistent)) << "' y2='" << y(static_cast<double>(memory.persistent))
         << "' stroke='var(--soft)' stroke-dasharray='2 4'><title>always there: parameters, gradients, states, "
         << format_bytes(memory.persistent) << "</title></line>";
    if (most == planned_.budget)
      out_ << "<line x1='" << kLeft << "' x2='" << kWidth - kRight << "' y1='" << y(static_cast<double>(most))
           << "' y2='" << y(static_cast<double>(most)) << "' stroke='#d04a3a' stroke-dasharray='6 4'/><text x='"
           << kWidth - kRight << "' y='" << y(static_cast<double>(most)) - 4 << "' text-anchor='end'>budget</text>";
    if (memory.at >= 0) {
      const plan::Span& span = group_.spans[memory.at];
      const double at = x((span.begin + span.end) / 2), level = y(static_cast<double>(memory.peak));
      out_ << "<circle cx='" << at << "' cy='" << level << "' r='3.5' fill='#d04a3a'/><text x='"
           << at + (at > kWidth * 0.7 ? -8 : 8) << "' y='" << level - 6 << "' text-anchor='"
           << (at > kWidth * 0.7 ? "end" : "start") << "'>peak " << format_bytes(memory.peak) << ", "
           << escape(memory.at_name) << "</text>";
    }
  }

  void axis(double y) {
    for (int i = 0; i <= 6; ++i)
      out_ << "<text x='" << x(end_ * i / 6) << "' y='" << y + 18 << "' text-anchor='"
           << (i == 0   ? "start"
               : i == 6 ? "end"
                        : "middle")
           << "'>" << seconds(end_ * i / 6) << "</text>";
  }

  const Planned& planned_;
  const plan::RankGroup& group_;
  double end_ = 0, y_ = 4;
  std::ostringstream out_;
};

std::string row(const std::string& kind, double part, double whole, const std::string& value) {
  std::ostringstream out;
  char percent[16];
  std::snprintf(percent, sizeof percent, "%.1f %%", whole > 0 ? 100 * part / whole : 0.0);
  out << "<tr><td><i class=dot style='background:" << colour(kind) << "'></i>" << kind << "</td><td class=n>" << value
      << "</td><td class=n>" << percent
      << "</td><td style='width:40%'><div class=bar style='width:" << (whole > 0 ? 100 * part / whole : 0)
      << "%;background:" << colour(kind) << "'></div></td></tr>";
  return out.str();
}

std::string shares(const Planned& planned, const plan::MemoryCurve& memory) {
  std::ostringstream out;
  const plan::MemoryParts& p = memory.by_part;
  const std::pair<const char*, int64_t> parts[] = {{"parameters", p.parameters},   {"gradients", p.gradients},
                                                   {"states", p.states},           {"slots", p.slots},
                                                   {"activations", p.activations}, {"temporaries", p.temporaries}};
  out << "<div class=two><div class=card><h2>Bytes of a rank at its peak, " << format_bytes(memory.peak)
      << "</h2><table>";
  for (const auto& [name, bytes] : parts)
    out << row(name, static_cast<double>(bytes), static_cast<double>(memory.peak), format_bytes(bytes));
  const plan::StepSeconds& s = planned.prediction.step;
  const std::pair<const char*, double> times[] = {{"compute", s.compute},
                                                  {"exposed comm", s.exposed_comm},
                                                  {"exposed copies", s.exposed_copy},
                                                  {"bubble", s.bubble},
                                                  {"optimiser", s.optimizer}};
  for (const Fact& fact : elsewhere(planned, memory))
    out << "<tr><td>" << escape(fact.name) << "</td><td class=n>" << escape(fact.value)
        << "</td><td colspan=2 class=soft>" << escape(fact.note) << "</td></tr>";
  out << "</table></div><div class=card><h2>Seconds of a step, " << seconds(s.total) << " with profile "
      << escape(planned.machine.profile.name) << "</h2><table>";
  for (const auto& [name, time] : times)
    if (time > 0 || name != std::string_view("bubble")) out << row(name, time, s.total, seconds(time));
  out << "</table></div></div>";
  return out.str();
}

std::string candidate_rows(const Planned& planned) {
  const plan::Choice& choice = planned.choice;
  if (choice.candidates.empty()) return "";
  constexpr size_t kFitting = 30, kOthers = 10;
  const auto shown = notable(choice, kFitting, kOthers);
  std::ostringstream out;
  out << "<div class=card><h2>Considered</h2><table><tr><th>plan</th><th>step</th><th>peak</th><th>why</th></tr>";
  for (const plan::Candidate* c : shown)
    out << "<tr><td>" << escape(c->plan.summary()) << (c->plan == choice.plan ? " <b>chosen</b>" : "")
        << "</td><td class=n>" << seconds(candidate_seconds(planned, *c)) << "</td><td class=n>"
        << format_bytes(c->peak) << "</td><td>" << escape(c->why) << "</td></tr>";
  out << "</table>";
  if (choice.candidates.size() > shown.size())
    out << "<p class=soft>" << choice.candidates.size() << " in all: plan --json lists them</p>";
  out << "</div>";
  return out.str();
}

}  // namespace

std::string plan_page(const Planned& planned) {
  const plan::MemoryCurve memory = planned.memory(planned.highest_rank());
  std::ostringstream out;
  out << "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
         "content='width=device-width,initial-scale=1'>"
      << "<title>Plan of " << escape(planned.spec.name) << "</title><style>" << kStyle << "</style><main><h1>Plan of "
      << escape(planned.spec.name) << "</h1><p class=soft>" << escape(planned.plan().summary()) << " &middot; "
      << planned.spec.all_tokens() << " tokens a micro-batch</p>";
  if (planned.choice.fits)
    out << "<p>Fits: " << escape(planned.choice.why) << ".</p>";
  else
    out << "<p class=no>Does not fit: " << escape(planned.choice.advice) << "</p>";
  if (!planned.choice.warning.empty()) out << "<p class=no>" << escape(planned.choice.warning) << "</p>";
  for (const auto& group : planned.prediction.groups) {
    out << "<div class=card><h2>Lanes of rank " << group.rank
        << (group.ranks > 1 ? " (" + std::to_string(group.ranks - 1) + " more are alike)" : "")
        << " over a step, and what it holds</h2><p>";
    std::vector<std::string> seen;
    for (size_t i = 0; i < group.spans.size(); ++i) {
      const std::string op(plan::name(group.schedule.list[i].op));
      if (group.spans[i].end <= group.spans[i].begin || std::find(seen.begin(), seen.end(), op) != seen.end()) continue;
      seen.push_back(op);
      out << "<span class=key><i class=dot style='background:" << colour(op) << "'></i>" << op << "</span>";
    }
    out << "</p>" << Picture(planned, group).draw() << "</div>";
  }
  out << shares(planned, memory) << candidate_rows(planned) << "</main></html>\n";
  return out.str();
}

}  // namespace tessera::planning
