#include "tessera/train/planning.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"
#include "tessera/engine/measure.h"

namespace tessera::train {

namespace {

using Json = nlohmann::ordered_json;

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

Json parts_json(const plan::MemoryParts& part) {
  return {{"parameters", part.parameters}, {"gradients", part.gradients},     {"states", part.states},
          {"slots", part.slots},           {"activations", part.activations}, {"temporaries", part.temporaries}};
}

int highest_rank(const Planned& planned) {
  int highest = 0;
  for (int rank = 1; rank < planned.plan().mesh.world(); ++rank)
    if (planned.memory(rank).peak > planned.memory(highest).peak) highest = rank;
  return highest;
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

Planned make_plan(const PlanRequest& request) {
  Planned planned;
  planned.run = request.run;
  planned.guidance_branches = request.guidance_branches;
  const int64_t samples = request.by_hand ? request.by_hand->micro_batch : request.planner.micro_batch;
  planned.spec = engine::measure(request.model->units(), representative_batch(*request.model, request.latent, samples),
                                 request.model_name, {});
  planned.spec.resident += request.resident;
  if (!request.by_hand) {
    planned.choice = plan::choose(planned.spec, request.mesh, request.planner, request.rates);
    return planned;
  }
  planned.choice.plan = *request.by_hand;
  if (planned.choice.plan.mesh != request.mesh)
    throw UserError(
        Exit::usage, "plan.file",
        "the plan is for mesh " + planned.choice.plan.mesh.to_string() + ", the run has " + request.mesh.to_string(),
        "use --mesh " + planned.choice.plan.mesh.to_string() + " or plan.file = \"auto\"");
  planned.choice.memory = planned.memory(0);
  const int64_t budget = request.planner.budget;
  planned.choice.fits = budget <= 0 || planned.choice.memory.peak <= budget;
  planned.choice.why = "written by hand";
  if (!planned.choice.fits)
    planned.choice.advice = "the plan needs " + format_bytes(planned.choice.memory.peak) + " a rank, plan.budget is " +
                            format_bytes(budget) + "; recompute more units in the plan or raise the budget";
  return planned;
}

std::string plan_json(const Planned& planned) {
  const int rank = highest_rank(planned);
  const plan::MemoryCurve memory = planned.memory(rank);
  Json mesh = Json::object();
  for (Axis axis : kAllAxes) mesh[std::string(axis_name(axis))] = planned.plan().mesh[axis];
  Json hashes = Json::object();
  for (int r = 0; r < planned.plan().mesh.world(); ++r) {
    std::map<std::string, std::string> sequence;
    for (const auto& in : planned.schedules(r).train.list)
      for (const auto& comm : in.comm) sequence[in.group] += comm.kind + ":" + std::to_string(comm.bytes) + ";";
    for (const auto& [group, text] : sequence) {
      char hex[20];
      std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash_text(text)));
      hashes[group] = hex;
    }
  }
  Json json = {
      {"fits", planned.choice.fits},
      {"mesh", mesh},
      {"rank", rank},
      {"model", {{"name", planned.spec.name}, {"parameters", planned.spec.numel()}, {"tokens", planned.spec.tokens}}},
      {"summary", planned.plan().summary()},
      {"device",
       {{"peak_bytes", memory.peak},
        {"persistent_bytes", memory.persistent},
        {"at", memory.at_name},
        {"by_part", parts_json(memory.by_part)}}},
      {"host", nullptr},
      {"disk", {{"checkpoint_bytes", planned.spec.numel() * 12}}},
      {"step_seconds", nullptr},
      {"group_hashes", hashes},
      {"candidates", nullptr},
      {"why", planned.choice.why},
      {"advice", planned.choice.advice}};
  return json.dump(2) + "\n";
}

std::string plan_text(const Planned& planned) {
  const int rank = highest_rank(planned);
  const plan::MemoryCurve memory = planned.memory(rank);
  const plan::MemoryParts& part = memory.by_part;
  const auto row = [](const std::string& label, const std::string& value) {
    return "  " + label + std::string(label.size() < 16 ? 16 - label.size() : 1, ' ') + value + "\n";
  };
  std::string text = planned.spec.name + ": " + std::to_string(planned.spec.numel()) + " parameters, " +
                     std::to_string(planned.spec.tokens) + " tokens a micro-batch, mesh " +
                     planned.plan().mesh.to_string() + "\n";
  text += row("plan", planned.plan().summary());
  text += row("why", planned.choice.why);
  text += row("peak a rank",
              format_bytes(memory.peak) + " at " + memory.at_name + (planned.choice.fits ? "" : "  DOES NOT FIT"));
  text += row("  parameters", format_bytes(part.parameters));
  text += row("  gradients", format_bytes(part.gradients));
  text += row("  states", format_bytes(part.states));
  text += row("  slots", format_bytes(part.slots));
  text += row("  activations", format_bytes(part.activations));
  text += row("  temporaries", format_bytes(part.temporaries));
  if (!planned.choice.advice.empty()) text += row("advice", planned.choice.advice);
  return text;
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
