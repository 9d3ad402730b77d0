#include "tessera/train/set_up.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/hash.h"
#include "tessera/base/limits.h"
#include "tessera/base/log.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/in_place.h"
#include "tessera/device/backend.h"
#include "tessera/device/driver_watch.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/slice.h"
#include "tessera/engine/store/average.h"
#include "tessera/job/base_report.h"
#include "tessera/job/codec.h"
#include "tessera/job/device.h"
#include "tessera/job/given_checks.h"
#include "tessera/job/null_caption.h"
#include "tessera/job/optimiser.h"
#include "tessera/ops/session.h"
#include "tessera/ops/tensor.h"
#include "tessera/plan/plan_file.h"
#include "tessera/planning/disk_need.h"
#include "tessera/planning/measure.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/plan_view.h"
#include "tessera/recipe/parameter_keys.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/train/gate_schedule.h"
#include "tessera/train/run_facts.h"
#include "tessera/train/stop_signal.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

constexpr std::array<const char*, kStartPhases> kNames = {"starting the program",
                                                          "connecting",
                                                          "building the model",
                                                          "preparing the data",
                                                          "measuring the model",
                                                          "planning",
                                                          "waiting for the plan",
                                                          "compiling the plan",
                                                          "allocating buffers",
                                                          "loading the weights",
                                                          "sampling"};

void phase(Run& run, StartPhase phase) {
  run.started.begin(phase);
  run.ranks.watch.phase(0, name(phase));
}

/// This build, by the bytes of its file.
std::string program() {
  const std::string bytes = checkpoint::read_text(this_program());
  char sum[16];
  std::snprintf(sum, sizeof sum, "%08x", crc32c(bytes.data(), bytes.size()));
  return "tessera of " + std::to_string(bytes.size()) + " bytes with checksum " + sum;
}

/// Keys that this rank cannot obey, of a recipe that leaves the device to the machine.
void warn_without_gpu(const recipe::Recipe::Run& settings, const Ranks& ranks) {
  if (!ranks.first() || settings.device == "cpu") return;  // a recipe for a CPU is told where it is read
  if (settings.library_sums() && !ranks.comm.by_device())
    log::warn(
        "run.sums = library has no effect: NCCL sends nothing here, and other sums are in the order of the ranks");
  if (settings.deterministic && !device::used())
    log::warn("run.deterministic = true has no effect: CPU ranks give the same bits each time");
}

void connect(Run& run) {
  comm::Comm& comm = run.ranks.comm;
  job::check_devices(comm);
  run.ranks.watch.follow_device(comm);
  if (run.recipe.run.library_sums()) comm.sum_by_library();
  warn_without_gpu(run.recipe.run, run.ranks);
  comm.check_agreement("program", program());
  comm.check_agreement("recipe", run.recipe.to_toml());
}

void make_model(Run& run) {
  recipe::Recipe& recipe = run.recipe;
  const Mesh& mesh = run.ranks.mesh;
  job::Job& job = run.job = job::make_job(recipe);
  job.local_world = run.ranks.place.local_world;
  planning::check_mesh(mesh, *job.model, job.latent);  // before hours of encoding
  if (job.teacher) planning::check_mesh(mesh, *job.teacher, job.latent);
  recipe.plan.budget =
      job::reserve_device(run.ranks.place, recipe.plan.budget, planning::beside_plan(recipe, job, mesh));
  job::check_trainable(job);
  job::check_weights(recipe, job);
  if (recipe.sample.every > 0) sample::check_loras(recipe.sample.loras, job);
  recipe.set("data.vae_tile", std::to_string(job.vae_tile));
  if (job::tiles_in_time(*job.codec)) recipe.set("data.vae_tile_frames", std::to_string(job.vae_tile_frames));
}

/// A digest of what the run is trained on. The tokenizer by its content: that of a run lies in its folder, or in the cache.
std::string data_digest(const std::vector<prepare::StageData>& data) {
  std::string all;
  for (const prepare::StageData& part : data) all += part.samples->digest() + "\n";
  const fs::path& tokenizer = data.front().samples->tokenizer();
  if (fs::is_regular_file(tokenizer)) all += checkpoint::read_text(tokenizer);
  return std::to_string(hash_text(all));
}

