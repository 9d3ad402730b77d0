#include "tessera/engine/store/shared_weights.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/comm/environment.h"
#include "tessera/plan/shared_weights.h"

namespace tessera::engine {

SharedWeights::SharedWeights(const plan::ModelSpec& model, const plan::Plan& plan, comm::Comm& comm, int rank)
    : rank_(rank), units_(model.units.size()) {
  if (plan.local_world == 1) return;
  std::vector<int> machine(static_cast<size_t>(plan.local_world));
  std::iota(machine.begin(), machine.end(), rank / plan.local_world * plan.local_world);
  std::erase_if(machine, [&](int other) { return other >= plan.mesh.world(); });
  bool any = false;
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    const plan::UnitLayout layout = plan.layout(model.units[static_cast<size_t>(u)], u);
    for (const int other : machine) any |= !plan::weight_sharers(plan, layout, u, other).empty();
    units_[static_cast<size_t>(u)] = {plan::weight_sharers(plan, layout, u, rank),
                                      plan::trained_shard_bytes(layout, plan.states.masters),
                                      plan::frozen_bytes(layout)};
  }
  if (!any) return;
  group_ = &comm.group_of("control", "machine", machine);
  const Files open = make(plan.shared_base ? 1 : plan.experts);
  agree();  // and so all have mapped what is open here
  for (const auto& [at, memory] : memory_) {
    const Unit& unit = units_[static_cast<size_t>(at.first)];
    counted_ += unit.own + plan::counted_share(unit.frozen, unit.sharers, at.first, rank);
    if (!fills(at.first)) memory->allow_writes(false);
  }
}

HostMemory* SharedWeights::memory(int unit, int expert) const {
  const auto found = memory_.find({unit, expert});
  return found == memory_.end() ? nullptr : found->second.get();
}

bool SharedWeights::fills(int unit) const {
  const std::vector<int>& all = sharers(unit);
  return all.empty() || plan::weight_filler(all, unit) == rank_;
}

namespace {

bool turned_off() { return comm::env::text("TESSERA_SHARED_MEMORY") == "0"; }

std::string reason(SharedWeights::Refusal refusal, int rank) {
  const std::string who = "rank " + std::to_string(rank);
  if (refusal == SharedWeights::Refusal::turned_off) return "TESSERA_SHARED_MEMORY is 0";
  if (refusal == SharedWeights::Refusal::no_room) return who + " finds no room for them";
  return who + " cannot open the memory of another rank (is it in a container of its own?)";
}

}  // namespace

/// Who fills a unit makes its files and takes their pages; the others open them where it says they are.
SharedWeights::Files SharedWeights::make(int experts) {
  constexpr size_t kAddress = 3;  // numbers
  Files open;
  const auto each = [&](bool filled_here, const auto& act) {
    for (int u = 0; u < static_cast<int>(units_.size()); ++u)
      for (int e = 0; e < experts && !sharers(u).empty(); ++e)
        if (fills(u) == filled_here) act(u, e, (static_cast<size_t>(u) * experts + e) * kAddress);
  };
  const auto map = [&](int u, int e, std::unique_ptr<comm::SharedFile> file, Refusal otherwise) {
    Unit& unit = units_[static_cast<size_t>(u)];
    auto memory = std::make_unique<HostMemory>();
    try {
      if (file) memory->reserve(unit.own, *file);
    } catch (const UserError&) {  // too little memory
      file = nullptr, otherwise = Refusal::no_room;
    }
    if (!file) {
      unit.refusal = turned_off() ? Refusal::turned_off : otherwise;
      return;
    }
    memory_[{u, e}] = std::move(memory);
    open.push_back(std::move(file));
  };
  std::vector<double> addresses(units_.size() * static_cast<size_t>(experts) * kAddress, -1);
  each(/*filled_here=*/true, [&](int u, int e, size_t at) {
    map(u, e, turned_off() ? nullptr : comm::SharedFile::create("weights", units_[static_cast<size_t>(u)].frozen),
        Refusal::no_room);
    if (!memory(u, e)) return;
    const comm::SharedFile::Address address = open.back()->address();
    addresses[at] = static_cast<double>(address.process);
    addresses[at + 1] = static_cast<double>(address.descriptor);
    addresses[at + 2] = static_cast<double>(address.token);
  });
  const auto rows = group_->all_gather_doubles(addresses);
  each(/*filled_here=*/false, [&](int u, int e, size_t at) {
    const int filler = plan::weight_filler(sharers(u), u);
    const auto number = [&](size_t i) {
      return static_cast<int64_t>(rows[static_cast<size_t>(filler - group_->members().front())][at + i]);
    };
    if (number(0) < 0) return;  // who fills it says why
    auto file = turned_off()
                    ? nullptr
                    : comm::SharedFile::open({number(0), number(1), number(2)}, units_[static_cast<size_t>(u)].frozen);
    map(u, e, std::move(file), Refusal::unreachable);
  });
  return open;
}

/// Forgets what one of its ranks cannot share, and says what is shared or why not.
void SharedWeights::agree() {
  std::vector<double> refusals;
  for (const Unit& unit : units_) refusals.push_back(static_cast<double>(unit.refusal));
  const auto rows = group_->all_gather_doubles(refusals);  // by rank of the machine
  const int first = group_->members().front();
  const auto refusal = [&](int rank, size_t unit) {
    return static_cast<Refusal>(rows[static_cast<size_t>(rank - first)][unit]);
  };
  std::string why;
  int64_t shared = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    for (const int rank : group_->members())
      if (why.empty() && refusal(rank, u) != Refusal::none) why = reason(refusal(rank, u), rank);
    Unit& unit = units_[u];
    if (std::ranges::any_of(unit.sharers, [&](int rank) { return refusal(rank, u) != Refusal::none; })) {
      std::erase_if(memory_, [&](const auto& held) { return held.first.first == static_cast<int>(u); });
      unit.sharers.clear();
    }
    for (int e = 0; memory(static_cast<int>(u), e); ++e) shared += unit.frozen;
  }
  if (shared > 0)
    log::info(format_bytes(shared) + " of frozen weights on the host are shared by ranks of this machine");
  if (!why.empty() && rank_ == first)
    log::warn("frozen weights on the host are not shared by ranks " + std::to_string(first) + " to " +
              std::to_string(group_->members().back()) + ", which the plan counts on: " + why +
              "; each rank keeps its own");
}

void SharedWeights::begin_fill() {
  if (!group_ || filling_) return;
  group_->barrier();
  for (const auto& [at, memory] : memory_)
    if (fills(at.first)) memory->allow_writes(true);
  filling_ = true;
}

void SharedWeights::end_fill() {
  if (!group_ || !filling_) return;
  group_->barrier();
  for (const auto& [at, memory] : memory_) memory->allow_writes(false);
  filling_ = false;
}

}  // namespace tessera::engine
