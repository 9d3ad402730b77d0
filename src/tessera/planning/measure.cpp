#include "tessera/planning/measure.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/signatures.h"
#include "tessera/engine/slice.h"
#include "tessera/job/given_checks.h"
#include "tessera/net/passes.h"
#include "tessera/ops/session.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/shares.h"
namespace tessera::planning {

namespace {

/// A micro-batch of the request's shapes, used for its sizes only.
net::Batch representative_batch(const PlanRequest& request, const net::Denoiser& model,
                                const std::array<int64_t, 4>& latent, int64_t samples) {
  net::Sample blank = request.blank ? request.blank(model, latent) : model.blank(latent);
  blank.context = blank.context.to(at::kMeta);
  net::Batch batch = engine::batch_of_alike(model, blank, samples);
  if (request.run.chunks > 1 && &model == request.model) {
    net::History history;
    history.of_all = true;
    batch.tokens.history = std::make_shared<net::History>(history);
  }
  return batch;
}
net::Batch representative_batch(const PlanRequest& request, const std::array<int64_t, 4>& latent, int64_t samples) {
  return representative_batch(request, *request.model, latent, samples);
}

/// What finished chunks of a rank's clips have left when a student trains on them, those of `samples` in `batch`.
int64_t left_by_chunks(const PlanRequest& request, net::Batch batch, int64_t samples, const Mesh& shares) {
  if (request.run.chunks <= 1) return 0;
  net::History::Left left;
  const auto history = std::make_shared<net::History>(*batch.tokens.history);
  history->storing = &left;
  batch.tokens.history = history;
  engine::measure(
      request.model->units(), batch, request.model_name,
      {.train = false, .mesh = shares, .compute = request.planner.compute, .attention = request.planner.attention});
  const int64_t chunks = request.run.chunks, own = div_up(request.planner.global_batch, request.mesh.dp_size());
  std::map<std::string, int64_t> by_kind;  // of units, of which those that are alike are measured once
  for (const auto& unit : request.model->units()) {
    const plan::UnitSpec spec = unit->spec();
    int64_t bytes = 0;
    const auto add = [&](const net::History::Sites& sites, int64_t among) {
      for (const auto& [site, t] : sites)
        if (site.starts_with(spec.name + ".")) bytes += t.numel() * static_cast<int64_t>(t.element_size()) / among;
    };
    add(left.states, chunks), add(left.frames, 1);
    by_kind[spec.kind] = std::max(by_kind[spec.kind], bytes);
  }
  int64_t bytes = 0, blocks = 0;
  for (const auto& unit : request.model->units())
    if (const int64_t of_unit = by_kind.at(unit->spec().kind); of_unit > 0) bytes += of_unit, ++blocks;
  return blocks == 0
             ? 0
             : (chunks - 1) * div_up(own, samples) * bytes * div_up(blocks, int64_t{request.mesh[Axis::pp]}) / blocks;
}

}  // namespace

std::optional<Target> measured_target(const plan::Profile& profile) {
  if (profile.target.empty()) return std::nullopt;
  return target(profile.target, "plan.profile");
}

namespace {
std::mutex measuring;  // jobs that are planned side by side share a model
}

UnitGroups unit_groups(const recipe::Recipe& recipe, const job::Job& job) {
  const auto known = std::make_shared<std::map<std::string, plan::ModelSpec>>();
  return [known, recipe, &job](const Mesh& mesh) {
    Mesh shares;
    for (const Axis axis : plan::kSequenceAxes) shares[axis] = mesh[axis];
    const std::lock_guard lock(measuring);
    const auto [at, is_new] = known->try_emplace(shares.to_string());
    if (is_new) {
      net::Sample blank = job::blank_sample(recipe, *job.model, job.largest);
      blank.context = blank.context.to(at::kMeta);
      const engine::MeasureOptions one_rank{.mesh = shares,
                                            .rank = shares.world() - 1};  // all send each other the same
      at->second = engine::measure(job.model->units(), job.model->pack({blank}), job.name, one_rank);
    }
    return plan::unit_groups(at->second, mesh);
  };
}

namespace {

void store_base_in_int8(plan::ModelSpec& spec) {
  for (plan::UnitSpec& unit : spec.units)
    for (plan::ParamSpec& param : unit.params)
      if (!param.trainable && param.stored == DType::bf16) param.stored = DType::i8;
}

}  // namespace

class Measurements {
 public:
  struct Found {
    plan::ModelSpec spec;
    engine::Counted counted;
  };

