// Runs random plans on this rank and compares them with the plain loop: the same ranks, the same micro-batches, every
// unit whole, everything kept, reduced once in the same way.
//
//   plan_worker launch MESH/FIRST/LAST[/FAMILY]...   # plans keyed by seed FIRST..LAST-1, on the mesh's ranks
//   plan_worker order MESH/FIRST/LAST[/FAMILY]...    # these plans compiled alone, for all ranks: their order
//
// One seed in five keeps gradients in bf16; the plain loop then rounds its own where the plan's come to rest.
// Plans from kLossySeeds on keep activations in fewer bits: their outputs are the same bits and their gradients within
// kLossyBound of the largest.
//
// On a GPU, whose products have other bits, outputs and gradients are held to the family's bound, and updates to the bits of one from
// the gradient that was found; TESSERA_TEST_BOUND=1 does the same anywhere. At its end rank 0 then prints how many plans there
// were and what was off most.
//
// Ends with 1 and says which plan when an output or a gradient differs by a bit, when the measured peak is above the
// prediction or much below it (planned_share.h), when memory is taken where the schedule does not say so or in no
// order to its last use, or when something is left.
#include <ATen/Parallel.h>

#include <cstdio>

#include "engine/memory_record.h"
#include "families.h"
#include "planned_share.h"
#include "seed_worker.h"
#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/slice.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/engine/store/updates.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/session.h"
#include "tessera/optim/adamw.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/compile/races.h"
#include "tessera/plan/plan_file.h"

namespace tessera::engine {
namespace {

using testing::draw;
using testing::Family;
using testing::Random;

Tensor values(std::vector<int64_t> shape, uint64_t seed, uint64_t index) {
  Tensor t = at::empty(shape, at::kFloat);
  RandomKey(seed, Purpose::test, index).normal(t.mutable_data_ptr<float>(), 0, static_cast<size_t>(t.numel()));
  return t;
}

constexpr uint64_t kLossySeeds = 1'000'000;
constexpr double kLossyBound = 0.2;  ///< fp8 rounds by up to 1/16, and errors of several layers meet

/// Whether what is computed elsewhere has other bits than the plain loop.
bool to_the_bound() {
  static const bool wanted = std::getenv("TESSERA_TEST_BOUND");
  return wanted || (device::used() && device::used()->type == c10::DeviceType::CUDA);
}
double most_off = 0;  // of all compared to the bound, of the largest value
int plans = 0;

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor here = a.cpu(), there = b.cpu();
  return a.nbytes() == b.nbytes() && std::memcmp(here.const_data_ptr(), there.const_data_ptr(), a.nbytes()) == 0;
}

void expect(bool ok, const std::string& what) {
  if (!ok) throw UserError(Exit::comparison, "plan_worker", what);
}

/// One random case, the same on every rank.
struct Case {
  const Family& family;
  uint64_t seed;
  std::unique_ptr<net::Denoiser> model;
  std::vector<int64_t> latent;
  plan::Plan plan;

  Case(uint64_t seed, const Mesh& mesh, const Family& family) : family(family), seed(seed) {
    Random random(seed);
    model = family.model(random, mesh);
    latent = {model->in_channels(), draw(random, 1, std::min<int64_t>(3, family.most_frames)), 2 * draw(random, 2, 6),
              2 * draw(random, 2, 6)};
    if (family.latent[0] > 0) std::ranges::copy(family.latent, latent.begin() + 1);
    plan.mesh = mesh;
    plan.global_batch = draw(random, 1, 3 * mesh.dp_size());
    plan.micro_batch = draw(random, 1, 3);
    plan.prefetch = static_cast<int>(draw(random, 0, 3));
    plan.states.moments = static_cast<plan::Moments>(draw(random, 0, 2));
    for (const auto& unit : model->units()) {
      plan::UnitPlan choice;
      choice.activations = policy(random);
      choice.strategy = draw(random, 0, 1) ? plan::Strategy::full_shard
                                           : static_cast<plan::Strategy>(draw(random, 1, plan::kStrategies - 1));
      choice.reduce_once = draw(random, 0, 2) == 0;
      for (plan::Tier* tier : {&choice.parameters, &choice.gradients, &choice.states})
        *tier = draw(random, 0, 1) ? plan::Tier::device : static_cast<plan::Tier>(draw(random, 1, 2));
      const bool block = unit->spec().kind == "block";
      std::vector<const char*> sites = {"boundary"};
      sites.insert(sites.end(), family.attentions.begin(), family.attentions.end());
      for (const char* site : sites) {
        if (draw(random, 0, 2) || (!block && std::string_view(site) != "boundary")) continue;
        const plan::Policy of_site = policy(random);
        const bool of_unit =
            of_site == plan::Policy::rebuild || (of_site == plan::Policy::recompute && choice.activations != of_site);
        if (!of_unit) choice.sites[site] = of_site;
      }
      plan.units.push_back(choice);
    }
    if (mesh[Axis::pp] > 1) draw_pipeline(random);
    draw_updates();
    draw_results();
    if (seed % 5 == 4) plan.grad = DType::bf16;
  }