/// The recipe with all that was chosen.
recipe::Recipe resolved(const Run& run) { return planning::resolved(run.recipe, run.parts->all(), run.ranks.place); }

/// What checkpoints keep of the recipe, and of the data that it found.
Values kept_of_recipe(const Run& run) {
  Values values = recipe_values(resolved(run));
  std::string all;
  for (const prepare::StageData& part : run.data) all += part.samples->digest() + "\n";
  char sum[16];
  std::snprintf(sum, sizeof sum, "%08x", static_cast<unsigned>(hash_text(all)));
  values[kDataSet] = std::to_string(run.data.front().samples->size()) + " samples (" + sum + ")";
  return values;
}

/// The one that the run goes on from; `back`: because of what diverged. All ranks together.
void choose_checkpoint(Run& run, const std::string& asked, bool back) {
  run.folder->choose(asked, back);
  checkpoint::TrainingCheckpoint* resumed = run.folder->resumed();
  if (!resumed) return job::check_random_parts(run.recipe, run.job.experts, run.job.image != nullptr);
  job::check_experts(run.job.experts, resumed->manifest());
  if (run.recipe.values.at("run.resume_changes") != "allow") require_same(run.facts, resumed->manifest());
}

/// All that may refuse the run for what its folder holds, before anything there is written; then its data.
void open_folder_and_data(Run& run) {
  const recipe::Recipe& recipe = run.recipe;
  run.folder.emplace(recipe.run, run.ranks);
  run.facts = run_facts(recipe, run.job);
  std::string asked = recipe.run.resume;
  if (is_foreign_checkpoint(asked)) asked = adopt(recipe, run.job, run.facts, run.ranks).string();
  run.health.emplace(*run.folder, recipe.run, recipe.stages, run.job.experts,
                     [&run](int64_t step, const std::string& why, double lr) -> Divergence {
                       return {.step = step,
                               .why = why,
                               .lr = lr,
                               .recipe = recipe_values(run.recipe),
                               .filled = recipe_values(resolved(run)),
                               .data = data_digest(run.data)};
                     });
  choose_checkpoint(run, asked, run.health->goes_back(recipe_values(recipe)));
  if (run.ranks.first()) run.folder->make();
  phase(run, StartPhase::data);
  run.data = prepare::prepare_parts(run.recipe, run.job, run.ranks.mesh, run.ranks.comm, run.ranks.rank());
  if (run.health->require_other_course(recipe_values(recipe), [&] { return data_digest(run.data); }))
    choose_checkpoint(run, asked, /*back=*/true);
}

/// The parts of the run, which know how many clips are held out.
std::vector<recipe::RunPart> parts_of(const Run& run) {
  std::vector<recipe::RunPart> parts = recipe::run_parts(run.recipe);
  for (size_t p = 0; p < parts.size(); ++p)
    if (run.data[p].held_out) parts[p].recipe.eval.items = run.data[p].held_out->size();
  return parts;
}

/// What becomes of the run as planned, or why it ends. Of rank 0.
std::vector<planning::PartPlan> search_plans(Run& run, const std::vector<int>& prompts) {
  std::vector<planning::PartPlan> plans = planning::plan_parts(
      parts_of(run), run.job, run.ranks.mesh, prompts, /*prepared=*/true, [&](planning::PlanPhase next) {
        phase(run, next == planning::PlanPhase::measuring ? StartPhase::measure : StartPhase::plan);
      });
  const bool fit = std::ranges::all_of(plans, [](const planning::PartPlan& p) { return p.planned.choice.fits; });
  log::info(!fit ? planning::plans_text(plans)
                 : planning::plans_words(plans) + (run.folder->out / "plan.txt").string() + " has the rest");
  for (const std::string& line : run.experts->describe()) log::info(line);
  planning::require_fit(plans);
  std::vector<fs::path> stays = run.folder->resume().beyond;
  for (const fs::path& behind : checkpoint::exports_behind(run.folder->out, run.folder->step()))
    stays.push_back(behind);
  for (const planning::PartPlan& p : plans) planning::check_disk(p.planned, run.folder->out, stays);
  return plans;
}

