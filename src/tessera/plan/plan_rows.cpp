#include "tessera/plan/plan_rows.h"

#include <algorithm>

#include "tessera/plan/optimizers.h"
#include "tessera/plan/row_kinds.h"

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

constexpr Row<Plan> kEma = {"ema", [](Plan& plan, const TomlValue& value) { plan.states.ema = value.boolean(); },
                            [](const Plan& plan) { return std::string(plan.states.ema ? "true" : "false"); },
                            [](const Plan& plan) { return plan.states.ema; }};

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
    enum_row<Plan, &Plan::compute>("compute_dtype", always),
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
    with_idle(
        enum_row<Plan, &Plan::idle>("idle", several_experts),
        [](const Plan& plan) -> std::string_view { return several_experts(plan) ? "" : "the run has one denoiser"; }),
};

}  // namespace

std::span<const Row<Plan>> plan_rows() { return kRows; }

}  // namespace tessera::plan
