#pragma once
// A model and a machine for tests of the planner: small numbers with the proportions of large ones.
#include "plan/toy.h"
#include "tessera/plan/search/planner.h"

namespace tessera::plan::toy {

inline PlannerInput input(int64_t budget, int64_t host = 0) {
  PlannerInput in;
  in.global_batch = 2, in.micro_batch = 1;
  in.budget = budget, in.host_budget = host;
  return in;
}

/// Blocks whose forward is dear and whose attention is half of it, on a machine where time is what was computed.
/// `more`: times the activations of toy::model, which are then what fills the device.
inline ModelSpec dear_model(int blocks = 6, int64_t more = 50) {
  ModelSpec spec = model(blocks, 400);
  for (auto& unit : spec.units) {
    Footprint& f = unit.cost;
    f.forward_flops = 1e12, f.backward_flops = 2e12;
    for (int64_t* bytes : {&f.out, &f.saved, &f.keep_peak, &f.forward_peak, &f.recompute_saved, &f.recompute_peak,
                           &f.backward_peak, &f.grad_in})
      *bytes *= more;
    for (auto* list : {&f.saved_by_site, &f.results})
      for (auto& [site, bytes] : *list) bytes *= more;
    for (auto& [sites, replay] : f.replays) {
      replay.forward_flops = 5e11;
      for (int64_t* bytes : {&replay.forward_peak, &replay.recompute_saved, &replay.recompute_peak}) *bytes *= more;
    }
  }
  return spec;
}

inline Machine machine() {
  Machine m;
  m.profile = find_profile("1xh200");
  m.work["block"].attention = {{"attn", 4e11}, {"cross", 1e11}};
  m.work["block"].add_product(5e11, true);
  return m;
}

inline const Mesh kTwo = Mesh::parse("dp_shard=2");

}  // namespace tessera::plan::toy