/// Rank 0 searches the plans of all parts and tells what it found, or why the run ends; the others wait for as long as that
/// takes, and make the same plans of its texts.
void make_plans(Run& run) {
  Ranks& ranks = run.ranks;
  std::vector<int> prompts;
  for (const prepare::StageData& data : run.data) prompts.push_back(data.samples->prompts());
  run.experts = make_expert_schedule(run.job, run.recipe, run.data, ranks);
  const plan::Profile profile = plan::find_profile(run.recipe.plan.profile);
  plan::check_machine(profile, job::computing_machine());
  job::use_algorithms(profile, ranks.comm);
  phase(run, ranks.first() ? StartPhase::plan : StartPhase::wait);
  std::vector<planning::PartPlan> plans;
  {
    prepare::Pace pace(ranks.comm, ranks.mesh);
    pace.run([&] {
      if (ranks.first()) plans = search_plans(run, prompts);
    });
    try {
      pace.barrier();
    } catch (const UserError& error) {
      if (error.code() == Exit::rank_lost) throw;
      throw ToldByRankZero{error.code()};
    }
  }
  const std::vector<recipe::RunPart> run_parts = parts_of(run);
  std::vector<std::string> texts(run_parts.size()), by_use(run_parts.size());
  std::vector<planning::PricedStep> own_priced;
  for (size_t p = 0; p < texts.size(); ++p) {
    if (ranks.first()) texts[p] = to_toml(plans[p].planned.plan(), plans[p].planned.unit_names());
    texts[p] = ranks.of_first(texts[p]);
    by_use[p] = ranks.of_first(ranks.first() ? planning::by_use_text(plans[p].planned) : std::string());
    std::vector<planning::PricedStep> priced(static_cast<size_t>(ranks.place.world));
    if (ranks.first()) priced = planning::priced_steps(plans[p].planned);
    const auto bytes = static_cast<int64_t>(priced.size() * sizeof(planning::PricedStep));
    ranks.all().broadcast(at::from_blob(priced.data(), {bytes}, at::kChar), 0);
    own_priced.push_back(priced[static_cast<size_t>(ranks.rank())]);
  }
  if (!ranks.first())
    plans = planning::take_parts(
        run_parts, run.job, ranks.mesh, prompts, texts, by_use, ranks.rank(), [&](planning::PlanPhase next) {
          phase(run, next == planning::PlanPhase::measuring ? StartPhase::measure : StartPhase::compile);
        });
  phase(run, StartPhase::compile);
  std::string all;
  for (const planning::PartPlan& p : plans) all += to_toml(p.planned.plan(), p.planned.unit_names());
  ranks.comm.check_agreement("plan", all);
  ModelFlops count(*run.job.model);
  std::vector<std::vector<double>> flops;  // counted now: memory is planned from step 1 on
  for (const planning::PartPlan& p : plans) {
    std::vector<double>& of_buckets = flops.emplace_back();
    for (const data::Bucket& size : p.part.recipe.data.clips.buckets)
      of_buckets.push_back(count.of_sample(run.job.codec->latent_shape(size.frames, size.height, size.width),
                                           p.planned.plan(), ranks.rank()));
  }
  run.parts.emplace(std::move(plans), std::move(own_priced), std::move(flops), ranks.rank());
}

