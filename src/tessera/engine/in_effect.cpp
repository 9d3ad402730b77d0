#include "tessera/engine/in_effect.h"

#include <algorithm>
#include <map>
#include <set>

namespace tessera::engine {

namespace {

constexpr double kHidden = 0.05;  // of an instruction's own time

InEffect::Hidden* kind_of(InEffect& did, plan::Op op) {
  switch (op) {
    case plan::Op::gather:
    case plan::Op::gather_outer:
      return &did.gathers;
    case plan::Op::reduce:
    case plan::Op::reduce_outer:
      return &did.reductions;
    case plan::Op::fetch:
      return &did.fetches;
    case plan::Op::stash:
      return &did.stashes;
    case plan::Op::send:
    case plan::Op::recv:
      return &did.messages;
    default:
      return nullptr;
  }
}

/// See InEffect::pending.
int most_pending(const std::vector<plan::Instruction>& list, const std::vector<std::array<double, 2>>& times) {
  std::map<int, double> complete;  // by unit: when its gradient was
  std::vector<std::pair<double, int>> changes;
  for (size_t i = 0; i < list.size(); ++i) {
    const plan::Instruction& in = list[i];
    if (in.op == plan::Op::backward || in.op == plan::Op::weight_grad || in.op == plan::Op::reduce ||
        in.op == plan::Op::reduce_outer)
      complete[in.unit] = times[i][1];
    if (in.op != plan::Op::update) continue;
    const auto found = complete.find(in.unit);
    changes.emplace_back(found == complete.end() ? times.front()[0] : found->second, 1);
    changes.emplace_back(times[i][1], -1);
  }
  std::ranges::sort(changes);
  int now = 0, most = 0;
  for (const auto& [when, change] : changes) most = std::max(most, now += change);
  return most;
}

}  // namespace

InEffect in_effect(const std::vector<plan::Instruction>& list, const std::vector<std::array<double, 2>>& times,
                   const std::vector<double>& waited, const std::vector<bool>& blocks) {
  InEffect did;
  std::set<int> computed, recomputed, offloaded, compressed;
  bool backwards = false, norm = false;
  for (size_t i = 0; i < list.size(); ++i) {
    const plan::Instruction& in = list[i];
    if (InEffect::Hidden* kind = kind_of(did, in.op)) {
      ++kind->all;
      kind->hidden += waited[i] <= kHidden * (times[i][1] - times[i][0]);
    }
    if (in.op == plan::Op::forward) computed.insert(in.unit);
    if (in.op == plan::Op::backward) backwards = true;
    if (in.op == plan::Op::recompute) recomputed.insert(in.unit);
    if (in.op == plan::Op::stash && in.part == plan::Part::activations) offloaded.insert(in.unit);
    if (in.op == plan::Op::compress) compressed.insert(in.unit);
    if (in.op == plan::Op::norm && in.unit < 0) norm = true;
    if (in.op != plan::Op::update) continue;
    did.host_updates += in.lane == plan::Lane::host;
    if (!norm) ++(backwards ? did.early_updates : did.late_updates);
  }
  const auto count = [&](const std::set<int>& units) {
    return static_cast<int>(std::ranges::count_if(units, [&](int u) { return blocks[static_cast<size_t>(u)]; }));
  };
  did.pending = most_pending(list, times);
  did.blocks = count(computed), did.recomputed = count(recomputed);
  did.offloaded = count(offloaded), did.compressed = count(compressed);
  return did;
}

std::string InEffect::text() const {
  std::string text;
  const auto add = [&](int n, const std::string& words) {
    if (n > 0) text += (text.empty() ? "" : "; ") + words;
  };
  const auto of = [](int n, int all) { return std::to_string(n) + " of " + std::to_string(all); };
  add(recomputed, "recomputed " + of(recomputed, blocks) + " blocks");
  add(offloaded, "offloaded activations of " + of(offloaded, blocks) + " blocks");
  add(compressed, "compressed activations of " + of(compressed, blocks) + " blocks");
  const std::pair<const char*, Hidden> kinds[] = {{"gathers", gathers},
                                                  {"reductions", reductions},
                                                  {"fetches", fetches},
                                                  {"stashes", stashes},
                                                  {"messages", messages}};
  for (const auto& [name, kind] : kinds) add(kind.all, of(kind.hidden, kind.all) + " " + name + " hidden");
  add(late_updates, std::to_string(late_updates) + " updates of the step before just in time");
  add(early_updates, std::to_string(early_updates) + " updates in the backward");
  add(host_updates, std::to_string(host_updates) + " updates on the host");
  if (late_updates + early_updates + host_updates > 0)  // else all are, at the end
    add(pending, std::to_string(pending) + " updates pending at most");
  if (text.empty()) text = "kept all activations, moved nothing";
  return text + (attention.empty() ? "" : "; attention by " + attention);
}

}  // namespace tessera::engine
