#pragma once
// The one meaning of an instruction: what it makes, uses, changes and ends. The rules of a schedule (rules/rules.h) and
// the search for races (rules/races.h) are walks over it that know no kind of instruction.
//
//   EffectWalk walk(schedule.list, shard_bytes);
//   for (size_t i = 0; i < list.size(); ++i) for (const Use& use : walk.run(i, list[i], list[i].wait).uses) ...
//
// [Note: things] An instruction deals with things: a unit's gathered parameters, its gradient in the arena, what its
// forward saved of a micro-batch. A thing is made once, used or changed any number of times, and ended. Its memory is a
// range of bytes, or memory of its own that others get only after its end. Shards in their placement are there from the
// start. Some things take no memory and are facts: that a gradient was counted, that a shard was updated.
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

enum class Thing : uint8_t {
  parameters,          ///< a unit's shard in its placement
  gradients,           ///< likewise
  states,              ///< likewise
  moving_parameters,   ///< in host memory between device and disk
  moving_gradients,    ///< likewise
  moving_states,       ///< likewise
  fetched_parameters,  ///< in the arena, for a gather or an update
  sum,                 ///< in the arena: this rank's shard of the reduced gradient
  fetched_states,      ///< in the arena
  gathered,            ///< all parameters of the unit, in a slot or in place
  gradient,            ///< the whole gradient of the unit that backwards write, in a slot or in place
  scratch,             ///< a receive buffer
  saved,               ///< what a forward saved for its backward
  compressed,          ///< that what it saved is quantised
  away,                ///< that what it saved has a copy elsewhere
  host_copy,           ///< the copy in host memory
  disk_copy,           ///< the copy on disk
  rebuilt,             ///< the graph that a recompute made
  deferred,            ///< weight gradients that a backward left for later
  output,              ///< what a forward passes on
  output_gradient,     ///< what a backward passes on
  received,            ///< an output of another stage
  received_gradient,   ///< an output's gradient of another stage
  message,             ///< memory of what was sent
  result,              ///< of a micro-batch: the loss or the result of a forward-only pass
  contribution,        ///< of a micro-batch to the unit's gradient
  reduction,           ///< of this contribution
  begun_sum,           ///< that micro-batches were reduced into the unit's shard
  outer_sum,           ///< that the shard was summed over replicas
  share,               ///< of a unit in the norm
  control,             ///< what the norm decides: clipping, learning rate, whether to skip
  updated,             ///< that the unit was updated
  partition,           ///< an updated partition that the other replicas do not have
  early_update,        ///< that the unit was updated before the norm of all
};

/// Thing, unit and micro-batch. A `message` has its send for a micro-batch.
struct ThingKey {
  Thing thing;
  int unit = -1, micro = -1;
  bool operator==(const ThingKey&) const = default;
};
struct HashOfThing {
  size_t operator()(const ThingKey& key) const {
    const auto all = static_cast<uint64_t>(key.micro) << 40 ^ static_cast<uint64_t>(key.unit) << 8 ^
                     static_cast<uint64_t>(key.thing);
    return static_cast<size_t>(all * 0x9E3779B97F4A7C15 >> 16);
  }
};
template <class Value>
using ByThing = std::unordered_map<ThingKey, Value, HashOfThing>;
inline constexpr int kEveryUnit = -2;  ///< all units of the list

enum class Memory : uint8_t { own, arena, host, disk };
std::string_view name(Memory memory);

enum class Act : uint8_t {
  make,    ///< must not be there
  use,     ///< must be there, and stays as it is
  change,  ///< must be there
  end,     ///< must be there, and is gone afterwards
  borrow,  ///< there during the instruction only
  lack,    ///< must not be there
};

struct Access {
  Act act;
  ThingKey key;
  bool optional = false;  ///< may also not be there
  bool writes = false;    ///< its memory
  Memory memory = Memory::own;
  int64_t at = -1;
  int64_t bytes = -1;  ///< -1: as many as it was made with
};

struct Effects {
  /// Takes, uses or frees memory of activations in the order of the list: [Note: memory at a place].
  bool touches_activations = false;
  /// On another lane, and its device memory is taken where it stands in the list.
  bool takes_memory = false;
  int count = 0;
  std::array<Access, 16> accesses;
  const Access* begin() const { return accesses.data(); }
  const Access* end() const { return accesses.data() + count; }
};

/// `shard`: fp32 bytes of this rank's shard of the unit's gradient, which not every instruction has. A send names the unit
/// after the message, and a drop only its wait: EffectWalk knows whose memory these are.
Effects effects(const Instruction& in, int64_t shard = -1);

/// "the parameters of blocks.3".
std::string describe(Thing thing, const std::string& unit);

/// A thing that is there.
struct Presence {
  int by = -1;  ///< the instruction that made it
  Memory memory = Memory::own;
  int64_t at = -1, bytes = -1;
  bool used = false;
};

/// An access in its list: its key, range and bytes are known.
struct Use : Access {
  Presence before;  ///< the thing before the instruction; by < 0: it was not there
};

struct Step {
  Lane lane;
  bool touches_activations, takes_memory;
  std::vector<Use> uses;
};

/// Follows the things of one list.
class EffectWalk {
 public:
  /// `shard_bytes`: see effects().
  EffectWalk(std::set<int> units, std::function<int64_t(int unit)> shard_bytes)
      : units_(std::move(units)), shard_bytes_(std::move(shard_bytes)) {}

  /// The next instruction. `index` and `waits` name instructions alike, in any numbers.
  Step run(int index, const Instruction& in, std::span<const int> waits);

  /// What there is now.
  const ByThing<Presence>& things() const { return things_; }
  bool has(const ThingKey& key) const { return things_.contains(key); }
  /// The instruction that made the thing, or that has ended it; -1 for none.
  int maker(const ThingKey& key) const;
  int ender(const ThingKey& key) const;
  /// Whether any micro-batch has written the unit's gradient.
  bool has_gradient(int unit) const { return with_gradient_.contains(unit); }
  void note(const ThingKey& key, int by) { things_[key].by = by; }

 private:
  void apply(Step& step, int index, const Access& access);
  Presence* find(const Access& access);

  const std::set<int> units_;
  const std::function<int64_t(int)> shard_bytes_;
  ByThing<Presence> things_;
  ByThing<int> ended_;
  std::set<int> with_gradient_;
  std::map<std::pair<Thing, int>, int> last_;  // by output and micro-batch: the unit that made it last
};

}  // namespace tessera::plan