void make_engine(Run& run, const std::string& trace) {
  const Ranks& ranks = run.ranks;
  const planning::Planned& planned = run.parts->planned();
  engine::EngineOptions options;
  options.poison = std::getenv("TESSERA_POISON") != nullptr;
  options.local_ranks = ranks.place.local_world, options.nvme = run.recipe.plan.disk();
  options.graphs = run.ranks.of_first(planned.graphs.on);  // the others know the plan alone
  options.frozen_passes = run.recipe.distill.judges();
  if (!trace.empty()) options.trace = trace + ".rank-" + std::to_string(ranks.rank());
  int64_t host = 0;
  for (const planning::PartPlan& p : run.parts->all())
    host = std::max(host, p.planned.memory(ranks.rank()).host.total());
  job::place_host_memory(run.ranks.comm, host);
  run.engine = std::make_unique<engine::Engine>(run.job.model->units(), planned.spec, planned.plan(), run.ranks.comm,
                                                ranks.rank(), options);
  if (run.job.teacher)
    run.engine->add_teacher(run.job.teacher->units(), planned.teacher->model, planned.teacher_plan(), ranks.rank());
  run.engine->optimise(job::optimiser_of(run.recipe, planned.plan().states, run.job.model.get()));
  run.engine->times().read();
  run.ranks.watch.follow(*run.engine);
  if (!device::driver()) return;
  device::driver()->take();  // the numbers of a step begin here
  if (ranks.first() && !device::driver()->absence().empty()) log::info(device::driver()->absence());
}

Checkpoints::Contents contents_of(Run& run) {
  const auto describe = [&run](int64_t step, checkpoint::Manifest& manifest) {
    const recipe::Recipe& recipe = run.parts->recipe();
    manifest.seed = recipe.run.seed;
    run.experts->write(step, manifest);
    run.updates->save(manifest);
    run.held_out->save(manifest);
    save_facts(run.facts, kept_of_recipe(run), manifest);
    if (const auto rule = job::adapter_rule(recipe)) manifest.extra["lora"] = job::lora_json(*rule, run.job.adapted);
    if (recipe::is_schedule_free(recipe)) manifest.extra["result"] = plan::kAverage;
    manifest.extra["model"] = run.parts->planned().spec.name;
    manifest.extra["plan_hash"] = run.parts->plan_hash();
  };
  return {.run =
              [&run](int64_t step, const auto& write, const auto& commit) {
                run.engine->checkpoint(run.parts->programs().checkpoint, step, write, commit);
              },
          .settle = [&run] { run.updates->settle(); },
          .pieces = [&run] { return run.experts->pieces(run.engine->store()); },
          .describe = describe,
          .beside = [&run](int64_t step, const fs::path& partial) { run.exports->beside(step, partial); },
          .behind = [&run](int64_t step, const fs::path& saved) { run.exports->behind(step, saved); },
          .losses = [&run] { return run.held_out->losses(); }};
}

/// What takes part in the steps, before there are weights.
void make_parts_of_steps(Run& run) {
  const plan::Plan& plan = run.parts->planned().plan();
  const job::Experts& experts = run.job.experts;
  engine::Store& store = run.engine->store();
  for (int side = 0; side < plan.together; ++side) run.objectives.emplace_back(*run.job.model, run.ranks.rank());
  run.proofs.emplace(experts.size(), experts.gated, run.recipe.run.steps,
                     [&run](int64_t step) { return run.experts->expert_of(step); });
  run.updates.emplace(run.ranks, *run.experts, *run.health, *run.proofs, store, LossScale(plan, run.recipe.train),
                      StepSize(run.recipe.plan.states.optimizer, run.recipe.train, experts.size()));
  run.exports.reset(new Exports{*run.folder, run.recipe, run.job, run.data, *run.parts, *run.experts, store});
  run.checkpoints.emplace(*run.folder, *run.health, *run.proofs, contents_of(run));
  run.loader.emplace(/*threads=*/1);
  run.sampler.emplace(*run.folder, run.job, *run.experts, *run.engine, *run.loader);
  run.held_out.emplace(*run.folder, run.job, *run.experts, *run.engine, *run.loader);
}