  bool lossy() const { return seed >= kLossySeeds; }
  plan::Policy policy(Random& random) const {
    return plan::named_policies()[draw(random, 0, lossy() ? static_cast<int>(plan::named_policies().size()) - 1 : 3)]
        .policy;
  }

  /// Drawn apart: what a seed chose before there was a choice of updates it still chooses.
  void draw_updates() {
    Random random(seed + (uint64_t{1} << 32));
    plan.update = static_cast<plan::Update>(seed % 3);
    plan.update_threads = static_cast<int>(draw(random, 1, 3));
    for (plan::UnitPlan& unit : plan.units)
      if (draw(random, 0, 4) == 0) unit.parameters = unit.gradients = unit.states = unit.update_on = plan::Tier::host;
    for (plan::UnitPlan& unit : plan.units)
      if (draw(random, 0, 2) == 0) unit.offload_to = plan::Tier::nvme;
  }

  /// Likewise: what is done with the feed-forward's result.
  void draw_results() {
    Random random(seed + (uint64_t{2} << 32));
    for (size_t u = 0; u < plan.units.size(); ++u) {
      if (model->units()[u]->spec().kind != "block" || draw(random, 0, 2)) continue;
      const plan::Policy of_site = policy(random);
      if (of_site == plan::Policy::rebuild || of_site == plan::Policy::recompute) continue;
      for (const char* site : family.results) plan.units[u].sites[site] = of_site;
    }
  }

  void draw_pipeline(Random& random) {
    const int units = static_cast<int>(plan.units.size()), ranks = plan.mesh[Axis::pp];
    plan.pipeline.schedule = static_cast<plan::PipelineSchedule>(draw(random, 0, 3));
    if (plan.pipeline.schedule == plan::PipelineSchedule::interleaved && units >= 2 * ranks) plan.pipeline.chunks = 2;
    std::vector<double> cost;
    for (int u = 0; u < units; ++u) cost.push_back(static_cast<double>(draw(random, 1, 9)));
    plan.pipeline.first = plan::balanced_stages(cost, plan.stages());
  }

  /// Where a rank has several stages their gradients of conditioning are summed in another order than the plain loop's,
  /// and the stem's gradients follow from that sum. Gradients of weights that are left for later are summed over each
  /// micro-batch first (ops/session.h).
  bool same_order(int unit) const {
    const bool later = plan.pipeline.schedule == plan::PipelineSchedule::zero_bubble && plan.mesh[Axis::pp] > 1;
    return (unit > 0 || plan.pipeline.chunks == 1) && !(later && plan.accumulation() > 1);
  }

