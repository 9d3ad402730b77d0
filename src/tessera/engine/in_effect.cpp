#include "tessera/engine/in_effect.h"

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

}  // namespace

InEffect in_effect(const std::vector<plan::Instruction>& list, const std::vector<std::array<double, 2>>& times,
                   const std::vector<double>& waited) {
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
  const auto count = [](const std::set<int>& units) { return static_cast<int>(units.size()); };
  did.units = count(computed), did.recomputed = count(recomputed);
  did.offloaded = count(offloaded), did.compressed = count(compressed);
  return did;
}

std::string InEffect::text() const {
  std::string text;
  const auto add = [&](int n, const std::string& words) {
    if (n > 0) text += (text.empty() ? "" : "; ") + words;
  };
  const auto of = [](int n, int all) { return std::to_string(n) + " of " + std::to_string(all); };
  add(recomputed, "recomputed " + of(recomputed, units) + " units");
  add(offloaded, "offloaded activations of " + of(offloaded, units) + " units");
  add(compressed, "compressed activations of " + of(compressed, units) + " units");
  const std::pair<const char*, Hidden> kinds[] = {{"gathers", gathers},
                                                  {"reductions", reductions},
                                                  {"fetches", fetches},
                                                  {"stashes", stashes},
                                                  {"messages", messages}};
  for (const auto& [name, kind] : kinds) add(kind.all, of(kind.hidden, kind.all) + " " + name + " hidden");
  add(late_updates, std::to_string(late_updates) + " updates of the step before just in time");
  add(early_updates, std::to_string(early_updates) + " updates in the backward");
  add(host_updates, std::to_string(host_updates) + " updates on the host");
  return text.empty() ? "kept all activations, moved nothing" : text;
}

}  // namespace tessera::engine