/// Weights, states and what else a checkpoint holds.
engine::Roundings resume(Run& run, checkpoint::TrainingCheckpoint& saved) {
  engine::Roundings rounded;
  engine::Store& store = run.engine->store();
  if (run.recipe.lora.on)  // the checkpoint has the adapters alone
    rounded = job::load_initial_weights(run.recipe, run.job, store);
  run.experts->resume(store, saved);
  const int64_t done = saved.manifest().step, steps = run.recipe.run.steps;
  run.parts->go_on(done);
  run.updates->restore(saved.manifest());
  run.held_out->restore(saved.manifest());
  run.health->restore(saved.manifest());
  if (run.folder->own_checkpoint())
    run.proofs->restore(saved.manifest(), checkpoint::step_folder(run.folder->checkpoints, done), done);
  log::info("resumed from " + saved.path().string());
  if (done >= steps)
    log::info("nothing to train: step " + std::to_string(done) + " is saved and run.steps = " + std::to_string(steps) +
              "; raise run.steps to train on");
  return rounded;
}

/// The first weights and states.
engine::Roundings begin_anew(Run& run) {
  engine::Store& store = run.engine->store();
  const engine::Roundings rounded = job::load_initial_weights(run.recipe, run.job, store);
  run.experts->load_model(run.recipe.model.path);
  job::each_expert(store, run.job.experts, [&](size_t e, const std::string&) {
    job::start_adapters(job::for_expert(run.recipe, run.job.experts, e).lora, store, run.ranks.comm);
    engine::begin_averages(store);
  });
  return rounded;
}

/// The plans, and the resolved recipe.
void write_plan(const Run& run) {
  const fs::path& out = run.folder->out;
  const std::vector<planning::PartPlan>& plans = run.parts->all();
  recipe::Recipe recipe = resolved(run);
  recipe.set(recipe::kStartedIn, fs::current_path().string());
  const fs::path tokenizer = run.data.front().samples->tokenizer();
  if (tokenizer.parent_path() == fs::path(recipe.data.cache) && tokenizer.filename().string().starts_with("tokenizer-"))
    recipe.set("data.tokenizer", run.folder->keep_tokenizer(tokenizer).string());
  checkpoint::write_text(out / "plan.json", planning::plans_json(plans));
  run.folder->write_recipe(recipe.to_toml());
  checkpoint::write_text(out / "plan.txt", planning::plans_text(plans));
  for (const planning::PartPlan& p : plans) {
    const std::string plan = p.part.number == 0 ? "plan.toml" : "plan-stage-" + std::to_string(p.part.number) + ".toml";
    checkpoint::write_text(out / plan, to_toml(p.planned.plan(), p.planned.unit_names()));
  }
}

/// Of rank 0.
void claim_folder(Run& run) {
  std::vector<std::string> models;
  if (run.job.experts.models() > 1)
    for (const job::Expert& expert : run.job.experts.list) models.push_back(expert.folder);
  run.folder->claim(models, run.health->why_back());
  run.health->forget();
  run.checkpoints->prune();  // a kill may have come before the last one
  write_plan(run);
  std::vector<Change> changed;
  if (checkpoint::TrainingCheckpoint* resumed = run.folder->resumed())
    changed = changes(run.facts, kept_of_recipe(run), resumed->manifest());
  run.folder->open_log(run.recipe.run.on_event, changed);
  const int64_t done = run.folder->step();
  if (run.folder->own_checkpoint() && !run.exports->has(done))
    run.exports->behind(done, *run.folder->resume().from);  // a kill or a full disk kept it from being written
}

/// Logs the size and the quantisation error of a quantised base.
void log_base(Run& run, const engine::Roundings& rounded) {
  const plan::ModelSpec& spec = run.parts->planned().spec;
  const std::optional<job::BaseFacts> facts = job::base_facts(spec);
  if (!facts) return;
  const job::BaseError error = job::base_error(spec, rounded, run.ranks.comm);
  if (!run.ranks.first()) return;
  log::info(job::describe(*facts) + "; " + job::describe(error));
  if (run.folder->step() == 0)
    run.folder->log()->base(std::string(name(facts->form)), error.all, error.worst, error.worst_linear);
}

