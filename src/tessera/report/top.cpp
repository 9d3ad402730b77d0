#include "tessera/report/top.h"

#include <poll.h>
#include <termios.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "tessera/base/units.h"
#include "tessera/report/history.h"

namespace tessera::report {

namespace {

constexpr int kRefreshMs = 1000;

volatile std::sig_atomic_t asked_to_stop = 0;
void stop(int) { asked_to_stop = 1; }
void wake(int) {}  // SIGWINCH: poll returns, and the screen is drawn for the new size

/// All of it in one write where the terminal takes it: no half-drawn screen is seen. False: nobody reads any more.
bool write_all(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) done += static_cast<size_t>(n);
  }
  return true;
}

void on(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;  // without SA_RESTART: poll is to return
  sigaction(signal, &action, nullptr);
}

/// The other screen of the terminal, without cursor and echo; all as before when it goes out of scope.
class FullScreen {
 public:
  FullScreen() {
    if (tcgetattr(STDIN_FILENO, &before_) == 0) {
      changed_ = true;
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // ISIG stays: Ctrl-C is a signal
      tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    write_all("\x1b[?1049h\x1b[?25l");
  }
  ~FullScreen() {
    write_all("\x1b[?25h\x1b[?1049l");
    if (changed_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

 private:
  termios before_{};
  bool changed_ = false;
};

/// Writes over what stands there, line by line, and clears only what is left: a cleared screen would flicker.
std::string frame(const std::vector<std::string>& lines) {
  std::string text = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) text += (i ? "\r\n" : "") + lines[i] + "\x1b[K";
  return text + "\x1b[J";
}

/// Waits for the next second, a key or a signal. True: q was typed.
bool wait() {
  pollfd keys{STDIN_FILENO, POLLIN, 0};
  if (::poll(&keys, isatty(STDIN_FILENO) ? 1 : 0, kRefreshMs) <= 0) return false;
  char key = 0;
  return ::read(STDIN_FILENO, &key, 1) == 1 && (key == 'q' || key == 'Q');
}

}  // namespace

int top(const std::filesystem::path& path, const TopOptions& options) {
  RunFolder run(path);
  std::signal(SIGPIPE, SIG_IGN);
  const char* term = std::getenv("TERM");
  const bool drawable = isatty(STDOUT_FILENO) == 1 && term && *term && std::strcmp(term, "dumb") != 0;
  if (options.once || !drawable) {
    TerminalStyle style = TerminalStyle::of(STDOUT_FILENO);
    style.height = 0;
    std::string text;
    for (const std::string& line : top_screen(run, style)) text += line + "\n";
    write_all(text);  // a reader that left early (| head) wanted no more
    return 0;
  }
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) on(signal, stop);
  on(SIGWINCH, wake);
  const FullScreen screen;
  while (!asked_to_stop) {
    run.poll();
    if (!write_all(frame(top_screen(run, TerminalStyle::of(STDOUT_FILENO))))) break;
    if (wait()) break;
  }
  return 0;
}

