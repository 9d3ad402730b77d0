#include "tessera/planning/planning.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/plan_file.h"
#include "tessera/planning/measure.h"
#include "tessera/planning/mesh_checks.h"

namespace tessera::planning {

void evaluate(Planned& planned, const PlanRequest& request) {
  plan::check_sites(planned.spec, planned.plan());
  for (const auto& [expert, units] : planned.plan().of_expert)
    plan::check_sites(planned.spec, planned.plan().as_of(expert));
  planned.predict();
  planned.choice.seconds = planned.choice.fastest = planned.mean_step();
  planned.choice.memory = planned.memory(planned.highest_rank());
  const int64_t budget = request.planner.budget, host = planned.choice.memory.host.total();
  const bool host_fits = request.planner.host_budget <= 0 || host <= request.planner.host_budget;
  planned.choice.fits = (budget <= 0 || planned.choice.memory.peak <= budget) && host_fits;
  if (!host_fits)
    planned.choice.advice = "the plan keeps " + format_bytes(host) +
                            " a rank on the host, and its share of "
                            "plan.host_budget is " +
                            format_bytes(request.planner.host_budget) +
                            "; offload less in the plan or raise the budget";
  else if (!planned.choice.fits)
    planned.choice.advice = "the plan needs " + format_bytes(planned.choice.memory.peak) + " a rank, plan.budget is " +
                            format_bytes(budget) + "; recompute more units in the plan or raise the budget";
}

namespace {

/// Every micro-batch of a step has samples on every rank, whatever the shape of the step.
void check_rounds(const PlanRequest& request, int64_t micro_batch) {
  const int64_t rounds = div_up(div_up(request.planner.global_batch, request.mesh.dp_size()), micro_batch);
  if (request.most_rounds == 0 || rounds <= request.most_rounds) return;
  throw UserError(Exit::usage, "train.micro_batch",
                  std::to_string(micro_batch) + " makes " + std::to_string(rounds) +
                      " micro-batches of a rank's samples, and its smallest batch of data.buckets has " +
                      std::to_string(request.most_rounds) + (request.most_rounds == 1 ? " sample" : " samples"),
                  "take a larger train.micro_batch, or make that batch larger");
}

/// The request's batch in micro-batches of `samples`.
plan::Plan batch_of(const PlanRequest& request, int64_t samples) {
  plan::Plan batch;
  batch.mesh = request.mesh;
  batch.global_batch = request.planner.global_batch, batch.micro_batch = samples;
  return batch;
}

/// What a teacher of other sizes keeps on a rank at most: of the device, and of the host.
std::array<int64_t, 2> kept_by_teacher(const Planned& planned, const PlanRequest& request, plan::Tier tier) {
  if (!planned.teacher) return {};
  plan::Plan student;
  static_cast<plan::Formats&>(student) = request.planner;
  student.mesh = request.mesh, student.local_world = request.planner.local_world, student.teacher = tier;
  const plan::ModelSpec& model = planned.teacher->model;
  const plan::Plan plan = plan::teacher_plan(model.units.size(), student);
  std::array<int64_t, 2> most = {};
  for (int rank = 0; rank < plan.mesh.world(); ++rank) {
    const plan::MemoryCurve kept = plan::memory_curve(model, plan, {}, rank);
    most = {std::max(most[0], kept.persistent), std::max(most[1], kept.host.total())};
  }
  return most;
}

/// Leaves as much of the budgets to a search, which sees networks that are trained alone.
void leave_room(plan::PlannerInput& input, const std::array<int64_t, 2>& kept) {
  if (input.budget > 0) input.budget = std::max<int64_t>(1, input.budget - kept[0]);
  if (input.host_budget > 0) input.host_budget = std::max<int64_t>(1, input.host_budget - kept[1]);
}

/// The search's choice. It sees training steps alone: what forward mode takes beyond them, and a teacher of other sizes, is kept
/// free, in a second one where passes have larger slots or activations.
plan::Choice choose_beside(Planned& planned, const PlanRequest& request, plan::PlannerInput input) {
  const int64_t budget = input.budget;
  const std::array<int64_t, 2> kept = kept_by_teacher(planned, request, input.teacher);
  leave_room(input, kept);
  const auto memory = [&] { return planned.memory(planned.highest_rank()); };
  planned.choice = plan::choose(planned.spec, request.mesh, input, planned.machine);
  if (!planned.tangent && !planned.teacher) return planned.choice;
  if (const int64_t peak = memory().peak; budget > 0 && planned.choice.fits && peak > budget) {
    input.budget = std::max<int64_t>(1, input.budget - (peak - kept[0] - planned.choice.memory.peak));
    planned.choice = plan::choose(planned.spec, request.mesh, input, planned.machine);
    planned.choice.fits = planned.choice.fits && memory().peak <= budget;
  }
  if (planned.teacher) planned.choice.memory = memory();
  return planned.choice;
}

Planned plan_by_hand(const PlanRequest& request) {
  plan::Plan plan = *request.by_hand;
  plan.local_world = request.planner.local_world;  // of this machine, not of the file's
  if (plan.mesh != request.mesh)
    throw UserError(Exit::usage, "plan.file",
                    "the plan is for mesh " + plan.mesh.to_string() + ", the run has " + request.mesh.to_string(),
                    "use --mesh " + plan.mesh.to_string() + " or plan.file = \"auto\"");
  const int64_t asked = plan.micro_batch, share = div_up(plan.global_batch, plan.mesh.dp_size());
  check_rounds(request, asked);
  plan.micro_batch = std::min(asked, share);  // a rank never has more samples, so measuring more would overestimate
  MeasuredModels known;
  Planned planned = measured(request, plan, known);
  planned.choice.plan = plan;
  evaluate(planned, request);
  planned.choice.why = "written by hand";
  plan::PlannerInput free = request.planner;
  free.micro_batch = plan.micro_batch;
  leave_room(free, kept_by_teacher(planned, request, plan.teacher));
  planned.choice.warning = plan::slower_by_hand(planned.spec, request.mesh, free, planned.machine,
                                                planned.choice.seconds - planned.prediction.step.base);
  planned.warn(request.notes);
  if (asked > share)
    planned.warn("micro_batch = " + std::to_string(asked) + " is more than the samples of a rank: micro-batches have " +
                 std::to_string(share));
  return planned;
}

/// Plans for micro-batches of `samples`.
Planned plan_for(const PlanRequest& request, int64_t samples, MeasuredModels& known) {
  Planned planned = measured(request, batch_of(request, samples), known);
  plan::PlannerInput input = request.planner;
  input.micro_batch = samples;
  if (input.incumbent && input.incumbent->micro_batch != samples) input.incumbent.reset();
  planned.choice = choose_beside(planned, request, input);
  // An inactive expert costs no time on the device, so it is offloaded only if memory requires it; a teacher of other sizes
  // comes from the host in its passes alone, and goes there first.
  std::vector<plan::Tier> elsewhere;
  if (request.any_idle && input.host_budget > 0) elsewhere.push_back(plan::Tier::host);
  if (request.any_idle && input.nvme) elsewhere.push_back(plan::Tier::nvme);
  if (planned.teacher && !elsewhere.empty()) elsewhere.insert(elsewhere.begin(), plan::Tier::device);
  for (const plan::Tier tier : elsewhere) {
    const plan::Choice before = planned.choice;
    if (before.fits) break;
    input.idle = tier;
    if (planned.teacher) input.teacher = plan::Tier::host;
    plan::Choice moved = choose_beside(planned, request, input);
    const int evaluated = before.evaluated + moved.evaluated;
    planned.choice = moved.fits || moved.memory.peak < before.memory.peak ? std::move(moved) : before;
    planned.choice.evaluated = evaluated;
  }
  planned.predict();
  planned.choice.seconds += planned.prediction.step.base;  // which the search does not see
  planned.choice.fastest += planned.prediction.step.base;
  return planned;
}

/// A choice that fits before one that does not, then that of the faster plan; of two that do not fit, the smaller.
bool better(const plan::Choice& a, const plan::Choice& b) {
  if (a.fits != b.fits) return a.fits;
  return a.fits ? a.fastest < b.fastest * (1 - 1e-9) : a.memory.peak < b.memory.peak;
}

/// Both times where products in bf16 are over four times as fast as those in fp32, which the plan computes with; else
/// empty.
std::string faster_in_bf16(const Planned& planned) {
  const plan::RateByDtype& rates = planned.machine.profile.device.gemm;
  if (planned.machine.dtype != "fp32" || !rates.contains("fp32") || !rates.contains("bf16")) return "";
  if (rates.at("bf16").top <= 4 * rates.at("fp32").top) return "";
  plan::Machine machine = planned.machine;
  machine.dtype = "bf16";
  const double seconds = plan::predict(planned.spec, planned.plan(), machine).step.total;
  return "the plan computes in fp32, a step of " + format_seconds(planned.choice.seconds) +
         "; with plan.compute_dtype = \"bf16\" this plan takes " + format_seconds(seconds) + " on " +
         planned.machine.profile.name + ", and its masters stay as they are";
}

/// `most`, halved repeatedly.
std::vector<int64_t> halves_of(int64_t most) {
  std::vector<int64_t> sizes = {most};
  for (int64_t times = 2; sizes.back() > 1; times *= 2) sizes.push_back(div_up(most, times));
  return sizes;
}

/// Sizes of micro-batches that passes of a hard gate's experts are measured in, as any number of samples may choose one;
/// none: all have the plan's.
std::vector<int64_t> sizes_of_passes(const PlanRequest& request, const plan::Plan& plan) {
  const bool hard = request.routing.gated && !request.routing.soft && request.others.empty();
  return hard ? halves_of(plan.micro_batch) : std::vector<int64_t>();
}

/// Measures micro-batches of these sizes as well.
void measure_sizes(Planned& planned, const PlanRequest& request, const std::vector<int64_t>& sizes,
                   MeasuredModels& known) {
  std::vector<plan::ModelSpec>& smaller = planned.spec.smaller;
  for (const int64_t samples : sizes) {
    if (samples == planned.spec.samples || planned.machine.smaller.contains(samples)) continue;
    const auto found =
        known.contains(samples) ? known.find(samples) : known.emplace(samples, measure_model(request, samples)).first;
    smaller.push_back(found->second.model);
    planned.machine.smaller[samples] = {found->second.machine.work, found->second.machine.sizes};
  }
  std::ranges::sort(smaller, {}, &plan::ModelSpec::samples);
}

/// How much more than its budgets a rank would take: of its device, and of its host.
std::array<int64_t, 2> beyond(const PlanRequest& request, const plan::MemoryCurve& memory) {
  const auto more = [](int64_t bytes, int64_t budget) { return budget > 0 ? std::max<int64_t>(0, bytes - budget) : 0; };
  return {more(memory.peak, request.planner.budget), more(memory.host.total(), request.planner.host_budget)};
}

/// Adds the plan with the activations that a search finds for passes of `batch` samples on all ranks, in micro-batches of
/// `samples`. The search has the leader's strategies and tiers. It knows nothing of the leader's slots, which are there in any
/// pass: it gets less memory until the plan fits beside them.
void add_by_use(Planned& planned, const PlanRequest& request, int64_t batch, int64_t samples, MeasuredModels& known) {
  const plan::Plan& leader = planned.plan();
  const Planned other = measured(request, batch_of(request, samples), known);
  plan::PlannerInput input = request.planner;
  input.global_batch = batch, input.micro_batch = samples, input.incumbent.reset(), input.thrifty = false;
  input.idle = leader.idle, input.prefetch = leader.prefetch;
  input.strategy = leader.units[0].strategy, input.reduce_once = leader.units[0].reduce_once;
  input.parameters = input.gradients = input.states_tier = plan::Tier::device;  // as each unit has its own:
  for (size_t u = 0; u < leader.units.size(); ++u) {
    const plan::UnitPlan& unit = leader.units[u];
    input.units.push_back({other.spec.units[u].name,
                           {{"strategy", std::string(name(unit.strategy))},
                            {"reduce", unit.reduce_once ? "once" : "each"},
                            {"parameters", std::string(name(unit.parameters))},
                            {"gradients", std::string(name(unit.gradients))},
                            {"states", std::string(name(unit.states))}}});
  }
  constexpr int kTimes = 4;
  for (int times = 0; times < kTimes; ++times) {
    const plan::Choice choice = plan::choose(other.spec, request.mesh, input, other.machine);
    planned.choice.evaluated += choice.evaluated;
    if (!choice.fits) return;
    plan::Plan plan = leader;
    plan.micro_batch = samples;
    for (size_t u = 0; u < plan.units.size(); ++u) {
      const plan::UnitPlan& found = choice.plan.units[u];
      plan.units[u].activations = found.activations, plan.units[u].sites = found.sites;
      plan.units[u].offload_to = found.offload_to;
    }
    if (std::ranges::count(planned.by_use, plan, &plan::PassPlan::plan) > 0) return;
    planned.by_use.push_back({std::move(plan), {}});
    const auto [device, host] = beyond(request, planned.memory(planned.highest_rank()));
    if (device == 0 && host == 0) return;
    planned.by_use.pop_back();
    if (device >= input.budget || (host > 0 && host >= input.host_budget)) return;
    input.budget -= device, input.host_budget -= host;
  }
}

}  // namespace

void plan_by_use(Planned& planned, const PlanRequest& request) {
  planned.by_use.clear();
  const plan::Plan& leader = planned.plan();
  const std::vector<int64_t> sizes = sizes_of_passes(request, leader);
  MeasuredModels known;
  PlanRequest as_chosen = request;
  as_chosen.planner.gather_fp8 = leader.gather_fp8;
  measure_sizes(planned, as_chosen, sizes, known);
  const bool free = request.routing.by_use && request.any_micro_batch && !request.by_hand;
  if (sizes.empty() || !free || !planned.choice.fits) return;
  planned.by_use = {{leader, {}}};
  for (const int64_t samples :
       sizes)  // of a pass with all samples of the batch, and of one that is a single micro-batch
    for (const int64_t batch : {leader.global_batch, samples * leader.mesh.dp_size()})
      add_by_use(planned, request, batch, samples, known);
  for (plan::PassPlan& each : planned.by_use)
    each.seconds =
        plan::pass_seconds(planned.spec, each.plan, planned.machine, std::ranges::max(planned.own_samples()));
  planned.choice.memory = planned.memory(planned.highest_rank());
}

void plan_together(Planned& planned, const PlanRequest& request) {
  plan::Plan& plan = planned.choice.plan;
  planned.apart = !planned.routing.deals      ? "samples are not dealt"
                  : !planned.routing.together ? "experts.share = off"
                  : plan.mesh.dp_size() == 1  ? "one rank has all samples"
                  : plan.together > 1         ? std::string()
                                              : plan.keeps_apart();
  if (!planned.apart.empty() || plan.together > 1 || !planned.choice.fits) return;
  if (request.by_hand) return void(planned.apart = "plan.file does not set together = 2");
  const auto mean = [&] {
    return plan::gate_mean(planned.spec, plan, planned.machine, planned.routing.frequencies, planned.own_samples(),
                           planned.host_sample)
        .dealt;
  };
  const auto set = [&](int together) {
    plan.together = together;
    for (plan::PassPlan& each : planned.by_use) each.plan.together = together;
  };
  constexpr double kWorthIt = 0.99;  // less is within what predictions of two plans are off by
  const double alone = mean();
  set(2);
  const double saved = 1 - mean() / alone;
  if (1 - saved >= kWorthIt) {
    planned.apart = "it would save less than a per cent";
  } else if (plan::MemoryCurve memory = planned.memory(planned.highest_rank()); beyond(request, memory)[0] > 0) {
    planned.apart = "slots and gradients of two experts take " + format_bytes(memory.peak) + " of " +
                    format_bytes(request.planner.budget);
  } else {
    planned.choice.memory = std::move(memory);
    return;
  }
  set(1);
}

std::string by_use_text(const Planned& planned) {
  nlohmann::json all = nlohmann::json::array();
  for (const plan::PassPlan& each : planned.by_use)
    all.push_back({{"plan", to_toml(each.plan, planned.unit_names())}, {"seconds", each.seconds}});
  return all.dump();
}

Planned take_plan(const PlanRequest& request, const std::string& plan, int rank, const std::string& by_use) {
  std::vector<std::string> names;
  for (const auto& unit : request.model->units()) names.push_back(unit->spec().name);
  plan::Plan chosen = plan::plan_of_toml(plan, "the plan of rank 0", names);
  MeasuredModels known;
  PlanRequest as_chosen = request;
  as_chosen.planner.gather_fp8 = chosen.gather_fp8;
  Planned planned = measured(as_chosen, chosen, known);
  planned.choice.plan = std::move(chosen);
  if (!by_use.empty())
    for (const nlohmann::json& each : nlohmann::json::parse(by_use))
      planned.by_use.push_back({plan::plan_of_toml(each.at("plan"), "a plan by use of rank 0", names),
                                each.at("seconds").get<std::vector<double>>()});
  measure_sizes(planned, as_chosen, sizes_of_passes(as_chosen, planned.plan()), known);
  planned.choice.why = "found by rank 0";
  planned.choice.memory = planned.memory(rank);
  const auto check = [rank](int64_t bytes, int64_t budget, const char* where, const char* key) {
    if (budget <= 0 || bytes <= budget) return;
    throw UserError(Exit::no_fit, "plan",
                    "the plan of rank 0 takes " + format_bytes(bytes) + " of the " + where + " on rank " +
                        std::to_string(rank) + ", which has " + format_bytes(budget),
                    std::string("set ") + key + " to what the smallest rank has");
  };
  check(planned.choice.memory.peak, request.planner.budget, "device", "plan.budget");
  check(planned.choice.memory.host.total(), request.planner.host_budget, "host", "plan.host_budget");
  planned.choice.fits = true;
  return planned;
}

namespace {

/// What a size of micro-batches promises before it is planned for.
class Promise {
 public:
  Promise(const PlanRequest& request, int64_t samples, MeasuredModels& known) : samples(samples), request_(request) {
    const plan::Plan batch = batch_of(request, samples);
    measured_ = measure_batch(request, batch, known);
    input_ = request.planner;
    input_.micro_batch = samples, input_.incumbent.reset();
    plan::PlannerInput all = input_;  // pipelines are compared, as they differ by more than memory makes up for
    all.budget = all.host_budget = 0, all.trades = false, all.thrifty = false;
    all.first_that_fits = request.mesh[Axis::pp] == 1 || request.planner.first_that_fits;
    seconds = found(all).seconds;
  }