void load(Run& run) {
  checkpoint::TrainingCheckpoint* resumed = run.folder->resumed();
  const engine::Roundings rounded = resumed ? resume(run, *resumed) : begin_anew(run);
  job::load_teacher(run.job, run.job.teacher ? run.engine->teacher() : run.engine->store());
  run.checkpoints->begin_part(run.parts->recipe().checkpoint);
  run.ranks.first_acts(run.folder->step(), "taking over the run's folder",
                       "waiting for rank 0 to take over the run's folder", [&] { claim_folder(run); });
  if (run.folder->own_checkpoint()) name_checkpoint(run.folder->resume().from->string());
  run.folder->loaded();
  log_base(run, rounded);
}

/// How the communicators that the programs use send, once each; and what is slower than it need be.
void tell_links(Run& run) {
  std::map<std::string, std::string> by;  // names, by how they send
  std::set<std::string> warnings;
  for (const comm::Link& link : run.ranks.comm.links()) {
    if (!run.told_links.insert(link.group).second) continue;
    std::string& names = by[link.by];
    names += (names.empty() ? "" : ", ") + link.group + " (" + std::to_string(link.ranks) + ")";
    if (!link.warning.empty()) warnings.insert(link.warning);
  }
  if (!run.ranks.first()) return;
  for (const auto& [way, names] : by) log::info("communicators by " + way + ": " + names);
  for (const std::string& warning : warnings) {
    log::warn(warning);
    run.folder->log()->warning(run.folder->step(), "transport", warning);
  }
}

/// cuDNN compiles a plan for each shape of attention when that is first called, in tenths of a second: those of the part's
/// shapes here, before its first step.
void compile_attention(const Run& run, const planning::PartPlan& part) {
  const plan::Plan& plan = part.planned.plan();
  if (plan.attention != plan::Attention::cudnn || device::here().is_cpu()) return;
  const auto begun = std::chrono::steady_clock::now();
  std::set<int64_t> counts;  // samples of a micro-batch
  for (int64_t micro = 0; micro < plan.accumulation(); ++micro)
    counts.insert(std::max<int64_t>(1, plan.slice(run.ranks.mesh.dp_rank(run.ranks.rank()), micro).count));
  plan::AttentionUse use = part.planned.spec.attention();
  const ops::TargetScope scope(planning::measured_target(part.planned.machine.profile));
  for (const data::Bucket& size : part.part.recipe.data.clips.buckets) {
    net::Sample blank = job::blank_sample(run.recipe, *run.job.model,
                                          run.job.codec->latent_shape(size.frames, size.height, size.width));
    blank.context = blank.context.to(at::kMeta);
    for (const int64_t count : counts)
      use.add(engine::measure(run.job.model->units(), engine::batch_of_alike(*run.job.model, blank, count),
                              run.job.name,
                              {.train = false,
                               .mesh = run.ranks.mesh,
                               .compute = plan.compute,
                               .attention = plan.attention,
                               .rank = run.ranks.rank()})
                  .attention());
  }
  if (use.shapes.empty()) return;
  ops::compile_attention(use, scalar_type(plan.compute), device::here());
  if (run.ranks.first())
    log::info("cuDNN compiled attention of " + std::to_string(use.shapes.size()) +
              (use.shapes.size() == 1 ? " shape in " : " shapes in ") +
              format_seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count()));
}

/// Where the time before the first step went, on every rank.
void tell_start(Run& run) {
  const StartSeconds& own = run.started.seconds();
  const auto ranks = run.ranks.gather({own.begin(), own.end()});
  if (!run.ranks.first()) return;
  std::vector<report::Phases> phases(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (size_t p = 0; p < own.size(); ++p)
      if (ranks[rank][p] > 0) phases[rank].emplace_back(name(static_cast<StartPhase>(p)), ranks[rank][p]);
  log::info(describe(own));
  run.folder->log()->start(run.folder->step(), describe(own), phases);
}

}  // namespace

const char* name(StartPhase phase) { return kNames[static_cast<size_t>(phase)]; }

void StartTimes::begin(StartPhase phase) {
  end();
  phase_ = phase;
}

