// Rules within one pass of one rank. Whether things are there, where they are said to be, made once and ended, and used
// in an order that waits hold, follows from the effects of instructions alone; the functions of StepRules add what these
// do not know: sizes, the order of a backward, and what the norm asks of updates.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "tessera/plan/compile/checker.h"
#include "tessera/plan/compile/races.h"

namespace tessera::plan {

namespace {

// -- what is said of a thing ----------------------------------------------------------------------------------------

struct ThingRow {
  Thing thing;
  const char* rule = "order";
  const char* missing = nullptr;  ///< of a line that needs it; by default "needs X, which is not there"
  const char* maker = nullptr;    ///< who makes it
  const char* ended = nullptr;    ///< what the line did that has ended it
  const char* twice = nullptr;    ///< of a line that makes it again, "@" for who made it
  const char* left = nullptr;     ///< of who made it and what is not ended
  const char* remedy = nullptr;   ///< of the same
  const char* lack = nullptr;     ///< of a line that needs it not to be there, "@" for who made it
};

constexpr const char* kInUse = "fetches what @ has in use; send it back first";
constexpr const char* kUnusedFetch = "does not use what @ has fetched for it; send it back first";

constexpr ThingRow kThings[] = {
    {.thing = Thing::gradients,
     .rule = "residency",
     .missing = "needs a gradient in its placement that nothing has sent there",
     .maker = "stash"},
    {.thing = Thing::states, .rule = "residency"},  // and parameters
    {.thing = Thing::moving_states,
     .rule = "residency",
     .missing = "reads host memory, where nothing has put it",
     .twice = "puts into host memory what @ has there and nothing has moved on; put a stash before it",
     .left = "leaves host memory that no later hop takes over",
     .remedy = "put that hop after it"},
    {.thing = Thing::fetched_parameters,
     .rule = "residency",
     .missing = "needs the unit's parameters in the arena, where nothing has fetched them",
     .maker = "fetch",
     .ended = "used them up or sent them back",
     .twice = kInUse,
     .left = "leaves parameters in the arena that are never sent back",
     .remedy = "put their stash after the last use",
     .lack = kUnusedFetch},
    {.thing = Thing::sum,
     .rule = "residency",
     .missing = "needs the unit's gradients in the arena, where nothing has fetched or computed them",
     .maker = "fetch",
     .ended = "used them up or sent them back",
     .twice = kInUse,
     .left = "leaves gradients in the arena that are never sent back",
     .remedy = "put their stash after the last use",
     .lack = kUnusedFetch},
    {.thing = Thing::fetched_states,
     .rule = "residency",
     .missing = "needs the unit's states in the arena, where nothing has fetched them",
     .maker = "fetch",
     .ended = "sent them back",
     .twice = kInUse,
     .left = "leaves states in the arena that are never sent back",
     .remedy = "put their stash after the last use",
     .lack = kUnusedFetch},
    {.thing = Thing::gathered,
     .rule = "residency",
     .missing = "uses parameters that are not gathered",
     .maker = "gather",
     .ended = "released them",
     .left = "is never released",
     .remedy = "put its release after its last use"},
    {.thing = Thing::gradient,
     .missing = "adds to or reduces a gradient that nothing has written",
     .maker = "backward without \"add\"",
     .ended = "reduced it",
     .twice = "begins a new gradient, and that of @ is lost; add to it",
     .left = "its gradient slot is never reduced or sent back",
     .remedy = "put its reduce or its stash after it"},
    {.thing = Thing::saved,
     .ended = "used it up or freed it",
     .twice =
         "makes what is still there since @: a forward runs once, and what is brought back was stashed and dropped",
     .left = "its result is used by no backward and no finish",
     .remedy = "put them after it",
     .lack = "is idle in a micro-batch that @ has run; a rank does one or the other"},
    {.thing = Thing::compressed,
     .missing = "has nothing to expand",
     .maker = "compress",
     .lack = "needs what @ has compressed; put an expand before it"},
    {.thing = Thing::away,
     .rule = "residency",
     .missing = "frees or brings back what no stash has copied",
     .maker = "stash",
     .lack = "needs what @ has sent away; put a fetch before it"},
    {.thing = Thing::host_copy,
     .rule = "residency",
     .missing = "needs a copy in host memory that is not there",
     .ended = "moved it on",
     .left = "leaves a copy in host memory that nothing brings back",
     .remedy = "put a fetch after it"},
    {.thing = Thing::disk_copy,
     .rule = "residency",
     .missing = "reads what nothing has written to the disk",
     .maker = "stash to it",
     .ended = "read it",
     .left = "leaves a copy on the disk that nothing brings back",
     .remedy = "put a fetch after it"},
    {.thing = Thing::deferred, .missing = "has no backward of this micro-batch before it", .maker = "backward"},
    {.thing = Thing::output, .maker = "forward of this micro-batch"},
    {.thing = Thing::output_gradient, .maker = "backward of this micro-batch"},
    {.thing = Thing::received, .left = "receives what nothing uses", .remedy = "remove it on both ranks"},
    {.thing = Thing::message, .left = "keeps its memory for ever", .remedy = "put a drop that waits for it after it"},
    {.thing = Thing::contribution,
     .missing = "reduces a gradient that no backward or idle of this micro-batch has written",
     .maker = "backward"},
    {.thing = Thing::begun_sum,
     .missing = "adds to a shard that holds an old step's gradient; remove \"add\"",
     .twice = "replaces what @ has begun to sum; set \"add\""},
    {.thing = Thing::outer_sum, .lack = "comes after @, which sums the whole over the replicas; move it before"},
    {.thing = Thing::control, .lack = "writes a gradient after @ has counted them; move it before"},
    {.thing = Thing::partition,
     .missing = "gathers a partition that no update has changed",
     .maker = "update",
     .left = "updates a partition that the other replicas never get",
     .remedy = "put a gather_outer after it",
     .lack = "gathers what @ has updated a partition of; put the unit's gather_outer before this line"},
    {.thing = Thing::early_update,
     .lack = "comes after @, which has used the gradient and changed the parameters; move it before"},
};

const ThingRow& row_of(Thing thing) {
  static constexpr ThingRow kOther{.thing = Thing::scratch};
  if (thing == Thing::parameters) thing = Thing::states;
  if (thing == Thing::moving_parameters || thing == Thing::moving_gradients) thing = Thing::moving_states;
  if (thing == Thing::received_gradient) thing = Thing::received;
  const auto found = std::ranges::find(kThings, thing, &ThingRow::thing);
  return found == std::end(kThings) ? kOther : *found;
}

std::string with(std::string text, const std::string& line) {
  if (const size_t at = text.find('@'); at != text.npos) text.replace(at, 1, line);
  return text;
}

bool is_range(const Access& access) { return access.memory != Memory::own; }
bool overlap(const Access& a, const Access& b) {
  return a.memory == b.memory && is_range(a) && a.at < b.at + b.bytes && b.at < a.at + a.bytes;
}
std::string range(const Access& a) { return "[" + std::to_string(a.at) + ", " + std::to_string(a.at + a.bytes) + ")"; }
std::string slot_text(int64_t slot) { return slot < 0 ? "none" : std::to_string(slot); }

/// Gradients that are in a norm and wait for an update in a later pass of the rank, before their unit's next gather.
/// Follows one rank from pass to pass.
struct Pending {
  std::map<int, int> norms;  ///< by unit: the norm that includes its gradient
  bool unknown = false;      ///< the lines begin in the middle of a run: earlier ones may have left others
  bool used = false;         ///< later passes applied some: the lines may end with others pending

