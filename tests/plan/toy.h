#pragma once
// Small models and plans for the tests of the plan room, and whole runs compiled from them.
#include <random>
#include <string>
#include <vector>

#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/run_walk.h"
#include "tessera/plan/schedule_json.h"

namespace tessera::plan::toy {

inline ModelSpec model(int blocks, int64_t width = 40) {
  ModelSpec spec;
  spec.name = "toy";
  const auto unit = [&](const std::string& name, const std::string& kind, int64_t rows) {
    UnitSpec u;
    u.name = name, u.kind = kind;
    u.params = {{name + ".weight", {rows, width}}, {name + ".bias", {rows}}, {name + ".scale", {3}}};
    u.cost.out = 64 * rows, u.cost.saved = 640 * rows, u.cost.keep_peak = 768 * rows, u.cost.forward_peak = 128 * rows;
    u.cost.recompute_saved = u.cost.saved, u.cost.recompute_peak = 704 * rows, u.cost.backward_peak = 64 * rows;
    u.cost.grad_in = 64 * rows;
    u.cost.saved_by_site = {{"norm", 192 * rows}, {"attn", 320 * rows}, {"ffn", 128 * rows}};
    const auto compact = [](int64_t bytes) {  // floats: half in 16 bits, a quarter and scales in 8
      const Compact::InForm half = {bytes, bytes / 2}, quarter = {bytes, bytes / 4 + 64};
      return Compact{{half, half, quarter, quarter}};
    };
    u.cost.compact_by_site = {{"norm", {}}, {"attn", compact(256 * rows)}, {"ffn", compact(128 * rows)}};
    u.cost.compact_out = compact(64 * rows);
    if (kind == "block") {
      u.cost.compact_results = {{"attn", compact(96 * rows)}, {"cross", compact(48 * rows)}};
      u.cost.results = {{"attn", 128 * rows}, {"cross", 64 * rows}};
      for (const auto& [sites, kept] : {std::pair("attn", 128), {"cross", 64}, {"attn,cross", 192}})
        u.cost.replays[sites] = {(128 + kept) * rows, (640 - kept) * rows, (704 - kept) * rows, 0};
    }
    spec.units.push_back(u);
  };
  unit("stem", "stem", 12);
  for (int b = 0; b < blocks; ++b) unit("blocks." + std::to_string(b), "block", 64);
  unit("head", "head", 7);
  return spec;
}

inline std::vector<std::string> names(const ModelSpec& spec) {
  std::vector<std::string> result;
  for (const auto& unit : spec.units) result.push_back(unit.name);
  return result;
}

inline Plan plan(const ModelSpec& spec, const std::string& mesh, int64_t global_batch, int64_t micro_batch,
                 int prefetch) {
  Plan p;
  p.mesh = Mesh::parse(mesh);
  p.global_batch = global_batch, p.micro_batch = micro_batch, p.prefetch = prefetch;
  p.units.resize(spec.units.size());
  return p;
}

/// Every instruction of a run on all ranks: steps of training, a sample of `passes` passes and a checkpoint after the
/// last.
inline std::vector<Line> run(const ModelSpec& spec, const Plan& plan, int64_t steps = 1, int passes = 0) {
  std::vector<Line> lines;
  RunShape shape;
  shape.steps = steps;
  shape.sample_every = passes > 0 ? steps : 0;
  shape.sample_prompts = 1, shape.sample_steps = passes;
  for (int rank = 0; rank < plan.mesh.world(); ++rank) {
    const RunSchedules schedules = compile_all(spec, plan, rank, 2);
    each_schedule(shape, schedules, [&](int64_t step, const Schedule& s) { append_lines(lines, s, rank, step); });
  }
  return lines;
}

using Random = std::mt19937_64;
inline int draw(Random& random, int least, int most) { return least + static_cast<int>(random() % (most - least + 1)); }

inline ModelSpec random_model(Random& random) {
  ModelSpec spec = model(draw(random, 0, 6), draw(random, 1, 90));
  for (auto& unit : spec.units) {
    unit.params.resize(draw(random, 1, 3));
    for (auto& param : unit.params)
      for (int64_t& n : param.shape) n = draw(random, 1, 2 * static_cast<int>(n));
  }
  return spec;
}

/// Any of them; those that are exact more often.
inline Policy random_policy(Random& random) {
  const auto last = static_cast<int>(named_policies().size()) - 1;
  return named_policies()[draw(random, 0, 3) ? draw(random, 0, 3) : draw(random, 0, last)].policy;
}

inline Plan random_plan(Random& random, const ModelSpec& spec, int most_ranks_an_axis = 4) {
  const std::string mesh = "dp_replicate=" + std::to_string(draw(random, 1, most_ranks_an_axis)) +
                           ",dp_shard=" + std::to_string(draw(random, 1, most_ranks_an_axis));
  Plan p = plan(spec, mesh, draw(random, 1, 20), draw(random, 1, 3), draw(random, 0, 3));
  p.update = static_cast<Update>(draw(random, 0, 2));
  for (auto& unit : p.units) {
    unit.activations = random_policy(random);
    unit.strategy = draw(random, 0, 1) ? Strategy::full_shard : static_cast<Strategy>(draw(random, 1, kStrategies - 1));
    unit.reduce_once = draw(random, 0, 2) == 0;
    for (Tier* tier : {&unit.parameters, &unit.gradients, &unit.states})
      *tier = draw(random, 0, 1) ? Tier::device : static_cast<Tier>(draw(random, 1, 2));
    if (draw(random, 0, 4) == 0) unit.parameters = unit.gradients = unit.states = unit.update_on = Tier::host;
    if (draw(random, 0, 2) == 0) unit.offload_to = Tier::nvme;
    for (const char* site : {"boundary", "attn", "cross", "norm"}) {
      if (draw(random, 0, 3)) continue;
      const Policy policy = random_policy(random);
      const bool of_unit = policy == Policy::rebuild || (policy == Policy::recompute && unit.activations != policy);
      if (!of_unit) unit.sites[site] = policy;
    }
  }
  return p;
}

/// With inputs, targets and conditioning: what messages between stages carry.
inline ModelSpec conditioned(ModelSpec spec) {
  spec.inputs = 4096, spec.tables = 1024, spec.targets = 2048, spec.loss_grad = 448;
  spec.conditioning = {192, 640, 64};
  spec.units.front().cost.cond = 896;
  for (size_t u = 1; u < spec.units.size(); ++u)
    spec.units[u].cost.grad_cond =
        u + 1 < spec.units.size() ? std::vector<int64_t>{0, 640, 64} : std::vector<int64_t>{192, 0, 0};
  return spec;
}

inline constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                                  PipelineSchedule::interleaved, PipelineSchedule::zero_bubble};

/// A random plan over 2 to 4 stages, with all that a plan may do inside a stage.
inline Plan random_pipeline(Random& random, const ModelSpec& spec) {
  Plan plan = random_plan(random, spec, 2);
  const int units = static_cast<int>(spec.units.size());
  plan.mesh[Axis::pp] = draw(random, 2, std::min(4, units));
  plan.pipeline.schedule = kSchedules[draw(random, 0, 3)];
  if (plan.pipeline.schedule == PipelineSchedule::interleaved)
    plan.pipeline.chunks = draw(random, 1, std::min(3, units / plan.mesh[Axis::pp]));
  if (draw(random, 0, 1)) {
    std::vector<double> cost;
    for (int u = 0; u < units; ++u) cost.push_back(draw(random, 1, 9));
    plan.pipeline.first = balanced_stages(cost, plan.stages());
  }
  return plan;
}

}  // namespace tessera::plan::toy
