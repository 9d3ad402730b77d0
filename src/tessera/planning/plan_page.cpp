#include "tessera/planning/plan_page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/base/in_threads.h"
#include "tessera/base/units.h"
#include "tessera/plan/search/planner.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/planning/plan_view.h"
#include "tessera/planning/rank_share.h"
#include "tessera/report/page.h"
#include "tessera/report/terminal_text.h"

namespace tessera::planning {

namespace {

constexpr size_t kShown = 12;

std::string layout_row(const plan::Layout& layout) {
  const plan::Choice& c = layout.choice;
  const std::string plan = c.plan.summary();
  return report::in_column(layout.mesh.to_string(), 40) +
         report::in_column(c.fits ? format_seconds(c.seconds) : "does not fit", 16) +
         report::in_column(format_bytes(c.memory.peak), 12) +
         report::in_column(format_bytes(c.memory.host.total()), 12) + plan.substr(0, plan.find(", global batch")) +
         "\n";
}

}  // namespace

Layouts find_layouts(const PlanRequest& request) {
  plan::LayoutBounds bounds = layout_bounds(*request.model, request.latent);
  bounds.world = request.mesh.world();
  bounds.node = request.machine.profile.devices;
  plan::PlannerInput input = request.planner;
  if (request.any_micro_batch) input.micro_batch = 1;
  // Cost and memory of a rank depend on how tokens and features are shared, not on the other dp ranks, but for encoders.
  std::map<std::array<int64_t, 4>, MeasuredModels> known;
  const auto measured_on = [&](const Mesh& mesh) {
    PlanRequest there = on_mesh(request, mesh).value();  // as many ranks: encoders on the host take as much
    there.mesh = Mesh{};
    for (Axis axis : plan::kSequenceAxes) there.mesh[axis] = mesh[axis];
    plan::Plan batch;
    batch.mesh = mesh, batch.global_batch = input.global_batch, batch.micro_batch = input.micro_batch;
    plan::Measured measured =
        measure_batch(there, batch, known[{mesh[Axis::cp], mesh[Axis::sp], mesh[Axis::tp], there.of_mesh}]);
    measured.machine.beside = there.machine.beside;
    return plan::OnMesh{std::move(measured), there.planner.budget, there.planner.host_budget};
  };
  Layouts found{bounds.world, input.global_batch, input.micro_batch, plan::search_layouts(bounds, input, measured_on)};
  if (found.list.empty())
    throw UserError(Exit::usage, "plan.layouts",
                    "no mesh of " + std::to_string(bounds.world) + " ranks takes a global batch of " +
                        std::to_string(input.global_batch),
                    "give train.global_batch more samples, or fewer ranks");
  return found;
}

std::string layouts_text(const Layouts& found) {
  std::string text = "layouts of " + std::to_string(found.world) + " ranks, global batch " +
                     std::to_string(found.global_batch) + " in micro-batches of " + std::to_string(found.micro_batch) +
                     ": " + std::to_string(found.list.size()) + " tried, the fastest first\n" +
                     report::in_column("mesh", 40) + report::in_column("a step", 16) + report::in_column("device", 12) +
                     report::in_column("host", 12) + "plan\n";
  for (size_t i = 0; i < std::min(kShown, found.list.size()); ++i) text += layout_row(found.list[i]);
  const plan::Layout& first = found.list.front();
  if (first.choice.fits) text += "use --mesh " + first.mesh.to_string() + "\n";
  return text;
}

std::string layouts_json(const Layouts& found) {
  using LayoutJson = nlohmann::ordered_json;
  LayoutJson list = LayoutJson::array();
  for (const plan::Layout& layout : found.list) {
    LayoutJson mesh = LayoutJson::object();
    for (Axis axis : kAllAxes) mesh[std::string(axis_name(axis))] = layout.mesh[axis];
    const plan::Choice& c = layout.choice;
    list.push_back({{"mesh", mesh},
                    {"fits", c.fits},
                    {"seconds", c.seconds},
                    {"peak_bytes", c.memory.peak},
                    {"host_bytes", c.memory.host.total()},
                    {"plan", c.plan.summary()}});
  }
  const LayoutJson json = {{"ranks", found.world},
                           {"global_batch", found.global_batch},
                           {"micro_batch", found.micro_batch},
                           {"layouts", list}};
  return json.dump(2);
}

namespace {

constexpr double kCounts = 0.005;  // a smaller share of a step counts as nothing
constexpr int64_t kGiB = int64_t{1} << 30;

/// 8 GiB (or `most`) of a large budget, a quarter of a small one.
int64_t step_of(int64_t budget, int64_t most) { return budget >= 2 * most ? most : std::max<int64_t>(1, budget / 4); }

std::string change_text(double seconds, double before) {
  const auto percent = static_cast<int>(std::lround(100 * (1 - seconds / before)));
  return percent == 0 ? "no faster" : "-" + std::to_string(percent) + " %, " + format_seconds(seconds);
}

}  // namespace

std::vector<MemoryPrice> memory_prices(const PlanRequest& request, const Planned& planned) {
  const plan::PlannerInput& asked = request.planner;
  if (!planned.choice.fits || request.by_hand || asked.budget <= 0) return {};
  const auto with = [&](int64_t device, int64_t host) {
    plan::PlannerInput input = asked;
    input.micro_batch = planned.plan().micro_batch, input.idle = planned.plan().idle;
    input.budget = device, input.host_budget = host;
    input.incumbent = planned.plan(), input.thrifty = false;
    return plan::choose(planned.spec, request.mesh, input, planned.machine).seconds;
  };
  const auto counts = [&](double seconds) { return seconds < planned.choice.fastest * (1 - kCounts); };
  if (!counts(with(0, asked.host_budget))) return {};
  const int64_t device = step_of(asked.budget, 8 * kGiB);
  std::vector<MemoryPrice> prices = {{plan::Tier::device, device, 0, false}};
  int64_t host = 0;  // of a rank
  if (asked.host_budget > 0) {
    const plan::Profile& profile = request.machine.profile;
    const int world = request.mesh.world(), ranks = profile.devices > 0 ? std::min(profile.devices, world) : world;
    const int64_t bytes = step_of(asked.host_budget * ranks, 16 * kGiB);
    prices.push_back({plan::Tier::host, bytes, 0, false}), host = bytes / ranks;
  }
  for_each_in_threads(prices.size(), [&](size_t i) {
    MemoryPrice& price = prices[i];
    price.seconds = price.memory == plan::Tier::device ? with(asked.budget + device, asked.host_budget)
                                                       : with(asked.budget, asked.host_budget + host);
    price.binds = counts(price.seconds);
  });
  return prices;
}

std::string more_memory(const Planned& planned) {
  std::string text;
  int binding = 0;
  std::string_view last;
  for (const MemoryPrice& price : planned.prices) {
    text += "+" + format_bytes(price.bytes) + " of " + std::string(name(price.memory)) +
            " memory: " + change_text(price.seconds, planned.choice.seconds) + "; ";
    if (price.binds) ++binding, last = name(price.memory);
  }
  if (text.empty()) return text;
  return text + (binding > 1    ? "both bind"
                 : binding == 1 ? std::string(last) + " memory binds"
                                : "more of one memory alone makes the step no faster");
}

using report::escape_html;
using report::kind_colour;

namespace {

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

constexpr double kPageWidth = 1200, kPageLeft = 84, kPageRight = 16, kRow = 30, kCurve = 190;

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
    svg << "<div class=scroll><svg class=lanes viewBox='0 0 " << kPageWidth << " " << top + kCurve + 28
        << "' role='img'>" << out_.str() << "</svg></div>";
    return svg.str();
  }