  net::Batch batch(int dp_rank, int64_t micro) const {
    std::vector<net::Sample> samples;
    const auto slice = plan.slice(dp_rank, micro);
    for (int64_t s = slice.first; s < slice.first + slice.count; ++s) {
      net::Sample sample = model->blank({latent[0], latent[1], latent[2], latent[3]});
      sample.x = values(latent, seed, 2 * s);
      sample.context = values({family.caption_tokens ? 3 : 2 + s % 2, model->context_dim()}, seed, 1000 + s);
      sample.t = static_cast<double>(37 * (s + 1) % 1000);
      for (const char* picture :
           {"y", "clip_fea", "vace_context", "glyphs", "image", "image_latent", "pose_latents", "face"})
        if (const auto found = sample.extra.find(picture); found != sample.extra.end())
          found->second = values(found->second.sizes().vec(), seed, 2000 + 2 * s + (found->first == "y"));
      samples.push_back(std::move(sample));
    }
    return model->pack(samples);
  }
  Tensor target(int dp_rank, int64_t micro, const Tensor& like) const {
    return values(like.sizes().vec(), seed, 5000 + 100 * static_cast<uint64_t>(dp_rank) + micro);
  }
  Tensor loss_gradient(const Tensor& prediction, const Tensor& target) const {
    Tensor gradient = at::empty_like(prediction);
    const auto* p = prediction.const_data_ptr<float>();
    const auto* t = target.const_data_ptr<float>();
    auto* g = gradient.mutable_data_ptr<float>();
    for (int64_t i = 0; i < prediction.numel(); ++i) g[i] = (p[i] - t[i]) / static_cast<float>(prediction.numel());
    return gradient;
  }
  void fill(Store& store) const {
    if (!weights) weights.emplace(*model, seed);
    fill_shards(store, std::ref(*weights));
  }
  mutable std::optional<testing::DrawnWeights> weights;
};

/// Batches that are there, and what becomes of a prediction. Like the objective that trains it has targets, here without
/// values, from the load of a micro-batch to its loss.
class Given final : public net::Objective {
 public:
  using Gradient = std::function<Tensor(const Tensor& prediction, int micro)>;
  using Targets = std::function<std::vector<Tensor>(const net::Batch& batch)>;
  Given(const std::vector<net::Batch>& batches, Targets targets, Gradient gradient)
      : batches_(batches), targets_of_(std::move(targets)), gradient_(std::move(gradient)) {}
  net::Batch batch(int micro) override {
    const net::Batch& batch = batches_.at(static_cast<size_t>(micro));
    targets_[micro] = targets_of_(batch);
    return batch;
  }
  std::vector<Tensor*> compared(int micro) override {
    std::vector<Tensor*> all;
    for (Tensor& rows : targets_.at(micro)) all.push_back(&rows);
    return all;
  }
  Tensor gradient(const Tensor& prediction, const net::Batch&, int micro) override {
    const auto targets = targets_.extract(micro);
    return gradient_(prediction.cpu(), micro).to(prediction.device());
  }