  /// Whether a plan of it may be faster than `other`: one with all the memory that it likes is.
  bool may_be_faster(double other) const {
    constexpr double kBeyond = 0.99;  // what later updates and deeper prefetch gain beside memory, with room to spare
    return seconds * kBeyond < other;
  }
  /// Whether the plan that takes least fits.
  bool may_fit() {
    plan::PlannerInput input = input_;
    input.first_that_fits = true;
    if (request_.any_idle && input.host_budget > 0) input.idle = input.nvme ? plan::Tier::nvme : plan::Tier::host;
    return found(input).fits;
  }
  int evaluated() const { return evaluated_; }

  int64_t samples;
  double seconds = 0;  ///< of a step with all the memory that it likes

 private:
  plan::Choice found(const plan::PlannerInput& input) {
    plan::Choice choice = plan::choose(measured_.model, request_.mesh, input, measured_.machine);
    evaluated_ += choice.evaluated;
    return choice;
  }

  const PlanRequest& request_;
  plan::Measured measured_;
  plan::PlannerInput input_;
  int evaluated_ = 0;
};

/// Over all sizes of micro-batches allowed.
Planned search_sizes(const PlanRequest& request, MeasuredModels& known) {
  const int64_t most =
      request.any_micro_batch ? std::min(request.planner.micro_batch, kMostSamples) : request.planner.micro_batch;
  if (!request.any_micro_batch) check_rounds(request, most);
  std::vector<int64_t> sizes = {most};
  if (request.any_micro_batch) sizes = halves_of(most);
  if (request.most_rounds > 0)
    std::erase_if(sizes,
                  [&](int64_t samples) { return samples < most && div_up(most, samples) > request.most_rounds; });
  if (sizes.size() == 1) return plan_for(request, sizes[0], known);
  // Smaller micro-batches halve activations, but cost gathers and small kernels. The most promising comes first; what does
  // not fit, or is slower with all the memory that it likes than another's plan, is not searched.
  std::deque<Promise> promises;
  std::string tried_sizes;
  for (const int64_t samples : sizes) {
    promises.emplace_back(request, samples, known);
    tried_sizes += (tried_sizes.empty() ? "" : ", ") + std::to_string(samples);
  }
  std::vector<Promise*> order;
  for (Promise& promise : promises) order.push_back(&promise);
  std::ranges::stable_sort(order, {}, &Promise::seconds);
  std::optional<Planned> best;
  std::vector<plan::Candidate> considered;
  int evaluated = 0;
  bool smallest = false;  // was searched
  const auto search = [&](int64_t samples) {
    smallest |= samples == sizes.back();
    Planned tried = plan_for(request, samples, known);
    evaluated += tried.choice.evaluated;
    std::ranges::move(tried.choice.candidates, std::back_inserter(considered));
    if (!best || better(tried.choice, best->choice)) best = std::move(tried);
  };
  for (Promise* promise : order) {
    const bool found = best && best->choice.fits;
    if (found && !promise->may_be_faster(best->choice.fastest - best->prediction.step.base)) continue;
    if (promise->may_fit()) search(promise->samples);
  }
  if (!smallest && (!best || !best->choice.fits)) search(sizes.back());
  for (const Promise& promise : promises) evaluated += promise.evaluated();
  best->choice.candidates = std::move(considered);
  best->choice.evaluated = evaluated;
  best->choice.why += "; micro-batches of " + tried_sizes + " samples were tried, " +
                      std::to_string(best->choice.candidates.size()) + " candidates in all";
  return std::move(*best);
}

/// What the first rank sends in the gathers of a step.
int64_t gathered_bytes(const Planned& planned) {
  int64_t bytes = 0;
  for (const plan::Instruction& in : plan::compile_train(planned.spec, planned.plan(), 0).list)
    if (in.op == plan::Op::gather)
      for (const plan::Comm& comm : in.comm) bytes += comm.bytes;
  return bytes;
}

/// Whether the faster of gathers in bf16 and of codes is chosen. Plans by use have the formats of the one beside them.
bool chooses_gathers(const PlanRequest& request) {
  return request.planner.fp8 && !request.planner.gather && !request.run.distils() && !request.routing.by_use;
}

}  // namespace

Planned search_plan(const PlanRequest& request, MeasuredModels& known) {
  Planned planned = search_sizes(request, known);
  if (!chooses_gathers(request) || (request.planner.first_that_fits && planned.choice.fits)) return planned;
  PlanRequest in_codes = request;
  in_codes.planner.gather_fp8 = true;
  MeasuredModels others;
  Planned eight = search_sizes(in_codes, others);
  const int evaluated = planned.choice.evaluated + eight.choice.evaluated;
  const auto costs = [](const Planned& p) {
    return "a step of " + format_seconds(p.choice.seconds) + ", in which a rank sends " +
           format_bytes(gathered_bytes(p)) + (p.choice.fits ? "" : " (which does not fit)");
  };
  const std::string both =
      "; gathers of weights in bf16 make " + costs(planned) + ", of their codes in 8 bits " + costs(eight);
  if (better(eight.choice, planned.choice)) planned = std::move(eight);
  planned.choice.evaluated = evaluated;
  planned.choice.why += both;
  return planned;
}

namespace {

/// What products in 8 bits gain and cost: the time and the memory of the plan, and of the same one in bf16. A search of its own
/// might find bf16 a better one, never a worse: where this is as fast, bf16 is.
void tell_fp8(const PlanRequest& request, Planned& planned) {
  PlanRequest other = request;
  other.planner.fp8 = other.planner.gather_fp8 = false;
  plan::Plan same = planned.plan();
  same.fp8 = same.gather_fp8 = false;
  MeasuredModels known;
  Planned bf16 = measured(other, same, known);
  measure_sizes(bf16, other, sizes_of_passes(other, same), known);
  bf16.choice.plan = same;
  evaluate(bf16, other);
  const auto costs = [](const Planned& p) {
    return "a step of " + format_seconds(p.choice.seconds) + " and " + format_bytes(p.choice.memory.peak) + " a rank" +
           (p.choice.fits ? "" : ", which does not fit");
  };
  const std::string both = "with products in fp8 " + costs(planned) + ", the same plan in bf16 " + costs(bf16);
  planned.choice.why += "; " + both;
  if (bf16.choice.fits && bf16.choice.seconds <= planned.choice.seconds)
    planned.warn("plan.compute_dtype = \"fp8\" makes this run no faster on " + planned.machine.profile.name + ": " +
                 both);
}

}  // namespace

Planned make_plan_as_is(const PlanRequest& request) {
  check_mesh(request.mesh, *request.model, request.latent);
  if (request.teacher) check_mesh(request.mesh, *request.teacher, request.latent);
  MeasuredModels known;
  Planned planned = request.by_hand ? plan_by_hand(request) : search_plan(request, known);
  const bool compared = !request.by_hand && !request.planner.first_that_fits;
  if (compared && planned.choice.fits && plan::set_by_hand(request.planner)) {
    plan::PlannerInput free = request.planner;
    free.micro_batch = planned.plan().micro_batch, free.idle = planned.plan().idle;
    free.gather_fp8 = planned.plan().gather_fp8;  // the model is measured with these gathers
    leave_room(free, kept_by_teacher(planned, request, planned.plan().teacher));
    planned.choice.warning = plan::slower_by_hand(planned.spec, request.mesh, free, planned.machine,
                                                  planned.choice.fastest - planned.prediction.step.base);
  }
  if (planned.choice.fits) planned.warn(faster_in_bf16(planned));
  if (planned.plan().fp8) tell_fp8(request, planned);
  return planned;
}

}  // namespace tessera::planning
