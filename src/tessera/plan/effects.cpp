#include "tessera/plan/effects.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::plan {

namespace {

struct Place {
  Memory memory = Memory::own;
  int64_t at = -1, bytes = -1;
};
Place arena(int64_t at, int64_t bytes = -1) { return at < 0 ? Place{} : Place{Memory::arena, at, bytes}; }

constexpr int kLastUnit = -3;  // the unit that made this thing of the micro-batch last
constexpr int kWaits = -4;     // the messages that the instruction waits for

/// The three things that are a unit's parameters, gradients or states, by where they are.
struct Stations {
  Thing placed, moving, fetched;
};
Stations stations(Part part) {
  switch (part) {
    case Part::parameters:
      return {Thing::parameters, Thing::moving_parameters, Thing::fetched_parameters};
    case Part::gradients:
      return {Thing::gradients, Thing::moving_gradients, Thing::sum};
    default:
      return {Thing::states, Thing::moving_states, Thing::fetched_states};
  }
}

/// Writes down the effects of one instruction.
class Book {
 public:
  Book(const Instruction& in, int64_t shard) : in_(in), shard_(shard) {}

  Effects effects() {
    switch (in_.op) {
      case Op::gather:
        if (in_.scratch >= 0)
          end(of_unit(Thing::fetched_parameters), arena(in_.scratch), /*writes=*/false);
        else if (in_.slot >= 0)  // else they are used in place
          maybe(Act::use, of_unit(Thing::parameters));
        lack(of_unit(Thing::early_update));
        lack(of_unit(Thing::partition));
        add(Act::make, of_unit(Thing::gathered), arena(in_.slot, in_.bytes));
        break;
      case Op::release:
        end(of_unit(Thing::gathered), arena(in_.slot), /*writes=*/true);  // tests fill a released slot with NaN
        break;
      case Op::forward:
        parameters();
        maybe(Act::use, of_micro(Thing::received));
        add(Act::make, of_micro(Thing::saved));
        add(Act::make, of_micro(Thing::output));
        break;
      case Op::loss:
        touches();
        add(Act::use, {Thing::output, kEveryUnit, in_.micro});
        add(Act::make, {Thing::result, -1, in_.micro});
        break;
      case Op::finish:
        touches();
        add(Act::use, {Thing::output, kEveryUnit, in_.micro});
        maybe(Act::end, {Thing::saved, kEveryUnit, in_.micro});
        add(Act::make, {Thing::result, -1, in_.micro});
        break;
      case Op::recompute:
        parameters();
        needs_saved(Act::use);
        add(Act::make, of_micro(Thing::rebuilt));
        break;
      case Op::backward:
        parameters();
        needs_saved(Act::end);
        maybe(Act::end, of_micro(Thing::rebuilt));
        maybe(Act::use, of_micro(Thing::received_gradient));
        maybe(Act::use, {Thing::result, -1, in_.micro});
        add(Act::make, of_micro(Thing::output_gradient));
        if (in_.bytes == 0) add(Act::make, of_micro(Thing::deferred));
        gradient();
        break;
      case Op::weight_grad:
        touches();
        lack(of_unit(Thing::early_update));
        end(of_micro(Thing::deferred));
        gradient();
        break;
      case Op::idle:
        lack(of_unit(Thing::early_update));
        lack(of_micro(Thing::saved));
        gradient();
        break;
      case Op::reduce:
        lack(of_unit(Thing::outer_sum));
        add(Act::use, of_micro(Thing::contribution));
        add(Act::make, of_micro(Thing::reduction));
        end(of_unit(Thing::gradient), arena(in_.grad), /*writes=*/true);
        borrow(in_.scratch);
        add(in_.add ? Act::change : Act::make, of_unit(Thing::begun_sum));
        if (in_.target >= 0)
          add(in_.add ? Act::change : Act::make, of_unit(Thing::sum), arena(in_.target, shard_));
        else
          maybe(Act::change, of_unit(Thing::gradients));
        break;
      case Op::reduce_outer:
        lack(of_unit(Thing::early_update));
        summed();
        borrow(in_.scratch);
        add(Act::make, of_unit(Thing::outer_sum));
        break;
      case Op::norm:
        if (in_.unit >= 0) {
          lack(of_unit(Thing::early_update));
          summed();  // rounded to what is stored
          add(Act::make, of_unit(Thing::share));
        } else {
          maybe(Act::use, {Thing::share, kEveryUnit});
          maybe(Act::use, {Thing::gradients, kEveryUnit});
          add(Act::make, {Thing::control});
        }
        break;
      case Op::update:
        maybe(Act::use, {Thing::control});
        part(Part::parameters, Act::change, in_.slot);
        part(Part::gradients, in_.grad < 0 ? Act::use : Act::end, in_.grad);
        part(Part::states, Act::change, in_.scratch);
        if (in_.work > 0)
          add(Act::borrow, of_unit(Thing::scratch),
              in_.lane == Lane::host ? Place{Memory::host, in_.host, in_.work} : arena(in_.target, in_.work));
        add(Act::make, of_unit(Thing::updated));
        break;
      case Op::gather_outer:
        end(of_unit(Thing::partition));
        part(Part::parameters, Act::change, in_.slot);
        break;
      case Op::stash:
      case Op::fetch:
        in_.part == Part::activations ? move_activations() : move();
        break;
      case Op::drop:
        touches();
        if (in_.part == Part::message) {
          end({Thing::message, -1, kWaits});
        } else {
          // without bytes: of a unit that has no backward, and keeps nothing
          if (in_.bytes > 0) add(Act::use, of_micro(Thing::away), Place{Memory::own, -1, in_.bytes});
          end(of_micro(Thing::saved));
        }
        break;
      case Op::send: {
        const bool back = in_.lane == Lane::send_prev;
        add(Act::use, {back ? Thing::output_gradient : Thing::output, kLastUnit, in_.micro});
        add(Act::make, {Thing::message});
        book_.takes_memory = back;  // a gradient that was not computed is sent as zeros
        break;
      }
      case Op::recv:
        add(Act::make, of_micro(in_.lane == Lane::recv_prev ? Thing::received : Thing::received_gradient));
        book_.takes_memory = true;
        break;
      case Op::compress:
        touches();
        lack(of_micro(Thing::away));
        add(Act::change, of_micro(Thing::saved));
        add(Act::make, of_micro(Thing::compressed), Place{Memory::own, -1, in_.bytes});
        break;
      case Op::expand:
        touches();
        lack(of_micro(Thing::away));
        add(Act::change, of_micro(Thing::saved));
        end(of_micro(Thing::compressed), Place{Memory::own, -1, in_.bytes});
        break;
      case Op::flush:  // a schedule of its own
        break;
    }
    return book_;
  }

