#include "tessera/train/planning.h"

#include <fstream>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/work.h"
#include "tessera/train/plan_advice.h"

namespace tessera::train {

namespace {

/// A micro-batch of the request's shapes; only sizes are read.
net::Batch representative_batch(const net::Denoiser& model, const std::array<int64_t, 4>& latent, int64_t samples) {
  std::vector<net::Sample> list(samples);
  for (auto& sample : list) {
    sample.x = at::zeros(latent, at::kFloat);
    sample.context = at::zeros({1, model.context_dim()}, at::kFloat);
    sample.t = 500;
  }
  return model.pack(list);
}

}  // namespace

plan::RunSchedules Planned::schedules(int rank) const {
  return {plan::compile_train(spec, plan(), rank),
          plan::compile_forward(spec, plan(), rank, "sample", guidance_branches),
          plan::compile_checkpoint(spec, plan(), rank)};
}

plan::MemoryCurve Planned::memory(int rank) const {
  const plan::RunSchedules all = schedules(rank);
  const int64_t arena = run.sample_every > 0 ? std::max(all.train.arena, all.sample.arena) : all.train.arena;
  return plan::memory_curve(spec, plan(), all.train, rank, arena);
}

std::vector<std::string> Planned::unit_names() const {
  std::vector<std::string> names;
  for (const auto& unit : spec.units) names.push_back(unit.name);
  return names;
}

int Planned::highest_rank() const {
  int highest = prediction.groups.front().rank;
  for (const auto& group : prediction.groups)
    if (memory(group.rank).peak > memory(highest).peak) highest = group.rank;
  return highest;
}

Planned make_plan_as_is(const PlanRequest& request) {
  Planned planned;
  planned.run = request.run;
  planned.guidance_branches = request.guidance_branches;
  planned.budget = request.planner.budget;
  planned.checkpoints_kept = request.checkpoints_kept;
  const int64_t samples = request.by_hand ? request.by_hand->micro_batch : request.planner.micro_batch;
  const net::Batch batch = representative_batch(*request.model, request.latent, samples);
  planned.spec = engine::measure(request.model->units(), batch, request.model_name, {});
  planned.spec.resident += request.resident;
  planned.machine = request.machine;
  planned.machine.work = engine::count_work(request.model->units(), batch);
  if (!request.by_hand) {
    planned.choice = plan::choose(planned.spec, request.mesh, request.planner, planned.machine);
    planned.prediction = plan::predict(planned.spec, planned.plan(), planned.machine);
    return planned;
  }
  planned.choice.plan = *request.by_hand;
  if (planned.choice.plan.mesh != request.mesh)
    throw UserError(
        Exit::usage, "plan.file",
        "the plan is for mesh " + planned.choice.plan.mesh.to_string() + ", the run has " + request.mesh.to_string(),
        "use --mesh " + planned.choice.plan.mesh.to_string() + " or plan.file = \"auto\"");
  planned.prediction = plan::predict(planned.spec, planned.plan(), planned.machine);
  planned.choice.seconds = planned.prediction.step.total;
  planned.choice.memory = planned.memory(planned.highest_rank());
  const int64_t budget = request.planner.budget;
  planned.choice.fits = budget <= 0 || planned.choice.memory.peak <= budget;
  planned.choice.why = "written by hand";
  plan::PlannerInput free = request.planner;
  free.micro_batch = samples;
  planned.choice.warning =
      plan::slower_by_hand(planned.spec, request.mesh, free, planned.machine, planned.choice.seconds);
  if (!planned.choice.fits)
    planned.choice.advice = "the plan needs " + format_bytes(planned.choice.memory.peak) + " a rank, plan.budget is " +
                            format_bytes(budget) + "; recompute more units in the plan or raise the budget";
  return planned;
}

Planned make_plan(const PlanRequest& request) {
  Planned planned = make_plan_as_is(request);
  if (!planned.choice.fits) {
    const std::string way_out = advice(request);
    if (!way_out.empty()) planned.choice.advice += ". What fits: " + way_out;
  }
  return planned;
}

void write_schedule(const Planned& planned, const std::string& file) {
  std::ofstream out(file, std::ios::trunc);
  for (int rank = 0; rank < planned.plan().mesh.world(); ++rank) {
    int64_t current = -1;
    int base = 0;
    plan::each_schedule(planned.run, planned.schedules(rank), [&](int64_t step, const plan::Schedule& schedule) {
      if (step != current) current = step, base = 0;
      for (size_t i = 0; i < schedule.list.size(); ++i)
        out << plan::to_json(schedule.list[i], schedule.phase, rank, step, static_cast<int>(i), base) << '\n';
      base += static_cast<int>(schedule.list.size());
    });
  }
  out.flush();
  if (!out)
    throw UserError(Exit::disk, "plan.schedule", file + ": cannot be written", "free space or choose another file");
}

}  // namespace tessera::train