  /// Of a micro-batch of the request's shape, on its mesh.
  Found of(const PlanRequest& request, int64_t samples, const net::Batch& batch) {
    Mesh shares = request.mesh;
    for (const Axis axis : {Axis::dp_replicate, Axis::dp_shard}) shares[axis] = 1;
    const DType compute = request.planner.compute;
    const bool fp8 = request.planner.fp8, gather_fp8 = request.planner.gather_fp8;
    const plan::Attention attention = request.planner.attention;
    const Key key = {request.model, request.latent, samples,
                     shares.size,   compute,        fp8,
                     gather_fp8,    attention,      request.machine.profile.target};
    const auto known = found_.find(key);
    if (known != found_.end()) return known->second;
    const auto& units = request.model->units();
    const engine::Parallel last(shares, shares.world() - 1);
    Found found = {engine::measure(units, batch, request.model_name,
                                   {.mesh = shares,
                                    .compute = compute,
                                    .fp8 = fp8,
                                    .gather_fp8 = gather_fp8,
                                    .attention = attention,
                                    .masked = request.masked,
                                    .loss = request.loss}),
                   engine::count_signatures(units, engine::slice(batch, last), compute)};
    return found_.emplace(key, std::move(found)).first->second;
  }

 private:
  using Key = std::tuple<const net::Denoiser*, std::array<int64_t, 4>, int64_t, std::array<int, kAxes>, DType, bool,
                         bool, plan::Attention, std::string>;
  std::map<Key, Found> found_;
};

std::shared_ptr<Measurements> no_measurements() { return std::make_shared<Measurements>(); }

plan::Measured measure_model(const PlanRequest& request, int64_t samples) {
  if (samples > kMostSamples)
    throw UserError(
        Exit::usage, "train.micro_batch",
        std::to_string(samples) + " samples a micro-batch, expected at most " + std::to_string(kMostSamples),
        "take a smaller train.micro_batch, or leave it out");
  const std::lock_guard lock(measuring);
  plan::Measured result{.model = {}, .machine = request.machine};
  const net::Batch batch = representative_batch(request, request.latent, samples);
  const ops::TargetScope scope(measured_target(request.machine.profile));
  plan::ModelSpec& spec = result.model;
  const engine::MeasureOptions options{.mesh = request.mesh,
                                       .compute = request.planner.compute,
                                       .fp8 = request.planner.fp8,
                                       .gather_fp8 = request.planner.gather_fp8,
                                       .attention = request.planner.attention,
                                       .masked = request.masked,
                                       .loss = request.loss};
  auto [measured, counted] = request.measurements->of(request, samples, batch);
  spec = std::move(measured);
  if (engine::has_halos(batch, request.mesh))
    for (const auto& latent : request.wider)
      engine::cover(spec, request.model->units(), representative_batch(request, latent, samples), options);
  const auto share = [&](int64_t batch) { return div_up(batch, request.mesh.dp_size()); };
  const int64_t rounds = div_up(share(request.planner.global_batch), samples);
  for (const PlanRequest::OtherBatch& other : request.others)
    engine::cover(spec, request.model->units(),
                  representative_batch(request, other.latent, div_up(share(other.samples), rounds)), options);
  spec.resident +=
      request.resident + request.of_mesh + left_by_chunks(request, batch, samples, request.mesh) +
      plan::bytes_of(plan::workspaces(request.machine.profile, request.device_threads, request.deterministic));
  spec.between_steps = request.between_steps;
  if (device::used() || !request.machine.profile.target.empty()) spec.swap_piece = plan::kSwapPiece;
  const plan::WorkTable& work = result.machine.work = std::move(counted.work);
  result.machine.sizes = std::move(counted.signatures);
  for (plan::UnitSpec& unit : spec.units) unit.cost.backward_flops = work.at(unit.kind).backward_flops();
  if (request.base_in_int8) store_base_in_int8(spec);
  return result;
}

bool keeps_more_than_memory(const PlanRequest& request) {
  if (request.any_idle) return false;  // experts at rest may lie elsewhere
  plan::ModelSpec spec;
  for (const auto& unit : request.model->units()) spec.units.push_back(unit->spec());
  if (request.base_in_int8) store_base_in_int8(spec);
  return plan::lasting_bytes_exceed_memory(spec, request.mesh, request.planner);
}

plan::Measured measure_batch(const PlanRequest& request, const plan::Plan& batch, MeasuredModels& known) {
  const auto of = [&](int64_t samples) -> const plan::Measured& {
    auto found = known.find(samples);
    if (found == known.end()) {
      if (request.on_phase) request.on_phase(PlanPhase::measuring);
      found = known.emplace(samples, measure_model(request, samples)).first;
      if (request.on_phase) request.on_phase(PlanPhase::searching);
    }
    return found->second;
  };
  plan::Measured result = of(batch.micro_batch);
  if (!request.others.empty()) return result;
  for (const int64_t samples : plan::smaller_micro_batches(batch)) {
    const plan::Measured& smaller = of(samples);
    result.model.smaller.push_back(smaller.model);
    result.machine.smaller[samples] = {smaller.machine.work, smaller.machine.sizes};
  }
  return result;
}

namespace {

/// The model in forward mode, for all micro-batches of `batch`.
std::shared_ptr<const plan::ModelSpec> measure_tangent(const PlanRequest& request, const plan::Plan& batch) {
  const std::lock_guard lock(measuring);
  const ops::TargetScope scope(measured_target(request.machine.profile));
  const net::Denoiser& model = *request.model;
  const std::vector<std::unique_ptr<net::Unit>> units = net::forward_mode(model);
  const auto of = [&](int64_t count) {
    const engine::MeasureOptions options{.train = false,
                                         .mesh = request.mesh,
                                         .compute = request.planner.compute,
                                         .attention = request.planner.attention};
    const auto packed = [&](const std::array<int64_t, 4>& latent) {
      const net::Sample blank = request.blank ? request.blank(model, latent) : model.blank(latent);
      const auto samples = static_cast<size_t>(count);
      return net::pack_moving(model, std::vector<net::Sample>(samples, blank),
                              std::vector<net::Direction>(samples, {blank.x, 1}));
    };
    const net::Batch largest = packed(request.latent);
    plan::ModelSpec spec = engine::measure(units, largest, request.model_name, options);
    if (engine::has_halos(largest, request.mesh))
      for (const auto& latent : request.wider) engine::cover(spec, units, packed(latent), options);
    return spec;
  };
  plan::ModelSpec spec = of(batch.micro_batch);
  for (const int64_t samples : plan::smaller_micro_batches(batch)) spec.smaller.push_back(of(samples));
  return std::make_shared<const plan::ModelSpec>(std::move(spec));
}

/// The teacher up to the blocks that have heads: frozen, with gradients of its inputs, laid out as the student.
std::shared_ptr<const plan::ModelSpec> measure_features(const PlanRequest& request, const plan::Plan& batch,
                                                        const plan::ModelSpec& student) {
  const std::lock_guard lock(measuring);
  const ops::TargetScope scope(measured_target(request.machine.profile));
  const std::vector<std::unique_ptr<net::Unit>> units = net::frozen_up_to_blocks(*request.model, request.heads.blocks);
  const auto of = [&](int64_t count) {
    const engine::MeasureOptions options{.input_grad = true,
                                         .mesh = request.mesh,
                                         .compute = request.planner.compute,
                                         .attention = request.planner.attention};
    const net::Batch largest = representative_batch(request, request.latent, count);
    plan::ModelSpec spec = engine::measure(units, largest, request.model_name, options);
    if (engine::has_halos(largest, request.mesh))
      for (const auto& latent : request.wider)
        engine::cover(spec, units, representative_batch(request, latent, count), options);
    spec.targets = 0;
    for (size_t u = 0; u < units.size(); ++u) spec.units[u].params = student.units[u].params;
    return spec;
  };
  plan::ModelSpec spec = of(batch.micro_batch);
  for (const int64_t samples : plan::smaller_micro_batches(batch)) spec.smaller.push_back(of(samples));
  spec.resident = student.resident, spec.between_steps = student.between_steps, spec.swap_piece = student.swap_piece;
  return std::make_shared<const plan::ModelSpec>(std::move(spec));
}

/// A teacher of other sizes, forward alone, and its work.
std::shared_ptr<const plan::Measured> measure_teacher(const PlanRequest& request, const plan::Plan& batch) {
  const std::lock_guard lock(measuring);
  const ops::TargetScope scope(measured_target(request.machine.profile));
  const DType compute = request.planner.compute;
  const std::vector<std::unique_ptr<net::Unit>> units = net::frozen(*request.teacher, compute);
  const engine::MeasureOptions options{.train = false,
                                       .mesh = request.mesh,
                                       .compute = compute,
                                       .fp8 = request.planner.fp8,
                                       .attention = request.planner.attention};
  const auto packed = [&](const std::array<int64_t, 4>& latent) {
    return representative_batch(request, *request.teacher, latent, batch.micro_batch);
  };
  const net::Batch largest = packed(request.latent);
  plan::Measured teacher{.model = engine::measure(units, largest, "teacher", options), .machine = request.machine};
  if (engine::has_halos(largest, request.mesh))
    for (const auto& latent : request.wider) engine::cover(teacher.model, units, packed(latent), options);
  Mesh shares = request.mesh;
  for (const Axis axis : {Axis::dp_replicate, Axis::dp_shard}) shares[axis] = 1;
  engine::Counted counted =
      engine::count_signatures(units, engine::slice(largest, engine::Parallel(shares, shares.world() - 1)), compute);
  for (plan::UnitSpec& unit : teacher.model.units) unit.name = "teacher." + unit.name;  // a schedule has both networks
  teacher.machine.work = std::move(counted.work), teacher.machine.sizes = std::move(counted.signatures);
  return std::make_shared<const plan::Measured>(std::move(teacher));
}

/// Groups of samples that heads normalise, of a batch of so many, those of one dp rank (train/heads.h).
struct HeadGroups {
  int64_t groups = 0, samples = 0;
};
HeadGroups groups_of(int64_t batch, int64_t rank, int64_t ranks) {
  const int64_t samples = diffusion::samples_of_group(batch), groups = batch / samples;
  HeadGroups own{0, samples};
  for (int64_t g = 0; g < groups; ++g) own.groups += g * ranks / groups == rank;
  return own;
}

/// What a rank's heads take of the device at most, as they tell and learn (train/heads.cpp), by running both on meta.
int64_t activations_of(const PlanRequest& request, int64_t width, int64_t tokens, HeadGroups clips, HeadGroups fakes) {
  const diffusion::AdversarialRule& rule = request.heads.rule;
  const bool copies = measured_target(request.machine.profile).has_value();  // on a CPU they share the host's memory
  const size_t count = request.heads.blocks.size();
  const auto made = [&] {
    std::map<std::string, at::Tensor> values;
    for (const auto& [name, shape] : diffusion::head_shapes(count, width))
      values[name] = at::empty(shape, at::dtype(at::kFloat).device(at::kMeta));
    return values;
  };
  const std::map<std::string, at::Tensor> shared = made();
  const engine::Meter::MetaCount counted;
  const auto heads = [&] { return diffusion::Discriminator(copies ? made() : shared); };
  const auto each = [&](const HeadGroups& own, const auto& visit) {
    for (int64_t g = 0; g < own.groups; ++g) {
      std::vector<at::Tensor> features;
      for (size_t h = 0; h < count; ++h)
        features.push_back(at::empty({own.samples, width, tokens}, at::dtype(at::kFloat).device(at::kMeta)));
      visit(features);
    }
  };
  {
    diffusion::Discriminator telling = heads();
    each(clips, [&](const auto& features) { diffusion::generator_loss(telling, features, rule); });
  }
  diffusion::Discriminator learning = heads();
  diffusion::AdversarialLoss loss;
  const auto learn = [&](const HeadGroups& own, auto add) {
    learning.follow();
    each(own, [&](const auto& features) { add(loss, learning, features, rule, 1); });
  };
  learn(fakes, diffusion::add_fakes);
  learn(clips, diffusion::add_reals);
  if (rule.r1_weight > 0) learn(clips, diffusion::add_penalty);
  return counted.peak();
}

/// Their optimiser's states are in fp32.
diffusion::HeadsBytes heads_of(const PlanRequest& request, const plan::ModelSpec& features) {
  const auto count = static_cast<int64_t>(request.heads.blocks.size());
  const int64_t width = features.prediction_row / (4 * count),
                tokens = representative_batch(request, request.latent, 1).tokens.total(),
                clips = request.planner.global_batch / 2, fakes = (request.run.misaligned ? 2 : 1) * clips;
  const plan::ParamSpec largest{.name = "heads", .shape = {width, 9 * width}};
  double bytes = 0;  // of each value
  for (const plan::StateSpec& state : plan::states_of({.optimizer = request.planner.states.optimizer})(largest))
    bytes += static_cast<double>(state.values(0, largest.numel()) * size_of(state.type)) /
             static_cast<double>(largest.numel());
  diffusion::HeadsBytes heads = diffusion::heads_bytes(request.heads.blocks.size(), width, bytes);
  for (int64_t rank = 0, ranks = request.mesh.dp_size(); rank < ranks; ++rank)
    heads.activations.push_back(
        activations_of(request, width, tokens, groups_of(clips, rank, ranks), groups_of(fakes, rank, ranks)));
  return heads;
}

}  // namespace

Planned measured(const PlanRequest& request, const plan::Plan& batch, MeasuredModels& known) {
  Planned planned;
  static_cast<RunFacts&>(planned) = request;
  planned.budget = request.planner.budget;
  planned.host_budget = request.planner.host_budget;
  plan::Measured found = measure_batch(request, batch, known);
  planned.spec = std::move(found.model);
  planned.machine = std::move(found.machine);
  if (request.teacher) planned.teacher = measure_teacher(request, batch);
  if (!request.run.distils()) return planned;
  const std::shared_ptr<const plan::ModelSpec> moving = measure_tangent(request, batch);
  plan::ModelSpec beside = *moving;
  beside.resident = planned.spec.resident, beside.between_steps = planned.spec.between_steps;
  beside.swap_piece = planned.spec.swap_piece;
  planned.tangent = std::make_shared<const plan::ModelSpec>(std::move(beside));
  if (!request.run.judges) return planned;
  planned.features = measure_features(request, batch, planned.spec);
  planned.heads = heads_of(request, *planned.features);
  planned.spec.between_steps = std::max(planned.spec.between_steps, std::ranges::max(planned.heads.activations));
  return planned;
}

}  // namespace tessera::planning
