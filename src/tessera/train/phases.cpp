#include "tessera/train/phases.h"

#include <algorithm>
#include <set>

#include "tessera/base/check.h"

namespace tessera::train {

namespace {

constexpr const char* kPhases = "phases";  // a field of Manifest::extra

/// What is wrong with the order, or nothing.
std::string fault_of(const PhaseOrder& order, size_t networks) {
  if (order.cycle.empty()) return "has no step";
  std::set<size_t> named;
  for (const std::vector<size_t>& step : order.cycle) {
    if (step.empty()) return "has a step that trains nothing";
    for (const size_t network : step)
      if (network >= networks) return "trains network " + std::to_string(network) + " of " + std::to_string(networks);
    named.insert(step.begin(), step.end());
  }
  return named.size() == networks
             ? ""
             : "trains " + std::to_string(named.size()) + " of " + std::to_string(networks) + " networks";
}

}  // namespace

PhaseOrder in_turn(size_t networks) {
  PhaseOrder order;
  for (size_t n = 0; n < networks; ++n) order.cycle.push_back({n});
  order.repeats = true;
  return order;
}

PhaseOrder every(int64_t steps) {
  PhaseOrder order;
  order.cycle.assign(static_cast<size_t>(std::max<int64_t>(1, steps)), {1});
  order.cycle[0] = {0, 1};
  return order;
}

Phases::Phases(std::vector<TrainedNetwork> networks, PhaseOrder order)
    : networks_(std::move(networks)), order_(std::move(order)), counts_(networks_.size()) {
  const std::string fault = fault_of(order_, networks_.size());
  if (!fault.empty())
    throw UserError(Exit::usage, "train.phases", "the order of phases " + fault,
                    "let every network of the run have a step of the cycle");
}

bool Phases::trains(size_t network) const { return std::ranges::find(now(), network) != now().end(); }

double Phases::rate(size_t network) const {
  return recipe::learning_rate(networks_.at(network).rate, counts_[network].turns);
}

void Phases::took(size_t network, bool updated) {
  check_internal(trains(network), "train.phases", networks_.at(network).name + " has no turn in this step");
  Counts& counts = counts_[network];
  if (!updated) skipped_ = true;
  if (!updated && order_.repeats) return;  // it is this turn's again
  ++counts.turns;
  counts.updates += updated;
}

void Phases::end_step() {
  if (!skipped_ || !order_.repeats) place_ = (place_ + 1) % order_.cycle.size();
  skipped_ = false;
}

std::string Phases::describe() const {
  std::string text;
  int64_t all = 0;
  for (size_t n = 0; n < size(); ++n) {
    text += (n == 0 ? "" : " and ") + networks_[n].name + " " + std::to_string(counts_[n].turns);
    all += counts_[n].turns;
  }
  return text + " of " + std::to_string(all) + " turns";
}

void Phases::write(checkpoint::Manifest& manifest) const {
  checkpoint::Json networks = checkpoint::Json::object();
  for (size_t n = 0; n < size(); ++n)
    networks[networks_[n].name] = {{"turns", counts_[n].turns}, {"updates", counts_[n].updates}};
  manifest.extra[kPhases] = {{"place", place_}, {"networks", std::move(networks)}};
}

void Phases::resume(const checkpoint::Manifest& manifest) {
  const auto saved = manifest.extra.find(kPhases);
  check_input(
      saved != manifest.extra.end(), "run.resume",
      "the checkpoint of step " + std::to_string(manifest.step) + " does not say which network has the next step",
      "it is of a run with one trained network: resume with that recipe, or use another run.out");
  const checkpoint::Json& networks = saved->at("networks");
  place_ = saved->value("place", size_t{0});
  check_input(networks.size() == size() && place_ < order_.cycle.size(), "run.resume",
              "the checkpoint has phases of " + std::to_string(networks.size()) + " networks at step " +
                  std::to_string(place_ + 1) + " of their cycle, the run has " + std::to_string(size()) +
                  " networks and a cycle of " + std::to_string(order_.cycle.size()),
              "resume with the recipe that it was saved by, or use another run.out");
  for (size_t n = 0; n < size(); ++n) {
    const auto found = networks.find(networks_[n].name);
    check_input(found != networks.end(), "run.resume",
                "the checkpoint has no network '" + networks_[n].name + "', which the run trains",
                "resume with the recipe that it was saved by, or use another run.out");
    counts_[n] = {found->value("turns", int64_t{0}), found->value("updates", int64_t{0})};
  }
  skipped_ = false;
}

}  // namespace tessera::train
