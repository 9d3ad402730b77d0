#pragma once
// Chooses strategy, tiers, what happens to activations, and the prefetch depth under the budgets of device and host, by
// predicted memory and time. Values set by hand are respected.
//
// [Note: the search] Memory falls with the number of blocks that save less, so for each choice of tiers, strategy and
// way of saving less the fewest such blocks that fit are found by halving; the simulator says which of these plans is
// the fastest. Where it does not fit that all blocks make norms and sums again (rebuild, which costs little), those
// that need save no less do that instead of keeping all. What memory is left over is then spent on it: attention that
// need not run again, parameters that stay gathered, graphs that hold all again, another prefetch depth, each kept only
// where the simulator finds it faster; units that send activations away take turns with those that do not, so that
// copies have the time of both. Updates at other times or places take other memory: in backward where that may be, just
// in time and on the host where what they use may rest there, each is searched as a whole.
//
//   Choice choice = choose(spec, mesh, batch, {.budget = 24 << 30});
//   if (!choice.fits) ... choice.advice ...
#include <optional>
#include <string>

#include "tessera/plan/memory.h"
#include "tessera/plan/predict.h"

namespace tessera::plan {

/// Neither stem nor head: units that may save less for their backward.
bool may_save_less(const UnitSpec& unit);

struct PlannerInput {
  int64_t global_batch = 1;
  int64_t micro_batch = 1;
  int64_t budget = 0;                        ///< device bytes a rank; 0: unlimited
  int64_t host_budget = 0;                   ///< host bytes a rank; 0: nothing may leave the device
  bool nvme = false;                         ///< there is a disk to use
  bool first_that_fits = false;              ///< a fair plan soon instead of the best: to compare many layouts
  std::optional<int> prefetch;               ///< set by hand
  std::optional<Update> update;              ///< set by hand: when the optimiser runs
  bool may_update_in_backward = false;       ///< nothing clips gradients, scales the loss or skips a step
  std::optional<Tier> update_on;             ///< set by hand: who computes updates; host: states and all rest there
  int update_threads = 0;                    ///< see Plan
  std::optional<int> recompute_units;        ///< set by hand: how many blocks recompute (from the first on); others
                                             ///< keep, or rebuild where that does not fit
  std::optional<Strategy> strategy;          ///< set by hand
  std::optional<PipelineSchedule> pipeline;  ///< set by hand
  std::optional<int> chunks;                 ///< set by hand: stages a rank has when interleaved
  std::optional<Policy> activations;         ///< set by hand: keep, or how blocks save less
  std::optional<Policy> boundary;            ///< set by hand: what recomputed blocks do with their inputs
  std::optional<Tier> parameters, gradients, states_tier;  ///< set by hand
  std::optional<Tier> offload_to;                          ///< set by hand: of activations that leave the device
  int experts = 1;                                         ///< see Plan
  Tier idle = Tier::device;                                ///< likewise
  StateFormat states = {};
  ParamType param_dtype = ParamType::fp32, compute = ParamType::fp32, reduce = ParamType::fp32, grad = ParamType::fp32;
};

struct Candidate {
  Plan plan;
  bool fits = false;
  int64_t peak = 0;
  int64_t host = 0;    ///< bytes on the host, of the rank with the most
  double seconds = 0;  ///< of a step, simulated
  std::string why;
};

struct Choice {
  bool fits = false;
  Plan plan;
  double seconds = 0;  ///< of a step of it, simulated
  MemoryCurve memory;  ///< of the rank with the highest peak
  std::vector<Candidate> candidates;
  std::string why;      ///< why the winner won
  std::string advice;   ///< what to change when nothing fits
  std::string warning;  ///< what is to be known of it, by who asked for it: a choice by hand costs time (both times)
};

Choice choose(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, const Machine& machine = {});

/// Whether any of what the planner would choose is set by hand.
bool set_by_hand(const PlannerInput& input);

/// When the planner, free of what was set by hand, finds a plan that fits and is faster than `seconds`: a sentence with
/// both times, else empty. A search of its own.
std::string slower_by_hand(const ModelSpec& model, const Mesh& mesh, PlannerInput input, const Machine& machine,
                           double seconds);

}  // namespace tessera::plan
