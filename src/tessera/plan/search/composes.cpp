#include "tessera/plan/search/composes.h"

#include <map>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/compile/races.h"
#include "tessera/plan/compile/rules.h"
#include "tessera/plan/compile/run_walk.h"
#include "tessera/plan/search/layouts.h"
#include "tessera/plan/search/scenario.h"

namespace tessera::plan {

namespace {

template <Axis axis>
void two(Plan& plan) {
  plan.mesh[axis] = 2;
}
template <auto member, auto value>
void each(Plan& plan) {
  for (UnitPlan& unit : plan.units) unit.*member = value;
}
template <const Policy& policy>
void inner(Plan& plan) {
  for (size_t u = 1; u + 1 < plan.units.size(); ++u) plan.units[u].activations = policy;
}
void two_level(Plan& plan) {  // over two replicas; with one it would be full_shard
  each<&UnitPlan::strategy, Strategy::two_level>(plan);
  plan.mesh[Axis::dp_replicate] = 2;
}
void offload_to_disk(Plan& plan) {
  inner<Policy::offload>(plan);
  each<&UnitPlan::offload_to, Tier::nvme>(plan);
}
void keep_attention(Plan& plan) {
  inner<Policy::recompute>(plan);
  for (size_t u = 1; u + 1 < plan.units.size(); ++u) plan.units[u].sites["self_attn"] = Policy::keep;
}
template <PipelineSchedule schedule>
void pipeline(Plan& plan) {
  plan.mesh[Axis::pp] = 2;
  plan.pipeline.schedule = schedule;
  plan.pipeline.chunks = schedule == PipelineSchedule::interleaved ? 2 : 1;
}
template <Masters masters>
void with_masters(Plan& plan) {
  plan.states.masters = masters;
  plan.param_dtype = DType::bf16;  // the dtype that these masters are gathered as
}
template <Moments moments>
void with_moments(Plan& plan) {
  plan.states.moments = moments;
}

void gradients_in_bf16(Plan& plan) { plan.grad = DType::bf16; }
template <Update update>
void with_updates(Plan& plan) {
  plan.update = update;
}
void update_on_host(Plan& plan) {
  for (UnitPlan& unit : plan.units) unit.parameters = unit.gradients = unit.states = unit.update_on = Tier::host;
}
template <DType type>
void compute_in(Plan& plan) {
  plan.param_dtype = plan.compute = type;
}
void no_change(Plan&) {}
/// Freezes the base and adds a LoRA pair to each matrix of a block.
template <DType form>
void adapters_on(ModelSpec& model) {
  constexpr int64_t kRank = 4;
  for (UnitSpec& unit : model.units) {
    std::vector<ParamSpec> pairs;
    for (ParamSpec& param : unit.params) {
      param.trainable = false;
      if (unit.kind != "block") continue;
      param.stored = form;
      pairs.push_back({.name = param.name + ".a", .shape = {kRank, param.shape[1]}});
      pairs.push_back({.name = param.name + ".b", .shape = {param.shape[0], kRank}, .split = param.split});
    }
    unit.params.insert(unit.params.end(), pairs.begin(), pairs.end());
  }
}

/// A small network on one rank's share of the mesh, with linears that tp shards.
ModelSpec small_model(const Mesh& mesh) {
  Scenario s;
  s.sizes = {.dim = 64, .ffn_dim = 128, .layers = 6};
  s.tokens = 24;
  s.mesh = mesh;
  ModelSpec model = model_of(s);
  const int64_t row = s.sizes.dim * 4;
  if (sequence_size(mesh) > 1) model.sequence = s.tokens;
  for (UnitSpec& unit : model.units) {
    if (!is_block(unit)) continue;
    Footprint& f = unit.cost;
    f.saved_by_site = {{"self_attn", f.saved / 2}, {"ffn.0", f.saved / 2}};
    f.selective = f;
    f.selective->saved -= f.saved / 4, f.selective->saved_by_site["ffn.0"] -= f.saved / 4;
    f.traffic = {{"sequence", {Axis::sp}, "all_to_all", Rows::own, 3 * row},
                 {"ring", {Axis::cp}, "ring", Rows::keys, 2 * row},
                 {"features", {Axis::tp}, "all_gather", Rows::share, row}};
    f.backward_traffic = f.replays["self_attn"].traffic = f.traffic;
  }
  return model;
}

std::string first_violation(const ModelSpec& model, const Plan& plan) {
  check_sites(model, plan);
  plan.check_updates("plan.");
  std::vector<Line> lines;
  std::string race;
  RunShape run;
  // the second step begins with the first one's deferred updates
  run.steps = plan.update == Update::just_in_time ? 2 : 1;
  for (int rank = 0; rank < plan.mesh.world(); ++rank) {
    const RunSchedules schedules = compile_all(model, plan, rank, 1);
    memory_curve(model, plan, schedules.train, rank);  // runs its internal checks
    each_schedule(run, schedules, [&](int64_t step, const Schedule& schedule) {
      append_lines(lines, schedule, rank, step);
      if (!race.empty()) return;
      if (const auto races = find_races(model, plan, schedule, rank); !races.empty())
        race = to_string(races.front(), schedule);
    });
  }
  const auto violations = check(std::move(lines));
  return violations.empty() ? race : to_string(violations.front());
}

}  // namespace

const std::vector<Feature>& features() {
  static const std::vector<Feature> all = {
      {"axis", "pp", two<Axis::pp>},
      {"axis", "dp_replicate", two<Axis::dp_replicate>},
      {"axis", "dp_shard", two<Axis::dp_shard>},
      {"axis", "cp", two<Axis::cp>},
      {"axis", "sp", two<Axis::sp>},
      {"axis", "tp", two<Axis::tp>},
      {"pipeline", "gpipe", pipeline<PipelineSchedule::gpipe>},
      {"pipeline", "interleaved", pipeline<PipelineSchedule::interleaved>},
      {"pipeline", "zero_bubble", pipeline<PipelineSchedule::zero_bubble>},
      {"strategy", "full_shard", each<&UnitPlan::strategy, Strategy::full_shard>},
      {"strategy", "shard_grad_op", each<&UnitPlan::strategy, Strategy::shard_grad_op>},
      {"strategy", "shard_states", each<&UnitPlan::strategy, Strategy::shard_states>},
      {"strategy", "no_shard", each<&UnitPlan::strategy, Strategy::no_shard>},
      {"strategy", "two_level", two_level},
      {"activations", "rebuild", inner<Policy::rebuild>},
      {"activations", "recompute", inner<Policy::recompute>},
      {"activations", "recompute, attention kept", keep_attention},
      {"activations", "offload", inner<Policy::offload>},
      {"activations", "offload to nvme", offload_to_disk},
      {"parameters", "on host", each<&UnitPlan::parameters, Tier::host>},
      {"parameters", "on nvme", each<&UnitPlan::parameters, Tier::nvme>},
      {"gradients", "on host", each<&UnitPlan::gradients, Tier::host>},
      {"gradients", "on nvme", each<&UnitPlan::gradients, Tier::nvme>},
      {"states", "on host", each<&UnitPlan::states, Tier::host>},
      {"states", "on nvme", each<&UnitPlan::states, Tier::nvme>},
      {"gradients reduced", "once a step", each<&UnitPlan::reduce_once, true>},
      {"gradients kept", "in bf16", gradients_in_bf16},
      {"masters", "split", with_masters<Masters::split>},
      {"masters", "bf16", with_masters<Masters::bf16>},
      {"moments", "int8", with_moments<Moments::int8>},
      {"updates", "just in time", with_updates<Update::just_in_time>},
      {"updates", "in backward", with_updates<Update::in_backward>},
      {"optimiser", "on the host", update_on_host},
      {"compute", "in bf16", compute_in<DType::bf16>},
      {"LoRA", "base in fp32", no_change, adapters_on<DType::f32>},
      {"LoRA", "base in bf16", no_change, adapters_on<DType::bf16>},
      {"LoRA", "base in int8", no_change, adapters_on<DType::i8>},
  };
  return all;
}

std::string clash(const Feature& a, const Feature& b) {
  Plan plan;
  plan.global_batch = 12, plan.micro_batch = 2;  // several micro-batches; on some dp ranks the last one is smaller
  plan.units.resize(8);
  try {
    a.choose(plan), b.choose(plan);
    LayoutBounds bounds{.world = plan.mesh.world(), .node = 0, .heads = 4, .features = 64, .units = 8, .tokens = 24};
    if (const auto found = conflict(plan.mesh, bounds)) return found->found;
    ModelSpec model = small_model(plan.mesh);
    for (const Feature* feature : {&a, &b})
      if (feature->change) feature->change(model);
    plan.check_types("");
    return first_violation(model, plan);
  } catch (const UserError& error) {
    return error.what();
  }
}

std::string composition_page() {
  std::string page = R"(# What composes with what

This page says which pairs of features a plan can combine. `tessera plan --composes > docs/what-composes.md` makes it, and a test
compares the two. For each pair, a plan of a small model with both features (for an axis, two ranks of it) is compiled for all ranks with
several micro-batches, and its schedules are checked against the rules ([plan/compile/rules.h](../src/tessera/plan/compile/rules.h)), as
`plan --check` does. *yes*: the rules hold; **no**: refused, see below; –: both are values of one setting, so a plan has only one of them.

The model bounds the mesh: `sp` x `tp` must divide the heads, `tp` the widths of the linears it splits; `pp` x `plan.chunks` is at most the
number of units, `cp` x `sp` x `tp` at most the tokens of a sample. Tokens, frames, the batch and the units of a stage need not divide. A
run outside these bounds is refused before it starts, with the nearest values that work.

Not in the table: quantised activations ([a-training-step.md](a-training-step.md)) compose as *offload* does; fp16 as bf16 does, except with
bf16 or split masters; an fp8 base as an int8 base does ([precision.md](precision.md), [lora.md](lora.md)).

)";
  const auto& all = features();
  page += "| |";
  for (size_t i = 0; i < all.size(); ++i) page += " " + std::to_string(i + 1) + " |";
  page += "\n|---|";
  for (size_t i = 0; i < all.size(); ++i) page += "---|";
  page += "\n";
  std::string refusals;
  int pairs = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto name = [&](size_t f) { return std::string(all[f].group) + " " + all[f].name; };
    page += "| " + std::to_string(i + 1) + " " + name(i) + " |";
    for (size_t j = 0; j < all.size(); ++j) {
      const bool one_kind = std::string_view(all[i].group) == all[j].group && std::string_view(all[i].group) != "axis";
      if (j >= i) {
        page += j == i ? " |" : "  |";
        continue;
      }
      if (one_kind) {
        page += " – |";
        continue;
      }
      const std::string why = clash(all[i], all[j]);
      ++pairs;
      page += why.empty() ? " yes |" : " **no** |";
      if (!why.empty()) refusals += "- " + name(j) + " with " + name(i) + ": " + why + "\n";
    }
    page += "\n";
  }
  page += "\n" + std::to_string(pairs) + " pairs. " +
          (refusals.empty() ? "All of them compose.\n" : "Refused:\n\n" + refusals);
  return page;
}

}  // namespace tessera::plan