  bool may_be(int unit) const { return unknown || norms.contains(unit); }
  bool take(int unit) {
    const bool found = norms.erase(unit) > 0 || unknown;
    used = used || found;
    return found;
  }
  /// No gradient may be pending when line `k` runs.
  void refuse(Checker& checker, int k) {
    for (const auto& [unit, norm] : norms)
      checker.report(k, "order",
                     "comes before the update of " + checker.units()[unit] + ", whose gradient " + checker.at(norm) +
                         " has counted; put that update before it");
    norms.clear(), unknown = false;
  }
  void end(Checker& checker) const {
    for (const auto& [unit, norm] : norms)
      if (!used)
        checker.report(norm, "order",
                       "counts the gradient of " + checker.units()[unit] +
                           ", which no update uses; put its update after this line");
  }
};

// -- sizes ----------------------------------------------------------------------------------------------------------

/// The bytes of an instruction match its unit's size, which the first line that shows it fixes for the rank, and the
/// bytes of its collective.
class SizeRules {
 public:
  explicit SizeRules(Checker& checker) : checker_(checker) {}

  /// Sizes are known per rank; the lines of a rank are contiguous.
  void of_rank(int rank) {
    if (rank != rank_) sizes_.assign(checker_.units().size(), {});
    rank_ = rank;
  }