 private:
  double x(double t) const { return kPageLeft + (end_ > 0 ? t / end_ : 0) * (kPageWidth - kPageLeft - kPageRight); }

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
             << "' fill='" << kind_colour(std::string(plan::name(in.op))) << "'><title>" << escape_html(describe(in))
             << "\n"
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
      out_ << "<line x1='" << kPageLeft << "' x2='" << kPageWidth - kPageRight << "' y1='" << y(bytes) << "' y2='"
           << y(bytes) << "' stroke='var(--line)'/><text x='" << kPageLeft - 6 << "' y='" << y(bytes) + 4
           << "' text-anchor='end'>" << format_bytes(static_cast<int64_t>(bytes)) << "</text>";
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
    out_ << "<polygon fill='var(--mem)' opacity='.18' points='" << kPageLeft << "," << floor << " " << line.str()
         << last << "," << floor << "'/><polyline fill='none' stroke='var(--mem)' stroke-width='1.5' points='"
         << line.str() << "'/>";
    out_ << "<line x1='" << kPageLeft << "' x2='" << kPageWidth - kPageRight << "' y1='"
         << y(static_cast<double>(memory.persistent)) << "' y2='" << y(static_cast<double>(memory.persistent))
         << "' stroke='var(--soft)' stroke-dasharray='2 4'><title>always there: parameters, gradients, states, "
         << format_bytes(memory.persistent) << "</title></line>";
    if (most == planned_.budget)
      out_ << "<line x1='" << kPageLeft << "' x2='" << kPageWidth - kPageRight << "' y1='"
           << y(static_cast<double>(most)) << "' y2='" << y(static_cast<double>(most))
           << "' stroke='#d04a3a' stroke-dasharray='6 4'/><text x='" << kPageWidth - kPageRight << "' y='"
           << y(static_cast<double>(most)) - 4 << "' text-anchor='end'>budget</text>";
    if (memory.at >= 0) {
      const plan::Span& span = group_.spans[memory.at];
      const double at = x((span.begin + span.end) / 2), level = y(static_cast<double>(memory.peak));
      out_ << "<circle cx='" << at << "' cy='" << level << "' r='3.5' fill='#d04a3a'/><text x='"
           << at + (at > kPageWidth * 0.7 ? -8 : 8) << "' y='" << level - 6 << "' text-anchor='"
           << (at > kPageWidth * 0.7 ? "end" : "start") << "'>peak " << format_bytes(memory.peak) << ", "
           << escape_html(memory.at_name) << "</text>";
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
  out << "<tr><td>" << report::legend_key(kind_colour(kind), kind) << "</td><td class=n>" << value
      << "</td><td class=n>" << percent
      << "</td><td style='width:40%'><div class=fill style='width:" << (whole > 0 ? 100 * part / whole : 0)
      << "%;background:" << kind_colour(kind) << "'></div></td></tr>";
  return out.str();
}

std::string fact_row(const Fact& fact) {
  return "<tr><td>" + escape_html(fact.name) + "</td><td class=n>" + escape_html(fact.value) +
         "</td><td colspan=2 class=soft>" + escape_html(fact.note) + "</td></tr>";
}

std::string shares(const Planned& planned, const plan::MemoryCurve& memory) {
  std::ostringstream out;
  out << "<div class=two><div class=card><h2>Bytes of a rank at its peak, " << format_bytes(memory.peak)
      << "</h2><table class=plain>";
  for (const MemoryRow& part : memory_rows(planned, memory))
    out << row(part.name, static_cast<double>(part.bytes), static_cast<double>(memory.peak), format_bytes(part.bytes));
  for (const Fact& fact : beside_rows(planned, memory)) out << fact_row(fact);
  const plan::StepSeconds& s = planned.prediction.step;
  const std::pair<const char*, double> times[] = {
      {"compute", s.compute}, {"exposed comm", s.exposed_comm}, {"exposed copies", s.exposed_copy},
      {"bubble", s.bubble},   {"optimiser", s.optimizer},       {"encoders", s.encoders}};
  for (const Fact& fact : elsewhere(planned, memory)) out << fact_row(fact);
  out << "</table></div><div class=card><h2>Seconds of a step, " << seconds(s.total) << " with profile "
      << escape_html(planned.machine.profile.name) << "</h2><table class=plain>";
  for (const auto& [name, time] : times)
    if (time > 0 || (name != std::string_view("bubble") && name != std::string_view("encoders")))
      out << row(name, time, s.total, seconds(time));
  out << "</table></div></div>";
  return out.str();
}

std::string candidate_rows(const Planned& planned) {
  const plan::Choice& choice = planned.choice;
  if (choice.candidates.empty()) return "";
  constexpr size_t kFitting = 30, kOthers = 10;
  const auto shown = notable(choice, kFitting, kOthers);
  std::ostringstream out;
  out << "<div class=card><h2>Considered</h2><div class=scroll><table class=plain><tr><th>plan</th><th class=n>step</th><th class=n>peak</th><th>why</th></tr>";
  for (const plan::Candidate* c : shown)
    out << "<tr><td>" << escape_html(c->plan.summary()) << (c->plan == choice.plan ? " <b>chosen</b>" : "")
        << "</td><td class=n>" << seconds(candidate_seconds(planned, *c)) << "</td><td class=n>"
        << format_bytes(c->peak) << "</td><td>" << escape_html(c->why) << "</td></tr>";
  out << "</table></div>";
  if (choice.candidates.size() > shown.size())
    out << "<p class=soft>" << choice.candidates.size() << " in all: plan --json lists them</p>";
  out << "</div>";
  return out.str();
}

}  // namespace

