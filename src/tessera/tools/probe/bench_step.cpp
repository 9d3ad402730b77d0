#include "tessera/tools/probe/bench_step.h"

#include <ATen/Parallel.h>
#include <kineto/libkineto.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/log.h"
#include "tessera/base/toml_text.h"
#include "tessera/checkpoint/file.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/device/backend.h"
#include "tessera/job/device.h"
#include "tessera/models/common/adapted.h"
#include "tessera/models/registry.h"
#include "tessera/ops/session.h"
#include "tessera/plan/plan_file.h"
#include "tessera/plan/schedule_json.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/planning.h"
#include "tessera/tools/probe/synthetic_run.h"

namespace tessera::tools {

namespace {

constexpr int64_t kHostBudget = int64_t{64} << 30;  // no limit to what is measured

std::vector<std::string> unit_names(const net::Denoiser& model) {
  std::vector<std::string> names;
  for (const auto& unit : model.units()) names.push_back(unit->spec().name);
  return names;
}

/// As job::settle_compute() of a recipe.
plan::Attention usual_attention() {
  const bool hopper = device::used() && device::used()->properties(device::here().index()).chip == "sm_90";
  return hopper && ops::why_no_cudnn_attention().empty() ? plan::Attention::cudnn : plan::Attention::flash;
}

/// What to plan. A plan file has mesh and batch of its own.
planning::PlanRequest request_of(const BenchOptions& options, const net::Denoiser& model, Mesh mesh, int64_t budget) {
  planning::PlanRequest request;
  request.model = &model;
  request.model_name = "bench";
  request.latent = options.latent;
  request.planner.global_batch = mesh.dp_size();
  request.planner.recompute_units = options.recompute;
  request.planner.compute = request.planner.param_dtype = options.compute;  // as "auto" of plan.param_dtype
  request.planner.fp8 = options.fp8;
  request.planner.attention = options.attention.value_or(usual_attention());
  request.planner.grad = options.grad, request.planner.states.moments = options.moments;
  if (!options.plan.empty()) {
    request.by_hand =
        plan::plan_of_toml(read_foreign(options.plan, kMostTomlBytes, "bench"), options.plan, unit_names(model));
    mesh = request.by_hand->mesh;
    request.planner.global_batch = request.by_hand->global_batch;
    request.planner.micro_batch = request.by_hand->micro_batch;
    request.planner.compute = request.by_hand->compute;  // shapes are measured in it
    request.planner.fp8 = request.by_hand->fp8;
    request.planner.attention = request.by_hand->attention;
  }
  request.mesh = mesh;
  request.machine.profile = plan::find_profile(options.profile);
  plan::check_machine(request.machine.profile, job::computing_machine());
  request.machine.profile.target = job::plan_target(request.machine.profile);
  if (request.planner.compute != DType::f32 && request.machine.profile.device.gemm.contains("bf16"))
    request.machine.dtype = "bf16";  // as planning::plan_request
  request.planner.budget = budget;
  request.planner.host_budget = options.host_budget;
  if (options.host_budget == 0 && (options.states_on_host || request.by_hand))
    request.planner.host_budget = kHostBudget;
  if (options.states_on_host) request.planner.states_tier = plan::Tier::host;
  request.run.steps = options.warmup + options.steps;
  const auto samples = static_cast<int64_t>(div_up(request.planner.global_batch, mesh.dp_size()));
  const auto target = static_cast<int64_t>(model.pack_target(at::empty(options.latent, at::kFloat)).nbytes());
  request.resident = samples * round_up(target, 64);
  return request;
}

/// The instructions of this rank as they are predicted, in the form of those executed.
void write_predicted(const planning::Planned& planned, int rank, const std::string& file) {
  const plan::Schedule schedule = planned.schedules(rank).train;
  std::string text;
  for (const plan::RankGroup& group : planned.prediction.groups) {
    if (plan::rank_kind(planned.plan(), group.rank) != plan::rank_kind(planned.plan(), rank)) continue;
    for (size_t i = 0; i < schedule.list.size(); ++i)
      text += plan::to_json({.rank = rank,
                             .i = static_cast<int>(i),
                             .phase = schedule.phase,
                             .in = schedule.list[i],
                             .executed = true,
                             .t0 = group.spans[i].begin,
                             .t1 = group.spans[i].end}) +
              "\n";
  }
  checkpoint::write_text(file, text);
}

/// Seconds of every timed step.
std::vector<double> time_steps(const BenchOptions& options, SyntheticRun& run, comm::Comm& comm) {
  comm::Group& control = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  std::vector<double> seconds;
  int64_t last = options.warmup + options.steps;
  for (int64_t step = 1; step <= last; ++step) {
    const double took = run.step();
    if (step > options.warmup) seconds.push_back(took);
    if (step == 1) engine::Meter::reset_peak();
    if (step != options.warmup) continue;
    const double agreed = control.all_gather_doubles({took})[0][0];
    last = std::max(last, step + static_cast<int64_t>(options.seconds / agreed));
  }
  return seconds;
}

/// [{"kernel", "count", "us"}, ...] of one step, longest first, as LibTorch's profiler records it: kernels and copies of a GPU;
/// elsewhere LibTorch's operators, of which some call others. Its step is beyond those that are timed.
void write_kernels(SyntheticRun& run, const std::string& file) {
  namespace impl = torch::profiler::impl;
  namespace profiler = torch::autograd::profiler;
  const bool gpu = device::used() && device::here().is_cuda();
  const std::set<impl::ActivityType> activities = {gpu ? impl::ActivityType::CUDA : impl::ActivityType::CPU};
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  libkineto_init(/*cpuOnly=*/!gpu, /*logOnError=*/false);  // LibTorch's own call fails where there is no GPU
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  run.step();
  if (device::used()) device::used()->wait();  // what has not ended is not recorded
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  struct Sum {
    int64_t count = 0, ns = 0;
  };
  std::map<std::string, Sum> by_name;
  for (const profiler::KinetoEvent& event : result->events()) {
    if ((event.deviceType() == c10::DeviceType::CUDA) != gpu) continue;  // calls of the driver are of the CPU
    Sum& sum = by_name[event.name()];
    sum.count += 1, sum.ns += static_cast<int64_t>(event.durationNs());
  }
  std::vector<std::pair<std::string, Sum>> kernels(by_name.begin(), by_name.end());
  std::ranges::stable_sort(kernels, [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [name, sum] : kernels)
    list.push_back({{"kernel", name}, {"count", sum.count}, {"us", static_cast<double>(sum.ns) / 1e3}});
  if (list.empty()) log::warn("bench: LibTorch's profiler has recorded nothing: does CUPTI belong to this driver?");
  checkpoint::write_text(file, list.dump(0) + "\n");
}

}  // namespace

int bench_step(const BenchOptions& options) {
  engine::Meter::install();
  at::set_num_threads(1);
  const comm::Rendezvous place = comm::rendezvous_from_env();
  Mesh mesh = Mesh::parse(options.mesh);
  if (options.mesh.empty()) mesh[Axis::dp_shard] = place.world;
  job::choose_device(options.device, place);
  const int64_t budget = job::reserve_device(place, options.budget);
  const auto model = models::make_denoiser({.config_text = options.config});
  if (options.lora)
    models::adapt(*model, {.rank = *options.lora,
                           .base = options.compute == DType::bf16 ? DType::bf16 : DType::f32,  // as a recipe without it
                           .targets = {}});
  const planning::PlanRequest request = request_of(options, *model, mesh, budget);
  if (options.steps > 0 && request.mesh.world() != place.world)
    throw UserError(Exit::usage, "bench",
                    "the mesh " + request.mesh.to_string() + " has " + std::to_string(request.mesh.world()) +
                        " ranks, there are " + std::to_string(place.world),
                    "start it with tessera launch -n " + std::to_string(request.mesh.world()));
  const planning::Planned planned = planning::make_plan(request);
  if (!planned.choice.fits) throw UserError(Exit::no_fit, "bench", planned.choice.advice);
  nlohmann::ordered_json line = {{"predicted_seconds", planned.choice.seconds}, {"plan", planned.plan().summary()}};
  if (!options.trace.empty() && place.rank == 0) write_predicted(planned, place.rank, options.trace + ".planned");
  if (options.steps == 0) {
    if (place.rank == 0) std::printf("%s\n", line.dump().c_str());
    return 0;
  }

  comm::Comm comm(place, request.mesh, 300);
  job::check_devices(comm);
  SyntheticRun run(
      *model, options.latent, planned.spec, planned.plan(), comm, place.rank,
      {.nvme = {.folder = options.nvme}, .trace = place.rank == 0 ? options.trace : "", .local_ranks = place.world});
  const std::vector<double> seconds = time_steps(options, run, comm);

  using engine::Meter;
  using engine::Part;
  std::vector<double> mine = {
      static_cast<double>(Meter::peak()),
      static_cast<double>(Meter::live(Part::parameters) + Meter::live(Part::gradients) + Meter::live(Part::states)),
      static_cast<double>(run.engine().host_bytes()), static_cast<double>(planned.memory(place.rank).peak)};
  const auto bytes = static_cast<std::ptrdiff_t>(mine.size());
  mine.insert(mine.end(), seconds.begin(), seconds.end());
  std::vector<double> worst(mine.size(), 0);
  for (const auto& row : comm.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles(mine))
    for (size_t i = 0; i < row.size(); ++i) worst[i] = std::max(worst[i], row[i]);
  if (place.rank == 0) {
    line.update({{"seconds", std::vector<double>(worst.begin() + bytes, worst.end())},
                 {"peak_bytes", static_cast<int64_t>(worst[0])},
                 {"persistent_bytes", static_cast<int64_t>(worst[1])},
                 {"host_bytes", static_cast<int64_t>(worst[2])},
                 {"predicted_peak_bytes", static_cast<int64_t>(worst[3])}});
    if (device::used()) line["predicted_driver_bytes"] = planned.driver_bytes(budget);
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);  // whatever becomes of the profiler
  }
  if (!options.kernels.empty() && place.rank == 0) write_kernels(run, options.kernels);
  if (!options.kernels.empty() && place.rank != 0) run.step();
  comm.barrier();
  return 0;
}

}  // namespace tessera::tools
