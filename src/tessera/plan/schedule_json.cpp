#include "tessera/plan/schedule_json.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"

namespace tessera::plan {

namespace {

constexpr std::array<std::string_view, 22> kOps = {
    "gather",       "forward", "release",     "loss",     "recompute", "backward",    "idle", "reduce",
    "reduce_outer", "norm",    "update",      "flush",    "finish",    "stash",       "drop", "fetch",
    "send",         "recv",    "weight_grad", "compress", "expand",    "gather_outer"};
constexpr std::array<std::string_view, 12> kLanes = {"compute",   "gather",    "reduce",    "control",
                                                     "disk",      "h2d",       "d2h",       "send_next",
                                                     "recv_prev", "send_prev", "recv_next", "host"};
constexpr std::array<std::string_view, 6> kParts = {"none",      "activations", "parameters",
                                                    "gradients", "states",      "message"};
constexpr std::array<std::string_view, 4> kCodes = {"none", "rows", "columns", "both"};
static_assert(kOps.size() == static_cast<size_t>(Op::gather_outer) + 1 &&
              kLanes.size() == static_cast<size_t>(Lane::host) + 1 &&
              kParts.size() == static_cast<size_t>(Part::message) + 1);

/// Numbers read from files are bounded so that sums and products in the checks cannot overflow: 256 TiB, 2^30.
constexpr int64_t kMost = int64_t{1} << 48;
constexpr int64_t kMostSmall = int64_t{1} << 30;
constexpr int64_t kMostFlops = int64_t{1} << 60;

/// Builds one line. Fields are written in the order of the calls, so equal instructions give equal bytes.
class Writer {
 public:
  Writer& key(std::string_view name) {
    if (text_.back() != '{') text_ += ',';
    text_.append("\"").append(name).append("\":");
    return *this;
  }
  Writer& number(int64_t value) { return raw(std::to_string(value)); }
  Writer& seconds(double value) {
    char digits[64];
    const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, 6).ptr;
    return raw({digits, end});
  }
  Writer& string(std::string_view value) {
    return raw(nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  Writer& raw(std::string_view value) { return text_ += value, *this; }
  std::string close() { return std::move(text_) + '}'; }

 private:
  std::string text_ = "{";
};

std::string joined(const Waits& values, int base) {
  std::string text = "[";
  for (int value : values) text += (text.size() > 1 ? "," : "") + std::to_string(base + value);
  return text + "]";
}

/// `group`: the instruction's own communicator, which is left out.
std::string collectives(const std::vector<Comm>& comm, Symbol group) {
  std::string text = "[";
  for (const Comm& c : comm) {
    if (text.size() > 1) text += ',';
    Writer out;
    out.key("axis").string(c.axis.text()).key("kind").string(c.kind.text()).key("bytes").number(c.bytes);
    if (!c.group.empty() && c.group != group) out.key("group").string(c.group.text());
    text += out.close();
  }
  return text + "]";
}

Writer fields(const Instruction& in, std::string_view phase, int rank, int64_t step, int i, int base) {
  Writer out;
  out.key("rank").number(rank).key("step").number(step).key("i").number(base + i);
  out.key("phase").string(phase).key("op").string(name(in.op));
  out.key("unit"), in.name.empty() ? out.raw("null") : out.string(in.name.text());
  out.key("micro"), in.micro < 0 ? out.raw("null") : out.number(in.micro);
  out.key("lane").string(name(in.lane)).key("bytes").number(in.bytes);
  if (in.frozen > 0) out.key("frozen").number(in.frozen);
  if (!in.group.empty()) out.key("group").string(in.group.text());
  if (in.slot >= 0) out.key("slot").number(in.slot);
  if (in.grad >= 0) out.key("grad").number(in.grad);
  if (in.scratch >= 0) out.key("scratch").number(in.scratch);
  if (in.target >= 0) out.key("target").number(in.target);
  if (in.host >= 0) out.key("host").number(in.host);
  if (in.work > 0) out.key("work").number(in.work);
  if (in.flops > 0) out.key("flops").number(in.flops);
  if (in.part != Part::none) out.key("part").string(name(in.part));
  if (in.codes != Codes::none) out.key("codes").string(name(in.codes));
  if (in.add) out.key("add").raw("true");
  out.key("wait").raw(joined(in.wait, base)).key("comm").raw(collectives(in.comm, in.group));
  return out;
}

constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

/// Reads the fields of one object and names the one that is missing or wrong.
class Fields {
 public:
  explicit Fields(const nlohmann::json& object) : object_(object) {
    if (!object.is_object()) fail("a line is one JSON object", "write {\"rank\":...} on each line");
  }

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

  int64_t integer(const char* key, int64_t most = kMost) const { return integer(at(key), key, most); }
  int small(const char* key) const { return static_cast<int>(integer(key, kMostSmall)); }
  int64_t optional(const char* key) const { return has(key) ? integer(key) : -1; }
  std::string text(const char* key) const {
    if (!at(key).is_string()) fail(std::string("field \"") + key + "\": expected a string");
    return at(key).get<std::string>();
  }
  bool flag(const char* key) const {
    if (!has(key)) return false;
    if (!at(key).is_boolean()) fail(std::string("field \"") + key + "\": expected true or false");
    return at(key).get<bool>();
  }
  double seconds(const char* key) const {
    if (!at(key).is_number()) fail(std::string("field \"") + key + "\": expected seconds");
    return at(key).get<double>();
  }
  const nlohmann::json& list(const char* key) const {
    if (!at(key).is_array()) fail(std::string("field \"") + key + "\": expected a list");
    return at(key);
  }
  std::vector<int> integers(const char* key) const {
    std::vector<int> values;
    for (const auto& item : list(key)) values.push_back(static_cast<int>(integer(item, key, kMostSmall)));
    return values;
  }
  template <class Names>
  int choice(const char* key, const Names& names) const {
    const std::string word = text(key);
    for (size_t n = 0; n < names.size(); ++n)
      if (names[n] == word) return static_cast<int>(n);
    fail(std::string("field \"") + key + "\": unknown value " + shown(word),
         "did you mean " + nearest(word, {names.begin(), names.end()}).front() + "?");
  }

 private:
  [[noreturn]] static void fail(const std::string& what,
                                const std::string& hint = "write the file anew with 'tessera plan --schedule'") {
    throw UserError(Exit::input, "plan.schedule", what, hint);
  }
  const nlohmann::json& at(const char* key) const {
    if (!object_.contains(key)) fail(std::string("field \"") + key + "\" is missing");
    return object_[key];
  }
  static int64_t integer(const nlohmann::json& value, const char* key, int64_t most) {
    const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(most);
    if (!fits)
      fail(std::string("field \"") + key + "\": found " +
           printable(value.dump(-1, ' ', false, kReplace).substr(0, 80)) + ", expected a whole number from 0");
    return value.get<int64_t>();
  }

  const nlohmann::json& object_;
};

}  // namespace

std::string_view name(Op op) { return kOps[static_cast<size_t>(op)]; }
std::string_view name(Lane lane) { return kLanes[static_cast<size_t>(lane)]; }
std::string_view name(Codes codes) { return kCodes[static_cast<size_t>(codes)]; }
std::string_view name(Part part) { return kParts[static_cast<size_t>(part)]; }

std::string to_json(const Instruction& in, std::string_view phase, int rank, int64_t step, int i, int base) {
  return fields(in, phase, rank, step, i, base).close();
}

std::string to_json(const Instruction& in, std::string_view phase, int rank, int64_t step, int i, int base, double t0,
                    double t1) {
  return fields(in, phase, rank, step, i, base).key("t0").seconds(t0).key("t1").seconds(t1).close();
}

std::string to_json(const Line& line) {
  if (line.executed) return to_json(line.in, line.phase, line.rank, line.step, line.i, 0, line.t0, line.t1);
  return to_json(line.in, line.phase, line.rank, line.step, line.i, 0);
}

Line parse_line(std::string_view text) {
  const nlohmann::json object = parse_json(text, "a line of the schedule");
  const Fields in(object);
  Line line;
  line.rank = in.small("rank");
  line.step = in.integer("step");
  line.i = in.small("i");
  line.phase = in.text("phase");
  line.in.op = static_cast<Op>(in.choice("op", kOps));
  if (in.has("unit")) line.in.name = in.text("unit");
  if (in.has("micro")) line.in.micro = in.small("micro");
  line.in.lane = static_cast<Lane>(in.choice("lane", kLanes));
  line.in.bytes = in.integer("bytes");
  if (in.has("group")) line.in.group = in.text("group");
  line.in.frozen = in.has("frozen") ? in.integer("frozen") : 0;
  line.in.slot = in.optional("slot");
  line.in.grad = in.optional("grad");
  line.in.scratch = in.optional("scratch");
  line.in.target = in.optional("target");
  line.in.host = in.optional("host");
  line.in.work = in.has("work") ? in.integer("work") : 0;
  line.in.flops = in.has("flops") ? in.integer("flops", kMostFlops) : 0;
  if (in.has("part")) line.in.part = static_cast<Part>(in.choice("part", kParts));
  if (in.has("codes")) line.in.codes = static_cast<Codes>(in.choice("codes", kCodes));
  line.in.add = in.flag("add");
  const std::vector<int> waits = in.integers("wait");
  line.in.wait = Waits(waits.begin(), waits.end());
  for (const auto& item : in.list("comm")) {
    const Fields comm(item);
    line.in.comm.push_back({comm.text("axis"), comm.text("kind"), comm.integer("bytes"),
                            comm.has("group") ? Symbol(comm.text("group")) : line.in.group});
  }
  line.executed = in.has("t0") || in.has("t1");
  if (line.executed) line.t0 = in.seconds("t0"), line.t1 = in.seconds("t1");
  return line;
}

void append_lines(std::vector<Line>& lines, const Schedule& schedule, int rank, int64_t step) {
  const bool continues = !lines.empty() && lines.back().rank == rank && lines.back().step == step;
  const int base = continues ? lines.back().i + 1 : 0;
  for (size_t k = 0; k < schedule.list.size(); ++k) {
    Line line;
    line.number = static_cast<int>(lines.size()) + 1;
    line.rank = rank, line.step = step, line.i = base + static_cast<int>(k);
    line.phase = schedule.phase, line.in = schedule.list[k];
    for (int& wait : line.in.wait) wait += base;
    lines.push_back(std::move(line));
  }
}

uint64_t schedule_hash(const Schedule& schedule) {
  std::string text =
      schedule.phase + " " + std::to_string(schedule.arena) + " " + std::to_string(schedule.micros) + "\n";
  for (size_t i = 0; i < schedule.list.size(); ++i) {
    const Instruction& in = schedule.list[i];
    text += to_json(in, schedule.phase, 0, 0, static_cast<int>(i), 0) + " " + std::to_string(in.unit) + "\n";
  }
  return hash_text(text);
}

namespace {

/// A collective without what differs between members: a message has a sender and a receiver, and token shares and parts of
/// matrices differ in bytes.
std::string shared_view(const Instruction& in, const Comm& c) {
  const bool message = c.kind == "send" || c.kind == "recv";
  if (message) return "message " + in.name;
  const std::string act = std::string(name(in.op)) + (in.name.empty() ? "" : " " + in.name) + ", " + c.kind;
  return c.kind == "broadcast" || c.kind == kAllToAll || carries_tokens(in.op)
             ? act
             : act + " of " + std::to_string(c.bytes) + " bytes";
}

}  // namespace

std::map<std::string, std::vector<std::string>> group_sequences(const Schedule& schedule) {
  std::map<std::string, std::vector<std::string>> sequences;
  for (const Instruction& in : schedule.list)
    for (const Comm& c : in.comm) sequences[c.group].push_back(shared_view(in, c));
  return sequences;
}

std::map<std::string, uint64_t> group_hashes(const Schedule& schedule) {
  std::map<std::string, uint64_t> hashes;
  for (const auto& [group, sequence] : group_sequences(schedule)) {
    std::string text;
    for (const std::string& collective : sequence) text += collective + "\n";
    hashes[group] = hash_text(text);
  }
  return hashes;
}

}  // namespace tessera::plan