  bool sharded(int unit) const { return sizes_[unit].sharded; }
  /// Whether the unit is updated in partitions.
  bool partitioned(int unit) const { return sizes_[unit].partition.line >= 0; }
  /// Bytes of this rank's shard of the unit's gradient, -1 if no line has shown it.
  int64_t shard_of(int unit) const { return sizes_[unit].shard.bytes; }

  void check(int k) {
    const Instruction& in = checker_.in(k);
    if (in.op == Op::gather || in.op == Op::reduce) whole(k);
    if (in.op == Op::update || (in.op == Op::norm && in.unit >= 0)) shard(k);
    if (in.op == Op::reduce_outer) outer(k);
    // Offloaded and reloaded, and gathered from partitions: fp32, or half the bytes if stored in 16 bits.
    const bool moves = in.part == Part::gradients && (in.op == Op::stash || in.op == Op::fetch);
    if (moves || in.op == Op::gather_outer) {
      const Quantity& size = sizes_[in.unit].shard;
      if (size.line >= 0 && in.bytes * 2 != size.bytes) expect(k, size, "the size of the shard in @, or half of it");
    }
    if (in.op == Op::gather_outer) collectives(k, "all_gather");
  }

  /// Line `k` writes a unit's gradient.
  void gradient(int k) {
    Size& size = sizes_[checker_.unit(k)];
    if (checker_.in(k).bytes == 0 && size.frozen) return;
    size.gradient.note(k, checker_.in(k).bytes);
    expect(k, size.gradient, "the size of the unit's gradient in @");
    const Quantity& parameters = size.parameters[static_cast<size_t>(Codes::none)];
    if (const int gather = parameters.line; gather >= 0) {
      const int64_t trained = parameters.bytes - checker_.in(gather).frozen;
      const bool halved = trained * 2 == size.gradient.bytes;  // slots of 16 bits; gradients are fp32
      if (trained != size.gradient.bytes && !halved)
        checker_.report(k, "bytes",
                        "the gradient has " + std::to_string(size.gradient.bytes) + " bytes, but " +
                            checker_.at(gather) + " gathers " + std::to_string(trained) + " of trained parameters");
    }
    if (!size.sharded) size.shard.note(k, size.gradient.bytes);
  }

 private:
  struct Quantity {
    int64_t bytes = -1;
    int line = -1;  // that showed it first
    void note(int k, int64_t found) {
      if (line < 0) bytes = found, line = k;
    }
  };
  struct Size {
    std::array<Quantity, 4> parameters;  // by the codes that a gather brings
    Quantity gradient, shard, partition;
    bool sharded = false;
    bool frozen = false;  // all of it, in this pass
  };

  /// All of a unit's parameters, or its whole gradient.
  void whole(int k) {
    Size& size = sizes_[checker_.unit(k)];
    const bool reduces = checker_.in(k).op == Op::reduce;
    Quantity& quantity = reduces ? size.gradient : size.parameters[static_cast<size_t>(checker_.in(k).codes)];
    quantity.note(k, checker_.in(k).bytes);
    if (!reduces) size.frozen = checker_.in(k).frozen == checker_.in(k).bytes;
    if (!reduces && !checker_.groups_of(k).empty()) size.sharded = true;
    expect(k, quantity, "the unit's size in @");
    int64_t shard = 0;
    if (collectives(k, reduces ? "reduce_scatter" : "all_gather", &shard) && reduces) size.shard.note(k, shard);
  }