 private:
  ThingKey of_unit(Thing thing) const { return {thing, in_.unit}; }
  ThingKey of_micro(Thing thing) const { return {thing, in_.unit, in_.micro}; }

  Access& add(Act act, const ThingKey& key, const Place& place = {}) {
    Access& access = book_.accesses[book_.count++];
    access = {act, key, false, act != Act::use && act != Act::lack, place.memory, place.at, place.bytes};
    return access;
  }
  void maybe(Act act, const ThingKey& key, const Place& place = {}) { add(act, key, place).optional = true; }
  void lack(const ThingKey& key) { add(Act::lack, key); }
  /// Of memory that only its owner has, the end is a write: it comes after all uses.
  void end(const ThingKey& key, const Place& place = {}, bool writes = true) {
    add(Act::end, key, place).writes = writes || place.memory == Memory::own;
  }
  void borrow(int64_t at) {
    if (at >= 0) add(Act::borrow, of_unit(Thing::scratch), arena(at, in_.bytes));
  }
  void touches() { book_.touches_activations = true; }

  /// The parameters that a unit computes with: all uses within a step see the same values.
  void parameters() {
    touches();
    add(Act::use, of_unit(Thing::gathered), arena(in_.slot));
    if (in_.slot < 0) maybe(Act::use, of_unit(Thing::parameters));
    lack(of_unit(Thing::early_update));
  }

  void needs_saved(Act act) {
    lack(of_micro(Thing::away));
    lack(of_micro(Thing::compressed));
    add(act, of_micro(Thing::saved));
    maybe(Act::use, of_micro(Thing::received));
  }