void StartTimes::end() {
  const Clock::time_point now = Clock::now();
  seconds_[static_cast<size_t>(phase_)] += std::chrono::duration<double>(now - began_).count();
  began_ = now;
}

double total(const StartSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

std::string describe(const StartSeconds& seconds) {
  std::string phases;
  for (size_t p = 0; p < seconds.size(); ++p)
    if (seconds[p] >= 5e-4)
      phases += (phases.empty() ? "" : ", ") + std::string(kNames[p]) + " " + format_seconds(seconds[p]);
  return format_seconds(total(seconds)) + " from the start: " + phases;
}

std::unique_ptr<Run> set_up(recipe::Recipe recipe, const comm::Rendezvous& place, StartTimes started,
                            const std::string& trace) {
  const Mesh asked = recipe.mesh;
  const double timeout = recipe.fault.timeout;
  std::unique_ptr<Run> run(
      new Run{.recipe = std::move(recipe), .started = started, .ranks = Ranks(place, asked, timeout)});
  connect(*run);
  phase(*run, StartPhase::model);
  make_model(*run);
  open_folder_and_data(*run);
  make_plans(*run);
  phase(*run, StartPhase::buffers);
  make_engine(*run, trace);
  make_parts_of_steps(*run);
  phase(*run, StartPhase::weights);
  load(*run);
  phase(*run, StartPhase::compile);
  if (run->recipe.plan.budget > 0) engine::Meter::set_budget(run->recipe.plan.budget);
  run->meter.emplace(run->ranks, *run->parts, *run->experts, *run->engine, *run->loader);
  run->meter->due = [&checkpoints = *run->checkpoints] { return checkpoints.due(); };
  begin_part(*run, run->parts->index());
  if (owes_samples(*run->folder, run->parts->planned().run)) run->parts->walk().make_up_samples();
  if (!run->held_out->losses().contains(run->parts->done()) && run->parts->done() == 0)
    run->parts->walk().make_up_evaluation();
  run->started.end();
  tell_start(*run);
  return run;
}

void begin_part(Run& run, size_t part) {
  Parts& parts = *run.parts;
  parts.begin(part);
  const planning::PartPlan& now = parts.now();
  const recipe::Recipe& recipe = parts.recipe();
  run.experts->begin_part(part, now, *run.job.model, parts.programs());
  run.engine->use(parts.programs(), run.experts->arena(), run.experts->host_arena());
  tell_links(run);
  compile_attention(run, now);
  run.engine->optimise(job::optimiser_of(recipe, now.planned.plan().states, run.job.model.get()));
  run.updates->begin_part(recipe.train, recipe.run.on_nan == "skip");
  run.checkpoints->begin_part(recipe.checkpoint);
  run.sampler->begin_part(now, *run.data[part].samples);
  run.held_out->begin_part(now, run.data[part].held_out.get());
  engine::Meter::reset_peak();
  if (now.part.number == 0 || now.part.first <= parts.done() || !run.ranks.first()) return;
  log::info(now.part.name() + ": " + now.part.changes);
  run.folder->log()->stage(now.part.first, now.part.number, now.part.changes, now.planned.plan().summary());
}

void give_shares(Run& run, int64_t step, const std::vector<int64_t>& shares) {
  Parts::Shared shared = run.parts->with_shares(shares);
  const bool fits = run.recipe.plan.budget <= 0 || shared.predicted.peak <= run.recipe.plan.budget;
  for (const auto& row : run.ranks.gather({fits ? 1. : 0.}))
    if (row[0] == 0) return;
  run.parts->take(std::move(shared));
  run.engine->use(run.parts->programs(), run.experts->arena(), run.experts->host_arena());
  run.experts->change(run.parts->programs());
  if (!run.ranks.first()) return;
  std::string text = "from now on, samples of a step by dp rank:";
  for (int64_t count : shares) text += " " + std::to_string(count);
  log::info(text);
  run.folder->log()->fault(step, "rebalance", text, -1, shares);
}

}  // namespace tessera::train