  /// What this rank updates: its shard of the gradient, or with two_level its partition of the shard.
  void shard(int k) {
    Size& size = sizes_[checker_.unit(k)];
    if (size.shard.line < 0) look_ahead(k);
    if (size.partition.line < 0) {
      size.shard.note(k, checker_.in(k).bytes);
      expect(k, size.shard, "the size of the shard in @");
    } else {
      expect(k, size.partition, "this rank's partition of the sum in @");
    }
    if (checker_.in(k).op != Op::update) {
      collectives(k, "");
      return;
    }
    for (const Comm& c : checker_.in(k).comm)  // sums over tensors and whole matrices, of any size
      if (c.kind != "all_reduce" && c.kind != kAllToAll)
        checker_.report(k, "groups", "runs " + c.kind + ", expected sums by all_reduce, or matrices by all_to_all");
  }

  /// A shard summed over its replicas: each receives all of the sum (all_reduce) or its partition (reduce_scatter).
  void outer(int k) {
    Size& size = sizes_[checker_.unit(k)];
    size.shard.note(k, checker_.in(k).bytes);
    expect(k, size.shard, "the size of the shard in @");
    const std::vector<Comm>& comm = checker_.in(k).comm;
    const bool partitions = !comm.empty() && comm.front().kind == "reduce_scatter";
    int64_t partition = 0;
    if (collectives(k, partitions ? "reduce_scatter" : "all_reduce", &partition) && partitions)
      size.partition = {partition, k};
  }

  /// In lines that begin in the middle of a run, an update may come before the line that shows whether it is
  /// partitioned.
  void look_ahead(int k) {
    const int rank = checker_.lines()[k].rank, unit = checker_.unit(k);
    for (int later = k + 1; later < static_cast<int>(checker_.lines().size()) && checker_.lines()[later].rank == rank;
         ++later)
      if (checker_.unit(later) == unit && checker_.in(later).op == Op::reduce_outer) return outer(later);
  }

  void expect(int k, const Quantity& size, const std::string& why) {
    if (checker_.in(k).bytes != size.bytes)
      checker_.report(k, "bytes",
                      "moves " + std::to_string(checker_.in(k).bytes) + " bytes, expected " +
                          std::to_string(size.bytes) + ": " + with(why, checker_.at(size.line)));
  }

  /// A rank sends its shard to each of the other n - 1 members, or a part to each of them; in an all-reduce, all of it.
  /// A unit may have several buffers, each with its group. `shard`: stored bytes of the rank's shards of all buffers.
  bool collectives(int k, const std::string& kind, int64_t* shard = nullptr) {
    const std::vector<Comm>& comm = checker_.in(k).comm;
    int64_t whole = 0, parts = 0;
    std::vector<int64_t> wholes;  // of each collective
    bool over_tp = false;
    for (const Comm& c : comm) {
      if (checker_.group(c) < 0) return false;
      if (c.kind != kind || kind.empty()) {
        checker_.report(k, "groups",
                        "runs " + c.kind + ", expected " + (kind.empty() ? "no collective" : "one " + kind));
        return false;
      }
      const auto n = std::max<int64_t>(2, static_cast<int64_t>(checker_.groups()[checker_.group(c)].ranks.size()));
      const int64_t part = kind == "all_reduce" ? c.bytes : c.bytes / (n - 1);
      over_tp = over_tp || c.axis.text().ends_with("tp");
      parts += part;
      wholes.push_back(kind == "all_reduce" ? part : part * n);
      whole += wholes.back();
    }
    if (comm.empty()) return false;
    const bool narrow = whole * 2 == checker_.in(k).bytes;  // fp32 values communicated as bf16 or fp16
    const bool some_narrow = may_add_up(wholes, checker_.in(k).bytes - whole);  // except buffers stored in fewer bits
    if (shard) *shard = narrow ? parts * 2 : parts;
    // Buffers sharded by tensor parallelism are not gathered if no other axis shards them.
    const bool partial = over_tp && whole < checker_.in(k).bytes;
    if (checker_.in(k).codes != Codes::none && whole <= checker_.in(k).bytes) return true;  // beside scales of lines
    if (whole == checker_.in(k).bytes || narrow || some_narrow || partial) return true;
    checker_.report(k, "bytes",
                    "sends " + std::to_string(comm.front().bytes) + " bytes, expected a share of " +
                        std::to_string(checker_.in(k).bytes) + " (these make " + std::to_string(whole) + ")");
    return false;
  }