namespace {

struct PartLook {
  const char* name;
  Ink ink;
  char letter;
};
constexpr PartLook kPartLooks[] = {{"parameters", Ink::green, 'P'}, {"gradients", Ink::orange, 'G'},
                                   {"states", Ink::red, 'S'},       {"slots", Ink::olive, 'L'},
                                   {"activations", Ink::blue, 'A'}, {"temporaries", Ink::purple, 'T'}};
// Lanes in the order of a step; others follow by name.
const std::vector<std::string> kLanes = {"compute", "gather", "reduce", "control", "h2d", "d2h", "disk"};
constexpr const char* kGoOn = "; the same command resumes it";
const std::string kMfu = "MFU";  // a column beside them
constexpr int kLabel = 10;       // columns of "rank 128  "

std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  for (int at = static_cast<int>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char text[160];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

class Screen {
 public:
  Screen(const RunFolder& run, const TerminalStyle& style) : run_(run), style_(style) {}

  std::vector<std::string> draw() {
    header();
    progress();
    if (run_.steps().empty()) {
      text("");
      text("No step is finished yet; the first is the slowest.", Ink::soft);
    } else {
      memory();
      busy();
      drivers();
      waits();
    }
    events();
    if (style_.height > 0 && static_cast<int>(lines_.size()) > style_.height)
      lines_.resize(static_cast<size_t>(style_.height));
    return std::move(lines_);
  }

 private:
  Line line() const { return Line(style_); }
  void put(const Line& line) { lines_.push_back(line.str()); }
  void text(const std::string& text, Ink ink = Ink::plain) { put(line().add(text, ink)); }
  const char* dot() const { return style_.utf8 ? " · " : ", "; }

  std::string state() const {
    if (run_.finished()) return "finished";
    const auto quiet = run_.quiet();
    if (!quiet) return "starting";
    if (const RunEvent* stop = run_.stop()) return stop->text + " at step " + std::to_string(stop->step) + kGoOn;
    const std::optional<bool> held = run_.held();
    if (held == false)
      return "ended " + format_seconds(quiet->count()) + " ago without a stop event: killed or failed" + kGoOn;
    // A step may take minutes: silence is judged by what a step takes.
    const double patience = std::max(15.0, 5 * run_.step_seconds());
    if (quiet->count() < patience) return "running";
    return "no event for " + format_seconds(quiet->count()) +
           (held ? ": stuck or very slow, its processes are alive" : ": stopped or stuck");
  }

  void header() {
    const RunFacts& facts = run_.facts();
    const std::string now = state();
    const Ink ink = now == "running"                                          ? Ink::green
                    : now.starts_with("no event") || now.starts_with("ended") ? Ink::orange
                                                                              : Ink::plain;
    put(line().add("tessera top  ", Ink::soft).add(run_.folder().string(), Ink::strong).add(dot()).add(now, ink));
    std::string about = facts.model;
    if (facts.parameters > 0)
      about += formatted("%s%.1f M parameters", dot(), static_cast<double>(facts.parameters) / 1e6);
    if (!run_.ranks().empty())
      about += dot() + formatted("%lld rank%s", static_cast<long long>(run_.world()), run_.world() == 1 ? "" : "s");
    if (facts.mesh.find(' ') != std::string::npos && facts.mesh != "one rank") about += " (" + facts.mesh + ")";
    if (facts.global_batch > 0) about += dot() + ("global batch " + std::to_string(facts.global_batch));
    text(about, Ink::soft);
    if (!run_.strays().empty()) text("metrics.jsonl: " + told_strays(run_.strays()), Ink::orange);
    text("");
  }

  void progress() {
    const int64_t step = run_.last_step(), steps = run_.facts().steps;
    const double seconds = run_.step_seconds();
    const double share = steps > 0 ? std::min(1.0, static_cast<double>(step) / static_cast<double>(steps)) : 0;
    std::string after = formatted(" %3.0f %%", 100 * share);
    if (seconds > 0 && !run_.finished() && steps > step)
      after += "  ETA " + format_seconds(static_cast<double>(steps - step) * seconds);
    Line bar = line();
    bar.add("step ", Ink::soft).add(grouped(step) + (steps > 0 ? "/" + grouped(steps) : "") + " ", Ink::strong);
    if (steps > 0) {
      const int cells = std::min(60, bar.left() - static_cast<int>(after.size()));
      if (cells >= 8) bar.bar({{share, Ink::blue, '='}}, cells);
      bar.add(after);
    }
    put(bar);
    if (run_.steps().empty()) return;

    const StepMetrics& last = run_.steps().back();
    Line numbers = line();
    const auto field = [&](const char* name, const std::string& value) {
      if (numbers.width() > 0 && numbers.left() < static_cast<int>(2 + std::string(name).size() + value.size())) {
        put(numbers);
        numbers = line();
      }
      numbers.add(numbers.width() > 0 ? "  " : "").add(name, Ink::soft).add(value);
    };
    if (!last.expert.empty()) field("expert ", last.expert);
    field("loss ", formatted("%.5f", last.loss));
    field("grad norm ", formatted("%.4g", last.grad_norm));
    field("lr ", formatted("%.3g", last.lr));
    if (seconds > 0) {
      field("", format_seconds(seconds) + "/step");
      field("", grouped(std::llround(static_cast<double>(last.tokens) / seconds)) + " tokens/s");
    }
    if (last.mfu)
      field("MFU ", formatted("%.1f %%", 100 * *last.mfu) +
                        (last.peak_flops ? " of " + format_flops(*last.peak_flops) + " a rank" : ""));
    put(numbers);
    std::vector<double> losses;
    for (const StepMetrics& s : run_.steps()) losses.push_back(std::log(std::max(s.loss, 1e-12)));
    Line curve = line();
    curve.add("loss ", Ink::soft).add(sparkline(losses, std::min(curve.left(), 72), style_.utf8), Ink::blue);
    put(curve);
    std::vector<double> by_timestep;
    for (const StepMetrics::Bin& bin : run_.loss_by_timestep())
      if (bin.count > 0) by_timestep.push_back(bin.loss);
    if (by_timestep.size() > 1) {
      Line bins = line();
      const auto [least, most] = std::ranges::minmax(by_timestep);
      bins.add("loss by timestep ", Ink::soft)
          .add(sparkline(by_timestep, std::min(bins.left(), 10), style_.utf8), Ink::blue)
          .add(formatted(" %.4g", least) + formatted(" to %.4g", most));
      put(bins);
    }
    if (!run_.evals().empty()) {
      const auto best = std::ranges::min_element(run_.evals(), {}, &EvalMetrics::loss);
      Line held_out = line();
      held_out.add("held-out loss ", Ink::soft)
          .add(formatted("%.5f", run_.evals().back().loss) + formatted(", least %.5f", best->loss) + " at step " +
               std::to_string(best->step));
      put(held_out);
    }
    if (const StepMetrics::Bin twins = run_.preserved(); twins.count > 0) {
      Line kept = line();
      kept.add("preserved ", Ink::soft).add(formatted("loss %.5f of what is to stay", twins.loss), Ink::blue);
      put(kept);
    }
    data_sets();
    eight_bits();
    gate();
  }

  /// Of products in 8 bits: the unit whose operands lose most, and the one whose gradients do.
  void eight_bits() {
    const StepMetrics* step = run_.counted_fp8();
    if (!step) return;
    using EightBits = StepMetrics::EightBits;
    Line row = line();
    row.add("fp8 ", Ink::soft);
    for (const auto& [what, of] :
         {std::pair("of x and W", &EightBits::operands), {"of gradients", &EightBits::gradients}}) {
      const auto most =
          std::ranges::max_element(step->fp8, {}, [of = of](const EightBits& e) { return (e.*of).zeros; });
      row.add(formatted("%.2g %% ", 100 * ((*most).*of).zeros) + what).add(" in " + most->unit + "  ", Ink::soft);
    }
    put(row.add("became zero, at most; step " + std::to_string(step->step), Ink::soft));
  }

  /// Of a run with a learned gate: whom samples choose lately, and what that leaves unused.
  void gate() {
    const StepMetrics& last = run_.steps().back();
    const std::vector<double> often = run_.expert_frequencies();
    if (!last.gate || often.empty()) return;
    put(line()
            .add("gate ", Ink::soft)
            .add(formatted("entropy %.3f", last.gate->entropy) +
                 formatted("  ranks idle %.0f%%", 100 * last.gate->idle) +
                 formatted("  dummies %.0f%%", 100 * last.gate->dummies)));
    const size_t shown = std::min(often.size(), rows(often.size(), 8));
    for (size_t e = 0; e < shown; ++e) {
      std::string after = formatted(" %.0f%% of the samples", 100 * often[e]);
      const StepMetrics::Chosen own = e < last.gate->experts.size() ? last.gate->experts[e] : StepMetrics::Chosen{};
      if (own.seconds > 0) after += formatted(", %.3g samples/s", static_cast<double>(own.samples) / own.seconds);
      Line row = line();
      row.add("expert " + std::to_string(e), Ink::soft).pad_to(kLabel);
      const int cells = std::min(24, row.left() - static_cast<int>(after.size()));
      if (cells >= 4) row.bar({{often[e], Ink::blue, '#'}}, cells);
      put(row.add(after));
    }
    if (shown < often.size()) text(formatted("%zu more experts", often.size() - shown), Ink::soft);
  }

  /// Of a run with several, late in it.
  void data_sets() {
    const auto sets = run_.loss_by_set();
    if (sets.size() < 2) return;
    int64_t all = 0;
    for (const auto& [name, own] : sets) all += own.count;
    const size_t shown = std::min(sets.size(), rows(sets.size(), 8));
    for (size_t s = 0; s < shown; ++s) {
      const auto& [name, own] = sets[s];
      Line row = line();
      row.add("data set ", Ink::soft).add(name);
      row.add(own.count > 0 ? formatted("  loss %.5f", own.loss) : std::string("  no samples"), Ink::blue);
      row.add(formatted("  %.1f %% of the samples",
                        all > 0 ? 100 * static_cast<double>(own.count) / static_cast<double>(all) : 0.0),
              Ink::soft);
      put(row);
    }
    if (shown < sets.size()) text(formatted("%zu more data sets", sets.size() - shown), Ink::soft);
  }

  /// Rows there is room for, of `wanted`, when `below` lines must still follow; one goes to saying what is left out.
  size_t rows(size_t wanted, int below) const {
    if (style_.height <= 0) return wanted;
    const int room = style_.height - static_cast<int>(lines_.size()) - below;
    if (room >= static_cast<int>(wanted)) return wanted;
    return static_cast<size_t>(std::max(room - 1, 1));
  }

  void memory() {
    const auto& ranks = run_.ranks();
    int64_t most = 1;
    for (const RankMetrics& r : ranks) most = std::max({most, r.peak_bytes, r.reserved_bytes, r.predicted_peak_bytes});
    text("");
    Line title = line();
    title.add("memory", Ink::strong).add(" at each rank's peak, of " + format_bytes(most) + "   ", Ink::soft);
    std::vector<PartLook> looks(std::begin(kPartLooks), std::end(kPartLooks));
    looks.push_back({"reserved", Ink::grey, 'r'});
    int wanted = 0;
    for (const PartLook& look : looks) wanted += legend_width(look);
    if (wanted > title.left()) {
      put(title);
      title = line();
    }
    for (const PartLook& look : looks) {
      if (legend_width(look) > title.left()) {
        put(title);
        title = line();
      }
      title.add(legend_mark(look), look.ink).add(std::string(look.name) + " ", Ink::soft);
    }
    put(title);
    const auto world = static_cast<size_t>(run_.world());  // of many ranks a step names a few
    text(used_and_reserved(run_.memory(), world), Ink::soft);
    const size_t shown = std::min(ranks.size(), rows(world, static_cast<int>(std::min<size_t>(ranks.size(), 4)) + 4));
    for (size_t i = 0; i < shown; ++i) memory_row(ranks[i], most);
    if (shown < world) {
      const auto highest = std::max_element(ranks.begin(), ranks.end(), [](const RankMetrics& a, const RankMetrics& b) {
        return a.peak_bytes < b.peak_bytes;
      });
      text(formatted("%zu more; highest: rank %d, ", world - shown, highest->rank) + format_bytes(highest->peak_bytes),
           Ink::soft);
    }
  }

  int legend_width(const PartLook& part) const {
    return static_cast<int>(std::string(part.name).size()) + (style_.colour ? 2 : 3);
  }
  std::string legend_mark(const PartLook& part) const {
    return style_.colour ? (style_.utf8 ? "█" : "#") : std::string(1, part.letter) + "=";
  }

  void memory_row(const RankMetrics& r, int64_t most) {
    std::string after = " " + format_bytes(r.peak_bytes);
    if (style_.width >= 76) after += " of " + format_bytes(r.predicted_peak_bytes) + " planned";
    if (style_.width >= 110) after += ", " + format_bytes(r.reserved_bytes) + " reserved";
    if (style_.width >= 130 || (r.bytes.host > 0 && style_.width >= 96))
      after += ", host " + format_bytes(r.bytes.host);
    std::vector<Line::Piece> pieces;
    const auto share = [&](int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(most); };
    const auto parts = named_parts(r.bytes);
    for (const PartLook& look : kPartLooks)
      for (const auto& [name, bytes] : parts)
        if (name == look.name) pieces.push_back({share(bytes), look.ink, look.letter});
    pieces.push_back({share(r.reserved_bytes - r.peak_bytes), Ink::grey, 'r'});
    Line row = line();
    row.add("rank " + std::to_string(r.rank), Ink::soft).pad_to(kLabel);
    put(row.bar(pieces, std::max(8, row.left() - static_cast<int>(after.size()))).add(after));
  }

  void busy() {
    const auto& ranks = run_.ranks();
    // What lanes did is sent at the exchange of a step and so belongs to the step before; MFU is the step's own.
    const auto& steps = run_.steps();
    const double seconds = steps.size() > 1 ? steps[steps.size() - 2].seconds : steps.back().seconds;
    const auto share_of = [&](const RankMetrics& r, const std::string& lane) {
      if (lane == kMfu) return r.mfu.value_or(0);
      if (const auto it = r.utilisation.find(lane); it != r.utilisation.end()) return it->second;
      const auto it = r.busy.find(lane);  // of a run by an earlier version
      return it != r.busy.end() && seconds > 0 ? it->second / seconds : 0;
    };
    std::vector<std::string> columns;
    if (std::ranges::any_of(ranks, [](const RankMetrics& r) { return r.mfu.has_value(); })) columns.push_back(kMfu);
    const auto has = [&](const std::string& lane) {
      return std::any_of(ranks.begin(), ranks.end(), [&](const RankMetrics& r) { return r.busy.count(lane) > 0; });
    };
    for (const auto& lane : kLanes)
      if (has(lane)) columns.push_back(lane);
    for (const RankMetrics& r : ranks)
      for (const auto& [lane, used] : r.busy)
        if (std::find(columns.begin(), columns.end(), lane) == columns.end()) columns.push_back(lane);
    if (columns.empty() || !(seconds > 0)) return;
    text("");
    const bool mfu = columns.front() == kMfu;
    put(line()
            .add("busy", Ink::strong)
            .add(mfu ? " MFU of the step, share of each lane in the step before"
                     : " share of each lane in the step before",
                 Ink::soft));
    const auto world = static_cast<size_t>(run_.world());
    const size_t shown = std::min(ranks.size(), rows(world, run_.events().empty() ? 0 : 3));
    for (size_t i = 0; i < shown; ++i) {
      Line row = line();
      row.add("rank " + std::to_string(ranks[i].rank), Ink::soft);
      const int cell = (style_.width - kLabel) / static_cast<int>(columns.size());
      for (size_t l = 0; l < columns.size(); ++l) {
        const double share = share_of(ranks[i], columns[l]);
        row.pad_to(kLabel + static_cast<int>(l) * cell).add(columns[l] + " ", Ink::soft);
        const int cells = std::min(24, cell - static_cast<int>(columns[l].size()) - 8);
        if (cells >= 4)
          row.bar({{std::min(share, 1.0), columns[l] == kMfu ? Ink::blue : Ink::green, '#'}}, cells).add(" ");
        row.add(formatted("%.0f%%", 100 * share));
      }
      put(row);
    }
    if (shown < world) text(formatted("%zu more", world - shown), Ink::soft);
  }

  /// What the driver of each rank's GPU says.
  void drivers() {
    std::vector<const RankMetrics*> told;
    for (const RankMetrics& r : run_.ranks())
      if (r.driver) told.push_back(&r);
    if (told.empty() || !room_for_more()) return;
    text("");
    const size_t shown = std::min(told.size(), rows(told.size() + 1, run_.events().empty() ? 0 : 3));
    put(line().add("GPU", Ink::strong).add(" by its driver, means since the step before", Ink::soft));
    for (size_t i = 0; i < shown; ++i) {
      const RankMetrics::Driver& driver = *told[i]->driver;
      const std::string after = formatted(" %.0f%%  %.0f W  ", 100 * driver.utilisation, driver.watts) +
                                format_bytes(driver.memory_bytes) + " taken";
      Line row = line();
      row.add("rank " + std::to_string(told[i]->rank), Ink::soft).pad_to(kLabel);
      const int cells = std::min(24, row.left() - static_cast<int>(after.size()));
      if (cells >= 4) row.bar({{std::min(driver.utilisation, 1.0), Ink::green, '#'}}, cells);
      put(row.add(after));
    }
    if (shown < told.size()) text(formatted("%zu more", told.size() - shown), Ink::soft);
  }

  /// For a heading, a rank, what is left out and an event; with less room other things matter more.
  bool room_for_more() const {
    constexpr int kLeast = 6;
    return style_.height <= 0 || style_.height - static_cast<int>(lines_.size()) >= kLeast;
  }

  /// Seconds that a rank's waits are a part of: its step and what followed, where its lanes say how long that was.
  static double span_of(const RankMetrics& rank, double step_seconds) {
    double span = step_seconds;
    for (const auto& [lane, share] : rank.utilisation)
      if (const auto busy = rank.busy.find(lane); busy != rank.busy.end() && share > 0)
        span = std::max(span, busy->second / share);
    return span;
  }

  /// What computing stood still for, of ranks that did.
  void waits() {
    const auto& steps = run_.steps();
    const double seconds = steps.size() > 1 ? steps[steps.size() - 2].seconds : steps.back().seconds;
    using Exposed = RankMetrics::Exposed;
    const std::pair<const char*, double Exposed::*> kinds[] = {{"collectives", &Exposed::comm},
                                                               {"copies", &Exposed::copy},
                                                               {"other stages", &Exposed::stages},
                                                               {"samples", &Exposed::data},
                                                               {"dispatch", &Exposed::dispatch}};
    std::vector<const RankMetrics*> waiting;
    for (const RankMetrics& r : run_.ranks())
      if (std::any_of(std::begin(kExposed), std::end(kExposed),
                      [&](const auto& kind) { return r.exposed.*kind.second > 0; }))
        waiting.push_back(&r);
    if (waiting.empty() || !(seconds > 0) || !room_for_more()) return;
    text("");
    const size_t shown = std::min(waiting.size(), rows(waiting.size() + 1, run_.events().empty() ? 0 : 3));
    put(line().add("waits", Ink::strong).add(" of compute, share of the step before and what followed it", Ink::soft));
    for (size_t i = 0; i < shown; ++i) {
      Line row = line();
      row.add("rank " + std::to_string(waiting[i]->rank), Ink::soft).pad_to(kLabel);
      for (const auto& [kind, field] : kinds)
        if (const double share = waiting[i]->exposed.*field / span_of(*waiting[i], seconds); share > 0)
          row.add(std::string(kind) + " ", Ink::soft).add(formatted("%.0f%%   ", 100 * share));
      put(row);
    }
    if (shown < waiting.size()) text(formatted("%zu more", waiting.size() - shown), Ink::soft);
  }

  void events() {
    const auto& events = run_.events();
    if (events.empty()) return;
    int room = style_.height > 0 ? style_.height - static_cast<int>(lines_.size()) - 2 : 8;
    if (room < 1) return;
    text("");
    text("newest events", Ink::strong);
    const size_t first = events.size() - std::min(events.size(), static_cast<size_t>(std::min(room, 8)));
    for (size_t i = events.size(); i-- > first;) {
      const RunEvent& event = events[i];
      const bool trouble = event.type == "skip" || event.type == "fault";
      put(line()
              .add("step " + std::to_string(event.step) + "  ", Ink::soft)
              .add(event.type + "  ", trouble ? Ink::red : Ink::plain)
              .add(event.text, trouble ? Ink::red : Ink::soft));
    }
  }

  const RunFolder& run_;
  const TerminalStyle style_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> top_screen(const RunFolder& run, const TerminalStyle& style) {
  return Screen(run, style).draw();
}

}  // namespace tessera::report
