#include "tessera/plan/plan_rows.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tessera/plan/optimizers.h"
#include "tessera/plan/toml_value.h"

namespace tessera::plan {

namespace {

bool several_experts(const Plan& plan) { return plan.experts > 1; }

bool shares_host(const Plan& plan) {
  const auto on_host = [](const UnitPlan& unit) { return unit.parameters == Tier::host; };
  return plan.local_world > 1 && std::ranges::any_of(plan.units, on_host);
}

constexpr Row<Plan> with_idle(Row<Plan> row, std::string_view (*idle)(const Plan&)) {
  row.idle = idle;
  return row;
}

/// Written as the dtype that is gathered, because that is what a file may state beside masters.
constexpr Row<Plan> kParamDtype = {
    "param_dtype", [](Plan& plan, const TomlValue& value) { read_enum(plan.param_dtype, value.text(), value.where()); },
    [](const Plan& plan) { return in_quotes(name(plan.gathered())); }, always};

constexpr Row<Plan> kComputeDtype = {
    "compute_dtype", [](Plan& plan, const TomlValue& value) { plan.set_compute(value.text(), value.where()); },
    [](const Plan& plan) { return in_quotes(plan.compute_name()); }, always};

constexpr Row<Plan> kGather = {
    "gather",
    [](Plan& plan, const TomlValue& value) {
      constexpr std::array kForms = {DType::bf16, DType::f8_e4m3};
      plan.gather_fp8 = dtype_of(value.text(), value.where(), kForms) == DType::f8_e4m3;
    },
    [](const Plan& plan) { return in_quotes(plan.gather_fp8 ? "fp8" : "bf16"); },
    [](const Plan& plan) { return plan.gather_fp8; },
    [](const Plan& plan) -> std::string_view { return plan.fp8 ? "" : "no product is in 8 bits"; }};

constexpr Row<Plan> kEma = {"ema", [](Plan& plan, const TomlValue& value) { plan.states.ema = value.boolean(); },
                            [](const Plan& plan) { return std::string(plan.states.ema ? "true" : "false"); },
                            [](const Plan& plan) { return plan.states.ema; }};

constexpr Row<Plan> kSharedBase = {
    "shared_base", [](Plan& plan, const TomlValue& value) { plan.shared_base = value.boolean(); },
    [](const Plan& plan) { return std::string(plan.shared_base ? "true" : "false"); },
    [](const Plan& plan) { return plan.shared_base; },
    [](const Plan& plan) -> std::string_view { return several_experts(plan) ? "" : "the run has one denoiser"; }};

constexpr Row<Plan> kFirstMoment = {
    "first_moment", [](Plan& plan, const TomlValue& value) { plan.states.first_moment = value.boolean(); },
    [](const Plan& plan) { return std::string(plan.states.first_moment ? "true" : "false"); },
    [](const Plan& plan) { return plan.states.first_moment; },
    [](const Plan& plan) -> std::string_view {
      return row(plan.states.optimizer).first_if_asked ? "" : "the optimizer decides it";
    }};

bool of_matrices(const Plan& plan) { return row(plan.states.optimizer).whole; }
std::string_view no_matrices(const Plan& plan) {
  return of_matrices(plan) ? "" : "the optimizer updates no whole matrices";
}

constexpr Row<Plan> kMatrixDtype = {"matrix_dtype",
                                    [](Plan& plan, const TomlValue& value) {
                                      read_enum(plan.states.matrices, value.text(), value.where());
                                      if (plan.states.matrices != DType::f32 && plan.states.matrices != DType::bf16)
                                        value.fail("matrices are iterated in fp32 or bf16", "write \"bf16\"");
                                    },
                                    [](const Plan& plan) { return in_quotes(name(plan.states.matrices)); }, of_matrices,
                                    no_matrices};

constexpr Row<Plan> kIterations = {
    "matrix_iterations", [](Plan& plan, const TomlValue& value) { plan.states.iterations = value.integer(1); },
    [](const Plan& plan) { return std::to_string(plan.states.iterations); }, of_matrices, no_matrices};

constexpr Row<Plan> kRows[] = {
    count<Plan, 1, &Plan::global_batch>("global_batch", always),
    count<Plan, 1, &Plan::micro_batch>("micro_batch", always),
    count<Plan, 0, &Plan::prefetch>("prefetch", always),
    enum_row<Plan, &Plan::update>("update", always),
    enum_row<Plan, &Plan::states, &StateFormat::masters>("masters", always),
    enum_row<Plan, &Plan::states, &StateFormat::moments>("moments", always),
    enum_row<Plan, &Plan::states, &StateFormat::optimizer>("optimizer"),
    kEma,
    kFirstMoment,
    kMatrixDtype,
    kIterations,
    kParamDtype,
    kComputeDtype,
    kGather,
    enum_row<Plan, &Plan::attention>("attention"),
    enum_row<Plan, &Plan::reduce>("reduce_dtype", always),
    enum_row<Plan, &Plan::grad>("grad_dtype"),
    with_idle(count<Plan, 0, &Plan::update_threads>("update_threads"),
              [](const Plan& plan) -> std::string_view {
                const auto on_host = [](const UnitPlan& unit) { return unit.update_on == Tier::host; };
                return std::ranges::any_of(plan.units, on_host) ? "" : "no unit has update_on = \"host\"";
              }),
    count<Plan, 1, &Plan::local_world>("local_world", shares_host),
    count<Plan, 1, &Plan::experts>("experts"),
    count<Plan, 0, &Plan::teachers>("teachers"),
    kSharedBase,
    with_idle(
        count<Plan, 1, &Plan::together>("together"),
        [](const Plan& plan) -> std::string_view { return several_experts(plan) ? "" : "the run has one denoiser"; }),
    with_idle(
        enum_row<Plan, &Plan::idle>("idle", several_experts),
        [](const Plan& plan) -> std::string_view { return several_experts(plan) ? "" : "the run has one denoiser"; }),
    enum_row<Plan, &Plan::teacher>("teacher"),
};

}  // namespace

std::span<const Row<Plan>> plan_rows() { return kRows; }

// The keys of a [[units]] table.

namespace {

void read_offload_to(UnitPlan& unit, const TomlValue& value) {
  unit.offload_to = tier_of(value.text(), value.where());
  if (unit.offload_to == Tier::device)
    value.fail("found 'device'",
               "expected \"host\" or \"nvme\"; to keep activations on the device set activations = \"keep\"");
}

void read_reduce(UnitPlan& unit, const TomlValue& value) {
  const std::string reduce = value.text();
  if (reduce != "each" && reduce != "once")
    value.fail("found '" + reduce + "'", "expected \"each\" (micro-batch) or \"once\" (a step)");
  unit.reduce_once = reduce == "once";
}

void read_reshard(UnitPlan& unit, const TomlValue& value) {
  const auto reshard = value.node().value_exact<bool>();
  if (!reshard) value.fail("not true or false", "true is full_shard, false shard_grad_op");
  const Strategy meant = *reshard ? Strategy::full_shard : Strategy::shard_grad_op;
  if (value.beside("strategy") && unit.strategy != meant)
    value.fail("contradicts strategy = " + in_quotes(name(unit.strategy)), "keep one of the two keys");
  unit.strategy = meant;
}

void read_site(UnitPlan& unit, const std::string& site, const TomlValue& value) {
  if (const toml::table* inner = value.node().as_table(); inner && !inner->empty())
    value.fail("a table", "a name with a dot is written in quotes: { \"" + site + "." +
                              std::string(inner->begin()->first.str()) + "\" = \"keep\" }");
  const auto word = value.node().value_exact<std::string>();
  if (!word) value.fail("not a string", "write \"keep\", \"offload\", \"int8\" ...");
  const Policy policy = policy_of(*word, value.where());
  if (policy == Policy::recompute && !unit.recomputes())
    value.fail("recompute is for a whole unit", "set activations = \"recompute\" and name the sites to keep");
  if (policy == Policy::rebuild)
    value.fail("rebuild is for a whole unit",
               "set activations = \"rebuild\"; sites name what is done with what it keeps");
  unit.sites[site] = policy;
}

void read_sites(UnitPlan& unit, const TomlValue& value) {
  const toml::table& sites = value.table("write sites = { self_attn = \"keep\" }");
  unit.sites.clear();
  for (const auto& [key, node] : sites)
    read_site(unit, std::string(key.str()), {sites, key.str(), value.name() + ".", value.file()});
}

std::string sites_text(const UnitPlan& unit) {
  std::string text;
  for (const auto& [site, policy] : unit.sites)  // a JSON string is a TOML string
    text += (text.empty() ? "" : ", ") + nlohmann::json(site).dump() + " = " + in_quotes(name(policy));
  return "{ " + text + " }";
}

constexpr Row<UnitPlan> kUnitRows[] = {
    enum_row<UnitPlan, &UnitPlan::activations>("activations", always),
    enum_row<UnitPlan, &UnitPlan::strategy>("strategy", always),
    enum_row<UnitPlan, &UnitPlan::parameters>("parameters"),
    enum_row<UnitPlan, &UnitPlan::gradients>("gradients"),
    enum_row<UnitPlan, &UnitPlan::states>("states"),
    enum_row<UnitPlan, &UnitPlan::update_on>("update_on"),
    {"offload_to", read_offload_to, [](const UnitPlan& unit) { return in_quotes(name(unit.offload_to)); },
     changed<UnitPlan, &UnitPlan::offload_to>},
    {"reduce", read_reduce, [](const UnitPlan& unit) { return in_quotes(unit.reduce_once ? "once" : "each"); },
     changed<UnitPlan, &UnitPlan::reduce_once>},
    {"sites", read_sites, sites_text, changed<UnitPlan, &UnitPlan::sites>},
    {"reshard_after_forward", read_reshard,
     [](const UnitPlan& unit) { return std::string(unit.strategy == Strategy::full_shard ? "true" : "false"); }, never},
};

}  // namespace

std::span<const Row<UnitPlan>> unit_rows() { return kUnitRows; }

}  // namespace tessera::plan