  /// Whether some of the parts sum to `sum`; a unit has few buffers.
  static bool may_add_up(const std::vector<int64_t>& parts, int64_t sum) {
    std::set<int64_t> sums = {0};
    for (const int64_t part : parts) {
      const std::set<int64_t> before = sums;
      for (const int64_t s : before) sums.insert(s + part);
    }
    return sums.contains(sum);
  }

  Checker& checker_;
  int rank_ = -1;
  std::vector<Size> sizes_;  // by unit
};

// -- one pass -------------------------------------------------------------------------------------------------------

using UnitMicros = std::set<std::pair<int64_t, int>>;  // (unit, micro-batch), or (step, unit)

class StepRules {
 public:
  /// `recomputed`: (step, unit) that some rank recomputes.
  StepRules(Checker& checker, const Pass& pass, SizeRules& sizes, const UnitMicros& recomputed, Pending& pending)
      : checker_(checker),
        pass_(pass),
        sizes_(sizes),
        recomputed_(recomputed),
        pending_(pending),
        units_(units_of(checker, pass)),
        walk_(units_, [this](int unit) { return sizes_.shard_of(unit); }) {}

  void run() {
    for (int k = pass_.begin; k < pass_.end; ++k)
      if (checker_.in(k).op == Op::weight_grad) deferred_.insert({checker_.unit(k), checker_.in(k).micro});
    for (int k = pass_.begin; k < pass_.end; ++k) steps_.push_back(step(k));
    finish();
    order();
  }

 private:
  static std::set<int> units_of(const Checker& checker, const Pass& pass) {
    std::set<int> units;
    for (int k = pass.begin; k < pass.end; ++k)
      if (checker.unit(k) >= 0 && checker.in(k).part != Part::message) units.insert(checker.unit(k));
    return units;
  }

  Step step(int k) {
    const Instruction& in = checker_.in(k);
    if (needs_unit(in.op) && in.unit < 0) return {in.lane, false, false, {}};  // the form rule reports it
    sizes_.check(k);
    switch (in.op) {
      case Op::gather:
        gather(k);
        break;
      case Op::forward:
        open_[in.micro].push_back(k);
        break;
      case Op::finish:
        open_.erase(in.micro);
        break;
      case Op::drop:  // no backward of the unit follows
        if (in.part == Part::activations && in.bytes == 0) close(checker_.unit(k), in.micro);
        break;
      case Op::backward:
        backward(k);
        if (!deferred_.contains({in.unit, in.micro})) gradient(k);
        break;
      case Op::weight_grad:
      case Op::idle:
        gradient(k);
        break;
      case Op::reduce_outer:
        if (sizes_.partitioned(in.unit) && in.scratch < 0)
          checker_.report(k, "form",
                          "gives each replica a partition and has no \"scratch\" to receive the others' parts in");
        break;
      case Op::norm:
        if (in.unit < 0) norm(k);
        break;
      case Op::flush:  // writes what updates have changed; its barriers belong to the group rules
        pending_.refuse(checker_, k);
        break;
      default:
        break;
    }
    Step step = walk_.run(k, in, checker_.waits(k));
    for (const Use& use : step.uses) there(k, use);
    for (const Use& use : step.uses) take(k, use, step);
    for (const Use& use : step.uses)
      if (use.act == Act::end)
        std::erase_if(taken_,
                      [&](const Taken& taken) { return taken.by == use.before.by && taken.range.at == use.at; });
    if (in.op == Op::drop && in.part == Part::message && step.uses.empty())
      checker_.report(k, "order", "frees what was sent and waits for no send; add that line to \"wait\"");
    if (in.op == Op::update) update(k);
    return step;
  }

  // -- things ------------------------------------------------------------------------------------------------------

  std::string noun(const ThingKey& key) const {
    return describe(key.thing, key.unit < 0 ? "the micro-batch" : checker_.units()[key.unit]);
  }