  /// A backward writes the whole gradient into its slot or in place; nothing without trained parameters.
  void gradient() {
    if (in_.bytes == 0) return;
    lack({Thing::control});
    add(Act::make, of_micro(Thing::contribution));
    add(in_.add ? Act::change : Act::make, of_unit(Thing::gradient), arena(in_.grad, in_.bytes));
    if (in_.grad < 0) maybe(Act::change, of_unit(Thing::gradients));
  }

  /// Changes this rank's shard of a sum over ranks.
  void summed() {
    if (in_.target >= 0)
      add(Act::change, of_unit(Thing::sum), arena(in_.target));
    else
      maybe(Act::change, of_unit(Thing::gradients));
  }

  /// A buffer in the arena, or in its placement, where only a gradient need not be.
  void part(Part part, Act act, int64_t at) {
    const Stations of = stations(part);
    if (at >= 0) {
      add(act, of_unit(of.fetched), arena(at)).writes = act == Act::change;
      return;
    }
    lack(of_unit(of.fetched));
    add(act, of_unit(of.placed)).optional = part != Part::gradients || in_.lane != Lane::host;
  }

  /// One hop of a buffer between arena, host memory and its placement.
  void move() {
    const Stations of = stations(in_.part);
    const bool stash = in_.op == Op::stash, disk = in_.lane == Lane::disk;
    const Place host{Memory::host, in_.host, in_.bytes};
    const auto placed = [&] {
      add(stash ? Act::change : Act::use, of_unit(of.placed)).optional = stash || in_.part != Part::gradients;
    };
    // [Note: gradients in bf16] of compile/tiers.cpp: fp32 where more is added
    const bool wide = in_.part == Part::gradients && in_.micro >= 0;
    if (stash) {
      if (disk)
        end(of_unit(of.moving), host, /*writes=*/false);
      else
        end(of_unit(of.fetched), arena(in_.slot), /*writes=*/false);
      disk || in_.host < 0 ? placed() : void(add(Act::make, of_unit(of.moving), host));
    } else {
      if (disk || in_.host < 0)
        placed();
      else
        end(of_unit(of.moving), host, /*writes=*/false);
      add(Act::make, of_unit(disk ? of.moving : of.fetched),
          disk ? host : arena(in_.slot, std::max(in_.bytes, wide ? shard_ : 0)));
    }
  }

  void move_activations() {
    const bool disk = in_.lane == Lane::disk;
    const Place host{Memory::host, in_.host, in_.bytes}, on_disk{Memory::disk, in_.slot, in_.bytes};
    if (in_.op == Op::stash) {
      if (!disk) add(Act::use, of_micro(Thing::saved));
      if (!disk) add(Act::make, of_micro(Thing::away), Place{Memory::own, -1, in_.bytes});
      if (disk) end(of_micro(Thing::host_copy), host, /*writes=*/false);
      add(Act::make, of_micro(disk ? Thing::disk_copy : Thing::host_copy), disk ? on_disk : host);
      return;
    }
    end(of_micro(disk ? Thing::disk_copy : Thing::host_copy), disk ? on_disk : host, /*writes=*/false);
    if (disk) {
      add(Act::make, of_micro(Thing::host_copy), host);
    } else {
      end(of_micro(Thing::away));
      add(Act::make, of_micro(Thing::saved));
      book_.takes_memory = true;
    }
  }

  const Instruction& in_;
  const int64_t shard_;
  Effects book_;
};

}  // namespace

Effects effects(const Instruction& in, int64_t shard) { return Book(in, shard).effects(); }

bool touches_activations(const Instruction& in) { return effects(in).touches_activations; }
bool takes_memory(const Instruction& in) { return effects(in).takes_memory; }

namespace {

/// What a thing is called; % stands for its unit.
constexpr std::string_view kNouns[] = {
    "the parameters of %",
    "the gradient of %",
    "the states of %",
    "the parameters of % between device and disk",
    "the gradient of % between device and disk",
    "the states of % between device and disk",
    "the parameters fetched for %",
    "the summed gradient of %",
    "the states fetched for %",
    "the parameters gathered for %",
    "the whole gradient of %",
    "the receive buffer of %",
    "what % saved",
    "what is quantised of %",
    "the copy of what % saved",
    "the copy on the host of what % saved",
    "the copy on disk of what % saved",
    "the graph of %",
    "what the weight gradients of % need",
    "the output of %",
    "the gradient of the input of %",
    "what it was sent",
    "what it was sent",
    "the memory of what was sent",
    "the result of the micro-batch",
    "the gradient of % in this micro-batch",
    "the reduction of the gradient of % in this micro-batch",
    "the sum of the gradients of %",
    "the sum over replicas of the gradient of %",
    "the share of % in the norm",
    "what the norm decides",
    "the update of %",
    "the updated partition of %",
    "the early update of %",
};
static_assert(std::size(kNouns) == static_cast<size_t>(Thing::early_update) + 1);

}  // namespace