 private:
  const std::vector<net::Batch>& batches_;
  const Targets targets_of_;
  const Gradient gradient_;
  std::map<int, std::vector<Tensor>> targets_;
};

std::vector<std::string> prefixes_of(const net::Denoiser& model) {
  std::vector<std::string> prefixes;
  for (const auto& unit : model.units()) prefixes.push_back(unit->prefix());
  return prefixes;
}

struct Result {
  double norm = 0;
  std::vector<Tensor> outputs;    // by micro-batch
  std::vector<Tensor> gradients;  // by unit: this rank's reduced shard
};

/// What comes to rest is rounded to what it rests as.
void come_to_rest(const Case& c, const Tensor& gradient) {
  if (c.plan.rounds_gradients()) gradient.copy_(gradient.to(at::kBFloat16));
}

/// The plain loop over whole units, and the reductions that the plan names.
Result reference(const Case& c, const plan::ModelSpec& spec, comm::Comm& comm, int rank) {
  plan::Plan whole;  // but for what tp cuts
  whole.mesh[Axis::tp] = c.plan.mesh[Axis::tp];
  whole.units.assign(spec.units.size(), {.strategy = plan::Strategy::no_shard});
  Store store(spec, prefixes_of(*c.model), whole, c.plan.mesh.coordinate(rank, Axis::tp), at::kCPU);
  c.fill(store);
  const Parallel parallel(c.plan.mesh, rank, &comm);
  const auto& units = c.model->units();
  const int count = static_cast<int>(units.size()), dp_rank = c.plan.mesh.dp_rank(rank);
  const auto micros = static_cast<int>(c.plan.accumulation());
  Result result;
  for (int u = 0; u < count; ++u) result.gradients.push_back(at::zeros({c.plan.layout(spec.units[u], u).grad_shard}));
  for (int m = 0; m < micros; ++m) {
    const bool idle = c.plan.slice(dp_rank, m).count == 0;
    std::vector<UnitRun> runs(count);
    std::vector<Tensor> cond, cond_grad, stream_grad;
    if (!idle) {
      const net::Batch batch = slice(c.batch(dp_rank, m), parallel);
      std::vector<Tensor> stream = batch.inputs;
      for (int u = 0; u < count; ++u) {
        store.bind(u, -1);
        runs[u].in = leaves(stream, u > 0);
        ShardContext ctx(store, u, batch.tokens, {.parallel = &parallel});
        net::Flow out = run_forward(*units[u], ctx, cond, true, runs[u]);
        stream = std::move(out.stream);
        if (!out.cond.empty()) cond = leaves(out.cond, true), cond_grad.assign(cond.size(), Tensor());
      }
      result.outputs.push_back(stream[0].clone());
      stream_grad = {c.loss_gradient(stream[0], c.target(dp_rank, m, stream[0]))};
      for (int u = count - 1; u >= 0; --u) {
        const bool adds = m > 0 && (!c.plan.layout(spec.units[u], u).sharded || c.plan.units[u].reduces_once());
        store.bind_grad(u, -1, !adds);
        std::vector<Tensor> none;
        stream_grad =
            run_backward(runs[u], std::move(stream_grad), u == 0 ? std::move(cond_grad) : std::vector<Tensor>{},
                         u == 0 ? std::vector<Tensor>{} : cond, u == 0 ? none : cond_grad, store.anchor(u));
        store.finish_grad(u);
      }
    }
    for (int u = count - 1; u >= 0; --u) {
      const plan::UnitLayout layout = c.plan.layout(spec.units[u], u);
      const bool once = !layout.sharded || c.plan.units[u].reduces_once();
      if (layout.grad_total == 0) continue;
      if (idle && !(once && m > 0)) store.grad(u).zero_();
      if (once && m + 1 < micros) {
        if (!layout.sharded) come_to_rest(c, store.grad(u));  // what is sharded waits in the arena to be reduced
        continue;
      }
      for (size_t b = 0; b < layout.buffers.size(); ++b) {
        const plan::Buffer &part = layout.buffers[b], &all = store.layout(u).buffers[b];
        if (!part.trainable) continue;
        const Tensor flat = at::zeros({part.total}), sum = result.gradients[u].narrow(0, part.held, part.shard);
        const int64_t n = std::min(part.total, all.total);
        flat.narrow(0, 0, n).copy_(store.grad(u).narrow(0, all.held, n));
        if (layout.sharded)
          comm.group("reference", c.plan.axes(part)).reduce_scatter(sum, flat, at::empty_like(flat), m > 0 && !once);
        else
          sum.copy_(flat);
      }
      if (m + 1 < micros) come_to_rest(c, result.gradients[u]);
    }
  }
  for (int u = count - 1; u >= 0; --u) {
    const plan::UnitLayout layout = c.plan.layout(spec.units[u], u);
    for (const plan::Buffer& part : layout.buffers)
      if (part.trainable)
        comm.group("reference_outer", c.plan.outer_axes(part))
            .all_reduce(result.gradients[u].narrow(0, part.held, part.shard));
    come_to_rest(c, result.gradients[u]);
  }
  double squares = 0;
  Store speaker(spec, prefixes_of(*c.model), c.plan, rank, at::kMeta);
  for (int u = 0; u < count; ++u) {
    const Tensor& gradient = result.gradients[u];
    const auto buffers = static_cast<int64_t>(c.plan.layout(spec.units[u], u).buffers.size());
    const Tensor sums = at::zeros({buffers}, gradient.options().dtype(at::kDouble));
    speaker.squares(u, gradient, sums);
    squares += sums.sum().item<double>();
  }
  double total = 0;
  for (const auto& row : comm.group("reference_norm", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles({squares}))
    total += row[0];
  result.norm = std::sqrt(total);
  return result;
}

/// Of the largest value.
double off(const Tensor& found, const Tensor& expected) {
  if (expected.numel() == 0) return 0;
  const double most = expected.abs().max().item<double>(), apart = (found - expected).abs().max().item<double>();
  return apart <= 1e-12 ? 0 : apart / most;  // NaN is none of the two
}
/// Gradients of what was rounded on the way.
bool near(const Tensor& found, const Tensor& expected) { return off(found, expected) <= kLossyBound; }

/// The same bits, or within the family's bound where they are computed elsewhere. `rounded`: to 16 bits since.
bool alike(const Case& c, const Tensor& found, const Tensor& expected, bool rounded = false) {
  if (!to_the_bound()) return same_bits(found, expected);
  const double apart = off(found.cpu(), expected);
  most_off = std::max(most_off, apart);
  return found.sizes() == expected.sizes() && apart <= std::max(c.family.bound, rounded ? 1e-2 : 0.0);
}

/// Of a gradient shard what this rank updates: in two levels a rank has the sum of that alone.
Tensor updated_part(const Store& store, int unit, const Tensor& gradient) {
  std::vector<Tensor> pieces;
  for (size_t b = 0; b < store.layout(unit).buffers.size(); ++b)
    if (const plan::Buffer& buffer = store.layout(unit).buffers[b]; buffer.trainable)
      pieces.push_back(store.partition(unit, static_cast<int>(b), gradient.narrow(0, buffer.held, buffer.shard)));
  return pieces.empty() ? gradient : at::cat(pieces);
}

/// What rests on the device, on the host and on disk is what the plan says.
void check_persistent(const Store& store, const plan::MemoryCurve& curve) {
  const int64_t device = Meter::live(Part::parameters) + Meter::live(Part::gradients) + Meter::live(Part::states);
  expect(device <= curve.persistent + 64 * 3 * store.units() && device >= curve.persistent,
         std::to_string(device) + " bytes rest on the device, planned " + std::to_string(curve.persistent));
  const int64_t host = curve.host.parameters + curve.host.gradients + curve.host.states;
  expect(store.host_bytes() == host,
         std::to_string(store.host_bytes()) + " bytes rest on the host, planned " + std::to_string(host));
  const int64_t disk = curve.nvme.total() - curve.nvme.activations;
  expect(store.disk_bytes() == disk,
         std::to_string(store.disk_bytes()) + " bytes rest on disk, planned " + std::to_string(disk));
}

/// Whether a step leaves the unit's gradient where it rests; else its update has used it up in the arena, and tells.
bool keeps_gradient(const Case& c, Store& store, int unit) {
  const plan::UnitPlan& choice = c.plan.units[unit];
  const bool away =
      (choice.gradients != plan::Tier::device || c.plan.rounds_gradients()) && choice.update_on == plan::Tier::device;
  return store.layout(unit).grad_total > 0 && store.grad(unit).defined() &&
         !(away && c.plan.update == plan::Update::in_backward);
}

/// Parameters and states after the update, against one over buffers that all rest on the device.
void check_update(const Case& c, const plan::ModelSpec& spec, Store& store, const Result& expected,
                  const optim::AdamW& adamw, comm::Comm& comm, int rank) {
  plan::Plan near = c.plan;
  near.update = plan::Update::end;
  for (auto& unit : near.units) unit.parameters = unit.gradients = unit.states = unit.update_on = plan::Tier::device;
  Store reference(spec, prefixes_of(*c.model), near, rank, at::kCPU);
  reference.make_states(adamw);
  c.fill(reference);
  for (int u = 0; u < store.units(); ++u) {
    if (!store.owns(u) || store.layout(u).grad_total == 0) continue;
    if ((c.lossy() || to_the_bound()) && !keeps_gradient(c, store, u)) continue;  // nobody knows what it was
    reference.grad(u).copy_(expected.gradients[u]);
    update_unit(reference, u, adamw, {1, 1e-3, 0.5}, {});
    for (size_t b = 0; b < reference.layout(u).buffers.size(); ++b) {
      if (reference.layout(u).buffers[b].partitions == 1) continue;
      const Tensor shard = reference.shard(u, static_cast<int>(b));
      comm.group("reference_spread", reference.outer_axes(u, static_cast<int>(b)))
          .all_gather(shard, reference.partition(u, static_cast<int>(b), shard));
    }
    if (!c.same_order(u)) continue;
    expect(same_bits(store.param(u), reference.param(u)), "the update of " + spec.units[u].name + " differs");
    expect(same_bits(store.state_buffer(u), reference.state_buffer(u)),
           "the optimiser's states of " + spec.units[u].name + " differ");
  }
}

/// On a device plans are measured for a target, as on a machine that has neither.
ops::TargetScope measured_for() {
  return ops::TargetScope(device::used() ? std::optional(target("sm_90", "plan_worker")) : std::nullopt);
}

/// The model, measured for each number of samples on the fullest micro-batch there is, with the most text: of all dp
/// ranks, or of those of one rank (-1: all) with its own share of their tokens.
plan::ModelSpec measured(const Case& c, int rank = -1) {
  std::map<int64_t, net::Batch> fullest;
  for (int d = 0; d < c.plan.mesh.dp_size(); ++d)
    for (int64_t m = 0; m < c.plan.accumulation(); ++m) {
      const int64_t count = c.plan.slice(d, m).count;
      if (count == 0 || (rank >= 0 && d != c.plan.mesh.dp_rank(rank))) continue;
      net::Batch batch = c.batch(d, m);
      net::Batch& most = fullest[count];
      if (most.inputs.empty() || batch.tokens.space(1).total() > most.tokens.space(1).total()) most = std::move(batch);
    }
  if (fullest.empty()) return measured(c);  // a rank without samples
  const ops::TargetScope scope = measured_for();
  std::vector<plan::ModelSpec> specs;
  for (const auto& [samples, batch] : fullest)
    specs.push_back(measure(c.model->units(), batch, "random", {.mesh = c.plan.mesh, .rank = rank}));
  plan::ModelSpec spec = std::move(specs.back());
  specs.pop_back();
  spec.smaller = std::move(specs);
  return spec;
}

/// No two instructions of the rank's schedules share memory in no order.
void check_order(const Case& c, const plan::ModelSpec& spec, int rank) {
  const plan::RunSchedules all = plan::compile_all(spec, c.plan, rank, 2);
  for (const plan::Schedule* schedule : {&all.train, &all.first, &all.updates, &all.sample})
    for (const plan::Race& race : plan::find_races(spec, c.plan, *schedule, rank))
      expect(false, schedule->phase + ": " + plan::to_string(race, *schedule));
}

void check(const Case& c, comm::Comm& comm, int rank) {
  const int dp_rank = c.plan.mesh.dp_rank(rank);
  const plan::ModelSpec spec = measured(c);
  check_order(c, spec, rank);
  Result expected = reference(c, spec, comm, rank);
  std::vector<net::Batch> batches(static_cast<size_t>(c.plan.accumulation()));
  for (size_t m = 0; m < batches.size(); ++m)
    if (const auto micro = static_cast<int64_t>(m); c.plan.slice(dp_rank, micro).count > 0)
      batches[m] = c.batch(dp_rank, micro);

  const plan::Programs programs(c.plan, plan::compile_all(spec, c.plan, rank, 1), /*samples=*/false);
  const int64_t arena = programs.arena;
  const plan::MemoryCurve curve = plan::memory_curve(spec, c.plan, programs.train->schedule, rank, arena);
  Engine engine(c.model->units(), spec, c.plan, comm, rank, {.nvme = {"/tmp", /*checksum=*/true}, .poison = true});
  Store& store = engine.store();
  engine.use(programs);
  engine.optimise(std::make_unique<const optim::AdamW>(optim::AdamWOptions{.format = c.plan.states}));
  c.fill(store);
  check_persistent(store, curve);
  std::vector<Tensor> outputs;
  const auto gradient = [&](const Tensor& prediction, int micro) {
    {
      const Meter::Scope scope(Part::states);  // the test's own
      outputs.push_back(prediction.clone());
    }
    const Tensor target = [&] {
      const Meter::Scope scope(Part::host);  // likewise
      return c.target(dp_rank, micro, prediction);
    }();
    return c.loss_gradient(prediction, target);
  };
  const bool has_loss = store.owns(store.units() - 1);
  const auto targets = [&](const net::Batch& batch) {
    std::vector<Tensor> rows;
    const plan::TokenRange here = plan::token_share(batch.tokens.total(), c.plan.mesh, rank);
    const std::vector<int64_t> offsets = batch.tokens.local_offsets(here.begin, here.end);
    for (size_t s = 0; has_loss && s + 1 < offsets.size(); ++s)
      rows.push_back(at::empty({offsets[s + 1] - offsets[s], spec.prediction_row / 4}));
    return rows;
  };
  Given objective(batches, targets, gradient);
  const net::StepControl control{1, 1e-3, 0.5};
  Pass pass;
  double norm = 0;
  const int64_t before = Meter::live();
  const auto own = [&] {  // what the test itself keeps
    int64_t bytes = 0;
    if (device::used()) return bytes;  // predictions are kept in host memory
    for (const Tensor& t : outputs) bytes += round_up(static_cast<int64_t>(t.nbytes()), 64);
    return bytes;
  };
  // All memory is taken on the compute lane: the instruction that has the most is named.
  const int64_t ground = before - curve.persistent - arena - spec.resident;
  std::string at;
  int64_t peak = 0;
  const auto look = [&](const std::string& where) {
    const int64_t found = Meter::peak() - ground - own();
    if (found > peak) peak = found, at = where;
  };
  testing::MemoryRecord& record = testing::MemoryRecord::install();
  engine.lanes().on_instruction([&](int64_t, int index, const plan::Instruction& in, bool ends) {
    record.at(index, in, ends);
    if (in.lane != plan::Lane::compute) return;
    look(std::string(ends ? "" : "what comes before ") + std::string(name(in.op)) + " " + in.name);
    if (!ends) Meter::reset_peak();
  });
  // The first step changes nothing, so that a second one finds what the first has left. Just in time its updates come
  // in the second, without an optimiser, and those of the second after it.
  const bool just_in_time = programs.just_in_time();
  const auto check_disk = [&] {
    expect(engine.interpreter().disk_bytes() == curve.nvme.activations,
           std::to_string(engine.interpreter().disk_bytes()) + " bytes of activations rest on disk, planned " +
               std::to_string(curve.nvme.activations));
  };
  for (int64_t step = 1; step <= 2; ++step) {
    outputs.clear();
    Meter::reset_peak();
    pass.program = programs.step(/*pending=*/step > 1), pass.step = step;
    const std::optional<net::StepControl> decided = step == 2 ? std::optional(control) : std::nullopt;
    if (c.plan.update == plan::Update::in_backward) pass.ahead = decided;
    record.start(pass.program->schedule);
    StepRun half = [&] {
      const testing::MemoryRecord::Scope scope(record);
      return engine.run(pass, objective, {});
    }();
    norm = half.norm();
    {
      const testing::MemoryRecord::Scope scope(record);
      engine.finish(std::move(half), decided);
    }
    if (!device::used())  // it sees memory of the CPU
      for (const std::string& fault : record.take_faults()) expect(false, fault);
    if (just_in_time && step == 2) engine.update(programs.updates, step);
    look("the end of the step");
    check_disk();
    expect(outputs.size() == (has_loss ? expected.outputs.size() : 0), "the loss has seen other micro-batches");
    for (size_t m = 0; m < outputs.size(); ++m)
      expect(alike(c, outputs[m], expected.outputs[m]), "the output of micro-batch " + std::to_string(m) + " differs");
    for (int u = 0; u < store.units(); ++u)
      if (store.owns(u) && keeps_gradient(c, store, u)) {
        const Tensor found = updated_part(store, u, store.grad(u).cpu().to(at::kFloat)),
                     wanted = updated_part(store, u, expected.gradients[u]);
        expect(c.lossy()         ? near(found, wanted)
               : c.same_order(u) ? alike(c, found, wanted, c.plan.rounds_gradients())
                                 : at::allclose(found, wanted, c.plan.rounds_gradients() ? 1e-2 : 1e-4, 1e-6),
               "the gradient of " + spec.units[u].name + " differs");
      }
    const bool same = c.same_order(0) && !to_the_bound();
    const double elsewhere = c.plan.rounds_gradients() ? 1e-3 : to_the_bound() ? 1e-4 : 1e-5;
    const double norm_bound = c.lossy() ? kLossyBound : same ? 0 : elsewhere;
    expect(std::abs(norm / expected.norm - 1) <= norm_bound,
           "the norm is " + std::to_string(norm) + ", expected " + std::to_string(expected.norm));
  }
  // Of ranks that share tokens the plan takes the largest numbers, which need not be one rank's: this rank's own tell
  // whether it takes less than it should.
  const plan::ModelSpec own_spec = measured(c, rank);
  const plan::Programs own_programs(c.plan, plan::compile_all(own_spec, c.plan, rank, 1), /*samples=*/false);
  const int64_t own_peak = plan::memory_curve(own_spec, c.plan, own_programs.train->schedule, rank, arena).peak;
  const std::string numbers = std::to_string(peak) + " bytes at " + at + ", predicted " + std::to_string(curve.peak) +
                              " at " + curve.at_name + " and " + std::to_string(own_peak) + " from its own share";
  // The plan counts the targets of a micro-batch from its load on, and a device has them from its loss on.
  const auto expected_peak = static_cast<double>(own_peak - (device::used() ? own_spec.targets : 0));
  const auto least = static_cast<int64_t>(testing::planned_share(static_cast<double>(own_peak)) * expected_peak);
  expect(peak <= curve.peak, "takes more than the plan says: " + numbers);
  expect(peak >= least, "takes less than the plan says: " + numbers);
  outputs.clear();
  const CompressionError error = engine.interpreter().numbers().take_compression_error();
  expect(error.most < kLossyBound && (c.lossy() || error.count == 0),
         std::to_string(error.count) + " activations compressed, with relative errors up to " +
             std::to_string(error.most));
  if (c.lossy() || to_the_bound())  // the update is held against what was found
    for (int u = 0; u < store.units(); ++u)
      if (store.owns(u) && keeps_gradient(c, store, u))
        expected.gradients[u] = store.grad(u).cpu().to(at::kFloat, false, true);
  check_update(c, spec, store, expected, optim::AdamW({.format = c.plan.states}), comm, rank);
  expect(Meter::live() == before, "leaves " + std::to_string(Meter::live() - before) + " bytes");
  ++plans;
}

/// The case of a seed; what is wrong is told with its plan.
template <class Check>
void with_case(const Family& family, const Mesh& mesh, int rank, uint64_t seed, const Check& check) {
  const Case c(seed, mesh, family);
  try {
    check(c);
  } catch (const Error&) {
    std::vector<std::string> names;
    for (const auto& unit : c.model->units()) names.push_back(unit->spec().name);
    std::fprintf(stderr, "rank %d, plan %d:\n%s", rank, static_cast<int>(seed), to_toml(c.plan, names).c_str());
    throw;
  }
}

void tell() {
  if (to_the_bound()) std::printf("{\"plans\": %d, \"most_off\": %.3g}\n", plans, most_off);
}

void check_seed(const Family& family, const Mesh& mesh, int rank, comm::Comm& comm, uint64_t seed) {
  with_case(family, mesh, rank, seed, [&](const Case& c) { check(c, comm, rank); });
}

int check_orders(const testing::SeedJob& job) {
  return testing::run_seeds(job, "all ranks", [&](const Family& family, uint64_t seed) {
    with_case(family, job.mesh, -1, seed, [&](const Case& c) {
      const plan::ModelSpec spec = measured(c);
      for (int rank = 0; rank < job.mesh.world(); ++rank) check_order(c, spec, rank);
    });
  });
}

}  // namespace
}  // namespace tessera::engine

int main(int argc, char** argv) {
  if (std::string_view(argv[1]) == "order") {
    tessera::engine::Meter::install();
    for (int i = 2; i < argc; ++i)
      if (const int code = tessera::engine::check_orders(tessera::testing::SeedJob(argv[i]))) return code;
    return 0;
  }
  tessera::testing::seed_worker(argc, argv, tessera::engine::check_seed, tessera::engine::tell);
}