  /// Whether the thing is there, or not, as the line needs it.
  void there(int k, const Use& use) {
    const ThingRow& about = row_of(use.key.thing);
    const bool present = use.before.by >= 0;
    if (use.act == Act::borrow) return;
    if (use.act == Act::lack || use.act == Act::make) {
      if (!present || (use.key.thing == Thing::partition && !sizes_.partitioned(use.key.unit))) return;
      const std::string by = checker_.at(use.before.by);
      if (use.act == Act::lack)
        checker_.report(k, about.rule, with(about.lack, by));
      else if (about.twice)
        checker_.report(k, about.rule, with(about.twice, by));
      else if (about.left)
        checker_.report(use.before.by, about.rule,
                        std::string(about.left) + " before " + checker_.at(k) + " makes it again; " + about.remedy);
      else
        checker_.report(k, about.rule, "does again what " + by + " has done; remove one of them");
      return;
    }
    if (!present) return missing(k, use);
    if (use.at != use.before.at)
      checker_.report(k, about.rule,
                      "uses " + noun(use.key) + " at " + slot_text(use.at) + ", but " + checker_.at(use.before.by) +
                          " has placed that at " + slot_text(use.before.at) + "; use that place");
    if (use.act != Act::change && use.bytes != use.before.bytes)
      checker_.report(k, "bytes",
                      "moves " + std::to_string(use.bytes) + " bytes, but " + checker_.at(use.before.by) + " moved " +
                          std::to_string(use.before.bytes));
  }

  void missing(int k, const Use& use) {
    if (use.optional || (use.key.thing == Thing::gradients && pending_.may_be(use.key.unit))) return;
    const ThingRow& about = row_of(use.key.thing);
    std::string text = about.missing ? about.missing : "needs " + noun(use.key) + ", which is not there";
    if (const int ender = walk_.ender(use.key); ender >= 0)
      text += ": " + checker_.at(ender) + " has " + (about.ended ? about.ended : "ended it");
    if (const int later = next_maker(k, use.key); later >= 0)
      text += "; move " + checker_.at(later) + " before this line";
    else if (about.maker)
      text += std::string("; put a ") + about.maker + " before this line";
    checker_.report(k, about.rule, text);
  }

  int next_maker(int k, const ThingKey& key) const {
    for (int later = k + 1; later < pass_.end; ++later)
      if (checker_.in(later).unit == key.unit)
        for (const Access& access : effects(checker_.in(later)))
          if (access.act == Act::make && access.key == key) return later;
    return -1;
  }

  struct Taken {
    Access range;
    int by;
  };

  static std::string range_name(const Access& access) {
    if (access.memory != Memory::arena) return std::string(name(access.memory));
    switch (access.key.thing) {
      case Thing::gathered:
        return "slot";
      case Thing::gradient:
        return "gradient slot";
      case Thing::scratch:
        return "scratch";
      default:
        return "buffer";
    }
  }

  /// No range may be taken while any part of it is in use. A fetched shard may become part of the slot that it is
  /// gathered into.
  void take(int k, const Use& use, const Step& step) {
    const bool takes = use.act == Act::make || use.act == Act::borrow;
    if (!takes || !is_range(use) || use.bytes <= 0) return;
    const auto becomes_part = [&](const Taken& taken) {
      return use.key.thing == Thing::gathered && taken.range.at >= use.at &&
             taken.range.at + taken.range.bytes <= use.at + use.bytes &&
             std::ranges::any_of(step.uses, [&](const Use& other) {
               return other.act == Act::end && other.before.by == taken.by && other.at == taken.range.at;
             });
    };
    const auto refuse = [&](const Access& other, const std::string& why) {
      checker_.report(k, "arena",
                      "its " + range_name(use) + " " + range(use) + " overlaps " + range(other) + ", " + why +
                          "; give it another offset or end that use first");
    };
    for (const Taken& taken : taken_)
      if (overlap(taken.range, use) && !becomes_part(taken))
        refuse(taken.range, "in use since " + checker_.at(taken.by));
    for (const Use& other : step.uses)
      if (other.act == Act::borrow && &other < &use && overlap(other, use))
        refuse(other, "its own " + range_name(other));
    if (use.act == Act::make) taken_.push_back({use, k});
  }