std::string_view name(Memory memory) {
  constexpr std::string_view kNames[] = {"memory of its own", "arena", "host memory", "disk"};
  return kNames[static_cast<size_t>(memory)];
}

std::string describe(Thing thing, const std::string& unit) {
  std::string text(kNouns[static_cast<size_t>(thing)]);
  if (const size_t at = text.find('%'); at != text.npos) text.replace(at, 1, unit);
  return text;
}

Step EffectWalk::run(int index, const Instruction& in, std::span<const int> waits) {
  const Effects all = effects(in, in.unit < 0 ? -1 : shard_bytes_(in.unit));
  Step step{in.lane, all.touches_activations, all.takes_memory, {}};
  step.uses.reserve(static_cast<size_t>(all.count));
  for (Access access : all) {
    ThingKey& key = access.key;
    if (key.thing == Thing::message && key.micro == kWaits) {
      for (const int wait : waits)
        if (key.micro = wait; has(key)) apply(step, index, access);
      continue;
    }
    if (key.thing == Thing::message) key.micro = index;
    if (key.thing == Thing::control && in.op == Op::update && !has(key) && has_gradient(in.unit))
      continue;  // an update in the backward knows its control from the start
    if (key.unit == kLastUnit) {
      const auto last = last_.find({key.thing, key.micro});
      key.unit = last == last_.end() ? -1 : last->second;
    }
    if (access.act == Act::make && (key.thing == Thing::output || key.thing == Thing::output_gradient))
      last_[{key.thing, key.micro}] = key.unit;
    if (key.unit != kEveryUnit) {
      apply(step, index, access);
      continue;
    }
    for (const int unit : units_) {
      key.unit = unit;
      // what left the arena was counted before
      const bool counted = key.thing == Thing::gradients && has({Thing::share, unit});
      if (!counted) apply(step, index, access);
    }
  }
  return step;
}

int EffectWalk::maker(const ThingKey& key) const {
  const auto found = things_.find(key);
  return found == things_.end() ? -1 : found->second.by;
}

int EffectWalk::ender(const ThingKey& key) const {
  const auto found = ended_.find(key);
  return found == ended_.end() ? -1 : found->second;
}

/// A whole gradient that no reduction sums is this rank's share as well: the same bytes under either name.
Presence* EffectWalk::find(const Access& access) {
  if (const auto found = things_.find(access.key); found != things_.end()) return &found->second;
  const bool is_sum = access.key.thing == Thing::sum;
  if ((!is_sum && access.key.thing != Thing::gradient) || access.at < 0 || access.act == Act::make) return nullptr;
  const auto other = things_.find({is_sum ? Thing::gradient : Thing::sum, access.key.unit});
  if (other == things_.end() || other->second.at != access.at) return nullptr;
  auto node = things_.extract(other);
  node.key() = access.key;
  return &things_.insert(std::move(node)).position->second;
}

void EffectWalk::apply(Step& step, int index, const Access& access) {
  Presence* present = find(access);
  if (access.act == Act::lack && !present) return;  // as it should be
  Use& use = step.uses.emplace_back(Use{access, present ? *present : Presence{}});
  const bool makes = access.act == Act::make || access.act == Act::borrow;
  if (present && !makes && use.bytes < 0) use.bytes = present->bytes;
  if (access.act == Act::make || (access.act == Act::change && !present))
    things_[access.key] = {index, access.memory, access.at, access.bytes};
  else if (present && (access.act == Act::use || access.act == Act::change))
    present->used = true;
  if (access.act == Act::make && access.key.thing == Thing::contribution) with_gradient_.insert(access.key.unit);
  if (access.act != Act::end || !present) return;
  things_.erase(access.key);
  ended_[access.key] = index;
}

}  // namespace tessera::plan