std::string plan_page(const Planned& planned) {
  const plan::MemoryCurve memory = planned.memory(planned.highest_rank());
  std::ostringstream out;
  const std::string title = "Plan of " + planned.spec.name;
  out << "<h1>" << escape_html(title) << "</h1><p class=soft>" << escape_html(planned.plan().summary()) << " &middot; "
      << planned.spec.all_tokens() << " tokens a micro-batch</p>";
  if (planned.choice.fits)
    out << "<p>Fits: " << escape_html(planned.choice.why) << ".</p>";
  else
    out << "<p class=no>Does not fit: " << escape_html(planned.choice.advice) << "</p>";
  if (!planned.choice.warning.empty()) out << "<p class=no>" << escape_html(planned.choice.warning) << "</p>";
  for (const auto& group : planned.prediction.groups) {
    out << "<div class=card><h2>Lanes of rank " << group.rank
        << (group.ranks > 1 ? " (" + std::to_string(group.ranks - 1) + " more are alike)" : "")
        << " over a step, and what it holds</h2><p>";
    std::vector<std::string> seen;
    for (size_t i = 0; i < group.spans.size(); ++i) {
      const std::string op(plan::name(group.schedule.list[i].op));
      if (group.spans[i].end <= group.spans[i].begin || std::find(seen.begin(), seen.end(), op) != seen.end()) continue;
      seen.push_back(op);
      out << report::legend_key(kind_colour(op), op);
    }
    out << "</p>" << Picture(planned, group).draw() << "</div>";
  }
  out << shares(planned, memory) << candidate_rows(planned);
  return report::html_page(title, out.str());
}

}  // namespace tessera::planning