  /// Each use comes after those before it by waits and lanes, not only in the list.
  void order() {
    Clocks clocks;
    for (int k = pass_.begin; k < pass_.end; ++k) {
      std::vector<int> waits;
      for (const int earlier : checker_.waits(k))
        if (earlier >= pass_.begin && earlier < k) waits.push_back(earlier - pass_.begin);
      clocks.add(checker_.in(k).lane, waits);
    }
    std::set<std::pair<int, int>> reported;
    for (const Clash& clash : clashes(steps_, clocks)) {
      if (!reported.insert({clash.first, clash.second}).second) continue;
      const int k = pass_.begin + clash.second;
      const std::string first = checker_.at(pass_.begin + clash.first);
      const auto wait = [&](const std::string& rule, const std::string& otherwise) {
        checker_.report(k, rule, "does not wait for " + first + ": " + otherwise + "; add that line to \"wait\"");
      };
      if (!clash.use) {
        wait("order", "the memory that it is given here may still be in use");
        continue;
      }
      const Use& use = *clash.use;
      const auto same = [&](const Use& other) {
        return is_range(use) ? overlap(other, use) : other.key == use.key && other.act != Act::lack;
      };
      const std::vector<Use>& uses = steps_[clash.first].uses;
      const auto other = std::ranges::find_if(uses, same);
      if (is_range(use) && (use.act == Act::make || use.act == Act::borrow))
        checker_.report(k, "arena",
                        "its " + range_name(use) + " " + range(use) + " may be written before " + first +
                            " is done with " + (other == uses.end() ? "it" : range(*other)) + "; wait for that line");
      else
        wait(
            row_of(use.key.thing).rule,
            noun(use.key) + (other != uses.end() && !other->writes ? " may still be in use" : " may not be there yet"));
    }
  }

  // -- what things do not know ---------------------------------------------------------------------------------------

  void gather(int k) {
    if (const auto found = pending_.norms.find(checker_.unit(k)); found != pending_.norms.end())
      checker_.report(k, "order",
                      "gathers parameters before the update for which " + checker_.at(found->second) +
                          " has counted their gradient; put that update before it");
    if (!checker_.groups_of(k).empty() && checker_.in(k).slot < 0)
      checker_.report(k, "form", "gathers from a group and has no \"slot\" to gather into");
  }

  /// Nothing of the unit's forward waits for a backward any more.
  void close(int unit, int micro) {
    std::erase_if(open_[micro], [&](int forward) { return checker_.unit(forward) == unit; });
  }

  /// The backward begins at a loss or a message, and runs through the forwards of a micro-batch in reverse.
  void backward(int k) {
    const int unit = checker_.unit(k), micro = checker_.in(k).micro;
    const bool sent = std::ranges::any_of(units_, [&](int other) {
      return walk_.has({Thing::received_gradient, other, micro});
    });
    if (!sent && !walk_.has({Thing::result, -1, micro}))
      checker_.report(k, "order", "has no gradient to start from: the loss of this micro-batch must come before it");
    std::vector<int>& open = open_[micro];
    if (!open.empty() && checker_.unit(open.back()) != unit)
      checker_.report(k, "order",
                      "the gradient passes through " + checker_.units()[checker_.unit(open.back())] +
                          " first, forwarded last by " + checker_.at(open.back()));
    close(unit, micro);
    if (recomputed_.contains({pass_.step, unit}) && !walk_.has({Thing::rebuilt, unit, micro}))
      checker_.report(
          k, "order",
          "the unit is recomputed elsewhere in this step, but not before this line; put its recompute here");
  }

  void gradient(int k) {
    sizes_.gradient(k);
    if (checker_.in(k).bytes > 0 && sizes_.sharded(checker_.unit(k)) && checker_.in(k).grad < 0)
      checker_.report(k, "form", "writes a gradient that is sharded and has no slot \"grad\" for it");
  }

  void norm(int k) {
    pending_.refuse(checker_, k);
    bool replicated[2] = {false, false};  // of unsharded units, of sharded ones
    int early = -1, other = -1;
    for (const int unit : units_) {
      if (walk_.has({Thing::outer_sum, unit})) replicated[sizes_.sharded(unit)] = true;
      if (const int update = walk_.maker({Thing::early_update, unit}); update >= 0)
        early = update;
      else if (walk_.has_gradient(unit))
        other = unit;
    }
    // A norm used for clipping comes before every update: some updates wait for it, or none.
    if (early >= 0 && other >= 0)
      checker_.report(early, "order",
                      "comes before " + checker_.at(k) + ", for which the update of " + checker_.units()[other] +
                          " waits; put all updates behind it, or each behind its own unit's backward");
    for (const int unit : units_) {
      const auto counts = [&](const std::string& otherwise) {
        checker_.report(k, "order", "counts the gradient of " + checker_.units()[unit] + ", which " + otherwise);
      };
      const ThingKey sum{Thing::sum, unit};
      if (replicated[sizes_.sharded(unit)] && !walk_.has({Thing::outer_sum, unit}) && walk_.has_gradient(unit))
        counts("has no reduce_outer; put it before this line");
      if (!walk_.has({Thing::share, unit}) && (walk_.has(sum) || walk_.ender(sum) >= 0))
        counts("is not on the device; take its norm before it leaves");
    }
  }

  /// Behind the norm, or deferred from the previous step, or with a norm of its own behind its own gradient.
  void update(int k) {
    const int unit = checker_.unit(k);
    walk_.note({Thing::partition, unit}, k);
    if (walk_.has({Thing::control})) return;
    if (!walk_.has_gradient(unit)) {
      if (!pending_.take(unit))
        checker_.report(k, "order",
                        "has no norm before it, and the step is clipped by it; put the norm before all updates");
      return;
    }
    if (!walk_.has({Thing::share, unit}))
      checker_.report(
          k, "order",
          "has no norm before it: the step may be clipped by that of all gradients; put the norm before all "
          "updates, or, where nothing clips, that of the unit before its update");
    walk_.note({Thing::early_update, unit}, k);
  }

  // -- the end of the pass -----------------------------------------------------------------------------------------

  void finish() {
    int gradient = -1;
    const int norm = walk_.maker({Thing::control});
    for (const auto& [key, held] : walk_.things()) {
      const ThingRow& about = row_of(key.thing);
      const bool received = key.thing == Thing::received || key.thing == Thing::received_gradient;
      const bool may_stay = (received && held.used) || (key.thing == Thing::gradient && held.memory == Memory::own) ||
                            (key.thing == Thing::partition && !sizes_.partitioned(key.unit));
      if (about.left && !may_stay) checker_.report(held.by, about.rule, std::string(about.left) + "; " + about.remedy);
      if (key.thing != Thing::contribution) continue;
      gradient = std::max(gradient, held.by);
      if (norm >= 0 && walk_.maker({Thing::updated, key.unit}) < norm && !walk_.has({Thing::early_update, key.unit}))
        pending_.norms[key.unit] = norm;
    }
    if (gradient >= 0 && norm < 0)
      checker_.report(gradient, "order", "its gradient is in no norm; put norm and update after it");
  }

  Checker& checker_;
  const Pass& pass_;
  SizeRules& sizes_;
  const UnitMicros& recomputed_;
  Pending& pending_;
  const std::set<int> units_;  // that the pass names
  EffectWalk walk_;
  std::vector<Step> steps_;
  std::vector<Taken> taken_;
  std::map<int, std::vector<int>> open_;  // by micro-batch: forwards whose backward has not run yet, in order
  UnitMicros deferred_;                   // whose weight gradients are
};

}  // namespace

void check_steps(Checker& checker) {
  UnitMicros recomputed;
  for (int k = 0; k < static_cast<int>(checker.lines().size()); ++k)
    if (checker.in(k).op == Op::recompute) recomputed.insert({checker.lines()[k].step, checker.unit(k)});
  SizeRules sizes(checker);
  Pending pending;
  int rank = -1;
  for (const Pass& pass : checker.passes()) {
    if (std::exchange(rank, pass.rank) != pass.rank) {
      pending.end(checker);
      pending = {{}, /*unknown=*/pass.step > 1};
    }
    sizes.of_rank(pass.rank);
    StepRules(checker, pass, sizes, recomputed, pending).run();
  }
  pending.end(checker);
}

}  // namespace tessera::plan
